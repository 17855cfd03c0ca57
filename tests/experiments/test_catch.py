"""The comparisons on Catch."""

import pytest

from experiments.analyses import catch
from frodo.settings import presets


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("frodo", {"frodo", "a2c_no_bootstrap", "a2c"}),
        ("q", {"frodo_q", "q_learning"}),
        ("consistency", {"consistency_0", "consistency_0.1", "consistency_1"}),
        ("learned_loss", {f"{x}_{y}" for x in ("frodo", "learned_loss") for y in ("3e-05", "0.0001", "0.0003")}),
    ],
)
def test_catch_compares_what_differs_in_the_rule_or_its_rate_alone(rule, expected):
    configs = catch.make_configs(presets.catch(is_value_based=rule == "q"), rule)
    assert set(configs) == expected
    for name, config in configs.items():
        config.validate()
        assert config.optimizer == presets.catch().optimizer and config.network == presets.catch().network
        if rule == "learned_loss":
            assert config.meta_optimizer.learning_rate == float(name.rpartition("_")[2])
        if rule == "consistency":
            assert config.rule.settings.consistency_cost == float(name.rpartition("_")[2])
