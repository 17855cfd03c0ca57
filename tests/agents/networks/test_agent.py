"""Torsos against convolutions written differently, unrolling against stepping, and what a bad configuration says."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks.agent import NetworkConfig, make_agent
from agents.networks.torsos import to_patches
from agents.types import PredictionSpec, Trajectory
from tests.equations import equations
from tests.reference import agents as reference
from tests.trajectories import random_trajectory

SPEC = {"policy": PredictionSpec((3,)), "value": PredictionSpec()}

pytestmark = pytest.mark.usefixtures("float64")


def random_params(agent, observation):
    """Parameters with no entry at its initial value, so that a bias counts too."""
    shapes = jax.eval_shape(agent.init, jax.random.key(0), observation)
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: 0.4 * rng.normal(size=x.shape), shapes)


@pytest.mark.parametrize(("channels", "height", "width"), [(4, 84, 84), (3, 10, 7), (1, 5, 16)])
def test_conv_by_patches_is_a_strided_convolution_with_padding_same(channels, height, width):
    frames = np.random.default_rng(0).integers(256, size=(2, channels, height, width), dtype=np.uint8)
    agent = make_agent(NetworkConfig("conv", (), layout="first"), {"embedding": PredictionSpec((5,))}, 3)
    observation = agent.prepare(frames)
    assert observation.dtype == np.uint8
    params = random_params(agent, observation)
    x = frames / 255.0
    for name in ("conv_0", "conv_1"):
        w, b = (params["torso"][name][key] for key in "wb")
        kernel = jnp.transpose(w.reshape(x.shape[1], 4, 4, -1), (3, 0, 1, 2))
        settings = dict(window_strides=(4, 4), padding="SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))
        x = jax.nn.relu(jax.lax.conv_general_dilated(x, kernel, **settings) + b[:, None, None])
    assert x.shape[1:] == (64, -(-height // 16), -(-width // 16))
    embedding = jnp.transpose(x, (0, 2, 3, 1)).reshape(2, -1)
    expected = embedding @ params["heads"]["linear"]["w"] + params["heads"]["linear"]["b"]
    predictions, _ = jax.jit(agent.step)(params, observation, np.zeros(2, bool), ())
    np.testing.assert_allclose(predictions["embedding"], expected, rtol=1e-9, atol=1e-9)


def test_patches_hold_each_pixel_once_and_zeros():
    frames = np.arange(1, 2 * 10 * 7 + 1).reshape(1, 2, 10, 7)
    patches = np.asarray(to_patches(frames))
    np.testing.assert_array_equal(np.sort(patches[patches > 0]), np.arange(1, 141))
    # Ten rows are padded by one above and one below, seven columns by none on the left and one on the right.
    np.testing.assert_array_equal(patches[0, 0, 0].reshape(2, 4, 4)[0], [[0] * 4, *frames[0, 0, :3, :4]])
    np.testing.assert_array_equal(patches[0, 2, 1].reshape(2, 4, 4)[1, :3, :3], frames[0, 1, 7:, 4:])


def test_resnet_agrees_with_loops():
    frames = np.random.default_rng(0).integers(256, size=(2, 2, 11, 8), dtype=np.uint8)
    agent = make_agent(NetworkConfig("resnet", (), layout="first"), {"embedding": PredictionSpec((5,))}, 3)
    observation = agent.prepare(frames)
    np.testing.assert_array_equal(observation, frames.transpose(0, 2, 3, 1))
    params = random_params(agent, observation)
    # A residual block's second convolution is made first.
    made = ["conv2_d"] + [f"conv2_d_{i}" for i in range(1, 15)]
    order = [made[5 * section + i] for section in range(3) for i in (0, 2, 1, 4, 3)]
    layers = [[np.asarray(params["torso"][name][key]) for key in "wb"] for name in order]
    embedding = np.stack([reference.resnet(frame / 255.0, layers) for frame in np.asarray(observation)])
    assert embedding.shape == (2, 2 * 1 * 32)
    head = params["heads"]["linear"]
    expected = np.maximum(embedding, 0) @ head["w"] + head["b"]
    predictions, _ = jax.jit(agent.step)(params, observation, np.zeros(2, bool), ())
    np.testing.assert_allclose(predictions["embedding"], expected, rtol=1e-9)


@pytest.mark.parametrize("torso", ["mlp", "conv"])
def test_uint8_is_scaled_to_1_and_floats_are_taken_as_they_come(torso):
    frames = np.random.default_rng(0).integers(256, size=(2, 3, 6, 5), dtype=np.uint8)
    agent = make_agent(NetworkConfig(torso, (4,), layout="first" if torso == "conv" else ""), SPEC, 3)
    params = random_params(agent, agent.prepare(frames))
    step = jax.jit(lambda frames: agent.step(params, agent.prepare(frames), np.zeros(2, bool), ())[0])
    scaled, as_they_come = step(frames), step(frames / 255.0)
    for name in SPEC:
        np.testing.assert_allclose(scaled[name], as_they_come[name], rtol=1e-12)
        assert not np.allclose(step(frames / 1.0)[name], scaled[name])


def test_mlp_is_layers_and_linear_heads():
    agent = make_agent(NetworkConfig("mlp", (5, 4), activation="tanh"), SPEC, 3)
    observation = np.random.default_rng(0).normal(size=(2, 2, 3))
    params = random_params(agent, observation)
    predictions, core_state = jax.jit(agent.step)(params, observation, np.zeros(2, bool), ())
    layers = [[np.asarray(params["heads"][name][key]) for key in "wb"] for name in ("linear", "linear_1")]
    x = observation.reshape(2, 6)
    for w, b in layers:
        x = np.tanh(x @ w + b)
    for name, layer in (("policy", "linear_2"), ("value", "linear_3")):
        expected = x @ params["heads"][layer]["w"] + params["heads"][layer]["b"]
        np.testing.assert_allclose(predictions[name], expected.reshape(predictions[name].shape), rtol=1e-12)
    assert core_state == () and predictions["value"].shape == (2,)


def test_a_prediction_for_each_action_has_an_axis_of_actions():
    spec = {"q": PredictionSpec(is_per_action=True), "p": PredictionSpec((2,), is_per_action=True)}
    agent = make_agent(NetworkConfig("mlp", (4,)), spec, 3)
    params = random_params(agent, np.ones((2, 5)))
    predictions, _ = agent.step(params, np.ones((2, 5)), np.zeros(2, bool), ())
    assert {name: x.shape for name, x in predictions.items()} == {"q": (2, 3), "p": (2, 3, 2)}


def stepped(agent, params, trajectory: Trajectory):
    """Call `step` for one observation after another, with the core's state from the step before."""
    core_state, predictions = trajectory.core_state, []
    step = jax.jit(agent.step)
    for observation, is_first in zip(trajectory.observation, trajectory.is_first, strict=True):
        prediction, core_state = step(params, observation, is_first, core_state)
        predictions.append(prediction)
    return {name: np.stack([p[name] for p in predictions]) for name in SPEC}


