"""A trained agent, read from its run folder: its acting, its predictions, and the inputs of its rule.

agent = load(Path("results/evaluate/toy_catch_8x8_disco103"))
trajectory, observations = play(agent, num_steps=50, batch_size=2, seed=0)
clipped, predictions, slow = rule_inputs(agent, trajectory)
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents.acting import in_jax as acting
from agents.acting.on_host import actor_keys
from agents.environments.host import HostEnvironment
from agents.environments.names import is_pure, make_environment
from agents.types import Array, Params, Predictions, Trajectory
from frodo import files
from frodo.devices import quick_to_compile
from frodo.regimes.adaptation import returns_by_trial
from frodo.regimes.learner import Learner, build_learner
from frodo.regimes.lifetimes import check_tasks, make_online_program
from frodo.regimes.online import load as load_result
from frodo.regimes.results import shipped_agents
from frodo.runs import memory
from frodo.runs.checkpoints import Checkpoints
from frodo.runs.errors import UsageError, caused_by
from frodo.runs.folders import check_version, has_checkpoint
from frodo.settings.config import OnlineConfig
from meta.updates.distillation import Teacher
from meta.updates.lifetime import AgentState, clip_rewards
from toy_envs.base import Environment
from toy_envs.trials import Trials


class LoadedAgent(NamedTuple):
    """The end of one seed's lifetime."""

    config: OnlineConfig
    seed: int
    learner: Learner
    agent: AgentState
    meta_params: Params  # η


def load(folder: Path, seed: int | None = None) -> LoadedAgent:
    """Read an agent from the last checkpoint of a run, of the first seed that it holds if none is given.

    Raises:
      UsageError: if the folder holds no run of `online` with a checkpoint, or none of that seed.
    """
    try:
        record = files.read_json(folder / "config.json")
        check_version(folder, record)
        config = files.from_plain(OnlineConfig, record["config"])
        config.validate()
        seeds = record["seeds"]
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{folder} holds no run: there is no config.json") from None
    except UsageError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{folder} holds no run of an agent that this version knows: {error}") from None
    if not has_checkpoint(folder):
        raise UsageError(f"{folder} holds a run without a checkpoint")
    environment = make_environment(config.env, config.batch_size, 0)
    checkpoints = Checkpoints(folder / "checkpoints", is_reader=True)
    learner = build_learner(config, environment.num_actions, config.is_frozen)
    check_learner(learner, environment, len(seeds) if is_pure(config.env) else 1)
    chosen, quick = seeds[0] if seed is None else seed, quick_to_compile()
    if isinstance(environment, Environment):
        init = jax.jit(jax.vmap(make_online_program(learner, environment).init), compiler_options=quick)
        if chosen in seeds:
            states = checkpoints.restore(init(jax.vmap(jax.random.key)(jnp.array(seeds))))[0]
            state = jax.tree.map(lambda x: x[seeds.index(chosen)], states.learner)
    else:
        observation, key = environment.reset().observation, jax.random.key(0)
        environment.close()
        of_learner = jax.jit(learner.init, compiler_options=quick)(key, observation)
        of_actor = {"actor_key": actor_keys(key, config.num_actors)}
        restored = checkpoints.restore({"index": 0, "step": 0, "learner": of_learner} | of_actor)[0]
        seeds, state = [seeds[restored["index"]]], restored["learner"]
        chosen = seeds[0] if seed is None else seed
    if chosen not in seeds:
        raise UsageError(f"--seed={seed}: the checkpoint of {folder} holds {', '.join(map(str, seeds))}")
    return LoadedAgent(config, chosen, learner, state.agent, state.meta_params)


def of_result(name: str, env: str) -> LoadedAgent:
    """Read an agent from the file of an `OnlineResult`, or one of the package by its name, to act in an environment.

    Raises:
      UsageError: if there is no such agent, or its observations and actions are not those of the environment.
    """
    try:
        result = load_result(name)
    except FileNotFoundError:
        known = ", ".join(shipped_agents())
        raise UsageError(f"there is no file {name}, expected one of OnlineResult.save, or one of {known}") from None
    facts, environment = result.life.facts, make_environment(env, 1, 0)
    own, expected = ([list(x.observation_shape), x.num_actions] for x in (facts, environment))
    if own != expected:
        raise UsageError(f"observations and number of actions of {name} are {own}, expected {expected} as of {env}")
    config = OnlineConfig(env=env, **vars(facts.config))
    return LoadedAgent(config, 0, result.learner, result.state.agent, result.meta_params)


def check_learner(learner: Learner, environment: Environment | HostEnvironment, num_lives: int = 1) -> None:
    """Raise a ValueError before anything is written: the network, say, may not suit the observations, or memory."""
    check_tasks(learner, environment)
    config = learner.config
    state = jax.eval_shape(learner.init, jax.random.key(0), memory.batch_shape(config, environment))
    of_all = jax.tree.map(lambda x: jax.ShapeDtypeStruct((num_lives, *x.shape), x.dtype), state)
    memory.check_agents(config, learner.setup.agent, environment, learner.is_meta, of_all)


