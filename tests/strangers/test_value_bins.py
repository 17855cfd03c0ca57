"""Bins of values fit what an environment can pay, and a run says where they do not."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import frodo
import frodo.settings.value_bins
from agents.environments.host import first_step
from agents.environments.names import make_environment
from agents.rules.categorical import bin_shares
from experiments.runs import training
from frodo.runs.folders import RunOptions
from frodo.settings import presets
from frodo.settings.value_bins import STAYS, BinWatch, Seen, measure, with_bins
from toy_envs import names as toys
from toy_envs.catch import Catch

TINY = dict(
    batch_size=2,
    unroll=4,
    network=frodo.NetworkConfig("mlp", (4,), action_model=4),
    replay=frodo.ReplayConfig(),
)


class Strange(Catch):
    """Catch that does not tell its rewards, and pays ten times as much."""

    reward_range = None

    def transition(self, state, action):
        state, reward, terminated, truncated = super().transition(state, action)
        return state, 10 * reward, terminated, truncated


class OnHost(frodo.HostEnvironment):
    """Pays 10 at the end of episodes of four steps, with same-step reset."""

    num_envs, observation_shape, observation_dtype, num_actions = 2, (1,), np.dtype(np.float32), 3

    def reset(self):
        self.num_steps = 0
        return first_step(np.zeros((2, 1), np.float32))

    def step(self, actions):
        self.num_steps += 1
        is_over = np.full(2, self.num_steps % 4 == 0)
        step = first_step(np.zeros((2, 1), np.float32))
        return step._replace(reward=10 * is_over, discount=1.0 - is_over, is_first=is_over, valid=~is_over | is_over)

    def close(self):
        pass


def max_value(env, environment=None, **settings):
    config = presets.for_rule(env, "muesli").replace(**settings)
    return with_bins(config, environment or make_environment(env, 2, 0)).rule.settings.max_value


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ("trials/4/toy/rule_room/main", 2),  # 1/12 · (1 − .97⁴⁸) / .03, of which h is .77: the least there is
        ("trials/4/toy/bandit/2", 4),  # 23.5
        ("toy/catch/5x5", 10),  # 1 / (1 − .99), of which h is 9.15
        ("changing/rewards/2000/toy/catch", 10),
        ("toy/rule_room/main", 3),  # 1/12 / (1 − .99): an end by time is bootstrapped through
        ("toy/catch", 2),  # without discount, of episodes that are measured
    ],
)
def test_bins_are_as_many_as_the_rewards_ask_for(env, expected):
    assert max_value(env) == expected


@pytest.mark.parametrize("name", ["catch", "random_walk", "grid_world/3", "bandit/2", "rule_room/mixed"])
def test_no_reward_is_beyond_the_range_that_an_environment_tells(name):
    environment = toys.make(name)
    low, high = environment.reward_range
    rewards, *_ = frodo.settings.value_bins._play(environment)
    assert low - 1e-6 <= rewards.min() and rewards.max() <= high + 1e-6 and low < high
    changing = make_environment(f"changing/rewards/50/toy/{name}", 1, 0).reward_range
    assert changing == (-max(-low, high), max(-low, high))
    assert make_environment(f"trials/2/toy/{name}", 1, 0).reward_range == (low, high)


def test_what_is_given_wins_and_clipped_rewards_are_small():
    config = presets.for_rule("toy/catch", "muesli")
    given = config.replace(rule=config.rule.replace(max_value=7))
    assert with_bins(given, Strange()) is given
    impala = presets.for_rule("toy/catch", "impala")
    assert with_bins(impala, Strange()) is impala
    assert presets.for_rule("toy/catch", "disco").rule.settings.max_value == 300
    assert max_value("toy/catch/5x5", Strange(5, 5), max_abs_reward=0.1) == 3  # 10


@pytest.mark.parametrize("host", [False, True])
def test_what_an_environment_does_not_tell_is_measured_by_random_play(host, capsys):
    environment = OnHost() if host else Strange(5, 5)
    assert measure(environment, 0.5) == Seen(10.0, 10.0, 4)
    rule = presets.for_rule("", "muesli").rule.replace(discount=1.0)
    assert max_value("toy/catch/5x5", environment, rule=rule) == 6
    assert "rule.max_value is 6, for returns up to 40" in capsys.readouterr().err


def test_measured_bins_go_no_farther_than_usual_unless_returns_do(monkeypatch):
    for seen, expected in ((Seen(100.0, 200.0, 50), 30), (Seen(100.0, 1000.0, 50), 67), (Seen(1.0, 0.0, 256), 10)):
        monkeypatch.setattr(frodo.settings.value_bins, "measure", lambda *_, seen=seen: seen)
        assert max_value("toy/catch/5x5", Strange(5, 5)) == expected


@pytest.mark.long
def test_the_library_and_programs_write_what_was_found_and_resume_measures_nothing(tmp_path, monkeypatch):
    rule = frodo.make_rule("muesli", model_steps=1)
    result = frodo.discover_online(Catch(4, 3), rule, num_steps=16, key=jax.random.key(0), **TINY)
    assert result.learner.config.rule.settings.max_value == result.rule.config.rule.settings.max_value == 14
    assert np.all(result.metrics["value_bin_share"] > 0) and np.all(result.metrics["value_bin_share"] <= 1)

    config = presets.for_rule("toy/catch/4x3", "muesli").replace(**TINY)
    config = config.replace(rule=config.rule.replace(discount=1.0, model_steps=1))
    run = lambda steps, **how: training.train(
        config, RunOptions((0,), steps, str(tmp_path), **how), experiment="online", name="muesli"
    )
    run(16)
    written = json.loads((tmp_path / "config.json").read_bytes())["config"]["rule"]["settings"]
    assert written["max_value"] == 2
    monkeypatch.setattr(frodo.settings.value_bins, "measure", lambda *_: pytest.fail("measured again"))
    run(32, resume=True)


def test_the_share_of_the_fullest_bin_is_that_of_valid_steps():
    x, valid = jnp.array([[0.0, 3.0], [0.0, 99.0]]), jnp.array([[True, True], [True, False]])
    h = np.sqrt(4.0) - 1 + 0.003
    np.testing.assert_allclose(bin_shares(x, valid, 5), [0, 0, 2 / 3, (2 - h) / 3, (h - 1) / 3], atol=1e-5)
    np.testing.assert_array_equal(bin_shares(x, valid & False, 5), 0)


def test_a_run_says_once_that_nearly_all_values_are_in_one_bin(capsys):
    watch = BinWatch()
    watch.look({"return": np.ones(1000)})
    for _ in range(3):  # it falls in between
        watch.look({"value_bin_share": np.append(np.full(STAYS - 1, 0.95), 0.8)})
    watch.look({"value_bin_share": np.stack([np.ones(2 * STAYS), np.zeros(2 * STAYS)])})  # of two lives one has not
    assert capsys.readouterr().err == ""
    for _ in range(3):
        watch.look({"value_bin_share": np.full(STAYS, 0.95)})
    said = capsys.readouterr().err
    assert said.count("value_bin_share was above 0.9 for 200 updates") == 1 and said.count("\n") == 1
