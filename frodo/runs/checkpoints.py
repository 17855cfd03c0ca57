"""The last complete states of a run on disk: an archive each, <step>.npz, written whole or not at all, bit for bit.

An archive has the bytes of each leaf, and as JSON the leaves' names, dtypes and shapes: so a leaf may have any dtype.
Its own checksums find damage, if only of one bit.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from frodo import archives, states
from frodo.files import write_arrays, writing
from frodo.logs import note
from frodo.runs.errors import UsageError, caused_by

INDEX = "index.json"


def saved_steps(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in a folder, the last one last; of some the files may be damaged."""
    names = (re.fullmatch("(0|[1-9][0-9]*)[.]npz", path.name) for path in folder.glob("*.npz") if path.is_file())
    return sorted(int(name[1]) for name in names if name)


class Checkpoints:
    """A folder with the last `keep` complete checkpoints of a run; a reader changes nothing in it."""

    def __init__(self, folder: Path, keep: int = 2, is_reader: bool = False):
        self.folder, self._keep, self._is_reader = folder.absolute(), keep, is_reader
        if not is_reader:
            with writing(folder):
                self.folder.mkdir(parents=True, exist_ok=True)
                for half_written in self.folder.glob(".*.tmp"):
                    half_written.unlink()

    def _path(self, step: int) -> Path:
        return self.folder / f"{step}.npz"

    def save(self, step: int, state: Any, metadata: dict) -> None:
        """Write a checkpoint; the one of the same step, if there is one, stays.

        Args:
          step: number of the checkpoint, larger than those before.
          state: pytree of arrays, numbers and random keys.
          metadata: whatever JSON can hold.
        Raises:
          DiskError: naming the file; earlier checkpoints are then as they were.
        """
        *_, latest = saved_steps(self.folder) or [-1]
        if step == latest:
            return
        if step < latest:
            raise ValueError(f"checkpoint {step} comes after {latest} in {self.folder}")
        leaves = states.leaves(state)
        arrays = {name: np.ascontiguousarray(states.as_array(leaf)) for name, leaf in leaves.items()}
        for name, array in arrays.items():
            if array.dtype.hasobject:
                raise TypeError(f"state{name} is a {type(leaves[name]).__name__}, which a checkpoint cannot hold")
        described = {name: states.described(leaf) for name, leaf in leaves.items()}
        index = json.dumps({"step": step, "leaves": described, "metadata": metadata}).encode()
        data = {str(i): array.reshape(-1).view(np.uint8) for i, array in enumerate(arrays.values())}
        write_arrays(self._path(step), data | {INDEX: np.frombuffer(index, np.uint8)})
        for old in saved_steps(self.folder)[: -self._keep]:
            self._delete(old)

    def restore(self, template: Any) -> tuple[Any, int, dict]:
        """Read the last good checkpoint; damaged ones that are newer are named on stderr and, but by a reader, deleted.

        Args:
          template: a state of the same structure, shapes and dtypes; devices and shardings are taken from it.
        Returns:
          state, step, metadata.
        Raises:
          UsageError: if there is none, none is whole, or a leaf differs from the template: the first one is named.
        """
        damaged: dict[int, str] = {}
        for step in reversed(saved_steps(self.folder)):
            path = self._path(step)
            try:
                leaves, metadata = self.read(step)
            except Exception as error:  # noqa: BLE001 - whatever damaged files make of JSON, names and shapes
                why = (str(error).splitlines() or [type(error).__name__])[0].removeprefix(f"{path} is ")[:120]
                damaged[step] = f"checkpoint {path} is damaged ({why})"
                continue
            with caused_by(f"{path} does not fit this program"):
                state = states.restored(template, leaves, "state")
            for newer, reason in damaged.items():
                note(f"{reason}: going on from the one before, {step}")
                if not self._is_reader:
                    self._delete(newer)
            return state, step, metadata
        none = f"{self.folder} holds no checkpoint: --overwrite begins the run anew"
        raise UsageError("; ".join(damaged.values()) or none)

    def read(self, step: int) -> tuple[dict[str, np.ndarray], dict]:
        """Return the leaves of a checkpoint by name, and its metadata; errors are of many types if it is damaged."""
        with archives.opened(self._path(step)) as archive:
            index = json.loads(archive.read(INDEX).tobytes())
            if index["step"] != step:
                raise ValueError(f"it is that of step {index['step']}")
            found = {}
            for i, (name, described) in enumerate(index["leaves"].items()):
                dtype, shape = described.removesuffix("]").split("[")
                sizes = [int(size) for size in shape.split(", ") if size]
                found[name] = archive.read(str(i)).view(dtype).reshape(sizes)
            return found, index["metadata"]

    def _delete(self, step: int) -> None:
        with writing(self._path(step)):
            self._path(step).unlink(missing_ok=True)
