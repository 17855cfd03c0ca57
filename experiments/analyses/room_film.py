"""An agent that adapts, in a rule room, as an animated picture: what it does in each trial, and what that returns."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents.acting import in_jax as acting
from experiments.results import plots
from experiments.runs.loaded_agent import LoadedAgent
from frodo.regimes.adaptation import policy_of
from toy_envs.rule_room import ABSENT, EMPTY, INTERMEDIATE, SIZE, RuleRoom
from toy_envs.trials import Trials

MILLISECONDS, LAST = 220, 2500  # that a frame stays, and that of a trial's end does
COLOURS = ("#0072B2", "#D55E00", "#CC79A7", "#E69F00", "#56B4E9")  # of the objects, and of an intermediate
GROUND, PAID = "#f2f2f2", "#b7e4c7"


class Frames(NamedTuple):
    """What is seen of an episode, [steps] each: before each step, and what it paid."""

    agent: np.ndarray  # cell
    hand: np.ndarray
    homes: np.ndarray  # [steps, objects]: cells of what lies there, else ABSENT
    is_goal: np.ndarray
    trial: np.ndarray
    reward: np.ndarray


def play(
    loaded: LoadedAgent,
    room: RuleRoom,
    task: Any,
    num_trials: int,
    *,
    is_forgetful: bool = False,
    is_greedy: bool = False,
    seed: int = 0,
) -> Frames:
    """Play an episode of a task, the state at the start of a trial, with θ frozen, as `returns_by_trial` does."""
    setup = loaded.learner.setup
    agent, params, trials = setup.agent, setup.acting_params(loaded.agent), Trials(room, num_trials)
    policy = policy_of(loaded.learner, is_greedy)

    def step(carry: Any, key: Any) -> tuple[Any, tuple[Any, Any]]:
        state, is_first, core = carry
        shown = agent.prepare(trials.observe(state)[None])
        action, _, core = acting.act(agent, policy, params, key, shown, is_first, core)
        new, reward, *_ = trials.transition(state, action[0])
        return (new, is_forgetful & (new.trial > state.trial)[None], core), ((state.state, state.trial), reward)

    @jax.jit
    def run(task: Any) -> Any:
        state = trials.begin(trials.initial_state(jax.random.key(seed)), task)
        keys = jax.random.split(jax.random.key(seed), num_trials * room.horizon)
        return jax.lax.scan(step, (state, jnp.ones(1, bool), agent.initial_state(1)), keys)[1]

    (state, trial), reward = jax.device_get(run(task))
    lying = np.where(state.is_home, state.task.homes, ABSENT)
    frames = Frames(state.agent, state.hand, lying, state.is_goal, trial, reward)
    return jax.tree.map(lambda x: x[trial < num_trials], frames)  # trials of this task may be shorter than the longest


def write_gif(path: Path, frames: Frames, title: str, oracle: float, dpi: int = 70) -> None:
    """Write a GIF of an episode; `oracle` is the best return of a trial for who knows the rules."""
    from PIL import Image

    num, shown = int(frames.trial.max()) + 1, range(len(frames.trial))
    pictures = [_frame(frames, i, title, oracle, num, dpi) for i in shown]
    seen = {frames.trial[i] * 2 + frames.is_goal[i]: picture for i, picture in enumerate(pictures)}  # all colours
    mosaic = Image.new("RGB", (pictures[0].width, pictures[0].height * (1 + len(seen))))
    for i, picture in enumerate((pictures[0], *seen.values())):
        mosaic.paste(picture, (0, i * picture.height))
    is_end = [i + 1 == len(shown) or frames.trial[i + 1] > frames.trial[i] for i in shown]
    plots.write_gif(path, pictures, mosaic, [LAST if end else MILLISECONDS for end in is_end])


def _frame(frames: Frames, now: int, title: str, oracle: float, num_trials: int, dpi: int) -> Any:
    """Draw the room before a step, and the returns of trials so far."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Circle, Rectangle
    from PIL import Image

    place = lambda cell: (cell % SIZE + 0.5, SIZE - 0.5 - cell // SIZE)
    returns = np.array([frames.reward[: now + 1][frames.trial[: now + 1] == k].sum() for k in range(num_trials)])
    with mpl.rc_context(plots.STYLE):
        canvas = FigureCanvasAgg(figure := Figure(figsize=(6.4, 3.3), dpi=dpi, layout="constrained", facecolor="white"))
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
        left.add_patch(Rectangle((0, 0), SIZE, SIZE, color=PAID if frames.is_goal[now] else GROUND))
        for i in range(SIZE + 1):
            left.plot([0, SIZE], [i, i], color="white")
            left.plot([i, i], [0, SIZE], color="white")
        for colour, cell in zip(COLOURS, frames.homes[now], strict=False):
            if cell != ABSENT:
                left.add_patch(Circle(place(cell), 0.3, color=colour))
        hand = int(frames.hand[now])
        held = "white" if hand == EMPTY else COLOURS[4 if hand == INTERMEDIATE else hand]
        left.add_patch(Circle(place(frames.agent[now]), 0.22, facecolor=held, edgecolor="black", linewidth=2.5))
        left.set(xlim=(0, SIZE), ylim=(0, SIZE), xticks=[], yticks=[], aspect="equal")
        left.set_title(f"trial {frames.trial[now] + 1}", fontsize=11)
        left.grid(visible=False)
        right.bar(np.arange(1, num_trials + 1), returns, color=plots.COLOURS[0])
        right.axhline(oracle, color="0.4", linestyle="--", linewidth=1.2)
        right.text(0.5, oracle + 0.02, "who knows the rules", fontsize=8, va="bottom")
        right.set(xlabel="trial", ylim=(0, 1), xticks=range(1, num_trials + 1), xlim=(0.5, num_trials + 0.5))
        right.set_title("return of each trial", fontsize=11)
        figure.suptitle(title, fontsize=11)
        canvas.draw()
    return Image.fromarray(np.array(canvas.buffer_rgba())).convert("RGB")
