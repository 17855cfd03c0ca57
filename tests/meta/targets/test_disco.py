"""DiscoRL's rule against plain NumPy in float64 and against the published rule's numbers; its weights file."""

import dataclasses
import os
import zipfile
from pathlib import Path

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.types import Trajectory
from experiments.analyses import disco103_reference
from frodo.rules import disco103_weights
from meta.targets import disco, disco103, disco_inputs
from tests.reference import disco as reference
from tests.trajectories import random_trajectory

DATA = Path(__file__).parents[2] / "data"
SMALL = disco.DiscoConfig(prediction_size=5, max_value=4, lstm=6, lifetime_lstm=3)
T, B, A = 6, 3, 4


def random_weights(shapes, seed):
    """Weights of order 1 / sqrt(inputs), biases of order 0.1, drawn in sorted order of their names."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, one in sorted(shapes.items()):
        x = rng.normal(size=one.shape)
        weights[name] = 0.1 * x if name.endswith("/b") else x / np.sqrt(np.prod(one.shape[:-1]))
    return weights


def random_experience(seed, config=SMALL, num_actions=A):
    """A trajectory with terminations inside, at its end and at its start, predictions and target predictions."""
    rng = np.random.default_rng(seed)
    discount = np.ones((T, B))
    discount[2, 0] = discount[T - 1, 1] = discount[0, 2] = 0
    trajectory = Trajectory(
        observation=(),
        is_first=np.zeros((T + 1, B), bool),
        action=rng.integers(num_actions, size=(T, B)),
        reward=rng.normal(size=(T, B)),
        discount=discount,
        truncated=np.zeros((T, B), bool),
        valid=np.ones((T, B), bool),
        behaviour_logits=rng.normal(size=(T, B, num_actions)),
        core_state=(),
    )
    spec = disco.disco(config).spec(num_actions)
    shapes = {name: one.axes(num_actions) for name, one in spec.items()}
    draw = lambda: {name: rng.normal(size=(T + 1, B, *shape)) for name, shape in shapes.items()}
    return trajectory, draw(), draw()


def initial(rule):
    """Meta-parameters at random."""
    return jax.jit(rule.random_meta_params, static_argnums=1)(jax.random.key(1), A)


@pytest.mark.parametrize("seed", [0, 1])
def test_agrees_with_plain_numpy_in_float64(seed):
    with jax.enable_x64(True):
        rule = disco.disco(SMALL)
        shapes = disco103.from_meta_params(rule.random_meta_params(jax.random.key(0), A))
        weights = random_weights(shapes, seed)
        meta_params = disco103.to_meta_params(weights)
        state = rule.init()
        expected_state = (np.zeros(3), np.zeros(3), (0.0, 0.0, 1.0), (0.0, 0.0, 1.0))
        apply = jax.jit(rule.apply)
        for update in range(3):
            trajectory, agent, target = random_experience(10 * seed + update)
            targets, state = apply(meta_params, state, trajectory, agent, target)
            losses = disco.prediction_losses(targets, agent, trajectory)
            actual = targets._asdict() | {"loss_value": disco.value_loss(targets.returns, agent["q"], trajectory)}
            actual |= {f"loss_{name}": x for name, x in losses.items()}
            expected, expected_state = reference.update(
                weights, expected_state, trajectory, agent, target, SMALL.discount, SMALL.lambda_
            )
            for name, x in expected.items():
                np.testing.assert_allclose(actual[name], x, rtol=1e-9, atol=1e-9, err_msg=f"{name}, update {update}")
            for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(expected_state), strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9, err_msg=f"state, update {update}")


def check(weights, paths):
    reference = {}
    for path in paths:
        with np.load(path) as file:
            reference |= {key: file[key] for key in file}
    return disco103_reference.check(weights, reference)


def test_agrees_with_the_published_code_on_random_weights():
    weights = {name: x.astype(np.float32) for name, x in random_weights(disco103.expected_shapes(), 20201).items()}
    parts = ("u0", "u1", "u2", "chain")  # updates, and the gradient through all of them
    errors = check(weights, [DATA / "disco_random_golden" / f"{part}.npz" for part in parts])
    assert len(errors) > 70
    assert not {key: error for key, error in errors.items() if not error <= disco103_reference.tolerance(key)}


def test_the_published_weights_are_read():
    path = os.environ.get("DISCO103_WEIGHTS")
    if not path:
        pytest.skip("DISCO103_WEIGHTS does not name the published weights")
    weights = disco103_weights.read(Path(path))
    assert len(weights) == 42 and sum(x.size for x in weights.values()) == 754_778
    for name, x in disco103.from_meta_params(disco103.to_meta_params(weights)).items():
        np.testing.assert_array_equal(x, weights[name])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("lstm/linear_2/w"), "key 'lstm/linear_2/w' is missing"),
        (lambda w: w.update({"lstm/linear_9/w": np.zeros(2)}), "key 'lstm/linear_9/w' is not one of Disco103"),
        (
            lambda w: w.update({"lstm/linear/b": np.zeros(255, np.float32)}),
            r"'lstm/linear/b' is float32\[255\], expected float32\[256\]",
        ),
        (
            lambda w: w.update({"lstm/linear/b": np.zeros(256)}),
            r"'lstm/linear/b' is float64\[256\], expected float32\[256\]",
        ),
        (lambda w: w.update({"lstm/linear/b": np.array([{}])}), "is no .npz file of arrays: .* is no array of numbers"),
    ],
)
def test_a_wrong_file_is_named_by_its_first_wrong_key(change, message, tmp_path):
    weights = {name: np.zeros(x.shape, np.float32) for name, x in disco103.expected_shapes().items()}
    change(weights)
    np.savez(tmp_path / "weights.npz", **weights)
    with pytest.raises(ValueError, match=f"weights.npz.*{message}"):
        disco103_weights.read(tmp_path / "weights.npz")


def test_what_is_no_whole_npz_file_is_named(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"nothing")
    np.savez(tmp_path / "b.npz", x=np.zeros(1000))
    (tmp_path / "b.npz").write_bytes((tmp_path / "b.npz").read_bytes()[:2000])
    with zipfile.ZipFile(tmp_path / "c.npz", "w") as file:
        for key in disco103.expected_shapes():
            file.writestr(f"{key}.npy", b"broken")
    for name in "abc":
        with pytest.raises(ValueError, match=f"{name}.npz is no .npz file of arrays: "):
            disco103_weights.read(tmp_path / f"{name}.npz")


def test_meta_gradient_flows_through_y_and_z_and_not_through_policy_and_values():
    rule = disco.disco(SMALL)
    meta_params = initial(rule)
    trajectory, agent, target = jax.tree.map(lambda x: jnp.asarray(x), random_experience(0))
    state = rule.init()
    state = state._replace(lifetime=jax.tree.map(lambda x: x + 0.1, state.lifetime))

    def outputs(agent, target):
        targets, _ = rule.apply(meta_params, state, trajectory, agent, target)
        return sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(targets))

    for gradient in jax.jit(jax.grad(outputs, argnums=(0, 1)))(agent, target):
        for name in agent:
            assert bool(jnp.any(gradient[name] != 0)) == (name in ("y", "z")), name


def test_steps_that_are_not_valid_change_nothing():
    rule = disco.disco(SMALL)
    meta_params = initial(rule)
    trajectory, agent, target = random_experience(0)
    valid, truncated = np.ones((T, B), bool), np.zeros((T, B), bool)
    truncated[2, 1], valid[3, 1] = True, False  # the reset step after a truncation
    trajectory = trajectory._replace(truncated=truncated, valid=valid)
    reward, logits = np.array(trajectory.reward), np.array(trajectory.behaviour_logits)
    reward[3, 1], logits[3, 1] = 100.0, 7.0 * np.arange(A)
    other = trajectory._replace(reward=reward, behaviour_logits=logits)
    apply = jax.jit(rule.apply)
    results = [apply(meta_params, rule.init(), x, agent, target) for x in (trajectory, other)]
    for x, y in zip(*(jax.tree.leaves(result) for result in results), strict=True):
        if np.ndim(x) >= 2:
            x, y = np.asarray(x)[valid], np.asarray(y)[valid]
        np.testing.assert_allclose(x, y, rtol=1e-6)


# Ablations


def gradient_to_predictions(config):
    """Which predictions the agent's losses move, and which the targets depend on."""
    rule = disco.disco(config)
    meta_params = initial(rule)
    trajectory, agent, target = jax.tree.map(jnp.asarray, random_experience(0, config))
    state = rule.init()
    if config.lifetime_lstm:
        state = state._replace(lifetime=jax.tree.map(lambda x: x + 0.1, state.lifetime))

    def losses(agent):
        targets, _ = rule.apply(meta_params, state, trajectory, jax.lax.stop_gradient(agent), target)
        total = rule.loss(targets, agent, trajectory)
        return jnp.sum(total + (rule.loss_without_meta(targets, agent, trajectory) if rule.loss_without_meta else 0))

    def outputs(both, name):
        return jnp.sum(jnp.square(getattr(rule.apply(meta_params, state, trajectory, *both)[0], name)))

    names = [name for name in ("policy", "y", "z") if name in agent]
    gradients = jax.jit(
        lambda agent: (jax.grad(losses)(agent), [jax.grad(outputs)((agent, target), name) for name in names])
    )
    moved, sees = jax.tree.map(lambda x: bool(jnp.any(x != 0)), gradients(agent))
    of_nonzero = lambda gradient: {name for name, is_nonzero in gradient.items() if is_nonzero}
    for fast, slow in sees:  # the slow copy's y and z are seen where the agent's are
        assert of_nonzero(fast) == of_nonzero(slow)
    return set(agent), of_nonzero(moved), {name: of_nonzero(fast) for name, (fast, _) in zip(names, sees, strict=True)}