@pytest.mark.parametrize(
    ("torso", "core", "batch_size"), [("mlp", 0, 4), ("mlp", 4, 4), ("conv", 4, 4), ("conv", 4, 1)]
)
def test_unrolling_is_stepping(torso, core, batch_size):
    agent = make_agent(NetworkConfig(torso, (5,), core), SPEC, 3)
    frames = {"mlp": (2, 2), "conv": (2, 2, 16)}[torso]
    trajectory = jax.tree.map(lambda x: x[:, :batch_size], random_trajectory(0, 6, 4, observation=frames))
    rng = np.random.default_rng(1)
    core_state = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), agent.initial_state(batch_size))
    trajectory = trajectory._replace(core_state=core_state)
    params = random_params(agent, trajectory.observation[0])
    unrolled = jax.jit(agent.unroll)(params, trajectory)
    for name, expected in stepped(agent, params, trajectory).items():
        np.testing.assert_allclose(unrolled[name], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_images_that_come_one_by_one_are_seen_all_at_once_and_others_step_by_step(batch_size):
    agent = make_agent(NetworkConfig("conv", (5,)), SPEC, 3)
    trajectory = jax.tree.map(lambda x: x[:, :batch_size], random_trajectory(0, 6, 4, observation=(2, 2, 16)))
    loss = lambda params: jnp.sum(agent.unroll(params, trajectory)["value"])
    params = jax.eval_shape(agent.init, jax.random.key(0), jnp.asarray(trajectory.observation[0]))
    names = {eqn.primitive.name for eqn in equations(jax.make_jaxpr(jax.grad(loss))(params).jaxpr)}
    assert ({"scan", "remat2", "checkpoint"} & names == set()) == (batch_size == 1), names


@pytest.mark.long
@pytest.mark.parametrize(
    ("torso", "frames", "core_kind"), [("conv", (2, 2, 16), "lstm"), ("mlp", (2, 2), "transformer")]
)
def test_layers_compute_in_bfloat16_and_all_else_is_of_full_precision(torso, frames, core_kind):
    full, half = (
        make_agent(
            NetworkConfig(
                torso, (8,), 4, action_model=5, core_kind=core_kind, core_heads=2, memory=3, precision=precision
            ),
            SPEC | {"q": PredictionSpec(is_per_action=True)},
            3,
        )
        for precision in ("full", "bfloat16")
    )
    trajectory = random_trajectory(0, 6, 4, observation=frames)
    if torso == "conv":
        trajectory = trajectory._replace(
            observation=np.random.default_rng(2).integers(256, size=(7, 4, *frames)).astype(np.uint8)
        )
    trajectory = trajectory._replace(core_state=full.initial_state(4))
    params = random_params(full, trajectory.observation[0])
    expected, found = (jax.jit(agent.unroll)(params, trajectory) for agent in (full, half))
    for name, x in expected.items():
        assert found[name].dtype == x.dtype and 0 < np.abs(found[name] - x).max() < 0.05 * np.abs(x).max() + 0.05
    program = str(jax.make_jaxpr(half.unroll)(params, trajectory))
    products = [line for line in program.splitlines() if "dot_general" in line and " = " in line]
    assert products and all(":bf16[" in line for line in products)
    gradient = jax.grad(lambda params: half.unroll(params, trajectory)["value"].sum())(params)
    assert jax.tree.map(lambda x: x.dtype, gradient) == jax.tree.map(lambda x: x.dtype, params)
    predictions, core_state = half.step(
        params, trajectory.observation[0], trajectory.is_first[0], trajectory.core_state
    )
    assert jax.tree.map(lambda x: (x.shape, x.dtype), core_state) == jax.tree.map(
        lambda x: (x.shape, x.dtype), full.initial_state(4)
    )
    np.testing.assert_allclose(predictions["value"], found["value"][0], atol=0.05)
    along, _ = half.unroll_model(params, trajectory, num_steps=2)
    assert along["q"].shape == (7, 4, 2) and along["q"].dtype == expected["q"].dtype


def test_the_core_is_an_lstm_that_starts_from_zero_at_a_first_observation():
    agent = make_agent(NetworkConfig("mlp", (), core=4), SPEC, 3)
    trajectory = random_trajectory(0, 6, 4)
    rng = np.random.default_rng(1)
    core_state = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), agent.initial_state(4))
    trajectory = trajectory._replace(core_state=core_state)
    params = random_params(agent, trajectory.observation[0])
    w, b = (np.asarray(params["heads"]["lstm/linear"][key]) for key in "wb")
    head = params["heads"]["linear_1"]
    values = np.zeros((7, 4))
    for n in range(4):
        hidden, cell = (np.asarray(x[n]) for x in (core_state.hidden, core_state.cell))
        for t in range(7):
            if trajectory.is_first[t, n]:
                hidden, cell = np.zeros(4), np.zeros(4)
            hidden, cell = reference.lstm_step(trajectory.observation[t, n].reshape(-1), hidden, cell, w, b)
            values[t, n] = (hidden @ head["w"] + head["b"])[0]
    np.testing.assert_allclose(jax.jit(agent.unroll)(params, trajectory)["value"], values, rtol=1e-10)
    np.testing.assert_array_equal(jax.tree.leaves(agent.initial_state(2)), np.zeros((2, 2, 4)))


