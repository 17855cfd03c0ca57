"""FRODO's objective forming on Catch, beside the return of the agent that learns by it, as an animated picture."""

import dataclasses
import io
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents.acting import in_jax as acting
from agents.rule import UpdateRule
from agents.rules.impala import ActorCriticTargets, ImpalaConfig, impala
from agents.types import Array
from experiments.results import plots
from experiments.runs import exact_metrics, training
from frodo.files import write
from frodo.logs import Progress, note
from frodo.regimes.learner import build_learner
from frodo.regimes.lifetimes import make_online_program
from frodo.runs.errors import UsageError
from frodo.runs.folders import RunOptions, folder_of
from frodo.settings.config import OnlineConfig
from meta.targets.sensitivity import target_derivatives
from toy_envs.catch import Catch

NUM_FRAMES = 32
MILLISECONDS, LAST = 220, 3500  # that a frame stays, and that the last one does
INPUTS = {"reward": "weight of the reward\nk steps later", "value": "weight of the value\npredicted k steps later"}


class Moment(NamedTuple):
    """What is drawn of one moment of a run: for each of INPUTS the derivatives of the first target, [T]."""

    env_steps: int
    sampled_return: float
    learned: dict[str, np.ndarray]
    vtrace: dict[str, np.ndarray]


def animate(config: OnlineConfig, options: RunOptions, rule: str) -> None:
    """Write the animated picture of one agent; nothing else of the run is kept."""
    if rule != "frodo":
        raise UsageError(f"--animate --rule={rule}: it draws FRODO alone; leave --rule out")
    path = folder_of(options, "catch_animated") / "objective.gif"
    if options.resume or options.log_to:
        raise UsageError("--animate: --resume and --log_to are for runs that are kept, this one is not")
    if path.exists() and not options.overwrite:
        raise UsageError(f"{path} exists: --overwrite replaces it, --out names another folder")
    plots.require()
    training.choose_threads(config, dataclasses.replace(options, seeds=options.seeds[:1]))
    write_gif(path, measure(config, options.steps, options.seeds[0]), Catch().look_ahead_bound(config.unroll))
    note(f"figure: {path}")


def measure(config: OnlineConfig, num_steps: int, seed: int, num_frames: int = NUM_FRAMES) -> list[Moment]:
    """Train one agent by FRODO on Catch, and measure at evenly spaced moments from its start to its end."""
    environment, learner = Catch(), build_learner(config, Catch.num_actions)
    program, setup = make_online_program(learner, environment), learner.setup
    vtrace = impala(ImpalaConfig(config.rule.settings.discount))
    exact = exact_metrics.log_metrics(environment, learner)

    @jax.jit
    def look(state: Any) -> tuple[Array, dict[str, Array], dict[str, Array]]:
        own, actor = state.learner.agent, acting.Actor(environment, setup.agent, setup.rule.policy)
        trajectory = acting.rollout(actor, own.params, state.actor, config.unroll)[1]
        predictions = setup.agent.unroll(own.params, trajectory)
        goes_on = jnp.cumprod(~trajectory.is_last, axis=0).astype(bool)  # the episode of the first step, after step k
        begins = jnp.concatenate([jnp.ones_like(goes_on[:1]), goes_on[:-1]]) & trajectory.valid
        known = {"reward": begins, "value": goes_on}

        def slopes(rule: UpdateRule) -> dict[str, Array]:
            of = (state.learner.meta_params, own.rule_state, trajectory, predictions, predictions)
            all_of = target_derivatives(rule, *of).items()
            found = {x: y.value if isinstance(y, ActorCriticTargets) else y for x, y in all_of}
            return {x: jnp.sum(found[x][:, 0] * y, axis=1) / jnp.sum(y, axis=1) for x, y in known.items()}

        return exact(state)["sampled_return"], slopes(setup.rule), slopes(vtrace)

    iterations = max(1, num_steps // program.env_steps // (num_frames - 1))
    run = jax.jit(lambda state: program.run(state, iterations)[0], donate_argnums=0)
    state, moments, progress = jax.jit(program.init)(jax.random.key(seed)), [], Progress(total=num_frames)
    for frame in range(num_frames):
        state = run(state) if frame else state
        value, learned, hand_designed = jax.device_get(look(state))
        moments.append(Moment(frame * iterations * program.env_steps, float(value), learned, hand_designed))
        progress.update(frame + 1, f"return {value:.3f}")
    return moments


def write_gif(path: Path, moments: list[Moment], bound: float, dpi: int = 100) -> None:
    """Write a GIF of a frame for each moment; the last one is also the first, for those who see a still picture."""
    from PIL import Image

    frames = [_frame(moments[: i + 1], moments, bound, dpi) for i in range(len(moments))]
    palette = frames[-1].quantize(64)  # one for all, so that what stays is not stored again
    images = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in (frames[-1], *frames)]
    durations, buffer = [LAST, *[MILLISECONDS] * (len(frames) - 1), LAST], io.BytesIO()
    how: dict[str, Any] = dict(save_all=True, append_images=images[1:], duration=durations, loop=0, optimize=False)
    images[0].save(buffer, format="GIF", **how)
    write(path, buffer.getvalue())


def _frame(so_far: list[Moment], moments: list[Moment], bound: float, dpi: int) -> Any:
    """Draw the last of some moments, with those before it pale, on a white ground."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    now, blue, orange = so_far[-1], *plots.COLOURS[:2]
    with mpl.rc_context(plots.STYLE):
        canvas = FigureCanvasAgg(figure := Figure(figsize=(9.6, 3.5), dpi=dpi, layout="constrained", facecolor="white"))
        *left, right = figure.subplots(1, 3, width_ratios=(1, 1, 1.35))
        k = np.arange(1, 1 + len(now.vtrace["reward"]))
        for axes, (name, title) in zip(left, INPUTS.items(), strict=True):
            for before in so_far[-7:-1]:
                axes.plot(k, before.learned[name], color=blue, alpha=0.15)
            axes.plot(k, now.vtrace[name], "s--", color=orange, markersize=5, label="V-trace")
            if name == "value":
                axes.plot(k, 0 * k, ":", color="0.4", label="no bootstrapping")
            axes.plot(k, now.learned[name], "o-", color=blue, linewidth=2.5, label="discovered")
            axes.set(xlabel="k", title=title, xticks=k, xlim=(0.8, k[-1] + 0.2), ylim=(-0.15, 1.15))
            axes.legend(fontsize=8, loc="lower center" if name == "reward" else "upper left")
        x, y = np.array([(one.env_steps, one.sampled_return) for one in so_far]).T
        right.axhline(bound, color="0.4", linestyle="--", linewidth=1.2)
        right.text(moments[-1].env_steps, bound - 0.03, "best without bootstrapping", fontsize=8, va="top", ha="right")
        right.plot(x, y, color=blue, linewidth=2)
        right.plot(x[-1:], y[-1:], "o", color=blue, markersize=8)
        right.set(xlabel="environment steps", title="return of the agent\nthat learns by it", ylim=(-1.08, 1.08))
        right.set_xlim(0, 1.02 * max(1, moments[-1].env_steps))
        plots.in_thousands(right)
        figure.suptitle(f"FRODO discovers what to learn from, on Catch: {now.env_steps / 1e3:.0f}k steps", fontsize=12)
        canvas.draw()
    return Image.fromarray(np.array(canvas.buffer_rgba())).convert("RGB")
