"""Optimisers: Adam's numbers, and what of it carries a derivative."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from meta.updates import optimizers
from meta.updates.optimizers import OptimizerConfig, adam

GRADS = [{"x": jnp.array(x)} for x in ([0.5, -2.0], [1.0, 1e-3], [-3.0, 0.0])]


def run(optimizer, grads):
    state = optimizer.init(grads[0])
    for g in grads:
        updates, state = optimizer.update(g, state)
    return updates["x"]


def test_adam_has_the_numbers_of_adam_and_updates_are_clipped_before_the_learning_rate():
    np.testing.assert_allclose(run(adam(0.1).make(), GRADS), run(optax.adam(0.1), GRADS), rtol=1e-6)
    expected = np.clip(run(optax.adam(1.0), GRADS), -0.4, 0.4) * 0.1
    np.testing.assert_allclose(run(adam(0.1, max_update=0.4).make(), GRADS), expected, rtol=1e-6)


def test_no_derivative_passes_the_denominator():
    of_last = lambda g: jnp.sum(run(adam(0.1).make(), [*GRADS[:2], {"x": g}]))
    state = optax.scale_by_adam(0.9, 0.999, 1e-8).init(GRADS[0])
    for g in GRADS:
        _, state = optax.scale_by_adam(0.9, 0.999, 1e-8).update(g, state)
    denominator = jnp.sqrt(state.nu["x"] / (1 - 0.999**3)) + 1e-8
    expected = -0.1 * (0.1 / (1 - 0.9**3)) / denominator
    np.testing.assert_allclose(jax.grad(of_last)(GRADS[2]["x"]), expected, rtol=1e-4)


@pytest.mark.parametrize("config", [adam(0.1), adam(0.1, 1.0), OptimizerConfig()])
def test_derivatives_are_finite_where_the_gradient_is_zero(config):
    assert np.isfinite(jax.grad(lambda g: jnp.sum(run(config.make(), [{"x": g}])))(jnp.zeros(2))).all()


@pytest.mark.parametrize("max_norm", [0.5, 5.0, 1e4])
def test_the_clip_is_optaxs(max_norm):
    grads = {"x": jnp.array([3.0, -4.0]), "y": jnp.array(0.1)}
    clip, theirs = optimizers.clip_by_global_norm(max_norm), optax.clip_by_global_norm(max_norm)
    clipped = lambda by: lambda grads: by.update(grads, by.init(grads))[0]
    chex.assert_trees_all_close(clipped(clip)(grads), clipped(theirs)(grads), rtol=1e-6)
    total = lambda by: jax.grad(lambda grads: sum(jnp.sum(x**3) for x in jax.tree.leaves(clipped(by)(grads))))(grads)
    chex.assert_trees_all_close(total(clip), total(theirs), rtol=1e-5)


@pytest.mark.parametrize(
    ("config", "message"),
    [(OptimizerConfig(name="adm"), "o.name is 'adm'.*adam"), (OptimizerConfig(max_update=0.0), "o.max_update is 0.0")],
)
def test_a_bad_setting_is_named(config, message):
    with pytest.raises(ValueError, match=message):
        config.validate("o")


@pytest.mark.parametrize("config", [adam(0.1), OptimizerConfig(0.1)])
def test_a_learning_rate_that_is_annealed_falls_in_a_line_to_0(config):
    constant, annealed = config.make(), config.make(num_updates=4)
    grads = {"w": jnp.array([0.3, -2.0])}
    states = [optimizer.init(grads) for optimizer in (constant, annealed)]
    for share in (1.0, 0.75, 0.5, 0.25, 0.0, 0.0):
        expected, states[0] = constant.update(grads, states[0])
        updates, states[1] = annealed.update(grads, states[1])
        np.testing.assert_allclose(updates["w"], share * expected["w"], rtol=1e-6)
