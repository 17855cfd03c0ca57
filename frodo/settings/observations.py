"""What a run says of its observations when it begins: how pictures lie, and sizes that a network hardly learns from."""

import numpy as np

from agents.networks.agent import IMAGE_TORSOS, NetworkConfig
from agents.networks.torsos import layout_of
from agents.types import Array
from frodo.logs import note

LARGE = 30.0  # numbers that are not scaled
SMALL = 16  # of uint8, which is divided by 255


def note_layout(network: NetworkConfig, shape: tuple[int, ...]) -> None:
    """Say which axis of pictures is that of channels, for a torso for pictures.

    Raises:
      ValueError: if it is not known: `agents.networks.torsos.layout_of`.
    """
    if network.torso not in IMAGE_TORSOS or len(shape) != 3:
        return
    layout = layout_of(shape, network.layout)
    channels, *size = shape if layout == "first" else (shape[-1], *shape[:-1])
    pictures = "observations: pictures of {} x {} with {} channels ({} axis): network.layout"
    note(pictures.format(*size, channels, layout))


def note_sizes(observations: Array) -> None:
    """Say so where the first observations, as a network takes them, are large, or small for uint8."""
    size = float(np.max(np.abs(np.asarray(observations, np.float32)), initial=0.0))
    if observations.dtype == np.uint8:
        if 0 < size <= SMALL:
            note(f"observations: uint8 up to {size:.0f}, divided by 255: if they are no pictures, show float32 or bool")
    elif size > LARGE:
        note(f"observations: numbers up to {size:.4g}, not scaled: show pictures as uint8, divide others to about 1")
