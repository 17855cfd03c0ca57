"""Agents as pure functions: a torso, an optional core with a memory, and a head for each prediction of a spec.

Heads are linear. With an action model (`action_model.py`) per-action predictions (`PredictionSpec.is_per_action`) are
made from its output, each by a head with one hidden layer (Oh et al. 2025, Methods). As in the public code, the last
layer before the model has no activation.

Torsos are those of `torsos.py`, and `tabular`, a table of values over one-hot observations. Those for images run over
one time step at a time and are rematerialised: the activations of the whole trajectory are never in memory together.
Where a time step is one image on each device, all time steps run at once.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

from agents import splitting
from agents.networks.action_model import TakenInTurn, action_model
from agents.networks.torsos import LAYOUTS, conv, flatten, resnet, to_patches, with_channels
from agents.networks.transformer import TransformerXL, empty_memory
from agents.settings import Bounds, Count, CountOrZero, OneOf, Settings, Sizes, check_settings
from agents.types import Array, CoreState, Params, Predictions, TargetSpec, Trajectory

ACTIVATIONS = ("relu", "tanh", "elu", "gelu", "silu", "softplus")  # of jax.nn
IMAGE_TORSOS = ("conv", "resnet")
TORSOS = ("mlp", *IMAGE_TORSOS, "tabular")
CORES = ("lstm", "transformer")
PRECISIONS = ("full", "bfloat16")
TORSO = "torso"  # a prediction of this name is the output of the last layer before the heads, as it is

_HEAD_STDDEV = Bounds("a positive number, or none", lambda x: x is None or 0 < x < float("inf"))
_LAYOUT = Bounds('"first", "last", or "" for what shapes say', lambda x: x in ("", *LAYOUTS))


@dataclasses.dataclass
class NetworkConfig(Settings):
    """An agent's network.

    Attributes:
      torso: What reads observations: 'mlp'; for pictures 'conv', the ConvNet of Xu et al. 2020, Table 1, or 'resnet'
        (Espeholt et al. 2018, Figure 3); or 'tabular', a table of values over one-hot observations.
      hidden: Units of the fully connected layers after the torso, at least 1 each (Xu et al. 2020, appendix A.1).
      core: Units of the core, a memory after the fully connected layers; 0 for none.
      activation: Activation of layers: 'relu', 'tanh', 'elu', 'gelu', 'silu' or 'softplus'.
      action_model: Units of the action-conditional LSTM that per-action predictions are made by, and of the hidden
        layer of their heads (Oh et al. 2025, Methods); 0 for none.
      head_stddev: Standard deviation of the first weights of heads but the action model's, positive; none for
        1 / √inputs, and 0.01 after a transformer.
      is_orthogonal: Whether first weights are orthogonal, of the scale √2 in layers, 0.01 in policy heads and after a
        transformer, else 1; of the torso 'mlp'.
      is_critic_separate: Whether the value has a network of its own.
      channels: Filters of the sections of 'resnet', at least 1 each (Espeholt et al. 2018, Figure 3).
      core_kind: Kind of core: 'lstm', or 'transformer' (Bauer et al. 2023, appendix C.1).
      core_layers: Layers of the transformer, at least 1.
      core_heads: Heads of attention in each layer of the transformer, a divisor of the core's units.
      memory: Steps back to which each layer of the transformer attends, at least 1.
      precision: Precision of what layers compute, 'full' or 'bfloat16'; parameters and predictions are always full.
      layout: Axis of the channels of pictures, 'first' or 'last', or '' for what their shape says: an axis, the first
        or the last, can be it if it has at most 16 entries, and fewer than the largest one. If both can, or neither,
        the pictures are refused.
    """

    torso: Annotated[str, OneOf(TORSOS)] = "mlp"
    hidden: Sizes = (256, 256)
    core: CountOrZero = 0
    activation: Annotated[str, OneOf(ACTIVATIONS)] = "relu"
    action_model: CountOrZero = 0
    head_stddev: Annotated[float | None, _HEAD_STDDEV] = None
    is_orthogonal: bool = False
    is_critic_separate: bool = False
    channels: Sizes = (16, 32, 32)
    core_kind: Annotated[str, OneOf(CORES)] = "lstm"
    core_layers: Count = 2
    core_heads: Count = 4
    memory: Count = 64
    precision: Annotated[str, OneOf(PRECISIONS)] = "full"
    layout: Annotated[str, _LAYOUT] = ""

    def validate(self) -> None:
        check_settings(self, "network.")
        if self.is_orthogonal and (self.head_stddev is not None or self.torso != "mlp"):
            raise ValueError(
                f"network.is_orthogonal is True, torso {self.torso!r} and head_stddev {self.head_stddev}, expected the "
                "torso 'mlp' and no head_stddev"
            )
        if self.layout and self.torso not in IMAGE_TORSOS:
            raise ValueError(f'network.layout is {self.layout!r}, expected "" for the torso {self.torso!r}')
        if self.core_kind == "transformer" and (not self.core or self.core % self.core_heads):
            raise ValueError(
                f"network.core is {self.core}, expected a positive multiple of network.core_heads, {self.core_heads}, "
                "for a transformer"
            )


Actions = Array | TakenInTurn | None  # [N], [T, B, N], or taken in turn; None for all there are


class Agent(NamedTuple):
    """A network as pure functions.

    Attributes:
      init: key, prepared observation [B, ...] -> params.
      prepare: observation [B, ...] as the environment gives it -> the prepared form, which the other functions take and
        trajectories hold.
      initial_state: batch size -> core state [B, ...].
      step: params, prepared observation [B, ...], is_first [B], core state -> predictions [B, ...], core state.
      unroll_for: params, trajectory, `Actions` -> for each of these the predictions [T + 1, B, ...], an action model's
        for these actions. Their common layers are computed once.
    """

    init: Callable[[Array, Array], Params]
    prepare: Callable[[Array], Array]
    initial_state: Callable[[int], CoreState]
    step: Callable[[Params, Array, Array, CoreState], tuple[Predictions, CoreState]]
    unroll_for: Callable[[Params, Trajectory, Sequence[Actions]], list[dict[str, Array]]]

    def unroll(self, params: Params, trajectory: Trajectory) -> Predictions:
        """Return predictions [T + 1, B, ...]."""
        return self.unroll_for(params, trajectory, [None])[0]

    def unroll_taken(self, params: Params, trajectory: Trajectory) -> tuple[Predictions, Predictions]:
        """Return two sets of predictions, of which the second is that of `unroll`.

        In the first, an action model's predictions are of the taken action alone, [T + 1, B, 1, ...], and meaningless
        at the last observation: a loss needs no more, and its gradient costs 1 / A.
        """
        taken = jnp.concatenate([trajectory.action, trajectory.action[-1:]])[..., None]
        of_taken, of_all = self.unroll_for(params, trajectory, [taken, None])
        return of_taken, of_all

    def unroll_model(self, params: Params, trajectory: Trajectory, num_steps: int) -> tuple[Predictions, Predictions]:
        """Return two sets as `unroll_taken` does; a ValueError where the network has no action model.

        In the first, the action model goes on from each observation along the taken actions: its predictions are those
        after 1 to `num_steps` of them, [T + 1, B, num_steps, ...], and meaningless after a step that ended its episode,
        and where the actions reach past the trajectory.
        """
        action = jnp.concatenate([trajectory.action, *[trajectory.action[-1:]] * num_steps])
        length = len(trajectory.observation)
        taken = jnp.stack([action[i : i + length] for i in range(num_steps)], axis=-1)
        along_taken, of_all = self.unroll_for(params, trajectory, [TakenInTurn(taken), None])
        return along_taken, of_all


class Linear(hk.Linear):
    """As Haiku's, with one axis of a batch in products: the gradients of several need transposed copies on CPUs.

    Axes of a batch that is split over devices stay as they are.
    """

    def __call__(self, inputs: Array, *, precision: Any = None) -> Array:
        if splitting.num_shares() > 1:
            return super().__call__(inputs, precision=precision)
        out = super().__call__(jnp.reshape(inputs, (-1, inputs.shape[-1])), precision=precision)
        return jnp.reshape(out, (*inputs.shape[:-1], self.output_size))


class LSTM(hk.LSTM):
    """As Haiku's, computed in the precision of its inputs, whatever that of the state."""

    def __call__(self, inputs: Array, prev_state: hk.LSTMState) -> tuple[Array, hk.LSTMState]:
        out, state = super().__call__(inputs, _cast(prev_state, inputs.dtype))
        return out, _cast(state, prev_state.cell.dtype)


