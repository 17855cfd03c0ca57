"""The last complete states of a run on disk, by Orbax: atomic, named by their step, restored bit for bit.

The leaves of the state lie end to end in one array of bytes, and their names, dtypes, shapes and a checksum as JSON in
another: two arrays take Orbax 15 ms however many leaves there are, random keys and empty arrays need no special case,
and damage that Orbax does not see (one flipped bit) is found.
"""

import contextlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging

from agents.lazy import lazily
from frodo import states
from frodo.files import writing
from frodo.logs import note
from frodo.runs.errors import UsageError

ocp: Any = lazily("orbax.checkpoint")  # which takes a sixth of the start of a program


class Checkpoints:
    """A folder with the last `keep` complete checkpoints of a run; a reader changes nothing in it."""

    def __init__(self, folder: Path, keep: int = 2, is_reader: bool = False):
        self.folder = folder.absolute()
        own = jax.process_index()  # of several processes each has its own run, and waits for no other
        with writing(folder), _quiet():
            options = ocp.CheckpointManagerOptions(
                max_to_keep=None if is_reader else keep,
                enable_async_checkpointing=False,
                cleanup_tmp_directories=not is_reader,
                read_only=is_reader,
                create=False,
                multiprocessing_options=ocp.options.MultiprocessingOptions(
                    primary_host=own, active_processes={own}, barrier_sync_key_prefix=f"process_{own}"
                ),
            )
            if not is_reader:
                self.folder.mkdir(parents=True, exist_ok=True)
            handler = ocp.StandardCheckpointHandler()  # else Orbax takes an empty folder's word for how all are made
            self._manager = ocp.CheckpointManager(self.folder, options=options, item_handlers=handler)

    def save(self, step: int, state: Any, metadata: dict) -> None:
        """Write a checkpoint; the one of the same step, if there is one, stays.

        Args:
          step: number of the checkpoint, larger than those before.
          state: pytree of arrays, numbers and random keys.
          metadata: whatever JSON can hold.
        Raises:
          DiskError: naming the folder; earlier checkpoints are then as they were.
        """
        if step == self._manager.latest_step():
            return
        leaves = states.leaves(state)
        arrays = [states.as_array(leaf) for leaf in leaves.values()]
        for (name, leaf), array in zip(leaves.items(), arrays, strict=True):
            if array.dtype.hasobject:
                raise TypeError(f"state{name} is a {type(leaf).__name__}, which a checkpoint cannot hold")
        data = b"".join(array.tobytes() for array in arrays) or b"\0"  # Orbax saves nothing that is empty
        index = {"step": step, "leaves": _describe(leaves), "crc32": zlib.crc32(data), "metadata": metadata}
        parts = {"state": data, "index": json.dumps(index).encode()}
        item = {name: np.frombuffer(part, np.uint8) for name, part in parts.items()}
        with writing(self.folder / str(step)), _quiet():
            if not self._manager.save(step, args=ocp.args.StandardSave(item)):
                raise ValueError(f"checkpoint {step} comes after {self._manager.latest_step()} in {self.folder}")

    def restore(self, template: Any) -> tuple[Any, int, dict]:
        """Read the last good checkpoint; damaged ones that are newer are named on stderr and, but by a reader, deleted.

        Args:
          template: a state of the same structure, shapes and dtypes; devices and shardings are taken from it.
        Returns:
          state, step, metadata.
        Raises:
          UsageError: if there is none, none is whole, or a leaf differs from the template: the first one is named.
        """
        damaged: list[tuple[int, str]] = []
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                data, index = self.read(step)
            except Exception as error:  # noqa: BLE001 - whatever Orbax, tensorstore or JSON make of damaged files
                why = (str(error).splitlines() or [type(error).__name__])[0][:120]
                damaged.append((step, f"checkpoint {self.folder / str(step)} is damaged ({why})"))
                continue
            state = _unpack(data, index["leaves"], template, self.folder / str(step))
            for newer, reason in damaged:
                note(f"{reason}: going on from the one before, {step}")
                with writing(self.folder / str(newer)), _quiet():
                    self._manager.delete(newer)
            return state, step, index["metadata"]
        none = f"{self.folder} holds no checkpoint: --overwrite begins the run anew"
        raise UsageError("; ".join(reason for _, reason in damaged) or none)

    def read(self, step: int) -> tuple[bytes, dict]:
        """Return the bytes of a checkpoint's state, and what says how they lie; ValueError if they are damaged."""
        with _quiet():
            restored = self._manager.restore(step, args=ocp.args.StandardRestore())
        data, text = (np.asarray(restored[name]).tobytes() for name in ("state", "index"))
        index = json.loads(text)
        if zlib.crc32(data) != index["crc32"]:
            raise ValueError("its checksum is wrong")
        if (found := index.get("step", step)) != step:  # earlier versions wrote none
            raise ValueError(f"it is that of step {found}")
        return data, index


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Orbax from logging: what goes wrong is raised anyway."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.FATAL)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def _describe(leaves: dict[str, Any]) -> dict[str, str]:
    """For each leaf its dtype and shape, such as "float32[3, 4]"."""
    dtype_of = lambda leaf: leaf.dtype if states.is_key(leaf) else states.as_array(leaf).dtype
    return {name: f"{dtype_of(leaf)}{list(np.shape(leaf))}" for name, leaf in leaves.items()}


def _unpack(data: bytes, stored: dict[str, str], template: Any, path: Path) -> Any:
    leaves = states.leaves(template)
    expected = _describe(leaves)
    for name in stored | expected:
        was, now = stored.get(name, "nothing"), expected.get(name, "nothing")
        if was != now:
            raise UsageError(f"{path} does not fit this program: state{name} is {was} there and {now} here")
    found, offset = {}, 0
    for name in stored:
        array = states.as_array(leaves[name])
        value = np.frombuffer(data, array.dtype, array.size, offset).reshape(array.shape).copy()
        found[name] = states.like(leaves[name], value)
        offset += array.nbytes
    return jax.tree.unflatten(jax.tree.structure(template), [found[name] for name in leaves])