def test_tabular_is_a_table_that_starts_at_zero():
    agent = make_agent(NetworkConfig("tabular", ()), SPEC, 3)
    params = agent.init(jax.random.key(0), jnp.eye(5))
    assert sorted(x.size for x in jax.tree.leaves(params)) == [5, 15]
    step = lambda params: agent.step(params, jnp.eye(5), np.zeros(5, bool), ())[0]
    np.testing.assert_array_equal(step(params)["value"], np.zeros(5))
    np.testing.assert_array_equal(step(params)["policy"], np.zeros((5, 3)))
    table = random_params(agent, jnp.eye(5))
    np.testing.assert_allclose(step(table)["value"], table["heads"]["linear_1"]["w"][:, 0])
    np.testing.assert_allclose(step(table)["policy"], table["heads"]["linear"]["w"])
    gradient = jax.grad(lambda params: step(params)["value"][2])(params)["heads"]["linear_1"]["w"][:, 0]
    np.testing.assert_array_equal(gradient, [0, 0, 1, 0, 0])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (NetworkConfig("resnett"), "network.torso is 'resnett', expected one of mlp, conv, resnet, tabular"),
        (NetworkConfig(core=-1), "network.core is -1, expected an integer of at least 0"),
        (NetworkConfig(hidden=(8, 0)), r"network.hidden is \(8, 0\), expected a tuple of positive layer sizes"),
        (
            NetworkConfig(is_orthogonal=True, head_stddev=0.1),
            "network.is_orthogonal is True, torso 'mlp' and head_stddev 0.1, expected the torso 'mlp' and no head_",
        ),
        (NetworkConfig(precision="bf16"), "network.precision is 'bf16', expected one of full, bfloat16"),
        (
            NetworkConfig(activation="rellu"),
            "network.activation is 'rellu', expected one of relu",
        ),
    ],
)
def test_a_bad_configuration_is_named(config, message):
    with pytest.raises(ValueError, match=message):
        make_agent(config, SPEC, 3)


