"""The runs of Atari-57: each game is a job, how it goes on, and the median of those that are finished."""

import numpy as np

from agents.environments.atari57 import atari57_scores
from experiments import report
from experiments.results import reading
from experiments.results.plots import Series
from experiments.runs import training
from experiments.runs.jobs import Job
from frodo.settings import presets


def make_run(folder, score, is_finished=True):
    """A run of two seeds whose score rises to one that is 1 lower and one that is 1 higher, and stays there."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    rows = [
        f"{seed},{i},{100 * i},{400 * i},{10 * score},{min(1, i / 5) * (score + sign)}"
        for seed, sign in ((0, -1), (1, 1))
        for i in range(1, 11)
    ]
    header = "seed,update,env_steps,env_frames,return,human_normalised"
    (folder / "metrics.csv").write_text("\n".join([header, *rows]))
    if is_finished:
        (folder / "summary.json").write_text("{}")


def test_every_game_is_a_job(start, tmp_path, monkeypatch):
    handed = []

    def run_all(jobs, executor, out):
        handed.extend(jobs)
        make_run(tmp_path / "Pong", 1.0)

    monkeypatch.setattr("experiments.runs.jobs.run_all", run_all)
    done = start("experiments.atari57", "--rule=impala", f"--out={tmp_path}", "--config.unroll=30")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "error: 56 of 57 games failed, Alien first: it was not run"
    games = [job.name for job in handed]
    assert games == list(presets.frodo_atari57()) and len(games) == len(atari57_scores()) == 57
    assert (games[:2], games[-1]) == (["Alien", "Amidar"], "Zaxxon")
    own = ("--rule=impala", f"--out={tmp_path}", "--config.unroll=30", f"--out={tmp_path}", "--only=Amidar")
    assert handed[1] == Job("Amidar", tmp_path / "Amidar", "experiments.atari57", own)
    again = start("experiments.atari57", "--rule=impala", f"--out={tmp_path}")
    assert again.returncode == 2 and f"{tmp_path} holds a sweep: --resume goes on with it" in again.stderr


def test_the_job_of_a_game_goes_on_or_begins(start, tmp_path, monkeypatch):
    seen = []

    def train(config, options, **others):
        seen.append((config.env, config.rule.name, options.steps, options.resume, options.num_devices, options.out))

    monkeypatch.setattr(training, "train", train)
    for is_begun in (False, True):
        if is_begun:
            (tmp_path / "Pong" / "checkpoints").mkdir(parents=True)
            (tmp_path / "Pong" / "checkpoints" / "3.npz").touch()
        done = start("experiments.atari57", "--only=Pong", "--rule=impala", "--num_devices=3", f"--out={tmp_path}")
        assert done.returncode == 0, done.stderr
        assert seen.pop() == ("atari/Pong", "impala", 4_000_000_000, is_begun, 3, str(tmp_path / "Pong"))


def test_the_report_has_the_median_of_what_is_finished(tmp_path):
    for game, score in (("Alien", 1.0), ("Pong", 5.0), ("Qbert", 2.0), ("Zaxxon", 100.0)):
        make_run(tmp_path / game, score, is_finished=game != "Zaxxon")
    finished = [str(path) for path in sorted(tmp_path.glob("*/summary.json"))]
    *rows, median = report.run(finished, "human_normalised", str(tmp_path / "median.png"), is_median=True)
    assert [row["run"] for row in rows] == [str(tmp_path / game) for game in ("Alien", "Pong", "Qbert")]
    assert [row["human_normalised"] for row in rows] == [1.0, 5.0, 2.0]
    assert median == {"run": "median", "env_steps": 1000, "human_normalised": 2.0}
    assert (tmp_path / "median.png").stat().st_size > 10_000


def test_the_median_is_over_games_of_means_over_seeds_as_far_as_all_have_come():
    of = lambda last, *seeds: Series("", np.array([0.0, last]), np.array([[0.0, seed] for seed in seeds]))
    curve = reading.median([of(100, 1, 3), of(200, 10, 30), of(100, 50, 70)], "median")
    assert (curve.x[0], curve.x[-1], curve.y.shape) == (0, 100, (1, 200))
    assert curve.y[0, -1] == 10  # of 2, 10 (halfway) and 60
