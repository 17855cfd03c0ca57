"""FRODO's rules: a learned scalar target, and the learned loss that it is compared with.

Source: Xu et al. 2020. Inner losses: Eq. 8 (prediction), section 3.4 (value-based), Eq. 10 (actor-critic). Consistency:
Eq. 13. Off-policy inputs: section 5.1. Learned loss: section 5.4.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from agents.lazy import rlax
from agents.networks.agent import TORSO
from agents.rule import Reduction, UpdateRule, masked_means
from agents.rules import impala
from agents.rules.action_values import epsilon_greedy_logits, expected_values, squared_error, taken
from agents.rules.categorical import entropy, log_probability
from agents.rules.td import only_action
from agents.settings import CountOrZero, Fraction, NotNegative, OneOf, Settings
from agents.types import Array, Predictions, PredictionSpec, TargetSpec, Trajectory, successors
from agents.validation import check_choice
from meta.targets import inputs
from meta.targets.hand_made import TARGETS
from meta.targets.inputs import INPUTS
from meta.targets.target_network import TargetInputs, TargetNetwork, TargetNetworkConfig

VALUE = "value"  # what relative targets change by default


@dataclasses.dataclass
class MetaNetworkConfig(Settings):
    """What the learned target and the learned loss have in common.

    Attributes:
      discount: γ as an input, and of the consistency loss, from 0 to 1.
      reduction: How the losses of steps are put together: 'sum' (Xu et al. 2020, appendix C, for control) or 'mean'.
      lstm: Units of the meta-network, at least 1 (Xu et al. 2020, appendix A.1, of Catch).
      inputs: What the meta-network sees of each step (Xu et al. 2020, section 5.1): one or more of 'reward',
        'discount', 'next_value', 'value', 'td_error', 'pi', 'mu' and 'log_pi'.
      torso: Units of the agent's last layer, which is an input besides (Xu et al. 2020, appendix C.4); 0 for none.
    """

    discount: Fraction = 0.99
    reduction: Reduction = "sum"
    lstm: int = 256
    inputs: Annotated[tuple[str, ...], OneOf(INPUTS)] = ("reward", "discount", "next_value", "pi", "mu")
    torso: CountOrZero = 0

    def validate(self) -> None:
        super().validate()
        if self.lstm < 1 or not self.inputs:
            raise ValueError(f"lstm is {self.lstm} and inputs {self.inputs}, expected units and inputs")


@dataclasses.dataclass
class FrodoConfig(MetaNetworkConfig):
    """FRODO's learned target. A setting that is of another kind of agent must keep its default.

    Attributes:
      kind: Kind of agent: 'actor_critic', 'value_based' or 'prediction'.
      is_relative: Whether targets are G = base + u · output, of inputs in units of u, the size of TD errors; else, as
        in Xu et al. 2020, they are the output.
      base: What relative targets are relative to: 'value', v(S), or 'vtrace', 'lambda_return' or 'n_step_return'; of
        the latter the output begins as 0.
      next_value_gradient: With 'literal' the inner gradient flows through v(S′) into G (and through π(A|S), where it is
        an input, but not through v(S), what relative targets are relative to); with 'semi' only the meta-gradient does,
        as 'literal' failed on Catch (measured); with 'stopped' neither.
      consistency_cost: c of Xu et al. 2020, Eq. 13, at least 0.
      is_consistency_multi_step: Whether targets are to agree with all later rewards and the last target, else with the
        next of each.
      value_cost: Weight of the value's loss of actor-critics, at least 0 (Xu et al. 2020, Table 1).
      entropy_cost: Weight of the entropy of actor-critics' policies, at least 0 (Xu et al. 2020, Table 1).
      vtrace_lambda: λ, from 0 to 1, of G's base, of what G is fitted to, and of the V-trace that metrics compare G
        with; of actor-critics.
      epsilon: Share of random actions of value-based agents' ε-greedy policy, from 0 to 1.
    """

    kind: str = "actor_critic"
    is_relative: bool = False
    base: Annotated[str, OneOf((VALUE, *TARGETS))] = VALUE
    next_value_gradient: Annotated[str, OneOf(("literal", "semi", "stopped"))] = "semi"
    consistency_cost: NotNegative = 0.0
    is_consistency_multi_step: bool = True
    value_cost: NotNegative = 0.5
    entropy_cost: NotNegative = 0.01
    vtrace_lambda: Fraction = 1.0
    epsilon: Fraction = 0.1

    def validate(self) -> None:
        super().validate()
        check_choice("kind", self.kind, KINDS)
        if self.base != VALUE and not self.is_relative:
            raise ValueError(
                f"base is {self.base!r} and is_relative False, expected base {VALUE!r}, or is_relative True"
            )
        if self.base == "vtrace" and self.kind != "actor_critic":
            raise ValueError(f"base is 'vtrace', expected another one: kind {self.kind!r} has no policy that learns")
        for kind, names in SETTINGS_OF_KIND.items():
            for name in names:
                value, default = getattr(self, name), getattr(FrodoConfig, name)
                if kind != self.kind and value != default:
                    raise ValueError(f"{name} is {value}, expected the default, {default}: kind {self.kind!r} has none")


SETTINGS_OF_KIND = {"actor_critic": ("value_cost", "entropy_cost", "vtrace_lambda"), "value_based": ("epsilon",)}


@dataclasses.dataclass
class LearnedLossConfig(MetaNetworkConfig):
    """The learned loss, whose agents are actor-critics (Xu et al. 2020, section 5.4).

    Attributes:
      is_next_value_differentiated: Whether gradients flow through v(S′), an input.
      entropy_cost: Weight of the policy's entropy, at least 0 (Xu et al. 2020, Table 1).
    """

    is_next_value_differentiated: bool = False
    entropy_cost: NotNegative = 0.01


class Kind(NamedTuple):
    """What FRODO's rules do differently for each kind of agent."""

    spec: Callable[[int], TargetSpec]
    policy: Callable[[Predictions, FrodoConfig], Array]  # -> logits [..., A]
    values: Callable[[Predictions, Array], Array]  # predictions, logits -> V(S) [...]
    moved: Callable[[Predictions, Trajectory], Array]  # what G is the target of, at each step: [T, B]
    loss: Callable[[Array, Predictions, Trajectory, FrodoConfig], Array]  # of targets G [T, B] -> [T, B]


