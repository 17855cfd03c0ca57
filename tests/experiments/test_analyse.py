"""What is said of predictions has known answers: no look across episodes, gradients, and signals that were planted."""

import csv
import dataclasses
import math
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks import make_agent
from agents.replay import ReplayConfig
from experiments import analyse, files, predictions, probes, rules, trained
from experiments.files import UsageError
from frodo import presets
from frodo.online import Learner
from frodo.rule import make_rule
from meta.disco import DiscoConfig
from meta.lifetime import AgentState
from meta.target_network import LifetimeState
from tests.trajectories import random_trajectory

DISCO = DiscoConfig(prediction_size=8, max_value=6, lstm=8, lifetime_lstm=4)


def small(env="toy/catch/5x4", **network):
    config = presets.disco(env)
    sizes = {"hidden": (8,), "action_model": 4, "head_stddev": 0.5, **network}
    return dataclasses.replace(
        config,
        batch_size=3,
        unroll=6,
        replay=ReplayConfig(),
        is_frozen=True,
        network=dataclasses.replace(config.network, **sizes),
        rule=dataclasses.replace(config.rule, disco=DISCO),
    )


def draw(shapes, seed):
    """Random weights of order 1 / sqrt(inputs), without a compilation."""
    rng = np.random.default_rng(seed)
    scaled = lambda x: rng.normal(size=x.shape) / np.sqrt(np.prod(x.shape[:-1]))
    return jax.tree.map(lambda x: jnp.asarray(scaled(x), jnp.float32), shapes)


def fresh(config, observation=(5, 4)):
    """An agent with random θ and η, and a lifetime LSTM that is on its way: at its start its scale is 0."""
    rule = make_rule(config.rule)
    agent = make_agent(config.network, rule.spec(3), 3)
    prepared = agent.prepare(jnp.zeros((1, *observation)))
    key = jax.random.key(0)
    shapes = jax.eval_shape(agent.init, key, prepared)
    meta_params = draw(jax.eval_shape(lambda key: rule.init_meta_params(key, 3), key), 2)
    lifetime = LifetimeState(*(jnp.ones(DISCO.lifetime_lstm),) * 2)
    state = AgentState(draw(shapes, 0), (), rule.init()._replace(lifetime=lifetime), draw(shapes, 1), ())
    learner = Learner(agent, rule, *(None,) * (len(Learner._fields) - 2))
    return trained.Trained(config, 2, learner, state, meta_params)


def experience(num_steps, batch_size, agent, observation=(5, 4)):
    """Episodes of four steps, and the observations."""
    trajectory = random_trajectory(0, num_steps, max(3, batch_size), observation=observation)
    trajectory = jax.tree.map(lambda x: x[:, :batch_size], trajectory)
    no = np.zeros((num_steps, batch_size), bool)
    is_last = no | (np.arange(num_steps) % 4 == 3)[:, None]
    trajectory = trajectory._replace(discount=1.0 - is_last, truncated=no, valid=~no)
    trajectory = trajectory._replace(core_state=agent.learner.agent.initial_state(batch_size))
    floats = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32 if x.dtype == float else x.dtype), trajectory)
    return floats, np.asarray(floats.observation)


def rule_inputs(agent, trajectory):
    return jax.jit(lambda trajectory: trained.rule_inputs(agent, trajectory))(trajectory)


def test_confidence_is_from_zero_to_one():
    agent = fresh(small())
    trajectory, _ = experience(9, 3, agent)
    found = predictions.confidence(agent, trajectory)
    for name in ("y_confidence", "z_confidence"):
        assert found[name].shape == (9, 3) and (found[name] > -1e-6).all() and (found[name] < 1).all()
    logits = agent.learner.agent.unroll(agent.agent.params, trajectory)["z"][4, 1, trajectory.action[4, 1]]
    p = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    assert found["z_confidence"][4, 1] == pytest.approx(1 + (p * np.log(p)).sum() / math.log(8), abs=1e-5)


