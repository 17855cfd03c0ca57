"""Fitted rules by name: from the cache, anew where an entry is damaged or of other settings, and without a cache."""

import jax
import numpy as np
import pytest

import frodo
from experiments.runs import discovery as discover
from experiments.runs import settings
from frodo.rules import entries
from frodo.rules import files as rule_files
from frodo.rules.files import get_rule, load_meta_params, load_origin
from frodo.settings import presets
from frodo.settings.registry import RuleConfig
from meta.targets import fitting, policy_fitting
from tests.trees import check_equal


@pytest.fixture(autouse=True)
def few_updates(monkeypatch, tmp_path):
    monkeypatch.setattr(fitting, "NUM_UPDATES", 2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


SETTINGS = dict(lstm=4)


@pytest.mark.long
def test_a_rule_is_fitted_once_for_what_matters_to_the_fit(capsys, tmp_path):
    rule = frodo.fit_rule("vtrace", **SETTINGS)
    assert "fitting η to vtrace" in capsys.readouterr().err
    again = frodo.fit_rule("vtrace", **SETTINGS, entropy_cost=0.5)
    assert capsys.readouterr().err == "" and again.config.rule.settings.entropy_cost == 0.5
    check_equal(rule.meta_params, again.meta_params)
    changes = ({"discount": 0.9}, {"torso": 3})
    for i, change in enumerate(changes):
        other = frodo.fit_rule("vtrace", **SETTINGS, **change)
        assert "fitting" in capsys.readouterr().err and len(list((tmp_path / "frodo-rl/fitted").iterdir())) == 2 + i
    other = frodo.fit_rule("vtrace", **SETTINGS, **changes[0])
    assert any(
        np.any(x != y) for x, y in zip(*map(jax.tree.leaves, (rule.meta_params, other.meta_params)), strict=True)
    )
    assert rule.origin == load_origin("vtrace") and "fitted to vtrace" in rule.describe()


def test_a_damaged_entry_is_made_anew_and_without_a_cache_it_goes_on(capsys, monkeypatch, tmp_path):
    expected = frodo.fit_rule("lambda_return", **SETTINGS).meta_params
    (entry,) = (tmp_path / "frodo-rl/fitted").iterdir()
    for data in (b"", entry.read_bytes()[:100]):
        entry.write_bytes(data)
        check_equal(frodo.fit_rule("lambda_return", **SETTINGS).meta_params, expected)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    capsys.readouterr()
    check_equal(frodo.fit_rule("lambda_return", **SETTINGS).meta_params, expected)
    assert "fitted again next time" in capsys.readouterr().err


def test_the_names_of_targets_are_names_of_rules():
    config = presets.fitted("toy/catch").rule.replace(**SETTINGS)
    check_equal(load_meta_params("vtrace", config), frodo.fit_rule("vtrace", **SETTINGS).meta_params)
    assert get_rule("n_step_return").name == "n_step_return"
    with pytest.raises(ValueError, match="vtrace is fitted to the rule 'frodo' alone, and the rule is 'disco'"):
        load_meta_params("vtrace", RuleConfig("disco"))
    with pytest.raises(ValueError, match="cmpo is fitted to the rule 'disco' alone, and the rule is 'frodo'"):
        load_meta_params("cmpo", config)
    with pytest.raises(ValueError, match="inputs are reward, expected discount"):
        frodo.fit_rule("vtrace", inputs=("reward",))
    with pytest.raises(ValueError, match="target is 'vtrac', expected one of .*cmpo .did you mean 'vtrace'"):
        frodo.fit_rule("vtrac")


def test_nothing_is_fitted_before_all_settings_are_known(monkeypatch):
    monkeypatch.setattr(entries, "cached", lambda *_: pytest.fail("fitted"))
    for target, rule in (("vtrace", "frodo"), ("cmpo", "disco")):
        own = settings.configure("toy/catch", "", init_meta_params=target)
        of_population = discover.configure("disco", ("toy/catch",), init_meta_params=target)
        for config in (own, of_population):
            assert (config.rule.name, config.init_meta_params) == (rule, target)


def test_a_population_goes_on_from_a_scalar_fit_in_small_steps():
    of_population = discover.configure("frodo", ("toy/catch",), init_meta_params="vtrace")
    rule = rule_files.load_settings("vtrace")
    for config in (of_population, rule_files.population_config(rule)):
        assert config.is_acting_interleaved and config.meta_optimizer.learning_rate == 2e-5
        assert config.rule == rule.config.rule and config.optimizer == rule.config.optimizer
    discovered = rule_files.load_rule("catch_and_grids")
    assert rule_files.population_config(discovered) == discovered.config


@pytest.mark.long
def test_discos_form_is_fitted_to_cmpo(monkeypatch, capsys):
    monkeypatch.setattr(policy_fitting, "NUM_ACTIONS", (2,))
    rule = frodo.fit_rule("cmpo", lstm=4, lifetime_lstm=2)
    assert (rule.name, rule.config.rule.name) == ("cmpo", "disco") and "fitted to cmpo" in rule.describe()
    capsys.readouterr()
    check_equal(load_meta_params("cmpo", rule.config.rule.replace(y_cost=0.5)), rule.meta_params)
    assert capsys.readouterr().err == ""
    with pytest.raises(ValueError, match="without is q, expected it not to have q"):
        frodo.fit_rule("cmpo", without=("q",))
