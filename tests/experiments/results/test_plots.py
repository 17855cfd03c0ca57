"""Figures: intervals against SciPy, curves that are there, and files that are whole."""

import os

import matplotlib.image
import numpy as np
import pytest
import scipy.stats

from experiments.results.plots import Series, curves, mean_and_interval
from frodo.files import DiskError

LABELS = {"title": "Catch", "xlabel": "environment steps", "ylabel": "return"}


def test_interval_is_that_of_student():
    y = np.random.default_rng(0).normal(size=(5, 4))
    y[0, 1] = y[:4, 2] = np.nan
    mean, half_width = mean_and_interval(y)
    for i, values in ((0, y[:, 0]), (1, y[1:, 1]), (3, y[:, 3])):
        low, high = scipy.stats.t.interval(0.95, len(values) - 1, values.mean(), scipy.stats.sem(values))
        np.testing.assert_allclose([mean[i] - half_width[i], mean[i] + half_width[i]], [low, high])
    assert mean[2] == y[4, 2]
    assert np.isnan(half_width[2])


def test_a_figure_shows_every_series_and_the_inset(tmp_path):
    x = np.arange(0, 1e6, 1e4)
    series = [Series(f"rule {i}", x, np.sin(x / 1e5) + i + np.arange(3)[:, None] / 5) for i in range(8)]
    curves(
        tmp_path / "all.png",
        series,
        **LABELS,
        hlines={"best": 3.0},
        inset=[one._replace(x=x[80:], y=one.y[:, 80:]) for one in series],
    )
    curves(tmp_path / "plain.png", series, **LABELS, hlines={"best": 3.0})
    image, plain = (matplotlib.image.imread(tmp_path / f"{name}.png")[..., :3] for name in ("all", "plain"))
    colours = {tuple(np.round(colour * 255).astype(int)) for colour in image.reshape(-1, 3)}
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00), (0x56, 0xB4, 0xE9)} <= colours
    assert image.shape[0] > 700
    height, width, _ = image.shape
    differs = np.argwhere((image != plain).any(axis=-1)) / (height, width)
    assert differs[:, 0].max() < 0.5 < differs[:, 1].max()  # the inset lies above and to the right
    assert differs[:, 1].min() > 0.4


@pytest.mark.parametrize("y", [[0.0, 0.0], [0.0, 0.1], [np.nan, 0.0]])
def test_zeros_have_no_place_on_a_logarithmic_axis_and_end_no_program(y, tmp_path):
    curves(tmp_path / "figure.png", [Series("a", np.arange(2.0), np.array([y]))], **LABELS, log=True)
    assert matplotlib.image.imread(tmp_path / "figure.png").shape[0] > 100


def test_a_figure_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    x = np.arange(3.0)
    curves(tmp_path / "figure.png", [Series("a", x, x[None])], **LABELS)
    before = (tmp_path / "figure.png").read_bytes()

    def refuse(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(DiskError, match="figure.png: No space left on device"):
        curves(tmp_path / "figure.png", [Series("b", x, 2 * x[None])], **LABELS)
    assert (tmp_path / "figure.png").read_bytes() == before
