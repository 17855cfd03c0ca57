"""Outer objectives: the losses of the updated agent on a fresh trajectory, by the kind of its predictions.

They may have a state (`Outer`): a meta-value function, and a moving average of advantages. What an objective may be
besides, KL to the policy before and bootstrapped, is in `lifetime.py`.

Source: Xu et al. 2020, Eq. 9 (prediction), section 3.4 (value-based), Eq. 11 and section 5.1 (actor-critic, V-trace).
The return G(τ′) is a constant here: the gradient is that of the canonical update.
"""

import dataclasses
from collections.abc import Callable, Collection
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents.networks.agent import Agent, NetworkConfig, make_agent
from agents.rule import OUTER_VALUE, UpdateRule, of_own_targets
from agents.rules.action_values import expected_values, squared_error, taken_vectors
from agents.rules.categorical import entropy
from agents.rules.impala import actor_critic_loss, vtrace_targets
from agents.rules.moving_average import MovingAverage, initial_average, normalise, update_average
from agents.rules.returns import importance_ratios, lambda_returns, vtrace
from agents.settings import Count, Fraction, NotNegative, OneOf, Positive, Settings, Sizes
from agents.types import Array, Params, Predictions, PredictionSpec, Targets, Trajectory
from meta.updates.optimizers import OptimizerConfig, adam

CRITICS = ("agent", "head", "network")


@dataclasses.dataclass
class OuterConfig(Settings):
    """The outer objective; per-step losses are reduced as the rule's are.

    `settings_of` says which of these settings the objective of an agent has; the others must keep their defaults.

    Attributes:
      discount: γ of the return, from 0 to 1.
      lambda_: λ of the return, from 0 to 1.
      value_cost: Weight of the value's loss, at least 0, where the agent's own values are the critic (Xu et al. 2020,
        Table 1). An outer critic learns by itself, and has no loss here.
      entropy_cost: Weight of the policy's entropy, at least 0 (Xu et al. 2020, Table 1).
      prediction_entropy_cost: Weight of the entropy of y and z, at least 0 (the public code of Oh et al. 2025).
      temperature: What the policy's logits are divided by, positive.
      is_advantage_normalised: Whether advantages are divided by their moving deviation, less their moving mean.
      value_hidden: Units of the layers of the meta-value function, of agents without values, at least 1 each.
      value_optimizer: The optimiser of the meta-value function (Oh et al. 2025, Methods, and their public code).
      critic: Whose values advantages are made of, of agents with policy and values: 'agent', the agent's own, which
        learn by the rule; 'head', those of a second head, whose loss stops at it, or 'network', those of a meta-value
        function, which learn by the outer discount and λ (Bonnet et al. 2022). DiscoRL's agents, which have no such
        values, always have the meta-value function.
      kl_cost: Weight of KL(π after ‖ π before the updates), of policies, at least 0 (Zahavy et al. 2020).
      is_bootstrapped: Whether η is moved by KL(target ‖ π) alone: π is that of K updates, the target, a constant, that
        of L more, the last of them by this objective (Flennerhag et al. 2022). K + L − 1 is num_updates.
      target_updates: L of a bootstrapped objective, at least 1 and at most num_updates.
    """

    discount: Fraction = 0.99
    lambda_: Fraction = 1.0
    value_cost: NotNegative = 0.5
    entropy_cost: NotNegative = 0.01
    prediction_entropy_cost: NotNegative = 1e-3
    temperature: Positive = 1.0
    is_advantage_normalised: bool = False
    value_hidden: Sizes = (256, 256)
    value_optimizer: OptimizerConfig = dataclasses.field(default_factory=lambda: adam(3e-4, max_update=1.0))
    critic: Annotated[str, OneOf(CRITICS)] = "agent"
    kl_cost: NotNegative = 0.0
    is_bootstrapped: bool = False
    target_updates: Count = 1

    def validate(self) -> None:
        super().validate()
        self.value_optimizer.validate("value_optimizer")
        if self.target_updates > 1 and not self.is_bootstrapped:
            raise ValueError(f"target_updates is {self.target_updates}, expected 1: is_bootstrapped is False")
        if self.kl_cost and self.is_bootstrapped:
            raise ValueError(f"kl_cost is {self.kl_cost} and is_bootstrapped is True, expected one of the two")


