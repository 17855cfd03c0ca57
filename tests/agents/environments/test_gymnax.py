"""gymnax's environments by the pure contract: their own steps, ends by time told from terminations, and bad names."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

gymnax = pytest.importorskip("gymnax")

from agents.environments.gymnax import GymnaxEnvironment, GymnaxState, make_gymnax  # noqa: E402
from agents.environments.names import is_pure, make_environment  # noqa: E402
from tests.toy_envs.stepping import run  # noqa: E402

IDS = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Breakout-MinAtar", "Freeway-MinAtar")


def played(environment, num_steps, seed=0):
    """Random play of one environment in one program: the states and time steps after each step, and the actions."""

    @jax.jit
    def play(key):
        reset_key, key = jax.random.split(key)
        state, _ = environment.init(reset_key)
        actions = jax.random.randint(key, (num_steps,), 0, environment.num_actions)
        _, steps, after = run(environment, state, actions)
        before = jax.tree.map(lambda x, xs: jnp.concatenate([x[None], xs[:-1]]), state, after)
        return (before, after, steps), actions

    return jax.device_get(play(jax.random.key(seed)))


@pytest.mark.parametrize("env_id", IDS)
def test_steps_are_gymnaxs_own(env_id):
    environment, (own, params) = make_gymnax(env_id), gymnax.make(env_id)
    (before, after, shown), actions = played(environment, 60)
    at = lambda tree, t: jax.tree.map(lambda x: x[t], tree)
    step = jax.jit(own.step_env)
    for t in range(60):
        state: GymnaxState = at(before, t)
        observation, new, reward, terminated, _ = step(jax.random.split(state.key)[1], state.state, actions[t], params)
        np.testing.assert_allclose(shown.reward[t], reward)
        assert shown.discount[t] == 1 - terminated and not shown.truncated[t] and shown.valid[t]
        if terminated:
            assert shown.is_first[t] and after.state.time[t] == 0
        else:
            np.testing.assert_allclose(shown.observation[t], observation, rtol=1e-5, atol=1e-6)
            jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), at(after.state, t), new)
    assert shown.observation.dtype == np.float32 and shown.observation.shape[1:] == environment.observation_shape


def test_an_end_by_time_is_a_truncation_and_a_termination_is_none():
    environment = GymnaxEnvironment(*gymnax.make("MountainCar-v0"))  # random play never gets to the top
    limit = environment._params.max_steps_in_episode
    (_, after, shown), _ = played(environment, 2 * limit + 5)
    ends = np.flatnonzero(shown.truncated)
    np.testing.assert_array_equal(ends, [limit - 1, 2 * limit])
    np.testing.assert_array_equal(np.flatnonzero(shown.is_first), ends + 1)
    np.testing.assert_array_equal(shown.valid, ~shown.is_first)
    assert np.all(shown.discount == 1) and np.all(after.state.time[ends + 1] == 0)
    np.testing.assert_array_equal(after.state.time[ends], limit)  # whose observation is shown
    np.testing.assert_array_equal(shown.observation[ends, 0], after.state.position[ends])

    (_, _, shown), _ = played(make_gymnax("CartPole-v1"), 200)  # falls long before the limit of 500
    ends = np.flatnonzero(shown.is_first)
    assert len(ends) > 3 and not np.any(shown.truncated) and np.all(shown.valid)
    np.testing.assert_array_equal(np.flatnonzero(shown.discount == 0), ends)


def test_a_termination_at_the_time_limit_is_a_termination():
    environment = make_gymnax("CartPole-v1")
    state, _ = environment.init(jax.random.key(0))
    limit = environment._params.max_steps_in_episode
    for theta, is_over in ((0.0, False), (1.0, True)):
        last = state._replace(state=state.state.replace(time=jnp.int32(limit - 1), theta=jnp.float32(theta)))
        shown = environment.step(last, jnp.int32(0), False)[1]
        assert bool(shown.is_first) == is_over and bool(shown.valid)
        assert (shown.discount == 0, bool(shown.truncated)) == (is_over, not is_over)


def test_episodes_and_environments_differ_and_the_same_key_gives_the_same():
    environment = make_gymnax("Acrobot-v1")
    (_, _, one), _ = played(environment, 30)
    (_, _, again), _ = played(environment, 30)
    (_, _, other), _ = played(environment, 30, seed=1)
    np.testing.assert_array_equal(one.observation, again.observation)
    assert not np.allclose(one.observation, other.observation)
    (_, _, shown), _ = played(make_gymnax("CartPole-v1"), 200)
    starts = shown.observation[shown.is_first]
    assert len(np.unique(starts[:, 0])) == len(starts)


def test_one_environment_for_all_of_an_id():
    one, other = (make_environment("gymnax/Breakout-MinAtar", num_envs, 0) for num_envs in (2, 3))
    assert one is other and one.program is one and is_pure("gymnax/Breakout-MinAtar") and not is_pure("atari/Pong")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gymnax/Breakot-MinAtar", "expected gymnax/<Id>, the nearest match is 'gymnax/Breakout-MinAtar'"),
        ("gymnax/Pendulum-v1", "'gymnax/Pendulum-v1' is not supported: .* discrete actions, got Box and Box"),
        ("gymnax/FrozenLake-misc", "a single-array observation and discrete actions, got Discrete and Discrete"),
    ],
)
def test_a_bad_name_is_one_line(name, message):
    with pytest.raises(ValueError, match=message) as error:
        make_environment(name, 1, 0)
    assert "\n" not in str(error.value)


def test_without_gymnax_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnax", None)
    with pytest.raises(ImportError, match=r"^gymnax/\.\.\. needs gymnax .*: pip install 'frodo-rl\[gymnax\]'$"):
        make_environment("gymnax/CartPole-v1", 1, 0)
    with pytest.raises(ValueError, match="the nearest match is"):
        make_environment("gimnax/CartPole-v1", 1, 0)


def test_gymnax_is_imported_where_it_is_used():
    check = "import sys, agents.environments.names; print({'gymnax', 'flax'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True).stdout == "set()\n"
