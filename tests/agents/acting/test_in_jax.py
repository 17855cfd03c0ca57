"""Acting in both runtimes: what is in a trajectory belongs together, trajectories join, and threads end."""

import functools
import operator
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.acting.in_jax import Actor, Schedule, act, empty_trajectory, init_actor, restart, rollout
from agents.acting.in_jax import rollouts as rollouts_of
from agents.acting.on_host import HostActor
from agents.environments.dm_env import DmEnvBatch
from agents.environments.envpool import make_envpool
from agents.networks.agent import NetworkConfig, make_agent
from agents.types import PredictionSpec, check_trajectory
from frodo.devices import shared_out
from tests.equations import equations
from tests.reference.toy_envs import catch_episode
from toy_envs.base import DmEnv
from toy_envs.catch import Catch
from toy_envs.random_walk import RandomWalk

ROWS, COLUMNS = 5, 3
policy = lambda predictions: predictions["policy"]


@functools.cache
def make(num_actions=3, core=4):
    return make_agent(NetworkConfig("mlp", (8,), core), {"policy": PredictionSpec((num_actions,))}, num_actions)


def join(trajectories):
    """One long trajectory: all steps, and the observations before them with the very last one."""
    last = trajectories[-1]
    steps = [t._replace(observation=t.observation[:-1], is_first=t.is_first[:-1], core_state=()) for t in trajectories]
    joined = jax.tree.map(lambda *xs: np.concatenate(xs), *steps)
    return joined._replace(
        observation=np.concatenate([joined.observation, last.observation[-1:]]),
        is_first=np.concatenate([joined.is_first, last.is_first[-1:]]),
    )


def check_joints(trajectories):
    for before, after in zip(trajectories, trajectories[1:], strict=False):
        np.testing.assert_array_equal(before.observation[-1], after.observation[0])
        np.testing.assert_array_equal(before.is_first[-1], after.is_first[0])


def check_exploration(trajectories, num_envs):
    """The first 9 environment steps are explored: the share of the uniform policy falls from 1 to 0."""
    greedy = np.array([1.0, 0.0, 0.0])
    logits = np.concatenate([trajectory.behaviour_logits for trajectory in trajectories])
    for t, found in enumerate(logits):
        share = max(0.0, 1 - t * num_envs / 9)
        np.testing.assert_allclose(np.exp(found), np.tile((1 - share) * greedy + share / 3, (num_envs, 1)), atol=1e-6)
    actions = np.concatenate([trajectory.action for trajectory in trajectories])
    assert np.any(actions[:3]) and not np.any(actions[3:])


def greedy_policy(predictions):
    return jnp.log(jnp.zeros_like(predictions["policy"]).at[..., 0].set(1.0))


# Fused


def test_random_actions_grow_fewer_over_the_steps_of_the_exploration():
    environment, agent = Catch(ROWS, COLUMNS), make()
    state = init_actor(environment, agent, jax.random.key(0), 3)
    params = jax.jit(agent.init)(jax.random.key(1), state.time_step.observation)
    step = jax.jit(lambda state: rollout(Actor(environment, agent, greedy_policy, 9), params, state, 3))
    trajectories = []
    for _ in range(3):
        state, trajectory, _ = step(state)
        trajectories.append(jax.tree.map(np.asarray, trajectory))
    check_exploration(trajectories, 3)
    assert restart(environment, agent, state).num_steps == 0


@pytest.fixture(scope="module")
def rollouts():
    """Three rollouts of seven steps in three environments: episodes of four steps, at every offset."""
    environment, agent = Catch(ROWS, COLUMNS), make()
    state = init_actor(environment, agent, jax.random.key(0), 3)
    params = jax.jit(agent.init)(jax.random.key(1), state.time_step.observation)
    params = jax.tree.map(lambda x: 3 * x, params)
    step = jax.jit(lambda state: rollout(Actor(environment, agent, policy), params, state, 7))
    out = []
    for _ in range(3):
        state, trajectory, stats = step(state)
        out.append((jax.tree.map(np.asarray, trajectory), stats))
    return agent, params, out


