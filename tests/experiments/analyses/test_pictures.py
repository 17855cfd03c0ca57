"""Observations as pictures."""

import numpy as np

from experiments.analyses.pictures import pictures


def test_observations_become_pictures():
    frames = np.random.default_rng(0).integers(0, 256, (2, 4, 7, 5), np.uint8)
    shown = pictures(frames)
    assert shown.shape == (2, 7, 5, 3)
    np.testing.assert_allclose(shown[..., 1] * 255, frames[:, -1], atol=1e-4)  # the newest
    np.testing.assert_allclose(pictures(frames[:, :3])[1, 2, 3] * 255, frames[1, :3, 2, 3], atol=1e-4)
    np.testing.assert_array_equal(pictures(np.eye(3)[None] - 2)[0, ..., 0], np.eye(3))
    planes = np.zeros((1, 5, 9, 9), np.float32)
    planes[0, 0, 4, 4] = planes[0, 1, 0] = 1
    shown = pictures(planes)[0]
    np.testing.assert_allclose(shown[4, 4] * 255, (0x00, 0x72, 0xB2))
    np.testing.assert_allclose(shown[[0, 8]].mean(axis=(1, 2)), [0.4, 1])
    assert pictures(np.zeros((2, 4))) is pictures(np.zeros((2, 1, 4))) is None
