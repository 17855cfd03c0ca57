"""Films of episodes: what they show, where an episode ends, and what is answered where none can be made."""

import dataclasses
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageSequence

from agents.environments.names import make_environment
from agents.rules.categorical import to_scalars
from experiments import watch as program
from experiments.analyses import films as watch
from experiments.runs import loaded_agent
from experiments.runs.loaded_agent import LoadedAgent
from frodo.regimes.learner import build_learner
from frodo.runs.errors import RunError, UsageError
from frodo.settings import presets


def untrained(env, rule, **network_settings):
    config = presets.for_rule(env, rule)
    sizes = {"prediction_size": 6, "max_value": 2, "lstm": 4, "lifetime_lstm": 4}
    own = {field.name for field in dataclasses.fields(config.rule.settings)}
    network_settings |= {"hidden": (8,), "action_model": 4 if rule == "disco" else 0}
    network = dataclasses.replace(config.network, **network_settings)
    rule_config = config.rule.replace(**{name: size for name, size in sizes.items() if name in own})
    config = config.replace(network=network, rule=rule_config, batch_size=1)
    environment = make_environment(env, 1, 0)
    learner = build_learner(config, environment.num_actions)
    state = jax.jit(learner.init)(jax.random.key(4), jnp.zeros((1, *environment.observation_shape)))
    return LoadedAgent(config, 4, learner, state.agent, state.meta_params)


def test_an_episode_ends_where_it_ends():
    agent = untrained("toy/catch", "frodo")
    same_step = watch.play(agent, 12, seed=0)
    next_step = watch.play(untrained("bsuite/catch/0", "q_learning"), 12, seed=0)
    for episode, length, num_seen in ((same_step, 5, 5), (next_step, 9, 10)):
        assert episode.is_over and abs(episode.rewards[-1]) == 1 and not episode.rewards[:-1].any()
        assert len(episode.rewards) == length and len(episode.observations) == num_seen
        assert {name: curve.shape for name, curve in episode.curves.items()} == dict.fromkeys(
            ("value", "entropy"), (length,)
        )
        rows = np.argwhere(episode.observations[:, :-1])[:, 1]  # of the pellet
        np.testing.assert_array_equal(rows, np.arange(length))
    paddle_and_pellet = next_step.observations[-1, -1].sum()
    assert paddle_and_pellet == (1 if next_step.rewards[-1] == 1 else 2)
    left = watch.play(agent, 3, seed=0)
    assert not left.is_over and len(left.rewards) == 3 and len(left.observations) == 4
    np.testing.assert_array_equal(left.observations, same_step.observations[:4])


def test_the_curves_are_what_the_agent_predicts():
    agent = untrained("toy/catch", "disco")
    curves = watch.play(agent, 8, seed=1).curves
    trajectory, _ = loaded_agent.play(agent, 8, 1, 1)
    predictions = jax.tree.map(
        lambda x: x[:5, 0], jax.jit(agent.learner.setup.agent.unroll)(agent.agent.params, trajectory)
    )
    pi, y, z = (np.asarray(jax.nn.softmax(predictions[name])) for name in ("policy", "y", "z"))
    np.testing.assert_allclose(curves["value"], (pi * to_scalars(predictions["q"])).sum(-1), atol=1e-4)
    np.testing.assert_allclose(curves["entropy"], -(pi * np.log(pi)).sum(-1), atol=1e-5)
    sure = lambda p: 1 + (p * np.log(p)).sum(-1) / np.log(p.shape[-1])
    np.testing.assert_allclose(curves["y"], sure(y), atol=1e-5)
    np.testing.assert_allclose(curves["z"], sure(z[np.arange(5), trajectory.action[:5, 0]]), atol=1e-5)
    assert curves["z"].std() > 0