def test_fused_rollouts_are_what_replaying_their_actions_gives(rollouts):
    _, _, out = rollouts
    trajectories = [trajectory for trajectory, _ in out]
    check_joints(trajectories)
    whole = join(trajectories)
    pellets, paid = set(), set()
    for b in range(3):
        for start in range(0, 21, ROWS - 1):
            actions = whole.action[start : start + ROWS - 1, b]
            pellet = int(np.argmax(whole.observation[start, b, 0]))
            observations, rewards = catch_episode(ROWS, COLUMNS, pellet, actions)
            end = start + len(actions)
            np.testing.assert_array_equal(whole.observation[start:end, b], observations)
            np.testing.assert_array_equal(whole.reward[start:end, b], rewards)
            is_over = np.arange(len(actions)) == ROWS - 2
            np.testing.assert_array_equal(whole.discount[start:end, b], ~is_over)
            np.testing.assert_array_equal(whole.is_first[start + 1 : end + 1, b], is_over)
            assert whole.is_first[start, b]
            pellets.add(pellet)
            paid |= set(rewards)
    assert np.all(whole.valid) and not np.any(whole.truncated)
    assert pellets == {0, 1, 2} and paid == {-1, 0, 1} and set(whole.action.flat) == {0, 1, 2}


def test_fused_episode_stats_are_those_of_the_episodes_that_ended(rollouts):
    _, _, out = rollouts
    for trajectory, stats in out:
        ended = trajectory.discount == 0
        # Catch pays at the end only.
        assert stats.num_episodes == ended.sum() > 0
        assert stats.return_sum == trajectory.reward[ended].sum()


class Counting(RandomWalk):
    """Pays the number of the step within the episode; three steps and a time limit."""

    def transition(self, state, action):
        state = state._replace(position=state.position + 1, num_steps=state.num_steps + 1)
        is_over = state.position == 5
        return state, (state.position - 2.0).astype("float32"), is_over & False, is_over


class Acting(NamedTuple):
    params: Any


def test_who_acts_changes_with_the_update_after_each_trajectory(rollouts):
    _, params, _ = rollouts
    environment, agent = Catch(ROWS, COLUMNS), make()
    state = init_actor(environment, agent, jax.random.key(0), 3)
    update = lambda acting, trajectory: Acting(jax.tree.map(lambda x: x + 0.1 * trajectory.reward.sum(), acting.params))
    actor, schedule = Actor(environment, agent, policy), Schedule(3, 5, 4)
    run = jax.jit(lambda p: rollouts_of(actor, schedule, Acting(p), operator.attrgetter("params"), update, state))
    _, trajectories, validation, stats = run(params)
    moved = 0
    for m in range(4):
        trajectory = jax.tree.map(lambda x, m=m: x[m], trajectories) if m < 3 else validation
        logits = policy(agent.unroll(params, trajectory))[:-1]
        np.testing.assert_allclose(trajectory.behaviour_logits, logits, rtol=1e-5, atol=1e-5)
        moved += bool(trajectory.reward.sum())
        params = update(Acting(params), trajectory).params
    assert moved >= 2 and stats.num_episodes == 3 * (3 * 5 + 4 - 3) // 4


