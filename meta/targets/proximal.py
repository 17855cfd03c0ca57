"""Learned proximal rules, in PPO's loop: LPO's drift, and PPO with a correction of its targets, loss and settings.

Sources: drift and its inputs: Lu et al. 2022 (LPO). How far the life is as an input: Jackson et al. 2024 (TA-LPO).
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from agents.rule import UpdateRule, masked_means
from agents.rules.categorical import entropy, log_probability
from agents.rules.impala import actor_critic
from agents.rules.ppo import PPOConfig, PPOTargets, Proximal, clipped_loss, ppo_targets, proximal
from agents.rules.returns import lambda_returns
from agents.settings import Count, CountOrZero, OneOf, Positive
from agents.types import Array, Params, Predictions, PredictionSpec, Trajectory, successors
from meta.targets import inputs
from meta.targets.target_network import TargetInputs, TargetNetwork, TargetNetworkConfig

LARGEST_LOG_RATIO = 10.0
SLACK = 1e-6  # ξ of LPO
SEEN = ("reward", "discount", "next_value", "value", "td_error", "pi", "mu")  # by the network that corrects targets
PARTS = ("targets", "drift", "settings", "constants")
# Logarithms of what settings, and 1 − λ, are multiplied by, at most; those that change in a life, and constants.
LARGEST = {"entropy_cost": 3.0, "clip": 1.0, "lambda_": 2.0}
LARGEST_CONSTANTS = LARGEST | {"value_cost": 2.0, "learning_rate": 2.0}
GAIN = 5.0  # of constants: a strategy that draws all of η alike moves them as far as what networks put out


@dataclasses.dataclass
class LPOConfig(PPOConfig):
    """LPO: PPO with a learned drift in the place of the clipped ratio; `clip` is of values alone.

    Attributes:
      drift_units: Units of the network that makes the drift, at least 1 (Lu et al. 2022, appendix).
      is_temporal: Whether n / N and log N are inputs, n trajectories of N so far (Jackson et al. 2024, TA-LPO).
      life: N, the trajectories of a life; 0 for those of the agent's annealing. Without either both inputs are 0.
    """

    drift_units: Count = 128
    is_temporal: bool = False
    life: CountOrZero = 0


@dataclasses.dataclass
class CorrectedPPOConfig(LPOConfig):
    """PPO with a correction, which η makes, and which is nothing at first.

    Attributes:
      parts: What is corrected, one or more of 'targets', advantages and targets of the value; 'drift', the loss of the
        ratio; 'settings', the weight of the entropy, the clipping of the ratio and λ, by where the life is; and
        'constants', the same for the whole life, with the weight of the value's loss and the learning rate.
      lstm: Units of the network that corrects targets, at least 1.
      largest_correction: The most that targets are changed by, in units of the size of TD errors, positive.
    """

    drift_units: Count = 32
    is_temporal: bool = True
    parts: Annotated[tuple[str, ...], OneOf(PARTS)] = ("targets", "drift", "settings")
    lstm: Count = 32
    largest_correction: Positive = 1.0

    def validate(self) -> None:
        super().validate()
        if not self.parts or len(set(self.parts)) < len(self.parts):
            raise ValueError(f"parts is {self.parts}, expected one or more different ones of {', '.join(PARTS)}")


class LPOTargets(NamedTuple):
    own: PPOTargets
    progress: Array  # n / N, [T, B]


class CorrectedTargets(NamedTuple):
    """PPO's targets with their corrections, and what else the loss takes, [T, B] each."""

    own: PPOTargets
    progress: Array  # n / N
    settings: dict[str, Array]  # entropy_cost, clip, lambda_ and value_cost, less those of PPO


class LifeState(NamedTuple):
    """The rule state: how far the life is."""

    num_trajectories: Array  # int32, n

    def progress(self, life: int) -> Array:
        """n / N, at most 1; 0 where N is not known."""
        return jnp.minimum(1.0, self.num_trajectories / life) if life else jnp.zeros(())


def _log_life(life: int) -> float:
    """A tenth of log N, an input of networks; 0 where N is not known."""
    return math.log(life) / 10 if life else 0.0


def _single_step(num: int) -> tuple[Array, ...]:
    """Return the shapes of a single step, [1, 1], of so many inputs."""
    return (jnp.ones((1, 1)),) * num


