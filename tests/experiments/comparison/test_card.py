"""The card of a rule: which method of a comparison it is, and numbers that are those of its runs."""

import numpy as np
import pytest

from experiments.comparison import card, cells, running
from experiments.results import statistics
from frodo import files
from frodo.rules import cards, zoo
from frodo.rules.files import get_rule
from frodo.runs.errors import UsageError
from tests.experiments.comparison.small_comparison import ENVS, POINT, scalar_rule, write_cell, write_tuning

BUDGETS = "catch=1000,grid_worlds=1000"


@pytest.mark.parametrize(
    ("name", "method", "flag"),
    [
        ("catch_and_grids", "scalar_frozen", "scalar_rule"),
        ("catch_disco", "disco_frozen", "disco_rule"),
        ("muesli", "muesli", None),
        ("ppo", "ppo", None),
        ("frodo", "frodo", None),  # η is random, and learned online
    ],
)
def test_a_rule_is_its_method_with_its_eta_as_it_is(name, method, flag):
    found, flags = card.method_of(name, get_rule(name))
    assert (found, list(flags)) == (method, [flag] if flag else [])


@pytest.mark.parametrize(
    ("name", "title"),
    [("ppo", "ppo"), ("a/b.npz", "b"), ("a/b/rule.npz", "b"), ("hub:someone/small", "small")],
)
def test_a_card_is_called_as_its_rule(name, title):
    assert card.title_of(name) == title


def test_the_arguments_of_its_runs_say_the_same_comparison():
    comparison, arguments = card.comparison_of(("ppo",), {"scalar_rule": "x.npz"}, ENVS, BUDGETS, (0, 3))
    assert comparison.files["scalar_rule"] == "x.npz" and comparison.budget(ENVS[0]) == 1000
    assert {"--envs=toy/catch/4x3,toy/grid_world/46", "--seeds=0,3", "--batches=16x16", "--scalar_rule=x.npz"} <= set(
        arguments
    )


RETURNS = {"ppo": (0.5, 0.75), "impala": (0.0, 0.25), "scalar_frozen": (0.25, 0.75)}
HOW = dict(envs=ENVS, budgets=BUDGETS, seeds=(0, 3), licence="MIT")


@pytest.fixture
def ran(monkeypatch):
    """The comparisons that were asked for, by folder; their runs are made up: returns of seeds 0 and 3 by method."""
    found = []

    def run_all(comparison, folder, *_, resume, **__):
        found.append((folder.name, comparison.methods, resume))
        files.write_json(folder / "comparison.json", {})
        for env in ENVS:
            for method in comparison.methods if not resume else ():
                write_tuning(comparison, folder, env, method, (0.1, 0.1, 0.2, 0.2))
                write_cell(comparison, folder, env, method, RETURNS[method], point=POINT)
        return "done"

    monkeypatch.setattr(card, "GRID", card.Grid((1e-3, 1e-2), (0.01,), ((2, 20),)))
    monkeypatch.setattr(statistics, "REPETITIONS", 50)
    monkeypatch.setattr(running, "run", run_all)
    return found


@pytest.fixture
def made(tmp_path, ran):
    """A card, and the folder of its rule."""
    path = scalar_rule(tmp_path / "mine.npz", ("toy/grid_world/46",))
    return card.write(path, tmp_path / "out", None, "frodo card mine.npz", **HOW), tmp_path


def test_runs_are_done_once_and_others_of_another_rule_or_other_seeds(made, ran):
    _, folder = made
    path = str(folder / "mine.npz")
    (baselines, *_), (own, *_) = ran
    card.write(path, folder / "out", None, "", **HOW)
    assert ran[2:] == [(baselines, ("ppo", "impala"), True), (own, ("scalar_frozen",), True)]
    ppo = card.write("ppo", folder / "out", None, "", **HOW)
    assert ran[4:] == [(baselines, ("ppo", "impala"), True)]
    assert [x.method for x in ppo.scores if x.environment == ENVS[0]] == ["", "impala"]
    assert ppo.difference(ENVS[0], "impala").value > 0 and not (folder / "out/ppo/rule.npz").exists()
    scalar_rule(path, ("toy/grid_world/44",))
    card.write(path, folder / "out", None, "", **HOW)
    assert ran[6][0] not in (own, baselines) and not ran[6][2]