def actor_critic_inner_loss(
    targets: Array, predictions: Predictions, trajectory: Trajectory, value_cost: float, entropy_cost: float
) -> Array:
    """Eq. 10 of Xu et al. 2020, of targets G [T, B] -> [T, B]."""
    advantage = targets - jax.lax.stop_gradient(predictions["value"][:-1])
    pair = impala.ActorCriticTargets(targets, advantage)
    return impala.actor_critic_loss(pair, predictions, trajectory, value_cost, entropy_cost)


KINDS: dict[str, Kind] = {
    "actor_critic": Kind(
        spec=impala.actor_critic_spec,
        policy=lambda p, c: p["policy"],
        values=lambda p, logits: p["value"],
        moved=lambda p, trajectory: p["value"][:-1],
        loss=lambda targets, p, trajectory, c: actor_critic_inner_loss(
            targets, p, trajectory, c.value_cost, c.entropy_cost
        ),
    ),
    "value_based": Kind(
        spec=lambda num_actions: {"q": PredictionSpec(is_per_action=True)},
        policy=lambda p, c: epsilon_greedy_logits(p["q"], c.epsilon),
        values=lambda p, logits: expected_values(p["q"], logits),
        moved=lambda p, trajectory: taken(p["q"], trajectory),
        loss=lambda targets, p, trajectory, c: squared_error(targets, p["q"], trajectory),
    ),
    "prediction": Kind(
        spec=lambda num_actions: {"value": PredictionSpec()},
        policy=lambda p, c: only_action(p),
        values=lambda p, logits: p["value"],
        moved=lambda p, trajectory: p["value"][:-1],
        loss=lambda targets, p, trajectory, c: jnp.square(targets - p["value"][:-1]),
    ),
}


