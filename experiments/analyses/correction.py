"""What a proximal rule does: its loss over the ratio, its settings over a life, and its corrections of targets."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.rule import UpdateRule
from agents.rules.ppo import DPOConfig, PPOConfig, PPOTargets, dpo, ppo
from agents.types import Trajectory
from experiments.results import plots
from frodo import files
from frodo.logs import Progress, note, table
from frodo.rules.files import Rule
from frodo.runs.errors import UsageError
from frodo.settings.config import with_life
from frodo.settings.registry import RuleConfig, make_update_rule
from meta.programs.drifts import clipped
from meta.programs.language import DRIFTS, parse
from meta.programs.regression import fit, values_of
from meta.targets.proximal import CorrectedTargets, LifeState, LPOTargets

LIFE = 122  # trajectories, of a million steps, where a rule says nothing of its own life
TIMES = (0.0, 0.5, 1.0)  # of a life
ADVANTAGES = (1.0, -1.0)  # that are drawn
OF_FORMULAS = (-4.0, -2.0, -1.0, -0.3, -0.1, 0.1, 0.3, 1.0, 2.0, 4.0), tuple(np.linspace(0, 1, 5))  # A, and times
RATIOS = np.linspace(0.4, 1.8, 141)
CLAMPED = f"c = max({RATIOS[0]:g}, min({RATIOS[-1]:g}, r))"
ERRORS = np.linspace(-3, 3, 61)
NUM_ACTIONS, NUM_STEPS = 4, 16
NUM_PROGRAMS = 20_000  # that are tried for a formula
SMALLEST = 1e-3  # change that has a formula, as a share of the size of what changes
OF_LIFE, OF_ERROR = ("n / N", ""), ("TD error / size of TD errors", "change / size of TD errors")
AXES = {
    "entropy_cost": ("weight of the entropy", *OF_LIFE),
    "clip": ("clipping range", *OF_LIFE),
    "lambda": ("λ", *OF_LIFE),
    "value_cost": ("weight of the value's loss", *OF_LIFE),
    "learning_rate": ("factor of the learning rate", *OF_LIFE),
    "advantage": ("correction of the advantage", *OF_ERROR),
    "value": ("correction of the value's target", *OF_ERROR),
}

Rows = list[dict[str, Any]]


def trajectory_of(shape: tuple[int, int], reward: Any) -> Trajectory:
    """Return a trajectory whose steps all go on, of a policy that acts at random."""
    whole = lambda x, dtype, extra=0: jnp.broadcast_to(jnp.asarray(x, dtype), (shape[0] + extra, shape[1]))
    return Trajectory(
        observation=jnp.zeros((shape[0] + 1, *shape[1:], 1)),
        is_first=whole(False, bool, 1),
        action=whole(0, jnp.int32),
        reward=whole(reward, float),
        discount=whole(1.0, float),
        truncated=whole(False, bool),
        valid=whole(True, bool),
        behaviour_logits=jnp.zeros((*shape, NUM_ACTIONS)),
        core_state=(),
    )


def uniform(shape: tuple[int, int]) -> dict[str, jax.Array]:
    """Return predictions of a policy that acts at random, and of values that are 0."""
    return {"policy": jnp.zeros((shape[0] + 1, shape[1], NUM_ACTIONS)), "value": jnp.zeros((shape[0] + 1, shape[1]))}


def lived(rule: Rule) -> RuleConfig:
    """Return a rule's settings with the trajectories of a life of its agents."""
    config = with_life(rule.config, is_meta=False)
    return config.replace(life=config.settings.life or LIFE)


def targets_of(rule: Rule, update_rule: Any, reward: np.ndarray) -> Callable[[float], Any]:
    """Return a function that makes the targets of a trajectory [T, B] at a time of a life, from 0 to 1."""
    known, trajectory, life = uniform(reward.shape), trajectory_of(reward.shape, reward), lived(rule).settings.life
    make = jax.jit(lambda n: update_rule.apply(rule.meta_params, LifeState(n), trajectory, known, known)[0])
    return lambda time: make(round(time * life))


def rewards_at_random() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(NUM_STEPS, NUM_STEPS))


