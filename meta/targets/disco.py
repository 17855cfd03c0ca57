"""DiscoRL's update rule: categorical targets for a policy and for two predictions without given meaning, y and z.

The meta-network of `target_network.py` with the inputs of DiscoRL, per step and per action, and a lifetime LSTM.
Besides its targets, action values are learned from Retrace, and an auxiliary policy predicts the next step's.
Source: Oh et al. 2025, Methods; every constant is that of the published rule, Disco103.
"""

import dataclasses
import functools
from typing import Annotated, Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from agents.acting.in_jax import empty_trajectory
from agents.rule import UpdateRule, masked_means, masked_reduce
from agents.rules.action_values import taken, taken_vectors
from agents.rules.categorical import entropy, kl_divergence, to_scalars, two_hot_loss
from agents.rules.moving_average import MovingAverage, initial_average, update_average
from agents.settings import Bounds, Count, CountOrZero, Fraction, NotNegative, OneOf, Settings
from agents.types import Array, Predictions, PredictionSpec, TargetSpec, Trajectory, successors
from meta.targets import disco_inputs
from meta.targets.disco_inputs import DiscoContext, compute_values
from meta.targets.target_network import (
    CORES,
    FutureTransformer,
    LifetimeLSTMState,
    TargetNetwork,
    TargetNetworkConfig,
    initial_lifetime_lstm_state,
)

HIDDEN = ("nothing", "own", "all")
_EMBEDDING = Bounds("positive layer sizes", lambda x: bool(x) and min(x) >= 1)
HIDDEN_AS = {"zero": jnp.zeros_like, "mean": lambda x: jnp.broadcast_to(jnp.mean(x), x.shape)}


@dataclasses.dataclass
class DiscoConfig(Settings):
    """DiscoRL's rule; the defaults are those of Disco103 (Oh et al. 2025: its weights and public code).

    Attributes:
      prediction_size: Categories of y, and of z, at least 1.
      max_value: Bins of transformed action values are the whole numbers from -max_value to it, at least 1.
      lstm: Units of the core of the meta-network, at least 1.
      lifetime_lstm: Units of the LSTM that takes a step with each update; 0 for none.
      is_lifetime_held: Ablation: whether that LSTM stays in its initial state.
      action_embedding: Units of the layers of per-action inputs, at least 1 each.
      discount: γ, from 0 to 1.
      lambda_: λ of Retrace, from 0 to 1.
      policy_cost: Weight of KL(π̂ ‖ π), at least 0.
      y_cost: Weight of KL(ŷ ‖ y), at least 0.
      z_cost: Weight of KL(ẑ ‖ z) of the taken action, at least 0.
      aux_policy_cost: Weight of the loss of the auxiliary policy, which predicts the next step's, at least 0.
      value_cost: Weight of the loss of action values, at least 0.
      target_decay: Decay of the agent's slow copy, the target network, in an update, from 0 to 1.
      target_policy_cost: Weight of KL(target policy ‖ π̂) in the outer loss, at least 0.
      logit_cost: Weight of the squared mean logit of each target in the outer loss, at least 0.
      core: What reads the trajectory: 'lstm', or 'transformer', whose units are a multiple of 4.
      without: Ablation: predictions that agents and rule do without, of 'y_z', 'q' and 'aux_policy'.
      hidden: Ablation: y and z are inputs of all targets ('nothing'), not of their 'own', or not of 'all'.
      hidden_as: What stands for hidden embeddings of y and z: 'zero', or 'mean', theirs over the trajectory.
      skips_first_steps: Whether losses leave out the first step of an episode, as those of the public code do.
    """

    prediction_size: Count = 600
    max_value: Count = 300
    lstm: Count = 256
    lifetime_lstm: CountOrZero = 128
    is_lifetime_held: bool = False
    action_embedding: Annotated[tuple[int, ...], _EMBEDDING] = (16, 2)
    discount: Fraction = 0.997
    lambda_: Fraction = 0.95
    policy_cost: NotNegative = 1.0
    y_cost: NotNegative = 1.0
    z_cost: NotNegative = 1.0
    aux_policy_cost: NotNegative = 1.0
    value_cost: NotNegative = 0.2
    target_decay: Fraction = 0.9
    target_policy_cost: NotNegative = 1e-2
    logit_cost: NotNegative = 1e-3
    core: Annotated[str, OneOf(CORES)] = "lstm"
    without: Annotated[tuple[str, ...], OneOf(("y_z", "q", "aux_policy"))] = ()
    hidden: Annotated[str, OneOf(HIDDEN)] = "nothing"
    hidden_as: Annotated[str, OneOf(HIDDEN_AS)] = "zero"
    skips_first_steps: bool = False

    def validate(self) -> None:
        super().validate()
        if self.hidden != "nothing" and "y_z" in self.without:
            raise ValueError(f"hidden is {self.hidden!r}, expected 'nothing' where there are no y and z")
        if self.is_lifetime_held and not self.lifetime_lstm:
            raise ValueError("is_lifetime_held is True, expected False where there is no lifetime LSTM")
        if self.core == "transformer" and self.lstm % FutureTransformer.NUM_HEADS:
            raise ValueError(
                f"lstm is {self.lstm}, expected a multiple of {FutureTransformer.NUM_HEADS} for a transformer"
            )