def make_agent(config: NetworkConfig, spec: TargetSpec, num_actions: int) -> Agent:
    """Build an agent that makes the predictions of `spec`."""
    config.validate()
    if config.is_critic_separate and "value" in spec and len(spec) > 1:
        shared = dataclasses.replace(config, is_critic_separate=False)
        of_critic = {name: prediction for name, prediction in spec.items() if name == "value" or prediction.is_apart}
        others = {name: prediction for name, prediction in spec.items() if name not in of_critic}
        return _side_by_side(*(make_agent(shared, part, num_actions) for part in (others, of_critic)))
    activation = getattr(jax.nn, config.activation)
    is_image = config.torso in IMAGE_TORSOS
    of_channels = functools.partial(resnet, channels=config.channels)
    torso_fns: dict[str, Callable[..., Array]] = {"conv": conv, "resnet": of_channels}
    torso_fn = torso_fns.get(config.torso, flatten)
    torso: Any = hk.without_apply_rng(hk.transform(lambda observation: torso_fn(observation, activation)))

    def heads_fn(
        embedding: Array, is_first: Array, core_state: CoreState, actions: Sequence[Array | TakenInTurn]
    ) -> tuple[list[dict[str, Array]], CoreState]:
        """embedding [T, B, F], is_first [T, B] -> for each entry of `actions`, [N] or [T, B, N], the predictions
        [T, B, ...]; those of the action model are for these actions, or after each of those taken in turn."""
        if config.torso == "tabular":
            linear = lambda size, name: Linear(size, with_bias=False, w_init=jnp.zeros)
        else:
            linear = lambda size, name: Linear(size, w_init=_head_init(config, name))
            embedding = activation(embedding) if is_image else embedding
            for i, size in enumerate(config.hidden, start=1):
                embedding = Linear(size, w_init=hk.initializers.Orthogonal(2**0.5) if config.is_orthogonal else None)(
                    embedding
                )
                if i < len(config.hidden) or not config.action_model:
                    embedding = activation(embedding)
        if config.core_kind == "transformer":
            transformer = TransformerXL(config.core, config.core_heads, activation)
            embedding, core_state = transformer(embedding, is_first, core_state)
        elif config.core:
            core = hk.ResetCore(LSTM(config.core))
            embedding, core_state = hk.dynamic_unroll(core, (embedding, is_first), _cast(core_state, float))
        found: list[dict[str, Array]] = [{} for _ in actions]
        after_actions = None
        for name, prediction in spec.items():
            if name == TORSO:
                if prediction.shape != embedding.shape[2:]:
                    units = embedding.shape[-1]
                    raise ValueError(
                        f"rule.torso is {prediction.shape[0]}, expected {units}, as the agent's last layer"
                    )
                outs, shape = [embedding] * len(actions), prediction.shape
            elif prediction.is_per_action and config.action_model:
                if after_actions is None:
                    after = action_model(config.action_model, num_actions, embedding)
                    after_actions = [after(x) for x in actions]
                hidden = Linear(config.action_model, name=f"{name}_hidden")
                head = Linear(math.prod(prediction.shape), name=name)
                outs = [head(activation(hidden(x))) for x in after_actions]
                shape = prediction.shape
            else:
                shape = (num_actions, *prediction.shape) if prediction.is_per_action else prediction.shape
                features = jax.lax.stop_gradient(embedding) if prediction.is_apart else embedding
                outs = [linear(math.prod(shape), name)(features)] * len(actions)
            for predictions, out in zip(found, outs, strict=True):
                predictions[name] = jnp.reshape(out, (*out.shape[:-1], *shape))
        return found, core_state

    heads: Any = hk.without_apply_rng(hk.transform(heads_fn))
    all_actions = np.arange(num_actions)  # no tracer, where an agent is made within a program

    def initial_state(batch_size: int) -> CoreState:
        if config.core_kind == "transformer":
            return empty_memory(batch_size, config.memory, config.core_layers, config.core)
        zeros = jnp.zeros((batch_size, config.core), float)
        return hk.LSTMState(hidden=zeros, cell=zeros) if config.core else ()

    def init(key: Array, observation: Array) -> Params:
        torso_key, heads_key = jax.random.split(key)
        torso_params = torso.init(torso_key, observation)
        embedding = torso.apply(torso_params, observation)[None]
        is_first = jnp.zeros(embedding.shape[:2], bool)
        return {
            "torso": torso_params,
            "heads": heads.init(heads_key, embedding, is_first, initial_state(len(observation)), [all_actions]),
        }

    def step(params: Params, observation: Array, is_first: Array, core_state: CoreState):
        embedding = torso.apply(params["torso"], observation)
        (predictions,), core_state = heads.apply(
            params["heads"], embedding[None], is_first[None], core_state, [all_actions]
        )
        return {name: prediction[0] for name, prediction in predictions.items()}, core_state

    def unroll_for(params: Params, trajectory: Trajectory, actions: Sequence[Actions]) -> list[dict[str, Array]]:
        if not config.action_model and any(isinstance(x, TakenInTurn) for x in actions):
            raise ValueError("network.action_model is 0, expected the units of a model to unroll")
        observation = trajectory.observation
        if is_image:
            see = functools.partial(torso.apply, params["torso"])
            num = observation.shape[1]
            is_one_by_one = num == splitting.num_shares(num)  # as in minibatches of steps out of their order
            each = jax.vmap(see, 1, 1) if is_one_by_one else functools.partial(jax.lax.map, jax.checkpoint(see))
            embedding = each(observation)
        else:
            merged = torso.apply(params["torso"], jnp.reshape(observation, (-1, *observation.shape[2:])))
            embedding = jnp.reshape(merged, (*observation.shape[:2], *merged.shape[1:]))
        chosen = [all_actions if x is None else x for x in actions]
        return heads.apply(params["heads"], embedding, trajectory.is_first, trajectory.core_state, chosen)[0]

    def prepare(observation: Array) -> Array:
        if is_image and observation.ndim != 4:
            shape = observation.shape[1:]
            raise ValueError(f"network.torso {config.torso!r} needs images of three axes, got shape {shape}")
        if config.torso == "conv":
            return to_patches(with_channels("first", observation, config.layout))
        return with_channels("last", observation, config.layout) if is_image else observation

    agent = Agent(init, prepare, initial_state, step, unroll_for)
    return agent if config.precision == "full" else _in_bfloat16(agent)


