"""All rules by name: each fits its kinds of agent, has its own settings, and says which of them are wrong."""

import dataclasses
import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.rules.impala import A2CConfig, ImpalaConfig, a2c, impala
from agents.rules.muesli import MuesliConfig
from agents.rules.ppo import DPOConfig, PPOConfig, dpo, ppo
from agents.rules.q_learning import QLearningConfig, q_learning
from agents.rules.td import TDLambdaConfig, td_lambda
from frodo import files
from frodo.settings.registry import RULES, RuleConfig, make_update_rule, replace
from meta.programs.drifts import DriftProgramConfig
from meta.programs.policies import PolicyProgramConfig
from meta.programs.rule import DoubleDQNConfig, DQNClippedConfig, DQNRegConfig, ProgramConfig
from meta.programs.targets import TargetProgramConfig
from meta.targets.disco import DiscoConfig
from meta.targets.proximal import CorrectedPPOConfig, LPOConfig
from meta.targets.scalar import FrodoConfig, LearnedLossConfig
from meta.targets.self_tuned import SelfTunedConfig
from tests.trajectories import random_trajectory

T, B, A = 6, 4, 3
SMALL_DISCO = DiscoConfig(prediction_size=4, max_value=2, lstm=4, lifetime_lstm=0, action_embedding=(5, 3))
SETTINGS = {  # none at its default
    "frodo": FrodoConfig(discount=0.9, lstm=4, consistency_cost=0.1, inputs=("reward", "pi"), value_cost=0.3),
    "learned_loss": LearnedLossConfig(discount=0.9, lstm=4, is_next_value_differentiated=True, entropy_cost=0.2),
    "disco": SMALL_DISCO,
    "self_tuned": SelfTunedConfig(0.9, 0.4, 0.2, "mean", 0.8, ("discount",), 0.7, 0.6, (0.5, 1.0), (0.1, 2.0), heads=1),
    "impala": ImpalaConfig(0.9, 0.4, 0.2, "mean", 0.8),
    "a2c": A2CConfig(0.9, 0.4, 0.2, "mean"),
    "a2c_no_bootstrap": A2CConfig(0.9, 0.4, 0.2, "mean"),
    "ppo": PPOConfig(0.9, 0.4, 0.2, "sum", 0.8, clip=0.1, is_value_clipped=False, is_advantage_normalised=False),
    "dpo": DPOConfig(0.9, 0.4, 0.2, "sum", 0.8, 0.1, False, False, drift_alpha=1.5, drift_beta=0.7),
    "lpo": LPOConfig(0.9, 0.4, 0.2, "sum", 0.8, 0.1, False, False, drift_units=3, is_temporal=True, life=5),
    "corrected_ppo": CorrectedPPOConfig(0.9, 0.4, 0.2, "sum", 0.8, 0.1, False, False, 3, False, 5, ("drift",), 3, 0.5),
    "drift_program": DriftProgramConfig(0.9, 0.4, 0.2, "sum", 0.8, 0.1, False, False, "log(r) * A * 0.3 + t", 5),
    "muesli": MuesliConfig(0.9, 0.8, 0.5, 2, 3, 0.9, 0.8, 0.7, 0.6, 0.5),
    "q_learning": QLearningConfig(0.9, 0.8, epsilon=0.3),
    "td_lambda": TDLambdaConfig(0.9, 0.8),
    "target_program": TargetProgramConfig(0.9, 0.3, 0.2, "sum", "0.5 * G_next + r", 0.8, is_data=True),
    "policy_program": PolicyProgramConfig("0.5 * A + taken", 3, 0.9, 0.8, 0.7, 0.6, 0.5),
    "program": DQNRegConfig("0.5 * Q(s)[a] + r", 0.9, 0.3, 7),
    "dqn": ProgramConfig("0.5 * Q(s)[a] + r", 0.9, 0.3, 7),
    "double_dqn": DoubleDQNConfig("0.5 * Q(s)[a] + r", 0.9, 0.3, 7),
    "dqn_reg": DQNRegConfig("0.5 * Q(s)[a] + r", 0.9, 0.3, 7),
    "dqn_clipped": DQNClippedConfig("0.5 * Q(s)[a] + r", 0.9, 0.3, 7),
}


