"""Programs as rules: losses at the ends of episodes, what gets a gradient, and η, which is a program's constants."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.networks.agent import NetworkConfig, make_agent
from agents.rule import masked_reduce
from meta.programs.language import FORMULAS
from meta.programs.rule import DoubleDQNConfig, DQNClippedConfig, DQNRegConfig, ProgramConfig, program
from meta.updates.lifetime import Setup, init_agent_state, make_agent_step
from meta.updates.outer import Outer
from tests.reference.agents import successors
from tests.trajectories import random_trajectory

GAMMA = 0.9
LEARNED = ProgramConfig("y = r + gamma * max(Q_targ(s_next)); 0.8 * (Q(s)[a] - y)**2 + 0.3 * Q(s)[a]", GAMMA)

pytestmark = pytest.mark.usefixtures("float64")


def drawn(num_steps=6, batch_size=4, num_actions=3):
    rng = np.random.default_rng(1)
    q, slow = rng.normal(size=(2, num_steps + 1, batch_size, num_actions))
    return random_trajectory(0, num_steps, batch_size, num_actions=num_actions), {"q": q}, {"q": slow}


def loss_of(rule, trajectory, predictions, slow, meta_params):
    targets, _ = rule.apply(meta_params, rule.init(), trajectory, predictions, slow)
    return rule.loss(targets, predictions, trajectory)


def by_hand(name, q, y, best):
    delta = q - y
    return {
        "dqn": delta**2,
        "dqn_reg": delta**2 + 0.1 * q,
        "dqn_clipped": max(q, delta**2 + y) + max(delta, GAMMA * best**2),
    }[name]


@pytest.mark.parametrize(
    "name,config", [("dqn", ProgramConfig()), ("dqn_reg", DQNRegConfig()), ("dqn_clipped", DQNClippedConfig())]
)
def test_losses_of_transitions_and_nothing_is_bootstrapped_from_after_the_end(name, config):
    config.discount = GAMMA
    rule = program(config)
    trajectory, predictions, slow = drawn()
    meta_params = rule.random_meta_params(jax.random.key(0), 3)
    found = loss_of(rule, trajectory, predictions, slow, meta_params)
    ends, after = 0, successors(trajectory, slow["q"])
    for t, b in np.argwhere(trajectory.valid):
        best = max(after[t, b])
        if trajectory.discount[t, b] == 0:
            ends += 1
        y = trajectory.reward[t, b] + GAMMA * trajectory.discount[t, b] * best
        expected = by_hand(name, predictions["q"][t, b, trajectory.action[t, b]], y, best)
        if name == "dqn_clipped" and trajectory.discount[t, b] == 0:
            q = predictions["q"][t, b, trajectory.action[t, b]]
            expected = max(q, (q - y) ** 2 + y) + max(q - y, 0.0)
        np.testing.assert_allclose(found[t, b], expected, rtol=1e-12)
    assert ends > 1


def test_without_gamma_values_tell_of_the_end():
    config = ProgramConfig("(Q(s)[a] - (r + max(Q_targ(s_next))))**2", GAMMA, ends="values")
    trajectory, predictions, slow = drawn()
    found = loss_of(program(config), trajectory, predictions, slow, {})
    for t, b in np.argwhere(trajectory.valid):
        y = trajectory.reward[t, b] + (trajectory.discount[t, b] > 0) * max(successors(trajectory, slow["q"])[t, b])
        expected = (predictions["q"][t, b, trajectory.action[t, b]] - y) ** 2
        np.testing.assert_allclose(found[t, b], expected, rtol=1e-12)
    by_q = program(ProgramConfig("(Q(s)[a] - max(Q(s_next)))**2", GAMMA, ends="values"))
    at = lambda q, t, b: loss_of(by_q, trajectory, {"q": q}, slow, {})[t, b]
    for t, b in np.argwhere(trajectory.valid & ~trajectory.is_successor_unknown):
        gradient = jax.grad(at)(jnp.asarray(predictions["q"]), t, b)[t + 1, b]
        assert np.any(gradient != 0) == (trajectory.discount[t, b] > 0)


def test_every_step_but_a_reset_has_a_gradient():
    rule = program(ProgramConfig())
    trajectory, predictions, slow = drawn()

    def total(q, slow_q):
        loss = loss_of(rule, trajectory, {"q": q}, {"q": slow_q}, {})
        return masked_reduce(loss, trajectory.valid, rule.reduction)

    of_q = jax.grad(total)(jnp.asarray(predictions["q"]), jnp.asarray(slow["q"]))
    taken = np.take_along_axis(of_q[:-1], trajectory.action[..., None], axis=-1)[..., 0]
    np.testing.assert_array_equal(taken != 0, trajectory.valid)
    np.testing.assert_allclose(np.sum(of_q[:-1], axis=-1), taken)  # of the taken action alone
    np.testing.assert_array_equal(of_q[-1], 0)  # nothing through Q(s')


def test_the_policy_is_epsilon_greedy_and_the_copy_is_a_hard_one():
    rule = program(DoubleDQNConfig(epsilon=0.3, target_period=7))
    np.testing.assert_allclose(jnp.exp(rule.policy({"q": jnp.array([0.0, 2.0, 1.0])})), [0.1, 0.8, 0.1])
    assert (rule.target_decay, rule.target_period) == (None, 7)


def test_draws_are_new_in_every_update():
    rule = program(ProgramConfig("normal() * Q(s)[a] + uniform()"))
    trajectory, predictions, slow = drawn()
    first, state = rule.apply({}, rule.init(), trajectory, predictions, slow)
    second, _ = rule.apply({}, state, trajectory, predictions, slow)
    assert np.min(np.abs(first.loss - second.loss)) > 1e-3


# η


@functools.cache
def problem():
    rule = program(LEARNED)
    agent = make_agent(NetworkConfig("mlp", (5,), activation="tanh"), rule.spec(3), 3)
    trajectories, validation = random_trajectory(1, 3, 5, 3), random_trajectory(2, 5, 3)
    optimizer = optax.rmsprop(0.05, 0.9, 1e-2, eps_in_sqrt=True)
    # Without the constants that the package's outer objectives hold: it is a function, with its own derivative.
    square = lambda state, predictions, trajectory: (jnp.sum(predictions["q"][:-1] ** 2, axis=-1), state)
    setup = Setup(agent, rule, optimizer, Outer(lambda key, observation: (), square))
    state = init_agent_state(setup, jax.random.key(0), jnp.asarray(validation.observation[0]))
    return setup, state, trajectories, validation


@pytest.mark.parametrize("mode", ["reverse", "remat", "mixed"])
def test_the_meta_gradient_of_constants_is_that_of_central_differences(mode):
    setup, state, trajectories, validation = problem()
    meta_params = setup.rule.random_meta_params(jax.random.key(0), 3)
    constants = meta_params["program"]["constants"]
    np.testing.assert_allclose(constants, [0.8, 0.3])
    step = jax.jit(make_agent_step(setup, mode))
    _, gradient, _ = step(meta_params, state, trajectories, validation)
    for i in range(2):
        at = lambda h, i=i: {"program": {"constants": constants.at[i].add(h)}}
        low, high = (step(at(h), state, trajectories, validation)[2]["outer_loss"] for h in (-1e-4, 1e-4))
        found = gradient["program"]["constants"][i]
        assert abs(found) > 1e-4
        np.testing.assert_allclose(found, (high - low) / 2e-4, rtol=1e-5)


def one_step(trajectory):
    """The steps of a trajectory as transitions, [T, B] -> [1, T · B]."""
    flat = lambda x: jnp.reshape(x, (1, -1, *x.shape[2:]))
    both = lambda x: jnp.concatenate([flat(x[:-1]), flat(x[1:])])
    own = dict(observation=both(trajectory.observation), is_first=both(trajectory.is_first))
    return jax.tree.map(flat, trajectory._replace(observation=None, is_first=None))._replace(**own)


def agent_step_of(rule, hidden=(8,), batch_size=24):
    agent = make_agent(NetworkConfig("mlp", hidden), rule.spec(3), 3)
    setup = Setup(agent, rule, optax.sgd(0.1), Outer(lambda key, observation: (), lambda *_: None))
    state = init_agent_state(setup, jax.random.key(0), jnp.zeros((batch_size, 2, 2)))
    slow = jax.tree.map(lambda x: x + 0.1, state.params)
    return make_agent_step(setup), state._replace(target_params=slow)


SEEN = "(Q(s)[a] - (r + gamma * max(Q(s_next))))**2 + kl(softmax(Q_targ(s)), softmax(Q(s)))"


@pytest.mark.parametrize("formula", [*FORMULAS.values(), SEEN])
def test_transitions_alone_are_learned_from_as_trajectories_are(formula):
    rule = program(ProgramConfig(formula, GAMMA), is_learned=False)
    trajectory = one_step(random_trajectory(0, 6, 4))
    assert trajectory.is_successor_unknown.any()
    found = []
    for own in (rule, rule._replace(is_of_transitions=False)):
        step, state = agent_step_of(own)
        after, _, metrics = jax.jit(step)({}, state, jax.tree.map(lambda x: x[None], trajectory), None)
        found.append((after.params, metrics))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12), *found)


@pytest.mark.parametrize("mode", ["reverse", "mixed"])
def test_the_meta_gradient_also_goes_through_the_copy_that_transitions_bootstrap_from(mode):
    """Copies are made within the window of updates, of parameters that depend on the constants."""
    setup, state, _, validation = problem()
    rule = program(dataclasses.replace(LEARNED, target_period=2))
    trajectories = jax.tree.map(lambda *x: jnp.stack(x), *(one_step(random_trajectory(i, 5, 3)) for i in range(4)))
    meta_params, found = rule.random_meta_params(jax.random.key(0), 3), []
    state = state._replace(num_updates=jnp.zeros((), jnp.int32))
    for own in (rule, rule._replace(is_of_transitions=False)):
        step = jax.jit(make_agent_step(setup._replace(rule=own), mode))
        found.append(step(meta_params, state, trajectories, validation)[1]["program"]["constants"])
    np.testing.assert_allclose(*found, rtol=1e-9)
    assert np.all(np.abs(found[0]) > 1e-4)


@pytest.mark.parametrize(
    "formula,forward,backward", [(FORMULAS["dqn"], 2, 1), (FORMULAS["double_dqn"], 3, 1), (SEEN, 3, 2)]
)
def test_an_update_by_transitions_makes_the_products_that_are_read_and_no_others(formula, forward, backward):
    batch_size, (inputs, *sizes) = 24, (4, 64, 64, 3)
    step, state = agent_step_of(program(ProgramConfig(formula), is_learned=False), tuple(sizes[:-1]))
    trajectory = jax.tree.map(lambda x: x[None], one_step(random_trajectory(0, 6, 4)))
    compiled = jax.jit(step).lower({}, state, trajectory, None).compile()
    of_layers = [2 * batch_size * x * y for x, y in zip([inputs, *sizes], sizes, strict=False)]
    products = forward * sum(of_layers) + backward * (2 * sum(of_layers) - of_layers[0])
    assert products < compiled.cost_analysis()["flops"] < 1.12 * products


def test_a_formula_may_be_named():
    ProgramConfig("dqn_reg").validate()
    (constant,) = program(ProgramConfig("dqn_reg")).random_meta_params(jax.random.key(0), 3)["program"]["constants"]
    assert constant == pytest.approx(0.1)


def test_a_formula_without_constants_has_no_meta_parameters():
    assert program(ProgramConfig(FORMULAS["dqn"])).random_meta_params(jax.random.key(0), 3) == {}


@pytest.mark.parametrize(
    "settings,message",
    [
        ({"formula": "Q(s)[a] + max(s)"}, r"^formula: max\(x, y\) takes a number and a number, not a state$"),
        ({"formula": "r + 0.5"}, "^formula: 'r \\+ 0.5' has no gradient to Q"),
        ({"ends": "time"}, "^ends is 'time', expected one of gamma, values"),
        ({"formula": "gamma / gamma * Q(s)[a] - Q(s)[a]", "ends": "values"}, "has no gradient to Q"),
        ({"discount": 1.5}, "^discount is 1.5"),
        ({"target_period": 0}, "^target_period is 0, expected an integer of at least 1$"),
    ],
)
def test_bad_settings_are_refused_in_a_line(settings, message):
    with pytest.raises(ValueError, match=message):
        ProgramConfig(**settings).validate()


def test_cases_of_dqn_clipped_are_those_of_its_two_maxima():
    rule = program(DQNClippedConfig(discount=GAMMA))
    trajectory, predictions, slow = drawn(num_steps=8, batch_size=30)
    meta_params = rule.random_meta_params(jax.random.key(0), 3)
    targets, _ = rule.apply(meta_params, rule.init(), trajectory, predictions, slow)
    metrics = rule.metrics(targets, predictions, trajectory)
    counts = dict.fromkeys(("case_11", "case_12", "case_21", "case_22"), 0)
    for t, b in np.argwhere(trajectory.valid):
        best = max(slow["q"][t + 1, b])
        q, gamma = predictions["q"][t, b, trajectory.action[t, b]], GAMMA * trajectory.discount[t, b]
        y = trajectory.reward[t, b] + gamma * best
        counts[f"case_{1 + (q < (q - y) ** 2 + y)}{1 + (q - y < gamma * best**2)}"] += 1
    assert min(counts.values()) > 0
    assert metrics == {name: pytest.approx(count / trajectory.valid.sum()) for name, count in counts.items()}
    assert program(ProgramConfig()).metrics(targets._replace(cases={}), predictions, trajectory) == {}
