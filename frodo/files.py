"""Files that are written whole or not at all, and settings that are read without trust in what they hold."""

import contextlib
import csv
import dataclasses
import io
import json
import os
import reprlib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

MAX_REASON = 150  # characters of what is said of a file
MAX_ENTRIES = 10_000  # of a tuple in settings that are read, and of a list with ranges, such as 0-9
MAX_TEXT = 10_000  # characters of a text in settings that are read


class DiskError(OSError):
    """The disk refused a write: one line that names the path and the reason."""


def cache_folder() -> Path:
    """Return the folder of this package in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "frodo-rl"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the operating system's refusal to write into a DiskError, one line that names the path and the reason."""
    try:
        yield
    except DiskError:
        raise  # which names the very file
    except OSError as error:
        raise DiskError(f"cannot write {path}: {error.strerror or error}") from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file whole or not at all: the one that is given takes its place at the end of the block.

    An earlier one stays as it is when the disk refuses, or the block raises an error.

    Raises:
      DiskError: naming the path and the operating system's reason.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()


def write(path: Path, data: bytes) -> None:
    """Write a file, as `replacing` does."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an .npz file, as `replacing` does."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds names and values.

    Raises:
      FileNotFoundError, NotADirectoryError: if there is none.
      ValueError: naming the file and the reason, for whatever else is wrong with it.
    """
    try:
        value = parse_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__} as JSON, expected names and values")
    return value


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows of numbers and texts as CSV, as `write` does. The first row's keys are the header, if there is one."""
    write(path, csv_of(list(rows[0]), rows).encode() if rows else b"")


def csv_of(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], has_header: bool = True) -> str:
    """Return rows of numbers and texts as CSV; a ValueError where a row has other columns."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    if has_header:
        writer.writeheader()
    writer.writerows(plain(rows))
    return text.getvalue()


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


def flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return what is in nested mappings by its dotted name."""
    settings: dict[str, Any] = {}
    for key, value in record.items():
        nested = isinstance(value, Mapping)
        settings |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return settings


def as_written(value: Any) -> Any:
    """Return a value as it is read back from a file of `write_json`; what JSON does not know as text."""
    return json.loads(json.dumps(plain(value), default=str))


def parse_json(data: bytes) -> Any:
    """Return what JSON says; a ValueError for nan and infinity, which JSON does not know, too, and for deep nests."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no JSON")

    try:
        return json.loads(data, parse_constant=refuse)
    except RecursionError:
        raise ValueError("its brackets are too deep") from None


@contextlib.contextmanager
def refusing(reason: str) -> Iterator[None]:
    """Turn whatever the content of a file makes the block raise into a ValueError of one short line.

    Raises:
      FileNotFoundError: if the block does.
      ValueError: the reason, and what the error says.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:  # of zipfile, NumPy, json, JAX: they have no common type for what is wrong with a file
        text = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{reason}: {text if len(text) <= MAX_REASON else text[:MAX_REASON] + ' …'}") from None


def with_new_settings(kind: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Add the defaults of settings that a dataclass of that kind had not yet when its plain settings were written.

    Raises:
      KeyError, TypeError, ValueError: where they are of no such dataclass.
    """
    return as_written(dataclasses.asdict(from_plain(kind, config)))


def from_plain(kind: Any, value: Any, name: str = "") -> Any:
    """Turn `plain(x)` back into x, of a type that settings have: a dataclass, a NamedTuple, or a field's type in one.

    A dataclass may have a `from_plain` of its own: value, this function -> itself.

    Raises:
      ValueError: naming the first value that has another type than the hint, or that nothing has a place for.
      TypeError: where a field without a default is missing.
    """
    own, args = typing.get_origin(kind), typing.get_args(kind)
    if hasattr(kind, "from_plain"):
        return kind.from_plain(_checked(isinstance(value, Mapping), "settings by name", value, name), from_plain)
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        hints = typing.get_type_hints(kind)
        _checked(isinstance(value, Mapping), "settings by name", value, name)
        if unknown := [key for key in value if key not in hints]:
            raise ValueError(f"{reprlib.repr(unknown[0])} is no setting of {name or kind.__name__}")
        before = f"{name}." if name else ""
        return kind(**{key: from_plain(hints[key], x, f"{before}{key}") for key, x in value.items()})
    if own in (typing.Union, types.UnionType):  # of a type and None
        return None if value is None and types.NoneType in args else from_plain(args[0], value, name)
    if own is tuple:
        is_list = isinstance(value, (list, tuple)) and len(value) <= MAX_ENTRIES
        _checked(is_list, f"at most {MAX_ENTRIES} entries", value, name)
        entries = args[:1] * len(value) if args[1:] == (...,) else args
        _checked(len(value) == len(entries), f"{len(entries)} entries", value, name)
        return tuple(from_plain(hint, x, name) for hint, x in zip(entries, value, strict=True))
    if own is typing.Literal:
        return _checked(value in args, f"one of {', '.join(map(str, args))}", value, name)
    is_int = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    if kind is float:
        is_float = is_int or isinstance(value, float) or value in ("inf", "-inf")  # JSON has no number for infinity
        return float(_checked(is_float, "a number", value, name))
    if kind is int:
        return _checked(is_int, "a whole number", value, name)
    if kind is str:
        is_text = isinstance(value, str) and len(value) <= MAX_TEXT
        return _checked(is_text, f"a text of at most {MAX_TEXT} characters", value, name)
    return _checked(isinstance(value, bool), "true or false", value, name) if kind is bool else value


def _checked(is_right: bool, expected: str, value: Any, name: str) -> Any:
    if not is_right:
        raise ValueError(f"{name or 'the value'} is {reprlib.repr(value)}, expected {expected}")
    return value