class DiscoState(NamedTuple):
    lifetime: LifetimeLSTMState | tuple[()]
    advantage: MovingAverage
    td: MovingAverage


class DiscoTargets(NamedTuple):
    policy: Array  # logits of π̂, [T, B, A]
    y: Array | None  # logits of ŷ, [T, B, Y]
    z: Array | None  # logits of ẑ for the taken action, [T, B, Z]
    returns: Array | None  # the target of q(S, A), [T, B]


def _sizes(config: DiscoConfig) -> TargetNetworkConfig:
    return TargetNetworkConfig(
        config.lstm, config.lifetime_lstm, config.action_embedding, head_stddev=0.3, core=config.core
    )


def make_network(config: DiscoConfig) -> Any:
    """Make the meta-network, hk.Transformed: context, state of the lifetime LSTM -> logits of π̂, ŷ and ẑ, new state."""
    vector = PredictionSpec((config.prediction_size,))
    target_spec = {"policy": PredictionSpec(is_per_action=True)}
    if "y_z" not in config.without:
        target_spec |= {"y": vector, "z": vector}

    def forward(context: DiscoContext, lifetime: LifetimeLSTMState):
        network = TargetNetwork(_sizes(config), target_spec)
        run = lambda see: network(
            functools.partial(disco_inputs.make_inputs, context, see), context.trajectory.is_last, lifetime
        )
        hide = HIDDEN_AS[config.hidden_as]
        targets, new = run(hide if config.hidden == "all" else lambda x: x)
        if config.hidden == "own":
            targets = run(hide)[0] | {"policy": targets["policy"]}
        return targets, new

    return hk.without_apply_rng(hk.transform(forward))


def make_context(
    state: DiscoState,
    trajectory: Trajectory,
    predictions: Predictions,
    target_predictions: Predictions,
    config: DiscoConfig,
) -> tuple[DiscoContext, MovingAverage]:
    """Compute what the meta-network's inputs need, and the new average of the temporal differences."""
    if "q" in config.without:
        return DiscoContext(trajectory, predictions, target_predictions, None, state.advantage), state.td
    values = compute_values(predictions, target_predictions, trajectory, config.discount, config.lambda_)
    advantage = update_average(state.advantage, values.advantage, trajectory.valid)
    context = DiscoContext(trajectory, predictions, target_predictions, values, advantage)
    return context, update_average(state.td, values.td, trajectory.valid)


