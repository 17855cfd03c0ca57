"""Checks of values and arrays: an error is one line that names the bad one."""

import contextlib
import dataclasses
import difflib
import math
import numbers
from collections.abc import Iterable, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

_LARGEST = float(np.finfo(np.float32).max)
ON_HOST = ("annealing", "distillation.steps")  # environment steps of which a device holds updates alone


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Raise a ValueError if the value is none of the choices: the message lists them, and names one that is near."""
    choices = list(choices)
    if value not in choices:
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(choices)}{did_you_mean(value, choices)}")


def did_you_mean(value: str, choices: Iterable[str]) -> str:
    """Return " (did you mean <nearest>?)", or "" where none is near."""
    nearest = difflib.get_close_matches(str(value), list(choices), n=1)
    return f" (did you mean {nearest[0]!r}?)" if nearest else ""


def check_numbers(config: Any, prefix: str = "") -> None:
    """Raise a ValueError where a setting, or one of the settings in it, is no number that a device can hold.

    Whole numbers have 32 bits, but those `ON_HOST`; others have those of a float32. They may be infinite here, but not
    nan.
    """
    for field in dataclasses.fields(config):
        name, value = prefix + field.name, getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            check_numbers(value, f"{name}.".replace("rule.settings.", "rule."))
        for number in value if isinstance(value, tuple) else (value,):
            bound = 2**63 if name in ON_HOST else 2**31
            if isinstance(number, numbers.Integral) and not -bound <= int(number) < bound:
                raise ValueError(f"{name} is {value}, expected a whole number below {bound}")
            if isinstance(number, float) and not (math.isinf(number) or abs(number) <= _LARGEST):
                raise ValueError(f"{name} is {value}, expected a number of at most {_LARGEST:.3g}")


def is_whole(value: Any) -> bool:
    """Say whether a value is a whole number, of Python or NumPy."""
    return isinstance(value, numbers.Integral) and not isinstance(value, (bool, np.bool_))


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raise a ValueError where an argument is no whole number, or below the least."""
    if not is_whole(value) or value < least:
        raise ValueError(f"{name} is {value!r}, expected a whole number of at least {least}")


def check_type(name: str, value: Any, kind: Any, expected: str) -> None:
    """Raise a TypeError where an argument is of another type; the message says what is expected."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {_shown(value)}, expected {expected}")


def as_array(name: str, value: Any) -> jax.Array:
    """Return the value as an array; a TypeError where it is none."""
    if value is not None:
        with contextlib.suppress(TypeError, ValueError):
            return jnp.asarray(value)
    raise TypeError(f"{name} is {_shown(value)}, expected an array")


def _shown(value: Any) -> str:
    """Return a value as a message shows it: a long one by its type alone."""
    text = repr(value)
    return text if len(text) < 80 else f"a {type(value).__name__}"


def checked_key(key: Any) -> jax.Array:
    """Return a random key as `jax.random.key` makes it, also one of `PRNGKey`; a TypeError if it is no single one."""
    if isinstance(key, (jax.Array, np.ndarray)) and key.dtype == jnp.uint32:
        if key.shape == jax.eval_shape(lambda: jax.random.PRNGKey(0)).shape:
            return jax.random.wrap_key_data(jnp.asarray(key))
    is_key = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not is_key or key.shape:
        found = f"an array {key.dtype}{list(key.shape)}" if isinstance(key, (jax.Array, np.ndarray)) else repr(key)
        raise TypeError(f"key is {found}, expected one random key, such as jax.random.key(0)")
    return key


def check_shape(name: str, x: Any, shape: Sequence[int | None]) -> None:
    """Raise a ValueError where an array has another shape; None stands for any size."""
    try:
        chex.assert_shape(x, tuple(shape))
    except AssertionError:
        expected = ", ".join("*" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} has the shape {list(np.shape(x))}, expected [{expected}]") from None