def with_kinds():
    """Every rule with small settings, once for each kind of agent that it fits."""
    for name, entry in RULES.items():
        for kind in entry.kinds:
            settings = SETTINGS[name]
            if name == "frodo":
                settings = FrodoConfig(kind=kind, lstm=4)
            yield pytest.param(RuleConfig(name, settings), kind, id=f"{name}-{kind}")


@pytest.mark.parametrize(("config", "kind"), with_kinds())
def test_a_rule_fits_its_kind_of_agent_and_is_learned_where_it_has_meta_parameters(config, kind):
    assert config.kind == kind
    rule = make_update_rule(config)
    num_actions = 1 if kind == "prediction" else A
    spec = rule.spec(num_actions)
    has_policy = "policy" in spec
    assert has_policy == (kind == "actor_critic") and (
        "value" in spec or config.name in ("disco", "policy_program", "muesli") or kind == "value_based"
    )
    if kind == "value_based":
        assert spec["q"].axes(A) == (A,)
    if kind == "prediction":
        assert set(spec) == {"value"}
    shapes = jax.eval_shape(lambda key: rule.random_meta_params(key, num_actions), jax.random.key(0))
    assert bool(jax.tree.leaves(shapes)) == config.entry.is_learned
    predictions = {name: jax.ShapeDtypeStruct((T, B, *one.axes(num_actions)), float) for name, one in spec.items()}
    assert jax.eval_shape(rule.policy, predictions).shape == (T, B, num_actions)


def test_every_rule_is_here():
    assert set(SETTINGS) == set(RULES)
    assert RuleConfig() == RuleConfig("frodo", FrodoConfig())


# A rule gets its settings

HAND_MADE = {
    "td_lambda": td_lambda(TDLambdaConfig(0.9, 0.8)),
    "q_learning": q_learning(QLearningConfig(0.9, 0.8, epsilon=0.3)),
    "impala": impala(ImpalaConfig(0.9, 0.4, 0.2, "mean", lambda_=0.8)),
    "a2c": a2c(A2CConfig(0.9, 0.4, 0.2, "mean")),
    "a2c_no_bootstrap": a2c(A2CConfig(0.9, 0.4, 0.2, "mean"), is_bootstrapped=False),
    "ppo": ppo(PPOConfig(0.9, 0.4, 0.2, "sum", 0.8, clip=0.1, is_value_clipped=False, is_advantage_normalised=False)),
    "dpo": dpo(SETTINGS["dpo"]),
}


@pytest.mark.parametrize("name", HAND_MADE)
def test_a_hand_made_rule_gets_its_settings(name):
    expected, rule = HAND_MADE[name], make_update_rule(RuleConfig(name, SETTINGS[name]))
    trajectory, rng = random_trajectory(0, T, B), np.random.default_rng(0)
    predictions = {x: jnp.asarray(rng.normal(size=(T + 1, B, *one.axes(A)))) for x, one in rule.spec(A).items()}

    def results(rule):
        targets, _ = rule.apply({}, rule.init(), trajectory, predictions, predictions)
        return targets, rule.loss(targets, predictions, trajectory), rule.policy(predictions)

    with jax.enable_x64(True):
        jax.tree.map(np.testing.assert_array_equal, results(rule), results(expected))
    assert (rule.reduction, rule.spec(A)) == (expected.reduction, expected.spec(A))
    assert jax.tree.leaves(rule.random_meta_params(jax.random.key(0), A)) == [] and rule.init() == ()


def test_predictions_that_are_not_those_of_a_rule_are_refused():
    rule, trajectory = make_update_rule(RuleConfig("disco")), random_trajectory(0, T, B)
    predictions = {name: np.zeros((T + 1, B, *one.axes(A))) for name, one in rule.spec(A).items()}
    assert predictions["q"].shape[-1] == 601
    apply = functools.partial(rule.apply, {}, rule.init(), trajectory)
    narrow = predictions | {"q": predictions["q"][..., :7]}
    message = rf"^prediction 'q' has the shape \[{T + 1}, {B}, {A}, 7\], expected \[{T + 1}, {B}, {A}, 601\]$"
    for pair in ((narrow, predictions), (predictions, narrow)):
        with pytest.raises(ValueError, match=message):
            apply(*pair)
    without = {name: x for name, x in predictions.items() if name != "y"}
    with pytest.raises(
        ValueError, match="^prediction 'y' is missing: the agent predicts policy, z, q, aux_policy, exp"
    ):
        apply(without, predictions)


# Settings


