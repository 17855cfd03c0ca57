"""The meta-gradient against central differences of an outer loss that is written out a second time, in float64."""

import dataclasses
import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.networks.agent import NetworkConfig, make_agent
from meta.targets.scalar import KINDS, FrodoConfig, LearnedLossConfig, frodo, learned_loss
from meta.updates import gradients
from meta.updates.lifetime import Setup, init_agent_state, make_agent_step
from meta.updates.outer import OuterConfig, make_outer
from tests.reference import frodo as reference
from tests.trajectories import random_trajectory

OPTIMIZER = (0.05, 0.9, 1e-2)  # learning rate, decay, ε: large steps, so that second-order terms matter
TARGET_INPUTS = ("reward", "discount", "next_value")
RELATIVE_INPUTS = ("td_error", "reward", "discount", "next_value", "pi", "mu")
BASE = FrodoConfig(lstm=4, discount=0.9, entropy_cost=0.1)
ON_VTRACE = dataclasses.replace(BASE, is_relative=True, inputs=RELATIVE_INPUTS, base="vtrace", vtrace_lambda=0.8)
CRITIC_FREE = dict(lstm=4, discount=0.9)
LOSS = LearnedLossConfig(lstm=4, discount=0.9, entropy_cost=0.1)
# Other than the rule's wherever both have a setting.
OUTER = OuterConfig(discount=0.95, lambda_=0.8, temperature=1.3, entropy_cost=0.15, value_cost=0.4)
SETTINGS: dict[str, FrodoConfig | LearnedLossConfig] = {
    "actor_critic-semi": BASE,
    "actor_critic-literal": dataclasses.replace(BASE, next_value_gradient="literal"),
    "actor_critic-stopped": dataclasses.replace(BASE, next_value_gradient="stopped"),
    "actor_critic-mean": dataclasses.replace(BASE, reduction="mean"),
    "actor_critic-torso": dataclasses.replace(BASE, torso=5),
    "actor_critic-torso-literal": dataclasses.replace(BASE, torso=5, next_value_gradient="literal"),
    "actor_critic-relative": dataclasses.replace(BASE, is_relative=True, inputs=RELATIVE_INPUTS),
    "actor_critic-relative-stopped": dataclasses.replace(
        BASE, is_relative=True, inputs=RELATIVE_INPUTS, next_value_gradient="stopped"
    ),
    "actor_critic-on_vtrace": ON_VTRACE,
    "actor_critic-on_vtrace-stopped": dataclasses.replace(ON_VTRACE, next_value_gradient="stopped"),
    "actor_critic-on_lambda_return-literal": dataclasses.replace(
        ON_VTRACE, base="lambda_return", next_value_gradient="literal"
    ),
    "consistency-one-step": dataclasses.replace(BASE, consistency_cost=0.5, is_consistency_multi_step=False),
    "consistency-multi-step": dataclasses.replace(BASE, consistency_cost=0.5),
    "prediction-literal": FrodoConfig(
        kind="prediction", inputs=TARGET_INPUTS, next_value_gradient="literal", reduction="mean", **CRITIC_FREE
    ),
    "prediction-semi": FrodoConfig(kind="prediction", inputs=TARGET_INPUTS, **CRITIC_FREE),
    "value_based-semi": FrodoConfig(kind="value_based", epsilon=0.3, **CRITIC_FREE),
    "value_based-relative": FrodoConfig(
        kind="value_based", is_relative=True, inputs=RELATIVE_INPUTS, next_value_gradient="literal", **CRITIC_FREE
    ),
    "value_based-literal": FrodoConfig(kind="value_based", next_value_gradient="literal", **CRITIC_FREE),
    "learned_loss": LOSS,
    "learned_loss-differentiated": dataclasses.replace(LOSS, is_next_value_differentiated=True),
}
CASES = {
    name: reference.Case("learned_loss" if name.startswith("learned_loss") else "frodo", settings, OUTER)
    for name, settings in SETTINGS.items()
}


def make_rule(case: reference.Case):
    return (learned_loss if case.is_loss else frodo)(case.rule)


@functools.cache
def problem(name: str):
    """Everything that the outer loss is a function of, besides the rule."""
    case = CASES[name]
    num_actions = 1 if case.kind == "prediction" else 3
    rule = make_rule(case)
    agent = make_agent(NetworkConfig("mlp", (5,), activation="tanh"), rule.spec(num_actions), num_actions)
    optimizer = optax.rmsprop(OPTIMIZER[0], OPTIMIZER[1], OPTIMIZER[2], eps_in_sqrt=True)
    trajectories = random_trajectory(1, 2, 5, 3, num_actions=num_actions)
    validation = random_trajectory(2, 5, 3, num_actions=num_actions)
    setup = Setup(agent, rule, optimizer, make_outer(OUTER, rule, NetworkConfig(), num_actions))
    state = init_agent_state(setup, jax.random.key(0), jnp.asarray(validation.observation[0]))
    meta_params = jax.tree.map(lambda x: 2 * x, rule.random_meta_params(jax.random.key(1), num_actions))
    if getattr(case.rule, "base", "value") != "value":  # the output begins as 0
        meta_params = optax.tree.random_like(jax.random.key(1), meta_params)
    return setup, trajectories, validation, state, meta_params


