"""What a lifetime step learns from: sliding windows, replays, both; who acts, and what an iteration consists of."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.acting import in_jax as acting
from agents.acting import replay as replays
from agents.acting.in_jax import Actor
from agents.acting.replay import ReplayConfig
from agents.networks.agent import NetworkConfig, make_agent
from agents.rules.impala import ImpalaConfig, impala
from meta.targets.scalar import FrodoConfig, frodo
from meta.updates.experience import LifetimeState, init_window, make_lifetime, with_replay, with_window, without_window
from meta.updates.lifetime import AgentState, LifetimeConfig, Setup, clip_rewards, make_agent_step
from meta.updates.outer import OuterConfig, make_outer
from tests.trajectories import random_trajectory
from toy_envs.catch import Catch

NUM_UPDATES = 5


def agent_state(value: float) -> AgentState:
    return AgentState(jnp.array(value), (), (), (), jnp.zeros(()))


def step(meta_params, state, trajectories, validation):
    """Adds η times the trajectories' rewards; the meta-gradient is the sum of them, and the outer state counts."""
    rewards = trajectories.reward.sum(axis=(1, 2))
    is_over = 0 if validation is None else 1
    state = state._replace(params=state.params + meta_params * rewards.sum(), outer_state=state.outer_state + is_over)
    return state, rewards.sum(), {"first": rewards[0]}


def fresh(seed: int, num: int):
    return jax.tree.map(jnp.asarray, random_trajectory(seed, num, 5, 3))


ONE = jax.tree.map(lambda x: x[0], fresh(0, 1))


