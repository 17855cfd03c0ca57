"""Formulas for scalar targets: a formula's own targets are explained by it alone, and what is found is a rule."""

import csv
import dataclasses

import jax
import numpy as np
import pytest

import frodo
from experiments.analyses import figures, target_formulas
from experiments.runs import loaded_agent
from experiments.runs.loaded_agent import of_result
from frodo.regimes.learner import make_learner
from frodo.rules.files import Origin, fit_rule, load_rule, make_rule
from frodo.runs.errors import UsageError
from meta.programs.language import TARGETS, parse
from meta.programs.regression import values_of
from meta.programs.targets import FORMULAS, probe

DISCOUNT = 0.9


def stages_of(formula):
    """Return what is seen of an agent whose rule is a formula, with ends of all kinds."""
    trajectory, values, logits = probe()
    rule = make_rule("target_program", formula=formula, discount=DISCOUNT)
    learner = make_learner(rule, logits.shape[-1], network=frodo.NetworkConfig("mlp", (8,)))
    predictions = {"value": values, "policy": logits}
    meta_params = rule.update_rule.random_meta_params(jax.random.key(0), 2)
    stage = target_formulas.stage_of(learner, meta_params, (), trajectory, predictions, predictions)
    return [jax.tree.map(np.asarray, stage)]


@pytest.mark.parametrize("formula", [FORMULAS["vtrace"], "0.98 * (r + G_next) + 0.1 * v_next"])
def test_targets_of_a_formula_are_explained_by_it(formula, monkeypatch):
    stages, points = stages_of(formula), []
    monkeypatch.setattr(target_formulas, "fit", lambda inputs, y, **_: points.append((inputs, y)) or [])
    program, (stage,) = parse(TARGETS, formula), stages
    valid, truncated = stage["trajectory"].valid, stage["trajectory"].truncated
    assert (truncated & valid).any() and (stage["trajectory"].discount == 0).any() and not valid.all()
    errors = (
        values_of(program, {name: stage["inputs"][name][valid] for name in TARGETS.inputs}) - stage["targets"][valid]
    )
    np.testing.assert_allclose(errors, np.zeros(len(errors)), atol=1e-5)  # also where G' is none of the trajectory's
    variance = np.var((stage["targets"] - stage["predictions"]["value"][:-1])[valid])
    np.testing.assert_allclose(target_formulas.spread(stages), variance, rtol=1e-5)
    assert target_formulas.errors_of(program, DISCOUNT, stages) < 1e-10
    (row,) = target_formulas.formulas(make_rule("frodo", discount=DISCOUNT), stages)
    assert row["formula"] == FORMULAS["vtrace"]
    assert (max(row["error"], row["alone"]) < 1e-10) == (formula == FORMULAS["vtrace"])
    is_out = target_formulas.is_held_out(stage)
    assert len(points[0][1]) == (valid & ~is_out).sum() and 0 < is_out[0].sum() < is_out.shape[1] / 2


def test_the_error_is_of_what_was_not_fitted(monkeypatch):
    (stage,), seen = stages_of(FORMULAS["vtrace"]), []
    monkeypatch.setattr(target_formulas, "fit", lambda inputs, y, **_: seen.append(y) or [])
    stage["targets"] = stage["targets"].copy()
    is_out = target_formulas.is_held_out(stage)
    for where, is_seen in ((is_out, False), (~is_out, True)):
        stage["targets"][where] += 1e3
        (row,) = target_formulas.formulas(make_rule("frodo", discount=DISCOUNT), [stage])
        assert (np.abs(seen[-1]).max() > 500) == is_seen
        assert (row["error"] > 0.1) or is_seen
    narrow = {name: jax.tree.map(lambda x: x[:, :1], of) for name, of in stages_of(FORMULAS["vtrace"])[0].items()}
    (row,) = target_formulas.formulas(make_rule("frodo", discount=DISCOUNT), [narrow])
    assert row["error"] < 1e-8  # of one environment, other steps are held out


