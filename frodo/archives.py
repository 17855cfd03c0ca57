"""Archives of arrays (.npz), read without trust: what is wrong with one is found before any of its arrays is read.

The table of contents is checked first, then the first bytes of the members that are asked for: their dtypes, shapes and
sizes. An array is read piece by piece, no further than its header says. Pickle is never used.
"""

import contextlib
import io
import math
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from frodo import files, states

METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA)  # that unpack a piece at a time
MAX_NAME = 200  # characters of a member's name
MAX_TEXT = 2**20  # bytes of a member that holds JSON
HEADER_BYTES = 10_000  # at most, as of NumPy
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}  # by version


class Header(NamedTuple):
    """What an array is."""

    dtype: np.dtype
    shape: tuple[int, ...]


class Archive(Mapping[str, Header]):
    """The headers of an archive's arrays by name, and what reads the arrays; errors are those of `opened`."""

    def __init__(self, path: Path, file: zipfile.ZipFile):
        self.path, self._file = path, file
        self._members: dict[str, zipfile.ZipInfo] = {}
        for member in file.infolist():
            name = member.filename.removesuffix(".npy")
            if len(name) > MAX_NAME or not (name.isascii() and name.isprintable()):
                raise ValueError(f"a member's name is {name[:40]!r} …, expected at most {MAX_NAME} ASCII characters")
            if name in self._members:
                raise ValueError(f"{name!r} is there twice")
            if member.flag_bits & 1 or member.compress_type not in METHODS:
                raise ValueError(f"{name!r} is encrypted, or compressed in a way that is not known")
            self._members[name] = member

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __getitem__(self, name: str) -> Header:
        member = self._members[name]
        with _refusing(self.path):
            with self._file.open(member) as file:
                header, start = _header(name, file.read(HEADER_BYTES))
            if member.file_size != start + header.dtype.itemsize * math.prod(header.shape):
                raise ValueError(f"{name!r} has {member.file_size} bytes, but is {states.described(header)}")
            return header

    def read(self, name: str, max_bytes: int | None = None) -> np.ndarray:
        """Return an array of at most so many bytes."""
        self[name]  # refuses a header that is wrong
        size = self._members[name].file_size
        with _refusing(self.path):
            if max_bytes is not None and size > max_bytes:
                raise ValueError(f"{name!r} has {size} bytes, expected at most {max_bytes}")
            with self._file.open(self._members[name]) as file:
                return np.lib.format.read_array(file, allow_pickle=False)

    def read_all(
        self, expected: Mapping[str, Any], owner: str, others: tuple[str, ...] = (), are_finite: bool = True
    ) -> dict[str, np.ndarray]:
        """Return the arrays, which must be these, in this order; `others` may be there, too.

        Args:
          expected: name -> an array, or what stands for its shape and dtype.
          owner: whose arrays they are, in messages.
          others: members that are not read.
          are_finite: whether all their entries must be.
        Raises:
          ValueError: naming the first array that is missing, unknown, of another dtype or shape, or not finite.
        """
        for name in sorted({*expected, *self._members} - {*others}):
            if name not in self or name not in expected:
                raise ValueError(f"{self.path}: key {name!r} is {f'not one of {owner}' if name in self else 'missing'}")
            if (found := states.described(self[name])) != (wanted := states.described(expected[name])):
                raise ValueError(f"{self.path}: {name!r} is {found[:100]}, expected {wanted}")
        arrays = {name: self.read(name) for name in expected}
        for name, array in arrays.items() if are_finite else ():
            if not np.all(np.isfinite(array)):
                raise ValueError(f"{self.path}: {name!r} has entries that are not finite")
        return arrays

    def json(self, name: str) -> Any:
        """Return what a member of bytes says as JSON."""
        text = self.read(name, HEADER_BYTES + MAX_TEXT)
        with files.refusing(f"{self.path}: {name!r} is no JSON"):
            return files.parse_json(text.tobytes())


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Archive]:
    """Open an .npz file.

    Raises:
      FileNotFoundError: if there is none.
      ValueError: naming the file and, in one short line, the reason, for whatever else is wrong with it.
    """
    with contextlib.ExitStack() as on_exit:
        with _refusing(path):
            archive = Archive(path, on_exit.enter_context(zipfile.ZipFile(path)))
        yield archive


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read an .npz file of whatever arrays; errors are those of `opened`."""
    with opened(path) as archive:
        return {name: archive.read(name) for name in sorted(archive)}


def _refusing(path: Path) -> contextlib.AbstractContextManager[None]:
    return files.refusing(f"{path} is no .npz file of arrays")


def _header(name: str, data: bytes) -> tuple[Header, int]:
    """Read what NumPy writes before an array of numbers; return it, and how many bytes it has."""
    file = io.BytesIO(data)
    with files.refusing(f"{name!r} is not in NumPy's format, version 1 or 2"):
        read = _HEADERS[np.lib.format.read_magic(file)]
    with files.refusing(f"{name!r} is no array of numbers"):
        shape, _, dtype = read(file)
        if dtype.kind not in "biufc" or not all(0 <= size < 2**127 for size in shape):
            raise ValueError(f"{dtype}, {shape}")
    return Header(dtype, shape), file.tell()
