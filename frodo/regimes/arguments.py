"""Checks of what a learner's functions are given: shapes when they are traced, values where nothing is compiled."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.environments.adapt import as_environment
from agents.networks.agent import Agent
from agents.rule import UpdateRule
from agents.types import Array, Params, Trajectory, check_trajectory
from agents.validation import check_shape, check_type
from frodo import states
from frodo.settings.config import AgentConfig
from meta.updates.lifetime import Setup, init_agent_state


def check_like(name: str, found: Any, expected: Any, what: str) -> None:
    """Raise a ValueError that names the first array of a pytree whose shape is not that in `expected`."""
    has, wants = _shapes(found), _shapes(expected)
    for path in wants | has:
        if has.get(path) != wants.get(path):
            one, other = (list(x[path]) if path in x else "nothing" for x in (has, wants))
            raise ValueError(f"{name}{path} has the shape {one}, expected {other}: {what}")


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {name: x.shape if hasattr(x, "shape") else np.shape(x) for name, x in states.leaves(tree).items()}


def check_meta_params(rule: UpdateRule, num_actions: int, meta_params: Params | None) -> None:
    """Raise a ValueError for an η that is not the rule's, or, outside of compiled programs, not finite."""
    if meta_params is None:
        return
    expected = rule.meta_param_shapes(num_actions)
    check_like("meta_params", meta_params, expected, "an η of this rule with these settings")
    check_finite("meta_params", meta_params)


def check_known_values(config: AgentConfig, environment: Any) -> None:
    """Raise a ValueError where the rule takes the true values of another environment."""
    known = getattr(config.rule.settings, "known_values", "")
    if known and as_environment(known) != environment:
        raise ValueError(f"rule.known_values is {known!r} and the environment {environment}, expected the same")


def check_finite(name: str, tree: Any) -> None:
    """Raise a ValueError that names the first array with entries that are not finite, outside of compiled programs."""
    leaves = jax.tree.leaves(tree)
    if any(isinstance(x, (jax.core.Tracer, jax.ShapeDtypeStruct)) for x in leaves):
        return
    with jax.ensure_compile_time_eval():  # of arrays that a program takes as constants
        if all_finite(leaves):
            return
    for where, x in states.leaves(tree).items():
        if not np.all(np.isfinite(x)):
            raise ValueError(f"{name}{where} has entries that are not finite, expected numbers")


@jax.jit
def all_finite(tree: Any) -> Array:
    """Say whether all arrays of a pytree are finite, as one bool, so that nothing else is transferred."""
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))


are_finite = jax.jit(jax.vmap(all_finite))  # of each of several pytrees, [N, ...]


def check_params(agent: Agent, params: Params, observation: Any) -> None:
    """Raise a ValueError for a θ of another agent than that for such observations [B, ...]."""
    prepared = jax.eval_shape(agent.prepare, observation)
    expected = jax.eval_shape(agent.init, jax.random.key(0), prepared)
    check_like("params", params, expected, f"a θ of this agent for observations {list(observation.shape)}, B first")


def check_core_state(agent: Agent, core_state: Any, batch_size: int) -> None:
    """Raise a ValueError for a core state of another core, or of another number of environments."""
    expected = jax.eval_shape(lambda: agent.initial_state(batch_size))
    what = "what `act` returned before, initially `setup.agent.initial_state(B)`"
    check_like("core_state", core_state, expected, what)


def make_check_state(setup: Setup, num_actions: int, kind: type) -> Callable[[Any, Any], None]:
    """Make the check of a learner's state, of that type, by which an agent is to see observations [B, ...].

    Of each shape of observations, what is expected is found out once.
    """

    @functools.cache
    def expected_for(shape: tuple[int, ...], dtype: Any) -> tuple[Any, Any]:
        prepared = jax.eval_shape(setup.agent.prepare, jax.ShapeDtypeStruct(shape, dtype))
        agent = jax.eval_shape(lambda x: init_agent_state(setup, jax.random.key(0), x), prepared)
        return agent, setup.rule.meta_param_shapes(num_actions)

    def check(state: Any, observation: Any) -> None:
        check_type("state", state, kind, "what `init`, `update` or `learn` of this learner returned")
        check_is_batch(observation)
        agent, meta_params = expected_for(tuple(observation.shape), jnp.dtype(observation.dtype))
        if _shapes(state.agent) != _shapes(agent):
            check_first_observation(observation)  # which is then more likely the one that is wrong
        of = f"a state of this learner, for observations {list(observation.shape)}, B first"
        check_like("state.agent", state.agent, agent, of)
        check_like("state.meta_params", state.meta_params, meta_params, of)
        check_finite("state.meta_params", state.meta_params)

    return check


def check_first_observation(observation: Array) -> None:
    """Raise a ValueError for observations of no environment, or without an axis of them, as far as shapes show it."""
    check_is_batch(observation, 1 if isinstance(observation, jax.core.Tracer) else 2)  # a compiled program's: numbers


def check_is_batch(observation: Array, num_axes: int = 1) -> None:
    """Raise a ValueError for observations with fewer axes, or of no environment."""
    is_short = observation.ndim < num_axes
    if is_short or not len(observation):
        why = (
            ": the first axis is that of the environments, also of one" if is_short else " of at least one environment"
        )
        raise ValueError(f"observation has the shape {list(observation.shape)}, expected [B, ...]{why}")


def check_is_first(is_first: Any, batch_size: int) -> None:
    """Raise a ValueError where `is_first` is not [B] bool."""
    check_shape("is_first", is_first, (batch_size,))
    if is_first.dtype != bool:
        raise ValueError(f"is_first has the dtype {is_first.dtype}, expected bool")


def check_experience(agent: Agent, trajectory: Any, num_actions: int) -> None:
    """Raise an error that names the first part of a trajectory that is not what an agent acted."""
    check_type("trajectory", trajectory, Trajectory, "a Trajectory, as `make_trajectory` makes it")
    check_trajectory(trajectory)
    shape = trajectory.action.shape
    check_shape("behaviour_logits", trajectory.behaviour_logits, (*shape, num_actions))
    check_core_state(agent, trajectory.core_state, shape[1])
