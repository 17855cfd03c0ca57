"""The rows of metrics.csv for who watches a run: TensorBoard's event files, or Weights & Biases, as --log_to says.

What is watched is one curve for each seed, over environment steps. metrics.csv stays what a run is read from.
"""

import contextlib
import csv
import importlib.util
import itertools
import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from agents.validation import did_you_mean
from frodo.files import write, writing
from frodo.logs import note
from frodo.runs.errors import RunError, UsageError

NOT_DRAWN = ("seed", "learning_rate", "env_steps")


class Watcher(Protocol):
    """One place that rows go to."""

    def log(self, row: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in <run>/tensorboard/<life>; where a run goes on they are written anew from metrics.csv.

    Raises:
      DiskError: where the disk refuses a write.
    """

    def __init__(self, folder: Path, record: Mapping[str, Any], start: float):
        self._folder = folder / "tensorboard"
        self._writers: dict[Path, Any] = {}
        with writing(self._folder):
            for old in sorted(self._folder.glob("*/events.out.tfevents.*")):
                old.unlink()
        self._start = start
        for row in rows_so_far(folder):
            self.log(row)

    def log(self, row: Mapping[str, Any]) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        path = self._folder / life_of(row)
        with writing(path):
            if path not in self._writers:
                path.mkdir(parents=True, exist_ok=True)
                self._writers[path] = EventsWriter(str(path / "events"))
            when = {"wall_time": self._start + float(row["seconds"]), "step": int(row["env_steps"])}
            for name, value in drawn(row).items():
                event = Event(summary=scalar(name, value), **when)
                self._writers[path].write_event(event)
            self._writers[path].flush()

    def close(self) -> None:
        for writer in self._writers.values():
            with contextlib.suppress(OSError):  # of a full disk, which `log` has told
                writer.close()


class WeightsAndBiases:
    """A run for each life, with files in <run>/wandb; where it goes on, what is there already is left out.

    Where it fails later than at the start, metrics.csv alone goes on.

    Raises:
      RunError: at the start, as without a key.
    """

    def __init__(self, folder: Path, record: Mapping[str, Any], start: float):
        import wandb

        self._error = wandb.errors.Error
        path = folder / "wandb" / "token.txt"
        is_new = not path.exists()
        if is_new:
            with writing(path.parent):
                path.parent.mkdir(exist_ok=True)
            write(path, secrets.token_hex(4).encode())
        token = path.read_text(encoding="utf-8")
        shared: dict[str, Any] = {
            "project": os.environ.get("WANDB_PROJECT", "frodo-rl"),
            "group": f"{record['experiment']}/{record['name']}",
            "config": dict(record),
            "dir": str(folder),
            "resume": "allow",
            "reinit": "create_new",
            "settings": wandb.Settings(console="off", quiet=True),
        }
        lives = itertools.product(record["seeds"], record["learning_rates"] or [None])
        names = [life_of({"seed": seed, "learning_rate": rate}) for seed, rate in lives]
        try:
            self._runs = {
                name: wandb.init(id=f"{token}_{name}", name=f"{record['name']} {name}", **shared) for name in names
            }
        except self._error as error:
            raise RunError(f"--log_to=wandb: {error}") from None
        for row in rows_so_far(folder) if is_new else ():
            self.log(row)

    def log(self, row: Mapping[str, Any]) -> None:
        if not self._runs:
            return
        try:
            self._runs[life_of(row)].log(drawn(row), step=int(row["env_steps"]))
        except self._error as error:
            note(f"--log_to=wandb: {error}; from here on metrics.csv alone has the rows")
            self._runs = {}

    def close(self) -> None:
        for run in self._runs.values():
            with contextlib.suppress(self._error):
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


def begin(names: Sequence[str], folder: Path, record: Mapping[str, Any], start: float) -> list[Watcher]:
    """Begin to watch the run in a folder, with this config.json, before its next row is written.

    Its clock, `seconds`, was 0 at the time `start`, in seconds since 1970: as if it had never been stopped.
    """
    return [WATCHERS[name][1](folder, record, start) for name in names]


def rows_so_far(folder: Path) -> list[dict[str, str]]:
    path = folder / "metrics.csv"
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


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
