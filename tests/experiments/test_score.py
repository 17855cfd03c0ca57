"""Scores of given programs: those of a search's lanes, and how near a program is to δ²."""

import csv

import numpy as np
import pytest

from frodo.regimes.evolution import Evolution
from frodo.regimes.scores import task_of
from meta.programs.equivalence import distance_from_td
from meta.programs.evaluation import ENDS
from meta.programs.language import FORMULAS, LOSSES, parse
from tests.experiments.test_evolve import CONFIG


@pytest.mark.parametrize(
    ("formula", "low", "high"),
    [
        (FORMULAS["dqn"], 0, 1e-6),
        ("3 * (r + gamma * max(Q_targ(s_next)) - Q(s)[a])**2 + r", 0, 1e-4),
        ("(Q(s)[a] - (r + max(Q_targ(s_next))))**2", 0, 1e-6),
        (FORMULAS["dqn_reg"], 1e-3, 0.15),
        (FORMULAS["double_dqn"], 0.05, 2),
        ("0 - (Q(s)[a] - (r + gamma * max(Q_targ(s_next))))**2", 1.88, 2),
    ],
)
def test_distance_from_td(formula, low, high):
    for ends in ENDS:
        assert low <= distance_from_td(parse(LOSSES, formula), ends) <= high


def test_a_program_prints_and_keeps_the_scores_of_a_search(start, tmp_path):
    finalists = tmp_path / "finalists.csv"
    finalists.write_text("number,formula\n1,(Q(s)[a] - r)**2\n1,(Q(s)[a] - r)**2\n")
    small = ["hidden=8", "exploration=50", "capacity=100", "batch_size=8", "num_episodes=20", "learning_rate=3e-3"]
    done = start(
        "experiments.score",
        "--formula=dqn",
        f"--finalists={finalists}",
        "--envs=toy/catch/5x5",
        "--seeds=7,8",
        f"--out={tmp_path}",
        "--config.num_lanes=4",
        "--config.num_full_lanes=2",
        "--config.chunk=20",
        *(f"--config.lane.{x}" for x in small),
    )
    assert done.returncode == 0, done.stderr
    assert "from δ²" in done.stdout and "±" in done.stdout and "4 of 4 trainings" in done.stderr
    assert (tmp_path / "1.png").is_file() and (tmp_path / "2.png").is_file()
    with (tmp_path / "scores.csv").open(newline="") as file:
        found = np.array([float(row["score"]) for row in csv.DictReader(file)]).reshape(2, 1, 2)
    search = Evolution([task_of("toy/catch/5x5")], CONFIG, 0)
    programs = [parse(LOSSES, x) for x in (FORMULAS["dqn"], "(Q(s)[a] - r)**2")]
    np.testing.assert_allclose(found, search.rescore(programs, (7, 8))[0], rtol=1e-6)


def test_a_file_of_finalists_with_a_row_that_ends_early_is_refused(start, tmp_path):
    short = tmp_path / "finalists.csv"
    short.write_text("number,formula\n1\n")
    done = start("experiments.score", f"--finalists={short}")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert f"--finalists={short}: give a finalists.csv" in done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "--formula: give at least one"),
        (["--formula=dqm"], "--formula=dqm: 'dqm' is no name"),
        (["--formula=r + 0.5"], "--formula=r + 0.5: 'r + 0.5' has no gradient to Q"),
        (["--formula=dqn", "--envs=toy/catch,toy/catch"], "--envs: toy/catch is given more than once"),
        (["--formula=dqn", "--finalists=none.csv"], "--finalists=none.csv: give a finalists.csv"),
        (["--formula=dqn", "--envs=envpool/CartPole-v1"], "envpool/CartPole-v1 is stepped on the host"),
        (["--formula=dqn", "--seeds=1,1"], "--seeds=1,1: seed 1 is given more than once"),
        (["--formula=dqn", "--seeds=0,65536"], "seeds go up to 65536, expected numbers up to 65535"),
        (["--formula=dqn", "--config.lane.capacity=0"], "lane.capacity is 0"),
    ],
)
def test_a_mistake_is_answered_in_one_line(start, args, message):
    done = start("experiments.score", *args)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert message in done.stderr