@pytest.mark.parametrize("name", RULES)
def test_settings_are_the_same_after_a_file(name):
    for config in (RuleConfig(name), RuleConfig(name, SETTINGS[name])):
        config.validate()
        text = json.dumps(files.plain(dataclasses.asdict(config)))
        again = files.from_plain(RuleConfig, json.loads(text))
        assert again == config and type(again.settings) is RULES[name].settings


def test_an_unknown_rule_is_named_with_the_nearest_one():
    with pytest.raises(ValueError, match=r"^rule is 'frdo', expected one of frodo, .* \(did you mean 'frodo'\?\)$"):
        RuleConfig("frdo")
    with pytest.raises(
        ValueError, match=r"^rule is 'zzzz', which is not registered: expected one of frodo, .*clipped$"
    ):
        files.from_plain(RuleConfig, {"name": "zzzz", "settings": {}})


def test_settings_of_another_rule_are_refused():
    config = RuleConfig("frodo", ImpalaConfig())
    message = "^rule 'frodo' has settings of the type ImpalaConfig, expected FrodoConfig$"
    for call in (config.validate, functools.partial(make_update_rule, config)):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "impala",
            {"lamda": 0.9},
            r"^lamda is 0.9, but the rule 'impala' has no such setting \(did you mean 'lambda_'\?\): it has discount, ",
        ),
        ("impala", {"validate": 0.2}, "^validate is 0.2, but the rule 'impala' has no such setting: it has"),
        ("impala", {"epsilon": 0.2}, "^epsilon is 0.2, but the rule 'impala' has no such setting"),
        ("disco", {"kind": "actor_critic"}, "^kind is 'actor_critic', but the rule 'disco' has no such setting"),
        ("a2c", {"lambda_": 0.5}, "^lambda_ is 0.5, but the rule 'a2c' has no such setting: it has discount, value_c"),
        ("td_lambda", {"name": "a2c"}, "^name is 'a2c', but the rule 'td_lambda' has no such setting"),
    ],
)
def test_a_setting_of_another_rule_is_named_with_the_nearest_one(name, settings, message):
    with pytest.raises(ValueError, match=message):
        RuleConfig(name).replace(**settings)


def test_a_setting_of_several_types_or_of_any_is_replaced():
    @dataclasses.dataclass
    class Settings:
        stddev: float | None = None
        anything: Any = None
        sizes: tuple[int, ...] = ()

    new = replace("a rule", Settings(), {"stddev": 1, "anything": "x", "sizes": (3,)})
    assert new == Settings(1, "x", (3,)) and replace("a rule", new, {"stddev": None}) == Settings(None, "x", (3,))
    for name, value in (("stddev", "x"), ("sizes", 3)):
        with pytest.raises(ValueError, match=f"^{name} is {value!r}, expected a value of the type "):
            replace("a rule", Settings(), {name: value})


def test_known_settings_are_those_of_the_same_name_and_type():
    config = RuleConfig("impala", SETTINGS["impala"])
    assert config.with_known(lambda_=0.5, discount=None, reduction=3, torso=7) == config.replace(lambda_=0.5)


def test_replacing_settings_leaves_the_rule_and_what_there_was():
    config = RuleConfig("impala", SETTINGS["impala"])
    other = config.replace(lambda_=0.5)
    assert other == RuleConfig("impala", dataclasses.replace(SETTINGS["impala"], lambda_=0.5))
    assert config.settings.lambda_ == 0.8


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            RuleConfig("frodo", FrodoConfig(kind="actor_crtic")),
            r"^rule.kind is 'actor_crtic', .*did you mean 'actor_cri",
        ),
        (RuleConfig("frodo", FrodoConfig(discount=1.1)), "^rule.discount is 1.1, expected a number from 0 to 1$"),
        (
            RuleConfig("frodo", FrodoConfig(kind="prediction", value_cost=0.1)),
            "^rule.value_cost is 0.1, expected the default, 0.5: kind 'prediction' has none$",
        ),
        (RuleConfig("disco", DiscoConfig(lstm=0)), "^rule.lstm is 0, expected an integer of at least 1$"),
        (RuleConfig("td_lambda", TDLambdaConfig(lambda_=2)), "^rule.lambda_ is 2, expected a number from 0 to 1$"),
    ],
    ids=["kind", "discount", "value_cost", "lstm", "lambda_"],
)
def test_a_bad_setting_is_named_as_one_of_the_rule(config, message):
    with pytest.raises(ValueError, match=message):
        make_update_rule(config)
