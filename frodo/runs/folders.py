"""The folder of a run: what options say of it, where it is, whether it holds one, and who may write it."""

import contextlib
import dataclasses
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from frodo.devices import is_first
from frodo.files import writing
from frodo.logs import note
from frodo.runs.checkpoints import saved_steps
from frodo.runs.errors import UsageError
from frodo.settings.earlier_versions import FORMAT

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
try:
    import msvcrt
except ImportError:  # elsewhere
    msvcrt = None  # type: ignore[assignment]

may_wait = False  # for the end of another process that writes a folder, as jobs do
_temporary: list[tempfile.TemporaryDirectory] = []  # which go when this process ends, unless it is killed

FILES = ("config.json", "metrics.csv", "summary.json", "last_iterations.npz", "rule.npz", "k_shot.csv")
PARTS = (*FILES, "checkpoints", "rules", "tensorboard", "wandb")


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Seeds, length and folder of a run, and what becomes of an earlier run there."""

    seeds: tuple[int, ...]
    steps: int  # environment steps of each seed
    out: str = ""  # the results folder; "" is results/<experiment>/<name>
    resume: bool = False
    overwrite: bool = False
    learning_rates: tuple[float, ...] = ()  # each seed runs once with each, in one program; () for the settings' own
    num_devices: int = 0  # over which each lifetime in JAX is split; 0 where whole lifetimes are shared out
    log_to: tuple[str, ...] = ()  # in addition to metrics.csv: `callbacks.WATCHERS`
    resume_out: str = ""  # the folder to resume, where it is not the run's own but that of several
    flag: str = "steps"  # of a program, that says how long
    # Of a call of the library the argument that says how long: what the folder holds goes on, and no flags are named.
    call: str = ""


def folder_of(options: RunOptions, *names: str) -> Path:
    """Return where results lie: results/<experiment>/<name>, unless options.out says otherwise."""
    return Path(options.out or Path("results", *names))


def of_process(options: RunOptions, *names: str) -> RunOptions:
    """Return the options for this of several processes: process 0 has the run's folder, others a temporary one.

    Raises:
      UsageError: as `check_free`, for a run that does not go on: before anything is compiled for it.
    """
    if not is_first():
        _temporary.append(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        how: dict[str, Any] = dict(resume=False, log_to=(), resume_out=str(folder_of(options, *names)))
        return dataclasses.replace(options, out=_temporary[-1].name, **how)
    if not options.resume:
        check_free(folder_of(options, *names), options)
    return options


def remove_temporary() -> None:
    """Remove the folders that are temporary, where a process ends without its exit handlers."""
    for folder in _temporary:
        folder.cleanup()


def check_out(path: Path, is_file: bool = False) -> None:
    """Raise a UsageError where no folder, or no file, of that name can be written."""
    try:
        found = next(one for one in (path, *path.parents) if one.exists())
    except OSError as error:
        raise UsageError(f"--out={path}: {error.strerror}") from None
    if found != path and not found.is_dir():
        raise UsageError(f"--out={path}: {found} is a file, in which there are no others")
    if found == path and found.is_dir() == is_file:
        is_now, expected = ("a folder", "a file") if is_file else ("a file", "a folder")
        raise UsageError(f"--out={path} is {is_now}: name {expected}")


def check_free(folder: Path, options: RunOptions) -> None:
    """Raise a UsageError where a run cannot begin because the folder holds one."""
    check_out(folder)
    if any((folder / name).exists() for name in PARTS) and not options.overwrite:
        raise UsageError(
            f"{folder} holds a run: --resume goes on with it, --overwrite replaces it, --out names another folder"
        )


def has_checkpoint(folder: Path) -> bool:
    """Say whether the run in a folder can go on."""
    return bool(saved_steps(folder / "checkpoints"))


def check_version(folder: Path, record: Mapping[str, Any]) -> None:
    """Raise a UsageError where config.json is of another version, which learned in another way, or of no run."""
    for name, kind in {"seeds": list, "steps": int, "learning_rates": list, "config": dict, "resumed": list}.items():
        if name in record and not isinstance(record[name], kind):
            raise UsageError(f"{folder / 'config.json'} is damaged: its {name} are no {kind.__name__}")
    if any(type(seed) is not int or not 0 <= seed < 2**32 for seed in record.get("seeds", ())):
        raise UsageError(f"{folder / 'config.json'} is damaged: its seeds are not whole numbers from 0 on")
    was_of_orbax = any(path.is_dir() and path.name.isdigit() for path in (folder / "checkpoints").glob("*"))
    if record.get("format") != FORMAT or was_of_orbax:
        raise UsageError(
            f"{folder} holds a run of another version, which alone can go on with it: a rule.npz in it is read by this "
            "version as it is"
        )


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder: a job (`may_wait`) waits for their end, else there is a UsageError.

    The system takes the lock back when the process ends, however it does.
    """
    descriptor = os.open(folder, os.O_RDONLY) if fcntl else os.open(folder / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        if not fcntl and not msvcrt:
            note(f"{folder} is not locked: this platform has no locks; let no other process write there")
        while not _is_locked(descriptor):
            if not may_wait:
                raise UsageError(f"{folder} is being written by another process: wait for its end")
            time.sleep(0.2)
        yield
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    """Lock an open folder, or on Windows a file, if no other process has; says whether it is so now."""
    try:
        if fcntl:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif msvcrt:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except (BlockingIOError, PermissionError):
        return False
    return True


def clear(folder: Path) -> None:
    """Remove the run in a folder, except for its figures."""
    for path in (folder / name for name in PARTS):
        with writing(path):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
