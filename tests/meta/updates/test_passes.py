"""Minibatches: each step once in a pass, with what belongs to it, and updates on fixed targets."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.networks.agent import NetworkConfig, make_agent
from agents.rule import masked_reduce
from agents.rules.ppo import PPOConfig, ppo
from meta.updates import passes
from meta.updates.lifetime import Setup, init_agent_state, make_agent_step
from meta.updates.outer import Outer
from meta.updates.passes import Passes
from tests.equations import equations
from tests.trajectories import random_trajectory

T, B, A, CORE = 6, 4, 3, 5


def drawn(core=0):
    trajectory = random_trajectory(0, T, B, num_actions=A)
    state = {"hidden": np.random.default_rng(5).normal(size=(B, CORE))} if core else ()
    return jax.tree.map(jnp.asarray, trajectory._replace(core_state=state))


@pytest.mark.parametrize("core", [0, CORE])
def test_every_pass_has_each_step_once_in_an_order_of_its_own(core):
    num = B if core else T * B
    draws = passes.draw(jax.random.key(0), drawn(core), Passes(3, 2))
    assert draws.shape == (3, 2, num // 2)
    orders = draws.reshape(3, num)
    np.testing.assert_array_equal(np.sort(orders), np.tile(np.arange(num), (3, 1)))
    assert core or len({tuple(order) for order in np.asarray(orders)}) == 3


def test_a_minibatch_of_steps_has_what_belongs_to_each():
    trajectory, indices = drawn(), jnp.array([5, 23, 0])
    targets = {"x": jnp.arange(T * B * 2.0).reshape(T, B, 2)}
    part, of_part = jax.tree.map(lambda x: x[0], passes.take(trajectory, targets, indices[None]))
    for i, (t, b) in enumerate(divmod(int(index), B) for index in indices):
        for name in (
            "action",
            "reward",
            "discount",
            "truncated",
            "valid",
            "behaviour_logits",
            "observation",
            "is_first",
        ):
            np.testing.assert_array_equal(getattr(part, name)[i, 0], getattr(trajectory, name)[t, b], err_msg=name)
        np.testing.assert_array_equal(of_part["x"][i, 0], targets["x"][t, b])
    assert part.observation.shape == (3, 1, 2, 2) and part.action.shape == (3, 1)


def test_with_a_core_a_minibatch_is_whole_environments():
    trajectory, indices = drawn(CORE), jnp.array([2, 0])
    targets = jnp.arange(T * B * 1.0).reshape(T, B)
    part, of_part = jax.tree.map(lambda x: x[0], passes.take(trajectory, targets, indices[None]))
    np.testing.assert_array_equal(part.core_state["hidden"], trajectory.core_state["hidden"][indices])
    np.testing.assert_array_equal(part.observation, trajectory.observation[:, indices])
    np.testing.assert_array_equal(part.valid, trajectory.valid[:, indices])
    np.testing.assert_array_equal(of_part, targets[:, indices])


@pytest.mark.parametrize("size", [1, 2, 7, 24, 97, 512])
def test_permutations_are_of_all_numbers(size):
    found = np.asarray(passes.permutations(jax.random.key(size), 5, size))
    np.testing.assert_array_equal(np.sort(found), np.tile(np.arange(size), (5, 1)))


@pytest.mark.parametrize("size,kinds", [(2, 2), (3, 6), (5, 100)])
def test_permutations_of_few_numbers_are_not_rotations_alone(size, kinds):
    found = np.asarray(passes.permutations(jax.random.key(2), 3000, size))
    assert len(np.unique(found, axis=0)) >= kinds


@pytest.mark.parametrize("size", [6, 24])
def test_permutations_bring_any_number_to_any_place_and_any_two_together(size):
    num = 20_000
    found = np.asarray(passes.permutations(jax.random.key(1), num, size))
    places = np.stack([np.bincount(column, minlength=size) for column in found.T])
    assert np.sum(np.square(places - num / size)) / (num / size) < 2 * (size - 1) ** 2  # χ² over its mean
    halves = np.argsort(found, axis=1) // (size // 2)
    together = np.mean(halves[:, :, None] == halves[:, None], axis=0)[~np.eye(size, dtype=bool)]
    np.testing.assert_allclose(together, (size // 2 - 1) / (size - 1), atol=0.02)


def drawn_setup(core=0, epochs=2):
    """A PPO agent that takes its trajectory in passes of two minibatches, its state and a trajectory."""
    rule = ppo(PPOConfig(0.9, 0.3, 0.2, is_advantage_normalised=False))
    agent = make_agent(NetworkConfig("mlp", (4,), core=core, activation="tanh"), rule.spec(A), A)
    optimizer, none = optax.adam(0.05), Outer(lambda key, observation: (), lambda *_: None)
    setup = Setup(agent, rule, optimizer, none, Passes(epochs, 2))
    trajectory = random_trajectory(0, T, B, num_actions=A)
    trajectory = jax.tree.map(jnp.asarray, trajectory._replace(core_state=agent.initial_state(B)))
    return setup, init_agent_state(setup, jax.random.key(0), trajectory.observation[0]), trajectory


def test_nothing_is_sorted_and_minibatches_are_gathered_once_a_pass():
    setup, state, trajectory = drawn_setup(epochs=3)
    stacked = jax.tree.map(lambda x: x[None], trajectory)
    update = jax.make_jaxpr(make_agent_step(setup))({}, state, stacked, None).jaxpr
    named = lambda jaxpr, name: [eqn for eqn in equations(jaxpr) if eqn.primitive.name == name]
    assert not named(update, "sort")
    of_passes = next(eqn for eqn in named(update, "scan") if eqn.params["length"] == 3).params["jaxpr"].jaxpr
    (of_minibatches,) = (eqn.params["jaxpr"].jaxpr for eqn in named(of_passes, "scan"))
    assert len(named(of_passes, "gather")) - len(named(of_minibatches, "gather")) == 8 + 4  # trajectory and targets
    assert all(eqn.invars[0].aval.shape[0] < T * B for eqn in named(of_minibatches, "gather"))
    rows = {eqn.outvars[0].aval.shape[0] for eqn in named(of_minibatches, "tanh")}
    assert rows == {T * B // 2}  # nothing is computed of an observation after the last step


@pytest.mark.parametrize("core", [0, CORE])
def test_updates_are_on_minibatches_by_targets_made_once(core):
    with jax.enable_x64(True):
        setup, state, trajectory = drawn_setup(core)
        agent, rule, optimizer = setup.agent, setup.rule, setup.optimizer
        after = jax.jit(make_agent_step(setup))({}, state, jax.tree.map(lambda x: x[None], trajectory), None)[0]

        predictions = agent.unroll(state.params, trajectory)
        targets, _ = rule.apply({}, (), trajectory, predictions, predictions)
        params, opt_state = state.params, state.opt_state
        for indices in passes.draw(jax.random.split(state.key)[1], trajectory, setup.passes).reshape(4, -1):
            in_it = jnp.zeros(B if core else T * B, bool).at[indices].set(True)
            valid = trajectory.valid & (in_it if core else in_it.reshape(T, B))

            def loss(params, valid=valid):
                """Of the whole trajectory, with the steps of others masked."""
                return masked_reduce(rule.loss(targets, agent.unroll(params, trajectory), trajectory), valid, "mean")

            updates, opt_state = optimizer.update(jax.grad(loss)(params), opt_state, params)
            params = optax.apply_updates(params, updates)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-8), after.params, params)
        assert after.opt_state[0].count == 4
        assert not np.array_equal(*map(jax.random.key_data, (after.key, state.key)))
