"""FRODO's update rules: a learned scalar target, and the learned loss it is compared with; and all rules by name.

Source: Xu et al. 2020. Inner losses: Eq. 8 (prediction), section 3.4 (value-based), Eq. 10 (actor-critic). Consistency:
Eq. 13. Off-policy inputs: section 5.1. Learned loss: section 5.4.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import rlax

from agents import choices, impala, q_learning, td
from agents.networks import NetworkConfig, make_agent
from agents.rule import UpdateRule, masked_reduce
from agents.types import Array, Predictions, PredictionSpec, TargetSpec, Trajectory
from meta import inputs, outer
from meta.disco import DiscoConfig, disco
from meta.optimizers import OptimizerConfig, adam
from meta.outer import Outer
from meta.target_network import Inputs, TargetNetwork, TargetNetworkConfig

NEXT_VALUE_GRADIENTS = ("literal", "semi", "stopped")


@dataclasses.dataclass
class RuleConfig:
    """A rule and its objective. What a rule has no use for, it ignores: `disco` has settings of its own."""

    name: str = "frodo"  # one of RULES
    kind: str = "actor_critic"  # of agent, one of KINDS
    discount: float = 0.99  # γ
    lambda_: float = 1.0  # λ of the outer return, or of a hand-made rule
    epsilon: float = 0.1  # of the ε-greedy policy of value-based agents
    value_cost: float = 0.5
    entropy_cost: float = 0.01
    temperature: float = 1.0  # divides the policy's logits in the outer loss of agents that predict values
    reduction: str = "sum"  # of per-step losses: 'sum' or 'mean'; q_learning has the sum, td_lambda and disco the mean
    lstm: int = 256  # units of the meta-network
    inputs: tuple[str, ...] = ("reward", "discount", "next_value", "pi", "mu")  # of meta.inputs.INPUTS
    next_value_gradient: str = "semi"  # 'literal': the inner gradient flows through v(S') into G (and through π(A|S),
    # where it is an input); 'semi': only the meta-gradient does; 'stopped': neither
    consistency_cost: float = 0.0  # c of Eq. 13
    is_consistency_multi_step: bool = True
    is_advantage_normalised: bool = False  # in the outer objective of agents with a policy
    prediction_entropy_cost: float = 1e-3  # of y and z in the outer objective
    value_hidden: tuple[int, ...] = (256, 256)  # layers of the meta-value function of agents that predict no values
    value_optimizer: OptimizerConfig = dataclasses.field(default_factory=lambda: adam(3e-4, max_update=1.0))
    disco: DiscoConfig = dataclasses.field(default_factory=DiscoConfig)

    def validate(self) -> None:
        choices.check("rule.name", self.name, RULES)
        choices.check("rule.kind", self.kind, KINDS)
        expected = KIND_OF_RULE.get(self.name, self.kind)
        if self.kind != expected:
            raise ValueError(f"rule.kind is {self.kind!r}, expected {expected!r} for the rule {self.name!r}")
        choices.check("rule.reduction", self.reduction, ("sum", "mean"))
        choices.check("rule.next_value_gradient", self.next_value_gradient, NEXT_VALUE_GRADIENTS)
        for name in self.inputs:
            choices.check("rule.inputs", name, inputs.INPUTS)
        for name in ("discount", "lambda_", "epsilon"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"rule.{name} is {getattr(self, name)}, expected a number from 0 to 1")
        for name in ("value_cost", "entropy_cost", "consistency_cost", "prediction_entropy_cost"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"rule.{name} is {getattr(self, name)}, expected a number of at least 0")
        if not self.temperature > 0:
            raise ValueError(f"rule.temperature is {self.temperature}, expected a positive number")
        if self.lstm < 1 or not self.inputs:
            raise ValueError(f"rule.lstm is {self.lstm} and rule.inputs {self.inputs}, expected units and inputs")
        self.value_optimizer.validate("rule.value_optimizer")
        self.disco.validate()


class Kind(NamedTuple):
    """What the rules need to know of a kind of agent; every function but `spec` takes the configuration last."""

    spec: Callable[[int], TargetSpec]
    policy: Callable[[Predictions, RuleConfig], Array]  # -> logits [..., A]
    values: Callable[[Predictions, RuleConfig], Array]  # -> V(S) [...]
    loss: Callable[[Array, Predictions, Trajectory, RuleConfig], Array]  # of targets G [T, B] -> [T, B]
    outer_loss: Callable[[Predictions, Trajectory, RuleConfig], Array]  # -> [T, B]


def _actor_critic_inner_loss(targets: Array, predictions: Predictions, trajectory: Trajectory, c: RuleConfig) -> Array:
    advantage = targets - jax.lax.stop_gradient(predictions["value"][:-1])
    pair = impala.ActorCriticTargets(targets, advantage)
    return impala.actor_critic_loss(pair, predictions, trajectory, c.value_cost, c.entropy_cost)


KINDS: dict[str, Kind] = {
    "prediction": Kind(
        spec=lambda num_actions: {"value": PredictionSpec()},
        policy=lambda p, c: td.uniform_policy(p),
        values=lambda p, c: p["value"],
        loss=lambda targets, p, trajectory, c: jnp.square(targets - p["value"][:-1]),
        outer_loss=lambda p, trajectory, c: outer.prediction(p, trajectory, c.discount, c.lambda_),
    ),
    "value_based": Kind(
        spec=lambda num_actions: {"q": PredictionSpec(is_per_action=True)},
        policy=lambda p, c: q_learning.epsilon_greedy_policy(p, c.epsilon),
        values=lambda p, c: q_learning.expected_values(p, q_learning.epsilon_greedy_policy(p, c.epsilon)),
        loss=lambda targets, p, trajectory, c: q_learning.q_loss(targets, p, trajectory),
        outer_loss=lambda p, trajectory, c: outer.value_based(p, trajectory, c.discount, c.lambda_, c.epsilon),
    ),
    "actor_critic": Kind(
        spec=impala.actor_critic_spec,
        policy=lambda p, c: p["policy"],
        values=lambda p, c: p["value"],
        loss=_actor_critic_inner_loss,
        outer_loss=lambda p, trajectory, c: outer.actor_critic(
            p, trajectory, c.discount, c.lambda_, c.value_cost, c.entropy_cost, c.temperature
        ),
    ),
}


def consistency_targets(targets: Array, trajectory: Trajectory, discount: float, is_multi_step: bool) -> Array:
    """Compute what self-consistent targets would be, for all steps but the last: [T - 1, B], without gradient.

    One step: Rₜ₊₁ + γₜ₊₁ Gₜ₊₁. Multi-step: the rewards up to the trajectory's last step, then its target G_{T−1}; the
    chain ends early, with that step's own target, before a step of which none can be told. Source: Xu et al. 2020,
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


