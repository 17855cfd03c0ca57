"""Agents in `Trials` that are given as an object: they have a memory, and what cannot be tried again is refused."""

import gymnasium
import jax
import pytest

import frodo
from agents.environments.dm_env import DmEnvBatch
from frodo.regimes import online
from frodo.settings import presets
from toy_envs.bandit import Bandit
from toy_envs.base import DmEnv
from toy_envs.catch import Catch
from toy_envs.changing import Changing
from toy_envs.rule_room import RuleRoom

ROOMS = frodo.Trials(RuleRoom("main"), 4)
BANDIT = frodo.Trials(Bandit(2), 3)


@pytest.mark.parametrize("rule", ["frodo", "impala", "disco", "muesli", "ppo", "dqn", "q_learning"])
def test_settings_are_those_of_the_name(rule):
    of_name = presets.for_rule("trials/4/toy/rule_room/main", rule).agent_only()
    assert presets.for_trials(ROOMS, rule) == of_name
    assert bool(of_name.network.core) == (rule != "dqn")


@pytest.fixture
def settings(monkeypatch):
    """Return a function that says with which settings `discover_online` would live."""

    def live(environment, rule, **settings):
        monkeypatch.setattr(online, "_regime", lambda config, *_: config)
        monkeypatch.setattr(online, "_run", lambda regime, *_: regime)
        return frodo.discover_online(environment, rule, num_steps=1, key=jax.random.key(0), **settings)

    return live


def test_agents_have_a_memory_and_trajectories_are_whole_episodes(settings):
    for rule in ("impala", frodo.make_rule("impala"), frodo.make_rule("frodo", lstm=16)):
        config = settings(BANDIT, rule)
        assert (config.network.core, config.network.core_kind) == (128, "lstm")
        assert config.unroll == config.validation_unroll == BANDIT.horizon == 30 and config.batch_size == 64


def test_settings_that_are_given_win(settings):
    network = frodo.NetworkConfig("mlp", (8,))
    config = settings(BANDIT, "impala", network=network, unroll=7, batch_size=3)
    assert config.network == network and (config.unroll, config.batch_size) == (7, 3)
    transformer = frodo.NetworkConfig("mlp", (8,), core=8, core_kind="transformer", core_heads=2)
    rule = frodo.make_rule("impala")
    own = frodo.Rule(rule.name, rule.config.replace(network=transformer, unroll=11), rule.meta_params)
    config = settings(BANDIT, own)
    assert config.network == transformer and config.unroll == 11  # a memory of its own


def test_elsewhere_there_is_none(settings):
    assert settings(Catch(), "impala").network.core == 0
    assert settings(Catch(), frodo.make_rule("impala")).network.core == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: gymnasium.make("CartPole-v1"),
        lambda: DmEnv(Catch(), 0),
        lambda: DmEnvBatch([DmEnv(Catch(), 0)]),
        lambda: "toy/catch",
        lambda: None,
    ],
    ids=["gymnasium", "dm_env", "host", "name", "None"],
)
def test_what_is_not_pure_is_refused_by_one_line(make):
    for kind in (lambda given: frodo.Trials(given, 2), lambda given: Changing(given, "rewards", 5)):
        with pytest.raises(TypeError, match="^environment is a .*, expected a pure one, .*as_environment") as error:
            kind(make())
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("number", ["3", 2.5, True, -1])
def test_numbers_of_trials_that_are_none(number):
    with pytest.raises(ValueError, match=f"^num_trials is {number!r}, expected a whole number of at least 1$"):
        frodo.Trials(Catch(), number)
    with pytest.raises(ValueError, match=rf"^min_trials is {number!r}, expected 1 to num_trials \(4\)$"):
        frodo.Trials(Catch(), 4, number)


def test_what_is_right_is_right():
    assert frodo.Trials(frodo.as_environment("toy/catch"), 2).num_actions == 3
    assert frodo.CurriculumConfig("plr").kind == "plr"
