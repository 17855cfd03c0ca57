"""The meta-network against loops in float64, what its targets may depend on, and what a lifetime carries on."""

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.types import PredictionSpec
from meta.targets import target_network
from meta.targets.target_network import (
    LifetimeLSTMState,
    ReverseLSTM,
    TargetInputs,
    TargetNetwork,
    TargetNetworkConfig,
    initial_lifetime_lstm_state,
)
from tests.equations import equations
from tests.reference import agents as reference
from tests.trajectories import random_trajectory

T, B, F, A, C = 6, 4, 3, 3, 2
SCALAR = {"target": PredictionSpec()}
VECTORS = {"y": PredictionSpec((5,)), "z": PredictionSpec((2, 3)), "target": PredictionSpec()}
PER_ACTION = {"p": PredictionSpec((4,), is_per_action=True), "target": PredictionSpec()}

pytestmark = pytest.mark.usefixtures("float64")


def make(spec, lstm=4, lifetime_lstm=0, has_actions=False, seed=0, core="lstm"):
    """The network as (weights with no entry at its initial value, apply, features, action features, action,
    is_last)."""
    config = TargetNetworkConfig(lstm, lifetime_lstm, core=core)
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(T, B, F))
    action_features = rng.normal(size=(T, B, A, C)) if has_actions else None
    action = rng.integers(A, size=(T, B)) if has_actions else None
    is_last = random_trajectory(seed, T, B).is_last

    def forward(features, action_features, action, is_last, lifetime_state):
        make_inputs = lambda targets=None: TargetInputs(features, action_features, action)
        return TargetNetwork(config, spec)(make_inputs, is_last, lifetime_state)

    network = hk.without_apply_rng(hk.transform(forward))
    inputs = (features, action_features, action, is_last)
    shapes = jax.eval_shape(network.init, jax.random.key(0), *inputs, initial_lifetime_lstm_state(config))
    params = jax.tree.map(lambda x: rng.normal(size=x.shape), shapes)
    return params, jax.jit(network.apply), inputs


def layer(params, name):
    return tuple(np.asarray(params[f"target_network/{name}"][key]) for key in "wb")


def linear(params, name, x):
    w, b = layer(params, name)
    return x @ w + b


def is_seen(is_last):
    """[T, B, T]: whether step u is one that the target of step t may depend on."""
    seen = np.zeros((T, B, T), bool)
    for b in range(B):
        for t in range(T):
            for u in range(t, T):
                seen[t, b, u] = True
                if is_last[u, b]:
                    break
    return seen


# The reverse LSTM


def test_the_derivative_of_the_lstm_is_that_of_its_loop():
    """Episodes end within; the weights' product is one, of all steps that have a state before them."""
    rng = np.random.default_rng(0)
    size = 5
    weights = rng.normal(size=(F + size, 4 * size)), rng.normal(size=4 * size)
    x, cotangent = rng.normal(size=(T, B, F)), rng.normal(size=(T, B, size))
    keep = 1.0 - random_trajectory(0, T, B).is_last[..., None]

    def of_loop(weights, x):
        (w, b), hidden, cell, states = weights, jnp.zeros((B, size)), jnp.zeros((B, size)), []
        for t in reversed(range(T)):
            i, g, f, o = jnp.split(jnp.concatenate([x[t], hidden * keep[t]], axis=-1) @ w + b, 4, axis=-1)
            cell = jax.nn.sigmoid(f + 1.0) * cell * keep[t] + jax.nn.sigmoid(i) * jnp.tanh(g)
            hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
            states.insert(0, hidden)
        return jnp.stack(states)

    loss = lambda fn: lambda weights, x: jnp.sum(cotangent * jnp.tanh(fn(weights, x)))
    ours = lambda weights, x: target_network.backwards(weights, x, jnp.asarray(keep))
    first = jax.grad(loss(ours), (0, 1))
    close = lambda found, expected: jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9), found, expected
    )
    close(first(weights, x), jax.grad(loss(of_loop), (0, 1))(weights, x))
    second = lambda fn: jax.grad(
        lambda *of: sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(jax.grad(loss(fn), (0, 1))(*of))), (0, 1)
    )
    close(second(ours)(weights, x), second(of_loop)(weights, x))
    names = [
        (eqn.primitive.name, eqn.outvars[0].aval.shape) for eqn in equations(jax.make_jaxpr(first)(weights, x).jaxpr)
    ]
    assert [shape for name, shape in names if name == "dot_general" and shape[-1] == 4 * size and len(shape) == 2] == [
        (B, 4 * size),  # the state's, a step
        (F + size, 4 * size),
        (F, 4 * size),  # the last step's, whose state before is zero
    ]