def frodo(config: FrodoConfig) -> UpdateRule:
    """The learned target Gₜ = g_η(τ), trained to be self-consistent if `consistency_cost` is positive."""
    kind = KINDS[config.kind]

    def regulariser(targets, target_predictions, trajectory):
        is_multi_step = config.is_consistency_multi_step
        return config.consistency_cost * consistency_loss(targets, trajectory, config.discount, is_multi_step)

    def metrics(targets, predictions, trajectory):
        if config.kind != "actor_critic":
            return {}
        return difference_from_vtrace(targets, predictions, trajectory, config.discount, config.vtrace_lambda)

    def base(context: inputs.InputContext, logits: Array) -> Array:
        found = context.moved
        if config.base != VALUE:
            values = jnp.concatenate([context.values, context.next_values[-1:]])
            found = TARGETS[config.base](context.trajectory, values, logits, config.discount, config.vtrace_lambda)
        return jax.lax.stop_gradient(found) if config.next_value_gradient != "semi" else found

    rule = _with_meta_network(
        config,
        config.inputs,
        kind,
        policy=lambda predictions: kind.policy(predictions, config),
        loss=lambda targets, predictions, trajectory: kind.loss(targets, predictions, trajectory, config),
        is_next_value_fixed=config.next_value_gradient == "stopped",
        base=base if config.is_relative else None,
        is_zero_at_first=config.base != VALUE,
    )
    return rule._replace(
        regulariser=regulariser if config.consistency_cost else None,
        metrics=metrics,
        is_target_constant=config.next_value_gradient != "literal",
    )


def difference_from_vtrace(
    targets: Array, predictions: Predictions, trajectory: Trajectory, discount: float, lambda_: float
) -> dict[str, Array]:
    """Return the mean squared difference of an actor-critic's targets from V-trace's, and their mean: metrics."""
    canonical = impala.vtrace_targets(predictions, trajectory, discount, lambda_).value
    found = {"target_difference": jnp.square(targets - canonical), "target": targets}
    return masked_means(found, trajectory.valid)


def learned_loss(config: LearnedLossConfig) -> UpdateRule:
    """The ablation: the meta-network puts out each step's loss, and sees log π(A|S) and v(S) to do so.

    The entropy bonus is that of the learned target. v(S′) is an input without any gradient by default: where the output
    is the loss itself, no gradient through v(S′) is the meta-gradient's alone.
    """

    def loss(targets, predictions, trajectory):
        return targets - config.entropy_cost * entropy(predictions["policy"][:-1])

    kind = KINDS["actor_critic"]
    rule = _with_meta_network(
        config,
        (*config.inputs, *(name for name in ("log_pi", "value") if name not in config.inputs)),
        kind,
        policy=lambda predictions: predictions["policy"],
        loss=loss,
        is_next_value_fixed=not config.is_next_value_differentiated,
    )
    return rule._replace(is_target_constant=False)


