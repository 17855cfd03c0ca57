"""The animated picture of an objective that forms."""

import dataclasses

import numpy as np
from PIL import Image

from experiments.analyses import animation
from frodo.settings import presets


def test_two_moments_become_a_picture_whose_first_frame_is_the_last(tmp_path):
    config = presets.catch()
    config = config.replace(batch_size=4, network=dataclasses.replace(config.network, hidden=(8,)))
    moments = animation.measure(config, 80, seed=0, num_frames=2)
    assert [one.env_steps for one in moments] == [0, 80]
    for one in moments:
        np.testing.assert_allclose(one.vtrace["value"], [0, 0, 1], atol=1e-3)
        np.testing.assert_allclose(one.vtrace["reward"], [1, 1, 1], atol=1e-3)
        assert np.isfinite([*one.learned["reward"], *one.learned["value"]]).all() and -1 <= one.sampled_return <= 1
    path = tmp_path / "objective.gif"
    animation.write_gif(path, moments, bound=3 / 11, dpi=40)
    with Image.open(path) as image:
        first = np.asarray(image.convert("RGB"))
        assert image.n_frames == 3 and (first[0, 0] > 250).all()  # white, so that it is read on a dark page, too
        image.seek(2)
        np.testing.assert_array_equal(first, np.asarray(image.convert("RGB")))
