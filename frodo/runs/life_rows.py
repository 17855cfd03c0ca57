"""What runs of lifetimes have in common: which lives there are, and the rows of metrics.csv."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.environments.atari57 import human_normalised
from agents.environments.envpool import ATARI_PREPROCESSING
from agents.types import Array, Params
from frodo.config import OnlineConfig
from frodo.learner import Control
from frodo.online import cause, why_stopped
from frodo.runs.errors import RunError
from frodo.runs.options import RunOptions
from frodo.runs.run import Run


def lives_of(options: RunOptions) -> list[tuple[float | None, int]]:
    """Return learning rate and seed of every life; None for the rate of the settings."""
    return [(rate, seed) for rate in options.learning_rates or (None,) for seed in options.seeds]


def reduced(metrics: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Reduce metrics [seeds, iterations] to one for each seed: a mean without nan; of counts the sum or the last."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # means of nothing
        found = {name: np.nanmean(values.astype(np.float64), axis=1) for name, values in metrics.items()}
        found["return"] = found.pop("return_sum") / found["episodes"]
        found["episodes"] = metrics["episodes"].sum(axis=1)
        if "skipped" in metrics:
            found["skipped"] = metrics["skipped"][:, -1]
    return found


def rows_of(config: OnlineConfig, lives, update: int, step: int, run: Run, logged) -> list[dict[str, Any]]:
    """Return a row of metrics.csv for each life, of what was logged [lives] after so many updates and steps."""
    suite, _, game = config.env.partition("/")
    shared = {
        "update": update,
        "env_steps": step,
        "env_frames": step * (ATARI_PREPROCESSING["frame_skip"] if suite == "atari" else 1),
        **run.cost(),
    }
    rows = []
    for i, (rate, seed) in enumerate(lives):
        own = {} if rate is None else {"learning_rate": rate}
        rows.append({"seed": seed, **own, **shared, **{k: v[i] for k, v in logged.items()}})
    if suite == "atari":
        for row in rows:
            row["human_normalised"] = human_normalised(game, row["return"])
    return rows


def progress_text(rows: list[dict[str, Any]]) -> str:
    """Return what the line of progress says of the newest rows."""
    name = "error" if "error" in rows[0] else "return"
    skipped = sum(row.get("skipped", 0) for row in rows)
    value = np.mean([row[name] for row in rows])
    return f"{name} {value:.3f}" + (f", {skipped:.0f} non-finite meta-gradients skipped" if skipped else "")


def check(run: Run, control: Control, params: Params, look: Callable[[], str] = lambda: "", when: str = "") -> None:
    """Stop a run that learns nothing more; the checkpoint from before stays.

    Args:
      look: says what the environments showed that is not finite, "" if nothing.
      when: since when it looks, "" where it did so all the time.
    """
    if reason := why_stopped(control, params):
        remedy = "try a smaller optimizer.learning_rate, meta_optimizer.learning_rate or max_gradient_norm"
        raise RunError(
            f"{cause(reason, look(), when, remedy)}; stopped: checkpoints in {run.folder}, if a minute had passed, are "
            "from before"
        )


@jax.jit
def are_finite(params: Params) -> Array:
    """Say of each of several agents, [N, ...], whether its parameters are finite."""
    finite = [jnp.all(jnp.isfinite(x), axis=tuple(range(1, x.ndim))) for x in jax.tree.leaves(params)]
    return jnp.all(jnp.stack(finite), axis=0)