def _with_meta_network(
    config: MetaNetworkConfig,
    names: tuple[str, ...],
    kind: Kind,
    policy,
    loss,
    is_next_value_fixed: bool,
    base: Callable[[inputs.InputContext, Array], Array] | None = None,
    is_zero_at_first: bool = False,
) -> UpdateRule:
    """Make a rule with targets [T, B] that a meta-network computes from the named inputs.

    No gradient flows through v(S′) if it is fixed. `base` makes targets relative: context, logits [T + 1, B, A] of the
    policy -> [T, B].
    """
    if_fixed = jax.lax.stop_gradient if is_next_value_fixed else lambda x: x

    def forward(features: Array, is_last: Array) -> Array:
        sizes = TargetNetworkConfig(lstm=config.lstm, head_stddev=0.0 if is_zero_at_first else None)
        network = TargetNetwork(sizes, {"target": PredictionSpec()})
        return network(lambda: TargetInputs(features), is_last, ())[0]["target"]

    network: Any = hk.without_apply_rng(hk.transform(forward))

    def apply(meta_params, rule_state, trajectory, predictions, target_predictions):
        del target_predictions
        logits = policy(predictions)
        values = kind.values(predictions, logits)
        context = inputs.InputContext(
            trajectory=trajectory,
            discount=config.discount,
            values=values[:-1],
            next_values=if_fixed(successors(values, trajectory)),
            moved=if_fixed(kind.moved(predictions, trajectory)),
            log_pi=taken(jax.nn.log_softmax(logits), trajectory),
            log_mu=log_probability(trajectory.behaviour_logits, trajectory.action),
        )

        def output(context: inputs.InputContext) -> Array:
            features = inputs.features(names, context)
            if config.torso:
                seen = jnp.where(trajectory.valid[..., None], predictions[TORSO][:-1], 0.0)
                features = jnp.concatenate([features, seen], axis=-1)
            return network.apply(meta_params, features, trajectory.is_last)

        if base is None:
            return output(context), rule_state
        unit = inputs.td_error_size(context)
        return base(context, logits) + unit * output(context.in_units(unit)), rule_state

    def spec(num_actions: int) -> TargetSpec:
        own = kind.spec(num_actions)
        return {**own, TORSO: PredictionSpec((config.torso,))} if config.torso else own

    return UpdateRule(
        spec=spec,
        apply=apply,
        loss=loss,
        policy=policy,
        random_meta_params=lambda key, num_actions: network.init(
            key, jnp.zeros((1, 1, len(names) + config.torso)), jnp.zeros((1, 1), bool)
        ),
        reduction=config.reduction,
    )


def consistency_targets(targets: Array, trajectory: Trajectory, discount: float, is_multi_step: bool) -> Array:
    """Compute what self-consistent targets would be, for all steps but the last: [T - 1, B], without gradient.

    One step: Rₜ₊₁ + γₜ₊₁ Gₜ₊₁. Multi-step: the rewards up to the trajectory's last step, then its target G_{T−1}; the
    chain ends early, with that step's own target, before a step whose target is unknown. Source: Xu et al. 2020,
    Eq. 13, section 5.2.
    """
    is_broken = _has_no_successor(trajectory)[1:]
    lambda_ = jnp.where(is_broken | (not is_multi_step), 0.0, 1.0).astype(targets.dtype)
    rewards = trajectory.reward[:-1].astype(targets.dtype)
    discounts = (discount * trajectory.discount[:-1]).astype(targets.dtype)
    returns = jax.vmap(rlax.lambda_returns, in_axes=1, out_axes=1)(rewards, discounts, targets[1:], lambda_)
    return jax.lax.stop_gradient(returns)


def consistency_loss(targets: Array, trajectory: Trajectory, discount: float, is_multi_step: bool) -> Array:
    """½ ‖⊥(consistency target) − Gₜ‖², [T, B]; 0 at the last step, and at those without a successor."""
    errors = consistency_targets(targets, trajectory, discount, is_multi_step) - targets[:-1]
    losses = jnp.where(_has_no_successor(trajectory)[:-1], 0.0, 0.5 * jnp.square(errors))
    return jnp.concatenate([losses, jnp.zeros_like(losses[:1])])


def _has_no_successor(trajectory: Trajectory) -> Array:
    """Whether a step's return goes on where there is no target: past a truncation, or in a step that is not valid."""
    is_next_valid = jnp.concatenate([trajectory.valid[1:], jnp.ones_like(trajectory.valid[:1])])
    return trajectory.truncated | ~trajectory.valid | ((trajectory.discount > 0) & ~is_next_valid)