def policy_losses(
    rule: Any, meta_params: Any, made: Any, time: float, advantages: Sequence[float] = ADVANTAGES
) -> dict[float, np.ndarray]:
    """Return the losses of a step's policy at all RATIOS by its advantage, which is not normalised; 0 where r is 1.

    Args:
      made: targets of that time, whose settings count.
    """
    shape = (1, len(RATIOS))
    whole = lambda x: jnp.full(shape, x, float)
    predictions, trajectory = uniform(shape), trajectory_of(shape, 0.0)
    log_pi = jax.nn.log_softmax(predictions["policy"])[:-1, :, 0]

    def losses_of(advantage: float) -> np.ndarray:
        own = PPOTargets(whole(0.0), whole(advantage), whole(0.0), log_pi - jnp.log(jnp.asarray(RATIOS, float)))
        targets: Any = own
        if isinstance(made, CorrectedTargets):
            settings = {name: whole(float(x[0, 0])) for name, x in made.settings.items()}
            targets = CorrectedTargets(own, whole(time), settings)
        elif isinstance(made, LPOTargets):
            targets = LPOTargets(own, whole(time))
        losses = rule.loss(targets, predictions, trajectory)
        if rule.meta_loss is not None:
            losses += rule.meta_loss(meta_params, targets, predictions, trajectory)
        return np.asarray(losses)[0] - np.interp(1.0, RATIOS, losses[0])

    return {advantage: losses_of(advantage) for advantage in advantages}


def _alone(rule: Rule) -> tuple[UpdateRule, Any]:
    """Return a rule without the loss of entropy, whose advantages are as they are given, and its η."""
    return make_update_rule(lived(rule).replace(entropy_cost=0.0, is_advantage_normalised=False)), rule.meta_params


def rows_of(rule: Rule) -> Rows:
    """Return what is drawn: losses over ratios, settings over a life, and corrections over TD errors."""
    kind = rule.config.rule.name
    by_name: dict[str, Any] = {kind: _alone(rule)}
    shared = dict(entropy_cost=0.0, is_advantage_normalised=False, clip=rule.config.rule.settings.clip)
    by_name |= {"ppo": (ppo(PPOConfig(**shared)), {}), "dpo": (dpo(DPOConfig(**shared)), {})}
    rows: Rows = []
    for name, (update_rule, meta_params) in by_name.items():
        make = targets_of(rule, update_rule, rewards_at_random()) if name == kind else lambda time: None
        for time in TIMES:
            for advantage, losses in policy_losses(update_rule, meta_params, make(time), time).items():
                of = {"part": "loss", "rule": name, "time": time, "advantage": advantage}
                rows += [of | {"x": r, "y": y} for r, y in zip(RATIOS, losses, strict=True)]
    return rows + (rows_of_corrections(rule) if kind == "corrected_ppo" else [])


def rows_of_corrections(rule: Rule) -> Rows:
    """Return the settings over a life, and corrections of targets over TD errors, each in units of their size."""
    rows: Rows = []
    config = lived(rule)
    update_rule, parts = make_update_rule(config), config.settings.parts
    if {"settings", "constants"} & set(parts):
        make = targets_of(rule, update_rule, rewards_at_random())
        for time in np.linspace(0, 1, 21):
            changes = {name: float(x[0, 0]) for name, x in make(time).settings.items()}
            if "constants" not in parts:
                del changes["value_cost"]
            if update_rule.update_scale:
                rows.append(
                    {"part": "learning_rate", "x": time, "y": float(update_rule.update_scale(rule.meta_params))}
                )
            for name, change in changes.items():
                rows.append({"part": name.rstrip("_"), "x": time, "y": getattr(config.settings, name) + change})
    if "targets" in parts:
        made = targets_of(rule, update_rule, ERRORS[None])(0.0).own
        unit = np.sqrt(np.mean(ERRORS**2))
        for name in ("advantage", "value"):  # of single steps from values of 0, both are the TD error without one
            changes = (np.asarray(getattr(made, name))[0] - ERRORS) / unit
            rows += [{"part": name, "x": x / unit, "y": y} for x, y in zip(ERRORS, changes, strict=True)]
    return rows


def drift_of(rule: Rule) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return r, A and t = n / N at points of a grid, [N] each, and the drift there: the loss plus (r − 1) A."""
    update_rule, meta_params = _alone(rule)
    make = targets_of(rule, update_rule, rewards_at_random())
    advantages, times = OF_FORMULAS
    found: dict[str, list[np.ndarray]] = {"r": [], "A": [], "t": [], "drift": []}
    for time in times:
        for advantage, losses in policy_losses(update_rule, meta_params, make(time), time, advantages).items():
            own = RATIOS, np.full_like(RATIOS, advantage), np.full_like(RATIOS, time), losses + (RATIOS - 1) * advantage
            for name, x in zip(found, own, strict=True):
                found[name].append(x[::5])
    arrays = {name: np.concatenate(x) for name, x in found.items()}
    return arrays, arrays.pop("drift")


def clipping_of(rule: Rule, rows: Rows) -> str:
    """Return the formula of PPO's drift, to which corrections are added, with the clipping range at half of a life."""
    drawn = {row["x"]: row["y"] for row in rows if row["part"] == "clip"}
    return clipped(drawn.get(0.5, rule.config.rule.settings.clip))