def load_teacher(config: OnlineConfig) -> Teacher | None:
    """Return the agent that teaches one with these settings, None if they name none; errors as of `load`."""
    if not config.distillation.teacher:
        return None
    with caused_by("distillation.teacher"):
        loaded = load(Path(config.distillation.teacher))
        if forgets(loaded.config) != forgets(config):
            raise UsageError(f"{config.distillation.teacher}: either both agents forget at the end of a trial, or none")
    return loaded.learner.setup.teacher(loaded.agent)


def play_trials(
    agents: Sequence[LoadedAgent],
    environment: Environment,
    tasks: Any,
    num_trials: int,
    num_episodes: int,
    is_greedy: bool = False,
) -> np.ndarray:
    """Let the agents of a run play tasks (`frodo.returns_by_trial`), [num_agents, num_tasks, num_trials].

    They forget at the end of a trial if they do so where they were trained.
    """
    how: dict[str, Any] = dict(num_trials=num_trials, num_episodes=num_episodes)
    how |= dict(is_forgetful=forgets(agents[0].config), is_greedy=is_greedy)
    learner, key = agents[0].learner, jax.random.key(0)
    run = jax.jit(lambda params: returns_by_trial(learner, params, environment, tasks, key, **how))
    return np.stack([run(one.learner.setup.acting_params(one.agent)) for one in agents])


def forgets(config: OnlineConfig) -> bool:
    """Say whether an agent's memory is reset at the end of each trial."""
    environment = make_environment(config.env, 1, 0) if is_pure(config.env) else None
    return isinstance(environment, Trials) and environment.is_forgetful


def play(loaded: LoadedAgent, num_steps: int, batch_size: int, seed: int) -> tuple[Trajectory, np.ndarray]:
    """Act in new environments: a trajectory [T, B], and its observations as the environment shows them [T + 1, B, ...].

    On a host the seed decides the environments as well as the actions.
    """
    environment = make_environment(loaded.config.env, batch_size, seed)
    setup = loaded.learner.setup
    agent, policy, params = setup.agent, setup.rule.policy, setup.acting_params(loaded.agent)
    key = jax.random.key(seed)
    if isinstance(environment, Environment):

        @jax.jit
        def run(key):
            state = acting.init_actor(environment, agent, key, batch_size)
            return acting.rollout(acting.Actor(environment, agent, policy), params, state, num_steps)[1]

        shapes = jax.eval_shape(run, key)
        memory.check({"the number of steps": memory.num_bytes(shapes)})
        trajectory = run(key)
        return trajectory, np.asarray(trajectory.observation)  # which `prepare` leaves as they are, of a toy
    return _play_on_host(loaded, environment, key, num_steps)


def _play_on_host(
    loaded: LoadedAgent, environment: HostEnvironment, key: Array, num_steps: int
) -> tuple[Trajectory, np.ndarray]:
    setup = loaded.learner.setup
    agent, policy, params = setup.agent, setup.rule.policy, setup.acting_params(loaded.agent)
    act = jax.jit(lambda key, shown, *of: acting.act(agent, policy, params, key, agent.prepare(shown), *of))
    first_core = core = agent.initial_state(environment.num_envs)
    steps, chosen = [environment.reset()], []
    memory.check({"the number of steps": num_steps * steps[0].observation.nbytes})
    for step_key in jax.random.split(key, num_steps):
        action, logits, core = act(step_key, steps[-1].observation, steps[-1].is_first, core)
        steps.append(environment.step(np.asarray(action)))
        chosen.append((action, logits))
    environment.close()
    shown = jax.tree.map(lambda *of: np.stack(of), *steps)
    actions, logits = jax.tree.map(lambda *of: jnp.stack(of), *chosen)
    trajectory = Trajectory(
        observation=jax.jit(jax.vmap(agent.prepare))(shown.observation),
        is_first=jnp.asarray(shown.is_first),
        action=actions,
        behaviour_logits=logits,
        core_state=first_core,
        **{name: jnp.asarray(getattr(shown, name)[1:]) for name in ("reward", "discount", "truncated", "valid")},
    )
    return trajectory, shown.observation


def rule_inputs(loaded: LoadedAgent, trajectory: Trajectory) -> tuple[Trajectory, Predictions, Predictions]:
    """Return the rule's inputs: the trajectory with clipped rewards, the predictions, and those of the slow copy."""
    agent, state, rule = loaded.learner.setup.agent, loaded.agent, loaded.learner.setup.rule
    predictions = agent.unroll(state.params, trajectory)
    slow = agent.unroll(state.target_params, trajectory) if rule.has_copy else predictions
    return clip_rewards(trajectory, loaded.config.max_abs_reward), predictions, slow