@pytest.mark.parametrize("core", [0, 5])
def test_saliency_is_the_change_with_a_pixel(core):
    agent = fresh(small(core=core, activation="tanh"))
    trajectory, observations = experience(6, 3, agent)
    steps, row, column = np.array([0, 3]), 2, 1
    found = predictions.saliency(agent, trajectory, observations, steps)

    @jax.jit
    def changed(delta):
        shown = trajectory._replace(observation=trajectory.observation.at[3, 0, row, column].add(delta))
        own = jax.tree.map(lambda x: x[3, 0], agent.learner.agent.unroll(agent.agent.params, shown))
        log = {name: jax.nn.log_softmax(own[name]) for name in ("policy", "y", "z")}
        action = trajectory.action[3, 0]
        best = {"y": log["y"].max(), "z": log["z"][action].max()}
        return {"policy": log["policy"][action], **predictions.values(own), **best}

    up, down = changed(0.1), changed(-0.1)
    for name, gradient in found.items():
        assert gradient.shape == (2, 5, 4)
        difference = float(up[name] - down[name]) / 0.2
        assert gradient[1, row, column] == pytest.approx(difference, rel=0.05, abs=2e-3 if name == "value" else 1e-5), (
            name
        )


@pytest.mark.parametrize("torso", ["conv", "resnet"])
def test_saliency_of_frames_comes_back_as_frames(torso):
    agent = fresh(small(torso=torso, channels=(2,)), (2, 9, 8))
    frames = np.random.default_rng(0).integers(256, size=(6, 3, 2, 9, 8)).astype(np.uint8)
    trajectory, _ = experience(5, 3, agent)
    prepare = agent.learner.agent.prepare
    trajectory = trajectory._replace(observation=jax.vmap(prepare)(frames))
    found = predictions.saliency(agent, trajectory, frames, np.array([1]))
    assert found["z"].shape == (1, 2, 9, 8) and np.abs(found["z"]).max() > 0

    @jax.jit
    def y(delta):
        frame = jnp.asarray(frames[1, :1] / 255, jnp.float32).at[0, 1, 4, 3].add(delta)
        made, _ = agent.learner.agent.step(agent.agent.params, prepare(frame), trajectory.is_first[1, :1], ())
        return jax.nn.log_softmax(made["y"][0]).max()

    assert found["y"][0, 1, 4, 3] == pytest.approx(float(y(0.01) - y(-0.01)) / 0.02, rel=0.05, abs=1e-4)


def test_targets_do_not_move_across_an_episode_end():
    agent = fresh(small())
    num_steps = 8
    trajectory, _ = experience(num_steps, 4, agent)
    no = jnp.zeros((num_steps, 4), bool)
    trajectory = trajectory._replace(
        discount=jnp.ones((num_steps, 4)).at[3, 0].set(0.0),
        truncated=no.at[5, 1].set(True),
        valid=~no.at[2, 2].set(True),
    )
    seen, own, slow = rule_inputs(agent, trajectory)
    moved = predictions.moves(agent.learner.rule, agent.meta_params, agent.agent.rule_state, seen, own, slow)
    is_last, valid = np.array(trajectory.is_last), np.array(trajectory.valid)
    for name, x in moved.items():
        assert x.shape == (num_steps, num_steps, 4)
        for s, t, b in np.ndindex(x.shape):
            if s < t - 1 or is_last[t:s, b].any() or not valid[max(s, t), b]:
                assert x[s, t, b] == 0, (name, s, t, b)
            elif s - t < 2 and name != "policy":
                assert x[s, t, b] > 0, (name, s, t, b)  # also where step s ends an episode


