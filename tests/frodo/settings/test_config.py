"""Settings of agents, online runs and populations: what is wrong is named in one line, and by its path."""

import dataclasses
import json
import re

import jax
import numpy as np
import pytest

from agents.acting.replay import ReplayConfig
from agents.networks.agent import NetworkConfig
from frodo import files
from frodo.settings.config import AgentConfig, OnlineConfig, PopulationConfig, make_setup
from frodo.settings.registry import RuleConfig
from meta.targets.disco import DiscoConfig
from meta.targets.scalar import FrodoConfig
from meta.updates.optimizers import OptimizerConfig, adam
from meta.updates.outer import OuterConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "^batch_size is 0, expected an integer of at least 1$"),
        ({"unroll": 0}, "^unroll is 0, expected an integer of at least 1$"),
        ({"validation_unroll": -3}, "^validation_unroll is -3, expected an integer of at least 1$"),
        ({"stride": 9}, r"^stride is 9, expected at most num_updates \(\d+\), or 0 for as many$"),
        ({"num_updates": 0}, "^num_updates is 0, expected an integer of at least 1$"),
        ({"epochs": 0}, "^epochs is 0, expected an integer of at least 1$"),
        ({"annealing": -1}, "^annealing is -1, expected environment steps, or 0 for none$"),
        (
            {"rule": RuleConfig("learned_loss"), "minibatches": 3},
            "^epochs is 1 and minibatches 3, expected 1 and 1: the rule 'learned_loss' makes its targets anew",
        ),
        ({"rule": RuleConfig("disco"), "minibatches": 3}, "the rule 'disco' needs steps in their order"),
        ({"minibatches": 7}, "^minibatches is 7, expected a divisor of the 900 steps of an update$"),
        (
            {"minibatches": 3, "num_updates": 1, "truncation": 4},
            r"^truncation is 4, expected at most epochs × minibatches \(3\), or 0 for as many$",
        ),
        ({"minibatches": 3, "truncation": 3}, "^truncation is 3, expected 0 where num_updates is 5$"),
        ({"truncation": -1}, "^truncation is -1, expected an integer of at least 0$"),
        ({"rule": RuleConfig("dpo").replace(drift_alpha=0.0)}, "^rule.drift_alpha is 0.0, expected a positive number$"),
        (
            {"rule": RuleConfig("lpo").replace(drift_units=0)},
            "^rule.drift_units is 0, expected an integer of at least 1",
        ),
        (
            {"rule": RuleConfig("corrected_ppo").replace(parts=())},
            r"^rule.parts is \(\), expected one or more different",
        ),
        (
            {"rule": RuleConfig("corrected_ppo").replace(parts=("drift", "rate"))},
            "^rule.parts is 'rate', expected one of targets, drift, settings, constants$",
        ),
        (
            {"rule": RuleConfig("ppo"), "minibatches": 7},
            "^minibatches is 7, expected a divisor of the 900 steps of an update$",
        ),
        (
            {"rule": RuleConfig("ppo"), "minibatches": 20, "network": NetworkConfig(core=4)},
            "^minibatches is 20, expected a divisor of the 30 environments of an update$",
        ),
        (
            {"rule": RuleConfig("muesli")},
            "^network.action_model is 0, expected a positive number: the rule 'muesli' unrolls a model$",
        ),
        (
            {"rule": RuleConfig("dqn"), "epochs": 2},
            "^epochs is 2 and minibatches 1, expected 1 and 1: the rule 'dqn' makes its targets anew",
        ),
        (
            {"rule": RuleConfig("muesli"), "epochs": 2, "network": NetworkConfig(action_model=4)},
            "^epochs is 2 and minibatches 1, expected 1 and 1: the rule 'muesli' needs steps in their order",
        ),
        ({"max_abs_reward": 0.0}, "^max_abs_reward is 0.0, expected a positive number$"),
        ({"max_abs_reward": float("nan")}, "^max_abs_reward is nan, expected a positive number$"),
        ({"gradient_mode": "fast"}, "^gradient_mode is 'fast', expected one of reverse, remat, mixed$"),
        ({"rule": RuleConfig("frodo", FrodoConfig(discount=2.0))}, "^rule.discount is 2.0"),
        (
            {"outer": OuterConfig(value_hidden=[3])},
            r"^outer.value_hidden is \[3\], expected a tuple of ",
        ),
        ({"outer": OuterConfig(discount=2.0)}, "^outer.discount is 2.0, expected a number from 0 to 1$"),
        ({"outer": OuterConfig(value_optimizer=adam(0.0))}, "^outer.value_optimizer.learning_rate is 0.0"),
        ({"network": NetworkConfig("cnov")}, "^network.torso is 'cnov'"),
        ({"replay": ReplayConfig(-1)}, "^replay.capacity is -1"),
        (
            {"optimizer": OptimizerConfig(learning_rate=0.0)},
            "^optimizer.learning_rate is 0.0, expected a positive number$",
        ),
        ({"optimizer": OptimizerConfig(decay=1.0)}, "^optimizer.decay is 1.0, expected a number from 0 to below 1$"),
        (
            {"meta_optimizer": OptimizerConfig(epsilon=-1.0)},
            "^meta_optimizer.epsilon is -1.0, expected a positive number$",
        ),
        (
            {"meta_optimizer": OptimizerConfig(max_gradient_norm=float("nan"))},
            "^meta_optimizer.max_gradient_norm is nan, expected a positive number$",
        ),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_a_bad_setting_is_named(settings, message):
    OnlineConfig().validate()
    for make in (lambda: make_setup(OnlineConfig(**settings), 3), lambda: AgentConfig(**settings).validate()):
        with pytest.raises(ValueError, match=message):
            make()