def test_fused_returns_are_summed_across_rollouts_and_truncations_count():
    environment, agent = Counting(), make(1, core=0)
    state = init_actor(environment, agent, jax.random.key(0), 2)
    params = agent.init(jax.random.key(1), state.time_step.observation)
    step = jax.jit(lambda state: rollout(Actor(environment, agent, policy), params, state, 2))
    stats, trajectories = [], []
    for _ in range(4):
        state, trajectory, ended = step(state)
        stats.append((int(ended.num_episodes), float(ended.return_sum)))
        trajectories.append(trajectory)
    # Two environments, each with episodes 1 + 2 + 3 and a reset after each.
    assert stats == [(0, 0), (2, 12), (0, 0), (2, 12)]
    whole = join(trajectories)
    np.testing.assert_array_equal(whole.reward[:, 0], [1, 2, 3, 0, 1, 2, 3, 0])
    np.testing.assert_array_equal(whole.truncated[:, 0], [0, 0, 1, 0, 0, 0, 1, 0])
    np.testing.assert_array_equal(whole.valid[:, 0], [1, 1, 1, 0, 1, 1, 1, 0])
    np.testing.assert_array_equal(whole.is_first[:, 0], [1, 0, 0, 0, 1, 0, 0, 0, 1])


def test_fused_behaviour_is_what_unrolling_says_with_the_core_state_at_the_start(rollouts):
    agent, params, out = rollouts
    unroll = jax.jit(agent.unroll)
    for trajectory, _ in out:
        expected = unroll(params, trajectory)["policy"][:-1]
        np.testing.assert_allclose(trajectory.behaviour_logits, expected, rtol=1e-5, atol=1e-6)
    assert np.any(out[1][0].core_state.hidden != 0)


def test_fused_actions_are_drawn_from_the_behaviour():
    environment, agent = Catch(ROWS, COLUMNS), make(core=0)
    state = init_actor(environment, agent, jax.random.key(0), 64)
    params = agent.init(jax.random.key(1), state.time_step.observation)
    logits = np.log([0.1, 0.6, 0.3])
    fixed = lambda predictions: 0 * predictions["policy"] + logits
    step = jax.jit(lambda state: rollout(Actor(environment, agent, fixed), params, state, 60))
    state, trajectory, _ = step(state)
    frequency = np.bincount(np.asarray(trajectory.action).ravel(), minlength=3) / trajectory.action.size
    np.testing.assert_allclose(frequency, [0.1, 0.6, 0.3], atol=0.03)
    # Drawn anew in each rollout.
    np.testing.assert_allclose(np.mean(step(state)[1].action == trajectory.action), 0.01 + 0.36 + 0.09, atol=0.03)


def test_an_empty_trajectory_has_the_shapes_and_dtypes_of_an_acted_one(rollouts):
    agent, _, out = rollouts
    trajectory, _ = out[0]
    empty = empty_trajectory(agent, trajectory.observation[0], 7, 3)
    check_trajectory(trajectory)
    check_trajectory(empty)
    for x, y in zip(jax.tree.leaves(empty), jax.tree.leaves(trajectory), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype) and not np.any(x)


def test_acting_in_one_step_is_what_a_rollout_does(rollouts):
    agent, params, out = rollouts
    trajectory, _ = out[0]
    now = trajectory.observation[0], trajectory.is_first[0], agent.initial_state(3)
    action, logits, core_state = jax.jit(lambda key: act(agent, policy, params, key, *now))(jax.random.key(0))
    np.testing.assert_allclose(logits, trajectory.behaviour_logits[0], rtol=1e-5, atol=1e-6)
    assert action.dtype == np.int32 and np.any(core_state.hidden != 0)


# Actor threads


class Watched(DmEnvBatch):
    """Remembers whether it was closed."""

    is_closed = False

    def close(self):
        super().close()
        self.is_closed = True


class Replacing(Watched):
    """Gives its actor new parameters at the second step, which is the actor's own thread."""

    num_steps, actor, new = 0, None, None

    def step(self, actions):
        self.num_steps += 1
        if self.num_steps == 2:
            self.actor.params = self.new
        return super().step(actions)


class Failing(Watched):
    """Breaks down at the fifth step."""

    num_steps = 0

    def step(self, actions):
        self.num_steps += 1
        if self.num_steps == 5:
            raise RuntimeError("the environment broke down")
        return super().step(actions)


@functools.cache
def catches():
    """Compiled once; resetting them starts anew."""
    return [DmEnv(Catch(ROWS, COLUMNS), seed) for seed in range(3)]


