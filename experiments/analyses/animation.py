"""FRODO's objective forming on Catch, next to the return of the agent that learns by it, as an animated picture."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.acting import in_jax as acting
from agents.types import Array
from experiments.results import plots, reading
from experiments.runs import training
from frodo.logs import note
from frodo.regimes.learner import build_learner
from frodo.runs.callbacks import Callback
from frodo.runs.driver import Driven
from frodo.runs.errors import UsageError
from frodo.runs.folders import RunOptions, folder_of
from frodo.settings.config import OnlineConfig
from meta.targets.sensitivity import target_derivatives
from toy_envs.catch import Catch

MAX_FRAMES = 24
MILLISECONDS, LAST = 250, 3500  # that a frame stays, and that the last one does
INPUTS = {"reward": "weight of the reward\nk steps later", "value": "weight of the value\npredicted k steps later"}
NAMES = ("catch_animated", "frodo")  # of the run's folder


class Weights(Callback):
    """Adds to each row of a run on Catch the weights in the target of an episode's start: reward_<k> and value_<k>."""

    def __init__(self, config: OnlineConfig):
        self._config = config

    def begin(self, driven: Driven) -> None:
        super().begin(driven)
        config, setup = self._config, build_learner(self._config, Catch.num_actions).setup
        actor = acting.Actor(Catch(), setup.agent, setup.rule.policy)

        @jax.jit
        def weights(state: Any) -> dict[str, Array]:
            own = state.learner.agent
            start = acting.init_actor(Catch(), setup.agent, jax.random.key(0), config.batch_size)
            trajectory = acting.rollout(actor, own.params, start, config.unroll)[1]
            predictions = setup.agent.unroll(own.params, trajectory)
            of = (state.learner.meta_params, own.rule_state, trajectory, predictions, predictions)
            found = target_derivatives(setup.rule, *of)
            return {name: jnp.mean(found[name][:, 0], axis=1) for name in INPUTS}

        self._weights = weights

    def see(self, row: dict[str, Any]) -> None:
        found = self._weights(jax.tree.map(lambda x: x[0], self.driven.latest.state[0]))
        row |= {f"{name}_{k}": float(x) for name, of_steps in found.items() for k, x in enumerate(of_steps, 1)}


def animate(config: OnlineConfig, options: RunOptions, rule: str) -> None:
    """Train one agent by FRODO on Catch, a run like others, and write objective.gif into its folder."""
    if rule != "frodo":
        raise UsageError(f"--animate --rule={rule}: it draws FRODO alone; leave --rule out")
    plots.require()
    options = dataclasses.replace(options, seeds=options.seeds[:1])
    training.train(config, options, experiment=NAMES[0], name=NAMES[1], callbacks=[Weights(config)])
    folder = folder_of(options, *NAMES)
    write_gif(folder / "objective.gif", reading.read(folder).columns, config)
    note(f"figure: {folder / 'objective.gif'}")


def vtrace_weights(config: OnlineConfig) -> dict[str, np.ndarray]:
    """Return the weights in V-trace of the policy that acts, [T] for each of INPUTS: it is the return, then v."""
    k, gamma = np.arange(1, 1 + config.unroll), config.rule.settings.discount
    return {"reward": gamma ** (k - 1.0), "value": np.where(k < k[-1], 0, gamma ** k[-1])}


def write_gif(path: Path, columns: dict[str, np.ndarray], config: OnlineConfig, dpi: int = 80) -> None:
    """Write a GIF of the rows of a run; the last frame is also the first, for those who see a still picture.

    Args:
      path: where.
      columns: of metrics.csv, [rows]: env_steps, sampled_return and those of `Weights`.
      config: the run's.
      dpi: pixels an inch; the picture is 9 inches wide.
    """
    num_rows = len(columns[reading.X])
    rows = np.unique(np.linspace(0, num_rows - 1, min(num_rows, MAX_FRAMES)).round().astype(int))
    frames = [_frame({name: x[rows] for name, x in columns.items()}, i, config, dpi) for i in range(len(rows))]
    durations = [LAST, *[MILLISECONDS] * (len(frames) - 1), LAST]
    plots.write_gif(path, [frames[-1], *frames], frames[-1], durations)


def _frame(columns: dict[str, np.ndarray], now: int, config: OnlineConfig, dpi: int) -> Any:
    """Draw one of the rows, with those before it pale, on a white ground."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    blue, orange = plots.COLOURS[:2]
    x, y, k = columns[reading.X], columns["sampled_return"], np.arange(1, 1 + config.unroll)
    vtrace, bound = vtrace_weights(config), Catch().look_ahead_bound(config.unroll)
    with mpl.rc_context(plots.STYLE):
        canvas = FigureCanvasAgg(figure := Figure(figsize=(9, 3.6), dpi=dpi, layout="constrained", facecolor="white"))
        *left, right = figure.subplots(1, 3, width_ratios=(1, 1, 1.35))
        for axes, (name, title) in zip(left, INPUTS.items(), strict=True):
            weights = np.stack([columns[f"{name}_{i}"] for i in k])
            axes.plot(k, weights[:, max(0, now - 4) : now], color=blue, alpha=0.15)
            axes.plot(k, vtrace[name], "s--", color=orange, markersize=5, label="V-trace")
            axes.plot(k, weights[:, now], "o-", color=blue, linewidth=2.5, label="discovered")
            axes.set(xlabel="k", title=title, xticks=k, xlim=(0.8, k[-1] + 0.2), ylim=(-0.15, 1.15))
        figure.legend(*left[0].get_legend_handles_labels(), fontsize=9, loc="outside lower left", ncols=2)
        right.axhline(bound, color="0.4", linestyle="--", linewidth=1.2)
        right.text(x[-1], bound - 0.03, "best without bootstrapping", fontsize=8, va="top", ha="right")
        right.plot(x[: now + 1], y[: now + 1], color=blue, linewidth=2)
        right.plot(x[now], y[now], "o", color=blue, markersize=8)
        right.set(xlabel="environment steps", title="return of the agent\nthat learns by it", ylim=(-1.08, 1.08))
        right.set_xlim(0, 1.02 * x[-1])
        plots.in_thousands(right)
        figure.suptitle(f"FRODO discovers what to learn from, on Catch: {x[now] / 1e3:.0f}k steps", fontsize=12)
        canvas.draw()
    return Image.fromarray(np.array(canvas.buffer_rgba())).convert("RGB")
