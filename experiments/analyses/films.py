"""A film of one episode of a trained agent: what it sees, and below it what it predicts, growing step by step."""

import io
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from agents.environments.names import is_pure, make_environment
from experiments.analyses import rooms
from experiments.analyses.attention import attention
from experiments.analyses.pictures import pictures
from experiments.analyses.predictions import confidence
from experiments.results.plots import COLOURS
from experiments.runs import loaded_agent
from experiments.runs.loaded_agent import LoadedAgent
from frodo import files
from frodo.logs import Progress
from frodo.runs.errors import RunError, UsageError
from toy_envs.rule_room import RuleRoom
from toy_envs.trials import Trials

MAX_FRAMES = 600  # of a longer episode every second step is shown, or every third ...
DELAYS = (50, 500)  # ms between frames at least and at most: a film is to take SECONDS
SECONDS = 5
LAST_DELAY = 2000  # ms
CURVES = {"value": "value", "policy_entropy": "entropy", "y_confidence": "y", "z_confidence": "z"}
PANELS = {  # with their curves
    "value": ("value",),
    "entropy of the policy": ("entropy",),
    "confidence": ("y", "z"),
    "belief": tuple(rooms.PAIRS),
}
SMALL: dict[Any, Any] = {"font.size": 9, "axes.titlesize": 9, "axes.titlelocation": "left"}
SMALL |= {"axes.spines.top": False, "axes.spines.right": False}


class Episode(NamedTuple):
    """An episode from its first observation to its end, or to where the film stops; T steps."""

    observations: np.ndarray  # [T + 1, ...]; [T, ...] where the last one is not seen
    rewards: np.ndarray  # [T]
    curves: dict[str, np.ndarray]  # of the names in PANELS those that there are, [T] each
    is_over: bool
    pictures: np.ndarray | None = None  # [T, H, W, 3] from 0 to 1, where observations are not what is shown
    attention: np.ndarray = np.zeros((0, 0, 0))  # [T, layers, T], of an agent without attention no layers
    trials: Sequence[int] = ()  # where the second trial begins, and those after it


def play(agent: LoadedAgent, num_steps: int, seed: int) -> Episode:
    """Act for one episode, but for at most `num_steps` steps."""
    trajectory, observations = loaded_agent.play(agent, num_steps, 1, seed)
    ends = np.flatnonzero(trajectory.is_last[:, 0])
    length = int(ends[0]) + 1 if ends.size else num_steps
    is_last_seen = not trajectory.is_first[length, 0]  # else that is the first of the next episode
    known = jax.tree.map(lambda x: np.asarray(x)[:length, 0], confidence(agent, trajectory))
    curves = {name: known[x] for x, name in CURVES.items() if x in known}
    seen, read = observations[: length + is_last_seen, 0], attention(agent, trajectory)[:length, :, :length]
    episode = Episode(seen, known["reward"], curves, bool(ends.size), attention=read)
    environment = make_environment(agent.config.env, 1, seed) if is_pure(agent.config.env) else None
    if not isinstance(environment, Trials | RuleRoom):
        return episode
    states = loaded_agent.states_of(agent, trajectory, seed)
    if isinstance(environment, Trials):
        episode = episode._replace(trials=(1 + np.flatnonzero(np.diff(states.trial[:length, 0]))).tolist())
        environment, states = environment.environment, states.state
    if isinstance(environment, RuleRoom):
        states = jax.tree.map(lambda x: np.asarray(x)[: len(seen), 0], states)
        believed = rooms.beliefs(environment, states, np.asarray(trajectory.action)[:length, 0])
        episode = episode._replace(pictures=rooms.pictures(states), curves=curves | believed)
    return episode


