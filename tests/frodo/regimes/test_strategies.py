"""Evolution strategies for η: they climb, rank lives fairly, and a run goes on from within a generation."""

import os
import signal
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import frodo
from frodo.regimes import strategies
from frodo.regimes.strategies import Strategies, fitness_of, make_strategy
from frodo.settings.registry import make_update_rule
from frodo.settings.strategies import StrategyConfig
from tests.frodo.runs.test_driver import rows
from toy_envs.base import DmEnv
from toy_envs.catch import Catch

pytest.importorskip("evosax")
KEY = jax.random.key(0)
SETTINGS = dict(
    key=KEY,
    network=frodo.NetworkConfig("mlp", (4,)),
    batch_size=2,
    unroll=3,
    validation_unroll=3,
    epochs=2,
    minibatches=2,
    truncation=1,
    budgets=(60,),
    annealing=60,
)
TWO = StrategyConfig(2, size=4)
HOSTS = [DmEnv(Catch(4, 3), seed) for seed in range(2)]
RULE = dict(parts=("drift",), drift_units=2)


def find(num_meta_steps=2, environments=None, strategy=TWO, **how):
    rule = frodo.make_rule("corrected_ppo", **RULE)
    environments = environments or {"a": Catch(4, 3)}
    return frodo.discover(environments, rule, num_meta_steps=num_meta_steps, strategy=strategy, **SETTINGS | how)


@pytest.mark.parametrize("kind", ["open_es", "snes"])
def test_a_strategy_climbs_a_quadratic(kind):
    at = {"a": jnp.array([0.5, -0.3]), "b": jnp.array(0.2)}
    config = StrategyConfig(kind=kind, size=16, stddev=0.1, learning_rate=0.05)
    strategy, params = make_strategy(config, jax.tree.map(jnp.zeros_like, at))
    state = strategy.init(KEY, jax.tree.map(jnp.zeros_like, at), params)
    for key in jax.random.split(KEY, 60):
        candidates, state = strategy.ask(key, state, params)
        returns = -sum(
            np.sum(np.square(np.asarray(x - y)).reshape(16, -1), axis=1)
            for x, y in zip(jax.tree.leaves(candidates), jax.tree.leaves(at), strict=True)
        )
        state, _ = strategy.tell(key, candidates, jnp.asarray(fitness_of(returns[None])), state, params)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=0.06), strategy.get_mean(state), at)


def test_the_step_of_open_es_is_its_gradient_of_ranks():
    """Σ rankᵢ εᵢ / (n σ), the ranks from −½ to ½: Salimans et al. 2017, algorithm 1; Adam's first step is its sign."""
    strategy, params = make_strategy(StrategyConfig(size=6, stddev=0.3, learning_rate=0.1), jnp.zeros(3))
    state = strategy.init(KEY, jnp.ones(3), params)
    candidates, state = strategy.ask(KEY, state, params)
    change = np.asarray(candidates) - 1
    np.testing.assert_allclose(change[:3], -change[3:], atol=1e-6)
    returns = np.array([3.0, 1.0, np.nan, 8.0, 5.0, 2.0])
    after, _ = strategy.tell(KEY, candidates, jnp.asarray(fitness_of(returns[None])), state, params)
    ranks = np.array([3, 1, 0, 5, 4, 2]) / 5 - 0.5
    gradient = ranks @ (change / 0.3) / (6 * 0.3)
    np.testing.assert_allclose(after.opt_state[0].mu, -0.1 * gradient, rtol=1e-5)
    np.testing.assert_allclose(after.mean - 1, 0.1 * np.sign(gradient), rtol=1e-4)


def test_ranks_are_of_each_environment_whatever_its_scale():
    returns = np.array([[1.0, 2.0, 3.0], [300.0, 100.0, np.nan]])
    np.testing.assert_allclose(fitness_of(returns), [-2.0, -2.0, -2.0])


def test_where_no_episode_ends_late_in_life_whole_lives_are_ranked(capsys):
    nan = np.nan
    returns = np.array([[[1.0, 2.0], [3.0, nan]], [[1.0, 2.0], [nan, nan]], [[nan, nan], [nan, nan]]])
    np.testing.assert_array_equal(strategies.ranked(returns), [[3.0, nan], [1.0, 2.0], [nan, nan]])
    regime = types.SimpleNamespace(_names=("a", "b", "c"), _told=set())
    for _ in range(2):
        strategies.Generations._tell(regime, returns)
    said = [line for line in capsys.readouterr().err.splitlines() if "no episode ended" in line]
    assert len(said) == 2
    assert said[0].startswith(
        "b: no episode ended in the last tenth of a lifetime: those of whole lifetimes are ranked"
    )
    assert said[1].startswith("c: no episode ended in the last tenth of a lifetime: nothing is ranked there")