def test_conv_on_what_is_no_image_is_named():
    agent = make_agent(NetworkConfig("conv"), SPEC, 3)
    with pytest.raises(ValueError, match=r"'conv' needs images of three axes, got shape \(6, 11\)"):
        agent.prepare(np.zeros((2, 6, 11)))


def test_the_action_model_is_an_lstm_step_for_each_action_and_heads_with_a_hidden_layer():
    size, num_actions = 4, 3
    spec = {"policy": PredictionSpec((3,)), "z": PredictionSpec((5,), is_per_action=True)}
    agent = make_agent(NetworkConfig("mlp", (6, 5), action_model=size, head_stddev=0.01), spec, num_actions)
    trajectory = random_trajectory(0, 5, 3)
    params = random_params(agent, jnp.asarray(trajectory.observation[0]))
    heads = params["heads"]
    linear = lambda name, x: x @ heads[name]["w"] + heads[name].get("b", 0.0)
    sigmoid = lambda x: 1 / (1 + np.exp(-x))
    predictions = jax.jit(agent.unroll)(params, trajectory)
    taken, both = jax.jit(agent.unroll_taken)(params, trajectory)
    along, again = jax.jit(agent.unroll_model, static_argnums=2)(params, trajectory, 3)
    chex.assert_trees_all_equal(both, predictions)
    chex.assert_trees_all_equal(again, predictions)
    np.testing.assert_array_equal(along["policy"], predictions["policy"])
    assert along["z"].shape == (6, 3, 3, 5)
    for t, b in np.ndindex(6, 3):
        x = np.asarray(trajectory.observation[t, b]).ravel()
        embedding = linear("linear_1", np.maximum(0, linear("linear", x)))  # no activation after the last layer
        np.testing.assert_allclose(predictions["policy"][t, b], linear("linear_2", embedding), rtol=1e-9)
        cell = linear("action_model_cell", embedding)
        for action in range(num_actions):
            gates = linear("action_model_state", np.tanh(cell)) + heads["action_model_action"]["w"][action]
            i, g, f, o = np.split(gates, 4)
            hidden = sigmoid(o) * np.tanh(sigmoid(f + 1) * cell + sigmoid(i) * np.tanh(g))
            z = linear("z", np.maximum(0, linear("z_hidden", hidden)))
            np.testing.assert_allclose(predictions["z"][t, b, action], z, rtol=1e-9)
            if t < 5 and trajectory.action[t, b] == action:
                np.testing.assert_allclose(taken["z"][t, b, 0], z, rtol=1e-9)
        hidden = np.tanh(cell)
        weights = np.concatenate([heads["action_model_action"]["w"], heads["action_model_state"]["w"]])
        for i, action in enumerate(trajectory.action[t : t + 3, b]):  # one after another
            bias = heads["action_model_state"]["b"]
            hidden, cell = reference.lstm_step(np.eye(num_actions)[action], hidden, cell, weights, bias)
            z = linear("z", np.maximum(0, linear("z_hidden", hidden)))
            np.testing.assert_allclose(along["z"][t, b, i], z, rtol=1e-9)
    initial = agent.init(jax.random.key(0), jnp.asarray(trajectory.observation[0]))["heads"]
    assert np.abs(initial["linear_2"]["w"]).max() <= 0.02 < np.abs(initial["z"]["w"]).max()


