"""The film of an agent in a rule room: what is drawn is what the room did."""

import jax
import numpy as np
from PIL import Image

from agents.networks.agent import NetworkConfig
from experiments.analyses import room_film
from experiments.runs import settings
from experiments.runs.loaded_agent import LoadedAgent
from frodo.regimes.adaptation import held_out_tasks
from frodo.regimes.learner import build_learner
from toy_envs.rule_room import SIZE, RuleRoom
from toy_envs.trials import Trials


def test_frames_are_the_steps_of_the_trials(tmp_path):
    room = RuleRoom("solvable")  # of which most have trials of twelve steps, and some of sixteen
    config = settings.configure("trials/3/toy/rule_room/solvable", "impala")
    config = config.replace(batch_size=2, network=NetworkConfig("mlp", (4,), core=3))
    learner = build_learner(config, room.num_actions, is_frozen=True)
    observation = np.zeros((2, *Trials(room, 3).observation_shape), np.float32)
    state = jax.jit(learner.init)(jax.random.key(0), observation)
    agent = LoadedAgent(config, 0, learner, state.agent, state.meta_params)
    tasks = held_out_tasks(room, 12)
    lengths = np.asarray(tasks.task.horizon)
    assert set(lengths) == {12, 16}
    for i in (int(np.argmin(lengths)), int(np.argmax(lengths))):
        frames = room_film.play(agent, room, jax.tree.map(lambda x, i=i: x[i], tasks), 3)
        np.testing.assert_array_equal(frames.trial, np.repeat(np.arange(3), lengths[i]))
        starts = np.arange(3) * lengths[i]
        assert np.all(frames.agent[starts] == tasks.task.start[i]) and not np.any(frames.is_goal[starts])
        np.testing.assert_array_equal(frames.homes[starts], np.tile(tasks.task.homes[i], (3, 1)))
        rows, columns = np.divmod(frames.agent, SIZE)
        moved = np.abs(np.diff(rows)) + np.abs(np.diff(columns))
        assert np.all(np.delete(moved, starts[1:] - 1) <= 1) and np.any(moved)
        is_within = np.setdiff1d(np.arange(1, len(frames.trial)), starts)  # a goal that was reached pays from then on
        np.testing.assert_array_equal(frames.reward[is_within - 1] > 0, frames.is_goal[is_within])
    room_film.write_gif(tmp_path / "film.gif", frames, "a room", 0.8)
    with Image.open(tmp_path / "film.gif") as film:
        assert 3 < film.n_frames <= len(frames.trial) and film.size[0] > 300
