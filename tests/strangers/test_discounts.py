"""Discounts of environments between 0 and 1: `dm_env` keeps them, and every rule multiplies its own by them."""

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

import frodo
from agents.environments.dm_env import TINY, DmEnvBatch
from agents.rules.muesli import muesli
from agents.rules.returns import importance_ratios, retrace, vtrace
from tests.reference.agents import successors
from tests.trajectories import random_trajectory

T, B, A = 6, 3, 3


class Script(dm_env.Environment):
    """Episodes whose steps have these discounts; the last of each ends it."""

    def __init__(self, *episodes):
        self._episodes, self._episode, self._step = episodes, -1, 0

    def reset(self):
        self._episode, self._step = (self._episode + 1) % len(self._episodes), 0
        return dm_env.restart(np.zeros(1, np.float32))

    def step(self, action):
        discounts = self._episodes[self._episode]
        if self._step == len(discounts):
            return self.reset()
        discount, self._step = discounts[self._step], self._step + 1
        kind = dm_env.StepType.LAST if self._step == len(discounts) else dm_env.StepType.MID
        return dm_env.TimeStep(kind, 1.0, discount, np.zeros(1, np.float32))

    def observation_spec(self):
        return specs.Array((1,), np.float32)

    def action_spec(self):
        return specs.DiscreteArray(A)


def test_discounts_of_dm_env_are_kept_and_an_episode_ends_at_its_last_step():
    batch = DmEnvBatch([Script((0.5, 0.0), (0.9, 0.0, 0.25), (1.0, 1.0))])
    steps = [batch.reset(), *(batch.step(np.zeros(1, np.int32)) for _ in range(9))]
    shown = {
        name: np.array([getattr(step, name)[0] for step in steps]) for name in ("discount", "truncated", "is_first")
    }
    expected = np.float32([1, 0.5, 0, 1, 0.9, TINY, 0.25, 1, 1, 1])
    np.testing.assert_array_equal(shown["discount"], expected)
    assert shown["discount"].dtype == np.float32
    np.testing.assert_array_equal(np.flatnonzero(shown["truncated"]), [6, 9])
    np.testing.assert_array_equal(np.flatnonzero(shown["is_first"]), [0, 3, 7])
    assert np.float32(1) * TINY < 1e-30  # what follows counts for nothing


@pytest.mark.parametrize("discount", [1.5, -0.1, None, np.nan])
def test_a_discount_that_is_none_is_refused(discount):
    batch = DmEnvBatch([Script((discount, 0.0))])
    batch.reset()
    with pytest.raises(ValueError, match="'Script' has the discounts .*, expected numbers from 0 to 1"):
        batch.step(np.zeros(1, np.int32))


def discounted(seed=0):
    """A random trajectory whose discounts are drawn from 0.1 to 1 where they are not 0."""
    trajectory = random_trajectory(seed, T, B, num_actions=A)
    drawn = np.random.default_rng(seed + 1).uniform(0.1, 1.0, trajectory.discount.shape)
    return trajectory._replace(discount=trajectory.discount * drawn)


def test_vtrace_is_a_numpy_loops(float64):
    trajectory, rng = discounted(), np.random.default_rng(2)
    values, rho, gamma, lambda_ = rng.normal(size=(T + 1, B)), rng.uniform(0.1, 2, (T, B)), 0.9, 0.7
    found, _ = vtrace(trajectory, jnp.asarray(values), jnp.asarray(rho), gamma, lambda_)
    expected = np.zeros((T, B))
    after = successors(trajectory, values)
    for b in range(B):
        for t in reversed(range(T)):
            expected[t, b] = values[t, b]
            if not trajectory.valid[t, b]:
                continue
            discount, weight = gamma * trajectory.discount[t, b], min(1.0, rho[t, b])
            following = 0.0
            if t + 1 < T and not trajectory.truncated[t, b]:
                following = expected[t + 1, b] - values[t + 1, b]
            error = trajectory.reward[t, b] + discount * after[t, b] - values[t, b]
            expected[t, b] += weight * (error + discount * lambda_ * following)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_retrace_is_a_numpy_loops(float64):
    trajectory, rng = discounted(3), np.random.default_rng(4)
    q, v, rho = rng.normal(size=(T + 1, B, A)), rng.normal(size=(T + 1, B)), rng.uniform(0.1, 2, (T, B))
    found = retrace(trajectory, jnp.asarray(q), jnp.asarray(v), jnp.asarray(rho), 0.9, 0.7)
    expected = np.zeros((T, B))
    for b in range(B):
        for t in reversed(range(T)):
            following = successors(trajectory, v)[t, b]
            is_cut = trajectory.truncated[t, b] or not trajectory.valid[t, b]
            if t + 1 < T and trajectory.valid[t + 1, b] and not is_cut:
                trace = 0.7 * min(1.0, rho[t + 1, b])
                following += trace * (expected[t + 1, b] - q[t + 1, b, trajectory.action[t + 1, b]])
            expected[t, b] = trajectory.reward[t, b] + 0.9 * trajectory.discount[t, b] * following
    np.testing.assert_allclose(found, expected, rtol=1e-9)


