"""The rule room against a plain loop; what its generator promises; its best returns against single steps."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.reference import rule_room as reference
from tests.toy_envs.stepping import run
from tests.trees import check_equal
from toy_envs import names, rule_room_optimum
from toy_envs.rule_room import ABSENT, EMPTY, GOAL, HELD_OUT, INTERMEDIATE, KINDS, MIXED, NUM_OBJECTS, VOID, RuleRoom
from toy_envs.rule_room_optimum import best_returns, oracle_returns, possible_reactions
from toy_envs.trials import Trials

NUM_TASKS, NUM_STEPS = 64, 40
REACTIONS = ("nothing", "void", "goal", "middle", "spoilt")


@functools.cache
def tasks(kind: str, num: int = NUM_TASKS):
    """Return the first tasks, [num], as NumPy arrays."""
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(RuleRoom(kind).task))(jnp.arange(num, dtype=jnp.uint32)))


def one_task(kind: str, index: int):
    return jax.tree.map(lambda x: x[index], tasks(kind))


def place(cell) -> tuple[int, int]:
    return divmod(int(cell), 4)


def plain_homes(task) -> list[tuple[int, int]]:
    return [place(home) for home in task.homes if home != ABSENT]


def plain_reactions(table) -> dict:
    things = [*range(NUM_OBJECTS), "intermediate", "empty"]
    return {(things[x], y): REACTIONS[table[x, y]] for x in range(NUM_OBJECTS + 2) for y in range(NUM_OBJECTS)}


def plain_observation(homes, state) -> np.ndarray:
    (row, column), hand, home, is_goal = state
    cells = np.zeros((1 + NUM_OBJECTS, 4, 4))
    cells[0, row, column] = 1
    for index in home:
        cells[(1 + index, *homes[index])] = 1
    at_home = [index in home for index in range(NUM_OBJECTS)]
    held = [hand == thing for thing in [*range(NUM_OBJECTS), "intermediate", "empty"]]
    return np.concatenate([cells.ravel(), at_home, held, [is_goal]])


@pytest.mark.parametrize("kind", [*KINDS, "mixed"])
def test_rooms_are_those_of_plain_loops(kind):
    room, actions = RuleRoom(kind), np.random.default_rng(0).integers(0, 5, (NUM_STEPS, NUM_TASKS))
    state = jax.vmap(room.begin)(tasks(kind))
    first = jax.vmap(room.observe)(state)
    steps = jax.tree.map(np.asarray, jax.jit(lambda state: run(room, state, actions)[1])(state))
    events = dict(reached=0, lost=0, middle=0)
    for index in range(NUM_TASKS):
        task = one_task(kind, index)
        homes, reactions, time = plain_homes(task), plain_reactions(task.reactions), 0
        state = reference.begin(homes, place(task.start), bool(task.is_solved))
        np.testing.assert_array_equal(first[index, :91], plain_observation(homes, state))
        for t in range(NUM_STEPS):
            if time == task.horizon:  # after a truncation: the start of an episode, whatever the action
                state, time = reference.begin(homes, place(task.start), bool(task.is_solved)), 0
                np.testing.assert_array_equal(steps.observation[t, index, :91], plain_observation(homes, state))
                assert steps.is_first[t, index] and not steps.valid[t, index] and steps.reward[t, index] == 0
                continue
            before = state
            state, time = reference.step(homes, reactions, state, actions[t, index]), time + 1
            events["reached"] += state[-1] > before[-1]
            events["lost"] += state[-1] < before[-1]
            events["middle"] += state[1] == before[1] == "intermediate" and state[0] in homes
            assert steps.reward[t, index] == pytest.approx(state[-1] / task.horizon)
            np.testing.assert_array_equal(steps.observation[t, index, :91], plain_observation(homes, state))
            assert steps.truncated[t, index] == (time == task.horizon) and not steps.is_first[t, index]
            assert steps.valid[t, index]
    assert np.all(steps.discount == 1.0)
    if kind in ("easy", "medium", "main", "visible"):
        assert events["reached"] > 2
    elif kind == "pre_solved":
        assert events["lost"] > 2
    elif kind == "impossible":
        assert events["reached"] == 0
    elif kind == "chain":
        assert events["middle"] > 2  # an intermediate that stays in the hand


def test_the_chain_by_hand():
    # The agent starts at 0; objects 0 to 3 lie at cells 1, 2, 3 and 7.
    room, task = RuleRoom("chain"), one_task("chain", 0)
    reactions = np.zeros_like(task.reactions)
    reactions[0, 1] = reactions[1, 0] = REACTIONS.index("middle")
    reactions[INTERMEDIATE, 3] = GOAL
    task = task._replace(homes=np.array([1, 2, 3, 7]), start=np.int32(0), reactions=reactions)
    state, hands, rewards = room.begin(jax.tree.map(jnp.asarray, task)), [], []
    for action in (4, 4, 4, 0, 2, 3):
        state, time_step = jax.jit(room.step)(state, jnp.int32(action), False)
        hands.append(int(state.hand))
        rewards.append(float(time_step.reward))
    # It takes the first, makes an intermediate of it, passes over the third, and waits there; the fourth is the goal.
    assert hands == [0, INTERMEDIATE, INTERMEDIATE, INTERMEDIATE, EMPTY, EMPTY]
    assert rewards == [0, 0, 0, 0, 1 / 16, 1 / 16] and state.is_home.tolist() == [False, False, True, False]


@pytest.mark.parametrize("kind", ["easy", "medium", "main", "chain"])
def test_rules_are_drawn_uniformly(kind):
    num = 6000
    drawn, possible = tasks(kind, num).reactions, possible_reactions(KINDS[kind])
    assert len(possible) == {"easy": 1, "medium": 6}.get(kind, 60)
    used = slice(KINDS[kind].num_objects)
    counts = [np.sum(np.all(drawn == table, axis=(1, 2))) for table in possible]
    assert sum(counts) == num
    expected = num / len(possible)
    assert np.sum((np.array(counts) - expected) ** 2 / expected) < 110  # chi-square; 59 degrees of freedom at most
    assert not np.any(drawn[:, :, KINDS[kind].num_objects :]) and np.all(tasks(kind).homes[:, used] != ABSENT)


def test_layouts_are_drawn_uniformly():
    num, drawn = 6000, tasks("main", 6000)
    cells = np.column_stack([drawn.start, drawn.homes])
    assert all(len(set(row)) == 5 for row in cells.tolist())
    for column in cells.T:
        counts = np.bincount(column, minlength=16)
        assert len(counts) == 16 and np.sum((counts - num / 16) ** 2 / (num / 16)) < 45  # 15 degrees of freedom
    pairs = np.bincount(16 * cells[:, 0] + cells[:, 3], minlength=256)
    assert pairs.reshape(16, 16).trace() == 0 and np.sum((pairs[pairs > 0] - num / 240) ** 2 / (num / 240)) < 330


def test_kinds_have_what_they_say():
    solved, none, visible = (tasks(kind, 6000) for kind in ("pre_solved", "impossible", "visible"))
    assert np.all(solved.is_solved) and not np.any(none.is_solved)
    for drawn in (solved, none):
        assert not np.any(drawn.reactions == GOAL)
    assert np.all(np.sum(none.reactions == VOID, axis=(1, 2)) == 4)  # two pairs, from either side
    spoilt = np.all(solved.reactions == REACTIONS.index("spoilt"), axis=1)
    np.testing.assert_allclose(spoilt.mean(axis=0), np.full(4, 0.25), atol=0.03)
    assert np.all(spoilt.sum(axis=1) == 1)
    assert visible.is_shown.mean() == pytest.approx(0.25, abs=0.03)
    np.testing.assert_array_equal(tasks("chain").horizon, np.full(NUM_TASKS, 16))


def test_visible_rules_are_those_of_the_task():
    room, drawn = RuleRoom("visible"), tasks("visible")
    seen = np.asarray(jax.vmap(lambda task: room.observe(room.begin(task)))(drawn))
    assert seen.shape[1:] == room.observation_shape == (121,)
    for task, shown in zip(range(NUM_TASKS), seen[:, 91:].reshape(-1, 10, 3), strict=True):
        table = drawn.reactions[task]
        if not drawn.is_shown[task]:
            assert not np.any(shown)
            continue
        pairs = [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2), *((INTERMEDIATE, y) for y in range(4))]
        for (x, y), (is_void, is_goal, is_middle) in zip(pairs, shown, strict=True):
            assert (is_void, is_goal, is_middle) == (table[x, y] == VOID, table[x, y] == GOAL, False)


def test_the_mixture_has_its_shares():
    drawn = tasks("mixed", 6000)
    num_objects, is_chain = np.sum(drawn.homes != ABSENT, axis=1), drawn.horizon == 16
    has_goal = np.any(drawn.reactions == GOAL, axis=(1, 2))
    found = {
        "main": has_goal & (num_objects == 4) & ~is_chain,
        "chain": has_goal & is_chain,
        "easy": has_goal & (num_objects == 2),
        "medium": has_goal & (num_objects == 3),
        "pre_solved": drawn.is_solved,
        "impossible": ~has_goal & ~drawn.is_solved,
    }
    assert sum(MIXED.values()) == pytest.approx(1.0)
    for kind, share in MIXED.items():
        assert found[kind].mean() == pytest.approx(share, abs=0.025), kind


def test_agents_of_mixed_rooms_are_tested_in_those_that_have_a_goal_to_find():
    room = RuleRoom("mixed", 512)
    assert room.tested == RuleRoom("solvable", 512) and RuleRoom("chain").tested == RuleRoom("chain")
    assert room.tested.observation_shape == room.observation_shape and room.tested.horizon == room.horizon
    drawn = tasks("solvable", 200)
    assert np.all(np.any(drawn.reactions == GOAL, axis=(1, 2))) and not np.any(drawn.is_solved)
    num_objects = np.sum(drawn.homes != ABSENT, axis=1)
    of_kinds = [num_objects == 2, num_objects == 3, drawn.horizon == 16, (num_objects == 4) & (drawn.horizon == 12)]
    np.testing.assert_allclose(np.mean(of_kinds, axis=1), 0.25, atol=0.1)


def test_pools_hold_the_same_tasks_and_held_out_ones_are_in_no_other():
    draw = lambda room: jax.jit(jax.vmap(room.initial_state))(jax.random.split(jax.random.key(0), 32)).task
    for pool, ids in ((3, range(3)), ("held_out", HELD_OUT)):
        room = RuleRoom("main", pool)
        drawn, expected = draw(room), jax.jit(jax.vmap(RuleRoom("main").task))(np.array(ids, np.uint32))
        same = np.all(drawn.homes[:, None] == expected.homes[None], axis=-1)
        assert room.task_ids == ids and np.all(same.any(axis=1)) and same.any(axis=0).sum() >= min(len(ids), 25)
    one = RuleRoom("main", "held_out", 3)
    assert one.task_ids == HELD_OUT[3:4] and len(np.unique(draw(one).homes, axis=0)) == 1
    assert HELD_OUT.start == RuleRoom("main").task_ids.stop and HELD_OUT.stop <= 2**32
    assert len(np.unique(draw(RuleRoom("main")).homes, axis=0)) == 32


def test_a_restart_keeps_the_task():
    room = RuleRoom("main")
    state = jax.jit(room.initial_state)(jax.random.key(1))
    moved = state
    for action in (1, 2, 4, 4):
        moved, *_ = jax.jit(room.transition)(moved, jnp.int32(action))
    assert moved.agent != state.agent
    check_equal(room.restart(moved), state)
    assert room.time_left(state) == 1.0 and room.time_left(moved) == pytest.approx(8 / 12)


def test_names():
    assert names.make("rule_room/main") == RuleRoom("main")
    assert names.make("rule_room/pre_solved/256") == RuleRoom("pre_solved", 256)
    assert names.make("rule_room/mixed/held_out") == RuleRoom("mixed", "held_out")
    assert names.make("rule_room/main/held_out/7") == RuleRoom("main", "held_out", 7)
    assert all(names.make(name) is not None for name in names.examples())
    assert names.make("rule_room/maine") is names.make("rule_room/main/all") is None
    for bad, why in (("0", "pool is 0"), ("held_out/1000", "number is 1000"), ("16/16", "number is 16")):
        with pytest.raises(ValueError, match=f"^toy/rule_room/main/{bad}: {why}, expected"):
            names.make(f"rule_room/main/{bad}")
    assert Trials(RuleRoom("main"), 4).observation_shape == (104,)


def test_what_is_no_room_is_refused():
    kinds = ", ".join(KINDS)
    with pytest.raises(ValueError, match=f"^kind is 'maine', expected one of {kinds}, mixed, solvable$"):
        RuleRoom("maine")
    with pytest.raises(ValueError, match=re.escape("pool is 0, expected 1 to 2³¹ tasks, or held_out")):
        RuleRoom("main", 0)
    with pytest.raises(ValueError, match="^number is 16, expected that of one of 16 tasks, from 0 on$"):
        RuleRoom("main", 16, 16)


@pytest.mark.parametrize(
    ("kind", "horizon", "num_trials"), [("easy", 9, 2), ("medium", 8, 2), ("chain", 10, 2), ("main", 9, 2)]
)
def test_best_returns_are_those_of_single_steps(kind, horizon, num_trials):
    possible = possible_reactions(KINDS[kind])
    if kind in ("chain", "main"):
        possible = possible[::9]  # seven tables, of which no two are alike in all pairs
    of_all = [one_task(kind, index)._replace(horizon=horizon) for index in range(4)]
    layouts = jax.tree.map(lambda *x: np.stack(x), *of_all)
    for task, returns in zip(of_all, best_returns(layouts, possible, num_trials), strict=True):
        expected = reference.best_return(
            plain_homes(task), place(task.start), horizon, [plain_reactions(table) for table in possible], num_trials
        )
        assert len(returns) == num_trials and returns.sum() == pytest.approx(expected, abs=1e-9)
        assert np.all(np.diff(returns) >= -1e-9)  # what is known is not forgotten


def alone(task):
    return jax.tree.map(lambda x: np.asarray(x)[None], task)


def oracle_return(task):
    return oracle_returns(alone(task))[0]


def test_best_returns_by_hand():
    # In the row of the agent lie objects 0 and 1, one and three cells away: from step 3 of 12 on the goal pays, 10/12.
    task = one_task("easy", 0)._replace(homes=np.array([1, 3, ABSENT, ABSENT]), start=0)
    assert oracle_return(task) == pytest.approx(10 / 12)
    # A third between them is in the way: past it, by the next row, is two steps more.
    task = one_task("medium", 0)._replace(homes=np.array([1, 3, 2, ABSENT]), start=0)
    tables = possible_reactions(KINDS["medium"])
    (dead_end,) = [t for t in tables if t[0, 1] == GOAL and t[0, 2] == VOID]
    (no_dead_end,) = [t for t in tables if t[0, 1] == GOAL and t[1, 2] == VOID]
    assert oracle_return(task._replace(reactions=dead_end)) == pytest.approx(8 / 12)
    assert oracle_return(task._replace(reactions=no_dead_end)) == pytest.approx(8 / 12)
    # With a trial to waste, the explorer of these two knows nothing that helps: both trials are the same.
    np.testing.assert_allclose(best_returns(alone(task), np.array([dead_end, no_dead_end]), 2)[0], [8 / 12, 8 / 12])
    np.testing.assert_array_equal(best_returns(alone(one_task("pre_solved", 0)), tables, 3)[0], np.ones(3))


def test_an_explorer_with_memory_gains_over_trials_and_ends_as_the_oracle():
    task, possible = one_task("medium", 2), possible_reactions(KINDS["medium"])
    oracle = np.mean([oracle_return(task._replace(reactions=table)) for table in possible])
    one_trial, by_trial = (best_returns(alone(task), possible, num)[0] for num in (1, 4))
    assert by_trial[0] <= one_trial[0] < by_trial[1] <= by_trial[3] == pytest.approx(oracle)


def test_best_returns_of_many_are_those_of_each(monkeypatch):
    several, tables = tasks("mixed", 12), possible_reactions(KINDS["medium"])  # solved ones, several horizons
    assert several.is_solved.any() and len(set(several.horizon.tolist())) > 1
    each = [jax.tree.map(lambda x, i=i: x[i], several) for i in range(12)]
    np.testing.assert_array_equal(oracle_returns(several), [oracle_return(task) for task in each])
    alike = jax.tree.map(lambda x: x[np.argsort(~several.is_solved)], several)._replace(homes=tasks("medium", 12).homes)
    alone_of = [best_returns(jax.tree.map(lambda x, i=i: x[i : i + 1], alike), tables, 2)[0] for i in range(12)]
    for num_at_once in (1, 10**9):
        monkeypatch.setattr(rule_room_optimum, "NUM_AT_ONCE", num_at_once)
        np.testing.assert_array_equal(best_returns(alike, tables, 2), alone_of)


def test_what_cannot_be_reached_is_not_reached_with_time():
    """Object 0 in the corner has 1 and 2 around it: with the only goal from (0, 3) nothing is to be had."""
    table = np.zeros((NUM_OBJECTS + 2, NUM_OBJECTS), int)
    table[0, 3] = table[3, 0] = GOAL
    task = one_task("main", 0)._replace(homes=np.array([0, 1, 4, 15]), start=10, reactions=table)
    only = table.copy()
    only[EMPTY, 1:3] = VOID  # what is touched in front of it is gone: then it can be reached
    for horizon, is_open in itertools.product((12, 40, 60), (False, True)):
        found = oracle_return(task._replace(horizon=np.int32(horizon), reactions=only if is_open else table))
        assert (found > 0) == is_open


def test_there_is_no_goal_without_one():
    with pytest.raises(ValueError, match="^kind makes NOTHING, expected GOAL or MIDDLE$"):
        possible_reactions(KINDS["impossible"])