@pytest.mark.parametrize("num_steps", [1, T])
def test_reverse_lstm_agrees_with_loops(num_steps):
    rng = np.random.default_rng(0)
    x, is_last = rng.normal(size=(num_steps, B, F)), random_trajectory(0, T, B).is_last[:num_steps]
    network = hk.without_apply_rng(hk.transform(lambda x, is_last: ReverseLSTM(5)(x, is_last)))
    params = jax.tree.map(lambda y: rng.normal(size=y.shape), network.init(jax.random.key(0), x, is_last))
    expected = reference.reverse_lstm(x, is_last, params["lstm"]["w"], params["lstm"]["b"])
    np.testing.assert_allclose(network.apply(params, x, is_last), expected, rtol=1e-10)


def test_reverse_lstm_starts_from_small_weights_and_no_bias():
    network = hk.without_apply_rng(hk.transform(lambda x, is_last: ReverseLSTM(61)(x, is_last)))
    weights = network.init(jax.random.key(0), np.zeros((T, B, F)), np.zeros((T, B), bool))["lstm"]
    np.testing.assert_allclose(np.std(weights["w"]), 0.88 / 8, rtol=0.05)  # a normal cut at two standard deviations
    np.testing.assert_array_equal(weights["b"], 0)


@pytest.mark.parametrize(("spec", "core"), [(SCALAR, "lstm"), (PER_ACTION, "lstm"), (SCALAR, "transformer")])
def test_targets_depend_on_later_steps_of_the_episode_and_on_nothing_else(spec, core):
    params, apply, inputs = make(spec, has_actions=spec is PER_ACTION, seed=1, core=core)
    features, action_features, action, is_last = inputs
    assert np.any(is_last[:-1]) and not np.all(is_last[-1])
    for name in spec:
        f = lambda *x, name=name: apply(params, *x, action, is_last, ())[0][name].reshape(T, B, -1).sum(-1)
        num_inputs = 2 if spec is PER_ACTION else 1
        jacobians = jax.jit(jax.jacobian(f, argnums=tuple(range(num_inputs))))(features, action_features)
        for jacobian in jacobians:
            # [T, B, T, B]: of each target by each step's features.
            by_step = np.abs(np.asarray(jacobian)).reshape(T, B, T, B, -1).max(axis=-1)
            expected = is_seen(is_last)[..., None] & np.eye(B, dtype=bool)[:, None]
            np.testing.assert_array_equal(by_step[~expected], 0, err_msg=name)
            # Per-action inputs go through rectifiers, some of which are off.
            seen = np.mean(by_step[expected] > 0)
            assert seen == 1 if jacobian is jacobians[0] else seen > 0.5


# Heads


def test_heads_of_vectors_agree_with_loops():
    params, apply, inputs = make(VECTORS)
    targets, lifetime_state = apply(params, *inputs, ())
    x = reference.reverse_lstm(inputs[0], inputs[3], *layer(params, "lstm"))
    assert lifetime_state == () and set(targets) == set(VECTORS)
    for name, prediction in VECTORS.items():
        assert targets[name].shape == (T, B, *prediction.shape)
        np.testing.assert_allclose(targets[name], linear(params, name, x).reshape(T, B, *prediction.shape), rtol=1e-10)


def shared(params, name, x):
    """A layer shared between actions that sees their mean, action by action: [A, C] -> [A, D]."""
    mean = np.mean(x, axis=0)
    return np.stack([np.maximum(linear(params, name, np.concatenate([row, mean])), 0) for row in x])


