"""Forward-over-reverse derivatives of a gradient against those that JAX computes, and predictions that are held."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meta.updates.mixed_mode import held, with_mixed_derivative

RNG = np.random.default_rng(0)
PARAMS = {"w": RNG.normal(size=(3, 2)), "b": RNG.normal(size=2)}
CONTEXT = {"eta": RNG.normal(size=3), "count": np.array(4)}
X = RNG.normal(size=(5, 3))


class Output(NamedTuple):
    state: Any
    metrics: Any


pytestmark = pytest.mark.usefixtures("float64")


def losses(params, known, context, x):
    """Targets made of `known` predictions and η; the state that comes out depends on both, too."""
    predict = lambda params: jnp.tanh(x @ params["w"] + params["b"])
    predictions = predict(params)
    known = predictions if known is None else known
    targets = jnp.sum(context["eta"]) * jnp.sin(known) + (x @ context["eta"])[:, None]
    loss = jnp.sum((targets - predictions) ** 2)
    return loss, Output({"sum": jnp.sum(targets**3), "count": context["count"] + 1}, {"loss": loss})


def gradient(params, context, x):
    """The gradient in which targets are constants, and its output, whose derivative is that of the whole."""
    known = jnp.tanh(x @ params["w"] + params["b"])
    grads, output = jax.grad(lambda p: losses(p, known, context, x), has_aux=True)(params)
    return grads, output


def objective(params, context, x):
    loss, output = losses(params, held(jnp.tanh(x @ params["w"] + params["b"])), context, x)
    return loss, output._replace(metrics={})


def outer(of):
    def fn(params, eta):
        grads, output = of(params, CONTEXT | {"eta": eta}, X)
        total = sum(jnp.sum(jnp.sin(1 + jnp.arange(g.size)) * g.ravel()) for g in jax.tree.leaves(grads))
        return total + jnp.cos(output.state["sum"])

    return jax.jit(jax.value_and_grad(fn, argnums=(0, 1)))


def test_the_derivative_is_that_of_the_gradient_and_its_output():
    expected = outer(gradient)(PARAMS, CONTEXT["eta"])
    actual = outer(with_mixed_derivative(gradient, objective))(PARAMS, CONTEXT["eta"])
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9), actual, expected)
    assert all(np.all(np.abs(x) > 1e-6) for x in jax.tree.leaves(actual))


def test_what_is_held_is_the_same_and_constant_for_the_gradient_alone():
    fn = lambda x: jnp.sum(held(x) * x**2)
    x = np.array([0.5, -2.0])
    np.testing.assert_array_equal(held(x), x)
    np.testing.assert_allclose(jax.grad(fn)(x), 2 * x**2)  # that of the second factor alone
    # Its derivative reaches what is held: that of 2 x · x.
    np.testing.assert_allclose(jax.jvp(jax.grad(fn), (x,), (np.ones(2),))[1], [4 * 0.5, 4 * -2.0])
