"""Several methods side by side: their table, and how they go on."""

import json

import numpy as np
import pytest

from experiments.analyses import catch
from experiments.catch import METRICS
from experiments.runs import sweep, training
from frodo import files
from frodo.runs.errors import UsageError
from tests.experiments.runs.small_runs import options, rows, small_catch


def test_a_table_says_by_how_much_methods_differ_from_the_first(capsys):
    entry = lambda values: {
        "return": values,
        "return_mean": np.mean(values),
        "return_std": np.std(values, ddof=1),
        "steps_per_cpu_second": 1e3,
    }
    sweep.print_table({"a": entry([1.0, 2.0, 3.0]), "b": entry([0.0, 0.0, 1.5]), "bound": 0.27}, ("return",))
    bound, header, first, second = capsys.readouterr().out.splitlines()
    assert bound == "bound  0.2700" and "return − a" in header and first.count("±") == 1
    assert "-1.5000 ± 1.2421" in second  # t(2) = 4.3027, times 0.5 / √3


@pytest.mark.long
def test_an_experiment_of_several_methods_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    config = small_catch()
    steps = 100 * 4 * 20
    run_all = lambda configs, **others: sweep.run_all(
        configs, options(tmp_path, steps, **others), experiment="e", metrics=METRICS
    )
    configs = catch.make_configs(config, "frodo")
    run_all({"frodo": configs["frodo"]})
    before = rows(tmp_path / "frodo", without=())
    (tmp_path / "a2c").mkdir()
    (tmp_path / "a2c/config.json").write_text("{}")  # begun, and killed before its first checkpoint
    with pytest.raises(UsageError, match="holds runs .frodo, a2c.: --resume goes on with"):
        run_all(configs)
    _, summary = run_all(configs, resume=True)
    assert list(summary) == ["frodo", "a2c_no_bootstrap", "a2c"]
    assert rows(tmp_path / "frodo", without=()) == before
    assert json.loads((tmp_path / "summary.json").read_text()) == files.plain(summary)
    entry = summary["a2c"]
    assert entry["sampled_return_mean"] == np.mean(entry["sampled_return"])
    assert entry["sampled_return_std"] == np.std(entry["sampled_return"], ddof=1)
    own = np.array([float(row["sampled_return"]) for row in rows(tmp_path / "a2c", without=()) if row["seed"] == "1"])
    assert entry["sampled_return_over_run"][1] == pytest.approx(own.mean())
    monkeypatch.setattr(training, "train", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_all(configs, overwrite=True)
    assert not list(tmp_path.rglob("config.json"))  # old runs are not taken for new ones
    with pytest.raises(UsageError, match="holds no run"):
        sweep.run_all(configs, options(tmp_path / "none", steps, resume=True), experiment="e", metrics=())


def test_a_bad_rule_is_a_mistake_also_of_the_second_method(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "train", lambda *_, **__: 1 / 0)
    (tmp_path / "rule.npz").write_bytes(b"no rule")
    configs = {"bad": small_catch(init_meta_params=str(tmp_path / "rule.npz"))}
    with pytest.raises(UsageError, match="init_meta_params: .*rule.npz is no .npz file of arrays"):
        sweep.run_all(configs, options(tmp_path / "run", 1000), experiment="e", metrics=())