def test_a_setting_that_there_is_not_is_named_with_the_nearest_one():
    with pytest.raises(
        ValueError, match=r"^optimiser is .*, but an agent has no such .*\(did you mean 'optimizer'\?\)"
    ):
        AgentConfig().replace(optimiser=adam(1e-3))
    config = OnlineConfig(env="toy/catch").replace(unroll=3)
    assert config == OnlineConfig(env="toy/catch", unroll=3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"network": 3}, "^network is 3, expected a value of the type NetworkConfig$"),
        ({"optimizer": "adam"}, "^optimizer is 'adam', expected a value of the type OptimizerConfig$"),
        ({"unroll": 2.5}, "^unroll is 2.5, expected a value of the type int$"),
        ({"unroll": True}, "^unroll is True, expected a value of the type int$"),
        ({"max_abs_reward": None}, "^max_abs_reward is None, expected a value of the type float$"),
    ],
    ids=str,
)
def test_a_setting_of_another_type_is_named(settings, message):
    with pytest.raises(ValueError, match=message):
        AgentConfig().replace(**settings)
    assert AgentConfig().replace(unroll=np.int64(4), max_abs_reward=2) == AgentConfig(unroll=4, max_abs_reward=2.0)


def test_a_number_of_actions_that_is_none_is_named():
    for num_actions in ("3", 0, 2.5, True):
        with pytest.raises(ValueError, match=f"^num_actions is {num_actions!r}, expected a positive whole number$"):
            make_setup(AgentConfig(), num_actions)
    make_setup(AgentConfig(), np.int64(3))  # as gymnasium says it


@pytest.mark.parametrize(
    ("rule", "settings", "has"),
    [
        ("disco", {"temperature": 2.0}, "discount, lambda_, entropy_cost, .*, value_hidden, .* "),
        ("disco", {"value_cost": 0.1}, ".* "),
        ("frodo", {"value_hidden": (3,)}, ".*, value_cost, temperature, critic "),
        ("frodo", {"prediction_entropy_cost": 0.0}, ".* "),
        ("value_based", {"entropy_cost": 0.0}, "discount, lambda_ "),
        ("value_based", {"is_advantage_normalised": True}, ".* "),
        ("value_based", {"critic": "head"}, "discount, lambda_ "),
        ("value_based", {"is_bootstrapped": True}, "discount, lambda_ "),
        ("disco", {"critic": "head"}, ".*, value_optimizer, prediction_entropy_cost "),
        ("impala", {"discount": 0.9}, ""),
    ],
)
def test_a_setting_that_the_outer_objective_does_not_have_is_named(rule, settings, has):
    ((name, value),) = settings.items()
    is_value_based = rule == "value_based"
    config = RuleConfig("frodo", FrodoConfig(kind="value_based", inputs=("reward",))) if is_value_based else None
    config = AgentConfig(rule=config or RuleConfig(rule), network=NetworkConfig("mlp", (4,)))
    config.validate()
    message = f"the outer objective of such agents of the rule '{config.rule.name}' has {has}alone$"
    message = message if has else "the rule 'impala' learns no objective, and has no outer one$"
    with pytest.raises(ValueError, match=f"^outer.{name} is {re.escape(repr(value))}, but {message}"):
        config.replace(outer=OuterConfig(**settings)).validate()


def test_the_outer_objective_of_a_rule_with_y_and_z_has_their_entropies():
    config = AgentConfig(network=NetworkConfig("mlp", (4,)), outer=OuterConfig(prediction_entropy_cost=0.0))
    make_setup(config.replace(rule=RuleConfig("disco")), 3)
    with pytest.raises(ValueError, match="^outer.prediction_entropy_cost is 0.0, but "):
        make_setup(config.replace(rule=RuleConfig("disco").replace(without=("y_z",))), 3)


def test_a_rule_that_predicts_does_not_act():
    for rule in (RuleConfig("td_lambda"), RuleConfig("frodo", FrodoConfig(kind="prediction"))):
        make_setup(AgentConfig(rule=rule), 1)
        with pytest.raises(
            ValueError, match=f"^rule '{rule.name}' is of the kind 'prediction', .*: there are 3 actions$"
        ):
            make_setup(AgentConfig(rule=rule), 3)