EVERYTHING = {"policy", "y", "z", "q", "aux_policy"}


@pytest.mark.parametrize(
    ("without", "left", "core", "lifetime_lstm"),
    [
        (("y_z",), {"policy", "q", "aux_policy"}, "lstm", 3),
        (("q",), {"policy", "y", "z", "aux_policy"}, "lstm", 0),
        (("aux_policy",), {"policy", "y", "z", "q"}, "transformer", 3),
        (("y_z", "q", "aux_policy"), {"policy"}, "transformer", 0),
    ],
)
def test_what_a_rule_is_without_is_neither_predicted_nor_learned_nor_seen(without, left, core, lifetime_lstm):
    config = dataclasses.replace(SMALL, without=without, core=core, lstm=8, lifetime_lstm=lifetime_lstm)
    predicted, moved, sees = gradient_to_predictions(config)
    assert predicted == left and moved == left
    assert sees["policy"] == left & {"y", "z"}


@pytest.mark.parametrize(
    ("hidden", "policy_sees", "y_sees"), [("nothing", True, True), ("own", True, False), ("all", False, False)]
)
def test_hidden_predictions_reach_no_target_that_they_are_hidden_from(hidden, policy_sees, y_sees):
    predicted, moved, sees = gradient_to_predictions(dataclasses.replace(SMALL, hidden=hidden))
    assert predicted == moved == EVERYTHING
    assert sees["policy"] == ({"y", "z"} if policy_sees else set())
    assert sees["y"] == sees["z"] == ({"y", "z"} if y_sees else set())


