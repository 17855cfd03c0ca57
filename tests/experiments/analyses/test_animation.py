"""The animated picture of an objective that forms."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from agents.rules.impala import ImpalaConfig, impala
from experiments.analyses import animation
from experiments.results import reading
from frodo.runs.folders import RunOptions
from frodo.settings import presets
from meta.targets.sensitivity import target_derivatives


def test_a_run_has_weights_in_its_rows_and_a_picture_whose_first_frame_is_the_last(tmp_path, monkeypatch):
    vtrace = impala(ImpalaConfig(1.0))
    of_vtrace = lambda rule, *of: {name: x.value for name, x in target_derivatives(vtrace, *of).items()}
    monkeypatch.setattr(animation, "target_derivatives", of_vtrace)
    config = presets.catch()
    config = config.replace(num_updates=1, batch_size=4, network=dataclasses.replace(config.network, hidden=(8,)))
    animation.animate(config, RunOptions((1, 2), 64, str(tmp_path)), "frodo")
    columns = reading.read(tmp_path).columns
    assert columns["env_steps"].tolist() == [32, 64] and columns["seed"].tolist() == [1, 1]
    for name, drawn in animation.vtrace_weights(config).items():
        found = np.stack([columns[f"{name}_{k}"] for k in (1, 2, 3)], axis=1)
        np.testing.assert_allclose(found, [drawn, drawn], atol=1e-3)
    with Image.open(tmp_path / "objective.gif") as image:
        first = np.asarray(image.convert("RGB"))
        assert image.n_frames == 3 and (first[0, 0] > 250).all()  # white, so that it is read on a dark page, too
        image.seek(2)
        np.testing.assert_array_equal(first, np.asarray(image.convert("RGB")))


def test_another_rule_is_refused():
    with pytest.raises(ValueError, match="leave --rule out"):
        animation.animate(presets.catch(), RunOptions((0,), 1), "q")
