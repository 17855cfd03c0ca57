"""Craftax-Classic by the pure contract: its own steps, ends by time told from deaths, and bad names."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("craftax")

from agents.environments.craftax import CLASSIC, make_craftax  # noqa: E402
from agents.environments.gymnax import GymnaxState  # noqa: E402
from agents.environments.names import is_pure, make_environment  # noqa: E402
from tests.agents.environments.test_gymnax import played  # noqa: E402
from toy_envs.base import step_batch  # noqa: E402

NUM_STEPS, LAVA = 400, 14


@pytest.fixture(scope="module")
def environment():
    return make_craftax(CLASSIC)


@pytest.fixture(scope="module")
def own():
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


def test_only_episodes_that_begin_are_drawn(environment, step):
    """Where one of two ended, its new world is that of `restart`, and the other's state is what it was."""
    states, _ = jax.vmap(environment.init)(jax.random.split(jax.random.key(1), 2))
    expected = jax.jit(environment.restart)(at(states, 0))
    new, shown = step(states, jnp.zeros(2, jnp.int32), jnp.array([True, False]))
    np.testing.assert_array_equal(new.state.map[0], expected.state.map)
    np.testing.assert_array_equal(shown.is_first, [True, False])
    np.testing.assert_array_equal(new.state.timestep, [0, 1])
    program = jax.make_jaxpr(lambda *x: step_batch(environment, *x))(
        states, jnp.zeros(2, jnp.int32), jnp.zeros(2, bool)
    )
    assert environment.is_restart_slow and "scan" in str(program)


def test_an_object_of_craftax_is_taken(own):
    import frodo

    taken = frodo.as_environment(own)
    assert taken.observation_shape == (1345,) and taken.num_actions == 17
    assert frodo.as_environment((own, own.default_params.replace(max_timesteps=5))).num_actions == 17


def test_one_environment_for_all_of_an_id_and_a_bad_one_is_one_line():
    one, other = (make_environment(f"craftax/{CLASSIC}", num_envs, 0) for num_envs in (2, 3))
    assert one is other and one.program is one and is_pure(f"craftax/{CLASSIC}")
    with pytest.raises(ValueError, match=f"expected craftax/<Id>, the nearest match is 'craftax/{CLASSIC}'"):
        make_environment("craftax/Craftax-Symbolic-v1", 1, 0)


def test_without_craftax_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "craftax", None)
    with pytest.raises(ImportError, match=r"^craftax/\.\.\. needs craftax .*: pip install 'frodo-rl\[craftax\]'$"):
        make_environment(f"craftax/{CLASSIC}", 1, 0)
