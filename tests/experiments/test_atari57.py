"""The runs of Atari-57 one by one: which are a job's own, how it goes on, and the report of those that are finished."""

import json

import numpy as np
import pytest

from agents.environments.atari57 import atari57_scores
from experiments import atari57
from experiments.results import reading
from experiments.results.plots import Series
from experiments.runs import sweep, training
from frodo.runs.errors import UsageError
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


def test_shards_are_all_runs_once():
    games = list(presets.frodo_atari57())
    assert len(games) == len(atari57_scores()) == 57 and games[:2] == ["Alien", "Amidar"] and games[-1] == "Zaxxon"
    for of in (1, 8, 57):
        shards = [games[sweep.shard(f"{i}/{of}", 57)] for i in range(1, of + 1)]
        assert sorted(sum(shards, [])) == games and max(map(len, shards)) == -(-57 // of)
    assert games[sweep.shard("3/57", 57)] == [games[2]]


@pytest.mark.parametrize("text", ["0/57", "58/57", "1/58", "2/1", "3", "a/b", "-1/4"])
def test_a_shard_outside_of_the_list_is_refused(text):
    with pytest.raises(UsageError, match=f"--shard={text}: give i/n .* such as 1/57"):
        sweep.shard(text, 57)


def test_a_job_has_its_own_runs_and_goes_on_or_begins(start, tmp_path, monkeypatch):
    seen = []

    def train(config, options, **others):
        seen.append((config.env, config.rule.name, options.steps, options.resume, options.num_devices))
        make_run(tmp_path / others["name"], 1.0)
        return {"env_steps": 1, "steps_per_cpu_second": 1.0, "human_normalised": [1.0], "return": [2.0]}

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(sweep, "check_split", lambda config, num_devices: None)  # here is one device
    done = start(
        "experiments.atari57", "--shard=2/20", "--rule=impala", "--resume", "--num_devices=3", f"--out={tmp_path}"
    )
    assert done.returncode == 0, done.stderr
    assert [env for env, *_ in seen] == ["atari/Amidar", "atari/Freeway", "atari/Robotank"]
    assert set(seen[0][1:]) == {"impala", 4_000_000_000, False, 3}
    assert set(json.loads((tmp_path / "shard_2_of_20.json").read_text())) == {"Amidar", "Freeway", "Robotank"}


def test_the_report_is_of_what_is_finished(tmp_path):
    with pytest.raises(UsageError, match=f"--report: no run in {tmp_path} is finished"):
        atari57.report(tmp_path)
    for game, score in (("Alien", 1.0), ("Pong", 5.0), ("Qbert", 2.0), ("Zaxxon", 100.0)):
        make_run(tmp_path / game, score, is_finished=game != "Zaxxon")
    *rows, median = atari57.report(tmp_path)
    assert [row["game"] for row in rows] == ["Alien", "Pong", "Qbert"]
    assert [row["human_normalised"] for row in rows] == [1.0, 5.0, 2.0]
    assert median == {"game": "median", "env_steps": 1000, "return": 20.0, "human_normalised": 2.0}
    assert (tmp_path / "median.png").stat().st_size > 10_000


def test_the_median_is_over_games_of_means_over_seeds_as_far_as_all_have_come():
    of = lambda last, *seeds: Series("", np.array([0.0, last]), np.array([[0.0, seed] for seed in seeds]))
    curve = reading.median([of(100, 1, 3), of(200, 10, 30), of(100, 50, 70)], "median")
    assert (curve.x[0], curve.x[-1], curve.y.shape) == (0, 100, (1, 200))
    assert curve.y[0, -1] == 10  # of 2, 10 (halfway) and 60