class Outer(NamedTuple):
    """An outer objective; its state holds what it learns itself, if anything.

    Attributes:
      init: key, prepared observation [B, ...] -> state.
      loss: state, predictions, validation trajectory -> [T, B], new state. Gradients flow to the predictions.
      config: the settings that it was made of.
    """

    init: Callable[[Array, Array], Any]
    loss: Callable[[Any, Predictions, Trajectory], tuple[Array, Any]]
    config: OuterConfig = OuterConfig()


class ValueState(NamedTuple):
    """The meta-value function, and the moving average that advantages are normalised by."""

    params: Params
    opt_state: optax.OptState
    advantage: MovingAverage


def settings_of(predictions: Collection[str], critic: str) -> tuple[str, ...]:
    """Return the names of the settings that the objective of agents with these predictions has, with such a critic."""
    of_return = ("discount", "lambda_")
    if "policy" not in predictions:
        return of_return
    of_kl = "kl_cost", "is_bootstrapped", "target_updates"
    of_policy = (*of_return, "entropy_cost", "is_advantage_normalised", *of_kl)
    of_value_function = "value_hidden", "value_optimizer"
    if "value" in predictions:
        found = (*of_policy, "value_cost", "temperature", "critic")
        return (*found, *of_value_function) if critic == "network" else found
    of_y = ("prediction_entropy_cost",) if "y" in predictions else ()
    return (*of_policy, *of_value_function, *of_y)


def make_outer(config: OuterConfig, rule: UpdateRule, network: NetworkConfig, num_actions: int) -> Outer:
    """Make the objective that fits the predictions of a rule's agents: a policy, action values, or values alone.

    For agents with a policy and no values, and where the settings say so, the objective has a separate value function,
    with the torso of the agent's network.
    """
    spec = rule.spec(num_actions)
    if "policy" in spec:
        has_critic = "value" in spec and config.critic != "network"
        return actor_critic(config) if has_critic else with_value_function(config, network)
    loss = value_based if "q" in spec else prediction
    return Outer(
        lambda key, observation: (),
        lambda state, predictions, trajectory: (loss(config, rule, predictions, trajectory), state),
        config,
    )


def prediction(config: OuterConfig, rule: UpdateRule, predictions: Predictions, trajectory: Trajectory) -> Array:
    """(G − v(S))², [T, B], with the λ-return; λ = 1 is TD(1)."""
    values = predictions["value"]
    returns, _ = lambda_returns(trajectory, values, config.discount, config.lambda_)
    return jnp.square(returns - values[:-1])


def value_based(config: OuterConfig, rule: UpdateRule, predictions: Predictions, trajectory: Trajectory) -> Array:
    """½ (G − q(S, A))², [T, B]: Expected Sarsa(λ) under the rule's policy."""
    values = expected_values(predictions["q"], rule.policy(predictions))
    returns, _ = lambda_returns(trajectory, values, config.discount, config.lambda_)
    return squared_error(returns, predictions["q"], trajectory)


def actor_critic(config: OuterConfig) -> Outer:
    """The V-trace actor-critic loss of the policy with its logits divided by the temperature.

    With `is_advantage_normalised`, advantages are normalised by their moving mean and deviation over the lifetime.
    """

    def loss(average: MovingAverage | tuple[()], predictions: Predictions, trajectory: Trajectory):
        is_own = config.critic == "agent"
        known = predictions if is_own else {**predictions, "value": predictions[OUTER_VALUE]}
        targets = vtrace_targets(known, trajectory, config.discount, config.lambda_, config.temperature)
        if isinstance(average, MovingAverage):
            average = update_average(average, targets.advantage, trajectory.valid)
            targets = targets._replace(advantage=normalise(average, targets.advantage))
        costs = config.value_cost if is_own else 0.0, config.entropy_cost
        return actor_critic_loss(targets, predictions, trajectory, *costs, config.temperature), average

    return Outer(lambda key, observation: initial_average() if config.is_advantage_normalised else (), loss, config)