@pytest.mark.long
def test_an_episode_of_trials_shows_the_room_what_is_believed_and_what_is_read():
    agent = untrained("trials/2/toy/rule_room/medium", "impala", core_kind="transformer", core=4, memory=30)
    shown = watch.play(agent, 40, seed=0)
    assert shown.is_over and shown.trials == [12] and shown.pictures.shape[0] == len(shown.observations) == 24
    assert set(shown.curves) == {"value", "entropy", "AB", "AC", "BC"}
    assert all(shown.curves[pair][0] == pytest.approx(1 / 3) for pair in ("AB", "AC", "BC"))
    assert shown.attention.shape == (24, agent.config.network.core_layers, 24)
    with Image.open(io.BytesIO(watch.film(shown, "title", ".gif"))) as film:
        assert film.n_frames == 25
        frames = [np.asarray(image.convert("RGB")).astype(int) for image in ImageSequence.Iterator(film)]
    left = watch.play(agent, 10, seed=0)
    assert not left.is_over and len(left.pictures) == len(left.observations) == 11
    strip = np.array(frames)[:, -110:-60]
    assert np.all(np.any(strip[1:-1] != strip[:-2], axis=(1, 2, 3)))  # each step reads otherwise


def episode(length, shape, **others):
    observations = np.zeros((length + 1, *shape), np.float32)
    observations[1:, ..., 0] = 1
    curve = np.linspace(0, 1, length)
    return watch.Episode(observations, np.ones(length, np.float32), {"value": curve, "entropy": curve} | others, True)


@pytest.mark.parametrize("shape", [(4, 4), (4,)])
def test_a_film_grows(shape, monkeypatch):
    monkeypatch.setattr(watch, "MAX_FRAMES", 10)
    nan = np.full(25, np.nan)  # as of an agent that has diverged
    film = Image.open(io.BytesIO(watch.film(episode(25, shape, y=nan, z=nan), "title", ".gif")))
    images = [np.asarray(image.convert("RGB")).astype(int) for image in ImageSequence.Iterator(film)]
    assert len(images) == 10  # steps 0, 3, ... 24, and the end
    top, below = np.split(np.array(images), [260], axis=1)
    assert (top[0] != top[1])[60:].any()  # below the title
    blue = (abs(below - (0x00, 0x72, 0xB2)).max(-1) < 20).sum((1, 2))
    assert np.all(np.diff(blue[:9]) > 0)


def test_a_film_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(loaded_agent, "load", lambda folder, seed: untrained("toy/catch", "impala"))
    watch.run(tmp_path, tmp_path / "new/film.gif", None, 10, 0)
    with Image.open(tmp_path / "new/film.gif") as film:
        assert film.n_frames == 6
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


def test_what_cannot_be_filmed_is_said_before_anything_is_written(tmp_path, monkeypatch):
    film = lambda name: watch.run(tmp_path / "run", tmp_path / name, None, 10, 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, reason in (
        ("a.gif", "run holds no run"),
        ("a.png", "--out=.*a.png: give a file that ends in .gif or .mp4"),
        ("a.mp4", "--out=.*a.mp4: .mp4 needs the program ffmpeg, which is not on PATH"),
    ):
        with pytest.raises(UsageError, match=reason):
            film(name)
    with pytest.raises(UsageError, match="name one run folder"):
        program.main(["watch"])
    assert not list(tmp_path.iterdir())


def test_ffmpeg_makes_the_other_format_or_says_why_not(tmp_path, monkeypatch):
    (tmp_path / "ffmpeg").write_text("#!/bin/sh\nexec /bin/cat\n")
    (tmp_path / "ffmpeg").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert watch.film(episode(2, (4,)), "title", ".mp4").startswith(b"GIF89a")
    (tmp_path / "ffmpeg").write_text("#!/bin/sh\necho no encoder >&2; exit 1\n")
    with pytest.raises(RunError, match="ffmpeg made no film: no encoder"):
        watch.film(episode(2, (4,)), "title", ".mp4")
