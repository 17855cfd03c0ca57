"""The comparisons of online meta-gradients: two colours, Discounting Chain, a tuned discount, FRODO on Catch."""

import dataclasses

import jax
import numpy as np
import pytest

from experiments import discount, discounting_chain
from experiments.analyses import catch, two_colours
from experiments.results.plots import Series
from frodo.runs.errors import UsageError
from frodo.settings import presets
from meta.targets.self_tuned import self_tuned


@pytest.mark.parametrize("rule", ["self_tuned", "frodo", "a2c"])
def test_two_colours_compares_what_differs_in_the_rule_and_its_objective_alone(rule):
    preset = presets.two_colours()
    configs = two_colours.make_configs(preset, rule)
    clipped = dataclasses.replace(preset.optimizer, max_gradient_norm=5.0)
    for config in configs.values():
        config.validate()
        assert config.optimizer == (clipped if rule == "frodo" else preset.optimizer)
        assert config.network == preset.network
        assert (config.batch_size, config.unroll) == (1, 16)
        settings = config.rule.settings
        assert (settings.discount, settings.value_cost, settings.reduction) == (0.99, 1.0, "mean")
        assert getattr(settings, "lambda_", getattr(settings, "vtrace_lambda", None)) == 0.0
    if rule == "self_tuned":
        mg, bmg = configs["mg"], configs["bmg"]
        assert mg.num_updates == bmg.num_updates == 15 and bmg.outer.target_updates == 9  # K = 7, L = 9
        assert (mg.outer.entropy_cost, bmg.outer.entropy_cost) == (0.12, 0.0)
        assert (mg.meta_optimizer.epsilon, bmg.meta_optimizer.epsilon * 16) == (1e-4, 1e-4)  # there KL is a sum
        schedule = configs["a2c_schedule"].rule.settings
        assert schedule.entropy_updates * 16 == 2_000_000
    assert set(two_colours.LABELS) >= (set(configs) if rule != "a2c" else set())
    constants = [config.rule.settings.entropy_cost for config in configs.values() if not config.rule.entry.is_learned]
    assert rule != "a2c" or len(constants) == len(configs) == 10


def test_discounting_chain_compares_critics_and_objectives_alone():
    preset = presets.discounting_chain()
    configs = discounting_chain.make_configs(preset)
    assert set(configs) == set(discounting_chain.LABELS)
    kinds = set()
    constant = configs.pop("constant")
    constant.validate()
    assert constant.is_frozen and constant.rule.settings.discount == 1.0
    assert constant.replace(rule=preset.rule, is_frozen=False) == preset
    weight = self_tuned(constant.rule.settings).random_meta_params(jax.random.key(0), 5)["policy_cost"]
    np.testing.assert_allclose(weight, 0.0, atol=1e-6)  # whose sigmoid is half of its range: 1
    for config in configs.values():
        config.validate()
        kinds.add((config.outer.is_bootstrapped, config.outer.critic))
        outer = dataclasses.replace(config.outer, is_bootstrapped=False, critic="head")
        assert dataclasses.replace(config, outer=outer) == preset
    assert kinds == {(x, y) for x in (False, True) for y in ("agent", "head")}


def test_a_cycle_is_the_mean_over_the_times_since_the_rewards_changed():
    x = np.arange(1, 41) * 50.0
    found = two_colours.by_cycle(Series("", x, np.arange(40.0)[None]), period=1000)
    np.testing.assert_allclose(found.x, np.arange(50, 1000, 100))
    rows = np.arange(20).reshape(10, 2).mean(axis=1)
    np.testing.assert_allclose(found.y, [rows + 20.0])  # of the second half, from the 20th row on
    late = two_colours.by_cycle(Series("", x + 20.0, np.arange(40.0)[None]), period=1000)
    assert late.y[0, 0] == 20.5 and late.y[0, -1] == 38.0  # rows 19 and 39 are of both sides of a change, and left out


@pytest.mark.parametrize("env", ["gymnax/Breakout-MinAtar", "toy/catch/5x5"])
def test_a_tuned_discount_is_compared_with_constants_of_the_same_agent_at_as_many_steps(env):
    preset = presets.tuned_discount(env)
    configs = discount.make_configs(preset, discount.constants(["0.8", "0.99"]))
    assert list(configs) == ["tuned", "tuned_no_value_loss", "tuned_outer_critic", "constant_0.8", "constant_0.99"]
    for name, config in configs.items():
        config.validate()
        is_meta, own = name in discount.TUNED, config.rule.settings
        steps, trajectories = config.num_env_steps(is_meta), config.num_trajectories(10_000, is_meta)
        assert (steps, trajectories) == (256, 10_000 / 256)  # one update each
        assert config.network == preset.network and config.optimizer == preset.optimizer
        same = ("lambda_", "value_cost", "entropy_cost", "reduction")
        assert all(getattr(own, x) == getattr(preset.rule.settings, x) for x in same)
        assert own.discount == (float(name.partition("_")[2]) if "constant" in name else 0.8)
    with pytest.raises(UsageError, match="--discounts=0.9,high: 'high' is no number"):
        discount.constants(["0.9", "high"])


def test_catch_compares_outer_objectives_of_the_same_frodo():
    configs = catch.make_configs(presets.catch(), "outer")
    for name, config in configs.items():
        config.validate()
        assert config.replace(outer=presets.catch().outer) == presets.catch() and catch.label(name)
    kinds = {(x.outer.critic, x.outer.is_bootstrapped, x.outer.value_cost) for x in configs.values()}
    assert len(kinds) == len(configs) == 6


def test_the_weight_of_a_schedule_falls_to_its_end():
    config = presets.two_colours()
    steps = np.array([0.0, 1e6, 2e6, 6e6])
    scheduled = two_colours.known_weight(two_colours.a2c(config, 0.5, 0.1), steps)
    np.testing.assert_allclose(scheduled, [[0.5, 0.3, 0.1, 0.1]])
    np.testing.assert_allclose(two_colours.known_weight(two_colours.a2c(config, 0.2), steps), np.full((1, 4), 0.2))
