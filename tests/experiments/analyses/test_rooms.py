"""Pictures of rule rooms, and what may be their rules, against every table of rules that is played through."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from experiments.analyses import rooms
from experiments.results.plots import COLOURS
from toy_envs.rule_room import KINDS, RuleRoom
from toy_envs.rule_room_optimum import possible_reactions
from toy_envs.trials import Trials


def played(kind, num_trials, seed):
    """Random play of an episode: the states before each step, and the actions."""
    room = RuleRoom(kind)
    trials = Trials(room, num_trials)

    @jax.jit
    def run(key):
        actions = jax.random.randint(key, (trials.horizon,), 0, room.num_actions)
        step = lambda state, action: (trials.transition(state, action)[0], state.state)
        return jax.lax.scan(step, trials.initial_state(key), actions)[1], actions

    return room, *jax.device_get(run(jax.random.key(seed)))


@pytest.mark.parametrize("kind", ["medium", "main", "chain"])
def test_rules_are_possible_that_would_have_given_what_was_seen(kind):
    for seed in range(4):
        room, states, actions = played(kind, 6, seed)
        tables = possible_reactions(KINDS[kind])

        @jax.jit
        def outcomes(states, actions, tables, room=room):
            """Return what each action leads to before a restart by each table, [tables, T, ...]."""

            def after(state, action, table):
                new, reward, _, _ = room.transition(
                    state._replace(task=state.task._replace(reactions=jnp.asarray(table))), action
                )
                return new.agent, new.hand, new.is_home, new.is_goal, reward

            of_steps = jax.vmap(after, (0, 0, None))
            return jax.vmap(of_steps, (None, None, 0))(states, actions, tables)

        seen = outcomes(states, actions, states.task.reactions[:1])
        by_table = outcomes(states, actions, tables)
        same = np.ones((len(tables), len(actions)), bool)
        for one, all_ in zip(seen, by_table, strict=True):
            same &= np.all(np.asarray(one == all_).reshape(*same.shape, -1), axis=-1)
        is_possible = np.concatenate([np.ones((len(tables), 1), bool), np.cumprod(same, axis=1)[:, :-1] > 0], axis=1)
        pairs = [(i, j) for j in range(KINDS[kind].num_objects) for i in range(j)]
        found = rooms.beliefs(room, states, actions)
        assert list(found) == ["ABCD"[i] + "ABCD"[j] for i, j in pairs]
        for (i, j), share in zip(pairs, found.values(), strict=True):
            expected = [np.mean(tables[possible][:, i, j] == KINDS[kind].makes) for possible in is_possible.T]
            np.testing.assert_allclose(share, expected)
        np.testing.assert_allclose(sum(found.values()), 1)
    assert len(np.unique(np.array(list(found.values())))) > 2  # something was learned


def test_kinds_whose_rules_are_of_no_goal_or_many_kinds_have_no_beliefs():
    for kind in ("mixed", "impossible", "pre_solved"):
        assert rooms.beliefs(*played(kind, 1, 0)) == {}


def test_a_picture_has_the_objects_that_lie_there_and_the_agent_with_what_it_holds():
    _, states, _ = played("main", 4, 0)
    images = rooms.pictures(states)
    at = lambda n, cell, inside: images[n][tuple(1 + 10 * part + inside for part in divmod(int(cell), 4))]
    held = 0
    for n in range(len(images)):
        for number, home in enumerate(states.task.homes[n]):
            expected = to_rgb(COLOURS[1 + number]) if states.is_home[n][number] else (1, 1, 1)
            np.testing.assert_allclose(at(n, home, 1), expected)
        np.testing.assert_array_equal(at(n, states.agent[n], 2), 0)
        hand = states.hand[n]
        np.testing.assert_allclose(at(n, states.agent[n], 4), to_rgb(COLOURS[1 + hand]) if hand < 4 else (1, 1, 1))
        held += hand < 4
        border = to_rgb(COLOURS[2]) if states.is_goal[n] else (0.9, 0.9, 0.9)
        np.testing.assert_allclose(images[n, 0, 0], border)
    assert 0 < held < len(images)
