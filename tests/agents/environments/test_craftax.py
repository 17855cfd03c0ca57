"""Craftax-Classic by the pure contract: its own steps, ends by time told from deaths, and bad names."""

import dataclasses
import sys
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.environments.craftax import CLASSIC, make_craftax
from agents.environments.gymnax import GymnaxEnvironment, GymnaxState
from agents.environments.names import is_pure, make_environment
from toy_envs.base import Array, step_batch

NUM_STEPS, LAVA = 400, 14


class Health(NamedTuple):
    health: Array
    timestep: Array


@dataclasses.dataclass
class Params:
    max_timesteps: int = 5

    replace = dataclasses.replace


class Small:
    """An environment of craftax's interface. Action 1 costs health, of which there are 3 and a part that is drawn."""

    name, default_params = "Small-v1", Params()

    def observation_space(self, params):
        return SimpleNamespace(shape=(2,))

    def action_space(self, params):
        return SimpleNamespace(n=2)

    def reset_env(self, key, params):
        state = Health(3 + jax.random.uniform(key, minval=-1.0, maxval=0.0), 0)
        return jnp.stack(state), state

    def step_env(self, key, state, action, params):
        state = Health(state.health - action, state.timestep + 1)
        return jnp.stack(state), state, 1.0, self.is_terminal(state, params), {}

    def is_terminal(self, state, params):
        return (state.timestep >= params.max_timesteps) | (state.health <= 0)


def test_both_kinds_of_end_in_craftaxs_interface():
    environment = GymnaxEnvironment(Small())
    step = jax.jit(lambda *state_action_after: step_batch(environment, *state_action_after))
    state, first = jax.vmap(environment.init)(jax.random.split(jax.random.key(0), 4))
    starts, no = np.asarray(first.observation[:, 0]), np.zeros(4, bool)
    assert np.all((2 <= starts) & (starts < 3))
    actions = np.zeros((6, 4), np.int32)
    actions[2:5, 0] = 1  # dies at the limit
    actions[:3, 1] = 1  # dies before
    after, shown = no, []
    for t in range(6):
        before = state
        state, one = step(state, actions[t], after)
        shown.append(jax.device_get(one))
        for i in np.flatnonzero(one.is_first):  # and only there another start is drawn
            moved = before._replace(
                key=before.key if after[i] else jax.vmap(lambda k: jax.random.split(k)[0])(before.key)
            )
            begun = environment.restart(jax.tree.map(lambda x, i=i: x[i], moved))
            np.testing.assert_allclose(one.observation[i], begun.observation)
        after = one.truncated
    at = lambda name: np.array([getattr(one, name) for one in shown])
    np.testing.assert_array_equal(np.argwhere(at("discount") == 0), [[2, 1], [4, 0]])
    np.testing.assert_array_equal(np.argwhere(at("truncated")), [[4, 2], [4, 3]])
    np.testing.assert_array_equal(np.argwhere(at("is_first")), [[2, 1], [4, 0], [5, 2], [5, 3]])
    np.testing.assert_array_equal(np.argwhere(~at("valid")), [[5, 2], [5, 3]])
    np.testing.assert_array_equal(shown[4].observation[2:], np.stack([starts[2:], [5, 5]], axis=1))  # its own last one
    np.testing.assert_array_equal(
        at("observation")[..., 1], [[1] * 4, [2] * 4, [3, 0, 3, 3], [4, 1, 4, 4], [0, 2, 5, 5], [1, 3, 0, 0]]
    )


@pytest.mark.parametrize("is_slow", [True, False])
def test_where_a_restart_is_slow_only_what_begins_is_made(is_slow):
    environment, starts = GymnaxEnvironment(Small()), []
    assert environment.is_restart_slow
    environment.is_restart_slow = is_slow
    begin = environment.restart

    def restart(state):
        jax.debug.callback(lambda _: starts.append(1), state.state.health)
        return begin(state)

    environment.restart = restart
    states, _ = jax.vmap(environment.init)(jax.random.split(jax.random.key(0), 4))
    step = jax.jit(lambda state, after: step_batch(environment, state, jnp.zeros(4, jnp.int32), after))
    for after in ([False] * 4, [False, True, False, True]):
        jax.block_until_ready(step(states, jnp.array(after)))
    jax.effects_barrier()
    assert len(starts) == (2 if is_slow else 4)


@pytest.fixture(scope="module")
def environment():
    pytest.importorskip("craftax")
    return make_craftax(CLASSIC)