def test_the_lives_of_a_generation_are_those_of_single_agents():
    """A candidate's return is that of its η, frozen, in a life of its own; both of a pair have the same keys."""
    config = frodo.PopulationConfig(
        num_updates=1,
        rule=frodo.RuleConfig("corrected_ppo").replace(**RULE),
        strategy=StrategyConfig(1, size=4, stddev=0.5),
        **{name: x for name, x in SETTINGS.items() if name != "key"},
    )
    own = Strategies(config, [Catch(4, 3)])
    meta_params = make_update_rule(config.rule).random_meta_params(KEY, 3)
    state = begun = own.init(KEY, meta_params)
    keys = jax.random.key_data(begun.lifetimes[0].actor.key)
    np.testing.assert_array_equal(keys[:2], keys[2:])
    candidates, stops, found = begun.candidates, 0, None
    learner = strategies.build_learner(config, 3, is_frozen=True)
    program = strategies.make_online_program(learner, Catch(4, 3))
    one = jax.tree.map(lambda x: jnp.copy(x)[3], begun.lifetimes[0])
    while found is None:
        state, found = own.advance(state, stops)
        stops += 1
    assert own.env_steps(stops) == 4 * 60
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[3], y), candidates, one.learner.meta_params)
    _, metrics, _ = program.run(one, 10)
    np.testing.assert_allclose(found[0, 0, 3], metrics["return_sum"].sum() / metrics["episodes"].sum(), rtol=1e-6)
    last = np.asarray(metrics["episodes"])[-1]
    expected = metrics["return_sum"][-1] / last if last else np.nan
    np.testing.assert_allclose(found[0, 1, 3], expected, rtol=1e-6)


def stop_after(num, monkeypatch):
    """Let a signal stop a run in its `num`-th part; returns the parts that were begun."""
    advance, calls = Strategies.advance, []

    def stopped(self, state, stops):
        calls.append(stops)
        if len(calls) == num:
            os.kill(os.getpid(), signal.SIGINT)
        return advance(self, state, stops)

    monkeypatch.setattr(Strategies, "advance", stopped)
    return calls


def test_a_run_that_is_stopped_within_a_generation_goes_on_as_if_it_had_not(monkeypatch, tmp_path):
    monkeypatch.setattr(strategies, "PART_STEPS", 4 * 6 * 5)  # a life of ten iterations in two parts
    whole = find(0, folder=tmp_path / "whole")
    calls = stop_after(3, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        find(0, folder=tmp_path / "stopped")
    found = find(0, folder=tmp_path / "stopped")
    assert calls == [0, 1, 2, 3]
    assert rows(tmp_path / "stopped") == rows(tmp_path / "whole")
    jax.tree.map(np.testing.assert_array_equal, found.rule.meta_params, whole.rule.meta_params)


def test_meta_steps_come_first(monkeypatch, tmp_path):
    environments = {"a": Catch(4, 3), "b": Catch(3, 3)}
    whole = find(2, environments, folder=tmp_path / "whole")
    assert whole.metrics["lifetimes"].tolist() == [2, 2, 10, 18]
    assert np.isfinite(whole.metrics["outer_loss"]).tolist() == [True, True, False, False]
    assert whole.rule.origin.env_steps == 2 * 2 * 6 + 2 * 2 * 4 * 60
    stop_after(2, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        find(2, environments, folder=tmp_path / "stopped")
    found = find(2, environments, folder=tmp_path / "stopped")
    assert rows(tmp_path / "stopped") == rows(tmp_path / "whole")
    jax.tree.map(np.testing.assert_array_equal, found.rule.meta_params, whole.rule.meta_params)


def test_generations_alone_need_no_meta_step():
    found = find(0, strategy=StrategyConfig(1, "snes", size=4))
    assert found.metrics["lifetimes"].tolist() == [4]
    assert any(np.any(x) for x in jax.tree.leaves(found.rule.meta_params["drift"]["linear_1"]))


def test_several_processes_are_refused(monkeypatch):
    monkeypatch.setattr(strategies.jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="^strategy.generations is 2, expected 0 with several processes$"):
        Strategies(frodo.PopulationConfig(strategy=TWO), [Catch(4, 3)])


@pytest.mark.parametrize(
    "how, message",
    [
        (dict(strategy=StrategyConfig(1, size=3)), "^strategy.size is 3, expected an even number"),
        (dict(strategy=StrategyConfig(1, "cma")), "^strategy.kind is 'cma', expected one of open_es, snes$"),
        (dict(strategy=StrategyConfig(1, stddev=0.0)), "^strategy.stddev is 0.0, expected a positive number$"),
        (dict(budgets=(60, 90)), r"^budgets are \(60, 90\), expected a single one with strategy.generations$"),
        (
            dict(num_meta_steps=0, strategy=StrategyConfig()),
            "^num_meta_steps is 0, expected a whole number of at least 1$",
        ),
        (
            dict(strategy=StrategyConfig(0, size=4)),
            "^strategy.size is 4, but changes nothing: strategy.generations is 0$",
        ),
        (
            dict(strategy=StrategyConfig(1, "snes", learning_rate=1.0)),
            "^strategy.learning_rate is 1.0, but changes nothing: strategy.kind is 'snes'$",
        ),
        (
            dict(strategy=StrategyConfig(1, size=2 * 10**8)),
            "^at least .* bytes of memory are needed, and .* are there: make strategy.size smaller$",
        ),
        (dict(environments={"a": HOSTS}), "^environment 0 is stepped on the host, expected pure ones"),
    ],
)
def test_bad_input_is_named(how, message):
    with pytest.raises(ValueError, match=message):
        find(**how)
