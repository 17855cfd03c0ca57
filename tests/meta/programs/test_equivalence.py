"""What counts as the same program, among many."""

import numpy as np

from meta.programs.equivalence import SAME, Rows


def test_what_is_the_same_is_found_among_many():
    rng = np.random.default_rng(0)
    known, rows = Rows(), rng.normal(size=(200, 30)).astype(np.float32)
    assert known.same(rows[0]) is None
    for row in rows:
        known.append(row)
    for i in (0, 63, 64, 199):
        nudge = 0.9 * SAME * rng.choice([-1, 1], 30)
        assert known.same(rows[i] + nudge) == i and known.same(rows[i] + 1.2 * nudge) is None
    known.append(rows[5] + 0.5 * SAME)
    assert known.same(rows[5]) == 5 and known.same(rows[5] + 0.4 * SAME) == 200