def frodo(config: RuleConfig) -> UpdateRule:
    """The learned target Gₜ = g_η(τ), trained to be self-consistent if `consistency_cost` is positive."""

    def regulariser(targets, target_predictions, trajectory):
        is_multi_step = config.is_consistency_multi_step
        return config.consistency_cost * consistency_loss(targets, trajectory, config.discount, is_multi_step)

    def metrics(targets, predictions, trajectory):
        if config.kind != "actor_critic":
            return {}
        canonical = impala.vtrace_targets(predictions, trajectory, config.discount, config.lambda_).value
        difference = masked_reduce(jnp.square(targets - canonical), trajectory.valid, "mean")
        return {"target_difference": difference, "target": masked_reduce(targets, trajectory.valid, "mean")}

    return _learned(config, is_loss=False)._replace(
        regulariser=regulariser if config.consistency_cost else None, metrics=metrics
    )


def learned_loss(config: RuleConfig) -> UpdateRule:
    """The ablation: the meta-network puts out each step's loss, and sees log π(A|S) and v(S) to do so.

    The entropy bonus is that of the learned target. Unless `next_value_gradient` is 'literal', v(S′) is an input
    without any gradient: where the output is the loss itself, 'semi' is 'stopped'.
    """

    def loss(targets, predictions, trajectory):
        zeros = jnp.zeros_like(targets)
        entropy_term = impala.actor_critic_loss(
            impala.ActorCriticTargets(zeros, zeros), predictions, trajectory, 0.0, config.entropy_cost
        )
        return targets + entropy_term

    return _learned(config, is_loss=True)._replace(loss=loss, is_target_constant=False)