def disco(config: DiscoConfig) -> UpdateRule:
    """Make the rule. Its losses are means over valid steps."""
    vector = PredictionSpec((config.prediction_size,))
    network = make_network(config)

    def spec(num_actions: int) -> TargetSpec:
        kept = {"policy": PredictionSpec((num_actions,))}
        if "y_z" not in config.without:
            kept |= {"y": vector, "z": PredictionSpec(vector.shape, is_per_action=True)}
        if "q" not in config.without:
            kept["q"] = PredictionSpec((2 * config.max_value + 1,), is_per_action=True)
        if "aux_policy" not in config.without:
            kept["aux_policy"] = PredictionSpec((num_actions,), is_per_action=True)
        return kept

    def init() -> DiscoState:
        return DiscoState(initial_lifetime_lstm_state(_sizes(config)), initial_average(), initial_average())

    def random_meta_params(key: Array, num_actions: int):
        trajectory = empty_trajectory(None, jnp.zeros((1, 1)), 1, num_actions)
        predictions = {name: jnp.zeros((2, 1, *x.axes(num_actions))) for name, x in spec(num_actions).items()}
        context, _ = make_context(init(), trajectory, predictions, predictions, config)
        return network.init(key, context, init().lifetime)

    def apply(meta_params, state: DiscoState, trajectory, predictions, target_predictions):
        context, td = make_context(state, trajectory, predictions, target_predictions, config)
        targets, lifetime = network.apply(meta_params, context, state.lifetime)
        returns = context.values and context.values.returns
        new_state = DiscoState(state.lifetime if config.is_lifetime_held else lifetime, context.average, td)
        return DiscoTargets(targets["policy"], targets.get("y"), targets.get("z"), returns), new_state

    def loss(targets: DiscoTargets, predictions: Predictions, trajectory: Trajectory) -> Array:
        losses = prediction_losses(targets, predictions, trajectory)
        weighted = (getattr(config, f"{name}_cost") * x for name, x in losses.items())
        return _weights(config, trajectory) * sum(weighted, start=jnp.zeros(()))

    def loss_without_meta(targets: DiscoTargets, predictions: Predictions, trajectory: Trajectory) -> Array:
        assert targets.returns is not None
        losses = value_loss(targets.returns, predictions["q"], trajectory)
        return _weights(config, trajectory) * config.value_cost * losses

    def regulariser(targets: DiscoTargets, target_predictions: Predictions, trajectory: Trajectory) -> Array:
        target_policy = jax.lax.stop_gradient(target_predictions["policy"][:-1])
        mean_logits = [jnp.mean(x) for x in (targets.policy, targets.y, targets.z) if x is not None]
        return config.target_policy_cost * kl_divergence(target_policy, targets.policy) + config.logit_cost * sum(
            jnp.square(x) for x in mean_logits
        )

    def metrics(targets: DiscoTargets, predictions: Predictions, trajectory: Trajectory) -> dict[str, Array]:
        found = {"entropy": entropy(predictions["policy"][:-1]), "target_entropy": entropy(targets.policy)}
        if targets.returns is not None:
            found["q_td"] = jnp.square(targets.returns - taken(to_scalars(predictions["q"]), trajectory))
        return masked_means(found, trajectory.valid)

    return UpdateRule(
        spec=spec,
        random_meta_params=random_meta_params,
        init=init,
        apply=apply,
        loss=loss,
        loss_without_meta=None if "q" in config.without else loss_without_meta,
        regulariser=regulariser if config.target_policy_cost or config.logit_cost else None,
        policy=lambda predictions: predictions["policy"],
        metrics=metrics,
        target_decay=config.target_decay,
        reduction="mean",
        is_loss_of_taken=True,
        is_of_order="aux_policy" not in config.without,
    )


def _weights(config: DiscoConfig, trajectory: Trajectory) -> Array:
    """Weights of the steps' losses, [T, B], of mean 1 over the valid ones."""
    if not config.skips_first_steps:
        return jnp.ones_like(trajectory.reward)
    kept = (~trajectory.is_first[:-1]).astype(trajectory.reward.dtype)
    return kept / jnp.maximum(masked_reduce(kept, trajectory.valid, "mean"), 1e-8)


def prediction_losses(targets: DiscoTargets, predictions: Predictions, trajectory: Trajectory) -> dict[str, Array]:
    """Compute KL(π̂ ‖ π), KL(ŷ ‖ y), KL(ẑ ‖ z_A), and KL(π(S′) ‖ p_A) where the episode goes on; each [T, B].

    The result has the losses of the predictions that there are, by name.
    """
    losses = {"policy": kl_divergence(targets.policy, predictions["policy"][:-1])}
    if targets.y is not None and targets.z is not None:
        losses["y"] = kl_divergence(targets.y, predictions["y"][:-1])
        losses["z"] = kl_divergence(targets.z, taken_vectors(predictions["z"], trajectory))
    if "aux_policy" in predictions:
        next_policy = jax.lax.stop_gradient(successors(predictions["policy"], trajectory))
        error = kl_divergence(next_policy, taken_vectors(predictions["aux_policy"], trajectory))
        losses["aux_policy"] = error * (trajectory.discount > 0)
    return losses


def value_loss(returns: Array, q_logits: Array, trajectory: Trajectory) -> Array:
    """Cross-entropy of q(S, A) to the two-hot encoding of the transformed returns, [T, B]."""
    return two_hot_loss(returns, taken_vectors(q_logits, trajectory))
