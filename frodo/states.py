"""States as arrays by name, and back: pytrees of arrays, numbers and random keys."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def is_key(leaf: Any) -> bool:
    """Say whether a leaf, or what stands for one in a template, is a typed random key."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def as_array(leaf: Any) -> np.ndarray:
    """Return a leaf as an array of numbers; of a random key its data."""
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def leaves(state: Any) -> dict[str, Any]:
    """Return the leaves of a pytree by their paths in it, such as ".params['torso']['w']"."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}


def described(leaf: Any) -> str:
    """Return the dtype and shape of `as_array(leaf)`, such as "float32[3, 4]"; the leaf may be one of a template."""
    array = jax.eval_shape(jax.random.key_data, leaf) if is_key(leaf) else leaf
    array = array if hasattr(array, "dtype") else np.asarray(array)
    return f"{array.dtype}{list(array.shape)}"


def like(leaf: Any, array: np.ndarray) -> Any:
    """Give an array the type and the place of a leaf, or the type of what stands for one in a template."""
    is_placed = isinstance(leaf, jax.Array) and leaf.committed
    if is_key(leaf):
        impl = jax.random.key_impl(leaf if isinstance(leaf, jax.Array) else jnp.zeros((), leaf.dtype))
        key = jax.random.wrap_key_data(jnp.array(array), impl=impl)
        return jax.device_put(key, leaf.sharding) if is_placed else key
    if is_placed:
        return jax.device_put(array, leaf.sharding, may_alias=False)
    if isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)):
        return jnp.array(array)
    return array if isinstance(leaf, np.ndarray) else type(leaf)(array[()])


def restored(template: Any, found: Mapping[str, Any], name: str) -> Any:
    """Make a state like the template of leaves, or their arrays, by name.

    Raises:
      ValueError: naming the first leaf that is missing, unknown, or of another dtype or shape.
    """
    expected = leaves(template)
    for key in [*expected, *found]:
        was, now = (described(x[key]) if key in x else "nothing" for x in (found, expected))
        if was != now:
            raise ValueError(f"{name}{key} is {was} there and {now} here")
    arrays = [like(leaf, as_array(found[key])) for key, leaf in expected.items()]
    return jax.tree.unflatten(jax.tree.structure(template), arrays)