def meta_gradient(name: str, mode: str):
    setup, trajectories, validation, state, meta_params = problem(name)
    step = make_agent_step(setup._replace(rule=make_rule(CASES[name])), mode)
    return jax.jit(step)(meta_params, state, trajectories, validation)


@functools.cache
def central_differences(name: str, num_directions: int = 4):
    """The reference's outer loss, random directions in η, and its slope along each."""
    case = CASES[name]
    _, trajectories, validation, state, meta_params = problem(name)
    names = case.rule.inputs + (("log_pi", "value") if case.is_loss else ())
    settings = dict(case=case, optimizer=OPTIMIZER, names=names, head_names=tuple(KINDS[case.kind].spec(3)))
    zeros = jax.tree.map(jnp.zeros_like, state.params)
    evaluate = lambda meta_params, values: reference.outer_loss(
        meta_params, state.params, zeros, trajectories, validation, values, **settings
    )
    base, held = evaluate(meta_params, None)
    slopes = []
    for seed in range(num_directions):
        direction = optax.tree.random_like(jax.random.key(seed), meta_params)
        at = lambda size, d=direction: evaluate(optax.tree.add_scale(meta_params, size, d), held)[0]
        # Five points: the error is of fourth order in the step.
        h = 1e-4
        slopes.append((direction, (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)))
    return base, slopes


pytestmark = pytest.mark.usefixtures("float64")


def relative_error(name: str, mode: str) -> float:
    base, slopes = central_differences(name)
    _, gradient, metrics = meta_gradient(name, mode)
    scale = optax.tree.norm(gradient)
    errors = [abs(optax.tree.vdot(gradient, direction) - slope) / scale for direction, slope in slopes]
    of_loss = abs(metrics["outer_loss"] + metrics["regulariser"] - base) / abs(base)
    return float(max(*errors, of_loss))


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_central_differences(name):
    for mode in gradients.MODES if name == "consistency-multi-step" else ("mixed",):
        assert relative_error(name, mode) < 1e-6, mode


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_agrees_in_one_pass_backwards_too(name):
    assert relative_error(name, "reverse") < 1e-6


STOPS = {  # a function that stops a gradient, and a case in which that matters
    "actor_critic_inner_loss": "actor_critic-semi",
    "consistency_targets": "consistency-multi-step",
    "vtrace": "actor_critic-semi",
    "apply": "actor_critic-stopped",
}


@pytest.mark.parametrize("function", STOPS)
def test_a_missing_stop_gradient_is_caught(function, monkeypatch):
    stop_gradient, calls = jax.lax.stop_gradient, []

    def leaky(x):
        if sys._getframe(1).f_code.co_name == function:
            calls.append(x)
            return x
        return stop_gradient(x)

    monkeypatch.setattr(jax.lax, "stop_gradient", leaky)
    assert relative_error(STOPS[function], "reverse") > 1e-3
    assert calls


def test_targets_that_are_not_constant_are_caught(monkeypatch):
    right = make_rule
    leaky = lambda case: right(case)._replace(is_target_constant=False)
    central_differences("actor_critic-semi")
    monkeypatch.setitem(globals(), "make_rule", leaky)
    for mode in ("reverse", "mixed"):
        assert relative_error("actor_critic-semi", mode) > 1e-3


@pytest.mark.parametrize(("next_value_gradient", "slope"), [("semi", 1.0), ("stopped", 0.0), ("literal", 0.0)])
def test_relative_targets_move_with_the_values_that_they_are_relative_to(next_value_gradient, slope):
    """As all values rise by one number, with γ = 1 and no ends, TD errors stay and targets rise by that number.

    So does the derivative say, but where no gradient is to flow through the values.
    """
    config = dataclasses.replace(
        BASE, discount=1.0, is_relative=True, inputs=("td_error",), next_value_gradient=next_value_gradient
    )
    rule, trajectory = frodo(config), random_trajectory(2, 5, 3)
    trajectory = trajectory._replace(
        discount=jnp.ones((5, 3)), truncated=jnp.zeros((5, 3), bool), valid=jnp.ones((5, 3), bool)
    )
    predictions = {"policy": jnp.zeros((6, 3, 3)), "value": jax.random.normal(jax.random.key(0), (6, 3))}
    meta_params = rule.random_meta_params(jax.random.key(1), 3)

    def targets(rise):
        known = predictions | {"value": predictions["value"] + rise}
        return rule.apply(meta_params, (), trajectory, known, known)[0]

    change = jax.jacrev(targets)(0.0)
    np.testing.assert_allclose(targets(1.0), targets(0.0) + 1.0, rtol=1e-10)
    np.testing.assert_allclose(change, slope, atol=1e-10)
