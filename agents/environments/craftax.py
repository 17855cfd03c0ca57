"""Craftax-Classic by name: Crafter as pure functions (Matthews et al. 2024), in the adapter of gymnax's interface."""

import functools

from agents.environments.extras import import_extra
from agents.environments.gymnax import GymnaxEnvironment

CLASSIC = "Craftax-Classic-Symbolic-v1"


@functools.cache
def make_craftax(env_id: str) -> GymnaxEnvironment:
    """Make an environment, the same one for the same id: populations compile one program for it."""
    assert env_id == CLASSIC
    craftax = import_extra("craftax", "craftax_classic.envs.craftax_symbolic_env")
    return GymnaxEnvironment(craftax.craftax_classic.envs.craftax_symbolic_env.CraftaxClassicSymbolicEnvNoAutoReset())


def craftax_ids() -> list[str]:
    """Return the ids of craftax that have an adapter; an ImportError says where it is missing."""
    import_extra("craftax")
    return [CLASSIC]
