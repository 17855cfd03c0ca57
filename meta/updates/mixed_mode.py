"""Forward-over-reverse derivatives of an update's gradient. Source: Kemaev et al. 2025, MixFlow-MG, arXiv 2505.00793.

An update is (θ, context, trajectory) -> ∇θ L and other outputs o. With cotangents (v, s) of the two, its
vector-Jacobian product is the derivative of ∇ [L + ε s·o] along θ̇ = v, ε̇ = 1, at ε = 0: one forward-mode derivative of
a reverse-mode gradient gives the Hessian-vector product, the mixed term of θ and context, and that of the outputs.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from agents.types import Array, Params, Trajectory

Gradient = Callable[[Params, Any, Trajectory], tuple[Params, Any]]


def with_mixed_derivative(gradient: Gradient, objective: Gradient) -> Gradient:
    """Return `gradient` with a derivative by forward-over-reverse mode.

    Args:
      gradient: θ, context, trajectory -> ∇θ L, outputs. The outputs are a NamedTuple with the field `metrics`, which
        carries no derivative.
      objective: θ, context, trajectory -> L, outputs without metrics. Its second derivatives are those of `gradient`.
    """

    @jax.custom_vjp
    def mixed(params, context, trajectory):
        return gradient(params, context, trajectory)

    def forward(params, context, trajectory):
        return mixed(params, context, trajectory), (params, context, trajectory)

    def backward(residuals, cotangents):
        params, context, trajectory = residuals
        direction, of_output = cotangents
        # Counts and keys in the rule state have no derivative: None stands for their cotangent.
        floats = jax.tree.map(lambda x: x if _is_float(x) else None, context)

        def loss_fn(params, floats, epsilon):
            is_none = lambda x: x is None
            context_ = jax.tree.map(lambda x, y: y if x is None else x, floats, context, is_leaf=is_none)
            loss, output = objective(params, context_, trajectory)
            return loss + epsilon * _inner_product(of_output._replace(metrics={}), output)

        # The context is closed over, so that no tangents of zeros are pushed through the meta-network.
        gradients_fn = lambda params, epsilon: jax.grad(loss_fn, argnums=(0, 1))(params, floats, epsilon)
        one = jnp.ones((), jax.tree.leaves(params)[0].dtype)
        _, (of_params, of_context) = jax.jvp(gradients_fn, (params, jnp.zeros_like(one)), (direction, one))
        return of_params, of_context, None

    mixed.defvjp(forward, backward)
    return lambda params, context, trajectory: mixed(params, context, trajectory)


def _inner_product(xs: Any, ys: Any) -> Array:
    products = [jnp.vdot(x, y) for x, y in zip(jax.tree.leaves(xs), jax.tree.leaves(ys), strict=True) if _is_float(y)]
    return sum(products, start=jnp.zeros(()))


def _is_float(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


@jax.custom_vjp
def held(x: Any) -> Any:
    """Hold predictions constant in the gradient, but not in the derivative of that gradient.

    Forward-mode derivatives along θ do not pass it (targets are constants in the gradient that is differentiated); of
    the cotangent that comes back only the tangent part passes, which is the derivative of ∂L/∂P with respect to the
    targets.
    """
    return x


@jax.custom_jvp
def _tangent_only(x: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, x)


@_tangent_only.defjvp
def _(primals, tangents):
    return _tangent_only(*primals), tangents[0]


held.defvjp(lambda x: (jax.lax.stop_gradient(x), None), lambda _, cotangent: (_tangent_only(cotangent),))
