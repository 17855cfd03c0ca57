"""Files are written whole or not at all, and what cannot be read is named."""

import errno
import os

import numpy as np
import pytest

from frodo.archives import read_arrays
from frodo.files import DiskError, write, write_arrays, writing


def test_a_full_disk_leaves_earlier_files(tmp_path, monkeypatch):
    write(tmp_path / "file", b"before")

    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(DiskError, match=f"cannot write {tmp_path}/file: No space left on device"):
        write(tmp_path / "file", b"after")
    assert (tmp_path / "file").read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_innermost_file_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match=f"^cannot write {tmp_path}/file/new: File exists$"):
        with writing(tmp_path):
            write(tmp_path / "file" / "new", b"")


def test_what_is_no_file_of_arrays_is_named(tmp_path):
    write_arrays(tmp_path / "arrays.npz", {"b": np.arange(3), "a": np.zeros((2, 0))})
    arrays = read_arrays(tmp_path / "arrays.npz")
    assert list(arrays) == ["a", "b"] and arrays["a"].shape == (2, 0) and (arrays["b"] == np.arange(3)).all()
    (tmp_path / "half.npz").write_bytes(b"PK half of it")
    with pytest.raises(ValueError, match="half.npz is no .npz file of arrays: "):
        read_arrays(tmp_path / "half.npz")
    with pytest.raises(FileNotFoundError):
        read_arrays(tmp_path / "none.npz")
