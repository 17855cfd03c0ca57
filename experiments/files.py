"""Errors that a person can act on, and files that are written whole or not at all."""

import contextlib
import io
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np


class UsageError(ValueError):
    """What a person asked for cannot be done: shown as one line, exit code 2."""


class DiskError(RuntimeError):
    """The disk refused a write: shown as one line, exit code 1."""


class RunError(RuntimeError):
    """A run cannot go on, through no bug: shown as one line, exit code 1."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the operating system's refusal to write into one line that names the path and the reason.

    Raises:
      DiskError: for an OSError, and for a tensorstore error that carries the operating system's error code.
    """
    try:
        yield
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
    """Write an .npz file as `write` does."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    write(path, buffer.getvalue())