@pytest.fixture(scope="module")
def own():
    pytest.importorskip("craftax")
    from craftax.craftax_classic.envs.craftax_symbolic_env import CraftaxClassicSymbolicEnv

    return CraftaxClassicSymbolicEnv()


@pytest.fixture(scope="module")
def own_step(own):
    return jax.jit(lambda key, state, action: own.step_env(key, state, action, own.default_params))


@pytest.fixture(scope="module")
def step(environment):
    """Steps of a batch of two."""
    return jax.jit(lambda state, action, is_after: step_batch(environment, state, action, is_after))


def at(tree, t):
    return jax.tree.map(lambda x: x[t], tree)


def test_steps_are_craftaxs_own(environment, own_step):
    from tests.agents.environments.test_gymnax import played

    (before, after, shown), actions = played(environment, NUM_STEPS)
    ends = np.flatnonzero(shown.is_first)
    assert len(ends) and not np.any(shown.truncated) and np.all(shown.valid)  # deaths, long before the limit
    for t in range(NUM_STEPS):
        state: GymnaxState = at(before, t)
        observation, new, reward, is_over, _ = own_step(jax.random.split(state.key)[1], state.state, actions[t])
        np.testing.assert_allclose(shown.reward[t], reward, rtol=1e-6)
        assert shown.discount[t] == 1 - is_over and shown.is_first[t] == is_over
        if is_over:
            assert after.state.timestep[t] == 0 and after.state.player_health[t] == 9
        else:
            np.testing.assert_allclose(shown.observation[t], observation, rtol=1e-6)
            assert after.state.timestep[t] == new.timestep
    assert shown.observation.dtype == np.float32 and shown.observation.shape[1:] == environment.observation_shape
    assert environment.observation_shape == (1345,) and environment.num_actions == 17
    assert len(np.unique(shown.reward)) > 2


def test_an_end_by_time_is_a_truncation_and_a_death_is_none(environment, own, own_step, step):
    states, _ = jax.vmap(environment.init)(jax.random.split(jax.random.key(0), 2))
    limit = own.default_params.max_timesteps
    assert limit == 10_000
    inner = states.state
    x, y = np.asarray(inner.player_position[1])
    places = inner.map.at[1, x - 1 : x + 2, y - 1 : y + 2].set(LAVA)
    last = states._replace(state=inner.replace(map=places, timestep=jnp.full(2, limit - 1, jnp.int32)))
    noop_and_left = jnp.array([0, 1])
    new, shown = step(last, noop_and_left, jnp.zeros(2, bool))
    np.testing.assert_array_equal(shown.truncated, [True, False])  # the other steps into lava at the limit
    np.testing.assert_array_equal(shown.discount, [1, 0])
    np.testing.assert_array_equal(shown.is_first, [False, True])
    np.testing.assert_array_equal(new.state.timestep, [limit, 0])
    key = jax.random.split(last.key[0])[1]
    observation, _, _, is_over, _ = own_step(key, at(last.state, 0), 0)
    assert is_over
    np.testing.assert_allclose(shown.observation[0], observation, rtol=1e-6)  # the episode's own last one

    after, shown = step(new, noop_and_left, shown.truncated)
    np.testing.assert_array_equal(shown.valid, [False, True])
    np.testing.assert_array_equal(shown.is_first, [True, False])
    np.testing.assert_array_equal(after.state.timestep, [0, 1])
    np.testing.assert_array_equal(shown.reward[0], 0)
    assert np.any(np.asarray(after.state.map[0]) != np.asarray(inner.map[0]))  # another world


def test_an_object_of_craftax_is_taken(own):
    import frodo

    taken = frodo.as_environment(own)
    assert taken.observation_shape == (1345,) and taken.num_actions == 17
    assert frodo.as_environment((own, own.default_params.replace(max_timesteps=5))).num_actions == 17


def test_one_environment_for_all_of_an_id_and_a_bad_one_is_one_line():
    pytest.importorskip("craftax")
    one, other = (make_environment(f"craftax/{CLASSIC}", num_envs, 0) for num_envs in (2, 3))
    assert one is other and one.program is one and is_pure(f"craftax/{CLASSIC}")
    with pytest.raises(ValueError, match=f"expected craftax/<Id>, the nearest match is 'craftax/{CLASSIC}'"):
        make_environment("craftax/Craftax-Symbolic-v1", 1, 0)


def test_without_craftax_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "craftax", None)
    with pytest.raises(ImportError, match=r"^craftax/\.\.\. needs craftax .*: pip install 'frodo-rl\[craftax\]'$"):
        make_environment(f"craftax/{CLASSIC}", 1, 0)
