"""What an agent sees observations with: functions of a Haiku module, observation [B, ...] -> embedding [B, F].

`conv` is the two-layer ConvNet of Xu et al. 2020 (Table 1: 32 and 64 channels, kernel and stride 4), `resnet` the deep
one of IMPALA (Espeholt et al. 2018, Figure 3).

Where the stride equals the kernel a convolution is a matrix product on patches. uint8 frames are therefore cut into
patches once, and trajectories hold the patches: on CPU this is several times faster than `lax.conv`, whose gradient is
slow inside of loops.
"""

from collections.abc import Callable

import haiku as hk
import jax.numpy as jnp

from agents.types import Array

LAYOUTS = ("first", "last")  # axes of a picture that may be that of channels
MOST_CHANNELS = 16
_PATCH = 4  # kernel and stride of both layers of `conv`


def layout_of(shape: tuple[int, ...], layout: str = "") -> str:
    """Return which axis of pictures of this shape is that of channels, "first" or "last".

    It is the one that is given. Else an axis can be it that has at most `MOST_CHANNELS` entries, and fewer than the
    largest axis: [8, 8, 3] are 3 channels of 8 x 8.

    Raises:
      ValueError: if both can, or neither.
    """
    if layout:
        return layout
    sizes = {"first": shape[0], "last": shape[-1]}
    can_be = [name for name, size in sizes.items() if size <= MOST_CHANNELS and size < max(shape)]
    if len(can_be) != 1:
        raise ValueError(
            f"pictures of the shape {tuple(shape)} may have their channels first or last: say which by "
            'network.layout="first" or "last"'
        )
    return can_be[0]


def with_channels(axis: str, frames: Array, layout: str = "") -> Array:
    """Return pictures [B, ...] of a layout (`layout_of`) with their channels on the axis "first" or "last"."""
    found = layout_of(frames.shape[1:], layout)
    if found == axis:
        return frames
    return jnp.moveaxis(frames, 1, -1) if axis == "last" else jnp.moveaxis(frames, -1, 1)


def to_patches(frames: Array) -> Array:
    """Cut frames [B, C, H, W] into patches that do not overlap, [B, H / 4, W / 4, C * 4 * 4]; zeros at the edges."""
    frames = jnp.pad(frames, ((0, 0), (0, 0), *(_same_padding(size) for size in frames.shape[2:])))
    b, c, h, w = frames.shape
    frames = jnp.reshape(frames, (b, c, h // _PATCH, _PATCH, w // _PATCH, _PATCH))
    return jnp.reshape(jnp.transpose(frames, (0, 2, 4, 1, 3, 5)), (b, h // _PATCH, w // _PATCH, c * _PATCH * _PATCH))


def _same_padding(size: int) -> tuple[int, int]:
    total = -size % _PATCH
    return total // 2, total - total // 2


def _scale(frames: Array) -> Array:
    return frames.astype(float) / 255 if frames.dtype == jnp.uint8 else frames * 1.0  # whole numbers are floats then


def flatten(observation: Array, activation: Callable[[Array], Array]) -> Array:
    del activation
    return jnp.reshape(_scale(observation), (len(observation), -1))


def conv(patches: Array, activation: Callable[[Array], Array]) -> Array:
    """[B, H / 4, W / 4, C * 16] uint8 -> [B, F]: two convolutions, kernel 4, stride 4, padding SAME."""
    x = activation(hk.Linear(32, name="conv_0")(_scale(patches)))
    x = to_patches(jnp.moveaxis(x, -1, 1))
    x = hk.Linear(64, name="conv_1")(x)
    return jnp.reshape(x, (len(x), -1))


def resnet(frames: Array, activation: Callable[[Array], Array], channels: tuple[int, ...]) -> Array:
    """[B, H, W, C] uint8 -> [B, F]: sections of convolution, max-pooling and two residual blocks."""
    x = _scale(frames)
    for size in channels:
        x = hk.Conv2D(size, 3)(x)
        x = hk.max_pool(x, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for _ in range(2):
            x = x + hk.Conv2D(size, 3)(activation(hk.Conv2D(size, 3)(activation(x))))
    return jnp.reshape(x, (len(x), -1))
