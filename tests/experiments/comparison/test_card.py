"""The card of a rule: which method of a comparison it is, and numbers that are those of its runs."""

import numpy as np
import pytest

from experiments.comparison import card, cells, running
from frodo.rules import cards, zoo
from frodo.rules.files import get_rule, make_rule
from frodo.runs.errors import UsageError
from tests.experiments.comparison.small_comparison import ENVS, POINT, scalar_rule, write_cell, write_tuning

BUDGETS = "catch=1000,grid_worlds=1000"


@pytest.mark.parametrize(
    ("name", "method", "flag"),
    [
        ("catch_and_grids", "scalar_frozen", "scalar_rule"),
        ("catch_disco", "disco_frozen", "disco_rule"),
        ("muesli", "muesli", None),
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


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A card whose runs are made up: returns of seeds 0 and 3 by method."""
    monkeypatch.setattr(card, "GRID", card.Grid((1e-3, 1e-2), (0.01,), ((2, 20),)))
    monkeypatch.setattr(running, "run", lambda *_, **__: "done")
    path = scalar_rule(tmp_path / "mine.npz", ("toy/grid_world/46",))
    returns = {"ppo": (0.5, 0.75), "impala": (0.0, 0.25), "scalar_frozen": (0.25, 0.75)}
    for label, methods, rules in (
        ("baselines", ("ppo", "impala"), {}),
        ("mine", ("scalar_frozen",), {"scalar_rule": path}),
    ):
        comparison, _ = card.comparison_of(methods, rules, ENVS, BUDGETS, (0, 3))
        for env in ENVS:
            for method in methods:
                write_tuning(comparison, tmp_path / "out/runs" / label, env, method, (0.1, 0.1, 0.2, 0.2))
                write_cell(comparison, tmp_path / "out/runs" / label, env, method, returns[method], point=POINT)
    how = dict(envs=ENVS, budgets=BUDGETS, seeds=(0, 3), licence="MIT")
    return card.write(path, tmp_path / "out", None, "frodo card mine.npz", **how), tmp_path


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
    assert difference.low < difference.value < difference.high
    of_both = [written.difference(env, "ppo").value for env in ENVS]
    assert written.difference(cards.ALL, "ppo").value == pytest.approx(np.mean(of_both), rel=1e-6)
    found = {(x.setting, x.value): x.score for x in written.sensitivity}
    assert list(found) == [("learning_rate", 1e-3), ("learning_rate", 1e-2)]
    assert found["learning_rate", 1e-2] > found["learning_rate", 1e-3]  # returns .2 and .1 in tuning


def test_its_folder_is_a_rule_of_a_zoo(made, monkeypatch):
    _, folder = made
    monkeypatch.setenv("FRODO_ZOO", str(folder))
    read, files = zoo.read("mine", zoo.Folder(folder / "out"))
    assert read.licence == "MIT" and "| toy/grid_world/46 * |" in files[zoo.PAGE].decode()


def test_a_rule_that_is_none_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="nobody"):
        card.write("nobody", tmp_path, None, "")
    with pytest.raises(UsageError, match="no scores of random and of best play"):
        card.write("muesli", tmp_path, None, "", envs=("toy/grid_world/47",))
    assert not list(tmp_path.iterdir())


def test_a_hand_designed_rule_has_no_file():
    assert card.digest_of("muesli", make_rule("muesli")) == ""