def test_what_is_found_is_written_as_rules(tmp_path, monkeypatch, capsys):
    for name, value in {"ENV_STEPS": 2000, "STAGES": 2, "NUM_PROGRAMS": 2000, "NUM_POINTS": 200}.items():
        monkeypatch.setattr(target_formulas, name, value)
    rule = dataclasses.replace(
        fit_rule("n_step_return", value_cost=0.3, reduction="sum", lstm=16),
        origin=Origin(("toy/catch/5x4",) * 2, 10, 2.0),
    )
    rule.save(tmp_path / "known.npz")
    name = str(tmp_path / "known.npz")
    path = target_formulas.of_rule(name, load_rule(name), tmp_path / "analysis")
    assert path == tmp_path / "analysis" / "known_formulas.csv"
    with path.open(newline="") as file:
        *rows, vtrace = csv.DictReader(file)
    assert vtrace["formula"] == FORMULAS["vtrace"] and vtrace["formula"] in capsys.readouterr().out
    assert float(rows[-1]["error"]) < min(0.2, float(vtrace["error"]))
    for row in rows:
        found = load_rule(path.with_name(f"known_{row['size']}.npz"))
        assert (found.config.rule.name, found.origin.envs) == ("target_program", ("toy/catch/5x4",))
        assert found.origin.note == "formulas for known, fitted in toy/catch/5x4"
        assert found.origin.env_steps == 10
        own, of = found.config.rule.settings, rule.config.rule.settings
        assert own.formula == row["formula"]
        for name in ("discount", "reduction", "value_cost", "entropy_cost", "vtrace_lambda"):
            assert getattr(own, name) == getattr(of, name)


def test_a_run_has_formulas_for_its_own_agent(tmp_path, monkeypatch):
    for name, value in {"STAGES": 2, "NUM_PROGRAMS": 600, "NUM_POINTS": 100, "NUM_COLUMNS": 6, "WARM_UP": 3}.items():
        monkeypatch.setattr(target_formulas, name, value)
    settings = dict(network=frodo.NetworkConfig("mlp", (8,)), unroll=5, validation_unroll=5, batch_size=4)
    result = frodo.discover_online("toy/catch/5x4", "frodo", num_steps=120, key=jax.random.key(0), **settings)
    result.save(tmp_path / "agent.npz")
    loaded = of_result(str(tmp_path / "agent.npz"), "toy/catch/5x4")
    stages = target_formulas.of_trained(loaded)
    assert [stage["targets"].shape for stage in stages] == [(5, 6)] * 6
    for before, after in zip(stages, stages[1:], strict=False):
        np.testing.assert_array_equal(before["predictions"]["value"][-1], after["predictions"]["value"][0])
    goes_on = (stages[0]["inputs"]["gamma"] > 0)[:-1]
    assert 0 < goes_on.sum() < goes_on.size  # episodes end inside
    np.testing.assert_array_equal(stages[0]["inputs"]["G_next"][:-1][goes_on], stages[0]["targets"][1:][goes_on])
    monkeypatch.setattr(loaded_agent, "load", lambda folder, seed: loaded)
    with pytest.raises(UsageError, match="--figures=horizon: .* is a run of the rule frodo, which has formulas"):
        figures.run(tmp_path / "one", ["horizon"])
    (path,) = figures.run(tmp_path / "one", list(figures.FIGURES))
    known = load_rule(path.with_name("one.npz"))
    jax.tree.map(np.testing.assert_array_equal, known.meta_params, result.meta_params)
    assert known.origin.envs == ("toy/catch/5x4",)
    assert path == tmp_path / "one/analysis/one_formulas.csv" and list(path.parent.glob("one_*.npz"))
    frozen = loaded._replace(config=loaded.config.replace(is_frozen=True, init_meta_params="catch_and_grids"))
    target_formulas.of_run(frozen, tmp_path / "two")
    assert load_rule(tmp_path / "two/analysis/two.npz").origin.envs[0] == "toy/catch/5x5"  # where it was discovered
    found = load_rule(next((tmp_path / "two/analysis").glob("two_*.npz"))).origin
    assert found.envs[-1] == "toy/catch/5x4" and found.note == "formulas for two, fitted in toy/catch/5x4"


@pytest.mark.parametrize(
    ("settings", "origin", "reason"),
    [
        ({}, None, "does not say where its rule was discovered: give --envs"),
        (
            {},
            Origin(("toy/catch", "bsuite/catch/0"), 1, 1.0),
            ": bsuite/catch/0 is on the host, expected --envs in JAX",
        ),
        ({}, Origin(("toy/catchh",), 1, 1.0), ": unknown environment 'toy/catchh'"),
        (
            {"kind": "prediction"},
            Origin(("toy/catch",), 1, 1.0),
            "holds a rule of prediction agents, expected actor-critics",
        ),
    ],
)
def test_a_rule_without_known_environments_or_policy_is_refused(settings, origin, reason, tmp_path):
    rule = dataclasses.replace(make_rule("frodo", **settings), origin=origin)
    with pytest.raises(UsageError, match=f"rule.npz ?{reason}"):
        target_formulas.of_rule(str(tmp_path / "rule.npz"), rule, tmp_path / "out")
    assert not list(tmp_path.iterdir())
