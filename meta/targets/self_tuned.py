"""Self-tuned rules: η is a handful of settings of an actor-critic on leaky V-trace, each a sigmoid of its range.

Sources: γ and λ: Xu et al. 2018. Costs of the losses, α of leaky V-trace: Zahavy et al. 2020 (STAC), section 3, with
auxiliary heads STACX, section 4. A network that makes settings of the last mean rewards: Flennerhag et al. 2022,
section 5.1. Values that are known: Bonnet et al. 2022.
"""

import dataclasses
import math
import numbers
from typing import Annotated, Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

from agents.rule import OUTER_VALUE, UpdateRule, masked_means, masked_reduce
from agents.rules.impala import ActorCriticTargets, LambdaConfig, actor_critic_loss, actor_critic_spec
from agents.rules.returns import importance_ratios, vtrace
from agents.settings import Bounds, Count, CountOrZero, Fraction, NotNegative, OneOf
from agents.types import Array, Params, Predictions, PredictionSpec, TargetSpec, Trajectory
from toy_envs.discounting_chain import DiscountingChain

COSTS = ("policy_cost", "value_cost", "entropy_cost")
TUNED = ("discount", "lambda_", *COSTS, "alpha")
REWARDS = "mean_rewards"
KNOWN_VALUES = {  # environment: (observation, probabilities, γ) -> v(S)
    f"toy/discounting_chain/{best}": DiscountingChain(best).true_values for best in range(DiscountingChain.num_actions)
}
NEAREST = 0.01  # to the ends of its range, as a share of it, that a setting begins


def _is_range(x: tuple[float, ...]) -> bool:
    return len(x) == 2 and all(isinstance(y, numbers.Real) and math.isfinite(y) for y in x) and x[0] < x[1]


Range = Annotated[tuple[float, ...], Bounds("two finite numbers, the smaller one first", _is_range)]


@dataclasses.dataclass
class SelfTunedConfig(LambdaConfig):
    """An actor-critic whose own settings are learned; those that are not tuned stay as they are given.

    Attributes:
      tuned: Settings that η holds, one or more of 'discount', 'lambda_', 'policy_cost', 'value_cost', 'entropy_cost'
        and 'alpha'. They begin as given, and at least a hundredth of their range from its ends.
      policy_cost: Weight of the policy's loss, at least 0.
      alpha: α of leaky V-trace, from 0, importance sampling, to 1, V-trace (Zahavy et al. 2020).
      discount_range: Range of a tuned γ, within 0 to 1.
      cost_range: Range of tuned costs, at least 0.
      heads: Auxiliary policies and values on the agent's torso, each with settings of its own (Zahavy et al. 2020,
        STACX); 0 for none.
      eta_inputs: What a small network makes the settings of: 'mean_rewards', those of the last trajectories (Flennerhag
        et al. 2022), or nothing, for settings that are numbers.
      history: Trajectories whose mean rewards the network sees, at least 1.
      eta_hidden: Units of the network's hidden layer, at least 1.
      known_values: Environment whose true values take the place of learned ones in targets and outer objective,
        'toy/discounting_chain/0' to '.../4', or '' for none (Bonnet et al. 2022).
      is_corrected: Whether targets are corrected for data of another policy, as V-trace's are. False: those of A2C, for
        an agent that acts what it learns from. No derivative then flows through ratios of probabilities, which are 1.
    """

    tuned: Annotated[tuple[str, ...], OneOf(TUNED)] = TUNED
    policy_cost: NotNegative = 1.0
    alpha: Fraction = 1.0
    discount_range: Range = (0.0, 1.0)
    cost_range: Range = (0.0, 1.0)
    heads: CountOrZero = 0
    eta_inputs: Annotated[tuple[str, ...], OneOf((REWARDS,))] = ()
    history: Count = 10
    eta_hidden: Count = 32
    known_values: Annotated[str, OneOf(("", *KNOWN_VALUES))] = ""
    is_corrected: bool = True

    def validate(self) -> None:
        super().validate()
        if not self.tuned or len(set(self.tuned)) < len(self.tuned):
            raise ValueError(f"tuned is {self.tuned}, expected one or more different settings of {', '.join(TUNED)}")
        if len(set(self.eta_inputs)) < len(self.eta_inputs):
            raise ValueError(f"eta_inputs is {self.eta_inputs}, expected each once")
        if not 0 <= self.discount_range[0] < self.discount_range[1] <= 1:
            raise ValueError(f"discount_range is {self.discount_range}, expected numbers from 0 to 1")
        if self.cost_range[0] < 0:
            raise ValueError(f"cost_range is {self.cost_range}, expected numbers of at least 0")
        for name in self.tuned:
            (low, high), value = self.range_of(name), getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} is {value}, expected one of its range, from {low} to {high}: it is tuned")
        if "alpha" in self.tuned and not self.is_corrected:
            raise ValueError(f"tuned is {self.tuned} and is_corrected False, expected no alpha: there are no ratios")
        if self.known_values and (self.heads or self.eta_inputs):
            raise ValueError(
                f"known_values is {self.known_values!r}, heads {self.heads} and eta_inputs {self.eta_inputs}, expected "
                "neither heads nor eta_inputs"
            )

    def range_of(self, name: str) -> tuple[float, float]:
        """Return the range of a tuned setting."""
        low, high = {"discount": self.discount_range, **dict.fromkeys(COSTS, self.cost_range)}.get(name, (0.0, 1.0))
        return low, high