def catch_batch(cls=Watched):
    return cls(catches(), "catch")


def host_actor(environment, agent, num_steps=4, num_trajectories=3, num_validation_steps=0):
    observation = environment.reset().observation
    params = jax.jit(agent.init)(jax.random.key(1), observation)
    schedule = Schedule(num_trajectories, num_steps, num_validation_steps)
    return HostActor(environment, agent, policy, schedule, params, jax.random.key(2)), params


def trajectories_of(experience):
    """Split one iteration into its trajectories."""
    stacked = jax.tree.map(np.asarray, experience.trajectories)
    return [jax.tree.map(operator.itemgetter(m), stacked) for m in range(len(stacked.action))]


def check_contract(whole):
    """Next-step reset: nobody chose the step after an end, and it shows a first observation."""
    np.testing.assert_array_equal(whole.is_first[0], True)
    np.testing.assert_array_equal(whole.valid, ~whole.is_first[1:])
    is_over = (whole.discount == 0) | whole.truncated
    np.testing.assert_array_equal(whole.is_first[2:], is_over[:-1])
    assert not np.any(whole.is_first[1])
    np.testing.assert_array_equal(whole.reward[~whole.valid], 0)
    np.testing.assert_array_equal(whole.discount[~whole.valid], 1)
    np.testing.assert_array_equal(whole.truncated[~whole.valid], False)


def returns_of(whole):
    """Sum the rewards of each episode that ended, in the order of the steps."""
    sums, returns = np.zeros(whole.reward.shape[1]), []
    for t, rewards in enumerate(whole.reward):
        sums += rewards
        for b in np.flatnonzero((whole.discount[t] == 0) | whole.truncated[t]):
            returns.append(sums[b])
            sums[b] = 0
    return returns


def test_host_actor_on_catch_is_what_replaying_its_actions_gives():
    environment, agent = catch_batch(), make()
    actor, params = host_actor(environment, agent)
    with actor:
        iterations = [actor.get() for _ in range(3)]
    trajectories = [trajectory for experience in iterations for trajectory in trajectories_of(experience)]
    check_joints(trajectories)
    whole = join(trajectories)
    check_contract(whole)
    for b in range(3):
        starts = np.flatnonzero(whole.is_first[:-1, b])
        np.testing.assert_array_equal(starts, np.arange(0, 36, ROWS))  # four moves and the reset step
        for start in starts:
            actions = whole.action[start : start + ROWS - 1, b]
            pellet = int(np.argmax(whole.observation[start, b, 0]))
            observations, rewards = catch_episode(ROWS, COLUMNS, pellet, actions)
            end = start + len(actions)
            np.testing.assert_array_equal(whole.observation[start:end, b], observations)
            np.testing.assert_array_equal(whole.reward[start:end, b], rewards)
            np.testing.assert_array_equal(whole.discount[start:end, b], np.arange(len(actions)) != ROWS - 2)
    assert [r for experience in iterations for r in experience.returns] == returns_of(whole)
    unroll = jax.jit(agent.unroll)
    for trajectory in trajectories:
        expected = unroll(params, trajectory)["policy"][:-1]
        np.testing.assert_allclose(trajectory.behaviour_logits, expected, rtol=1e-5, atol=1e-6)
    assert np.any(trajectories[1].core_state.hidden != 0)


def test_host_actor_on_envpool_obeys_the_contract_at_a_time_limit():
    environment = make_envpool("CartPole-v1", 3, seed=0, max_episode_steps=11)
    actor, _ = host_actor(environment, make(2, core=0), num_steps=20, num_trajectories=2)
    with actor:
        iterations = [actor.get() for _ in range(2)]
    trajectories = [trajectory for experience in iterations for trajectory in trajectories_of(experience)]
    check_joints(trajectories)
    whole = join(trajectories)
    check_contract(whole)
    assert np.any(whole.truncated) and np.any(whole.discount == 0) and not np.all(whole.valid)
    returns = [r for experience in iterations for r in experience.returns]
    assert returns == returns_of(whole) and max(returns) == 11 and min(returns) < 11


