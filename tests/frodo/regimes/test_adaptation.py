"""Episodes of trials with θ frozen: against a plain loop, on tasks of choice, and scores of rooms by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import frodo
from agents.networks.agent import NetworkConfig
from experiments.results import k_shot
from frodo.regimes.adaptation import held_out_tasks, returns_by_trial
from frodo.regimes.k_shot import references
from frodo.regimes.learner import build_learner
from frodo.settings import presets
from tests.toy_envs.test_trials import Corridors
from tests.trees import check_equal
from toy_envs.rule_room import ABSENT, GOAL, HELD_OUT, RuleRoom
from toy_envs.trials import Trials

KEY = jax.random.key(3)


def make(environment, core=3, policy=None):
    """Return a learner and random parameters; another policy takes the place of the rule's."""
    config = presets.for_rule("", "impala").agent_only().replace(network=NetworkConfig("mlp", (4,), core=core))
    learner = build_learner(config, environment.num_actions)
    if policy is not None:
        learner = learner._replace(setup=learner.setup._replace(rule=learner.setup.rule._replace(policy=policy)))
    observation = jnp.zeros((1, *Trials(environment, 1).observation_shape))
    return learner, jax.jit(learner.setup.agent.init)(jax.random.key(1), observation)


def play_by_hand(learner, params, trials, task):
    """One episode, step by step: its length, and the rewards by trial."""
    agent, environment = learner.setup.agent, trials.environment
    state = trials.begin(trials.initial_state(KEY), task)
    core_state, is_first, returns, length, number = agent.initial_state(1), True, np.zeros(trials.num_trials), 0, 0
    step, transition = jax.jit(agent.step), jax.jit(environment.transition)
    while number < trials.num_trials:
        predictions, core_state = step(params, trials.observe(state)[None], jnp.array([is_first]), core_state)
        action = jnp.argmax(predictions["policy"][0])
        _, reward, terminated, truncated = transition(state.state, action)
        returns[number] += reward
        is_over = bool(terminated | truncated)
        number, is_first, length = number + is_over, is_over and trials.is_forgetful, length + 1
        state = trials.transition(state, action)[0]
    return length, returns


@pytest.mark.parametrize("forgets", [False, True])
def test_whole_episodes_are_those_of_a_plain_loop_and_memory_lasts_as_long_as_said(forgets):
    environment = Corridors()
    learner, params = make(environment)
    tasks = jax.vmap(environment.initial_state)(jax.random.split(jax.random.key(0), 6))
    tasks = tasks._replace(episode=jnp.arange(-3, 3))
    how = dict(num_trials=3, num_episodes=2, is_greedy=True)
    play = lambda params, tasks: returns_by_trial(learner, params, environment, tasks, KEY, **how, is_forgetful=forgets)
    found = jax.jit(play)(params, tasks)
    plain = [
        play_by_hand(learner, params, Trials(environment, 3, None, forgets), jax.tree.map(lambda x, i=i: x[i], tasks))
        for i in range(6)
    ]
    lengths, returns = zip(*plain, strict=True)
    assert len(set(lengths)) > 1, "some are over while others go on"
    np.testing.assert_array_equal(found, np.array(returns))
    other = jax.jit(lambda: returns_by_trial(learner, params, environment, tasks, KEY, **how, is_forgetful=not forgets))
    assert np.any(found != other())


def test_with_the_same_parameters_and_key_it_is_the_same_again():
    room = RuleRoom("easy")
    learner, params = make(room)

    @jax.jit
    def play(params, key):
        tasks = held_out_tasks(room, 20)
        return returns_by_trial(learner, params, room, tasks, key, num_trials=2, num_episodes=3)

    first, again, other = play(params, KEY), play(params, KEY), play(params, jax.random.key(4))
    assert first.shape == (20, 2) and np.sum(first) > 0
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


