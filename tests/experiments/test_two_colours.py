"""The comparisons on two colours and on Discounting Chain."""

import dataclasses

import numpy as np
import pytest

from experiments import discounting_chain
from experiments.analyses import two_colours
from experiments.results.plots import Series
from frodo.settings import presets


@pytest.mark.parametrize("rule", ["self_tuned", "frodo", "a2c"])
def test_two_colours_compares_what_differs_in_the_rule_and_its_objective_alone(rule):
    preset = presets.two_colours()
    configs = two_colours.make_configs(preset, rule)
    for config in configs.values():
        config.validate()
        assert config.optimizer == preset.optimizer and config.network == preset.network
        assert (config.batch_size, config.unroll) == (1, 16)
        settings = config.rule.settings
        assert (settings.discount, settings.value_cost, settings.reduction) == (0.99, 1.0, "mean")
        assert getattr(settings, "lambda_", getattr(settings, "vtrace_lambda", None)) == 0.0
    assert set(two_colours.LABELS) >= (set(configs) if rule != "a2c" else set())
    constants = [config.rule.settings.entropy_cost for config in configs.values() if not config.rule.entry.is_learned]
    assert rule != "a2c" or len(constants) == len(configs) == 9


def test_discounting_chain_compares_critics_and_objectives_alone():
    preset = presets.discounting_chain()
    configs = discounting_chain.make_configs(preset)
    assert set(configs) == set(discounting_chain.LABELS)
    kinds = set()
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
    np.testing.assert_allclose(found.y, [rows + 10.0])