def test_what_goes_wrong_in_the_thread_is_raised_by_get():
    environment = catch_batch(Failing)
    actor, _ = host_actor(environment, make(core=0), num_steps=2, num_trajectories=2)
    with pytest.raises(RuntimeError, match="the environment broke down"), actor:
        actor.get()
        actor.get()
    assert not environment.is_closed and not actor._thread.is_alive()


@pytest.mark.parametrize("num_taken", [0, 1])
def test_leaving_ends_the_thread_and_the_environment_stays_open(num_taken):
    environment = catch_batch()
    actor, _ = host_actor(environment, make(core=0))
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), actor:
        for _ in range(num_taken):
            actor.get()
        assert actor._thread.is_alive() and not environment.is_closed
        raise KeyboardInterrupt
    assert not actor._thread.is_alive() and not environment.is_closed
    assert time.monotonic() - start < 30


def test_host_actor_takes_new_parameters_at_the_start_of_a_trajectory():
    agent = make(core=0)
    actor, old = host_actor(catch_batch(), agent)
    new = jax.tree.map(lambda x: -x, old)
    unroll = jax.jit(agent.unroll)

    def acted_by(trajectory):
        """Which parameters' logits these are, for all of the trajectory."""
        close = lambda params: np.allclose(
            trajectory.behaviour_logits, unroll(params, trajectory)["policy"][:-1], rtol=1e-5, atol=1e-6
        )
        return {(True, False): "old", (False, True): "new"}[close(old), close(new)]

    with actor:
        acted = [acted_by(trajectory) for trajectory in trajectories_of(actor.get())]
        actor.params = new
        for _ in range(3):
            acted += [acted_by(trajectory) for trajectory in trajectories_of(actor.get())]
    num_old = acted.index("new")
    assert acted == ["old"] * num_old + ["new"] * (len(acted) - num_old)
    # One iteration may wait in the queue, and one may be on its way.
    assert 3 <= num_old <= 9


def test_new_parameters_do_not_wait_for_the_next_iteration():
    environment, agent = catch_batch(Replacing), make(core=0)
    environment.actor, old = host_actor(environment, agent)
    environment.new = jax.tree.map(lambda x: -x, old)
    with environment.actor as actor:
        trajectories = trajectories_of(actor.get())
    for trajectory, params in zip(trajectories, (old, environment.new, environment.new), strict=True):
        expected = agent.unroll(params, trajectory)["policy"][:-1]
        np.testing.assert_allclose(trajectory.behaviour_logits, expected, rtol=1e-5, atol=1e-6)


def test_host_actions_are_drawn_anew_and_go_on_from_the_key():
    agent = make(core=0)
    fixed = lambda predictions: 0 * predictions["policy"] + np.log([0.1, 0.6, 0.3])

    def iterations(key, number):
        environment = catch_batch()
        params = agent.init(jax.random.key(1), environment.reset().observation)
        with HostActor(environment, agent, fixed, Schedule(3, 20), params, key) as actor:
            return [actor.get() for _ in range(number)]

    first, second = iterations(jax.random.key(2), 2)
    (again,) = iterations(first.key, 1)
    np.testing.assert_array_equal(again.trajectories.action, second.trajectories.action)
    assert np.mean(first.trajectories.action != second.trajectories.action) > 0.3


def test_host_actors_explore_at_first_and_go_on_from_a_number_of_steps():
    agent, environment = make(core=0), catch_batch()
    params = agent.init(jax.random.key(1), environment.reset().observation)

    def trajectories(num_steps):
        start = (params, jax.random.key(2), 9, num_steps)
        with HostActor(environment, agent, greedy_policy, Schedule(3, 3), *start) as actor:
            return trajectories_of(actor.get())

    check_exploration(trajectories(0), 3)
    (greedy, *_) = trajectories(9)
    assert not np.any(greedy.action)


