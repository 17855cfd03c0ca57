"""The rows of metrics.csv for who watches a run: TensorBoard's event files, or Weights & Biases, as --log_to says.

What is watched is one curve for each seed, over environment steps. metrics.csv stays what a run is read from.
"""

import csv
import importlib.util
import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from agents.validation import did_you_mean
from experiments.runs.errors import RunError, UsageError
from frodo.files import writing

NOT_DRAWN = ("seed", "learning_rate", "env_steps")


class Watcher(Protocol):
    """One place that rows go to."""

    def log(self, row: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in <run>/tensorboard/<life>; where a run goes on they are written anew from metrics.csv."""

    def __init__(self, folder: Path, record: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]]):
        from tensorboardX import SummaryWriter

        self._make = lambda name: SummaryWriter(str(folder / "tensorboard" / name), flush_secs=5)
        self._writers: dict[str, Any] = {}
        with writing(folder / "tensorboard"):
            for old in sorted((folder / "tensorboard").glob("*/events.out.tfevents.*")):
                old.unlink()
        for row in earlier:
            self.log(row)

    def log(self, row: Mapping[str, Any]) -> None:
        writer = self._writers[life_of(row)] = self._writers.get(life_of(row)) or self._make(life_of(row))
        for name, value in drawn(row).items():
            writer.add_scalar(name, value, int(row["env_steps"]))
        writer.flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


class WeightsAndBiases:
    """A run for each life, with files in <run>/wandb; where it goes on, rows that are there already are left out."""

    def __init__(self, folder: Path, record: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]]):
        import wandb

        path = folder / "wandb" / "token.txt"
        with writing(path):
            path.parent.mkdir(exist_ok=True)
            if not path.exists():
                path.write_text(secrets.token_hex(4))
            token = path.read_text()
        shared: dict[str, Any] = {
            "project": os.environ.get("WANDB_PROJECT", "frodo-rl"),
            "group": f"{record['experiment']}/{record['name']}",
            "config": dict(record),
            "dir": str(folder),
            "resume": "allow",
            "reinit": "create_new",
            "settings": wandb.Settings(console="off", quiet=True),
        }
        self._runs: dict[str, Any] = {}

        def make(name: str) -> Any:
            try:
                return wandb.init(id=f"{token}_{name}", name=f"{record['name']} {name}", **shared)
            except wandb.errors.Error as error:  # no key, say
                raise RunError(f"--log_to=wandb: {error}") from None

        self._make = make

    def log(self, row: Mapping[str, Any]) -> None:
        run = self._runs[life_of(row)] = self._runs.get(life_of(row)) or self._make(life_of(row))
        run.log(drawn(row), step=int(row["env_steps"]))

    def close(self) -> None:
        for run in self._runs.values():
            run.finish()


WATCHERS: dict[str, tuple[str, Callable[..., Watcher]]] = {  # name -> the package that it needs, how it begins
    "tensorboard": ("tensorboardX", TensorBoard),
    "wandb": ("wandb", WeightsAndBiases),
}


def check(names: Sequence[str]) -> None:
    """Raise a UsageError for a watcher that there is not, or whose package is not installed."""
    for name in names:
        if name not in WATCHERS:
            hint = did_you_mean(name, WATCHERS) or f": give some of {', '.join(WATCHERS)}"
            raise UsageError(f"--log_to={name}: there is no such watcher{hint}")
        if importlib.util.find_spec(WATCHERS[name][0]) is None:
            raise UsageError(f"--log_to={name} needs {WATCHERS[name][0]}: pip install 'frodo-rl[{name}]'")


def begin(names: Sequence[str], folder: Path, record: Mapping[str, Any]) -> list[Watcher]:
    """Begin to watch the run in a folder, with this config.json, before its next row is written."""
    path, earlier = folder / "metrics.csv", []
    if names and path.exists():
        with path.open(newline="") as file:
            earlier = list(csv.DictReader(file))
    return [WATCHERS[name][1](folder, record, earlier) for name in names]


def life_of(row: Mapping[str, Any]) -> str:
    """Name the life that a row is of: its seed, and in a grid its learning rate."""
    rate = row.get("learning_rate")
    return f"seed_{row['seed']}" + (f"_rate_{float(rate):g}" if rate is not None else "")


def drawn(row: Mapping[str, Any]) -> dict[str, float]:
    """Return what is drawn of a row: its finite numbers, but for those that say where it is."""
    found = {}
    for name, value in row.items():
        try:
            number = float(value)
        except (TypeError, ValueError):
            continue
        if name not in NOT_DRAWN and math.isfinite(number):
            found[name] = number
    return found