def test_hiding_leaves_the_policy_target_or_the_weights_as_they_are():
    rule, own, everything = (disco.disco(dataclasses.replace(SMALL, hidden=x)) for x in ("nothing", "own", "all"))
    meta_params = initial(rule)
    assert jax.tree.structure(meta_params) == jax.tree.structure(initial(own))
    apply = lambda rule: jax.jit(rule.apply)(meta_params, rule.init(), *random_experience(0))
    (full, state), (partly, own_state), (blind, _) = (apply(x) for x in (rule, own, everything))
    for x, y in ((full.policy, partly.policy), (partly.y, blind.y), (partly.z, blind.z), (state[0], own_state[0])):
        np.testing.assert_allclose(jnp.stack(jax.tree.leaves(x)), jnp.stack(jax.tree.leaves(y)), rtol=1e-5, atol=2e-6)


def test_a_lifetime_lstm_that_is_held_stays_at_its_start():
    rule, held = (disco.disco(dataclasses.replace(SMALL, is_lifetime_held=x)) for x in (False, True))
    meta_params = initial(rule)
    apply = lambda rule: jax.jit(rule.apply)(meta_params, rule.init(), *random_experience(0))
    (targets, state), (same_targets, held_state) = apply(rule), apply(held)
    jax.tree.map(np.testing.assert_array_equal, (targets, state[1:]), (same_targets, held_state[1:]))
    jax.tree.map(np.testing.assert_array_equal, held_state.lifetime, held.init().lifetime)
    assert jnp.any(state.lifetime.hidden != 0)


