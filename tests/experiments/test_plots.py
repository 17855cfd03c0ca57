"""Figures and the report: intervals against SciPy, curves that are there, and what is said of runs that cannot be
shown."""

import json
import os
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import scipy.stats

from experiments import report
from experiments.files import DiskError, UsageError
from experiments.logs import Progress, quantity, table
from experiments.plots import Series, curves, mean_and_interval
from experiments.runs import Run, RunOptions
from tests.experiments.random_sum import Config

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


@pytest.fixture
def folder(tmp_path):
    """A run of two seeds whose return is the number of the row, plus 10 for the second seed."""
    return make_run(tmp_path / "run")


def make_run(folder, metric="return", seeds=(0, 1)):
    options = RunOptions(seeds=seeds, steps=20, out=str(folder))
    with Run(options, experiment="catch", name="a", config=Config()) as run:
        for i in range(20):
            counts = {"update": i, "env_steps": 5 * i, "env_frames": 5 * i}
            run.log([counts | {"seed": seed, metric: i + 10 * seed, "late": None if i < 10 else 1.0} for seed in seeds])
    return folder


def test_report_of_a_run(folder, tmp_path):
    rows = report.run([str(folder)], "return", str(tmp_path / "out.png"))
    assert rows == [
        {"run": str(folder), "seeds": 2, "env_steps": 95, "return": 22.5, "std": pytest.approx(10 / np.sqrt(2))}
    ]
    assert (tmp_path / "out.png").stat().st_size > 10_000
    assert report.run([str(folder)], "late", str(tmp_path / "out.png"))[0]["late"] == 1.0


def test_runs_that_differ_in_seeds_alone_are_one_curve(tmp_path):
    folders = [make_run(tmp_path / f"run/{seed}", seeds=(seed,)) for seed in (2, 0, 1)]
    folders += [make_run(tmp_path / "again", seeds=(0,))]
    pooled, again = report.pool([report.read(folder) for folder in folders])
    assert pooled.folder == tmp_path / "run"
    np.testing.assert_array_equal(report.curve(pooled, "return").y, np.arange(20) + [[20], [0], [10]])
    np.testing.assert_array_equal(report.final_values(pooled, "return"), [37.5, 17.5, 27.5])
    assert again.folder == folders[-1]
    row, _ = report.run(list(map(str, folders)), "return", str(tmp_path / "out.png"))
    assert (row["seeds"], row["return"], row["std"]) == (3, 27.5, 10)
    config = json.loads((folders[0] / "config.json").read_bytes())
    (folders[0] / "config.json").write_text(json.dumps(config | {"config": {"other": 1}}))
    other, pooled, again = report.pool([report.read(folder) for folder in folders])
    assert [len(set(one.columns["seed"])) for one in (other, pooled, again)] == [1, 2, 1]


def test_curve_holds_seeds_apart(folder):
    series = report.curve(report.read(folder), "return")
    np.testing.assert_array_equal(series.x, 5 * np.arange(20))
    np.testing.assert_array_equal(series.y, [np.arange(20), np.arange(20) + 10])


def test_seeds_with_other_log_points_are_interpolated():
    columns = {"seed": [0, 0, 0, 1, 1], "env_steps": [0, 10, 20, 0, 10], "return": [0, 1, 2, 4, 8]}
    results = report.Results(Path("a"), {}, {name: np.array(values, float) for name, values in columns.items()})
    np.testing.assert_array_equal(report.curve(results, "return").y, [[0, 1, 2], [4, 8, np.nan]])


def test_a_curve_goes_over_log_points_without_a_value():
    columns = {"seed": [0, 0, 0, 0], "env_steps": [0, 10, 20, 30], "return": [np.nan, 1, np.nan, 5]}
    results = report.Results(Path("a"), {}, {name: np.array(values, float) for name, values in columns.items()})
    np.testing.assert_array_equal(report.curve(results, "return").y, [[np.nan, 1, 3, 5]])


def test_report_names_what_is_missing(folder, tmp_path, capsys):
    with pytest.raises(UsageError, match="--metric=retrun .*did you mean return.*there are late, return, seconds"):
        report.run([str(folder)], "retrun", str(tmp_path / "out.png"))
    with pytest.raises(UsageError, match=f"{tmp_path / 'none'} holds no run"):
        report.run([str(folder), str(tmp_path / "none")], "return", str(tmp_path / "out.png"))
    with pytest.raises(UsageError, match="name the results folders"):
        report.run([], "return", str(tmp_path / "out.png"))
    assert not (tmp_path / "out.png").exists()
    other = make_run(tmp_path / "other", metric="error")
    assert len(report.run([str(folder), str(other)], "return", str(tmp_path / "out.png"))) == 1
    assert capsys.readouterr().err == f"{other} has no return: left out\n"
    (folder / "metrics.csv").write_text("seed,update\n0,x\n")
    with pytest.raises(UsageError, match="files cannot be read"):
        report.run([str(folder)], "return", str(tmp_path / "out.png"))


def test_report_as_a_program(folder, tmp_path):
    command = [sys.executable, "-m", "experiments.report", str(folder), f"--out={tmp_path / 'out.png'}"]
    result = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    header, row = result.stdout.splitlines()
    assert header.split() == ["run", "seeds", "env_steps", "return", "std"]
    assert row.split() == [str(folder), "2", "95", "22.5", "7.071"]
    assert (tmp_path / "out.png").exists()


def test_table_is_aligned():
    text = table([{"name": "a", "value": 1.0}, {"name": "longer", "value": -0.123456}])
    assert text.splitlines() == ["name      value", "a             1", "longer  -0.1235"]
    assert table([]) == ""


def test_progress_prints_at_most_every_30_seconds_and_at_the_end(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress = Progress(total=2_000_000)
    for step in range(0, 2_000_001, 20_000):
        progress.update(step, f"return {step / 1e6:.2f}")
        now[0] += 1.0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == " 30 %  600k of 2M steps  20k steps/s  0:01:10 left  return 0.60"
    assert [line[:5] for line in lines] == [" 30 %", " 60 %", " 90 %", "100 %"]
    assert lines[-1] == "100 %  2M of 2M steps  20k steps/s  return 2.00"


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (999.6, "1k"), (1234567, "1.23M"), (2e9, "2G"), (12.34, "12.3")]
)
def test_quantity(number, text):
    assert quantity(number) == text
