"""The report: a table and a figure of runs, and what is said of runs that cannot be shown."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments import report
from frodo.runs.errors import UsageError
from tests.experiments.results.made_run import make_run


@pytest.fixture
def folder(tmp_path):
    """A run of two seeds whose return is the number of the row, plus 10 for the second seed."""
    return make_run(tmp_path / "run")


def test_report_of_a_run(folder, tmp_path):
    rows = report.run([str(folder)], "return", str(tmp_path / "out.png"))
    assert rows == [
        {"run": str(folder), "seeds": 2, "env_steps": 95, "return": 22.5, "std": pytest.approx(10 / np.sqrt(2))}
    ]
    assert (tmp_path / "out.png").stat().st_size > 10_000
    assert report.run([str(folder)], "late", str(tmp_path / "out.png"))[0]["late"] == 1.0


def test_steps_to_a_value_as_a_mean_over_a_twentieth_of_the_run(folder, tmp_path):
    later = make_run(tmp_path / "later", seeds=(1, 0))  # by 20 steps
    header, *lines = (later / "metrics.csv").read_text().splitlines()
    shifted = [re.sub(r"^(\d+),(\d+),(\d+)", lambda x: f"{x[1]},{x[2]},{int(x[3]) + 20}", line) for line in lines]
    (later / "metrics.csv").write_text("\n".join([header, *shifted]) + "\n")
    rows = report.run([str(folder), str(later)], "return", str(tmp_path / "out.png"), reach=15.0)
    assert header.startswith("seed,update,env_steps,")
    assert [row["steps to 15"] for row in rows] == [50.0, 75.0]  # of the second one the means of two rows
    assert [row["reached by"] for row in rows] == ["2 of 2"] * 2 and not rows[0]["difference"]
    assert rows[1]["difference"] == "25 ± 0"
    (row,) = report.run([str(folder)], "return", str(tmp_path / "out.png"), reach=20.0)
    assert (row["steps to 20"], row["reached by"]) == ((95 + 50) / 2, "1 of 2")


def test_a_row_is_of_all_seeds_of_runs_that_differ_in_nothing_else(tmp_path):
    folders = [str(make_run(tmp_path / f"run/{seed}", seeds=(seed,))) for seed in (2, 0, 1)]
    (row,) = report.run(folders, "return", str(tmp_path / "out.png"))
    assert (row["seeds"], row["return"], row["std"]) == (3, 27.5, 10)


def test_report_names_what_is_missing(folder, tmp_path, capsys):
    with pytest.raises(UsageError, match="--metric=retrun .*did you mean 'return'.*there are late, return"):
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
