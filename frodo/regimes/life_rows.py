"""What regimes of lifetimes have in common: which lives there are, and their rows of metrics."""

import base64
import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents.environments.atari57 import human_normalised
from agents.environments.envpool import ATARI_PREPROCESSING
from agents.environments.host import NotFiniteError
from agents.types import Array, Params
from frodo.regimes.learner import Control
from frodo.regimes.lifetimes import cause, why_stopped
from frodo.regimes.results import joined
from frodo.runs.run import Run
from frodo.settings.config import AgentConfig


class Lives(NamedTuple):
    """The lives of a run, as many as there are seeds.

    Attributes:
      keys: random keys [lives].
      seeds: what rows call them.
      rates: learning rates [lives]; None for that of the settings.
    """

    keys: Array
    seeds: Sequence[int]
    rates: Array | None = None


def lives_of(seeds: Sequence[int], learning_rates: Sequence[float] = ()) -> Lives:
    """Return a life for each seed, or for each learning rate and seed."""
    all_seeds = [seed for _ in learning_rates or (None,) for seed in seeds]
    keys = jax.vmap(jax.random.key)(jnp.array(all_seeds))
    rates = jnp.array([rate for rate in learning_rates for _ in seeds]) if learning_rates else None
    return Lives(keys, all_seeds, rates)


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


def rows_of(config: AgentConfig, lives: Lives, update: int, step: int, logged) -> list[dict[str, Any]]:
    """Return a row for each life, of what was logged [lives] after so many updates and steps."""
    suite, _, game = getattr(config, "env", "").partition("/")
    frames = step * (ATARI_PREPROCESSING["frame_skip"] if suite == "atari" else 1)
    rows: list[dict[str, Any]] = []
    for i, seed in enumerate(lives.seeds):
        rate = {} if lives.rates is None else {"learning_rate": float(lives.rates[i])}
        rows.append({"seed": seed, **rate, "update": update, "env_steps": step, "env_frames": frames})
        rows[-1] |= {name: x[i] for name, x in logged.items()}
        if suite == "atari":
            rows[-1]["human_normalised"] = human_normalised(game, rows[-1]["return"])
    return rows


def text_of(rows: list[dict[str, Any]]) -> str:
    """Return what the line of progress says of the newest rows."""
    name = "error" if "error" in rows[0] else "return"
    skipped = sum(row.get("skipped", 0) for row in rows)
    value = np.mean([row[name] for row in rows])
    text = f"{name} {value:.3f}" if np.isfinite(value) else ""
    return text + (f", {skipped:.0f} non-finite meta-gradients skipped" if skipped else "")


def check(run: Run | None, control: Control, params: Params, look: Callable[[], str] = lambda: "") -> None:
    """Raise a NotFiniteError where nothing more is learned; `look` says what the environments showed, "" if nothing."""
    if reason := why_stopped(control, params):
        remedy = "try a smaller optimizer.learning_rate, meta_optimizer.learning_rate or max_gradient_norm"
        kept = f"; checkpoints in {run.folder}, if a minute had passed, are from before" if run else ""
        raise NotFiniteError(cause(reason, look(), remedy) + kept)


def kept(parts: Sequence[dict[str, np.ndarray]]) -> str:
    """Return the metrics of all iterations as a text, for a checkpoint."""
    data = io.BytesIO()
    arrays: dict[str, Any] = joined(parts) if parts else {}
    np.savez(data, **arrays)
    return base64.b64encode(data.getvalue()).decode()


def told_again(text: str) -> list[dict[str, np.ndarray]]:
    """Return what `kept` was given, as one part."""
    with np.load(io.BytesIO(base64.b64decode(text))) as arrays:
        return [dict(arrays)] if arrays.files else []


@jax.jit
def are_finite(params: Params) -> Array:
    """Say of each of several agents, [N, ...], whether its parameters are finite."""
    finite = [jnp.all(jnp.isfinite(x), axis=tuple(range(1, x.ndim))) for x in jax.tree.leaves(params)]
    return jnp.all(jnp.stack(finite), axis=0)