def test_disco103_bootstraps_and_does_not_look_past_an_episode_end():
    if not os.environ.get("DISCO103_WEIGHTS"):
        pytest.skip("DISCO103_WEIGHTS does not name the published weights")
    config = small()
    config = dataclasses.replace(
        config, init_meta_params="disco103", rule=dataclasses.replace(config.rule, disco=DiscoConfig())
    )
    rule = make_rule(config.rule)
    num_steps, batch_size, ends = 6, 2, 3
    trajectory = jax.tree.map(lambda x: x[:, :batch_size], random_trajectory(0, num_steps, 3))
    no = np.zeros((num_steps, batch_size), bool)
    discount = np.ones((num_steps, batch_size), np.float32)
    discount[ends, 0] = 0.0
    trajectory = trajectory._replace(discount=discount, truncated=no, valid=~no)
    rng = np.random.default_rng(1)
    shapes = {"policy": (3,), "y": (600,), "z": (3, 600), "q": (3, 601), "aux_policy": (3, 3)}
    logits = lambda: {
        k: jnp.asarray(rng.normal(size=(num_steps + 1, batch_size, *x)), jnp.float32) for k, x in shapes.items()
    }
    moved = predictions.moves(rule, rules.initial_meta_params(config), rule.init(), trajectory, logits(), logits())
    for s, t, b in np.ndindex(num_steps, num_steps, batch_size):
        if s < t - 1 or (b == 0 and t <= ends < s):
            assert moved["z"][s, t, b] == 0, (s, t, b)
        elif s - t < 3:
            assert moved["z"][s, t, b] > 1e-9, (s, t, b)


def test_the_horizon_is_a_mean_over_pairs_of_one_episode():
    agent = fresh(small())
    trajectory, _ = experience(12, 3, agent)
    found = predictions.horizon(agent, trajectory, 9)
    seen, own, slow = jax.tree.map(lambda x: x[3:], rule_inputs(agent, trajectory))
    moved = predictions.moves(agent.learner.rule, agent.meta_params, agent.agent.rule_state, seen, own, slow)
    is_last = np.array(seen.is_last)
    for name, x in found.items():
        assert x.shape == (8, 3) and np.isnan(x[3:]).all()  # an episode has four steps
        for k, b in np.ndindex(3, 3):
            pairs = [moved[name][t + k, t, b] for t in range(9 - k) if not is_last[t : t + k + 1, b].any()]
            assert x[k, b] == pytest.approx(np.mean(pairs), rel=1e-3, abs=1e-12)
            assert name == "policy" or x[k, b] > 0


def test_what_comes_is_known_up_to_the_end_of_an_episode():
    trajectory = random_trajectory(0, 6, 3)
    reward = np.zeros((6, 3))
    reward[2, 0], reward[5, 0], reward[4, 1] = -2.0, 1.0, 0.9
    ahead = probes.future(trajectory._replace(reward=reward), np.arange(21.0).reshape(7, 3))
    one, two, four = range(3)
    np.testing.assert_array_equal(ahead.is_large[:, 0, one], [0, 0, 1, 0, 0, 1])
    np.testing.assert_array_equal(ahead.is_large[:, 0, two], [0, 0, 1, 0, 1, 1])
    np.testing.assert_array_equal(ahead.is_large[:, 0, four], [0, 0, 1, 1, 1, 1])
    assert not ahead.is_large[:, 1].any()  # less than half of the largest
    np.testing.assert_array_equal(ahead.is_large_known[:, 0, four], [1, 1, 1, 0, 0, 0])
    np.testing.assert_array_equal(ahead.is_entropy_known[:, 0, one], [1, 0, 1, 1, 1, 1])
    np.testing.assert_array_equal(ahead.is_entropy_known[:, 0, two], [0, 0, 1, 1, 1, 0])
    np.testing.assert_array_equal(ahead.is_entropy_known[:, 1, two], [1, 0, 0, 0, 1, 0])  # truncated, and its reset
    assert ahead.entropy[2, 0, two] == 3 * 4


