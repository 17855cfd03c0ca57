"""Observations as pictures that a person can look at."""

import numpy as np
from matplotlib.colors import to_rgb

from experiments.results.plots import COLOURS

PLANES = (COLOURS[0], "0.4", *COLOURS[1:])  # of a grid world: the agent, walls, objects


def pictures(observations: np.ndarray) -> np.ndarray | None:
    """Turn observations [N, ...] into pictures in colour, [N, H, W, 3] from 0 to 1; None where they are vectors.

    Frames of whole numbers have their channels first: three of them are colours, of others the last one is the newest.
    Other planes are painted over white, each in its colour.
    """
    if observations.ndim < 3 or min(observations.shape[-2:]) == 1:
        return None
    if observations.ndim == 3:
        low, high = observations.min(), observations.max()
        observations = ((observations - low) / max(high - low, 1e-9))[:, None]
    elif observations.dtype == np.uint8:
        num_colours = 1 if observations.shape[1] % 3 else 3
        observations = observations[:, -num_colours:] / np.float32(255)
    else:
        painted = np.ones((len(observations), *observations.shape[2:], 3), np.float32)
        for index, plane in enumerate(np.moveaxis(observations, 1, 0).clip(0, 1)[..., None]):
            painted += plane * (to_rgb(PLANES[index % len(PLANES)]) - painted)
        return painted
    return np.broadcast_to(np.moveaxis(observations, 1, -1), (len(observations), *observations.shape[2:], 3))