@pytest.mark.parametrize(
    ("settings", "outer", "message"),
    [
        (
            {},
            {"target_updates": 0, "is_bootstrapped": True},
            "outer.target_updates is 0, expected an integer of at least 1",
        ),
        (
            {"num_updates": 2},
            {"target_updates": 1.5, "is_bootstrapped": True},
            "outer.target_updates is 1.5, expected an integer of at least 1",
        ),
        ({}, {"target_updates": 2}, "outer.target_updates is 2, expected 1: is_bootstrapped is False"),
        (
            {"num_updates": 2},
            {"target_updates": 3, "is_bootstrapped": True},
            "outer.target_updates is 3, expected at most num_updates (2)",
        ),
        ({"stride": 1}, {"is_bootstrapped": True}, "stride is 1, expected 0 where outer.is_bootstrapped is True"),
        (
            {},
            {"is_bootstrapped": True, "kl_cost": 1.0},
            "outer.kl_cost is 1.0 and is_bootstrapped is True, expected one",
        ),
        ({}, {"critic": "heads"}, "outer.critic is 'heads', expected one of agent, head, network"),
    ],
)
def test_a_bootstrapped_objective_that_cannot_be_is_named(settings, outer, message):
    config = AgentConfig(network=NetworkConfig("mlp", (4,)), outer=OuterConfig(**outer), **settings)
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        config.validate()


@pytest.mark.parametrize("rule", ["frodo", "q_learning", "disco"])
def test_a_setup_fits_together(rule):
    config = AgentConfig(rule=RuleConfig(rule), network=NetworkConfig("mlp", (4,), action_model=3))
    if rule == "disco":
        config = config.replace(rule=RuleConfig("disco", DiscoConfig(prediction_size=4, max_value=2, lstm=4)))
    setup = make_setup(config, 3)
    shapes = jax.eval_shape(setup.agent.init, jax.random.key(0), np.zeros((2, 5), np.float32))
    predictions, _ = jax.eval_shape(setup.agent.step, shapes, np.zeros((2, 5)), np.zeros(2, bool), ())
    assert {name: x.shape[1:] for name, x in predictions.items()} == {
        name: one.axes(3) for name, one in setup.rule.spec(3).items()
    }
    outer_state = jax.eval_shape(setup.outer.init, jax.random.key(0), np.zeros((2, 5), np.float32))
    assert (outer_state == ()) == (rule != "disco")


def test_the_agents_own_settings_are_without_those_of_a_run():
    config = OnlineConfig(env="toy/catch", is_frozen=True, batch_size=7)
    assert config.agent_only() == AgentConfig(batch_size=7) and type(config.agent_only()) is AgentConfig


@pytest.mark.parametrize(
    "config",
    [AgentConfig(), OnlineConfig(env="toy/catch", max_abs_reward=1.0), PopulationConfig(rule=RuleConfig("disco"))],
    ids=["agent", "online", "population"],
)
def test_settings_are_the_same_after_a_file(config):
    text = json.dumps(files.plain(dataclasses.asdict(config)), allow_nan=False)
    assert files.from_plain(type(config), json.loads(text)) == config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"rule": RuleConfig("impala")},
            "^rule is 'impala', expected one of frodo, learned_loss, disco, self_tuned, lpo, corrected_ppo, "
            "drift_program, target_program, policy_program, program$",
        ),
        ({"budgets": ()}, r"^budgets are \(\), expected at least the 5400 steps of one meta-step$"),
        ({"budgets": (10_000, 5_399)}, r"^budgets are \(10000, 5399\), expected at least the 5400 steps"),
        ({"num_devices": 99}, r"^num_devices is 99, expected at most \d+, or 0 for all$"),
        ({"num_devices": -1}, r"^num_devices is -1, expected at most \d+, or 0 for all$"),
        ({"unroll": 0}, "^unroll is 0, expected an integer of at least 1$"),
    ],
    ids=str,
)
def test_a_bad_setting_of_a_population_is_named(settings, message):
    PopulationConfig().validate()
    with pytest.raises(ValueError, match=message):
        PopulationConfig(**settings).validate()


@pytest.mark.parametrize(("is_meta", "expected"), [(True, 8), (False, 10)])
def test_annealing_counts_the_updates_of_its_environment_steps(is_meta, expected):
    """2,000 steps are 4 iterations of 500 with a validation trajectory, 5 of 400 without: of two updates each."""
    config = OnlineConfig(batch_size=20, unroll=10, validation_unroll=5, num_updates=2, annealing=2000)
    assert config.num_annealed_updates(is_meta) == expected
    assert config.replace(epochs=3, minibatches=4).num_annealed_updates(is_meta) == 12 * expected
    assert config.replace(annealing=0).num_annealed_updates(is_meta) == 0
