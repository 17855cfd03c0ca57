"""Lanes: what an agent does in one, that it learns by its program as by straight code, and that lanes share nothing."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.networks.agent import NetworkConfig, make_agent
from agents.types import PredictionSpec
from meta.programs.evaluation import LISTS, Draws, Transition, assemble, evaluate, registers_of
from meta.programs.lanes import LaneConfig, make_lanes
from meta.programs.language import FORMULAS, LOSSES, parse
from toy_envs.base import Environment
from toy_envs.catch import Catch

ENVIRONMENT = Catch(5, 5)  # episodes of four steps
CONFIG = LaneConfig(
    hidden=(16,), learning_rate=0.05, exploration=6, target_period=3, capacity=10, batch_size=4, num_episodes=7
)
BASIC = (LISTS[0], LISTS[3])
NONE = Draws(jnp.zeros(LOSSES.max_nodes), jnp.zeros(LOSSES.max_nodes))


@functools.cache
def functions(lists=LISTS, has_draws=True):
    lanes = make_lanes(ENVIRONMENT, CONFIG, lists, has_draws)
    run = jax.jit(jax.vmap(lanes.run, in_axes=(0, None, 0, None)), static_argnums=3)
    return jax.jit(jax.vmap(lanes.init)), run


def instructions(formulas, lists=LISTS):
    programs = [assemble(LOSSES, parse(LOSSES, formula), registers_of(lists)) for formula in formulas]
    return jax.tree.map(lambda *x: np.stack(x), *programs)


def start(num=2, seed=0):
    return functions()[0](jax.random.split(jax.random.key(seed), num))


def one(lanes, i):
    return jax.tree.map(lambda x: x[i], lanes)


def plain(lane):
    """Without the typed keys, which NumPy does not know."""
    return lane._replace(key=(), env_state=())


def of(name):
    return instructions([FORMULAS[name]])


def test_a_lane_counts_its_episodes_and_then_its_counts_stay():
    lanes = functions()[1](of("dqn"), 20, start(1), 27)
    assert (lanes.num_steps[0], lanes.num_episodes[0], lanes.is_over[0]) == (27, 6, False)
    assert abs(lanes.return_sum[0]) <= 6 and lanes.return_sum[0] % 1 == 0
    after = functions()[1](of("dqn"), 20, lanes, 27)
    assert after.num_episodes[0] == 7 and after.is_over[0]
    again = functions()[1](of("dqn"), 20, after, 27)
    assert (again.num_episodes[0], again.return_sum[0]) == (7, after.return_sum[0])


def test_what_is_replayed_is_what_was_seen_and_an_episode_ends_in_its_own_last_state():
    lane = one(functions()[1](of("dqn"), 20, start(1), 8), 0)
    state, next_state = np.asarray(lane.replayed.state), np.asarray(lane.replayed.next_state)
    for t in range(8):
        pellet_rows = [int(np.argwhere(x[t])[0, 0]) for x in (state, next_state)]
        assert pellet_rows == [t % 4, t % 4 + 1]
        assert lane.replayed.discount[t] == (t % 4 != 3)
        if t % 4:
            np.testing.assert_array_equal(state[t], next_state[t - 1])
    assert not np.any(lane.replayed.state[8:])
    np.testing.assert_array_equal(np.abs(lane.replayed.reward), [0, 0, 0, 1, 0, 0, 0, 1, 0, 0])
    wrapped = one(functions()[1](of("dqn"), 20, start(1), 13), 0)
    np.testing.assert_array_equal(wrapped.replayed.state[3:8], lane.replayed.state[3:8])
    assert np.any(wrapped.replayed.state[2] != lane.replayed.state[2])


class Counting(Environment):
    """Shows how many steps an episode has had; a time limit ends it after three."""

    observation_shape, num_actions = (1,), 2

    def initial_state(self, key):
        return jnp.zeros((), jnp.int32)

    def restart(self, state):
        return jnp.zeros((), jnp.int32)

    def transition(self, state, action):
        return state + 1, jnp.ones(()), jnp.zeros((), bool), state == 2

    def observe(self, state):
        return state[None].astype(jnp.float32)


def test_a_time_limit_ends_an_episode_but_not_what_is_to_come():
    lanes = make_lanes(Counting(), CONFIG)
    lane = lanes.run(one(of("dqn"), 0), 20, lanes.init(jax.random.key(0)), 7)
    np.testing.assert_array_equal(lane.replayed.state[:7, 0], [0, 1, 2, 0, 1, 2, 0])
    np.testing.assert_array_equal(lane.replayed.next_state[:7, 0], [1, 2, 3, 1, 2, 3, 1])
    np.testing.assert_array_equal(lane.replayed.discount[:7], 1)
    assert (lane.num_episodes, lane.return_sum, lane.episode_return) == (2, 6, 1)


@pytest.mark.parametrize("name", FORMULAS)
def test_an_update_is_that_of_straight_code(name):
    """The first step's batch is its one transition, four times."""
    before = one(start(1), 0)
    after = one(functions()[1](of(name), 20, start(1), 1), 0)
    row = jax.tree.map(lambda x: jnp.tile(x[:1], (4, *[1] * (x.ndim - 1))), after.replayed)
    agent = make_agent(NetworkConfig("mlp", (16,)), {"q": PredictionSpec(is_per_action=True)}, 3)

    def loss(params):
        q_of = lambda params, state: agent.step(params, state, jnp.zeros(4, bool), ())[0]["q"]
        sources = {"Q": params, "QTarget": before.params}
        states = {"s": row.state, "s_next": row.next_state}
        lists = {name: q_of(sources[name[0]], states[name[1]]) for name in LISTS}
        flat = [states[x].reshape(4, -1) for x in ("s", "s_next")]
        transition = Transition(lists, row.action, row.reward, 0.99 * row.discount, *flat)
        return jnp.mean(evaluate(LOSSES, parse(LOSSES, FORMULAS[name]), transition, NONE))

    optimizer = optax.adam(0.05)
    updates, moments = optimizer.update(jax.grad(loss)(before.params), optimizer.init(before.params))
    expected = optax.apply_updates(before.params, updates), moments  # Adam's first step shows no size of gradients
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7)
    jax.tree.map(close, (after.params, after.opt_state), expected)
    jax.tree.map(np.testing.assert_array_equal, after.slow, before.params)