def test_predictions_hidden_as_their_mean_say_no_more_than_it():
    trajectory, predictions, targets = random_experience(0)
    shuffle = lambda x: x[::-1, ::-1]
    shuffled = [{name: shuffle(x) if name in "yz" else x for name, x in of.items()} for of in (predictions, targets)]

    def policies(**settings):
        rule = disco.disco(dataclasses.replace(SMALL, **settings))
        apply = jax.jit(lambda both: rule.apply(initial(rule), rule.init(), trajectory, *both)[0].policy)
        return apply([predictions, targets]), apply(shuffled)

    seen, mean, zero = policies(), policies(hidden="all", hidden_as="mean"), policies(hidden="all")
    np.testing.assert_allclose(*mean, rtol=1e-5, atol=1e-6)
    assert np.abs(seen[0] - seen[1]).max() > 1e-4 and np.abs(mean[0] - zero[0]).max() > 1e-4
    context = disco.make_context(disco.disco(SMALL).init(), trajectory, predictions, targets, SMALL)[0]
    context = jax.tree.map(jnp.asarray, context)
    read = lambda see: hk.without_apply_rng(
        hk.transform(lambda: disco_inputs.make_inputs(context, see).action_features)
    )
    meta_params = read(lambda x: x).init(jax.random.key(1))
    full, hidden = (np.asarray(read(see).apply(meta_params)) for see in (lambda x: x, disco.HIDDEN_AS["mean"]))
    changed = np.flatnonzero((full != hidden).any((0, 1, 2)))
    assert len(changed) == 2 and all(np.ptp(hidden[..., i]) < 1e-6 for i in changed)  # z, of the agent and of its copy


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"without": ("y",)}, "^without is 'y', expected one of y_z, q, aux_policy$"),
        ({"hidden": "al"}, r"^hidden is 'al', expected one of nothing, own, all \(did you mean 'all'"),
        ({"hidden": "own", "hidden_as": "means"}, "^hidden_as is 'means', expected one of zero, mean"),
        ({"core": "transformr"}, "^core is 'transformr'.*did you mean 'transformer'"),
        ({"core": "transformer", "lstm": 6}, "lstm is 6, expected a multiple of 4"),
        ({"hidden": "own", "without": ("y_z",)}, "^hidden is 'own', expected 'nothing'"),
        ({"lifetime_lstm": 0, "is_lifetime_held": True}, "^is_lifetime_held is True, expected False where there is no"),
        ({"lifetime_lstm": -1}, "^lifetime_lstm is -1, expected an integer of at least 0$"),
        ({"prediction_size": 0}, "^prediction_size is 0, expected an integer of at least 1$"),
        ({"max_value": 0}, "^max_value is 0, expected an integer of at least 1$"),
        ({"action_embedding": (4, 0)}, r"^action_embedding is \(4, 0\), expected positive layer sizes$"),
        ({"discount": 1.1}, "^discount is 1.1, expected a number from 0 to 1$"),
        ({"target_decay": -0.1}, "^target_decay is -0.1, expected a number from 0 to 1$"),
        ({"y_cost": -1.0}, "^y_cost is -1.0, expected a number of at least 0$"),
        ({"logit_cost": float("nan")}, "^logit_cost is nan, expected a number of at least 0$"),
    ],
)
def test_a_wrong_ablation_is_named(settings, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALL, **settings).validate()


def test_losses_may_leave_out_first_steps():
    trajectory = random_trajectory(0, 8, 4)
    weights = np.asarray(disco._weights(dataclasses.replace(SMALL, skips_first_steps=True), trajectory))
    assert (weights[trajectory.is_first[:-1]] == 0).all() and (weights[~trajectory.is_first[:-1]] > 0).all()
    assert weights[trajectory.valid].mean() == pytest.approx(1)
    assert (np.asarray(disco._weights(SMALL, trajectory)) == 1).all()
