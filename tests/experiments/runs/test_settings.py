"""Agents of rules, and environments, by their names."""

import numpy as np
import pytest

from experiments import rules
from experiments.population_config import small
from experiments.runs import settings
from experiments.runs.errors import UsageError
from frodo.rule import make_rule


def test_ranges_of_environments():
    assert settings.parse_envs("toy/catch, toy/grid_world/3-5") == (
        "toy/catch",
        *(f"toy/grid_world/{i}" for i in (3, 4, 5)),
    )
    with pytest.raises(ValueError, match="grid_world/57"):
        settings.parse_envs("toy/grid_world/56-57")
    with pytest.raises(UsageError):
        settings.parse_envs("")


def test_the_agent_of_a_frozen_rule_updates_on_each_trajectory_as_it_comes(tmp_path):
    config, path = small("frodo").agent, tmp_path / "rule.npz"
    meta_params = make_rule(config.rule).init_meta_params(np.array([0, 0], np.uint32), 2)
    rules.save(path, config, meta_params, rules.Origin(("toy/catch",), 1, 1.0))
    frozen = settings.configure_frozen(str(path), "toy/catch/5x5")
    assert frozen.is_frozen and frozen.rule == config.rule and frozen.init_meta_params == str(path)
    assert frozen.env == "toy/catch/5x5" and frozen.num_updates == 1 and not frozen.is_acting_in_turn
    online = settings.configure("toy/catch/5x5", "", str(path))
    assert not online.is_frozen and online.rule == config.rule and online.num_updates == config.num_updates