def test_q_is_copied_every_third_update():
    lane = start(1)
    for step in range(1, 8):
        before, lane = lane, functions()[1](of("dqn"), 20, lane, 1)
        copied = lane.params if step % 3 == 0 else before.slow
        jax.tree.map(np.testing.assert_array_equal, lane.slow, copied)


def test_actions_are_random_at_first_and_greedy_then():
    greedy = dataclasses.replace(CONFIG, hidden=(32,), epsilon=0.0, learning_rate=1e-9)
    lanes = make_lanes(ENVIRONMENT, greedy)
    first = lanes.init(jax.random.key(0))
    run = jax.jit(jax.vmap(lanes.run, in_axes=(None, None, 0, None)), static_argnums=3)
    many = jax.tree.map(lambda x: jnp.tile(x[None], (300, *[1] * x.ndim)), first)
    many = many._replace(key=jax.random.split(jax.random.key(1), 300))
    after = run(one(of("dqn"), 0), 20, many, 10)
    agent = make_agent(NetworkConfig("mlp", (32,)), {"q": PredictionSpec(is_per_action=True)}, 3)
    states = after.replayed.state.reshape(3000, 5, 5)
    q = agent.step(first.params, states, jnp.zeros(3000, bool), ())[0]["q"]
    is_greedy = np.mean(after.replayed.action == np.argmax(q, axis=-1).reshape(300, 10), axis=0)
    shares = np.maximum(0, 1 - np.arange(10) / 6)
    np.testing.assert_allclose(is_greedy, 1 - shares * 2 / 3, atol=0.08)


def test_a_lane_is_told_of_ends_by_gamma_or_by_values():
    """Where each episode is one step, nothing follows: with values 0 there, (max Q_targ(s′) − Q(s)[a])² is Q(s)[a]²."""

    class Once(Counting):
        def transition(self, state, action):
            return state + 1, jnp.ones(()), jnp.ones((), bool), jnp.zeros((), bool)

    def learned(formula, ends):
        lanes = make_lanes(Once(), dataclasses.replace(CONFIG, ends=ends, num_episodes=20))
        return lanes.run(one(instructions([formula]), 0), 20, lanes.init(jax.random.key(0)), 12).params

    bootstrap, to_zero = "(Q(s)[a] - max(Q_targ(s_next)))**2", "(Q(s)[a] - (r - r * 1))**2"
    assert trees_equal(learned(bootstrap, "values"), learned(to_zero, "values"))
    assert not trees_equal(learned(bootstrap, "gamma"), learned(to_zero, "gamma"))
    assert trees_equal(learned("(Q(s)[a] - gamma)**2", "values"), learned("(Q(s)[a] - 0.99)**2", "gamma"))
    assert not trees_equal(learned("(Q(s)[a] - gamma)**2", "values"), learned("(Q(s)[a] - gamma)**2", "gamma"))


