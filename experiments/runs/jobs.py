"""Runs as processes of their own, which an executor has; finished ones are left out."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, NamedTuple

from frodo import files
from frodo.logs import note
from frodo.runs import folders, workers
from frodo.runs.errors import RunError, UsageError

IS_JOB = "FRODO_IS_JOB"  # says to a process that its standard input ends with the one that started it
ENVIRONMENT = {IS_JOB: "1", "PYTHONIOENCODING": "utf-8"}  # of a job, whose messages are in log.txt


class Job(NamedTuple):
    """A run in a process of its own, done when <folder>/summary.json is there; messages are in <folder>/log.txt."""

    name: str
    folder: Path
    module: str
    arguments: tuple[str, ...]

    @property
    def is_finished(self) -> bool:
        return not failure(self.folder)


def own_arguments() -> list[str]:
    """Return this program's arguments for its jobs: all but those that say what becomes of the folder."""
    return [argument for argument in sys.argv[1:] if argument not in ("--resume", "--overwrite")]


def run_all(jobs: Sequence[Job], executor: Executor, out: Path) -> None:
    """Run the jobs that are not finished on an executor (`frodo.runs.workers`), and say how far they are.

    After a signal to stop the running ones save and stop, then it raises KeyboardInterrupt.

    Raises:
      RunError: if a worker has another version of the package, or does not see the folders.
    """
    waiting = {job.name: job for job in jobs if not job.is_finished}
    for job in waiting.values():
        with files.writing(job.folder):
            job.folder.mkdir(parents=True, exist_ok=True)
            (job.folder / "log.txt").unlink(missing_ok=True)  # which says that it runs
    start, total, failed = time.monotonic(), len(waiting), list[str]()
    note(f"{len(jobs)} runs, {len(jobs) - total} of them finished")

    def on_done(name: str, future: Future) -> None:
        job, how = waiting.pop(name), ""
        try:
            how = f" in {workers.result_of(future):.0f} s"
        except Exception as error:
            if not workers.is_lost(error):
                raise
            _log(job.folder, f"it was lost with its worker, again and again: {error}")
        if why := failure(job.folder):
            failed.append(name)
        num_done = total - len(waiting)
        num_running = sum((one.folder / "log.txt").exists() for one in waiting.values())
        left = (time.monotonic() - start) / num_done * len(waiting)
        counts = f"{num_done - len(failed)} done, {num_running} running, {len(failed)} failed, of {total}"
        note(f"{name}: {f'failed: {why}' if why else 'done'}{how}; {counts}; about {left / 60:.0f} min left")

    try:
        workers.run_all(executor, run, {name: (job, os.getcwd()) for name, job in waiting.items()}, on_done)
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):  # a terminal that is closed
            note(f"stopped: go on with the same settings and --resume --out={out}")
        raise


def run(job: Job, folder: str) -> float:
    """Run a job in a process of its own, on the cores of this thread; returns the seconds that it took.

    Args:
      folder: that the process works in.
    Raises:
      RunError: if the folders are not there.
    """
    for path in (Path(folder), folder / job.folder):
        if not path.is_dir():
            raise RunError(
                f"worker {workers.name_of_worker()} does not see the folder {path}: all machines must share it"
            )
    job, start = job._replace(folder=folder / job.folder), time.monotonic()
    if job.is_finished:  # by a worker that was lost before it could say so
        return 0.0
    with files.writing(job.folder), (job.folder / "log.txt").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", job.module, *job.arguments],
            cwd=folder,
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for this process
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # the same on Windows
        )
    try:
        while process.poll() is None and not workers.is_cancelled():
            time.sleep(0.2)
    finally:
        _ask_to_stop(process)
        process.wait()
    if process.returncode < 0 and not workers.is_cancelled():
        _log(job.folder, f"it was ended by {signal.Signals(-process.returncode).name}")
    return time.monotonic() - start


def _log(folder: Path, error: str) -> None:
    with files.writing(folder), (folder / "log.txt").open("a", encoding="utf-8") as log:
        log.write(f"\nerror: {error}\n")


def _ask_to_stop(process: subprocess.Popen) -> None:
    """Let a job save and stop; on Windows, where terminate() would kill it, by the end of its standard input."""
    if sys.platform == "win32" and process.stdin:
        process.stdin.close()
    else:
        process.terminate()


def stop_with_parent() -> None:
    """Stop this process, a job, as after SIGTERM when the process that started it is killed."""

    def wait_for_its_end() -> None:
        os.read(0, 1)  # nothing is ever written there
        if sys.platform == "win32":  # where os.kill would end the process at once
            signal.raise_signal(signal.SIGTERM)
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    folders.may_wait = bool(os.environ.pop(IS_JOB, ""))
    if folders.may_wait:
        threading.Thread(target=wait_for_its_end, daemon=True).start()


def failure(folder: Path) -> str:
    """Return why a run has no results, from what its process said last."""
    if (folder / "summary.json").exists():
        return ""
    with contextlib.suppress(OSError):
        log = (folder / "log.txt").read_text(encoding="utf-8", errors="replace")
        lines = [line for line in log.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("error: ")]
        return (errors or lines or ["it said nothing"])[-1].removeprefix("error: ")
    return "it was not run"


def _given(value: Any) -> Any:
    """Leave out what a setting does not give: an earlier version may not have known of it."""
    return {key: x for key, x in value.items() if x not in ("", None)} if isinstance(value, Mapping) else value


def _is_part(was: Any, now: Any) -> bool:
    """Say whether a list or mapping has all entries of an earlier one, which may be None."""
    if isinstance(was, list) and isinstance(now, list):
        return all(entry in now for entry in was)
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        return all(key in now and now[key] == value for key, value in was.items())
    return not was


def open_folder(
    out: Path,
    kind: str,
    record: Mapping[str, Any],
    results: Sequence[str],
    *,
    resume: bool,
    overwrite: bool,
    growing: Sequence[str] = (),
) -> None:
    """Write <kind>.json, or check that what goes on is the same, or has more in it.

    Args:
      out: the folder.
      kind: what is in it, as "comparison".
      record: the settings that two of a kind share if they are the same.
      results: patterns of what --overwrite removes.
      growing: names of lists and mappings in the record that may have further entries now.
    Raises:
      UsageError: if the folder holds one and it was not said what is to become of it, or it is another one.
    """
    path = out / f"{kind}.json"
    if not path.exists() or overwrite:
        if resume:
            raise UsageError(f"--resume: {out} holds no {kind}")
        if overwrite:
            for old in [found for pattern in results for found in out.glob(pattern)]:
                with files.writing(old):
                    shutil.rmtree(old) if old.is_dir() else old.unlink()
        files.write_json(path, record)
        return
    if not resume:
        raise UsageError(f"{out} holds a {kind}: --resume goes on with it, --overwrite replaces it")
    earlier = files.read_json(path)
    for key, now in files.as_written(record).items():
        was = earlier.get(key)
        if _given(was) != _given(now) and not (key in growing and _is_part(was, now)):
            raise UsageError(f"--resume: {key} was {was} in {out} and is {now} now")
    files.write_json(path, record)
