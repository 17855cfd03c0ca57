"""Pytrees of arrays and random keys, compared leaf by leaf."""

import jax
import jax.numpy as jnp
import numpy as np


def leaves(tree):
    return [
        np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)
        for x in jax.tree.leaves(tree)
    ]


def check_equal(actual, expected):
    for x, y in zip(leaves(actual), leaves(expected), strict=True):
        np.testing.assert_array_equal(x, y)


def check_close(actual, expected):
    for x, y in zip(leaves(actual), leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def differs(xs, ys):
    return any(np.any(x != y) for x, y in zip(leaves(xs), leaves(ys), strict=True))
