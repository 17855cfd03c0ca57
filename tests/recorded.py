"""What a run gives, compared with what was recorded: `tests.numbers`, of version 0.1.0, and `tests.unchanged`."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class Difference(NamedTuple):
    """How many numbers differ, if only in a bit; the largest difference, over the largest number of its array; and
    the name of that."""

    count: int
    worst: float
    where: str

    def __str__(self) -> str:
        return f"{self.count} numbers differ, {self.where} by {self.worst:.1e}" if self.count else "the same"


def compare(now: Mapping[str, np.ndarray], then: Mapping[str, np.ndarray]) -> Difference:
    """Compare arrays of the same names, those of before at least; texts that differ do so by infinity."""
    assert set(then) <= set(now), f"{sorted(set(then) - set(now))} are missing"
    count, worst, where = 0, 0.0, ""
    for name, x in then.items():
        y = np.asarray(now[name])
        assert x.shape == y.shape, f"{name} has the shape {y.shape}, expected {x.shape}"
        is_same = (x == y) | (np.isnan(x) & np.isnan(y)) if x.dtype.kind == "f" else x == y
        count += int(np.sum(~is_same))
        if x.dtype.kind == "U":
            relative = np.where(is_same, 0.0, np.inf)
        else:
            scale = max(float(np.nanmax(np.abs(x.astype(np.float64)), initial=0.0)), 1e-3)
            relative = np.where(is_same, 0.0, np.abs(x.astype(np.float64) - y) / scale)
        if relative.size and not relative.max() <= worst:  # also where it is nan
            worst, where = float(relative.max()), name
    return Difference(count, worst, where)
