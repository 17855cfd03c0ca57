"""Settings that earlier versions wrote: in the words of this one they make rules and objectives of the same numbers.

settings_0_1_0.json holds, of every rule of version 0.1.0, the settings of an agent as that version wrote them, and
what its rule and its outer objective computed in float64 with the arrays that are drawn here: sums of all entries,
weighted by the cosine of their number.
"""

import copy
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frodo import files
from frodo.settings import earlier_versions
from frodo.settings.config import AgentConfig
from frodo.settings.registry import RULES, make_update_rule
from meta.updates.outer import OuterConfig, make_outer, settings_of
from tests.trajectories import random_trajectory

RECORDS = json.loads((Path(__file__).parents[2] / "data" / "settings_0_1_0.json").read_text())
T, B, A = 5, 3, 3
LATER = {
    "muesli",
    "ppo",
    "dpo",
    "lpo",
    "corrected_ppo",
    "drift_program",
    "self_tuned",
    "target_program",
    "policy_program",
    "program",
    "dqn",
    "double_dqn",
    "dqn_reg",
    "dqn_clipped",
}  # than 0.1.0


def converted(old) -> AgentConfig:
    config = files.from_plain(AgentConfig, earlier_versions.convert(old))
    config.validate()
    return config


def drawn(seed, shapes):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: 0.5 * rng.normal(size=x.shape), shapes)


def weighted_sum(x):
    x = np.asarray(x)
    return np.sum(x * np.cos(np.arange(x.size).reshape(x.shape)))


def numbers(config: AgentConfig) -> dict[str, float]:
    num_actions = 1 if config.rule.kind == "prediction" else A
    rule, trajectory = make_update_rule(config.rule), random_trajectory(0, T, B, num_actions=num_actions)
    trajectory.valid[0, 2] = trajectory.truncated[0, 2] = False  # as a step was whose successor is not known
    trajectory = trajectory._replace(reward=trajectory.reward * trajectory.valid)
    outer, observation = make_outer(config.outer, rule, config.network, num_actions), trajectory.observation[0]
    spec, rng = rule.spec(num_actions), np.random.default_rng(1)
    predictions = {name: rng.normal(size=(T + 1, B, *spec[name].axes(num_actions))) for name in sorted(spec)}
    key = jax.random.key(0)
    meta_params = drawn(2, jax.eval_shape(lambda key: rule.random_meta_params(key, num_actions), key))
    state = outer.init(key, observation)
    if hasattr(state, "params"):
        state = state._replace(params=drawn(3, jax.eval_shape(outer.init, key, observation).params))

    def compute(predictions):
        targets, _ = rule.apply(meta_params, rule.init(), trajectory, predictions, predictions)
        arguments = targets, predictions, trajectory
        out = {"loss": rule.loss(*arguments), "policy": rule.policy(predictions)}
        for name in ("loss_without_meta", "regulariser"):
            if getattr(rule, name):
                out[name] = getattr(rule, name)(*arguments)
        out["outer"] = outer.loss(state, predictions, trajectory)[0]
        metrics = {f"metric_{name}": x for name, x in rule.metrics(*arguments).items()}
        return sum(jnp.sum(jnp.cos(x)) for x in out.values()), out | metrics

    run = jax.jit(jax.value_and_grad(compute, has_aux=True))
    (_, out), gradient = run(predictions)
    out |= {f"gradient_{name}": x for name, x in gradient.items()}
    return {name: weighted_sum(x) for name, x in out.items()}


@pytest.mark.parametrize("name", RECORDS)
def test_a_rule_and_its_objective_compute_what_they_did(name):
    record = RECORDS[name]
    config = converted(record["config"])
    rule = make_update_rule(config.rule)
    if not config.rule.entry.is_learned:  # the records have an outer objective of hand-made rules, too
        names = record["config"]["rule"].keys() & settings_of(rule.spec(3), "agent")  # some came later
        old = {name: record["config"]["rule"][name] for name in names}
        old |= {"value_cost": 2 * old["value_cost"]} if "value_cost" in old else {}
        config = config.replace(outer=OuterConfig(**old))
    with jax.enable_x64(True):
        found = numbers(config)
    assert set(found) == set(record["numbers"])
    for key, x in record["numbers"].items():
        np.testing.assert_allclose(found[key], x, rtol=1e-8, atol=1e-10, err_msg=key)
    assert (rule.reduction, rule.is_target_constant) == (record["reduction"], record["is_target_constant"])


def test_every_rule_of_version_0_1_0_is_there():
    names = [record["config"]["rule"]["name"] for record in RECORDS.values()]
    assert set(names) == set(RULES) - LATER
    kinds = {
        record["config"]["rule"]["kind"] for record in RECORDS.values() if record["config"]["rule"]["name"] == "frodo"
    }
    assert kinds == set(RULES["frodo"].kinds)


def test_settings_of_the_agent_are_kept_and_those_of_the_run_are_not():
    old = RECORDS["disco"]["config"]
    config = converted(old)
    assert (config.batch_size, config.unroll, config.num_updates, config.stride) == (7, 6, 3, 2)
    assert (config.replay.capacity, config.replay.fresh, config.max_abs_reward) == (70, 0.25, 1.0)
    assert config.network.hidden == (5,) and config.optimizer.max_update == float("inf")
    assert config.rule.settings.action_embedding == (5, 3) and config.rule.settings.discount == 0.9
    outer = config.outer
    assert (outer.discount, outer.value_hidden, outer.value_optimizer.max_update) == (0.95, (4,), 0.5)
    assert converted(RECORDS["impala"]["config"]).is_acting_interleaved and not config.is_acting_interleaved
    assert not hasattr(config, "env")


@pytest.mark.parametrize("name", RECORDS)
def test_the_critics_cost_is_twice_that_of_version_0_2_0(name):
    """Its settings were those of this version, and value_cost (g − v)² the critic's loss."""
    new = files.plain(earlier_versions.convert(RECORDS[name]["config"]))
    again = earlier_versions.convert(new)
    expected = copy.deepcopy(new)
    if name in ("impala", "a2c", "a2c_no_bootstrap", "frodo-actor_critic"):
        expected["rule"]["settings"]["value_cost"] *= 2
    if name.split("-")[0] == "learned_loss" or name == "frodo-actor_critic":
        expected["outer"]["value_cost"] *= 2
    assert again == expected


def test_the_targets_lambda_was_that_of_the_outer_return():
    config = converted(RECORDS["frodo-actor_critic"]["config"])
    assert config.rule.settings.vtrace_lambda == config.outer.lambda_ == 0.8


@pytest.mark.parametrize(("name", "setting"), [("frodo-value_based", "entropy_cost"), ("frodo-prediction", "epsilon")])
def test_a_setting_that_an_old_rule_ignored_is_left_out(name, setting):
    old = copy.deepcopy(RECORDS[name]["config"])
    old["rule"][setting] = 0.77
    assert converted(old).rule == converted(RECORDS[name]["config"]).rule


def test_a_setting_that_is_missing_is_named():
    old = {name: x for name, x in RECORDS["impala"]["config"].items() if name != "unroll"}
    with pytest.raises(KeyError, match="'unroll'"):
        earlier_versions.convert(old)
