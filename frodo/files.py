"""Files that are written whole or not at all, and read without trust in what they hold."""

import contextlib
import csv
import dataclasses
import io
import json
import os
import re
import typing
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np


class DiskError(OSError):
    """The disk refused a write: one line that names the path and the reason."""


def cache_folder() -> Path:
    """Return the folder of this package in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "frodo-rl"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the operating system's refusal to write into one line that names the path and the reason.

    Raises:
      DiskError: for an OSError, and for a tensorstore error that carries the operating system's error code.
    """
    try:
        yield
    except DiskError:
        raise  # which names the very file
    except Exception as error:
        code = re.search(r"os_error_code='(\d+)'", str(error))
        if not isinstance(error, OSError) and not code:
            raise
        reason = os.strerror(int(code[1])) if code else getattr(error, "strerror", None) or str(error)
        raise DiskError(f"cannot write {path}: {reason}") from error


def write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: an earlier one stays as it is when the disk refuses.

    Raises:
      DiskError: naming the path and the operating system's reason.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(data)
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an .npz file, as `write` does."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    write(path, buffer.getvalue())


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read an .npz file, never with pickle.

    Raises:
      FileNotFoundError: if there is none.
      ValueError: naming the file and the reason, for whatever else is wrong with it.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: np.asarray(file[key]) for key in sorted(file)}
    except FileNotFoundError:
        raise
    except (OSError, ValueError, EOFError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is no .npz file of arrays: {' '.join(str(error).split())}") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds names and values.

    Raises:
      FileNotFoundError, NotADirectoryError: if there is none.
      ValueError: naming the file and the reason, for whatever else is wrong with it.
    """
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__} as JSON, expected names and values")
    return value


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows of numbers and texts as CSV, as `write` does. The first row's keys are the header, if there is one."""
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: plain(value) for key, value in row.items()} for row in rows)
    write(path, text.getvalue().encode())


def write_json(path: Path, value: Any) -> None:
    """Write `plain(value)` as JSON, as `write` does."""
    write(path, (json.dumps(plain(value), indent=2) + "\n").encode())


def plain(value: Any) -> Any:
    """Return what JSON and CSV can hold: lists for arrays, None for nan, and no more digits than a float32 has."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, (np.generic, np.ndarray, jax.Array)):
        return plain(np.asarray(value).tolist())
    if isinstance(value, float):
        if not np.isfinite(value):
            return None if np.isnan(value) else str(value)  # which JSON has no numbers for
        with np.errstate(over="ignore"):
            short = np.float32(value)
        return float(str(short)) if float(short) == value else value
    return value


def as_written(value: Any) -> Any:
    """Return a value as it is read back from a file of `write_json`; what JSON does not know as text."""
    return json.loads(json.dumps(plain(value), default=str))


def with_new_settings(kind: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Add the defaults of settings that a dataclass of that kind had not yet when its plain settings were written.

    Raises:
      KeyError, TypeError, ValueError: where they are of no such dataclass.
    """
    return as_written(dataclasses.asdict(from_plain(kind, config)))


def from_plain(kind: Any, value: Any) -> Any:
    """Turn `plain(x)` back into x, a dataclass of that kind. A dataclass may have a `from_plain` of its own."""
    if hasattr(kind, "from_plain"):
        return kind.from_plain(value, from_plain)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{key: from_plain(hints[key], entry) for key, entry in value.items()})  # type: ignore[operator]
    if typing.get_origin(kind) is tuple:
        return tuple(value)
    return float(value) if kind is float else value  # JSON has no infinity: it is written as text
