"""What is had in rooms by the steps in a room: curves of who learns there, and of the best explorer."""

import csv

import numpy as np
import pytest

from experiments.comparison import in_context, report
from experiments.results import statistics
from frodo.regimes.scores import reference_scores
from frodo.runs.errors import UsageError
from tests.experiments.comparison.small_comparison import one, write_cell

ENVS = ("toy/rule_room/main/held_out/0", "toy/rule_room/main/held_out/1")


def test_rooms_are_shown_by_the_steps_in_a_room(tmp_path, monkeypatch):
    monkeypatch.setattr(statistics, "REPETITIONS", 50)
    compared = one(("toy/catch/4x3", *ENVS), ("impala", "a2c"))
    for env in compared.envs:
        random, best = reference_scores(env)
        for method, seeds in (("impala", (0.2, 0.4)), ("a2c", (1.0, 1.0))):
            own = [x * (2 if env == ENVS[1] else 1) for x in seeds]
            write_cell(compared, tmp_path, env, method, [random + x * (best - random) for x in own])
    report.write(compared, tmp_path, {})
    with (tmp_path / "report" / "rooms.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["rooms"], row["method"], row["steps before"]) for row in rows] == [
        ("main", "IMPALA", "0.0"),
        ("main", "A2C", "0.0"),
    ]
    impala = rows[0]
    assert impala["10k steps"] == ""  # after the last row
    assert impala["trial 1"] == ""  # before the middle of the first row
    assert float(impala["1k steps"]) == pytest.approx(np.mean([[0.2, 0.4], [0.4, 0.8]]))
    assert float(impala["± 1k steps"]) == pytest.approx(12.706 * np.std([0.3, 0.6], ddof=1) / 2**0.5, rel=1e-3)
    page = (tmp_path / "report" / "index.html").read_text()
    assert "<h2>In one room</h2>" in page and "Rooms of the kind main" in page and "0.45 ± " in page


def test_the_best_explorer_is_never_above_who_knows_the_rules_and_gains_from_trial_to_trial():
    found = in_context.optimum("main", in_context.rooms(ENVS)["main"])
    assert found.shape == (in_context.NUM_TRIALS,) and (found < 1 + 1e-6).all()
    assert found[-1] > found[0] + 0.3 and found[-1] > 0.9


def test_no_agent_that_adapts_is_refused(tmp_path):
    with pytest.raises(UsageError, match=f"--adapted_agents={tmp_path} holds no run of experiments.adapt"):
        in_context.check([str(tmp_path)], ENVS)
    in_context.check([], ["toy/catch"])
