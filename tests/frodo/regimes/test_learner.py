"""A learner for a user-defined loop: pure functions of its state, which can be jitted and mapped over seeds and η."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.acting.replay import ReplayConfig
from agents.networks.agent import NetworkConfig
from agents.types import make_trajectory
from frodo.regimes.learner import build_learner, make_learner
from frodo.rules.files import make_rule
from frodo.settings import presets
from frodo.settings.registry import RuleConfig
from meta.targets.disco import DiscoConfig
from meta.targets.scalar import FrodoConfig
from meta.updates.optimizers import OptimizerConfig
from meta.updates.outer import OuterConfig
from tests.reference import agents as reference
from tests.trajectories import random_trajectory
from tests.trees import check_close, check_equal, differs, leaves

TINY = presets.catch().replace(
    batch_size=2,
    num_updates=2,
    validation_unroll=4,
    rule=RuleConfig("frodo", FrodoConfig(lstm=4)),
    network=NetworkConfig("mlp", (6,)),
    optimizer=OptimizerConfig(1e-2, epsilon=1e-4),
)
OBSERVATION = (4, 3)
OBSERVATIONS = jnp.zeros((3, *OBSERVATION))


def experience(seed, num_updates=2):
    cast = lambda x: jnp.asarray(x, jnp.float32 if x.dtype == np.float64 else x.dtype)
    shape = dict(num_actions=3, observation=OBSERVATION)
    trajectories, validation = (
        random_trajectory(seed, num_updates, 5, 3, **shape),
        random_trajectory(seed + 1, 5, 3, **shape),
    )
    return jax.tree.map(cast, trajectories), jax.tree.map(cast, validation)


# Learning from M trajectories and one for validation


@functools.cache
def learner(max_abs_reward):
    made = build_learner(TINY.replace(max_abs_reward=max_abs_reward), 3)
    state = jax.jit(made.init)(jax.random.key(0), OBSERVATIONS)
    return state, jax.jit(made.learn)


def test_a_learner_is_made_within_a_program_too():
    rule = RuleConfig("disco", DiscoConfig(prediction_size=4, max_value=2, lstm=4, lifetime_lstm=4))
    config = TINY.replace(gradient_mode="mixed", rule=rule, network=NetworkConfig("mlp", (6,), action_model=4))
    config = config.replace(outer=OuterConfig(value_hidden=(4,)))
    state = jax.eval_shape(build_learner(config, 3).init, jax.random.key(0), OBSERVATIONS)
    learn = lambda rate, given: build_learner(config, 3, learning_rate=rate).learn(*given)[0]
    given = (jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), state), *experience(0))
    # An array that a learner is made of has no value in a loop that is compiled apart from what made it.
    jax.jit(lambda rates: jax.lax.map(lambda rate: learn(rate, given), rates)).lower(jnp.ones(2))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_a_meta_gradient_that_is_not_finite_leaves_eta_as_it_was_and_is_counted(bad):
    start, learn = learner(float("inf"))
    trajectories, validation = experience(0)
    broken = validation._replace(reward=validation.reward.at[4, 1].set(bad))
    good, metrics, control = learn(start, trajectories, validation)
    assert (metrics["skipped"], control.skipped_in_a_row) == (0, 0)
    assert np.isfinite(metrics["meta_gradient_norm"])
    assert differs(good.meta_params, start.meta_params)
    state = good
    for i in (1, 2):
        before = state
        state, metrics, control = learn(state, trajectories, broken)
        assert not np.isfinite(metrics["meta_gradient_norm"])
        assert (metrics["skipped"], control.skipped_in_a_row) == (i, i)
        check_equal(state.meta_params, good.meta_params)
        check_equal(state.meta_opt_state.inner_state, good.meta_opt_state.inner_state)
        # The agent learns on: its own updates were finite.
        assert differs(state.params, before.params)
        assert all(np.all(np.isfinite(x)) for x in leaves(state.agent))
    after, metrics, control = learn(state, trajectories, validation)
    assert (metrics["skipped"], control.skipped_in_a_row) == (2, 0)
    assert differs(after.meta_params, good.meta_params)
    assert all(np.all(np.isfinite(x)) for x in leaves(after))


def test_rewards_are_clipped_for_learning_in_updates_and_in_validation():
    trajectories, validation = experience(0)
    clip = lambda x: x._replace(reward=jnp.asarray(np.clip(np.asarray(x.reward), -0.5, 0.5)))
    assert np.abs(trajectories.reward).max() > 0.5 and np.abs(validation.reward).max() > 0.5
    start, learn_clipped = learner(0.5)
    _, learn = learner(float("inf"))
    actual = learn_clipped(start, trajectories, validation)
    check_close(actual, learn(start, clip(trajectories), clip(validation)))
    for other in ((clip(trajectories), validation), (trajectories, clip(validation))):
        assert differs(learn(start, *other)[1]["outer_loss"], actual[1]["outer_loss"])


# One update at a time


@functools.cache
def updating():
    """A frozen learner, its functions jitted, and a trajectory."""
    made = build_learner(TINY.replace(max_abs_reward=0.5), 3, is_frozen=True)
    trajectory = jax.tree.map(lambda x: x[0], experience(0)[0])
    return made, jax.jit(made.init), jax.jit(made.update), trajectory


def two_etas(made):
    return jax.jit(jax.vmap(lambda key: made.setup.rule.random_meta_params(key, 3)))(
        jax.random.split(jax.random.key(5))
    )


def test_an_update_is_learning_from_one_trajectory_with_eta_as_it_is():
    made, init, update, trajectory = updating()
    state = init(jax.random.key(0), OBSERVATIONS)
    after, metrics = update(state, trajectory)
    one = jax.tree.map(lambda x: x[None], trajectory)
    learned, of_rule, control = jax.jit(made.learn)(state, one, None)
    check_close(after, learned)
    check_close({name: metrics[name] for name in of_rule}, of_rule)
    change = optax.tree.norm(optax.tree.sub(after.params, state.params))
    np.testing.assert_allclose(metrics["update_norm"], change, rtol=1e-5)
    assert change > 0 and set(metrics) == {*of_rule, "update_norm"} and control.skipped_in_a_row == 0
    check_equal(after.meta_params, state.meta_params)
    # Another one goes on from there, and rewards are clipped for learning alone.
    again, _ = update(after, trajectory)
    assert differs(again.params, after.params)
    clipped = trajectory._replace(reward=jnp.clip(trajectory.reward, -0.5, 0.5))
    check_close(update(state, clipped), (after, metrics))
    assert differs(update(state, trajectory._replace(reward=0 * trajectory.reward)), (after, metrics))


def test_updates_are_mapped_over_seeds():
    made, init, update, trajectory = updating()
    keys = jax.random.split(jax.random.key(0))
    eta = jax.tree.map(lambda x: x[0], two_etas(made))
    states, metrics = jax.jit(jax.vmap(lambda key: made.update(made.init(key, OBSERVATIONS, eta), trajectory)))(keys)
    for i, key in enumerate(keys):
        alone = update(init(key, OBSERVATIONS, eta), trajectory)
        check_close(jax.tree.map(lambda x, i=i: x[i], (states, metrics)), alone)
    assert differs(*(jax.tree.map(lambda x, i=i: x[i], states.params) for i in range(2)))


def test_updates_are_mapped_over_eta():
    made, init, update, trajectory = updating()
    etas, key = two_etas(made), jax.random.key(0)
    states, metrics = jax.jit(jax.vmap(lambda eta: made.update(made.init(key, OBSERVATIONS, eta), trajectory)))(etas)
    for i in range(2):
        alone = update(init(key, OBSERVATIONS, jax.tree.map(lambda x, i=i: x[i], etas)), trajectory)
        check_close(jax.tree.map(lambda x, i=i: x[i], (states, metrics)), alone)
    assert differs(*(jax.tree.map(lambda x, i=i: x[i], states.params) for i in range(2)))
    check_equal(states.meta_params, etas)


def test_an_update_of_a_learner_of_eta_leaves_eta_and_its_optimiser():
    made = build_learner(TINY, 3)
    state = jax.jit(made.init)(jax.random.key(0), OBSERVATIONS)
    after, metrics = jax.jit(made.update)(state, updating()[3])
    assert made.is_meta and "meta_gradient_norm" not in metrics and differs(after.params, state.params)
    check_equal((after.meta_params, after.meta_opt_state), (state.meta_params, state.meta_opt_state))


def test_updates_leave_the_validation_trajectory_that_is_kept():
    make = lambda is_kept: build_learner(TINY.replace(unroll=5, validation_unroll=5, is_validation_kept=is_kept), 3)
    kept, plain = make(True), make(False)
    state, other = (x.init(jax.random.key(0), OBSERVATIONS) for x in (kept, plain))
    steps = jax.tree.map(lambda x: jnp.stack([x[:-1]] * 2), updating()[3])  # trajectories of 4 steps, not 5
    after, expected = (
        jax.jit(lambda state, x=x: jax.lax.scan(x.update, state, steps)[0])(start)
        for x, start in ((kept, state), (plain, other))
    )
    check_equal(after.lifetime.kept, state.lifetime.kept)
    check_close(after.lifetime.agent, expected.lifetime.agent)
    fresh, validation = experience(3, 1)
    check_equal(jax.jit(kept.learn)(after, fresh, validation)[0].lifetime.kept, validation)


def test_a_learner_waits_for_its_replay():
    made = make_learner(
        "impala", 3, network=NetworkConfig("mlp", (4,)), batch_size=3, unroll=5, replay=ReplayConfig(9, 6)
    )
    state = jax.jit(made.init)(jax.random.key(0), OBSERVATIONS)
    update, moved = jax.jit(made.update), []
    for seed in range(3):
        state, metrics = update(state, jax.tree.map(lambda x: x[0], experience(seed)[0]))
        moved.append(float(metrics["update_norm"]))
        assert state.lifetime.replay.num_added == 3 * (seed + 1)
    assert moved[0] == 0 and moved[1] > 0 and moved[2] > 0


def test_a_window_is_moved_by_learn_alone():
    made = build_learner(TINY.replace(stride=1), 3)
    state = jax.eval_shape(made.init, jax.random.key(0), OBSERVATIONS)
    message = r"^stride is 1, expected 0 or num_updates \(2\): a sliding window of updates is moved by `learn` alone$"
    with pytest.raises(ValueError, match=message):
        made.update(state, updating()[3])


def test_a_trajectory_that_does_not_fit_is_named():
    made, init, _, trajectory = updating()
    state = init(jax.random.key(0), OBSERVATIONS)
    wider = trajectory._replace(behaviour_logits=jnp.zeros((5, 3, 4)))
    with pytest.raises(ValueError, match=r"^behaviour_logits has the shape \[5, 3, 4\], expected \[5, 3, 3\]$"):
        made.update(state, wider)
    with pytest.raises(ValueError, match=r"^reward has the shape \[4, 3\], expected \[5, 3\]$"):
        made.update(state, trajectory._replace(reward=trajectory.reward[1:]))
    with pytest.raises(ValueError, match="^valid has the dtype float32, expected bool$"):
        made.targets(state, trajectory._replace(valid=trajectory.discount))


# Acting


@pytest.mark.parametrize("core", [0, 4])
def test_actions_are_drawn_from_the_policy(core):
    made = make_learner("impala", 3, network=NetworkConfig("mlp", (4,), core))
    num = 2000
    observation = jnp.tile(jax.random.normal(jax.random.key(1), (1, *OBSERVATION)), (num, 1, 1))
    state, first, core_state = (
        made.init(jax.random.key(0), observation),
        jnp.ones(num, bool),
        made.setup.agent.initial_state(num),
    )
    act = jax.jit(made.act)
    action, logits, core_state = act(state, jax.random.key(2), observation, first, core_state)
    assert action.shape == (num,) and action.dtype == jnp.int32
    predictions, _ = made.setup.agent.step(state.params, observation[:1], first[:1], made.setup.agent.initial_state(1))
    np.testing.assert_allclose(logits, np.tile(predictions["policy"], (num, 1)), rtol=1e-4, atol=1e-5)
    frequency = np.bincount(np.asarray(action), minlength=3) / num
    np.testing.assert_allclose(frequency, reference.probabilities(np.asarray(logits[0])), atol=0.05)
    # Another key draws other actions; a core's state goes on from the one before.
    other, _, _ = act(state, jax.random.key(3), observation, first, core_state)
    assert np.mean(other != action) > 0.3
    _, later, _ = act(state, jax.random.key(2), observation, ~first, core_state)
    assert differs(later, logits) == bool(core)


def test_images_are_taken_as_the_environment_gives_them():
    made = make_learner("impala", 2, network=NetworkConfig("conv", (4,)))
    frames = np.random.default_rng(0).integers(256, size=(4, 2, 3, 8, 8), dtype=np.uint8)
    state = jax.jit(made.init)(jax.random.key(0), frames[0])
    action, logits, _ = jax.jit(made.act)(state, jax.random.key(1), frames[0], jnp.ones(2, bool), ())
    trajectory = make_trajectory(
        observation=frames,
        action=np.tile(action, (3, 1)),
        reward=np.ones((3, 2)),
        discount=np.ones((3, 2)),
        behaviour_logits=np.tile(logits, (3, 1, 1)),
    )
    after, metrics = jax.jit(made.update)(state, trajectory)
    assert metrics["update_norm"] > 0 and np.isfinite(metrics["update_norm"]) and differs(after.params, state.params)
    assert made.targets(state, trajectory).value.shape == (3, 2)


# Inside


def of_float64(made, trajectory, num_actions):
    state = jax.jit(made.init)(jax.random.key(0), trajectory.observation[0])
    return jax.jit(lambda state, trajectory: (made.targets(state, trajectory), made.derivatives(state, trajectory)))(
        state, trajectory
    )


@pytest.mark.parametrize("rule", ["td_lambda", "impala"])
def test_targets_and_their_derivatives_are_those_in_closed_form(rule):
    """Column 0 terminates at step 1; column 1 is truncated at step 2; the discount is γ, λ that of the rule."""
    gamma, lambda_, num_actions = 0.9, 0.8, 3 if rule == "impala" else 1
    with jax.enable_x64(True):
        made = make_learner(
            make_rule(rule, discount=gamma, lambda_=lambda_), num_actions, network=NetworkConfig("mlp", (4,))
        )
        trajectory = jax.tree.map(jnp.asarray, random_trajectory(0, 6, 4, num_actions=num_actions))
        targets, derivatives = of_float64(made, trajectory, num_actions)
        state = jax.jit(made.init)(jax.random.key(0), trajectory.observation[0])
        predictions = jax.tree.map(np.asarray, dict(made.setup.agent.unroll(state.params, trajectory)))
    trajectory = jax.tree.map(np.asarray, trajectory)
    rho = np.ones((6, 4))
    if rule == "impala":
        rho = reference.importance_ratios(predictions["policy"], trajectory)
        assert np.any(rho > 1) and np.any(rho < 1)
    value, by_reward = (
        (targets.value, derivatives["reward"].value) if rule == "impala" else (targets, derivatives["reward"])
    )
    expected, _ = reference.vtrace(trajectory, predictions["value"], rho, gamma, lambda_)
    np.testing.assert_allclose(value, expected, rtol=1e-9)
    assert set(derivatives) == {"reward", "discount", "value"}
    for k, t, b in np.ndindex(6, 6, 4):
        is_reached = t <= k and not trajectory.is_last[t:k, b].any() and trajectory.valid[k, b]
        factor = (gamma * lambda_) ** (k - t) * np.prod(np.minimum(1, rho[t : k + 1, b])) if is_reached else 0
        np.testing.assert_allclose(by_reward[k, t, b], factor, atol=1e-9, err_msg=f"{k}, {t}, {b}")


def test_targets_are_made_from_the_slow_copy_and_the_rules_state_and_of_clipped_rewards():
    settings = DiscoConfig(prediction_size=4, max_value=2, lstm=4, lifetime_lstm=3, action_embedding=(5, 3))
    rule = RuleConfig("disco", settings)
    made = build_learner(TINY.replace(rule=rule, outer=OuterConfig(), max_abs_reward=0.5), 3, is_frozen=True)
    trajectory = updating()[3]
    state = jax.jit(made.init)(jax.random.key(0), OBSERVATIONS)
    targets = jax.jit(made.targets)
    now = targets(state, trajectory)
    assert now.policy.shape == (5, 3, 3) and now.y.shape == now.z.shape == (5, 3, 4)
    clipped = trajectory._replace(reward=jnp.clip(trajectory.reward, -0.5, 0.5))
    check_close(targets(state, clipped), now)
    agent = state.lifetime.agent
    others = (
        agent._replace(target_params=jax.tree.map(lambda x: x + 0.1, agent.target_params)),
        agent._replace(
            rule_state=agent.rule_state._replace(lifetime=jax.tree.map(lambda x: x + 0.5, agent.rule_state.lifetime))
        ),
        agent._replace(params=jax.tree.map(lambda x: x + 0.1, agent.params)),
    )
    for other in others:
        assert differs(targets(state._replace(lifetime=state.lifetime._replace(agent=other)), trajectory), now)


# What a learner is made of


def test_a_learner_has_the_settings_of_its_rule_and_those_that_are_given():
    made = make_learner("impala", 3, unroll=7)
    assert (made.config.rule.name, made.config.unroll, made.is_meta) == ("impala", 7, False)
    assert made.config.replace(unroll=20) == make_rule("impala").config
    assert make_learner(make_rule("frodo", lstm=4), 3).config.rule.settings.lstm == 4
    assert make_learner("frodo", 3).is_meta and not build_learner(TINY, 3, is_frozen=True).is_meta
    for call, message in (
        (lambda: make_learner("impla", 3), r"^rule is 'impla', .* \(did you mean 'impala'\?\)$"),
        (
            lambda: make_learner("impala", 3, unrol=7),
            r"^unrol is 7, but an agent has no such .* \(did you mean 'unroll'",
        ),
        (lambda: make_learner("impala", 3, unroll=0), "^unroll is 0, expected an integer of at least 1$"),
        (lambda: make_learner("td_lambda", 3), "^rule 'td_lambda' is of the kind 'prediction'"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_the_state_at_the_start_has_a_random_eta_or_the_one_that_is_given():
    made, init, _, _ = updating()
    first, second = (init(jax.random.key(i), OBSERVATIONS) for i in range(2))
    assert differs(first.meta_params, second.meta_params) and differs(first.params, second.params)
    given = init(jax.random.key(0), OBSERVATIONS, second.meta_params)
    check_equal(given.meta_params, second.meta_params)
    check_equal(given.params, first.params)