def test_scores_of_two_rooms_by_hand():
    # Objects lie in the first row, at cells 1 and 2, and make the goal. Who always goes right has it after two steps
    # from cell 0, and never from cell 4, where it takes three.
    room = RuleRoom("easy")
    reactions = np.zeros((6, 4), np.int32)
    reactions[0, 1] = reactions[1, 0] = GOAL
    task = room.task(np.uint32(0))._replace(homes=jnp.array([1, 2, ABSENT, ABSENT]), reactions=jnp.array(reactions))
    tasks = jax.vmap(lambda start: room.begin(task._replace(start=start)))(jnp.array([0, 4]))
    learner, params = make(room, policy=lambda predictions: predictions["policy"].at[:, 4].set(1e9))
    play = lambda params: returns_by_trial(learner, params, room, tasks, KEY, num_trials=2)
    found = jax.jit(play)(params)
    np.testing.assert_allclose(found, [[11 / 12] * 2, [0, 0]], rtol=1e-6)

    known = references(room, tasks, (2,))
    np.testing.assert_allclose(known.oracle, [11 / 12, 10 / 12])
    assert known.mean_oracle == pytest.approx(21 / 24) == known.one_trial
    np.testing.assert_allclose(known.optimum[2], [21 / 24] * 2)  # there is nothing to find out
    own = k_shot.statistics(np.asarray(found)[None], known.oracle)
    expected = {"return": 11 / 24, "score": 11 / 21, "median": 0.5, "p20": 0.2}
    assert {name: pytest.approx(values) for name, values in own.items()} == {
        name: np.full((1, 2), value) for name, value in expected.items()
    }


def test_held_out_tasks():
    room = RuleRoom("main", pool=16)
    tasks = jax.jit(lambda: held_out_tasks(room, 3))()
    for i in range(3):
        one = jax.jit(lambda task_id: room.begin(room.task(task_id)))(np.uint32(HELD_OUT[i]))
        check_equal(jax.tree.map(lambda x, i=i: x[i], tasks), one)
    with pytest.raises(ValueError, match="^num_tasks is 1001, expected at most the 1000 that are held out$"):
        held_out_tasks(room, 1001)
    drawn = held_out_tasks(Corridors(), 4)
    assert len(set(np.asarray(drawn.episode).tolist())) == 4


def test_k_shot_has_random_actions_and_the_best_explorer_next_to_the_agent():
    room = RuleRoom("medium")
    learner, params = make(room, policy=lambda predictions: predictions["policy"].at[:, 0].set(1e9))  # stays
    found = frodo.k_shot(learner, params, room, KEY, num_trials=3, num_tasks=64, num_episodes=2)
    assert found.returns.shape == found.of_random.shape == (64, 3) and found.oracle.shape == (64,)
    assert not np.any(found.returns) and 0 < found.of_random.mean() < 0.3
    known = references(room, held_out_tasks(room, 64), (3,))
    np.testing.assert_allclose(found.optimum, known.optimum[3])
    assert np.all(found.optimum > found.of_random.mean(axis=0)) and found.optimum[0] < found.optimum[2]
    with pytest.raises(ValueError, match="^tasks of the kind impossible have no goal to find"):
        frodo.k_shot(learner, params, RuleRoom("impossible"), KEY, num_trials=3)


def test_the_best_explorer_of_a_mixture_is_the_mean_of_those_of_its_kinds():
    mixed = RuleRoom("solvable")
    found = references(mixed, held_out_tasks(mixed, 12), (1,))
    ids = np.array(mixed.held_out_ids[:12], np.uint32)
    numbers = np.asarray(jax.vmap(mixed.kind_number)(ids))
    optimum = np.zeros(1)
    assert set(numbers) == {0, 1, 2, 3}
    for number, kind in enumerate(mixed.shares):
        own = jax.tree.map(lambda x, number=number: x[numbers == number], held_out_tasks(mixed, 12))
        optimum += np.mean(numbers == number) * references(RuleRoom(kind), own, (1,)).optimum[1]
    np.testing.assert_allclose(found.optimum[1], optimum, rtol=1e-5)
