"""One lifetime as a program: an agent in one environment learns its own objective within it.

An iteration is: M trajectories for M updates of θ and one more for the outer loss, then one update of η; with a
hand-designed rule, M trajectories and M updates. Where the trajectory of the outer loss is kept, it is the first of the
next M. The learner is the same in both runtimes. With a pure environment, `make_online_program` makes environment,
actor and learner one jitted program: the first θ of an iteration acts all its trajectories (as in the paper's
pseudo-code), or the θ of each update acts its own. With an environment on the host, an actor thread hands trajectories
over.
"""

import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents import splitting
from agents.acting import in_jax as acting
from agents.acting.in_jax import Actor, ActorState
from agents.acting.on_host import ActedIteration
from agents.environments.host import HostEnvironment
from agents.types import Array, Params, Trajectory
from agents.validation import check_count
from frodo.regimes.learner import Control, Learner, LearnerState, split
from frodo.settings.config import AgentConfig
from meta.updates.curriculum import check_curriculum, make_curriculum
from toy_envs.base import Environment


class OnlineState(NamedTuple):
    """A whole lifetime in one pytree."""

    learner: LearnerState
    actor: ActorState


Evaluate = Callable[[OnlineState, OnlineState], dict[str, Array]]  # of the states before and after an iteration


class OnlineProgram(NamedTuple):
    """A lifetime in a pure environment.

    Attributes:
      init: key, η -> OnlineState; without the last argument η is random.
      run: state, number of iterations (static) -> state, metrics and Control of every iteration, [iterations] each.
      env_steps: of one iteration, all environments of the batch counted.
      again: state -> state, parts [M, T, B, ...]: an iteration once more, to see what it acted, part after part.
    """

    learner: Learner
    init: Callable[..., OnlineState]
    run: Callable[[OnlineState, int], tuple[OnlineState, dict[str, Array], Control]]
    again: Callable[[OnlineState], tuple[OnlineState, list[Trajectory]]]
    env_steps: int


def make_online_program(
    learner: Learner, environment: Environment, evaluate: Evaluate = lambda before, after: {}
) -> OnlineProgram:
    """Make environment, actor and learner one program; `evaluate` adds metrics to each iteration."""
    config, agent, policy = learner.config, learner.setup.agent, learner.setup.rule.policy
    check_tasks(learner, environment)
    discount = getattr(config.rule.settings, "discount", 1.0)  # a user-defined rule may have none
    curriculum = make_curriculum(config.curriculum, environment, agent, policy, discount)
    actor = Actor(environment, agent, policy, config.exploration, curriculum)

    def init(key: Array, meta_params: Params | None = None) -> OnlineState:
        actor_key, learner_key = jax.random.split(key)
        actor_state = acting.init_actor(environment, agent, actor_key, config.batch_size, curriculum)
        observation = jax.vmap(environment.observe)(actor_state.env_state)
        return OnlineState(split(learner.init(learner_key, observation, meta_params)), acting.split(actor_state))

    def iteration(state: OnlineState, _: Any) -> tuple[OnlineState, tuple[dict[str, Array], Control]]:
        learner_state, metrics, control, actor_state, stats = learner.iterate(state.learner, actor, state.actor)
        after = OnlineState(split(learner_state), acting.split(actor_state))
        episodes = {"episodes": stats.num_episodes, "return_sum": stats.return_sum}
        return after, (metrics | evaluate(state, after) | episodes, control)

    def run(state: OnlineState, num_iterations: int):
        state, (metrics, control) = jax.lax.scan(iteration, state, None, length=num_iterations)
        return state, *splitting.whole((metrics, control))

    def again(state: OnlineState) -> tuple[OnlineState, list[Trajectory]]:
        actor_state, trajectories, validation, _ = learner.act_iteration(state.learner, actor, state.actor)
        learner_state, *_ = learner.learn(state.learner, trajectories, validation)
        parts = [trajectories] + ([] if validation is None else [jax.tree.map(lambda x: x[None], validation)])
        return OnlineState(split(learner_state), acting.split(actor_state)), parts

    return OnlineProgram(learner, init, run, again, config.num_env_steps(learner.is_meta))


