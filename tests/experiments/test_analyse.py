"""The program that analyses: figures and tables, and what cannot be analysed."""

import csv
import dataclasses

import numpy as np
import pytest

from experiments.analyses import figures as analyse
from experiments.analyses import probes
from experiments.runs import loaded_agent
from experiments.runs.loaded_agent import LoadedAgent
from frodo import files
from frodo.regimes.learner import build_learner
from frodo.runs.errors import UsageError
from frodo.settings import presets
from frodo.settings.earlier_versions import FORMAT
from tests.experiments.analyses.small_agents import experience, fresh, small


@pytest.mark.parametrize("without", [(), ("q",), ("aux_policy",)])
def test_the_program_draws(tmp_path, monkeypatch, without):
    config = small()
    agent = fresh(config.replace(rule=config.rule.replace(without=without)))
    monkeypatch.setattr(loaded_agent, "load", lambda folder, seed: agent)
    monkeypatch.setattr(
        loaded_agent, "play", lambda agent, num_steps, batch_size, seed: experience(12, batch_size, agent)
    )
    monkeypatch.setattr(analyse, "NUM_STEPS", 12)
    monkeypatch.setattr(analyse, "NUM_COLUMNS", 10)
    shape = (len(probes.AHEAD), probes.NUM_FOLDS)
    probed = []
    random_scores = lambda x, ahead, hidden: probed.append(hidden) or probes.Scores(*np.random.rand(3, *shape))
    monkeypatch.setattr(probes, "cross_validate", random_scores)
    paths = analyse.run(tmp_path, list(analyse.FIGURES))
    assert [path.stem for path in paths] == ["confidence", "probes", "horizon"]
    written = {path.name for path in (tmp_path / "analysis").iterdir()}
    assert written == {f"{name}.{kind}" for name in analyse.FIGURES for kind in ("png", "csv")}
    with (tmp_path / "analysis/confidence.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["is_last"] for row in rows] == list("000100010001")
    has_value = "q" not in without
    assert ("value" in rows[0]) == has_value
    assert probed == [(256, 256, 256)] * 3 + [(128, 64, 32)] * (1 + has_value)


def test_what_cannot_be_analysed_is_named(tmp_path, monkeypatch):
    out = tmp_path / "none"
    with pytest.raises(UsageError, match="'horizons' is none .did you mean 'horizon'\\?"):
        analyse.run(tmp_path, ["confidence", "horizons"], out=str(out))
    config = small()
    files.write_json(tmp_path / "config.json", {"format": FORMAT, "config": dataclasses.asdict(config), "seeds": [0]})
    with pytest.raises(UsageError, match="without a checkpoint"):
        analyse.run(tmp_path, ["horizon"], out=str(out))
    other = presets.for_rule("toy/catch", "impala")
    learner = build_learner(other, 3)
    monkeypatch.setattr(loaded_agent, "load", lambda folder, seed: LoadedAgent(other, 0, learner, None, None))
    with pytest.raises(UsageError, match="of the rule impala: its agent does not predict y, z"):
        analyse.run(tmp_path, ["horizon"], out=str(out))
    assert not out.exists()
