"""Callbacks: what sees each row of a run's metrics, and may end the run.

A callback is a function of a row, a dict of floats by column, or a `Callback`. What is true of what it returns ends the
run; what it adds to the row is in the rows of the callbacks after it, and in metrics.csv.

    discover_online("toy/catch", num_steps=1e6, key=key, callbacks=[lambda row: row["return"] > 0.9])
"""

import contextlib
import csv
import importlib.util
import itertools
import math
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.validation import did_you_mean
from frodo.files import csv_of, write, writing
from frodo.logs import note
from frodo.runs.errors import RunError, UsageError, caused_by

if TYPE_CHECKING:
    from frodo.runs.driver import Driven

NOT_DRAWN = ("seed", "learning_rate", "env_steps")


class Callback:
    """What sees a run; a subclass overrides what it needs."""

    def begin(self, driven: "Driven") -> None:
        """See a run that begins, or goes on: its folder is `driven.run`, `driven.result()` what it has come to."""
        self.driven = driven

    def see(self, row: dict[str, Any]) -> Any:
        """See a row of metrics; what is true ends the run."""

    def end(self) -> None:
        """See the end of the run, also where an error ends it."""


class _Function(Callback):
    def __init__(self, function: Callable[[dict[str, Any]], Any]):
        self._function = function

    def see(self, row: dict[str, Any]) -> Any:
        return self._function(row)


def as_callbacks(callbacks: Any) -> list[Callback]:
    """Return functions and callbacks as callbacks; a TypeError names what is neither."""
    if isinstance(callbacks, (str, Mapping)) or not isinstance(callbacks, Sequence):
        raise TypeError(f"callbacks are {callbacks!r}, expected a list of functions of a row, or of frodo.Callback")
    for i, one in enumerate(callbacks):
        if not isinstance(one, Callback) and (isinstance(one, type) or not callable(one)):
            raise TypeError(f"callbacks[{i}] is {one!r}, expected a function of a row, or a frodo.Callback")
    return [one if isinstance(one, Callback) else _Function(one) for one in callbacks]


class CSV(Callback):
    """Rows in a file, for runs without a folder, whose metrics.csv has them anyway."""

    def __init__(self, path: Path | str):
        self._path = Path(path)
        self._columns: list[str] = []

    def see(self, row: dict[str, Any]) -> None:
        is_first = not self._columns
        self._columns = self._columns or list(row)
        with writing(self._path), self._path.open("w" if is_first else "a", encoding="utf-8", newline="") as file:
            file.write(csv_of(self._columns, [row], has_header=is_first))


class Checkpoint(Callback):
    """The result so far in a file, as `result.save` writes it, so many seconds apart and at the end."""

    def __init__(self, path: Path | str, seconds: float = 60.0):
        self._path, self._seconds, self._last = Path(path), seconds, time.monotonic()

    def see(self, row: dict[str, Any]) -> None:
        if time.monotonic() - self._last >= self._seconds:
            self.driven.result().save(self._path)
            self._last = time.monotonic()

    def end(self) -> None:
        if not self.driven.is_advancing:  # else an error ended it, and the last file stays
            self.driven.result().save(self._path)


class _InFolder(Callback):
    """What writes into the run's folder, or into one that is given, by a package that may not be installed."""

    name, package = "", ""  # as --log_to has it, and what it needs

    def __init__(self, folder: Path | str | None = None):
        if importlib.util.find_spec(self.package) is None:
            raise UsageError(f"{self.name} needs {self.package}: pip install 'frodo-rl[{self.name}]'")
        self._given = folder

    def _folder_of(self, driven: "Driven") -> Path:
        """Return the folder that was given, or that of the run."""
        if self._given is not None:
            return Path(self._given)
        if driven.run is None:
            name = type(self).__name__
            raise ValueError(f"{name}: the run has no folder; give {name}(folder), or the run one")
        return driven.run.folder


class TensorBoard(_InFolder):
    """Event files in <run>/tensorboard/, by seed; where a run goes on they are written anew from metrics.csv.

    Args:
      folder: where they lie, of a run without a folder of its own.
    Raises:
      DiskError: where the disk refuses a write.
    """

    name, package = "tensorboard", "tensorboardX"

    def begin(self, driven: "Driven") -> None:
        self._folder = self._folder_of(driven) / "tensorboard"
        self._writers: dict[Path, Any] = {}
        with writing(self._folder):
            for old in sorted(self._folder.glob("*/events.out.tfevents.*")):
                old.unlink()
        self._start = time.time() - driven.clock.seconds()
        for row in rows_so_far(self._folder.parent) if driven.run else []:
            self.see(row)

    def see(self, row: Mapping[str, Any]) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        path = self._folder / life_of(row)
        with writing(path):
            if path not in self._writers:
                path.mkdir(parents=True, exist_ok=True)
                self._writers[path] = EventsWriter(str(path / "events"))
            when = {"wall_time": self._start + float(row["seconds"]), "step": int(float(row["env_steps"]))}
            for name, value in drawn(row).items():
                event = Event(summary=scalar(name, value), **when)
                self._writers[path].write_event(event)
            self._writers[path].flush()

    def end(self) -> None:
        for writer in self._writers.values():
            with contextlib.suppress(OSError):  # of a full disk, which `log` has told
                writer.close()


class WeightsAndBiases(_InFolder):
    """A run for each seed, with files in <run>/wandb; where it goes on, what is there already is left out.

    Where it fails later than in its beginning, metrics.csv alone goes on.

    Args:
      folder: where they lie, of a run without a folder of its own.
    Raises:
      RunError: in the beginning, as without a key.
    """

    name, package = "wandb", "wandb"

    def begin(self, driven: "Driven") -> None:
        import wandb

        folder, record = self._folder_of(driven), driven.record
        self._error = wandb.errors.Error
        path = folder / "wandb" / "token.txt"
        is_new = not path.exists()
        if is_new:
            with writing(path.parent):
                path.parent.mkdir(parents=True, exist_ok=True)
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
            raise RunError(f"wandb: {error}") from None
        for row in rows_so_far(folder) if is_new and driven.run else []:
            self.see(row)

    def see(self, row: Mapping[str, Any]) -> None:
        if not self._runs:
            return
        try:
            self._runs[life_of(row)].log(drawn(row), step=int(float(row["env_steps"])))
        except self._error as error:
            note(f"wandb: {error}; from here on metrics.csv alone has the rows")
            self._runs = {}

    def end(self) -> None:
        for run in self._runs.values():
            with contextlib.suppress(self._error):
                run.finish()


WATCHERS: dict[str, type[_InFolder]] = {kind.name: kind for kind in (TensorBoard, WeightsAndBiases)}


def by_name(names: Sequence[str]) -> list[Callback]:
    """Return the callbacks of --log_to; a UsageError for one that there is not, or whose package is not installed."""
    for name in names:
        if name not in WATCHERS:
            hint = did_you_mean(name, WATCHERS) or f": give some of {', '.join(WATCHERS)}"
            raise UsageError(f"--log_to={name}: there is no such watcher{hint}")
    with caused_by("--log_to"):
        return [WATCHERS[name]() for name in names]


def rows_so_far(folder: Path) -> list[dict[str, str]]:
    path = folder / "metrics.csv"
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def life_of(row: Mapping[str, Any]) -> str:
    """Name the lifetime that a row is of: its seed, and in a grid its learning rate."""
    rate = row.get("learning_rate")
    return f"seed_{int(float(row['seed']))}" + (f"_rate_{float(rate):g}" if rate is not None else "")


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