def make_host_learn(learner: Learner) -> Callable[..., tuple[LearnerState, dict[str, Array], Control]]:
    """Make `learner.learn` for what a host hands over, `of_all_actors`: what comes of it lies as a lifetime does.

    It takes the trajectories of one or several iterations, and from how many of these to learn, one after the other.
    Metrics and Control are those of each, [iterations].
    """
    size = learner.config.schedule(learner.is_meta).num_trajectories

    def learn(state: LearnerState, trajectories: Trajectory, validation: Trajectory | None):
        state, *outputs = learner.learn(state, trajectories, validation)
        return split(state), splitting.whole(outputs)

    def learn_all(state: LearnerState, trajectories: Trajectory, validation: Trajectory | None, num_iterations: Array):
        if len(trajectories.action) == size:
            state, outputs = learn(state, trajectories, validation)
            return state, *jax.tree.map(lambda x: x[None], outputs)

        def one(i: Array, so_far: tuple[LearnerState, Any]) -> tuple[LearnerState, Any]:
            state, outputs = so_far
            own = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, i * size, size), trajectories)
            state, new = learn(state, own, None)
            return state, jax.tree.map(lambda all_of, x: all_of.at[i].set(x), outputs, new)

        num = len(trajectories.action) // size
        own = jax.tree.map(lambda x: x[:size], trajectories)
        shapes = jax.eval_shape(learn, state, own, None)[1]
        outputs = jax.tree.map(lambda x: jnp.zeros((num, *x.shape), x.dtype), shapes)
        state, outputs = jax.lax.fori_loop(0, num_iterations, one, (state, outputs))
        return state, *outputs

    return learn_all


def of_all_actors(acted: ActedIteration) -> tuple[Trajectory, Trajectory | None]:
    """Return the trajectories that this process's actor and those of the others acted, as one batch of the mesh."""
    validation = None if acted.validation is None else splitting.of_processes(acted.validation)
    return splitting.of_processes(acted.trajectories, axis=2), validation


def check_tasks(learner: Learner, environment: Environment | HostEnvironment) -> None:
    """Raise a ValueError where tasks cannot be chosen as the curriculum of the settings says."""
    config, lengths = learner.config, ("unroll", "validation_unroll")[: 1 + learner.is_meta]
    spec = learner.setup.rule.spec(environment.num_actions)
    check_curriculum(config.curriculum, environment, {name: getattr(config, name) for name in lengths}, spec)


def check_split(config: AgentConfig, num_devices: int) -> None:
    """Raise a ValueError where a lifetime cannot be split over so many devices (0 for no split): `splitting.over`."""
    check_count("num_devices", num_devices, 0)
    if not num_devices and not jax.distributed.is_initialized():
        return  # and JAX has not begun
    num, num_processes = jax.device_count(), jax.process_count()
    if num_devices > num:
        raise ValueError(f"num_devices is {num_devices}, expected at most the {num} there are, or 0 for no split")
    if num_processes > 1 and num_devices != num:
        raise ValueError(f"num_devices is {num_devices}, expected all {num} of the {num_processes} processes")
    if num_devices:
        check_divided(config, num_devices, f"num_devices ({num_devices})")


def check_divided(config: AgentConfig, num_devices: int, name_of_devices: str) -> None:
    """Raise a ValueError, in which the devices have this name, where they do not divide what is split over them."""
    sizes = {"batch_size": config.batch_size}
    if config.replay.capacity:
        sizes |= {"replay.batch_size": config.replay.batch_size, "replay.capacity": config.replay.capacity}
    for name, size in sizes.items():
        if size % num_devices:
            raise ValueError(f"{name} is {size}, expected a multiple of {name_of_devices}")


def whole_steps(num_steps: float, env_steps: int) -> int:
    """Return the steps of the whole iterations that there are in so many; a ValueError where there is none."""
    if isinstance(num_steps, (jax.Array, np.ndarray)) and not num_steps.shape:
        num_steps = num_steps.item()
    is_number = isinstance(num_steps, numbers.Real) and not isinstance(num_steps, bool)
    if not is_number or not env_steps <= num_steps < float("inf"):
        raise ValueError(
            f"num_steps is {num_steps!r}, expected a number of at least {env_steps}, the environment steps of one "
            "iteration"
        )
    return int(num_steps) // env_steps * env_steps