def test_after_a_time_limit_values_are_there_in_either_form():
    def learned(ends):
        lanes = make_lanes(Counting(), dataclasses.replace(CONFIG, ends=ends))
        program = one(instructions(["(Q(s)[a] - (r + max(Q_targ(s_next))))**2"]), 0)
        return lanes.run(program, 20, lanes.init(jax.random.key(0)), 12).params

    assert trees_equal(learned("values"), learned("gamma"))


def trees_equal(one, other):
    return all(np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, (one, other)), strict=True))


def test_a_lane_does_not_depend_on_the_others():
    quiet = instructions([FORMULAS["dqn"], FORMULAS["dqn_reg"]])
    wild = instructions([FORMULAS["dqn"], "exp(100 * Q(s)[a]) * exp(100 * max(Q(s_next)))"])
    lanes, others = (functions()[1](x, 20, start(), 24) for x in (quiet, wild))
    jax.tree.map(np.testing.assert_array_equal, plain(one(lanes, 0)), plain(one(others, 0)))
    assert any(np.any(x[1] != y[1]) for x, y in zip(*map(jax.tree.leaves, (lanes.params, others.params)), strict=True))


def test_what_an_evaluation_comes_to_does_not_depend_on_the_chunk():
    counts = lambda lanes: [lanes.num_steps, lanes.num_episodes, lanes.return_sum, lanes.is_over, lanes.is_finite]
    run = functions()[1]
    over = run(of("dqn"), 20, start(1), 28)
    assert over.is_over[0]
    broken = over._replace(params=jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), over.params))  # after its end
    for later in (run(of("dqn"), 20, over, 5), run(of("dqn"), 20, start(1), 40), run(of("dqn"), 20, broken, 5)):
        jax.tree.map(np.testing.assert_array_equal, counts(later), counts(over))


def test_what_is_drawn_does_not_depend_on_the_chunk():
    run = functions()[1]
    at_once, in_parts = run(of("dqn"), 20, start(1), 8), run(of("dqn"), 20, run(of("dqn"), 20, start(1), 4), 4)
    for lanes in (at_once, in_parts):
        assert lanes.num_steps[0] == 8
    np.testing.assert_array_equal(at_once.replayed.action, in_parts.replayed.action)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)  # batches, too, are the same
    jax.tree.map(close, at_once.params, in_parts.params)


def test_a_lane_whose_parameters_are_not_finite_is_over():
    lanes = start()
    broken = jax.tree.map(lambda x: x.at[1].set(jnp.nan), lanes.params)
    after = functions()[1](instructions([FORMULAS["dqn"]] * 2), 20, lanes._replace(params=broken), 4)
    np.testing.assert_array_equal(after.is_finite, [True, False])
    np.testing.assert_array_equal(after.is_over, [False, True])


def test_a_lane_that_diverges_is_over_and_the_one_beside_it_goes_on():
    lanes = make_lanes(ENVIRONMENT, dataclasses.replace(CONFIG, learning_rate=1e38))
    first = jax.vmap(lanes.init)(jax.random.split(jax.random.key(0), 2))
    programs = instructions([FORMULAS["dqn"], "0 * Q(s)[a]"])  # no gradient: whatever the rate, nothing is moved
    after = jax.vmap(lanes.run, in_axes=(0, None, 0, None))(programs, 20, first, 12)
    np.testing.assert_array_equal(after.is_finite, [False, True])
    np.testing.assert_array_equal(after.is_over, [True, False])
    assert after.num_steps[0] < 12 == after.num_steps[1]
    assert trees_equal(one(after.params, 1), one(first.params, 1))


def test_a_version_for_fewer_lists_learns_the_same():
    programs = [FORMULAS["dqn"], FORMULAS["dqn_clipped"]]
    few = functions(BASIC, False)[1](instructions(programs, BASIC), 20, start(), 12)
    every = functions()[1](instructions(programs), 20, start(), 12)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), few.params, every.params)


def test_dqn_learns_catch():
    config = LaneConfig(
        hidden=(32,), learning_rate=3e-3, exploration=1000, capacity=2000, num_episodes=750, target_period=50
    )
    lanes = make_lanes(ENVIRONMENT, config, BASIC, has_draws=False)
    run = jax.jit(lanes.run, static_argnums=3)
    program = one(instructions([FORMULAS["dqn"]], BASIC), 0)
    lane = run(program, 20, lanes.init(jax.random.key(0)), 2000)
    early = lane.return_sum
    lane = run(program, 20, lane, 1000)
    assert lane.is_over and (lane.return_sum - early) / 250 > 0.7
