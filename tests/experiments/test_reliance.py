"""Rules that see y and z, and rules that do not, side by side."""

import dataclasses
import json

import pytest

from agents.acting.replay import ReplayConfig
from experiments import reliance
from experiments.runs import settings
from frodo.runs.errors import UsageError
from frodo.runs.folders import RunOptions
from meta.targets.disco import HIDDEN


def small(**disco):
    config = settings.configure_frozen("toy/catch/4x3", "disco")
    rule = config.rule.replace(
        prediction_size=4, max_value=3, lstm=4, lifetime_lstm=2, skips_first_steps=False, **disco
    )
    network = dataclasses.replace(config.network, hidden=(4,), action_model=3)
    return config.replace(unroll=6, rule=rule, network=network, replay=ReplayConfig())


def test_runs_differ_in_what_is_hidden_and_in_nothing_else():
    configs = [dataclasses.asdict(config) for config in reliance.make_configs(small()).values()]
    assert [config["rule"]["settings"].pop("hidden") for config in configs] == list(HIDDEN) and len(configs) == 3
    assert configs[0] == configs[1] == configs[2]


@pytest.mark.long
def test_they_are_drawn_together(tmp_path, monkeypatch):
    monkeypatch.setattr(reliance, "HIDDEN", ("own",))  # one is enough
    summary = reliance.run(small(), RunOptions((0, 1), 60, out=str(tmp_path)))
    assert set(summary) == {"own"} and (tmp_path / "reliance.png").exists()
    assert json.loads((tmp_path / "own/config.json").read_bytes())["config"]["rule"]["settings"]["hidden"] == "own"


def test_a_rule_without_y_and_z_is_refused(tmp_path):
    with pytest.raises(UsageError, match="has no y and z to hide"):
        reliance.run(small(without=("y_z",)), RunOptions((0,), 60, out=str(tmp_path)))
    config = settings.configure_frozen("toy/catch", "frodo")
    with pytest.raises(UsageError, match="--rule: frodo has no y and z to hide"):
        reliance.run(config, RunOptions((0,), 60, out=str(tmp_path)))
    assert not list(tmp_path.iterdir())
