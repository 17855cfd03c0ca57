"""Two colours beside a plain loop: moves, rewards and where reached objects go."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.reference import toy_envs as reference
from tests.toy_envs import stepping
from toy_envs.two_colours import TwoColours, TwoColoursState, _free_cell


def cells_of(observation):
    places = np.argmax(np.reshape(observation, (3, 2, 5)), axis=-1)
    return [int(5 * row + column) for row, column in places]


def test_agrees_with_a_plain_loop_over_changes_of_the_rewards():
    environment, num_steps, period = TwoColours(phase_length=1000), 4000, 1000
    actions = np.random.default_rng(0).integers(4, size=num_steps)
    state, first = environment.init(jax.random.key(1))
    begun, (state, steps, states) = state, stepping.run(environment, state, jnp.asarray(actions))
    steps = jax.tree.map(np.asarray, steps)
    cells, reached = cells_of(first.observation), np.zeros((4, 2), int)
    assert len(set(cells)) == 3
    moved_to = set()
    for t, action in enumerate(actions.tolist()):
        agent, reward = reference.two_colours_step(cells, action, 1.0 if t // period % 2 == 0 else -1.0)
        np.testing.assert_allclose(steps.reward[t], reward, rtol=1e-6)
        np.testing.assert_array_equal(np.reshape(steps.observation[t], (6, 5)).sum(axis=1), 1.0)
        new = cells_of(steps.observation[t])
        assert new[2] == agent and len(set(new)) == 3  # a reached object went to a free cell
        for i in range(2):
            if cells[i] == agent:
                reached[t // period, i] += 1
                moved_to.add(new[i])
            else:
                assert new[i] == cells[i]
        cells = new
    assert reached.min() >= 5  # each colour in each phase
    assert len(moved_to) == 25  # a reached object may go anywhere
    assert np.all(steps.valid) and np.all(steps.discount == 1) and not np.any(steps.truncated | steps.is_first)
    assert int(state.num_steps) == num_steps
    np.testing.assert_allclose(environment.mean_reward(begun, state), np.mean(steps.reward), rtol=1e-5)
    middle = jax.tree.map(lambda x: x[2999], states)
    np.testing.assert_allclose(environment.mean_reward(middle, state), np.mean(steps.reward[3000:]), rtol=1e-5)


def test_rewards_change_places_at_exactly_100_000_steps():
    environment, corner = TwoColours(), jnp.int32(0)
    for num_steps, sign in ((0, 1.0), (99_999, 1.0), (100_000, -1.0), (199_999, -1.0), (200_000, 1.0)):
        state = TwoColoursState(
            jax.random.key(0), corner, jnp.int32(24), jnp.int32(5), jnp.int32(num_steps), corner, corner
        )
        assert environment.transition(state, jnp.int32(0))[1] == sign
        other = state._replace(blue=jnp.int32(24), red=corner)
        assert environment.transition(other, jnp.int32(0))[1] == -sign


def test_every_free_cell_has_the_same_chance():
    for one, other in ((0, 24), (7, 3), (12, 13)):
        found = jax.vmap(lambda number, one=one, other=other: _free_cell(number, one, other))(jnp.arange(23))
        assert sorted(found.tolist()) == [cell for cell in range(25) if cell not in (one, other)]


@pytest.mark.parametrize("phase_length", [0, -1, 1.5])
def test_a_bad_phase_is_named(phase_length):
    with pytest.raises(ValueError, match=f"^phase_length is {phase_length}, expected a whole number of at least 1$"):
        TwoColours(phase_length=phase_length)