class SelfTunedTargets(NamedTuple):
    """The targets of each head, and the settings that its losses have: [T, B, 1 + heads] each."""

    value: Array
    advantage: Array
    settings: dict[str, Array]  # by name, those of the losses and all that are tuned


def self_tuned(config: SelfTunedConfig) -> UpdateRule:
    """Actor-critic losses on leaky V-trace by settings that η holds, or that a small network makes."""
    num_heads = 1 + config.heads
    network: Any = hk.without_apply_rng(
        hk.transform(lambda x: hk.nets.MLP((config.eta_hidden, num_heads * len(config.tuned)))(x))
    )
    begun = np.array([_begun(config, name) for name in config.tuned])

    def random_meta_params(key: Array, num_actions: int) -> Params:
        if config.eta_inputs:
            return network.init(key, jnp.zeros(config.history))
        return {name: jnp.full(num_heads, x) for name, x in zip(config.tuned, begun, strict=True)}

    def settings_of(meta_params: Params, history: Array | tuple[()]) -> dict[str, Array]:
        """Return all settings by name, [1 + heads] each."""
        if config.eta_inputs:
            out = jnp.reshape(network.apply(meta_params, history), (len(config.tuned), num_heads)) + begun[:, None]
            logits = dict(zip(config.tuned, out, strict=True))
        else:
            logits = meta_params
        found = {name: jnp.full(num_heads, float(getattr(config, name))) for name in TUNED}
        for name in config.tuned:
            low, high = config.range_of(name)
            found[name] = low + (high - low) * jax.nn.sigmoid(logits[name])
        return found

    def apply(meta_params, history, trajectory: Trajectory, predictions: Predictions, target_predictions):
        if config.eta_inputs:
            newest = masked_reduce(trajectory.reward, trajectory.valid, "mean")
            history = jnp.append(history[1:], newest.astype(history.dtype))
        settings = settings_of(meta_params, history)
        if config.known_values:
            predictions = with_known_values(meta_params, predictions, trajectory)
        each = []
        for i in range(num_heads):
            own = of_head(predictions, i)
            rho = jnp.ones_like(trajectory.reward)
            if config.is_corrected:
                rho = importance_ratios(own["policy"], trajectory)
            alpha = settings["alpha"][i] if "alpha" in config.tuned else config.alpha
            discount, lambda_ = settings["discount"][i], settings["lambda_"][i]
            each.append(vtrace(trajectory, own["value"], rho, discount, lambda_, False, alpha))
        value, advantage = (jnp.stack(x, axis=-1) for x in zip(*each, strict=True))
        whole = {name: jnp.broadcast_to(settings[name], value.shape) for name in {*COSTS, *config.tuned}}
        return SelfTunedTargets(value, advantage, whole), history

    def loss(targets: SelfTunedTargets, predictions: Predictions, trajectory: Trajectory) -> Array:
        losses = []
        for i in range(num_heads):
            costs = {name: targets.settings[name][..., i] for name in COSTS}
            pair = ActorCriticTargets(targets.value[..., i], costs["policy_cost"] * targets.advantage[..., i])
            of_costs = costs["value_cost"], costs["entropy_cost"]
            losses.append(actor_critic_loss(pair, of_head(predictions, i), trajectory, *of_costs))
        return sum(losses[1:], start=losses[0])

    def metrics(targets: SelfTunedTargets, predictions: Predictions, trajectory: Trajectory) -> dict[str, Array]:
        found = {}
        for name in config.tuned:
            for i in range(num_heads):
                found[f"eta_{name.rstrip('_')}{f'_{i}' if i else ''}"] = targets.settings[name][..., i]
        return masked_means(found, trajectory.valid)

    def with_known_values(
        meta_params: Params, predictions: Predictions, trajectory: Trajectory, outer_discount: float = 1.0
    ) -> Predictions:
        probabilities, values_of = jax.nn.softmax(predictions["policy"]), KNOWN_VALUES[config.known_values]
        own = settings_of(meta_params, ())["discount"][0]
        discounts: dict[str, Array | float] = {"value": own, OUTER_VALUE: outer_discount}
        known = {x: values_of(trajectory.observation, probabilities, discount) for x, discount in discounts.items()}
        return {**predictions, **jax.lax.stop_gradient(known)}

    def spec(num_actions: int) -> TargetSpec:
        found = dict(actor_critic_spec(num_actions))
        for i in range(1, num_heads):
            found |= {f"policy_{i}": PredictionSpec((num_actions,)), f"value_{i}": PredictionSpec()}
        return found

    return UpdateRule(
        spec=spec,
        apply=apply,
        loss=loss,
        policy=lambda predictions: predictions["policy"],
        random_meta_params=random_meta_params,
        init=lambda: jnp.zeros(config.history) if config.eta_inputs else (),
        metrics=metrics,
        reduction=config.reduction,
        with_known_values=with_known_values if config.known_values else None,
    )


def of_head(predictions: Predictions, number: int) -> Predictions:
    """Return policy and value of the agent, of number 0, or of one of its auxiliary heads, from 1 on."""
    suffix = f"_{number}" if number else ""
    return {name: predictions[name + suffix] for name in ("policy", "value")}


def _begun(config: SelfTunedConfig, name: str) -> float:
    """Return what the sigmoid of a setting is of at first."""
    low, high = config.range_of(name)
    share = np.clip((getattr(config, name) - low) / (high - low), NEAREST, 1 - NEAREST)
    return float(np.log(share / (1 - share)))
