"""η of rules that are fitted to a hand-made target: from the user's cache, else fitted now, in half a minute."""

import dataclasses
import hashlib
import json

import jax
import numpy as np

from agents.types import Params
from frodo.devices import quick_to_compile
from frodo.files import DiskError, cache_folder, plain, read_arrays, write_arrays
from frodo.logs import note
from meta import fitting
from meta.scalar import FrodoConfig, frodo

VERSION = 1  # of the fit: another one makes all that was cached anew
_OF_LOSS = (  # settings that the fit does not depend on
    "reduction",
    "next_value_gradient",
    "consistency_cost",
    "is_consistency_multi_step",
    "value_cost",
    "entropy_cost",
)


def fitted_meta_params(target: str, settings: FrodoConfig) -> Params:
    """Return η for which a rule of these settings has the targets of that name in `meta.hand_made.TARGETS`.

    Raises:
      ValueError: naming the target if there is none, or the inputs that it cannot be made without.
    """
    settings.validate()
    fitting.check_target(target, settings)
    own = {name: plain(value) for name, value in dataclasses.asdict(settings).items() if name not in _OF_LOSS}
    digest = hashlib.sha256(json.dumps([VERSION, own], sort_keys=True).encode()).hexdigest()
    path = cache_folder() / "fitted" / f"{target}-{digest[:16]}.npz"
    shapes = jax.eval_shape(lambda key: frodo(settings).random_meta_params(key, 1), jax.random.key(0))
    leaves, structure = jax.tree.flatten(shapes)
    try:
        arrays = read_arrays(path)
        found = [arrays[f"{i}"] for i in range(len(leaves))]
        if all(x.shape == leaf.shape and np.all(np.isfinite(x)) for x, leaf in zip(found, leaves, strict=True)):
            return jax.tree.unflatten(structure, found)
    except (FileNotFoundError, ValueError, KeyError):  # none yet, or it is damaged
        pass
    note(f"fitting η to {target}: half a minute, once")
    fit = jax.jit(lambda key: fitting.fit(target, settings, key), compiler_options=quick_to_compile())
    meta_params = jax.device_get(fit(jax.random.key(0)))
    try:
        write_arrays(path, {f"{i}": x for i, x in enumerate(jax.tree.leaves(meta_params))})
    except DiskError as error:
        note(f"{error}: η is fitted again next time")
    return meta_params