def drift_inputs(log_ratio: Array, advantage: Array) -> Array:
    """Return LPO's inputs, [T, B, 8], which are 0 where r is 1. Source: Lu et al. 2022, section 5.

    Where log r is beyond ±LARGEST_LOG_RATIO it is that, so that no input or derivative is infinite.
    """
    log_r = jnp.clip(log_ratio, -LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    r = jnp.exp(log_r) - 1
    of_ratio = jnp.stack([r, jnp.square(r), log_r, jnp.square(log_r)], axis=-1)
    return jnp.concatenate([of_ratio, of_ratio * advantage[..., None]], axis=-1)


def drift_network(config: LPOConfig, is_zero_at_first: bool) -> Any:
    """Make the network log r, A, n / N, [T, B] each -> [T, B]: tanh without biases, so that it is 0 where r is 1."""

    def forward(log_ratio: Array, advantage: Array, progress: Array) -> Array:
        x = drift_inputs(log_ratio, advantage)
        if config.is_temporal:
            x = jnp.concatenate([x, progress[..., None] * x, _log_life(config.life) * x], axis=-1)
        x = jnp.tanh(hk.Linear(config.drift_units, with_bias=False)(x))
        w_init = jnp.zeros if is_zero_at_first else None
        return hk.Linear(1, with_bias=False, w_init=w_init)(x)[..., 0]

    return hk.without_apply_rng(hk.transform(forward))


def lpo(config: LPOConfig) -> UpdateRule:
    """Learned policy optimisation: −(r A − relu(f_η(r, A) − ξ)). Source: Lu et al. 2022, section 5."""
    network = drift_network(config, is_zero_at_first=False)

    def drift(meta_params: Params, of: Proximal, progress: Array) -> Array:
        return jax.nn.relu(network.apply(meta_params, of.log_ratio, of.advantage, progress) - SLACK)

    return with_drift(config, config.life, drift, lambda key, num_actions: network.init(key, *_single_step(3)))


def with_drift(
    config: PPOConfig,
    life: int,
    drift: Callable[[Params, Proximal, Array], Array],
    random_meta_params: Callable[..., Params],
) -> UpdateRule:
    """Make the rule of the loss −(r A − drift), with PPO's targets and its losses of value and entropy.

    Args:
      config: settings.
      life: N; 0 where it is not known.
      drift: η, the parts of the objective, n / N [T, B] -> [T, B].
      random_meta_params: as that of an `UpdateRule`.
    """

    def apply(meta_params, state: LifeState, trajectory, predictions, target_predictions):
        own = ppo_targets(config, trajectory, predictions)
        progress = jnp.broadcast_to(state.progress(life), own.value.shape)
        return LPOTargets(own, progress), LifeState(state.num_trajectories + 1)

    def loss(targets: LPOTargets, predictions: Predictions, trajectory: Trajectory) -> Array:
        of = proximal(config, targets.own, predictions, trajectory)
        losses = config.value_cost * of.value_loss - config.entropy_cost * of.entropy
        return losses - of.ratio * of.advantage

    def meta_loss(meta_params: Params, targets: LPOTargets, predictions: Predictions, trajectory: Trajectory):
        return drift(meta_params, proximal(config, targets.own, predictions, trajectory), targets.progress)

    return _learned(config, apply, loss, meta_loss, random_meta_params)


def corrected_ppo(config: CorrectedPPOConfig) -> UpdateRule:
    """PPO with corrections that η makes of its targets, of the loss of the ratio, and of its settings.

    With the initial η the update is PPO's. Targets get unit · largest_correction · tanh(g_η), with FRODO's network and
    the size of TD errors as the unit; the loss of the ratio gets f_η(r, A), with LPO's inputs; a network of n / N, log
    N, the mean entropy of π and the mean |A| multiplies the weight of the entropy, the clipping of the ratio and 1 − λ.
    """
    drift = drift_network(config, is_zero_at_first=True)

    def of_targets(features: Array, is_last: Array) -> dict[str, Array]:
        sizes = TargetNetworkConfig(lstm=config.lstm, head_stddev=0.0)
        network = TargetNetwork(sizes, {"advantage": PredictionSpec(), "value": PredictionSpec()})
        return network(lambda: TargetInputs(features), is_last, ())[0]

    networks = {
        "targets": hk.without_apply_rng(hk.transform(of_targets)),
        "drift": drift,
        "settings": hk.without_apply_rng(hk.transform(_of_life)),
    }

    def random_meta_params(key: Array, num_actions: int) -> Params:
        seen = {
            "targets": (jnp.zeros((1, 1, len(SEEN))), jnp.zeros((1, 1), bool)),
            "drift": _single_step(3),
            "settings": (jnp.zeros(4),),
        }
        keys = dict(zip(PARTS, jax.random.split(key, len(PARTS)), strict=True))
        found = {part: networks[part].init(keys[part], *own) for part, own in seen.items() if part in config.parts}
        constants = {name: jnp.zeros(()) for name in LARGEST_CONSTANTS}
        return found | ({"constants": constants} if "constants" in config.parts else {})

    def constant(meta_params: Params, name: str) -> Array:
        """Return the logarithm of what a setting is multiplied by for the whole life."""
        return LARGEST_CONSTANTS[name] * jnp.tanh(GAIN * meta_params["constants"][name])

    def factors(meta_params: Params, trajectory: Trajectory, predictions: Predictions, progress: Array):
        """Return the logarithms of what settings are multiplied by, by name, 0 at first."""
        is_constant = "constants" in config.parts
        found = {x: constant(meta_params, x) if is_constant else jnp.zeros(()) for x in (*LARGEST, "value_cost")}
        if "settings" in config.parts:
            _, advantage = lambda_returns(trajectory, predictions["value"], config.discount, config.lambda_)
            means = {"entropy": entropy(predictions["policy"][:-1]), "size": jnp.abs(advantage)}
            means = masked_means(means, trajectory.valid)
            log_life = jnp.full((), _log_life(config.life))
            seen = jnp.stack([progress, log_life, means["entropy"], jnp.log1p(means["size"])])
            out = networks["settings"].apply(meta_params["settings"], seen)
            for (name, most), x in zip(LARGEST.items(), out, strict=True):
                found[name] += most * jnp.tanh(x)
        return found

    def changes(*of: Any) -> dict[str, Array]:
        """Return what is added to the settings, by name, 0 at first."""
        own = {name: jnp.expm1(x) for name, x in factors(*of).items()}
        found = {name: getattr(config, name) * own[name] for name in ("entropy_cost", "clip", "value_cost")}
        return found | {"lambda_": jnp.maximum(-config.lambda_, -(1 - config.lambda_) * own["lambda_"])}

    def update_scale(meta_params: Params) -> Array:
        return jnp.exp(constant(meta_params, "learning_rate"))

    def apply(meta_params, state: LifeState, trajectory: Trajectory, predictions, target_predictions):
        known, progress = jax.lax.stop_gradient(predictions), state.progress(config.life)
        added = changes(meta_params, trajectory, known, progress)
        own = ppo_targets(config, trajectory, known, config.lambda_ + added["lambda_"])
        log_pi = log_probability(known["policy"][:-1], trajectory.action)
        values, later = known["value"][:-1], successors(known["value"], trajectory)
        context = inputs.InputContext(trajectory, config.discount, values, later, values, log_pi, own.log_mu)
        unit = inputs.td_error_size(context)
        if "targets" in config.parts:
            features = inputs.features(SEEN, context.in_units(unit))
            out = networks["targets"].apply(meta_params["targets"], features, trajectory.is_last)
            by = {name: unit * config.largest_correction * jnp.tanh(x) for name, x in out.items()}
            own = own._replace(advantage=own.advantage + by["advantage"], value=own.value + by["value"])
        whole = lambda x: jnp.broadcast_to(x, own.value.shape)
        targets = CorrectedTargets(own, *jax.tree.map(whole, (progress, added)))
        return targets, LifeState(state.num_trajectories + 1)

    def loss(targets: CorrectedTargets, predictions: Predictions, trajectory: Trajectory) -> Array:
        of, added = proximal(config, targets.own, predictions, trajectory), targets.settings
        low, high = 1 - config.clip - added["clip"], 1 + config.clip + added["clip"]
        losses = clipped_loss(of.ratio, of.advantage, low, high)
        losses = losses + (config.value_cost + added["value_cost"]) * of.value_loss
        return losses - (config.entropy_cost + added["entropy_cost"]) * of.entropy

    def meta_loss(meta_params: Params, targets: CorrectedTargets, predictions: Predictions, trajectory: Trajectory):
        of = proximal(config, targets.own, predictions, trajectory)
        return drift.apply(meta_params["drift"], of.log_ratio, of.advantage, targets.progress)

    def metrics(targets: CorrectedTargets, predictions: Predictions, trajectory: Trajectory) -> dict[str, Array]:
        found = {name.rstrip("_"): getattr(config, name) + x for name, x in targets.settings.items()}
        return masked_means(found, trajectory.valid)

    rule = _learned(config, apply, loss, meta_loss if "drift" in config.parts else None, random_meta_params)
    return rule._replace(metrics=metrics, update_scale=update_scale if "constants" in config.parts else None)


def _of_life(x: Array) -> Array:
    """The network that makes corrections of settings, 0 at first."""
    return hk.Linear(len(LARGEST), w_init=jnp.zeros)(jnp.tanh(hk.Linear(16)(x)))


def _learned(config: PPOConfig, apply, loss, meta_loss, random_meta_params) -> UpdateRule:
    rule = actor_critic(apply, loss, config)
    init = lambda: LifeState(jnp.zeros((), jnp.int32))
    return rule._replace(meta_loss=meta_loss, random_meta_params=random_meta_params, init=init)