def test_what_can_have_no_card_is_refused_before_anything_is_run(tmp_path, ran):
    for name, more, reason in (
        ("td_lambda", {}, "td_lambda is a rule of the kind 'td_lambda', which a card cannot compare"),
        ("program", {}, "program is a rule of the kind 'program' without η: name the file of one"),
        ("vtrace", {}, "--scalar_rule=vtrace was not discovered"),
        ("ppo", {"seeds": (0,)}, "expected at least two: a card has intervals"),
        ("catch_and_grids", {"envs": ENVS[:1]}, "give --envs at least two"),
    ):
        with pytest.raises(UsageError, match=reason):
            card.write(name, tmp_path / "out", None, "", **HOW | more)
    for name in ("..npz", "...npz", "runs.npz", "a b.npz"):
        with pytest.raises(UsageError, match="would have a card called"):
            card.title_of(name)
    assert not ran and not (tmp_path / "out").exists()


def test_its_numbers_are_those_of_the_runs(made):
    written, folder = made
    assert cards.from_json((folder / "out/mine/card.json").read_bytes(), "x") == written
    assert (written.name, written.kind, written.num_seeds) == ("mine", "frodo", 2)
    assert written.environments == list(ENVS) and written.seen == ("toy/grid_world/46",)
    random, best = (cells.reference_scores(ENVS[0])[i] for i in (0, 1))
    normal = lambda x: (np.asarray(x) - random) / (best - random)
    assert written.score(ENVS[0]).value == pytest.approx(normal([0.25, 0.75]).mean(), rel=1e-6)
    assert written.score(ENVS[0], "impala").value == pytest.approx(normal([0.0, 0.25]).mean(), rel=1e-6)
    difference = written.difference(ENVS[0], "ppo")
    assert difference.value == pytest.approx((normal([0.25, 0.75]) - normal([0.5, 0.75])).mean(), rel=1e-6)
    pairs = normal([0.25, 0.75]) - normal([0.5, 0.75])
    half = 12.7062 * pairs.std(ddof=1) / np.sqrt(2)  # of Student's t with one degree of freedom
    assert difference.high - difference.value == pytest.approx(half, rel=1e-4)
    assert difference.value - difference.low == pytest.approx(half, rel=1e-4)
    assert written.regime == "population, frozen" and written.budgets == (1000, 1000) and written.cpu_seconds > 0
    of_both = [written.difference(env, "ppo").value for env in ENVS]
    assert written.difference(cards.ALL, "ppo").value == pytest.approx(np.mean(of_both), rel=1e-6)
    found = {(x.setting, x.value): x.score for x in written.sensitivity}
    assert list(found) == [("learning_rate", 1e-3), ("learning_rate", 1e-2)]
    for rate, value in ((1e-3, 0.1), (1e-2, 0.2)):  # the returns of tuning
        scores = [float(cells.normalised(env, np.array(value))) for env in ENVS]
        assert found["learning_rate", rate] == pytest.approx(np.mean(scores), rel=1e-5)


def test_its_folder_is_a_rule_of_a_zoo(made, monkeypatch):
    _, folder = made
    monkeypatch.setenv("FRODO_ZOO", str(folder))
    read, arrived = zoo.read("mine", zoo.Folder(folder / "out"))
    assert read.licence == "MIT" and "| toy/grid_world/46 * |" in arrived[zoo.PAGE].decode()


def test_a_rule_that_is_none_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="nobody"):
        card.write("nobody", tmp_path, None, "")
    with pytest.raises(UsageError, match="no scores of random and of best play"):
        card.write("muesli", tmp_path, None, "", envs=("toy/grid_world/47",))
    assert not list(tmp_path.iterdir())