MULTIPLYING = {
    "td_lambda": {},
    "q_learning": dict(lambda_=0.7),
    "impala": {},
    "a2c": {},
    "ppo": {},
    "target_program": dict(formula="r + gamma * (v_next + 0.5 * (G_next - v_next))"),
    "dqn": {},
    "program": dict(ends="values"),
    "double_dqn": dict(ends="values"),
    "frodo": dict(lstm=4),
    "learned_loss": dict(lstm=4),
}


@pytest.mark.parametrize("name", MULTIPLYING)
def test_targets_are_those_of_the_product_of_both_discounts(name, float64):
    """γ = 0.8 where the environment's discounts are 1 is the same as γ = 1 where they are 0.8."""

    def targets(gamma, factor):
        rule = frodo.make_rule(name, discount=gamma, **MULTIPLYING[name]).update_rule
        num_actions = 1 if name == "td_lambda" else A
        trajectory = random_trajectory(0, T, B, num_actions=num_actions)
        trajectory = trajectory._replace(discount=trajectory.discount * factor)
        rng = np.random.default_rng(1)
        spec = rule.spec(num_actions)
        predictions = {x: jnp.asarray(rng.normal(size=(T + 1, B, *spec[x].axes(num_actions)))) for x in sorted(spec)}
        meta_params = rule.random_meta_params(jax.random.key(0), num_actions)
        trajectory = jax.tree.map(jnp.asarray, trajectory)
        return rule.apply(meta_params, rule.init(), trajectory, predictions, predictions)[0]

    one, other, plain = targets(0.8, 1.0), targets(1.0, 0.8), targets(1.0, 1.0)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-9), one, other)
    assert any(not np.allclose(x, y) for x, y in zip(*map(jax.tree.leaves, (other, plain)), strict=True))


def test_the_values_that_mueslis_model_learns_have_the_discount_of_the_step_before(float64):
    rule = frodo.make_rule("muesli", discount=0.9, lambda_=0.8, model_steps=3, max_value=2)
    update_rule = muesli(rule.config.rule.settings)
    trajectory, rng = jax.tree.map(jnp.asarray, discounted(5)), np.random.default_rng(6)
    spec = update_rule.spec(A)
    predictions = {x: jnp.asarray(rng.normal(size=(T + 1, B, *spec[x].axes(A)))) for x in sorted(spec)}
    targets, _ = update_rule.apply({}, update_rule.init(), trajectory, predictions, predictions)
    returns = np.asarray(targets.value[:, :, 0])  # 0 where no agent chose the step
    for t, b, i in np.ndindex(T, B, 4):
        if i and targets.is_reached[t, b, i]:
            expected = trajectory.discount[t + i - 1, b] * returns[t + i, b]
            np.testing.assert_allclose(targets.value[t, b, i], expected, rtol=1e-9)
        elif i and targets.is_valued[t, b, i]:
            assert targets.value[t, b, i] == 0
    assert importance_ratios(predictions["policy"], trajectory).shape == (T, B)


def test_make_trajectory_takes_discounts_from_0_to_1():
    arrays = dict(
        observation=np.zeros((T + 1, B, 2)),
        action=np.zeros((T, B), int),
        reward=np.ones((T, B)),
        discount=np.full((T, B), 0.5),
        behaviour_logits=np.zeros((T, B, A)),
    )
    trajectory = frodo.make_trajectory(**arrays)
    assert not np.any(trajectory.is_last) and np.all(trajectory.discount == 0.5)
    for wrong in (1.5, -0.5, np.nan):
        with pytest.raises(ValueError, match=r"^discount\[0, 0\] is .*, expected a number from 0 to 1, 0 where"):
            frodo.make_trajectory(**arrays | dict(discount=np.full((T, B), wrong)))


def test_the_value_that_is_learned_is_the_discounted_one():
    """Each step pays 1, and discounts are 0.5: the value is 2 whatever the length of an episode."""
    environment = [Script((0.5,) * 40 + (0.0,)) for _ in range(4)]
    settings = dict(network=frodo.NetworkConfig("mlp", ()), optimizer=frodo.adam(5e-2), num_updates=1, unroll=20)
    rule = frodo.make_rule("a2c", discount=1.0)
    result = frodo.discover_online(environment, rule, num_steps=12_000, key=jax.random.key(0), **settings)
    first, core = jnp.zeros(1, bool), ()
    value = result.learner.setup.agent.step(result.params, jnp.zeros((1, 1)), first, core)[0]["value"]
    np.testing.assert_allclose(value, 2.0, atol=0.15)