def test_heads_for_each_action_agree_with_loops():
    params, apply, inputs = make(PER_ACTION, has_actions=True)
    features, action_features, action, is_last = inputs
    targets, _ = apply(params, *inputs, ())
    embedding, seen = np.zeros((T, B, A, 2)), np.zeros((T, B, F + 4))
    for t, b in np.ndindex(T, B):
        first = shared(params, "action_embedding", action_features[t, b])
        embedding[t, b] = shared(params, "action_embedding_1", first)
        taken = embedding[t, b, action[t, b]]
        seen[t, b] = np.concatenate([features[t, b], np.mean(embedding[t, b], axis=0), taken])
    x = reference.reverse_lstm(seen, is_last, *layer(params, "lstm"))
    np.testing.assert_allclose(targets["target"], linear(params, "target", x)[..., 0], rtol=1e-10)
    for t, b in np.ndindex(T, B):
        rows = np.stack([np.concatenate([x[t, b], embedding[t, b, a]]) for a in range(A)])
        expected = linear(params, "p", shared(params, "p_hidden", rows))
        np.testing.assert_allclose(targets["p"][t, b], expected, rtol=1e-9)


def test_targets_for_each_action_are_equivariant_to_the_order_of_actions():
    params, apply, (features, action_features, action, is_last) = make(PER_ACTION, has_actions=True)
    targets, _ = apply(params, features, action_features, action, is_last, ())
    order = np.array([2, 0, 1])
    renamed = np.argsort(order)[action]
    permuted, _ = apply(params, features, action_features[:, :, order], renamed, is_last, ())
    np.testing.assert_allclose(permuted["p"], targets["p"][:, :, order], rtol=1e-10)
    np.testing.assert_allclose(permuted["target"], targets["target"], rtol=1e-10)
    # Actions are told apart, and so is the one that was taken.
    assert np.abs(targets["p"][:, :, 0] - targets["p"][:, :, 1]).max() > 1e-2
    other, _ = apply(params, features, action_features, (action + 1) % A, is_last, ())
    assert np.abs(other["target"] - targets["target"]).max() > 1e-2


def test_a_target_for_each_action_needs_inputs_for_each_action():
    message = "target 'p' is one for each action, expected a network with per-action inputs"
    with pytest.raises(ValueError, match=message):
        make(PER_ACTION, has_actions=False)


# The lifetime LSTM


def test_lifetime_state_is_an_lstm_step_on_the_mean_of_the_trajectory_and_scales_targets():
    params, apply, inputs = make(SCALAR, lifetime_lstm=3)
    rng = np.random.default_rng(1)
    state = LifetimeLSTMState(rng.normal(size=3), rng.normal(size=3))
    targets, after = apply(params, *inputs, state)
    scale = linear(params, "lifetime_scale", state.hidden)
    x = reference.reverse_lstm(inputs[0], inputs[3], *layer(params, "lstm")) * scale
    np.testing.assert_allclose(targets["target"], linear(params, "target", x)[..., 0], rtol=1e-10)
    seen = np.concatenate([inputs[0], linear(params, "summary", x)], axis=-1)
    embedded = linear(params, "lifetime/embedding", seen).mean(axis=(0, 1))
    expected = reference.lstm_step(embedded, state.hidden, state.cell, *layer(params, "lifetime/lstm/linear"))
    np.testing.assert_allclose(after.hidden, expected[0], rtol=1e-10)
    np.testing.assert_allclose(after.cell, expected[1], rtol=1e-10)


def test_an_update_changes_the_targets_of_the_next_update_and_not_its_own():
    params, apply, inputs = make(PER_ACTION, lifetime_lstm=3, has_actions=True)
    start = initial_lifetime_lstm_state(TargetNetworkConfig(lifetime_lstm=3))
    np.testing.assert_array_equal(start, np.zeros((2, 3)))

    @jax.jit
    @jax.jacobian
    def by_update(lifetime_weights):
        weights = params | lifetime_weights
        first, state = apply(weights, *inputs, start)
        second, _ = apply(weights, *inputs, state)
        return [jnp.sum(update[name]) for update in (first, second) for name in PER_ACTION]

    names = [f"target_network/{name}" for name in ("lifetime/embedding", "lifetime/lstm/linear", "summary")]
    gradients = by_update({name: params[name] for name in names})
    for gradient in gradients[:2]:
        assert all(not np.any(x) for x in jax.tree.leaves(gradient))
    for gradient in gradients[2:]:
        assert all(np.any(np.abs(x) > 1e-9) for x in jax.tree.leaves(gradient))


def test_the_lifetime_lstm_embeds_actions_by_weights_of_its_own():
    params, _, _ = make(PER_ACTION, lifetime_lstm=3, has_actions=True)
    embeddings = [name for name in params if "action_embedding" in name]
    assert len(embeddings) == 4 and sum("lifetime" in name for name in embeddings) == 2, embeddings