def _in_bfloat16(agent: Agent) -> Agent:
    """The same, computed in bfloat16; gradients of parameters are of full precision, as the parameters."""

    def low(tree: Any) -> Any:
        return _cast(tree, jnp.bfloat16)

    def seen(observation: Array) -> Array:
        return observation.astype(jnp.bfloat16) / 255 if observation.dtype == jnp.uint8 else low(observation * 1.0)

    def step(params: Params, observation: Array, is_first: Array, core_state: CoreState):
        return _cast(agent.step(low(params), seen(observation), is_first, low(core_state)), float)

    def unroll_for(params: Params, trajectory: Trajectory, actions: Sequence[Actions]) -> list[dict[str, Array]]:
        own = dict(observation=seen(trajectory.observation), core_state=low(trajectory.core_state))
        return _cast(agent.unroll_for(low(params), trajectory._replace(**own), actions), float)

    return agent._replace(step=step, unroll_for=unroll_for)


def _cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


def _head_init(config: NetworkConfig, name: str) -> hk.initializers.Initializer | None:
    is_transformer = config.core_kind == "transformer"  # its outputs have unit variance, those of others have less
    if config.is_orthogonal:
        return hk.initializers.Orthogonal(0.01 if name == "policy" or is_transformer else 1.0)
    stddev = config.head_stddev or (0.01 if is_transformer else None)
    return hk.initializers.TruncatedNormal(stddev) if stddev else None


