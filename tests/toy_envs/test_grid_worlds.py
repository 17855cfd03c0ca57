"""The grid worlds against plain loops, on boards made by hand, and what the generator promises of each of the 57."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.reference import grid_worlds as reference
from tests.toy_envs.stepping import run
from toy_envs import grid_worlds
from toy_envs.grid_worlds import ABSENT, NUM_WORLDS, GridWorld, GridWorldState, World

STAY, UP, DOWN, LEFT, RIGHT = range(5)
WORLDS = [grid_worlds.make_world(index) for index in range(NUM_WORLDS)]
PROGRAM = GridWorld(0)
STEP = jax.jit(PROGRAM.step)


def stack(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


@functools.cache
def initial_states() -> GridWorldState:
    """Return the states of all worlds, [57]."""
    keys = jax.random.split(jax.random.key(5), NUM_WORLDS)
    return stack([GridWorld(index).initial_state(key) for index, key in enumerate(keys)])


@functools.cache
def rollout(num_steps: int = 150):
    """Return the actions, [steps, 57], the first observations, and the steps of all worlds at once."""
    actions = np.random.default_rng(0).integers(0, 5, (num_steps, NUM_WORLDS))
    steps = jax.jit(lambda state: run(PROGRAM, state, actions)[1])(initial_states())
    return actions, jax.vmap(PROGRAM.observe)(initial_states()), jax.tree.map(np.asarray, steps)


@functools.partial(jax.jit, static_argnums=(1, 2))
def uniforms(keys, count: int, num_draws: int):
    """Return the numbers that each key draws in a lifetime, [keys, num_draws, count]."""
    draw = lambda key, i: jax.random.uniform(jax.random.fold_in(key, i), (count,))
    return jax.vmap(lambda key: jax.vmap(lambda i: draw(key, i))(jnp.arange(num_draws)))(keys)


def cell(row: int, column: int) -> int:
    return 11 * (row + 1) + column + 1


def by_hand(board: str, **changes) -> GridWorldState:
    """Return the start of an episode on a board: `#` is a wall, `S` the start, and `1` to `3` are the objects."""
    lines = [line.ljust(9, "#") for line in board.split()]
    rows = ["#" * 11, *(f"#{line}#" for line in lines + ["#" * 9] * (9 - len(lines))), "#" * 11]
    text = "".join(rows)
    free = np.array([i for i, mark in enumerate(text) if mark != "#"])
    world = World(
        walls=np.array([mark == "#" for mark in text]),
        free=np.pad(free, (0, 81 - len(free))),
        num_free=len(free),
        cells=np.array([text.find(mark) for mark in "S123"]),
        is_random=np.zeros(4, bool),
        rewards=np.array([1.0, -0.5, 0.25]),
        respawn=np.zeros(3),
        termination=np.zeros(3),
        horizon=50,
    )._replace(**changes)
    world = World(*(jnp.asarray(field, like.dtype) for field, like in zip(world, WORLDS[0], strict=True)))
    return PROGRAM.restart(PROGRAM.initial_state(jax.random.key(0))._replace(world=world))


def walk(state: GridWorldState, actions):
    """Return the cells of the agent and of the objects before and after each action, and the steps."""
    states, steps, is_after_truncation = [state], [], False
    for action in actions:
        state, time_step = STEP(state, jnp.int32(action), is_after_truncation)
        is_after_truncation = time_step.truncated
        states.append(state)
        steps.append(time_step)
    return [int(s.agent) for s in states], [s.objects.tolist() for s in states], stack(steps)


def test_all_worlds_are_those_of_plain_loops():
    actions, first, steps = rollout()
    num_steps, events = len(actions), np.zeros(4, int)
    for_restart, for_step = (np.asarray(uniforms(initial_states().key, n, 2 * num_steps)) for n in (4, 8))
    for index, world in enumerate(WORLDS):
        plain, num_draws, expected = reference.GridWorld(world), 1, []
        plain.restart(for_restart[index, 0])
        np.testing.assert_array_equal(first[index], plain.observation())
        truncated = False
        for t in range(num_steps):
            if truncated:
                plain.restart(for_restart[index, num_draws])
                num_draws, truncated = num_draws + 1, False
                expected.append((plain.observation(), 0, 1, False, False, True))
                continue
            num_before = len(plain.objects)
            reward, terminated, truncated = plain.step(actions[t, index], for_step[index, num_draws])
            events += (reward != 0, terminated, truncated, len(plain.objects) > num_before)
            num_draws += 1
            truncated = truncated and not terminated
            if terminated:
                plain.restart(for_restart[index, num_draws])
                num_draws += 1
            expected.append((plain.observation(), reward, 1 - terminated, truncated, True, terminated))
        for name, got, wanted in zip(steps._fields, steps, zip(*expected, strict=True), strict=True):
            np.testing.assert_array_equal(got[:, index], np.stack(wanted), f"{name} of world {index}")
    assert np.all(events > 20), events  # each kind was seen, and resets inside of a rollout


def test_one_program_serves_all_worlds():
    assert all(GridWorld(index).program == PROGRAM for index in range(NUM_WORLDS))
    one = jax.tree.map(lambda leaf: leaf[0], initial_states())
    programs = {
        str(jax.make_jaxpr(GridWorld(index).step)(one, jnp.int32(0), jnp.array(False)))
        for index in range(0, NUM_WORLDS, 7)
    }
    assert len(programs) == 1
    shapes = {str(jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), world)) for world in WORLDS}
    assert len(shapes) == 1


@pytest.mark.parametrize("index", [0, 7, 56])
def test_a_world_alone_is_the_one_in_the_batch(index):
    actions, first, steps = rollout()
    environment = GridWorld(index)
    state, alone = environment.init(jax.random.split(jax.random.key(5), NUM_WORLDS)[index])
    np.testing.assert_array_equal(alone.observation, first[index])
    step = jax.jit(environment.step)
    for t, action in enumerate(actions[:70, index]):
        state, alone = step(state, action, alone.truncated)
        for field, expected in zip(alone, steps, strict=True):
            np.testing.assert_array_equal(field, expected[t, index])


def test_walls_and_the_edge_of_the_board_stop_the_agent():
    state = by_hand("S.# ... #..")
    moves = [
        (UP, (0, 0)),
        (LEFT, (0, 0)),
        (STAY, (0, 0)),
        (RIGHT, (0, 1)),
        (RIGHT, (0, 1)),
        (DOWN, (1, 1)),
        (LEFT, (1, 0)),
        (DOWN, (1, 0)),
    ]
    agents, _, steps = walk(state, [action for action, _ in moves])
    assert agents == [cell(0, 0), *(cell(*where) for _, where in moves)]
    for plane, (_, where) in zip(steps.observation[:, 0], moves, strict=True):
        assert np.argwhere(plane).tolist() == [list(where)]
    board = "\n".join([".........", "S........", *["........."] * 7])
    for way, num_steps, end in ((UP, 2, (0, 0)), (LEFT, 1, (1, 0)), (DOWN, 9, (8, 0)), (RIGHT, 9, (1, 8))):
        agents, _, _ = walk(by_hand(board), [way] * num_steps)
        assert agents[-1] == cell(*end)


def test_an_object_pays_once_to_who_enters_its_cell():
    state = by_hand("S12. 3...")
    assert state.objects.tolist() == [cell(0, 1), cell(0, 2), cell(1, 0)]
    _, objects, steps = walk(state, [STAY, RIGHT, STAY, RIGHT, LEFT, LEFT, DOWN])
    np.testing.assert_array_equal(steps.reward, [0, 1, 0, -0.5, 0, 0, 0.25])
    assert [sum(where != ABSENT for where in present) for present in objects] == [3, 3, 2, 2, 1, 1, 1, 0]
    assert np.all(steps.valid) and not np.any(steps.is_first) and np.all(steps.discount == 1)
    np.testing.assert_array_equal(steps.observation[:, 2:].sum((2, 3))[3], [0, 0, 1])


def test_termination_is_of_the_object_and_shows_the_next_episode():
    state = by_hand("S12 3..", termination=[0, 1, 0])
    agents, objects, steps = walk(state, [RIGHT, RIGHT, RIGHT])
    np.testing.assert_array_equal(steps.discount, [1, 0, 1])
    np.testing.assert_array_equal(steps.is_first, [0, 1, 0])
    np.testing.assert_array_equal(steps.reward, [1, -0.5, 1])
    assert np.all(steps.valid) and not np.any(steps.truncated)
    assert agents[2] == cell(0, 0) and objects[2] == objects[0]
    np.testing.assert_array_equal(steps.observation[1], PROGRAM.observe(state))


def test_an_episode_is_truncated_at_exactly_the_horizon():
    state = by_hand("S.1", horizon=3)
    agents, objects, steps = walk(state, [RIGHT, STAY, RIGHT, RIGHT, STAY, STAY, STAY, STAY])
    np.testing.assert_array_equal(steps.truncated, [0, 0, 1, 0, 0, 0, 1, 0])
    np.testing.assert_array_equal(steps.valid, [1, 1, 1, 0, 1, 1, 1, 0])
    np.testing.assert_array_equal(steps.is_first, ~steps.valid)
    np.testing.assert_array_equal(steps.reward, [0, 0, 1, 0, 0, 0, 0, 0])
    assert np.all(steps.discount == 1)
    assert agents[3:5] == [cell(0, 2), cell(0, 0)] and objects[4] == objects[0]
    np.testing.assert_array_equal(steps.observation[3], PROGRAM.observe(state))


def test_an_object_comes_back_but_not_under_the_agent():
    state = by_hand("S12", respawn=[1, 0, 0])
    _, objects, steps = walk(state, [RIGHT, STAY, RIGHT, LEFT, LEFT, LEFT, STAY, RIGHT])
    first = [where[0] != ABSENT for where in objects]
    second = [where[1] != ABSENT for where in objects]
    assert first == [True, False, False, True, False, True, True, True, False]
    assert second == [True] * 3 + [False] * 6
    np.testing.assert_array_equal(steps.reward, [1, 0, -0.5, 1, 0, 0, 0, 1])


@pytest.mark.parametrize("probability", [0.05, 0.3])
def test_respawn_and_termination_probabilities(probability):
    state, num_keys = by_hand("S1.", respawn=[probability, 0, 0], termination=[probability, 0, 0]), 4_000
    moves = jnp.array([RIGHT, LEFT, STAY, STAY])
    steps = jax.jit(jax.vmap(lambda key: run(PROGRAM, state._replace(key=key), moves)[1]))(
        jax.random.split(jax.random.key(1), num_keys)
    )
    is_over = steps.is_first[:, 0]
    is_back = steps.observation[~is_over][:, 1:, 2].sum((2, 3))  # after one to three steps
    shares = np.append(np.mean(is_over), is_back.mean(0))
    expected = np.append(probability, 1 - (1 - probability) ** np.arange(1, 4))
    assert np.all(np.abs(shares - expected) < 5 * np.sqrt(expected * (1 - expected) / len(is_back)))


def test_random_cells_are_uniform_and_never_the_same():
    state = by_hand("S12 3.. ##.", is_random=np.ones(4, bool), respawn=np.ones(3))
    free, keys = np.asarray(state.world.free[:7]), jax.random.split(jax.random.key(2), 7_000)
    states = jax.jit(jax.vmap(lambda key: PROGRAM.restart(state._replace(key=key))))(keys)
    drawn = np.concatenate([states.agent[:, None], states.objects], axis=1)
    is_at = drawn[:, :, None] == free
    assert np.all(is_at.sum((1, 2)) == 4) and np.all(np.abs(is_at.sum(0) - 1000) < 150)  # five standard deviations
    for one, other in itertools.combinations(range(4), 2):
        pairs = is_at[:, one].astype(int).T @ is_at[:, other]
        assert not np.any(np.diag(pairs)) and np.all(np.abs(pairs - 7000 / 42)[~np.eye(7, dtype=bool)] < 65)


@pytest.mark.parametrize("action", [STAY, RIGHT])
def test_random_objects_come_back_anywhere_but_at_a_taken_cell(action):
    state = by_hand("S12 3.. ##.", is_random=np.ones(4, bool), respawn=np.ones(3))
    free, keys = np.asarray(state.world.free[:7]), jax.random.split(jax.random.key(3), 7_000)
    state = state._replace(agent=free[0], objects=jnp.array([ABSENT, ABSENT, free[1]]))
    after, *_ = jax.jit(jax.vmap(lambda key: PROGRAM.transition(state._replace(key=key), jnp.int32(action))))(keys)
    objects = np.asarray(after.objects)
    counts = (objects[:, :, None] == free).sum(0)
    # The third object stays where it is, or is collected and comes back too.
    back, is_taken = (counts[:2], [0, 1]) if action == STAY else (counts, [1])
    assert not np.any(back[:, is_taken]) and np.all(np.abs(np.delete(back, is_taken, axis=1) - 1000) < 150)
    assert action == RIGHT or counts[2, 1] == 7000
    for one, other in itertools.combinations(range(3), 2):
        assert not np.any((objects[:, one] == objects[:, other]) & (objects[:, one] != ABSENT))


@pytest.mark.parametrize("index", range(NUM_WORLDS))
def test_what_the_generator_promises(index):
    world = WORLDS[index]
    is_free = ~world.walls.reshape(11, 11)
    assert not is_free[[0, -1]].any() and not is_free[:, [0, -1]].any()
    free = world.free[: world.num_free]
    assert np.array_equal(free, np.flatnonzero(~world.walls)) and not world.free[world.num_free :].any()
    distances = np.full((len(free),) * 2, 1000)
    apart = np.abs(np.stack(np.divmod(free, 11))[:, :, None] - np.stack(np.divmod(free, 11))[:, None]).sum(0)
    distances[apart <= 1] = apart[apart <= 1]
    for via in range(len(free)):
        distances = np.minimum(distances, distances[:, via, None] + distances[None, via])
    assert 20 <= world.horizon <= 60 and distances.max() < world.horizon
    rows, columns = is_free.any(1).sum(), is_free.any(0).sum()
    assert 5 <= rows <= 9 and 5 <= columns <= 9 and len(free) > 0.6 * rows * columns

    is_used = world.cells[1:] != ABSENT
    num_objects = is_used.sum()
    assert num_objects >= 1 and is_used[:num_objects].all()
    cells = world.cells[: 1 + num_objects]
    assert set(cells.tolist()) <= set(free.tolist()) and len(set(cells.tolist())) == len(cells)
    assert np.array_equal(world.is_random, np.append(True, is_used) & (index % 2 == 1))
    assert world.rewards[0] >= 0.5 and np.all(np.abs(world.rewards) <= 1)
    assert np.all((world.respawn >= 0) & (world.respawn < 0.3))
    assert np.all((world.termination >= 0) & (world.termination <= 1))
    for values in (world.rewards, world.respawn, world.termination):
        assert not values[~is_used].any()

    _, first, steps = rollout()
    shown = np.concatenate([first[None, index], steps.observation[:, index]])
    assert shown.dtype == np.float32 and shown.shape[1:] == GridWorld(index).observation_shape == (5, 9, 9)
    assert np.all((shown[:, 0].sum((1, 2)) == 1) & (shown[:, 2:].sum((2, 3)) <= 1).all(1))
    assert np.all(shown[:, 1] == ~is_free[1:-1, 1:-1]) and not np.any(shown[:, 1:2] * shown[:, [0, 2, 3, 4]])
    starts = shown[np.append(True, steps.is_first[:, index])]
    assert len(starts) >= 3 and np.all(starts[:, 2:].sum((2, 3)) == is_used)
    assert (len(np.unique(starts, axis=0)) == 1) == (index % 2 == 0)


def test_worlds_depend_on_their_number_and_episodes_on_the_key():
    again = grid_worlds.make_world.__wrapped__(12)
    assert all(np.array_equal(a, b) for a, b in zip(again, WORLDS[12], strict=True))
    assert len({str([array.tolist() for array in world]) for world in WORLDS}) == NUM_WORLDS
    assert len({tuple(world.walls) for world in WORLDS}) > 50 and len({int(world.horizon) for world in WORLDS}) > 20
    with pytest.raises(ValueError, match="read-only"):
        again.rewards[0] = 2
    environment = GridWorld(1)
    same, other, different = (environment.initial_state(jax.random.key(seed)) for seed in (0, 0, 1))
    assert same.agent == other.agent and np.array_equal(same.objects, other.objects)
    assert [same.agent, *same.objects] != [different.agent, *different.objects]


def test_the_generator_uses_its_whole_range():
    used = np.stack([world.cells[1:] for world in WORLDS]) != ABSENT
    assert np.bincount(used.sum(1), minlength=4)[1:].min() > 8
    for name, edge in (("respawn", 0), ("termination", 0), ("termination", 1)):
        assert 0.2 < np.mean(np.stack([getattr(world, name) for world in WORLDS])[used] == edge) < 0.47, name
    rewards = np.stack([world.rewards for world in WORLDS])[:, 1:][used[:, 1:]]
    assert rewards.min() < -0.8 and rewards.max() > 0.8 and 0.3 < np.mean(rewards < 0) < 0.7


@pytest.mark.parametrize("index", [-1, 57, 0.5, "3"])
def test_an_index_out_of_range(index):
    with pytest.raises(ValueError, match=re.escape(f"index is {index!r}")):
        GridWorld(index)
