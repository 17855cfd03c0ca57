"""Costs of compiled programs: products whose number is known, in loops within loops, and what XLA itself counts."""

import jax
import jax.numpy as jnp
import pytest
from jax import ShapeDtypeStruct

from frodo.regimes.program_costs import costs_of

F32 = jnp.float32


def test_products_count_as_often_as_their_loops_are_taken():
    def fn(weights, xs):
        def outer(h, x):
            inner = lambda h, _: (jnp.tanh(h @ weights), None)
            return jax.lax.scan(inner, h + x, None, length=5)[0], None

        h, _ = jax.lax.scan(outer, xs[0], xs)
        return jax.lax.cond(h.sum() > 0, lambda: h @ weights, lambda: h)

    costs = costs_of(fn, ShapeDtypeStruct((64, 64), F32), ShapeDtypeStruct((7, 32, 64), F32))
    assert costs.flops == (7 * 5 + 1) * 2 * 32 * 64 * 64
    assert costs.arguments == 4 * (64 * 64 + 7 * 32 * 64) and costs.outputs == 4 * 32 * 64
    one = 4 * (64 * 64 + 2 * 32 * 64)  # a product reads its operands and writes its result
    assert 36 * one < costs.moved < 4 * 36 * one


def test_the_derivative_of_a_product_has_two():
    loss = lambda weights, x: jnp.sum(jnp.tanh(x @ weights) ** 2)
    arguments = ShapeDtypeStruct((64, 64), F32), ShapeDtypeStruct((32, 64), F32)
    assert costs_of(jax.grad(loss, argnums=(0, 1)), *arguments).flops == 3 * 2 * 32 * 64 * 64


def test_convolutions_count_with_what_xla_itself_counts():
    def fn(kernel, images):
        convolve = lambda x: jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jax.lax.map(convolve, images)

    costs = costs_of(fn, ShapeDtypeStruct((3, 3, 8, 16), F32), ShapeDtypeStruct((4, 2, 12, 12, 8), F32))
    assert costs.flops == 4 * 2 * (2 * 10 * 10 * 16) * (3 * 3 * 8)


def test_without_loops_xla_counts_the_same():
    fn = lambda x, weights: jnp.tanh(x @ weights) @ weights.T
    arguments = ShapeDtypeStruct((128, 256), F32), ShapeDtypeStruct((256, 512), F32)
    own = costs_of(fn, *arguments)
    xla = jax.jit(fn).lower(*arguments).compile().cost_analysis()
    assert own.flops == pytest.approx(xla["flops"], rel=0.01)
    assert own.moved == pytest.approx(xla["bytes accessed"], rel=0.1)