def _learned(config: RuleConfig, is_loss: bool) -> UpdateRule:
    """What the learned target and the learned loss share: the meta-network, its inputs, the agent's side."""
    kind = KINDS[config.kind]
    names = (*config.inputs, *(name for name in ("log_pi", "value") if is_loss and name not in config.inputs))
    is_next_value_fixed = config.next_value_gradient == "stopped" or (is_loss and config.next_value_gradient == "semi")

    def forward(features: Array, is_last: Array) -> Array:
        network = TargetNetwork(TargetNetworkConfig(lstm=config.lstm), {"target": PredictionSpec()})
        return network(lambda: Inputs(features), is_last, ())[0]["target"]

    network: Any = hk.without_apply_rng(hk.transform(forward))

    def apply(meta_params, rule_state, trajectory, predictions, target_predictions):
        del target_predictions
        values = kind.values(predictions, config)
        context = inputs.Context(
            trajectory=trajectory,
            discount=config.discount,
            values=values[:-1],
            next_values=jax.lax.stop_gradient(values[1:]) if is_next_value_fixed else values[1:],
            log_pi=impala.log_probability(kind.policy(predictions, config), trajectory),
            log_mu=impala.behaviour_log_probability(trajectory),
        )
        return network.apply(meta_params, inputs.features(names, context), trajectory.is_last), rule_state

    return UpdateRule(
        spec=kind.spec,
        init_meta_params=lambda key, num_actions: network.init(
            key, jnp.zeros((1, 1, len(names))), jnp.zeros((1, 1), bool)
        ),
        init=lambda: (),
        apply=apply,
        loss=lambda targets, predictions, trajectory: kind.loss(targets, predictions, trajectory, config),
        policy=lambda predictions: kind.policy(predictions, config),
        reduction=config.reduction,
        is_target_constant=config.next_value_gradient != "literal",
    )


def _a2c(config: RuleConfig, is_bootstrapped: bool) -> UpdateRule:
    return impala.a2c(config.discount, config.value_cost, config.entropy_cost, config.reduction, is_bootstrapped)


RULES: dict[str, Callable[[RuleConfig], UpdateRule]] = {
    "frodo": frodo,
    "learned_loss": learned_loss,
    "impala": lambda c: impala.impala(c.discount, c.lambda_, c.value_cost, c.entropy_cost, c.reduction),
    "a2c": functools.partial(_a2c, is_bootstrapped=True),
    "a2c_no_bootstrap": functools.partial(_a2c, is_bootstrapped=False),
    "q_learning": lambda c: q_learning.q_learning(c.discount, c.lambda_, c.epsilon),
    "td_lambda": lambda c: td.td_lambda(c.discount, c.lambda_),
    "disco": lambda c: disco(c.disco),
}

LEARNED_RULES = ("frodo", "learned_loss", "disco")
KIND_OF_RULE = {  # of agent, where a rule works for one only
    "learned_loss": "actor_critic",
    "impala": "actor_critic",
    "a2c": "actor_critic",
    "a2c_no_bootstrap": "actor_critic",
    "q_learning": "value_based",
    "td_lambda": "prediction",
    "disco": "actor_critic",
}


def make_rule(config: RuleConfig) -> UpdateRule:
    """Look a rule up by its name."""
    config.validate()
    return RULES[config.name](config)


def spec_for(config: RuleConfig, env: str, num_actions: int) -> TargetSpec:
    """Return what agents predict in an environment; a ValueError names it if the kind of agent cannot act there."""
    if config.kind == "prediction" and num_actions > 1:
        raise ValueError(f"rule.kind is 'prediction', expected one that acts: {env} has {num_actions} actions")
    return make_rule(config).spec(num_actions)


def make_outer(config: RuleConfig, network: NetworkConfig, spec: TargetSpec) -> Outer:
    """The outer objective of the configured kind of agent, with a meta-value function if its spec has no values.

    That function has the agent's torso, and layers of its own.
    """
    if config.kind == "actor_critic" and "value" not in spec:
        value_network = dataclasses.replace(
            network, hidden=config.value_hidden, core=0, action_model=0, head_stddev=0.01
        )
        return outer.with_value_function(
            make_agent(value_network, {"value": PredictionSpec()}, num_actions=1),
            config.value_optimizer.make(),
            config.discount,
            config.lambda_,
            config.entropy_cost,
            config.prediction_entropy_cost,
            config.is_advantage_normalised,
        )
    if config.kind == "actor_critic" and config.is_advantage_normalised:
        return outer.normalised_actor_critic(
            config.discount, config.lambda_, config.value_cost, config.entropy_cost, config.temperature
        )
    return outer.stateless(lambda p, trajectory: KINDS[config.kind].outer_loss(p, trajectory, config))