class OuterHeadTargets(NamedTuple):
    """The targets of a rule whose agents have a second value head."""

    own: Targets
    value: Array  # of the head, [T, B]


def with_outer_head(rule: UpdateRule, config: OuterConfig) -> UpdateRule:
    """Add a second value head to a rule's agents, which learns V-trace targets by the outer discount and λ.

    It is on the critic's torso, where that is separate, and its loss, ½ (G′ − v′(S))², stops at it: policy and values
    learn as they do without it. G′ depends on η through the agent alone. Source: Bonnet et al. 2022.

    Args:
      rule: of agents with a policy and values.
      config: with the discount and λ.
    """

    def apply(meta_params, rule_state, trajectory, predictions, target_predictions):
        own, rule_state = rule.apply(meta_params, rule_state, trajectory, predictions, target_predictions)
        rho = importance_ratios(predictions["policy"], trajectory)
        of = predictions[OUTER_VALUE], rho, config.discount, config.lambda_
        value, _ = vtrace(trajectory, *of, is_constant=not rule.is_target_constant)
        return OuterHeadTargets(own, value), rule_state

    def loss(targets: OuterHeadTargets, predictions: Predictions, trajectory: Trajectory) -> Array:
        error = targets.value - predictions[OUTER_VALUE][:-1]
        return rule.loss(targets.own, predictions, trajectory) + 0.5 * jnp.square(error)

    return rule._replace(
        spec=lambda num_actions: {**rule.spec(num_actions), OUTER_VALUE: PredictionSpec(is_apart=True)},
        apply=apply,
        loss=loss,
        **of_own_targets(rule),
    )


def make_value_agent(config: OuterConfig, network: NetworkConfig) -> Agent:
    """Make the meta-value function: the agent's torso, and layers of its own."""
    value_network = dataclasses.replace(
        network, hidden=config.value_hidden, core=0, core_kind="lstm", action_model=0, head_stddev=0.01
    )
    return make_agent(value_network, {"value": PredictionSpec()}, num_actions=1)


def with_value_function(config: OuterConfig, network: NetworkConfig) -> Outer:
    """The outer objective of an agent without values, or with others: a separate meta-value function learns them.

    −advantage · log π(A|S) − entropy_cost H(π(·|S)) − prediction_entropy_cost (H(y) + H(z_A)), where the agent has y
    and z. The value function moves to V-trace targets on the same trajectory, after it was used. Source: Oh et al.
    2025, Methods, "Meta-optimization".
    """
    value_agent, optimizer = make_value_agent(config, network), config.value_optimizer.make()

    def init(key: Array, observation: Array) -> ValueState:
        params = value_agent.init(key, observation)
        return ValueState(params, optimizer.init(params), initial_average())

    def loss(state: ValueState, predictions: Predictions, trajectory: Trajectory):
        values, pull = jax.vjp(lambda params: value_agent.unroll(params, trajectory)["value"], state.params)
        known = {"policy": jax.lax.stop_gradient(predictions["policy"]), "value": values}
        targets = vtrace_targets(known, trajectory, config.discount, config.lambda_, config.temperature)
        average = update_average(state.advantage, targets.advantage, trajectory.valid)
        error = jnp.where(trajectory.valid, values[:-1] - targets.value, 0.0) / jnp.maximum(1, trajectory.valid.sum())
        (grads,) = pull(jnp.concatenate([error, jnp.zeros_like(error[:1])]))
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        new_state = ValueState(optax.apply_updates(state.params, updates), opt_state, average)

        if config.is_advantage_normalised:
            targets = targets._replace(advantage=normalise(average, targets.advantage))
        predictions = {**predictions, "value": jax.lax.stop_gradient(values)}
        losses = actor_critic_loss(targets, predictions, trajectory, 0.0, config.entropy_cost, config.temperature)
        if "y" in predictions:
            entropies = entropy(predictions["y"][:-1]) + entropy(taken_vectors(predictions["z"], trajectory))
            losses = losses - config.prediction_entropy_cost * entropies
        return losses, new_state

    return Outer(init, loss, config)
