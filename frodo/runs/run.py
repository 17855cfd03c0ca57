"""A run and its results folder: configuration, metrics, checkpoints, summary; how it goes on.

config.json   the whole configuration, seeds, steps, and `provenance`
metrics.csv   one row per log point and seed
summary.json  the final numbers
checkpoints/  the last two complete states
"""

import contextlib
import csv
import dataclasses
import os
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from agents.validation import check_type
from frodo.files import as_written, csv_of, flat, read_json, with_new_settings, write_json, writing
from frodo.runs import errors, folders
from frodo.runs.checkpoints import Checkpoints
from frodo.runs.cores import peak_memory_mb
from frodo.runs.errors import UsageError
from frodo.runs.folders import RunOptions
from frodo.runs.provenance import provenance
from frodo.settings.earlier_versions import FORMAT

SAVE_SECONDS = 60.0  # between checkpoints
FIRST_COLUMNS = ("seed", "update", "env_steps", "env_frames", "seconds")


class Clock:
    """The time that a run has taken, earlier parts of a resumed one included."""

    def __init__(self) -> None:
        self.go_on(0.0, 0.0)

    def go_on(self, seconds: float, cpu_seconds: float) -> None:
        """Say how long it has taken so far."""
        self._start, self._cpu_start = time.monotonic() - seconds, time.process_time() - cpu_seconds

    def seconds(self) -> float:
        """Return the wall-clock seconds."""
        return time.monotonic() - self._start

    def cpu_seconds(self) -> float:
        """Return the CPU seconds, all threads together."""
        return time.process_time() - self._cpu_start

    def columns(self) -> dict[str, float]:
        """Return what each row has of it, with the largest memory of the process."""
        of_cpu = round(self.cpu_seconds(), 3)
        return {"seconds": round(self.seconds(), 3), "cpu_seconds": of_cpu, "peak_memory_mb": peak_memory_mb()}