def draw(episode: Episode, steps: Sequence[int], title: str) -> Iterator[Image.Image]:
    """Draw the given steps, of 0 to T. What does not change is drawn once."""
    length, num_seen, num_layers = len(episode.rewards), len(episode.observations), episode.attention.shape[1]
    known = {name: [line for line in lines if line in episode.curves] for name, lines in PANELS.items()}
    panels = {name: lines for name, lines in known.items() if lines}
    num_panels = len(panels) + (num_layers > 0)
    lines: dict[str, Any] = {}
    strips: list[Any] = []
    with mpl.rc_context(SMALL):
        figure = Figure(figsize=(4.8, 3.4 + num_panels), dpi=100, layout="constrained")
        canvas = FigureCanvasAgg(figure)
        text = figure.suptitle(f"{title}\n ", fontsize=11, animated=True)
        top, *below = figure.subplots(1 + num_panels, height_ratios=[3.0] + [1.0] * num_panels)
        images = pictures(episode.observations) if episode.pictures is None else episode.pictures
        show, shown = _observation(top, episode.observations) if images is None else _images(top, images)
        for axes, (name, own) in zip(below, panels.items(), strict=False):
            for curve in own:
                style = {"color": COLOURS[len(lines) % len(COLOURS)], "marker": "o", "markersize": 4, "markevery": [-1]}
                lines[curve] = axes.plot(episode.curves[curve], label=curve, animated=True, **style)[0]
            if name != "value":
                axes.update_datalim([(0, 0)])
            if len(own) > 1:
                above = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderpad": 0, "borderaxespad": 0.3}
                axes.legend(**above, ncols=len(own), frameon=False, handlelength=1, columnspacing=0.8)
            axes.set_title(name)
            axes.grid(alpha=0.25)
        if num_layers:
            extent = (-0.5, length - 0.5, -0.5, num_layers - 0.5)
            style = {"cmap": "Blues", "vmin": 0, "vmax": 1, "aspect": "auto", "extent": extent, "origin": "lower"}
            strips.append(below[-1].imshow(episode.attention[0], animated=True, **style))
            below[-1].set_yticks(range(num_layers))
            below[-1].set_title("attention by layer (dark: to that step most)")
        for axes in below:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.tick_params(labelbottom=axes is below[-1])
            axes.set_xlim(-0.5, length - 0.5)
            for start in episode.trials:
                axes.axvline(start - 0.5, color="0.7", linewidth=0.8, linestyle=":")
        below[-1].set_xlabel("step")
        canvas.draw()  # axes are wide enough for the whole curves
    background = canvas.copy_from_bbox(figure.bbox)
    total = np.append(0, np.cumsum(episode.rewards))
    end = ("the end" if num_seen > length else "the end, not seen") if episode.is_over else "not the end"
    for step in steps:
        canvas.restore_region(background)
        show(min(step, num_seen - 1))
        for curve, line in lines.items():
            line.set_data(np.arange(length)[: step + 1], episode.curves[curve][: step + 1])
        for strip in strips:
            read = episode.attention[min(step, length - 1)]
            strip.set_data(read / read.max(axis=1, keepdims=True))
        text.set_text(f"{title}\nstep {step} of {length}{f' ({end})' * (step == length)}: return {total[step]:.4g}")
        for artist in (*shown, *lines.values(), *strips, text):
            figure.draw_artist(artist)
        yield Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


def _images(axes: Axes, images: np.ndarray) -> tuple[Callable[[int], None], list[Artist]]:
    """Draw pictures [N, H, W, 3]: a function that shows the one of an index, and the artists that it changes."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(visible=True, color="0.7")
    image = axes.imshow(images[0], interpolation="nearest", animated=True)
    return lambda index: image.set_data(images[index]), [image, *axes.spines.values()]


def _observation(axes: Axes, observations: np.ndarray) -> tuple[Callable[[int], None], list[Artist]]:
    """Draw observations as bars before their range over the episode; returns as `_images`."""
    vectors = observations.reshape(len(observations), -1)
    x = np.arange(vectors.shape[1])
    low, high = vectors.min(axis=0), vectors.max(axis=0)
    axes.bar(x, high - low, bottom=low, color="0.9")
    axes.axhline(0, color="0.5", linewidth=0.8)
    axes.set(ylabel="observation")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    bars = axes.bar(x, vectors[0], width=0.5, color=COLOURS[0], animated=True)

    def show(index: int) -> None:
        for bar, height in zip(bars, vectors[index], strict=True):
            bar.set_height(height)

    return show, list(bars)


def film(episode: Episode, title: str, suffix: str) -> bytes:
    """Draw an episode, as the bytes of a .gif or .mp4.

    Raises:
      RunError: with what ffmpeg says, where it cannot.
    """
    length = len(episode.rewards)
    steps = [*range(0, length, -(-length // MAX_FRAMES)), length]
    delay = int(np.clip(1000 * SECONDS / len(steps), *DELAYS)) // 10 * 10  # a GIF counts in hundredths of a second
    progress = Progress(total=length)

    def drawn() -> Iterator[Image.Image]:
        for step, image in zip(steps, draw(episode, steps, title), strict=True):
            yield image
            progress.update(step)

    images, buffer = drawn(), io.BytesIO()
    durations = [delay] * (len(steps) - 1) + [LAST_DELAY]
    next(images).save(buffer, "GIF", save_all=True, append_images=images, duration=durations, loop=0)
    if suffix == ".gif":
        return buffer.getvalue()
    hold = f"-vf tpad=stop_mode=clone:stop_duration={LAST_DELAY / 1000}"  # .mp4 forgets how long the last frame stays
    to_pipe = "-pix_fmt yuv420p -movflags frag_keyframe+empty_moov -f mp4 -"
    command = f"ffmpeg -loglevel error -f gif -i - {hold} {to_pipe}".split()
    done = subprocess.run(command, input=buffer.getvalue(), capture_output=True, check=False)
    if done.returncode:
        raise RunError(f"ffmpeg made no film: {done.stderr.decode(errors='replace')}")
    return done.stdout


def run(folder: Path, out: Path, seed: int | None, steps: int, episode_seed: int) -> None:
    """Write the film of an episode.

    Raises:
      UsageError: if `out` is no .gif or .mp4, ffmpeg is missing, or the folder holds no agent (`loaded_agent.load`).
    """
    suffix = out.suffix.lower()
    if suffix not in (".gif", ".mp4"):
        raise UsageError(f"--out={out}: give a file that ends in .gif or .mp4")
    if suffix == ".mp4" and not shutil.which("ffmpeg"):
        raise UsageError(f"--out={out}: .mp4 needs the program ffmpeg, which is not on PATH; .gif does not")
    agent = loaded_agent.load(folder, seed)
    episode = play(agent, steps, episode_seed)
    title = f"{agent.config.rule.name} on {agent.config.env}, seed {agent.seed}"
    files.write(out, film(episode, title, suffix))
