"""What an environment shows that is not finite is named, by environment, step and field; nothing of it is silent."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import frodo
import frodo.regimes.population
from agents.environments.host import first_step
from experiments.runs import training
from frodo.regimes.population import AgentResults, Population, PopulationState
from frodo.runs.folders import RunOptions
from frodo.settings import presets
from toy_envs.base import Environment

INF = float("inf")
TINY = dict(batch_size=3, unroll=4, network=frodo.NetworkConfig("mlp", (4,)))
IN = {"reward": "reward was", "observation": r"observation\[0, 1\] was"}


class CountState(NamedTuple):
    num_steps: jax.Array
    is_bad: jax.Array  # the environment is the one that goes wrong


@dataclasses.dataclass(frozen=True)
class Count(Environment[CountState]):
    """Episodes of five steps; one of about three environments shows, after a number of steps, what is not finite."""

    field: str = "reward"
    value: float = float("nan")
    at: int = 6
    observation_shape, num_actions = (1, 2), 2

    def initial_state(self, key):
        return CountState(jnp.zeros((), jnp.int32), jax.random.bernoulli(key, 0.4))

    def restart(self, state):
        return state

    def bad(self, state, field):
        return jnp.where(state.is_bad & (state.num_steps == self.at) & (self.field == field), self.value, 0.0)

    def transition(self, state, action):
        state = state._replace(num_steps=state.num_steps + 1)
        return state, 1.0 * action + self.bad(state, "reward"), state.num_steps % 5 == 0, jnp.zeros((), bool)

    def observe(self, state):
        return jnp.stack([state.num_steps % 5 * 0.1, self.bad(state, "observation")])[None]


class CountOnHost(frodo.HostEnvironment):
    """The same on the host: its environment 1 goes wrong."""

    name, num_envs, observation_shape, observation_dtype, num_actions = "mine", 3, (1, 2), np.dtype(np.float32), 2

    def __init__(self, field="reward", value=float("nan"), at=6):
        self.field, self.value, self.at = field, value, at

    def shown(self):
        step = first_step(np.zeros((3, 1, 2), np.float32))
        if self.num_steps == self.at:
            (step.observation[:, 0, 1] if self.field == "observation" else step.reward)[1] = self.value
        return step

    def reset(self):
        self.num_steps = 0
        return self.shown()

    def step(self, actions):
        self.num_steps += 1
        return self.shown()._replace(valid=np.ones(3, bool), is_first=np.zeros(3, bool))

    def close(self):
        pass


def live(environment, rule="impala", num_steps=12 * 20, **settings):
    return frodo.discover_online(environment, rule, num_steps=num_steps, key=jax.random.key(1), **TINY | settings)


def is_bad():
    """Which environment of the batch goes wrong first, for the key of `live`."""
    program_key = jax.random.split(jax.random.key(1))[0]
    env_key = jax.random.split(program_key)[1]
    return int(np.argmax(jax.vmap(Count().initial_state)(jax.random.split(env_key, 3)).is_bad))


@pytest.mark.parametrize(("field", "value", "at"), [("reward", INF, 130), ("observation", -INF, 6)])
def test_a_pure_environment_is_run_again_and_named(field, value, at):
    """The program that is run pays nothing for it; step 130 is in the second of its iterations."""
    message = f"parameters are not finite: Count, number {is_bad()} of its batch: {IN[field]} {value} after step {at}, "
    with pytest.raises(FloatingPointError, match=message):
        live(Count(field, value, at), num_steps=12 * 110)


@pytest.mark.parametrize(
    ("field", "value", "at"), [("reward", np.nan, 6), ("observation", INF, 3), ("observation", INF, 0)]
)
def test_an_environment_on_the_host_is_named_as_soon_as_it_goes_wrong(field, value, at):
    message = f"^mine, number 1 of its batch: {IN[field]} {value} after step {at}, expected a finite number$"
    with pytest.raises(FloatingPointError, match=message):
        live(CountOnHost(field, value, at))


def test_infinite_rewards_that_are_clipped_do_no_harm():
    result = live(CountOnHost("reward", INF), max_abs_reward=1.0)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(result.params))
    result = live(Count("reward", INF), max_abs_reward=1.0)
    assert (
        all(np.all(np.isfinite(x)) for x in jax.tree.leaves(result.params)) and np.isinf(result.metrics["return"]).any()
    )
    with pytest.raises(FloatingPointError, match="reward was nan after step 6"):
        live(CountOnHost("reward", np.nan), max_abs_reward=1.0)


@pytest.mark.parametrize("environment", [Count(at=-1), CountOnHost("reward", 1.0)])
def test_only_where_environments_were_clean_is_a_learning_rate_spoken_of(environment):
    optimizer = frodo.adam(1e38)
    message = "not finite: all that the environments showed .*was finite, so try a smaller .*learning_rate"
    with pytest.raises(FloatingPointError, match=message):
        live(environment, optimizer=optimizer)


@pytest.mark.parametrize("seeds", [(0, 1)])
def test_a_program_names_it_too_and_which_seed_it_looked_at(seeds, tmp_path, capsys):
    config = presets.vector_observations("toy/count")
    config = presets.with_rule(config, "impala").replace(**TINY)
    make = lambda *_: Count("reward", float("nan"), 130)
    options = RunOptions(seeds, 12 * 400, str(tmp_path))
    with pytest.raises(FloatingPointError, match="toy/count, number . of its batch: reward was nan after step 130, "):
        training.train(config, options, experiment="e", name="n", make=make)
    assert "is run again from step 0 on" in capsys.readouterr().err


def test_in_a_population_an_agent_that_is_made_anew_is_told_once_by_its_environment(capsys, monkeypatch):
    """Of what a population returns, which here does not run."""

    class Ended(Population):
        num_steps = 0

        def init(self, meta_params=None):
            return PopulationState({}, (), (), ())

        def step(self, state):
            self.num_steps += 1
            is_finite = np.array([True, self.num_steps == 1])
            metrics = dict.fromkeys(("episodes", "return_sum", "outer_loss", "meta_gradient_norm"), np.zeros(2))
            counts = {"lifetimes": np.ones(2), "resets": np.array([0, self.num_steps - 1])}
            return state, [AgentResults(~is_finite, is_finite, metrics | counts)]

    monkeypatch.setattr(frodo.regimes.discovery, "Population", Ended)
    small = dict(batch_size=2, unroll=3, validation_unroll=3, num_updates=1, budgets=(10_000,))
    environments = {"good": Count(at=-1), "wrong": Count(at=-1)}
    found = frodo.discover(environments, "frodo", num_meta_steps=4, key=jax.random.key(0), **small)
    said = capsys.readouterr().err
    np.testing.assert_array_equal(found.metrics["resets"], [0, 1, 2, 3])
    assert said.count("agent 1, in wrong, is made anew") == 1 and "in good, is made anew" not in said
