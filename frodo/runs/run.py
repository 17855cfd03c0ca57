"""A run and its results folder: configuration, metrics, checkpoints, summary; how it is stopped and goes on.

config.json   the whole configuration, seeds, steps, and `provenance`
metrics.csv   one row per log point and seed
summary.json  the final numbers
checkpoints/  the last two complete states

def run(config, options):
    with Run(options, experiment="catch", name="frodo", config=config) as run:
        state, step = run.restore(initial_state)  # the initial state and 0, unless the run is resumed
        while step < options.steps:
            state, rows = chunk(state)
            step += ...
            run.log(rows)
            if run.is_due() or step >= options.steps:
                run.save(state, step)
            run.stop_if_interrupted(state, step)
        run.finish(summary)
"""

import contextlib
import csv
import dataclasses
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from frodo.earlier_versions import FORMAT
from frodo.files import as_written, plain, read_json, with_new_settings, write_json, writing
from frodo.logs import note
from frodo.runs import errors, watching
from frodo.runs.checkpoints import Checkpoints
from frodo.runs.cores import peak_memory_mb
from frodo.runs.errors import UsageError
from frodo.runs.folders import check_free, check_version, clear, folder_of, has_checkpoint, locked
from frodo.runs.options import RunOptions
from frodo.runs.provenance import provenance

SAVE_SECONDS = 60.0  # between checkpoints
FIRST_COLUMNS = ("seed", "update", "env_steps", "env_frames", "seconds")


