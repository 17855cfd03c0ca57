"""Programs as targets of policies: their inputs against loops, CMPO as one of them, the losses, η and its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.rules.moving_average import MovingAverage, initial_average
from meta.programs.policies import PolicyProgramConfig, inputs_of, policy_program
from meta.targets import policy_fitting
from meta.targets.disco import DiscoConfig, DiscoState, make_context, value_loss
from tests.reference import agents, muesli
from tests.reference import disco as reference
from tests.trajectories import random_trajectory

T, B, A = 7, 3, 4
SHARED = dict(discount=0.9, lambda_=0.8, max_value=6)
OF_DISCO = DiscoConfig(lifetime_lstm=0, without=("y_z", "aux_policy"), **SHARED)
AVERAGE = (0.1, 0.5, 0.7)

pytestmark = pytest.mark.usefixtures("float64")


def drawn():
    """A rule's state, a trajectory with ends of all kinds, predictions, and those of the slow copy."""
    rng, spec = np.random.default_rng(0), policy_program(PolicyProgramConfig(**SHARED)).spec(A)
    predict = lambda: {name: jnp.asarray(rng.normal(size=(T + 1, B, *x.axes(A)))) for name, x in spec.items()}
    assert set(spec) == {"policy", "q"}
    state = DiscoState((), MovingAverage(*map(jnp.float64, AVERAGE)), initial_average())
    return state, random_trajectory(0, T, B, num_actions=A), predict(), predict()


def made(formula, *inputs):
    rule = policy_program(PolicyProgramConfig(formula=formula, **SHARED))
    return rule.apply(rule.random_meta_params(jax.random.key(0), A), *inputs)


def test_inputs_are_those_of_loops():
    state, trajectory, predictions, slow = drawn()
    found = inputs_of(make_context(state, trajectory, predictions, slow, OF_DISCO)[0])
    pi, prior, q = (reference.softmax(predictions["policy"]), reference.softmax(slow["policy"]), slow["q"])
    q = reference.scalars(np.asarray(q))
    value = np.sum(pi * q, axis=-1)
    mu = reference.softmax(np.asarray(trajectory.behaviour_logits))
    rho = agents.taken(pi, trajectory.action) / agents.taken(mu, trajectory.action)
    returns = agents.retrace(trajectory, q, value, rho, 0.9, 0.8)
    average = reference.average(AVERAGE, (returns - value[:-1])[np.asarray(trajectory.valid)])
    steps = np.argwhere(np.asarray(trajectory.valid))
    assert len(steps) < T * B
    for (t, b), a in ((step, a) for step in steps for a in range(A)):
        is_taken = trajectory.action[t, b] == a
        of_q = q[t, b, a] - value[t, b]
        of = lambda x: reference.normalise(average, x)
        expected = {
            "A": of(returns[t, b] - value[t, b] if is_taken else of_q),
            "A_q": of(of_q),
            "slow": np.log(prior[t, b, a] / pi[t, b, a]),
            "pi": pi[t, b, a],
            "taken": float(is_taken),
        }
        assert list(found) == list(expected)
        for name, x in expected.items():
            np.testing.assert_allclose(found[name][t, b, a], x, rtol=1e-8, atol=1e-9, err_msg=name)


def test_the_first_formula_is_cmpo():
    state, trajectory, predictions, slow = drawn()
    found, new = made(PolicyProgramConfig.formula, state, trajectory, predictions, slow)
    expected = policy_fitting.cmpo(OF_DISCO, state, trajectory, predictions, slow)
    valid = np.asarray(trajectory.valid)
    softmax = lambda logits: jax.nn.softmax(logits)[valid]
    np.testing.assert_allclose(softmax(found.policy), softmax(expected), rtol=1e-9)
    assert new.advantage.moment2 != state.advantage.moment2 and new.td.decay_product == 0.99


def test_losses_are_the_divergence_of_policies_and_discorls_of_values():
    state, trajectory, predictions, slow = drawn()
    config = PolicyProgramConfig(formula="0.5 * A + taken", policy_cost=0.7, value_cost=0.3, **SHARED)
    rule = policy_program(config)
    targets, _ = made("0.5 * A + taken", state, trajectory, predictions, slow)
    loss = rule.loss(targets, predictions, trajectory)
    inputs = inputs_of(make_context(state, trajectory, predictions, slow, OF_DISCO)[0])
    pi = reference.softmax(np.asarray(predictions["policy"]))
    for t, b in np.argwhere(np.asarray(trajectory.valid)):
        made_of = pi[t, b] * np.exp(0.5 * np.asarray(inputs["A"])[t, b] + np.asarray(inputs["taken"])[t, b])
        np.testing.assert_allclose(loss[t, b], 0.7 * muesli.kl(made_of / made_of.sum(), pi[t, b]), rtol=1e-8)
    of_values = 0.3 * value_loss(targets.returns, predictions["q"], trajectory)
    np.testing.assert_allclose(rule.loss_without_meta(targets, predictions, trajectory), of_values, rtol=1e-9)
    assert (rule.target_decay, rule.regulariser, rule.is_of_order) == (0.9, None, False)


def test_constants_are_eta_and_theta_has_no_gradient_through_targets():
    state, trajectory, predictions, slow = drawn()
    rule = policy_program(PolicyProgramConfig(formula="0.5 * A + taken", **SHARED))
    assert rule.random_meta_params(jax.random.key(0), A) == {"program": {"constants": jnp.array([0.5])}}

    def total(constant, logits=predictions["policy"]):
        given = {"program": {"constants": jnp.reshape(constant, 1)}}
        made, _ = rule.apply(given, state, trajectory, predictions | {"policy": logits}, slow)
        return jnp.sum(jnp.sin(made.policy) * trajectory.valid[..., None])

    slope = (total(0.5 + 1e-5) - total(0.5 - 1e-5)) / 2e-5
    assert abs(slope) > 0.1
    np.testing.assert_allclose(jax.grad(total)(0.5), slope, rtol=1e-6)
    assert not np.any(jax.grad(total, argnums=1)(0.5, predictions["policy"]))


@pytest.mark.parametrize(
    ("formula", "message"),
    [("q + A", "^formula: 'q' is no name"), ("A", "^formula: 'A' is an input"), ("cmpoo", "did you mean 'cmpo'")],
)
def test_a_bad_formula_is_refused(formula, message):
    with pytest.raises(ValueError, match=message):
        PolicyProgramConfig(formula=formula).validate()