def formulas(rule: Rule, rows: Rows) -> Rows:
    """Return formulas for what a rule does, from short to exact: the drift in r, A and t = n / N, and what is drawn.

    A correction of PPO's drift is fitted alone, `size` and `error` are its own, and the formula is that of both. It has
    the ratio c, which stays among those that it was fitted to: a policy goes where a loss falls without end. In PPO's
    drift is the clipping range at half of a life. `error` is the share of the variance that is not explained, and
    `held_out` that at every third point, which the formula was not fitted to. What changes by less than SMALLEST, of
    the range of the whole drift or of the largest value, has none.
    """
    inputs, y = drift_of(rule)
    size, clipping = np.ptp(y), ""
    if rule.config.rule.name == "corrected_ppo":
        clipping = clipping_of(rule, rows)
        y = y - values_of(parse(DRIFTS, clipping), inputs)
        inputs = {"c": inputs.pop("r"), **inputs}
    problems = {"drift": (inputs, y, size)}
    for part, (_, xlabel, _) in AXES.items():
        if own := [row for row in rows if row["part"] == part]:
            x, y = (np.array([row[name] for row in own]) for name in ("x", "y"))
            problems[part] = {"t" if xlabel == "n / N" else "delta": x}, y, np.abs(y).max()
    problems = {part: problem for part, problem in problems.items() if np.ptp(problem[1]) > SMALLEST * problem[2]}
    found, progress = [], Progress(len(problems), unit="formulas")
    for i, (part, (inputs, y, _)) in enumerate(problems.items()):
        is_out = np.arange(len(y)) % 3 == 1
        fits = lambda mask, inputs=inputs: {name: x[mask] for name, x in inputs.items()}
        for one in fit(fits(~is_out), y[~is_out], num_programs=NUM_PROGRAMS):
            errors = values_of(one.program, fits(is_out)) - y[is_out]
            held_out = float(np.mean(np.square(errors)) / np.var(y[is_out]))
            formula = one.formula
            if part == "drift" and clipping:
                named, semicolon, last = formula.rpartition("; ")
                formula = f"{CLAMPED}; {named}{semicolon}{clipping} + {last}"
            found.append({"part": part, "size": one.size, "error": one.error, "held_out": held_out, "formula": formula})
        progress.update(i + 1)
    return found


def draw(path: Path, rule: Rule, out: str = "") -> Path:
    """Draw what the rule of a file does, into analysis/ next to it, or into a folder; returns the figure's path.

    Raises:
      UsageError: if the rule is of another kind than lpo and corrected_ppo.
    """
    kind = rule.config.rule.name
    if kind not in ("lpo", "corrected_ppo"):
        raise UsageError(
            f"{path} is a rule of the kind {kind}; one of the kind lpo or corrected_ppo has a drift to draw, "
            "one of the kind frodo or disco has formulas"
        )
    plots.require()
    rows, figure_path = rows_of(rule), Path(out or path.parent / "analysis") / f"{path.stem}.png"
    others = [part for part in dict.fromkeys(row["part"] for row in rows) if part != "loss"]
    num_rows = 2 + -(-len(others) // 3)
    with plots.new_figure((11, 3.2 * num_rows), figure_path) as figure:
        grid = figure.subplots(num_rows, 3, squeeze=False)
        for i, advantage in enumerate(ADVANTAGES):
            for axes, time in zip(grid[i], TIMES, strict=True):
                for number, name in enumerate(dict.fromkeys(row["rule"] for row in rows if row["part"] == "loss")):
                    own = [x for x in rows if x["part"] == "loss" and x["rule"] == name and x["time"] == time]
                    own = [x for x in own if x["advantage"] == advantage]
                    axes.plot([x["x"] for x in own], [x["y"] for x in own], label=name, **plots.look(number))
                axes.set(title=f"A = {advantage:g}, n / N = {time:g}", xlabel="ratio r", ylabel="loss of the policy")
        for axes, part in zip(grid[2:].ravel(), others, strict=False):
            own = [row for row in rows if row["part"] == part]
            axes.plot([row["x"] for row in own], [row["y"] for row in own], **plots.look(0))
            title, xlabel, ylabel = AXES[part]
            axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
        for axes in grid[2:].ravel()[len(others) :]:
            axes.set_axis_off()
        grid[0, 0].legend(fontsize=8)
        figure.suptitle(f"What the rule {path.name} does, of a policy that acts at random")
    files.write_csv(
        figure_path.with_suffix(".csv"), [dict.fromkeys(("part", "rule", "time", "advantage")) | x for x in rows]
    )
    note(f"figure: {figure_path}")
    if found := formulas(rule, rows):
        files.write_csv(figure_path.with_name(f"{path.stem}_formulas.csv"), found)
        print(table([row | {name: f"{row[name]:.2g}" for name in ("error", "held_out")} for row in found]))
    return figure_path