class Run:
    """Owns a results folder, from its opening to `finish`; Ctrl-C and SIGTERM are noticed inside its `with` block.

    Args:
      options: seeds, steps, folder, whether an earlier run goes on or is replaced.
      experiment, name: where the results lie: results/<experiment>/<name>, unless options.out says otherwise.
      config: a dataclass, written to config.json.
      why_as_long: why it may not go on with more steps than it was begun with; "" if it may.
      teacher: a checksum of the agent that teaches, with which alone it may go on; "" for none.
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
        teacher: str = "",
    ):
        self.options = options
        self._why_as_long = why_as_long
        self.folder = folder_of(options, experiment, name)
        self.interrupted = 0  # the number of the signal that asks the run to stop
        self.told: Any = None  # what was saved beside the state that is restored
        self._config_type = type(config)
        self._config_path, self._metrics_path = self.folder / "config.json", self.folder / "metrics.csv"
        self._on_exit = contextlib.ExitStack()
        self._watchers: list[watching.Watcher] = []  # from `restore` on
        self._columns: list[str] = []
        self._start, self._cpu_start = time.monotonic(), time.process_time()
        self._provenance = provenance()
        self._record = {
            "format": FORMAT,
            "experiment": experiment,
            "name": name,
            "seeds": list(options.seeds),
            "steps": options.steps,
            "learning_rates": list(options.learning_rates),
            "config": dataclasses.asdict(config),
            "teacher": teacher,
            **self._provenance,
        }
        self._record = as_written(self._record)
        if options.resume:
            self._continue()
        else:
            self._begin()
        self._checkpoints = Checkpoints(self.folder / "checkpoints")
        self._last_save = time.monotonic()
        errors.run_is_open = True

    def _begin(self) -> None:
        check_free(self.folder, self.options)
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._on_exit.enter_context(locked(self.folder))
            clear(self.folder)
        write_json(self._config_path, self._record)

    def _continue(self) -> None:
        try:
            earlier = read_json(self._config_path)
            check_version(self.folder, earlier)
            steps = earlier["steps"]
            if not isinstance(steps, int) or not isinstance(earlier.get("resumed", []), list):
                raise ValueError
            config = with_new_settings(self._config_type, earlier["config"])
            before, now = _settings(earlier | {"config": config}), _settings(self._record)
        except (FileNotFoundError, NotADirectoryError):
            raise UsageError(f"--resume: {self.folder} holds no run") from None
        except UsageError as error:
            raise UsageError(f"--resume: {error}") from None
        except (ValueError, KeyError, AttributeError, TypeError):
            raise UsageError(f"--resume: {self._config_path} is damaged") from None
        for key in before | now:
            was, is_now = before.get(key, "absent"), now.get(key, "absent")
            if was != is_now:
                key = key.replace("rule.settings.", "rule.")  # as its flag
                raise UsageError(f"--resume: {key} was {was} in {self.folder} and is {is_now} now")
        if self.options.steps < steps:
            raise UsageError(f"--resume: --steps={self.options.steps} is less than the run's {steps}")
        if self.options.steps > steps and self._why_as_long:
            raise UsageError(
                f"--resume: --steps={self.options.steps} is more than the run's {steps}, and "
                f"{self._why_as_long}: give the same number"
            )
        self._on_exit.enter_context(locked(self.folder))
        self._record = earlier | {
            "config": config,
            "steps": self.options.steps,
            "resumed": [*earlier.get("resumed", []), dict(self._provenance)],
        }

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._watch_signals()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._on_exit.close()

    def _watch_signals(self) -> None:
        """Let the first signal ask the run to stop; the second ends the process even while XLA holds the main
        thread."""
        read, write_end = os.pipe()
        if hasattr(os, "set_blocking"):  # which Windows neither has nor needs
            os.set_blocking(write_end, False)

        def ask(number: int, _: Any) -> None:
            self.interrupted = number

        def listen() -> None:
            if os.read(read, 1):
                note("stopping soon, with a checkpoint; once more stops at once, without one")
                if number := os.read(read, 1):
                    os._exit(128 + number[0])
            os.close(read)

        self._on_exit.callback(os.close, write_end)
        self._on_exit.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(write_end, warn_on_full_buffer=False))
        for number in (signal.SIGINT, signal.SIGTERM):
            self._on_exit.callback(signal.signal, number, signal.signal(number, ask))
        threading.Thread(target=listen, daemon=True).start()

    def stop_if_interrupted(self, state: Any, step: int, number: int | None = None) -> None:
        """After Ctrl-C or SIGTERM save a checkpoint, say how to go on and exit with 128 plus the signal's number.

        With `number`, that which all processes stop by now, 0 for none: one may have come to this process since.
        """
        number = self.interrupted if number is None else number
        if number:
            self.save(state, step)
            folder = self.options.resume_out or self.folder
            note(f"stopped at step {step}: go on with the same settings and --resume --out={folder}")
            sys.exit(128 + number)

    def seconds(self) -> float:
        """Return the wall-clock seconds of this run, earlier parts of a resumed one included."""
        return time.monotonic() - self._start

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of this run, all threads together, earlier parts of a resumed one included."""
        return time.process_time() - self._cpu_start

    def cost(self) -> dict[str, Any]:
        """Return the run's CPU seconds so far, and the largest memory of its process, as columns of metrics.csv."""
        return {"cpu_seconds": round(self.cpu_seconds(), 3), "peak_memory_mb": peak_memory_mb()}

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to metrics.csv, and hand them to who watches; `seconds` is added.

        Args:
          rows: numbers by column, with seed, update, env_steps and env_frames; the first row fixes the columns.
        Raises:
          ValueError: if a row has other columns.
        """
        text = io.StringIO()
        all_values = [{**row, "seconds": round(self.seconds(), 3)} for row in rows]
        if self.options.resume and self._columns:  # an earlier version may not have logged all that this one does
            all_values = [{key: x for key, x in values.items() if key in self._columns} for values in all_values]
        for values in all_values:
            if not self._columns:
                self._columns = [*FIRST_COLUMNS, *(key for key in values if key not in FIRST_COLUMNS)]
                csv.writer(text, lineterminator="\n").writerow(self._columns)
            if differing := sorted(set(self._columns) ^ set(values)):
                raise ValueError(f"metrics: {', '.join(differing)} must be in every row or in none")
            csv.writer(text, lineterminator="\n").writerow([plain(values[key]) for key in self._columns])
        length = self._metrics_length()
        with writing(self._metrics_path):
            try:
                with self._metrics_path.open("a", encoding="utf-8", newline="") as file:
                    file.write(text.getvalue())
            except OSError:
                with contextlib.suppress(OSError):
                    os.truncate(self._metrics_path, length)  # half a row would spoil the file
                raise
        for watcher in self._watchers:
            for values in all_values:
                watcher.log(values)

    def _metrics_length(self) -> int:
        return self._metrics_path.stat().st_size if self._metrics_path.exists() else 0

    def save(self, state: Any, step: int, told: Any = None) -> None:
        """Write a checkpoint: a pytree of arrays, numbers and random keys, the steps done, and what JSON can hold."""
        clocks = {"seconds": self.seconds(), "cpu_seconds": self.cpu_seconds()}
        self._checkpoints.save(step, state, {"metrics_bytes": self._metrics_length(), **clocks, "told": told})
        self._last_save = time.monotonic()

    def is_due(self) -> bool:
        """Say whether the last checkpoint is a minute old."""
        return time.monotonic() - self._last_save >= SAVE_SECONDS

    def restore(self, template: Any) -> tuple[Any, int]:
        """Return the state and step of the last good checkpoint, bit for bit; without --resume the template and 0.

        `told` is then what was saved with it.
        Rows of metrics.csv that were written after the checkpoint are dropped: the run will write them again.

        Raises:
          UsageError: if no checkpoint is whole, or a leaf's shape or dtype is not the template's.
        """
        if not self.options.resume:
            try:
                self._watch()
            except errors.RunError:
                clear(self.folder)  # nothing half-written stays
                raise
            return template, 0
        state, step, metadata = self._checkpoints.restore(template)
        self.told = metadata.get("told")
        length = metadata["metrics_bytes"]
        if self._metrics_length() < length:
            raise UsageError(f"--resume: {self._metrics_path} has lost rows that checkpoint {step} knows of")
        if length:
            self._columns = self._read_columns()
        with writing(self._metrics_path):
            if self._metrics_path.exists():
                os.truncate(self._metrics_path, length)
            for name in ("summary.json", "rule.npz"):  # no longer true of the run
                (self.folder / name).unlink(missing_ok=True)
        self._start = time.monotonic() - metadata["seconds"]
        self._cpu_start = time.process_time() - metadata["cpu_seconds"]
        self._record["resumed"][-1]["step"] = step
        write_json(self._config_path, self._record)
        self._watch()
        return state, step

    def _read_columns(self) -> list[str]:
        with (
            contextlib.suppress(ValueError, csv.Error, StopIteration),
            self._metrics_path.open(newline="", encoding="utf-8") as file,
        ):
            if set(FIRST_COLUMNS) <= set(columns := next(csv.reader(file))):
                return columns
        raise UsageError(f"--resume: {self._metrics_path} is damaged: its first line does not name the columns")

    def last_saved(self, begun: Any) -> tuple[Any, int]:
        """Return state and step of the last checkpoint, or what was begun with and 0; nothing of the run changes."""
        if not has_checkpoint(self.folder):
            return begun, 0
        state, step, _ = self._checkpoints.restore(begun)
        return state, step

    def _watch(self) -> None:
        start = time.time() - self.seconds()
        self._watchers = watching.begin(self.options.log_to, self.folder, self._record, start)
        for watcher in self._watchers:
            self._on_exit.callback(watcher.close)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the final numbers to summary.json."""
        write_json(self.folder / "summary.json", summary)


def _settings(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return what must not change between the parts of a run, by its dotted name."""
    if not prefix:
        required = {key: record[key] for key in ("experiment", "name", "seeds", "learning_rates", "config")}
        record = required | {"teacher": record.get("teacher", "")}
    settings: dict[str, Any] = {}
    for key, value in record.items():
        nested = isinstance(value, Mapping)
        settings |= _settings(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return settings