def _side_by_side(first: Agent, second: Agent) -> Agent:
    """Join two networks that see the same; the predictions are those of both."""

    def init(key: Array, observation: Array) -> Params:
        first_key, second_key = jax.random.split(key)
        return {"actor": first.init(first_key, observation), "critic": second.init(second_key, observation)}

    def initial_state(batch_size: int) -> CoreState:
        states = first.initial_state(batch_size), second.initial_state(batch_size)
        return states if jax.tree.leaves(states) else ()

    def pairs(params: Params, core_state: CoreState):
        first_state, second_state = core_state or ((), ())
        return (first, params["actor"], first_state), (second, params["critic"], second_state)

    def step(params: Params, observation: Array, is_first: Array, core_state: CoreState):
        steps = [agent.step(own, observation, is_first, state) for agent, own, state in pairs(params, core_state)]
        new_state = tuple(state for _, state in steps) if core_state else ()
        return steps[0][0] | steps[1][0], new_state

    def unroll_for(params: Params, trajectory: Trajectory, actions: Sequence[Actions]) -> list[dict[str, Array]]:
        of_one, of_other = (
            agent.unroll_for(own, trajectory._replace(core_state=state), actions)
            for agent, own, state in pairs(params, trajectory.core_state)
        )
        return [one | other for one, other in zip(of_one, of_other, strict=True)]

    return Agent(init, first.prepare, initial_state, step, unroll_for)
