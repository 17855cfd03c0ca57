"""What regimes of lifetimes have in common: their seeds, their metrics, and how one goes on."""

import base64
import copy
import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from agents.environments.atari57 import human_normalised
from agents.environments.envpool import ATARI_PREPROCESSING
from agents.environments.host import NotFiniteError
from agents.types import Array
from frodo.regimes.learner import Control, Learner
from frodo.regimes.lifetimes import whole_steps
from frodo.regimes.results import joined
from frodo.runs.driver import Driven, Regime
from frodo.settings.config import AgentConfig
from frodo.settings.value_bins import BinWatch

MAX_SKIPPED_IN_A_ROW = 10  # non-finite meta-gradients that a run survives


class Lives(NamedTuple):
    """The lifetimes of a run: one for each seed, or for each learning rate and seed.

    Attributes:
      keys: random keys [lifetimes].
      seeds: what rows call them.
      rates: learning rates [lifetimes]; None for that of the settings.
    """

    keys: Array
    seeds: Sequence[int]
    rates: Array | None = None


def lives_of(seeds: Sequence[int], learning_rates: Sequence[float] = ()) -> Lives:
    """Return a lifetime for each seed, or for each learning rate and seed."""
    all_seeds = [seed for _ in learning_rates or (None,) for seed in seeds]
    keys = jax.vmap(jax.random.key)(jnp.array(all_seeds))
    rates = jnp.array([rate for rate in learning_rates for _ in seeds]) if learning_rates else None
    return Lives(keys, all_seeds, rates)


def reduced(metrics: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Reduce metrics [seeds, iterations] to one for each seed: a mean without nan; of counts the sum or the last."""
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # means of nothing
        found = {name: np.nanmean(values.astype(np.float64), axis=1) for name, values in metrics.items()}
        found["return"] = found.pop("return_sum") / found["episodes"]
        found["episodes"] = metrics["episodes"].sum(axis=1)
        if "skipped" in metrics:
            found["skipped"] = metrics["skipped"][:, -1]
    return found


class LivesRegime(Regime):
    """Lifetimes, the metrics of all their iterations, and what goes on from an earlier one.

    Args:
      config: that of all lifetimes.
      make_learner: learning rate, a traced number or None for that of the settings -> Learner.
      lives: which there are.
      num_steps: environment steps of each lifetime.
      is_kept: whether the metrics of every iteration are kept, for the result.

    Attributes:
      learner: that with the learning rate of the settings.
      parts: metrics that were kept, one part after the other.
    """

    def __init__(
        self, config: AgentConfig, make_learner: Callable[..., Learner], lives: Lives, num_steps: int, is_kept: bool
    ):
        self._config, self._lives, self._is_kept, self.learner = config, lives, is_kept, make_learner()
        self._env_steps = config.num_env_steps(self.learner.is_meta)
        self._set(num_steps)

    def _set(self, num_steps: int, start: Any = None, parts: Sequence[dict[str, np.ndarray]] = ()) -> None:
        self._start, self.parts, self._bins, self._steps_of_life = start, list(parts), BinWatch(), num_steps
        num_done = sum(len(part["episodes"]) for part in self.parts)  # iterations
        self._before = num_done * self._env_steps  # of a lifetime that goes on
        self.total = num_steps * len(self._lives.seeds)

    def going_on(self, start: Any, parts: Sequence[dict[str, np.ndarray]], num_steps: float) -> Self:
        """Return the regime in which a lifetime goes on: from a state, which stays as it is, and metrics so far."""
        other = copy.copy(self)
        other._set(whole_steps(num_steps, self._env_steps), start, parts)
        return other

    def begin(self, state: Any, step: int, driven: Driven) -> Any:
        self._driven = driven
        if driven.told is not None:
            with np.load(io.BytesIO(base64.b64decode(driven.told))) as arrays:
                self.parts = [dict(arrays)] if arrays.files else []
        return state

    def told(self) -> Any:
        """Return the metrics of all iterations as a text."""
        if not self._is_kept:
            return None
        data = io.BytesIO()
        np.savez(data, **(joined(self.parts) if self.parts else {}))  # type: ignore[arg-type]
        return base64.b64encode(data.getvalue()).decode()

    def _rows_of(self, lives: Lives, step: int, logged: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        """Return a row for each of these lifetimes, of what was logged [lifetimes] after so many steps."""
        suite, _, game = getattr(self._config, "env", "").partition("/")
        frames = step * (ATARI_PREPROCESSING["frame_skip"] if suite == "atari" else 1)
        rows: list[dict[str, Any]] = []
        for i, seed in enumerate(lives.seeds):
            rate = {} if lives.rates is None else {"learning_rate": float(lives.rates[i])}
            where = {"update": step // self._env_steps, "env_steps": step, "env_frames": frames}
            rows.append({"seed": seed, **rate, **where} | {name: x[i] for name, x in logged.items()})
            if suite == "atari":
                rows[-1]["human_normalised"] = human_normalised(game, rows[-1]["return"])
        return rows

    def _check(self, control: Control, is_finite: Any, look: Callable[[], str] = lambda: "") -> None:
        """Raise a NotFiniteError where nothing more is learned; `look` says what environments showed, "" if nothing."""
        if np.max(control.skipped_in_a_row) >= MAX_SKIPPED_IN_A_ROW:
            reason = f"{MAX_SKIPPED_IN_A_ROW} meta-gradients in a row were not finite"
        elif not is_finite:
            reason = "the agent's parameters are not finite"
        else:
            return
        shown = look() or (
            "all that the environments showed was finite, so try a smaller optimizer.learning_rate, "
            "meta_optimizer.learning_rate or max_gradient_norm"
        )
        run = self._driven.run
        kept = f"; checkpoints in {run.folder}, if a minute had passed, are from before" if run else ""
        raise NotFiniteError(f"{reason}: {shown}{kept}")


def text_of(rows: list[dict[str, Any]]) -> str:
    """Return what the line of progress says of the newest rows."""
    name = next(name for name in ("error", "reward", "return") if name in rows[0])
    skipped = sum(row.get("skipped", 0) for row in rows)
    value = np.mean([row[name] for row in rows])
    text = f"{name} {value:.3f}" if np.isfinite(value) else ""
    return text + (f", {skipped:.0f} non-finite meta-gradients skipped" if skipped else "")