def test_a_validation_trajectory_follows_and_has_its_own_length():
    actor, _ = host_actor(catch_batch(), make(core=0), 4, 3, 7)
    with actor:
        iteration = actor.get()
    last, validation = trajectories_of(iteration)[-1], jax.tree.map(np.asarray, iteration.validation)
    assert validation.action.shape == (7, 3) and validation.observation.shape[:2] == (8, 3)
    np.testing.assert_array_equal(validation.observation[0], last.observation[-1])
    np.testing.assert_array_equal(validation.is_first[0], last.is_first[-1])
    assert validation.observation[1:].any() and validation.behaviour_logits.all()  # filled to the end


def test_a_validation_trajectory_may_be_all_that_is_acted():
    actor, _ = host_actor(catch_batch(), make(core=4), 4, 0, 4)
    with actor:
        first, second = actor.get(), actor.get()
    assert [x.shape for x in jax.tree.leaves(first.trajectories.core_state)] == [(0, 3, 4)] * 2
    assert first.trajectories.action.shape == (0, 4, 3)
    np.testing.assert_array_equal(first.validation.observation[-1], second.validation.observation[0])


@pytest.mark.parametrize("core", [0, 4])
def test_what_another_agent_acted_is_not_handed_over(core):
    agent = make(core=core)
    actor, params = host_actor(catch_batch(), agent, 1, 1)  # shorter than an episode
    broken = jax.tree.map(lambda x: x * np.nan, params)
    with actor:
        actor.get()
        actor.params = broken
        while np.isfinite(actor.get().trajectories.behaviour_logits).all():
            pass
        actor.renew(params)
        for _ in range(3):
            assert np.isfinite(actor.get().trajectories.behaviour_logits).all()


def test_iterations_do_not_share_memory():
    actor, _ = host_actor(catch_batch(), make(core=0))
    with actor:
        first = actor.get().trajectories
        copy = jax.tree.map(np.copy, first)
        for _ in range(2):
            actor.get()
    for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(copy), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("is_shared_out", [False, True])
def test_a_step_that_ends_no_episode_draws_nothing(is_shared_out):
    """Actions are drawn for all steps at once, and what begins an episode only where one ends; in whole runs, too."""
    environment, agent = Catch(ROWS, COLUMNS), make()
    actor = Actor(environment, agent, policy)
    state = init_actor(environment, agent, jax.random.key(0), 3)
    params = jax.eval_shape(agent.init, jax.random.key(1), state.time_step.observation)
    if is_shared_out:  # as a run of several seeds
        one = lambda x: jax.tree.map(lambda x: x[0], x)
        act = shared_out(lambda both: jax.tree.map(lambda x: x[None], rollout(actor, *one(both), 7)), 1)
        params, state = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), (params, state))
        act_all = jax.make_jaxpr(lambda *of: act(of))(params, state)
    else:
        act_all = jax.make_jaxpr(lambda *of: rollout(actor, *of, 7))(params, state)
    (steps,) = (eqn for eqn in equations(act_all.jaxpr, ("scan",)) if eqn.primitive.name == "scan")
    body, draws = steps.params["jaxpr"].jaxpr, {"random_bits", "random_split"}
    names = lambda jaxpr, *but_of: {eqn.primitive.name for eqn in equations(jaxpr, but_of)}
    assert draws <= names(body) and not draws & names(body, "cond")
    of_platforms = [eqn for eqn in equations(body, ("cond",)) if eqn.primitive.name == "cond"]
    drawing = [x.jaxpr for eqn in of_platforms for x in eqn.params["branches"] if draws & names(x.jaxpr)]
    assert [bool(draws & names(jaxpr, "cond")) for jaxpr in drawing] == [False, True]  # that of CPUs, and the others'