class Run:
    """Owns a results folder, from its opening to `finish`.

    Args:
      options: seeds, steps, folder, whether an earlier run goes on or is replaced.
      experiment, name: where the results lie: results/<experiment>/<name>, unless options.out says otherwise.
      config: a dataclass, written to config.json.
      why_as_long: why it may not go on with more steps than it was begun with; "" if it may.
      about: what else must be the same where it goes on, by name: a checksum of the agent that teaches, say.
    Raises:
      UsageError: if the folder holds a run and options do not say what is to become of it, if it cannot be resumed, or
        is another process's.
      DiskError: from every method, where the disk refuses a write.
    """

    def __init__(
        self,
        options: RunOptions,
        *,
        experiment: str,
        name: str,
        config: Any,
        why_as_long: str = "",
        about: Mapping[str, str] = types.MappingProxyType({}),
    ):
        self.options = options
        self._why_as_long, self._about = why_as_long, about
        self._ask = "" if options.call else "--resume: "
        self.folder = folders.folder_of(options, experiment, name)
        self.told: Any = None  # what was saved with the state that is restored
        self._config_type = type(config)
        self._config_path, self._metrics_path = self.folder / "config.json", self.folder / "metrics.csv"
        self._on_exit = contextlib.ExitStack()
        self._columns: list[str] = []
        self.clock = Clock()
        self._provenance = provenance()
        record = {"format": FORMAT, "experiment": experiment, "name": name}
        record |= {key: getattr(options, key) for key in ("seeds", "steps", "learning_rates")}
        record |= {"config": dataclasses.asdict(config), **about, **self._provenance}
        self.record = as_written(record)
        if options.resume:
            self._continue()
        else:
            self._begin()
        self._checkpoints = Checkpoints(self.folder / "checkpoints")
        self._last_save = time.monotonic()
        errors.run_is_open = True

    def _begin(self) -> None:
        folders.check_free(self.folder, self.options)
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._on_exit.enter_context(folders.locked(self.folder))
            folders.clear(self.folder)
        write_json(self._config_path, self.record)

    def _continue(self) -> None:
        try:
            earlier = read_json(self._config_path)
            folders.check_version(self.folder, earlier)
            steps = earlier["steps"]
            if (was := earlier["experiment"]) != (now := self.record["experiment"]):
                raise UsageError(f"experiment was {was} in {self.folder} and is {now} now")
            config = with_new_settings(self._config_type, earlier["config"])
            before, now = self._settings(earlier | {"config": config}), self._settings(self.record)
        except (FileNotFoundError, NotADirectoryError):
            raise UsageError(f"{self._ask}{self.folder} holds no run") from None
        except UsageError as error:
            raise UsageError(f"{self._ask}{error}") from None
        except (ValueError, KeyError, AttributeError, TypeError):
            raise UsageError(f"{self._ask}{self._config_path} is damaged") from None
        for key in before | now:
            was, is_now = before.get(key, "absent"), now.get(key, "absent")
            if was != is_now:
                key = key.replace("rule.settings.", "rule.")  # as its flag, or the argument of a call
                key = key.removeprefix("config.") if self.options.call else key
                raise UsageError(f"{self._ask}{key} was {was} in {self.folder} and is {is_now} now")
        given = f"{self.options.call} is " if self.options.call else f"--{self.options.flag}="
        given += str(self.options.steps)
        if self.options.steps < steps:
            raise UsageError(f"{self._ask}{given}, less than the {steps} of the run in {self.folder}")
        if self.options.steps > steps and self._why_as_long:
            why = f"the {steps} of the run in {self.folder}, and {self._why_as_long}"
            raise UsageError(f"{self._ask}{given}, more than {why}: give the same number")
        self._on_exit.enter_context(folders.locked(self.folder))
        self.record = earlier | {
            "config": config,
            "steps": self.options.steps,
            "resumed": [*earlier.get("resumed", []), dict(self._provenance)],
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._on_exit.close()

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to metrics.csv.

        Args:
          rows: numbers by column, with seed, update, env_steps and env_frames; the first row fixes the columns.
        Raises:
          ValueError: if a row has other columns.
        """
        all_values = [dict(row) for row in rows]
        if is_new := not self._columns:
            first = [key for key in FIRST_COLUMNS if key in all_values[0]]
            self._columns = list(dict.fromkeys([*first, *all_values[0]]))
        elif self.options.resume:  # an earlier version may not have logged all that this one does
            all_values = [{key: x for key, x in values.items() if key in self._columns} for values in all_values]
        for values in all_values:
            if differing := sorted(set(self._columns) ^ set(values)):
                raise ValueError(f"metrics: {', '.join(differing)} must be in every row or in none")
        text = csv_of(self._columns, all_values, has_header=is_new)
        length = self._metrics_length()
        with writing(self._metrics_path):
            try:
                with self._metrics_path.open("a", encoding="utf-8", newline="") as file:
                    file.write(text)
            except OSError:
                with contextlib.suppress(OSError):
                    os.truncate(self._metrics_path, length)  # half a row would spoil the file
                raise

    def _metrics_length(self) -> int:
        return self._metrics_path.stat().st_size if self._metrics_path.exists() else 0

    def save(self, state: Any, step: int, told: Any = None) -> None:
        """Write a checkpoint: a pytree of arrays, numbers and random keys, the steps done, and what JSON can hold."""
        clocks = {"seconds": self.clock.seconds(), "cpu_seconds": self.clock.cpu_seconds()}
        self._checkpoints.save(step, state, {"metrics_bytes": self._metrics_length(), **clocks, "told": told})
        self._last_save = time.monotonic()

    def is_due(self) -> bool:
        """Say whether the last checkpoint is a minute old."""
        return time.monotonic() - self._last_save >= SAVE_SECONDS

    def _settings(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return what must not change between the parts of a run, by its dotted name."""
        required = {key: record[key] for key in ("experiment", "name", "seeds", "learning_rates", "config")}
        return flat(required | {key: record.get(key, "") for key in self._about})

    def restore(self, template: Any) -> tuple[Any, int]:
        """Return the state and step of the last good checkpoint, bit for bit; without --resume the template and 0.

        `told` is then what was saved with it.
        Rows of metrics.csv that were written after the checkpoint are dropped: the run will write them again.

        Raises:
          UsageError: if no checkpoint is whole, or a leaf's shape or dtype is not the template's.
        """
        is_begun = not self.options.call or folders.has_checkpoint(self.folder)  # else it was killed before the first
        if not self.options.resume or not is_begun:
            if self._metrics_path.exists():
                os.truncate(self._metrics_path, 0)
            return template, 0
        state, step, metadata = self._checkpoints.restore(template)
        self.told = metadata.get("told")
        length = metadata["metrics_bytes"]
        if self._metrics_length() < length:
            raise UsageError(f"{self._ask}{self._metrics_path} has lost rows that checkpoint {step} knows of")
        if length:
            self._columns = self._read_columns()
        with writing(self._metrics_path):
            if self._metrics_path.exists():
                os.truncate(self._metrics_path, length)
            for name in ("summary.json", "rule.npz"):  # no longer true of the run
                (self.folder / name).unlink(missing_ok=True)
        self.clock.go_on(metadata["seconds"], metadata["cpu_seconds"])
        self.record["resumed"][-1]["step"] = step
        write_json(self._config_path, self.record)
        return state, step

    @contextlib.contextmanager
    def nothing_half_written(self) -> Iterator[None]:
        """Empty the folder of a run that did not begin, where an error is raised."""
        try:
            yield
        except Exception:
            if not self.options.resume:
                folders.clear(self.folder)
            raise

    def _read_columns(self) -> list[str]:
        with (
            contextlib.suppress(ValueError, csv.Error, StopIteration),
            self._metrics_path.open(newline="", encoding="utf-8") as file,
        ):
            if {"seed", "env_steps"} <= set(columns := next(csv.reader(file))):
                return columns
        raise UsageError(f"{self._ask}{self._metrics_path} is damaged: its first line does not name the columns")

    def last_saved(self, begun: Any) -> tuple[Any, int]:
        """Return state and step of the last checkpoint, or what was begun with and 0; nothing of the run changes."""
        if not folders.has_checkpoint(self.folder):
            return begun, 0
        state, step, _ = self._checkpoints.restore(begun)
        return state, step

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the final numbers to summary.json."""
        write_json(self.folder / "summary.json", summary)


def opened(
    folder: Path | str | None,
    experiment: str,
    name: str,
    config: Any,
    steps: int,
    about: Mapping[str, str],
    call: str = "num_steps",
    **how: Any,
) -> contextlib.AbstractContextManager[Run | None]:
    """Open the folder of a call of the library, if there is one; it goes on with what it finds there.

    Errors are those of `Run`.
    """
    if folder is None:
        return contextlib.nullcontext()
    check_type("folder", folder, str | Path, "that of a run")
    options = RunOptions((0,), steps, str(folder), resume=(Path(folder) / "config.json").exists(), call=call)
    return Run(folders.of_process(options), experiment=experiment, name=name, config=config, about=about, **how)