def test_probes_find_what_is_there_and_nothing_else():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 20, 6)).astype(np.float32)
    shape = (40, 20, len(probes.AHEAD))
    signal = np.sin(x[..., :1]) + 0.5 * x[..., 1:2] ** 2
    known = rng.random(shape) < 0.9
    known[..., 3] = False
    noise = rng.normal(size=shape)
    is_large = np.broadcast_to(x[..., 2:3] > 0.8, shape)
    ahead = probes.Future(np.broadcast_to(signal, shape).copy(), known, is_large, known)
    ahead.entropy[~known] = 1e3
    scores = probes.cross_validate(jnp.asarray(x), ahead, (128, 64, 32))
    kept = [0, 1, 2, 4]
    assert scores.entropy.shape == (len(probes.AHEAD), 5)
    assert (scores.entropy[kept] > 0.7).all() and scores.entropy[kept].mean() > 0.85
    assert (scores.large_reward[kept].mean(1) > scores.majority[kept].mean(1) + 0.08).all()
    assert scores.majority[kept].mean() == pytest.approx((~is_large).mean(), abs=0.02)
    assert all(np.isnan(x[3]).all() for x in scores)
    nothing = probes.cross_validate(jnp.asarray(x), probes.Future(noise, known, noise > 1, known), (128, 64, 32))
    assert abs(nothing.entropy[kept].mean()) < 0.1
    np.testing.assert_allclose(nothing.large_reward[kept].mean(), nothing.majority[kept].mean(), atol=0.03)


@pytest.mark.parametrize("without", [(), ("q",), ("aux_policy",)])
def test_the_program_draws(tmp_path, monkeypatch, without):
    config = small()
    disco = dataclasses.replace(DISCO, without=without)
    agent = fresh(dataclasses.replace(config, rule=dataclasses.replace(config.rule, disco=disco)))
    monkeypatch.setattr(trained, "load", lambda folder, seed: agent)
    monkeypatch.setattr(trained, "play", lambda agent, num_steps, batch_size, seed: experience(12, batch_size, agent))
    monkeypatch.setattr(analyse, "NUM_STEPS", 12)
    monkeypatch.setattr(analyse, "NUM_COLUMNS", 10)
    shape = (len(probes.AHEAD), probes.NUM_FOLDS)
    probed = []
    random_scores = lambda x, ahead, hidden: probed.append(hidden) or probes.Scores(*np.random.rand(3, *shape))
    monkeypatch.setattr(probes, "cross_validate", random_scores)
    paths = analyse.run(tmp_path, list(analyse.FIGURES))
    assert [path.stem for path in paths] == ["confidence", "saliency", "probes", "horizon"]
    written = {path.name for path in (tmp_path / "analysis").iterdir()}
    assert written == {f"{name}.{kind}" for name in analyse.FIGURES for kind in ("png", "csv")}
    with (tmp_path / "analysis/confidence.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["is_last"] for row in rows] == list("000100010001")
    has_value = "q" not in without
    assert ("value" in rows[0]) == has_value
    assert probed == [(256, 256, 256)] * 3 + [(128, 64, 32)] * (1 + has_value)
    with (tmp_path / "analysis/saliency.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 * 5 * 4 and min(float(row["z"]) for row in rows) >= 0


def test_what_cannot_be_analysed_is_named(tmp_path, monkeypatch):
    out = tmp_path / "none"
    with pytest.raises(UsageError, match="'horizons' is none; did you mean horizon\\?"):
        analyse.run(tmp_path, ["confidence", "horizons"], out=str(out))
    config = small()
    files.write_json(tmp_path / "config.json", {"config": dataclasses.asdict(config), "seeds": [0]})
    with pytest.raises(UsageError, match="without a checkpoint"):
        analyse.run(tmp_path, ["horizon"], out=str(out))
    other = presets.with_rule(presets.for_environment("toy/catch"), "impala")
    learner = Learner(None, make_rule(other.rule), *(None,) * (len(Learner._fields) - 2))
    monkeypatch.setattr(trained, "load", lambda folder, seed: trained.Trained(other, 0, learner, None, None))
    with pytest.raises(UsageError, match="of the rule impala: its agent does not predict y, z"):
        analyse.run(tmp_path, ["horizon"], out=str(out))
    assert not out.exists()