def test_a_resnet_of_other_widths():
    agent = make_agent(NetworkConfig("resnet", (7,), channels=(2, 3, 3, 2), layout="first"), SPEC, 3)
    params = agent.init(jax.random.key(0), agent.prepare(np.zeros((1, 4, 16, 16), np.uint8)))
    widths = [x["b"].shape[0] for name, x in sorted(params["torso"].items()) if "conv" in name]
    assert sorted(set(widths)) == [2, 3] and len(widths) == 4 * 5


# A critic of its own, orthogonal weights


@pytest.mark.parametrize("core", [0, 4])
def test_a_separate_critic_shares_nothing_with_the_actor(core):
    config = NetworkConfig("mlp", (5, 6), core=core, activation="tanh", is_critic_separate=True)
    agent = make_agent(config, SPEC, 3)
    trajectory = random_trajectory(0, 5, 3)
    trajectory = trajectory._replace(core_state=agent.initial_state(3))
    params = random_params(agent, trajectory.observation[0])
    predictions = agent.unroll(params, trajectory)
    assert set(predictions) == {"policy", "value"}
    # The same networks, one at a time, with heads for their own predictions alone.
    for i, (part, name) in enumerate((("actor", "policy"), ("critic", "value"))):
        alone = make_agent(dataclasses.replace(config, is_critic_separate=False), {name: SPEC[name]}, 3)
        state = trajectory.core_state[i] if core else ()
        expected = alone.unroll(params[part], trajectory._replace(core_state=state))
        np.testing.assert_array_equal(predictions[name], expected[name])
        gradient = jax.grad(lambda p, name=name: jnp.sum(agent.unroll(p, trajectory)[name]))(params)
        other = {"actor": "critic", "critic": "actor"}[part]
        assert all(np.any(x) for x in jax.tree.leaves(gradient[part]) if not core)
        assert not any(np.any(x) for x in jax.tree.leaves(gradient[other]))
    # One step at a time it is the same.
    state = trajectory.core_state
    for t in range(5):
        now, state = agent.step(params, trajectory.observation[t], trajectory.is_first[t], state)
        chex.assert_trees_all_close(now, {name: x[t] for name, x in predictions.items()}, rtol=1e-10)
    assert jax.tree.structure(state) == jax.tree.structure(agent.initial_state(3))
    of_taken, of_all = agent.unroll_taken(params, trajectory)
    chex.assert_trees_all_equal(of_taken, of_all, dict(predictions))


def test_orthogonal_weights():
    agent = make_agent(NetworkConfig("mlp", (7, 5), is_orthogonal=True), SPEC, 3)
    heads = agent.init(jax.random.key(0), jnp.zeros((2, 9)))["heads"]
    scales = {"linear": 2.0, "linear_1": 2.0, "linear_2": 1e-4, "linear_3": 1.0}  # squared: layers, policy, value
    assert set(heads) == set(scales)
    for name, scale in scales.items():
        w = np.asarray(heads[name]["w"])
        np.testing.assert_allclose(w.T @ w, scale * np.eye(w.shape[1]), atol=1e-10)
        assert not np.any(heads[name]["b"])