# Windows


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_each_trajectory_is_in_every_window_of_m_updates(stride):
    overlap = NUM_UPDATES - stride
    learn = jax.jit(with_window(step, overlap))
    agent = agent_state(1.0)
    state = LifetimeState(agent, (), init_window(overlap, ONE, agent))
    all_rewards, expected, num_ready = [], 1.0, 0
    for i in range(8):
        trajectories = fresh(100 * i, stride)
        all_rewards.extend(np.asarray(trajectories.reward).sum(axis=(1, 2)))
        meta_params = 1.0 + i
        state, meta_gradient, is_ready, metrics = learn(meta_params, state, trajectories, ONE, True)
        if len(all_rewards) - stride < overlap:  # the window is not yet full
            assert (
                not is_ready
                and meta_gradient == 0
                and np.isnan(metrics["first"])
                and state.agent.params == state.acting.params == 1
            )
            continue
        assert is_ready
        num_ready += 1
        window = all_rewards[-NUM_UPDATES:]
        np.testing.assert_allclose(meta_gradient, sum(window), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(metrics["first"], window[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(state.acting.params, expected + meta_params * sum(window), rtol=1e-4, atol=1e-4)
        expected += meta_params * sum(window[:stride])  # the next window begins here
        np.testing.assert_allclose(state.agent.params, expected, rtol=1e-4, atol=1e-4)
        assert state.agent.outer_state == num_ready  # once for each validation trajectory
        assert state.window.num_seen == len(all_rewards)
    assert num_ready >= 3


def test_without_a_window_every_update_is_taken_once():
    learn = jax.jit(without_window(step))
    state, expected = LifetimeState(agent_state(1.0), (), ()), 1.0
    for i in range(3):
        trajectories, meta_params = fresh(10 * i, NUM_UPDATES), 1.0 + i
        rewards = np.asarray(trajectories.reward).sum(axis=(1, 2))
        state, meta_gradient, is_ready, metrics = learn(meta_params, state, trajectories, ONE, True)
        expected += meta_params * rewards.sum()
        assert is_ready and state.acting is state.agent and state.agent.outer_state == i + 1
        for x, y in ((state.agent.params, expected), (meta_gradient, rewards.sum()), (metrics["first"], rewards[0])):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
    state, meta_gradient, is_ready, metrics = learn(1.0, state, trajectories, ONE, jnp.array(False))
    np.testing.assert_allclose(state.agent.params, expected, rtol=1e-4)
    assert not is_ready and meta_gradient == 0 and np.isnan(metrics["first"])


# Replays


def test_an_agent_waits_until_there_is_an_update():
    config = ReplayConfig(capacity=4, batch_size=4, fresh=0.5)
    count = lambda eta, state, trajectories, _: (state + 1, eta, {"seen": trajectories.reward.sum()})
    learn = jax.jit(with_replay(without_window(count), config))
    numbered = lambda first: ONE._replace(reward=jnp.tile(jnp.arange(first, first + 2.0), (5, 1)))
    two = lambda x: jax.tree.map(lambda x: x[:, :2], x._replace(core_state=()))
    stack = lambda first: two(ONE)._replace(reward=numbered(first).reward)
    state = LifetimeState(jnp.zeros(()), replays.init(config, jax.random.key(0), two(ONE)), ())
    one = lambda first: jax.tree.map(lambda x: x[None], stack(first))
    state, gradient, is_ready, metrics = learn(2.0, state, one(1), None, True)
    assert not is_ready and state.agent == 0 and gradient == 0 and np.isnan(metrics["seen"])
    state, gradient, is_ready, metrics = learn(2.0, state, one(3), None, True)
    assert is_ready and state.agent == 1 and gradient == 2
    assert 5 * (3 + 4) < metrics["seen"] <= 5 * (3 + 4 + 4 + 4)


def test_with_replay_the_window_holds_what_was_drawn():
    config = ReplayConfig(capacity=12, batch_size=6, fresh=0.5)
    learn = jax.jit(with_replay(with_window(step, 3), config))
    agent, replay = agent_state(0.0), replays.init(config, jax.random.key(0), ONE)
    drawn = replays.sample(config, replay, ONE)[1]
    state = LifetimeState(agent, replay, init_window(3, drawn, agent))
    before = state.window.trajectories
    assert before.reward.shape == (3, 5, 6)
    for i in range(4):
        state, _, is_ready, metrics = learn(1.0, state, fresh(10 * i, 1), ONE, True)
        window = state.window.trajectories
        np.testing.assert_array_equal(window.reward[:-1], before.reward[1:])
        np.testing.assert_array_equal(window.reward[-1, :, :3], fresh(10 * i, 1).reward[0])  # the fresh half
        before = window
        assert np.isnan(metrics["first"]) == (not is_ready) == (i < 3)
        assert state.replay.num_added == min(3 * (i + 1), 12)


def test_a_window_over_a_replay_waits_for_both():
    config = ReplayConfig(capacity=30, batch_size=13, fresh=0.0)  # of three at a time: after five
    learn = jax.jit(with_replay(with_window(step, 2), config))
    agent, replay = agent_state(0.0), replays.init(config, jax.random.key(0), ONE)
    drawn = replays.sample(config, replay, ONE)[1]
    state = LifetimeState(agent, replay, init_window(2, drawn, agent))
    ready = []
    for i in range(6):
        state, _, is_ready, _ = learn(1.0, state, fresh(10 * i, 1), ONE, True)
        ready.append(bool(is_ready))
    assert ready == [False] * 4 + [True] * 2


# A lifetime in an environment

ENVIRONMENT = Catch(4, 3)
CONFIG = LifetimeConfig(batch_size=2, unroll=3, validation_unroll=4, num_updates=2, gradient_mode="reverse")


@functools.cache
def setup_of(is_learned: bool, target_updates: int = 0) -> Setup:
    rule = frodo(FrodoConfig(lstm=4)) if is_learned else impala(ImpalaConfig())
    network = NetworkConfig("mlp", (4,))
    agent = make_agent(network, rule.spec(3), 3)
    outer = OuterConfig(is_bootstrapped=True, target_updates=target_updates) if target_updates else OuterConfig()
    return Setup(agent, rule, optax.sgd(0.1), make_outer(outer, rule, network, 3))


def begin(config: LifetimeConfig, is_learned: bool, target_updates: int = 0):
    setup = setup_of(is_learned, target_updates)
    lifetime = make_lifetime(config, setup, 3, is_meta=is_learned)
    actor = Actor(ENVIRONMENT, setup.agent, setup.rule.policy)

    def start():
        actor_state = acting.init_actor(ENVIRONMENT, setup.agent, jax.random.key(0), config.batch_size)
        meta_params = setup.rule.random_meta_params(jax.random.key(1), 3)
        keys = jax.random.split(jax.random.key(2))
        return meta_params, lifetime.init(*keys, actor_state.time_step.observation), actor_state

    return lifetime, actor, *jax.jit(start)()


def check_close(actual, expected):
    data = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    for x, y in zip(*(map(data, jax.tree.leaves(tree)) for tree in (actual, expected)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_an_iteration_acts_what_its_schedule_says_and_learns_from_that_with_clipped_rewards():
    config = dataclasses.replace(CONFIG, max_abs_reward=0.5)
    lifetime, actor, meta_params, state, actor_state = begin(config, True)
    schedule = config.schedule(is_meta=True)
    assert schedule == (2, 3, 4) and config.num_env_steps(True) == 2 * (2 * 3 + 4)

    @jax.jit
    def by_hand(actor_state):
        same = lambda acting, trajectory: acting
        actor_state, trajectories, validation, _ = acting.rollouts(
            actor, schedule, state.agent, lambda agent: agent.params, same, actor_state
        )
        clipped = clip_rewards(trajectories, 0.5), clip_rewards(validation, 0.5)
        learned = make_agent_step(setup_of(True), "reverse")(meta_params, state.agent, *clipped)
        return actor_state.env_state, trajectories.reward, learned

    learned, after, _ = jax.jit(lambda *x: lifetime.iterate(*x[:2], actor, x[2]))(meta_params, state, actor_state)
    env_state, rewards, expected = by_hand(actor_state)
    assert np.abs(rewards).max() == 1 and np.abs(learned.meta_gradient["target_network/target"]["b"]).max() > 0
    check_close(after.env_state, env_state)
    check_close((learned.state.agent, learned.meta_gradient, learned.metrics), expected)
    assert learned.state.replay == learned.state.window == () and learned.is_ready


def test_without_eta_to_learn_there_is_no_validation_and_no_window():
    config = dataclasses.replace(CONFIG, num_updates=3, stride=1, max_abs_reward=0.5)
    assert config.schedule(is_meta=False) == (3, 3, 0) and config.num_env_steps(False) == 2 * 3 * 3
    assert config.schedule(is_meta=True) == (1, 3, 4) and config.num_env_steps(True) == 2 * (3 + 4)
    lifetime, actor, meta_params, state, actor_state = begin(config, False)
    learned, after, stats = jax.jit(lambda *x: lifetime.iterate(*x[:2], actor, x[2]))(meta_params, state, actor_state)
    assert learned.state.window == () and learned.meta_gradient == meta_params == {} and learned.metrics == {}
    assert stats.num_episodes == 2 * 3 and np.all(after.env_state.row == 0)  # episodes of three steps
    moved = jax.tree.map(lambda x, y: bool(jnp.any(x != y)), state.agent.params, learned.state.agent.params)
    assert all(jax.tree.leaves(moved))


def test_interleaved_acting_is_by_the_parameters_that_the_update_before_led_to():
    config = dataclasses.replace(CONFIG, is_acting_interleaved=True, max_abs_reward=0.5)
    lifetime, actor, meta_params, state, actor_state = begin(config, False)
    setup, one = setup_of(False), lambda x: jax.tree.map(lambda x: x[None], clip_rewards(x, 0.5))

    @jax.jit
    def by_hand(actor_state):
        agent, step = state.agent, make_agent_step(setup, "reverse")
        for _ in range(2):
            actor_state, trajectory, _ = acting.rollout(actor, agent.params, actor_state, 3)
            agent, _, _ = step({}, agent, one(trajectory), None)
        return agent, actor_state.env_state

    learned, after, _ = jax.jit(lambda *x: lifetime.iterate(*x[:2], actor, x[2]))(meta_params, state, actor_state)
    check_close((learned.state.agent, after.env_state), by_hand(actor_state))


@pytest.mark.parametrize("target_updates", [0, 2])
@pytest.mark.parametrize("mode", ["reverse", "mixed"])
def test_interleaved_updates_act_and_are_differentiated_as_if_their_trajectories_were_given(mode, target_updates):
    own = dict(num_updates=3, is_acting_interleaved=True, max_abs_reward=0.5, gradient_mode=mode)
    config = dataclasses.replace(CONFIG, **own)
    lifetime, actor, meta_params, state, actor_state = begin(config, True, target_updates)

    @jax.jit
    def apart(actor_state):
        after, trajectories, validation, stats = lifetime.act(meta_params, state, actor, actor_state)
        return lifetime.learn(meta_params, state, trajectories, validation), after, stats, validation

    found = jax.jit(lambda *x: lifetime.iterate(*x[:2], actor, x[2]))(meta_params, state, actor_state)
    *expected, validation = apart(actor_state)
    check_close(found, tuple(expected))
    by_last = setup_of(True, target_updates).agent.unroll(found[0].state.agent.params, validation)["policy"][:-1]
    np.testing.assert_allclose(validation.behaviour_logits, by_last, atol=1e-5)
    assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(found[0].meta_gradient)) > 1e-5


@pytest.mark.parametrize(("num_updates", "stride"), [(2, 0), (1, 0), (3, 1)])
@pytest.mark.parametrize("is_interleaved", [False, True])
def test_a_kept_validation_trajectory_is_the_next_updates_first_and_on_policy(num_updates, stride, is_interleaved):
    config = dataclasses.replace(
        CONFIG,
        num_updates=num_updates,
        stride=stride,
        validation_unroll=3,
        is_validation_kept=True,
        is_acting_interleaved=is_interleaved,
        max_abs_reward=0.5,
    )
    num_fresh = (stride or num_updates) - 1
    assert config.schedule(True) == (num_fresh, 3, 3) and config.num_env_steps(True) == 2 * 3 * (stride or num_updates)
    assert config.schedule(False) == (num_updates, 3, 0)
    lifetime, actor, meta_params, state, actor_state = begin(config, True)
    assert not state.kept.valid.any()
    iterate = jax.jit(lambda *x: lifetime.iterate(*x[:2], actor, x[2]))
    step, setup = jax.jit(make_agent_step(setup_of(True), "reverse")), setup_of(True)
    for i in range(6):
        before, acted = state, actor_state
        learned, actor_state, _ = iterate(meta_params, state, acted)
        state = learned.state
        # The one that was validated with is kept as it was acted: rewards are clipped when it is learned from.
        assert np.abs(state.kept.reward).max() in (0, 1)
        logits = setup.agent.unroll(before.acting.params, before.kept)["policy"][:-1]
        if is_interleaved and i > (3 if stride else 0):  # a window waits until it is full
            np.testing.assert_allclose(before.kept.behaviour_logits, logits, atol=1e-5)  # by the θ that it moves
        if stride or not num_fresh:
            continue
        clipped = clip_rewards(before.kept, 0.5)
        after_first = step(meta_params, before.agent, jax.tree.map(lambda x: x[None], clipped), None)[0]
        acting_params = after_first.params if is_interleaved else before.agent.params
        _, fresh_one, _ = jax.jit(lambda p, a: acting.rollout(actor, p, a, 3))(acting_params, acted)
        both = jax.tree.map(lambda *xs: jnp.stack(xs), clipped, clip_rewards(fresh_one, 0.5))
        expected = step(meta_params, before.agent, both, clip_rewards(state.kept, 0.5))
        check_close((state.agent, learned.meta_gradient), expected[:2])
    if stride:
        np.testing.assert_array_equal(state.window.trajectories.reward[-1], clip_rewards(before.kept, 0.5).reward)
