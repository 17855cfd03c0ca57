"""Agents of rules, and environments, by their names."""

import jax
import pytest

from experiments.runs import settings
from frodo.rules.files import Origin, Rule, load_rule, shipped_rules
from frodo.runs.errors import UsageError
from frodo.settings import population_presets, presets


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
    config, path = population_presets.small("frodo").agent_only(), str(tmp_path / "rule.npz")
    rule = Rule("frodo", config)
    meta_params = rule.update_rule.random_meta_params(jax.random.key(0), 2)
    Rule("frodo", config, meta_params, Origin(("toy/catch",), 1, 1.0)).save(path)
    frozen = settings.configure_frozen("toy/catch/5x5", path)
    assert frozen.is_frozen and frozen.rule == config.rule and frozen.init_meta_params == path
    assert frozen.env == "toy/catch/5x5" and frozen.num_updates == 1 and not frozen.is_acting_interleaved
    online = settings.configure("toy/catch/5x5", "", path)
    assert not online.is_frozen and online.rule == config.rule and online.num_updates == config.num_updates
    random = settings.configure_frozen("toy/catch", "frodo")
    assert random.is_frozen and random.rule == presets.catch().rule and not random.init_meta_params


def test_a_rule_that_ships_is_known_by_its_name():
    assert {"catch_and_grids", "catch_disco"} <= set(shipped_rules())
    for name in shipped_rules():
        config = settings.configure_frozen("toy/catch/8x8", name)
        config.validate()
        assert config.rule == load_rule(name).config.rule and config.init_meta_params == name
        assert name in settings.DISCOVERED


def test_on_images_a_population_has_the_conv_net_and_clipped_rewards():
    config = settings.population("disco", ("atari/Pong", "atari/Breakout"))
    assert (config.network.torso, config.network.hidden, config.max_abs_reward) == ("conv", (512,), 1.0)
    assert config.network.action_model == population_presets.small("disco").network.action_model
    with pytest.raises(UsageError, match="--envs=toy/catch,atari/Pong: atari/Pong shows images and toy/catch does not"):
        settings.population("disco", ("toy/catch", "atari/Pong"))
