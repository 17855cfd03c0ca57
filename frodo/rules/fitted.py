"""η of rules that are fitted to a hand-designed target: from the user's cache, else fitted now, in a minute or two."""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable

import jax

from agents.types import Array, Params
from agents.validation import check_choice
from frodo import archives
from frodo.devices import quick_to_compile
from frodo.files import DiskError, cache_folder, plain, write_arrays
from frodo.logs import note
from frodo.settings.registry import RuleConfig, make_update_rule, starts

VERSION = 1  # of the fit: another one makes all that was cached anew
_OF_LOSS = (  # settings that the fit does not depend on, besides the costs
    "reduction",
    "next_value_gradient",
    "is_consistency_multi_step",
    "target_decay",
    "skips_first_steps",
)


def check_target(target: str, rule: RuleConfig) -> None:
    """Raise a ValueError if there is no such target, or it is none of that rule, or cannot be made by its inputs."""
    fits = starts(is_fitted=True)
    check_choice("target", target, fits)
    of, start = fits[target]
    if rule.name != of:
        raise ValueError(f"{target} is fitted to the rule {of!r} alone, and the rule is {rule.name!r}")
    rule.validate()
    start.check(rule.settings)


def cached(target: str, rule: RuleConfig, fit: Callable[[Array], Params]) -> Params:
    """Return what a fit makes of a key for that target, from the cache if it is there."""
    all_settings = dataclasses.asdict(rule.settings).items()
    own = {name: plain(x) for name, x in all_settings if name not in _OF_LOSS and not name.endswith("_cost")}
    digest = hashlib.sha256(json.dumps([VERSION, own], sort_keys=True).encode()).hexdigest()
    path = cache_folder() / "fitted" / f"{target}-{digest[:16]}.npz"
    leaves, structure = jax.tree.flatten(make_update_rule(rule).meta_param_shapes())
    with contextlib.suppress(FileNotFoundError, ValueError):  # none yet, or it is damaged
        with archives.opened(path) as archive:
            found = archive.read_all({f"{i}": x for i, x in enumerate(leaves)}, "the fit")
        return jax.tree.unflatten(structure, found.values())
    note(f"fitting η to {target}: a minute or two, once")
    meta_params = jax.device_get(jax.jit(fit, compiler_options=quick_to_compile())(jax.random.key(0)))
    try:
        write_arrays(path, {f"{i}": x for i, x in enumerate(jax.tree.leaves(meta_params))})
    except DiskError as error:
        note(f"{error}: η is fitted again next time")
    return meta_params
