"""Which programs are one: by the directions of their gradients, or, as in the paper, by their outputs."""

import functools

import jax
import numpy as np

from meta.programs.evaluation import LISTS, assemble, fingerprint, outputs, registers_of
from meta.programs.language import LOSSES, Program
from meta.programs.targets import assembled
from meta.programs.targets import fingerprint as target_fingerprint

EQUIVALENCES = ("gradient", "output")  # what programs are told apart by
SAME = 1e-4  # fingerprints that differ by less are of one program, those that are less of one without a gradient


@functools.lru_cache(maxsize=10_000)  # most mutations change nodes that nothing depends on
def of_loss(program: Program, ends: str) -> dict[str, np.ndarray]:
    """Return the fingerprints of a compact loss, of EQUIVALENCES; "gradient" is about 0 without one."""
    instructions = assemble(LOSSES, program, registers_of(LISTS))
    return jax.device_get({"gradient": fingerprint(instructions, ends), "output": outputs(instructions, ends)})


@functools.lru_cache(maxsize=10_000)
def of_target(program: Program, ends: str) -> dict[str, np.ndarray]:
    """The same of a compact target, which has one fingerprint, and is told of ends in one way."""
    del ends
    found = jax.device_get(target_fingerprint(assembled(program)))
    return dict.fromkeys(EQUIVALENCES, found)


@functools.cache
def _direction(size: int) -> np.ndarray:
    direction = np.random.default_rng(0).normal(size=size)
    return direction / np.sum(np.abs(direction))


class Rows:
    """Vectors of one length, to look up which is the same as another.

    They are projected on a random direction: those that differ little in all entries differ little there, so that few
    need a look at all.
    """

    def __init__(self):
        self._rows: list[np.ndarray] = []
        self._projected = np.zeros(64)

    def append(self, row: np.ndarray) -> None:
        num = len(self._rows)
        if num == len(self._projected):
            self._projected = np.resize(self._projected, 2 * num)
        self._projected[num] = row @ _direction(len(row))
        self._rows.append(row)

    def same(self, row: np.ndarray) -> int | None:
        """Return the number of the nearest one, by the largest difference, of several the first; None from SAME on."""
        near = np.flatnonzero(np.abs(self._projected[: len(self._rows)] - row @ _direction(len(row))) < SAME)
        distance = [float(np.max(np.abs(self._rows[i] - row))) for i in near]
        return int(near[np.argmin(distance)]) if distance and min(distance) < SAME else None
