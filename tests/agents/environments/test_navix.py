"""navix's environments by the pure contract: their own steps, ends by time told from terminations, and bad names."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

navix = pytest.importorskip("navix")

from agents.environments.names import is_pure, make_environment  # noqa: E402
from agents.environments.navix import LARGEST, NavixEnvironment, make_navix  # noqa: E402
from tests.agents.environments.test_gymnax import played  # noqa: E402


@pytest.mark.parametrize("env_id", ["Navix-DoorKey-5x5-v0", "Navix-LavaGapS5-v0", "Navix-KeyCorridorS3R1-v0"])
def test_steps_are_navixs_own(env_id):
    environment = make_navix(env_id)
    own = navix.make(env_id, max_steps=100, observation_fn=navix.observations.symbolic)
    (before, after, shown), actions = played(environment, 150)
    at = lambda tree, t: jax.tree.map(lambda x: x[t], tree)
    step = jax.jit(own._step)
    for t in range(150):
        if t and shown.truncated[t - 1]:
            assert after.t[t] == 0 and shown.is_first[t] and not shown.valid[t]
            continue
        new = step(at(before, t), actions[t])
        assert shown.reward[t] == new.reward and shown.discount[t] == 1 - (new.step_type == 2)
        assert shown.truncated[t] == (new.step_type == 1) and shown.is_first[t] == (new.step_type == 2)
        if shown.is_first[t]:
            assert after.t[t] == 0
        else:
            np.testing.assert_allclose(
                shown.observation[t], np.minimum(np.asarray(new.observation) / LARGEST, 1), rtol=1e-6
            )
            np.testing.assert_array_equal(at(after, t).state.get_player().position, new.state.get_player().position)
    assert shown.observation.dtype == np.float32 and shown.observation.shape[1:] == environment.observation_shape
    assert 0 <= shown.observation.min() and shown.observation.max() <= 1 and environment.num_actions == 7


def test_an_end_by_time_is_a_truncation_and_lava_a_termination():
    (_, _, shown), _ = played(NavixEnvironment(navix.make("Navix-Empty-8x8-v0", max_steps=7)), 40)
    ends = np.flatnonzero(shown.truncated)
    np.testing.assert_array_equal(ends, [6, 14, 22, 30, 38])  # the goal is ten steps away
    np.testing.assert_array_equal(np.flatnonzero(shown.is_first), ends + 1)
    np.testing.assert_array_equal(shown.valid, ~shown.is_first)
    assert np.all(shown.discount == 1)

    (_, _, shown), _ = played(make_navix("Navix-LavaGapS5-v0"), 300)
    terminated = shown.discount == 0
    assert np.sum(terminated) > 3 and np.all(shown.valid[terminated] & ~shown.truncated[terminated])


def test_episodes_of_one_lifetime_differ():
    (_, _, shown), _ = played(NavixEnvironment(navix.make("Navix-DoorKey-Random-6x6-v0", max_steps=5)), 60)
    starts = shown.observation[shown.is_first]
    assert len(np.unique(starts, axis=0)) > 5


def test_one_environment_for_all_of_an_id_and_a_bad_one_is_one_line():
    one, other = (make_environment("navix/Navix-DoorKey-5x5-v0", num_envs, 0) for num_envs in (2, 3))
    assert one is other and one.program is one and is_pure("navix/Navix-DoorKey-5x5-v0")
    with pytest.raises(ValueError, match="expected navix/<Id>, the nearest match is 'navix/Navix-DoorKey-5x5-v0'"):
        make_environment("navix/Navix-DorKey-5x5-v0", 1, 0)


def test_without_navix_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "navix", None)
    with pytest.raises(ImportError, match=r"^navix/\.\.\. needs navix .*: pip install 'frodo-rl\[navix\]'$"):
        make_environment("navix/Navix-DoorKey-5x5-v0", 1, 0)


def test_jit_and_vmap():
    environment = make_navix("Navix-DoorKey-5x5-v0")
    states, _ = jax.vmap(environment.init)(jax.random.split(jax.random.key(0), 3))
    _, shown = jax.jit(jax.vmap(environment.step))(states, jnp.arange(3), jnp.zeros(3, bool))
    assert shown.observation.shape == (3, 5, 5, 3)
