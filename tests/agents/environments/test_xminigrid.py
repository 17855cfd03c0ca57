"""xminigrid's XLand by the pure contract: its own steps, tasks as the trivial benchmark's, and trials of one task."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

xminigrid = pytest.importorskip("xminigrid")

from agents.environments.names import is_pure, make_environment  # noqa: E402
from agents.environments.xminigrid import make_xminigrid, trivial_task  # noqa: E402
from tests.agents.environments.test_gymnax import played  # noqa: E402
from toy_envs.trials import Trials  # noqa: E402

ID = "XLand-MiniGrid-R1-9x9"
HOLD, ON_TILE, NEAR, TILE_NEAR = 1, 2, 3, 4  # of xminigrid's goals
PAIRS = (TILE_NEAR, 7, 8, 9, 10)
MIRRORED = {9: 7, 10: 8}  # down and left, of up and right
ALONE = (HOLD, NEAR, 11, 12, 13, 14)


@pytest.fixture(scope="module")
def tasks():
    return jax.device_get(jax.jit(jax.vmap(trivial_task))(jax.random.split(jax.random.key(0), 4000)))


def test_goals_are_of_eleven_kinds_as_often(tasks):
    kinds, counts = np.unique(tasks.goal[:, 0], return_counts=True)
    assert set(kinds) == {*PAIRS, *ALONE} and np.all(np.abs(counts / len(tasks.goal) - 1 / 11) < 0.02)


def test_objects_are_the_goals_and_three_others(tasks):
    is_pair = np.isin(tasks.goal[:, 0], PAIRS)
    first, second, distractors = tasks.init_tiles[:, 0], tasks.init_tiles[:, 1], tasks.init_tiles[:, 2:]
    np.testing.assert_array_equal(first, tasks.goal[:, 1:3])
    np.testing.assert_array_equal(second, np.where(is_pair[:, None], tasks.goal[:, 3:5], 0))
    assert distractors.shape == (len(first), 3, 2)
    same = lambda others: np.all(distractors == others[:, None], axis=-1)
    assert not np.any(same(first)) and not np.any(same(second)[is_pair])
    kinds, colours = np.unique(tasks.init_tiles[:, 2:, 0]), np.unique(tasks.init_tiles[:, 2:, 1])
    np.testing.assert_array_equal(kinds, [3, 4, 5, 6, 7, 11, 12])  # ball, square, pyramid, goal, key, hex, star
    np.testing.assert_array_equal(colours, [1, 2, 3, 4, 5, 6, 8, 9, 10, 11])
    assert np.all(first[tasks.goal[:, 0] == HOLD][:, 0] != 6) and np.all(second[:, 0] != 6)  # 6 cannot be carried
    assert np.any(first[tasks.goal[:, 0] == NEAR][:, 0] == 6)
    assert np.any(np.all(distractors[:, 0] == distractors[:, 1], axis=-1))  # drawn with replacement


def test_goals_that_are_held_out_are_no_goals_of_training(tasks):
    keys = jax.random.split(jax.random.key(1), 20_000)
    draw = lambda part: jax.device_get(jax.jit(jax.vmap(lambda key: trivial_task(key, part)))(keys)).goal
    train, held_out, of_all = (draw(part) for part in ("train", "held_out", ""))

    def met_together(kind, *objects):
        """Return one code for all goals that the same grids meet: a up of b is b down of a, and near is both ways."""
        one, other = objects[:2], objects[2:4]
        if kind == TILE_NEAR:
            return kind, *sorted((one, other))
        return (MIRRORED[kind], other, one) if kind in MIRRORED else (kind, one, other)

    numbers = lambda goals: {met_together(*goal) for goal in goals.tolist()}
    assert (
        not numbers(train) & numbers(held_out)
        and numbers(of_all) & numbers(train)
        and numbers(of_all) & numbers(held_out)
    )
    alone = [numbers(goals[np.isin(goals[:, 0], ALONE)]) for goals in (of_all, train, held_out)]
    assert alone[0] == alone[1] | alone[2] and len(alone[0]) == 60 + 5 * 70  # all goals of one object are drawn
    assert len(alone[2]) / len(alone[0]) == pytest.approx(1 / 8, abs=0.02)
    for goals in (train, held_out):
        assert np.all(np.abs(np.unique(goals[:, 0], return_counts=True)[1] / len(goals) - 1 / 11) < 0.01)
    made = make_environment(f"xminigrid/{ID}/train", 1, 0)
    assert (
        made.tested.tested is made.tested is not made and make_environment(f"xminigrid/{ID}", 1, 0).tested is not made
    )
    goal = jax.jit(made.tested.initial_state)(jax.random.key(2)).task.goal
    assert met_together(*goal.tolist()) in numbers(held_out) or goal[0] in PAIRS


def test_steps_are_xminigrids_own():
    environment = make_xminigrid(ID)
    own, params = xminigrid.make(ID)
    (before, after, shown), actions = played(environment, 1500, seed=6)  # the goal is to hold an object
    at = lambda tree, t: jax.tree.map(lambda x: x[t], tree)
    step = jax.jit(lambda state, action: own.step(params.replace(ruleset=state.task), state.time_step, action))
    ends = np.flatnonzero((shown.discount == 0) | shown.truncated)
    assert np.any(shown.discount[ends] == 0) and np.any(shown.truncated[ends])
    np.testing.assert_array_equal(np.flatnonzero(~shown.valid), np.flatnonzero(shown.truncated) + 1)
    for t in sorted({*range(40), *ends.tolist()}):
        new = step(at(before, t), actions[t])
        np.testing.assert_allclose(shown.reward[t], new.reward, rtol=1e-6)
        assert shown.discount[t] == new.discount and shown.is_first[t] == (new.discount == 0)
        assert shown.truncated[t] == (new.last() and new.discount == 1)
        if not shown.is_first[t]:
            view = shown.observation[t, :-4].reshape(5, 5, 25)
            np.testing.assert_array_equal(view[..., :13].argmax(-1), new.observation[..., 0])
            np.testing.assert_array_equal(view[..., 13:].argmax(-1), new.observation[..., 1])
            assert view.sum() == 50 and shown.observation[t, -4:].argmax() == new.state.agent.direction
    assert shown.observation.shape[1:] == environment.observation_shape == (629,) and environment.num_actions == 6
    np.testing.assert_array_equal(at(after, -1).task.goal, at(before, 0).task.goal)  # one lifetime, one task


def test_trials_are_of_one_task_in_new_places_and_episodes_of_others():
    trials = make_environment(f"trials/2/xminigrid/{ID}", 1, 0)
    assert isinstance(trials, Trials) and trials.horizon == 2 * 243
    state = jax.jit(trials.initial_state)(jax.random.key(1))
    grid = lambda state: np.asarray(state.state.time_step.state.grid)

    @jax.jit
    def at_the_goal(state):
        """Return the state before a step that ends a trial, by time."""
        time_step = state.state.time_step
        late = time_step.replace(state=time_step.state.replace(step_num=jnp.full_like(time_step.state.step_num, 242)))
        return trials.step(state._replace(state=state.state._replace(time_step=late)), jnp.int32(1), False)

    second, shown = at_the_goal(state)
    assert not shown.is_first and second.trial == 1
    jax.tree.map(np.testing.assert_array_equal, second.state.task, state.state.task)
    assert np.any(grid(second) != grid(state)) and second.state.time_step.state.step_num == 0
    third, shown = at_the_goal(second)
    assert shown.is_first and np.any(third.state.task.init_tiles != state.state.task.init_tiles)


def test_one_environment_for_all_of_an_id_and_a_bad_one_is_one_line():
    one, other = (make_environment(f"xminigrid/{ID}", num_envs, 0) for num_envs in (2, 3))
    assert one is other and is_pure(f"xminigrid/{ID}")
    with pytest.raises(ValueError, match=f"expected xminigrid/<Id>, the nearest match is 'xminigrid/{ID}'"):
        make_environment("xminigrid/XLand-MiniGrid-R1-9x8", 1, 0)


def test_without_xminigrid_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "xminigrid", None)
    with pytest.raises(
        ImportError, match=r"^xminigrid/\.\.\. needs xminigrid .*: pip install 'frodo-rl\[xminigrid\]'$"
    ):
        make_environment(f"xminigrid/{ID}", 1, 0)
