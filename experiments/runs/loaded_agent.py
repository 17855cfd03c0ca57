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
from experiments.runs.training import check_learner
from frodo import files
from frodo.devices import quick_to_compile
from frodo.regimes.adaptation import returns_by_trial
from frodo.regimes.learner import Learner, build_learner
from frodo.regimes.lifetimes import make_online_program
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
    if isinstance(environment, Environment):
        program, chosen = make_online_program(learner, environment), seeds[0] if seed is None else seed
        if chosen in seeds:
            init = jax.jit(jax.vmap(program.init), compiler_options=quick_to_compile())
            states, _, _ = checkpoints.restore(init(jax.vmap(jax.random.key)(jnp.array(seeds))))
            state = jax.tree.map(lambda x: x[seeds.index(chosen)], states.learner)
    else:
        observation = environment.reset().observation
        environment.close()
        key = jax.random.key(0)
        init = jax.jit(learner.init, compiler_options=quick_to_compile())
        keys = actor_keys(key, config.num_actors)
        template = {"index": 0, "step": 0, "actor_key": keys, "learner": init(key, observation)}
        restored, _, _ = checkpoints.restore(template)
        seeds, state = [seeds[restored["index"]]], restored["learner"]
        chosen = seeds[0] if seed is None else seed
    if chosen not in seeds:
        raise UsageError(f"--seed={seed}: the checkpoint of {folder} holds {', '.join(map(str, seeds))}")
    return LoadedAgent(config, chosen, learner, state.agent, state.meta_params)


def load_teacher(config: OnlineConfig) -> Teacher | None:
    """Return the agent that teaches one with these settings, None if they name none; errors as of `load`."""
    if not config.distillation.teacher:
        return None
    with caused_by("distillation.teacher"):
        loaded = load(Path(config.distillation.teacher))
        if _forgets(loaded.config) != _forgets(config):
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
    forgets = _forgets(agents[0].config)
    how: dict[str, Any] = dict(num_trials=num_trials, num_episodes=num_episodes)
    how |= dict(is_forgetful=forgets, is_greedy=is_greedy)
    learner, key = agents[0].learner, jax.random.key(0)
    run = jax.jit(lambda params: returns_by_trial(learner, params, environment, tasks, key, **how))
    return np.stack([run(one.learner.setup.acting_params(one.agent)) for one in agents])


def _forgets(config: OnlineConfig) -> bool:
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


def states_of(loaded: LoadedAgent, trajectory: Trajectory, seed: int) -> Any:
    """Return the states of the pure environment in which `play` with that seed met a trajectory, [T + 1, B, ...]."""
    batch_size = trajectory.action.shape[1]
    environment = make_environment(loaded.config.env, batch_size, seed)
    assert isinstance(environment, Environment)

    @jax.jit
    def run(key):
        start = acting.init_actor(environment, loaded.learner.setup.agent, key, batch_size).env_state
        step = jax.vmap(lambda *of: environment.step(*of)[0])
        before = jnp.concatenate([jnp.zeros_like(trajectory.truncated[:1]), trajectory.truncated[:-1]])
        taken = (trajectory.action, before)
        end, states = jax.lax.scan(lambda state, of: (step(state, *of), state), start, taken)
        return jax.tree.map(lambda x, last: jnp.concatenate([x, last[None]]), states, end)

    return run(jax.random.key(seed))


def _play_on_host(
    loaded: LoadedAgent, environment: HostEnvironment, key: Array, num_steps: int
) -> tuple[Trajectory, np.ndarray]:
    setup = loaded.learner.setup
    agent, policy, params = setup.agent, setup.rule.policy, setup.acting_params(loaded.agent)
    prepare = jax.jit(agent.prepare)
    act = jax.jit(
        lambda key, observation, is_first, core: acting.act(agent, policy, params, key, observation, is_first, core)
    )
    first_core = core = agent.initial_state(environment.num_envs)
    time_step = environment.reset()
    memory.check({"the number of steps": num_steps * time_step.observation.nbytes})
    before, after, chosen = [time_step], [], []
    for step_key in jax.random.split(key, num_steps):
        action, logits, core = act(step_key, prepare(time_step.observation), time_step.is_first, core)
        time_step = environment.step(np.asarray(action))
        before.append(time_step)
        after.append(time_step)
        chosen.append((action, logits))
    environment.close()
    observations = np.stack([step.observation for step in before])
    actions, logits = (jnp.stack(x) for x in zip(*chosen, strict=True))
    stack = lambda name: jnp.stack([getattr(step, name) for step in after])
    trajectory = Trajectory(
        observation=jax.vmap(prepare)(observations),
        is_first=jnp.stack([step.is_first for step in before]),
        action=actions,
        reward=stack("reward"),
        discount=stack("discount"),
        truncated=stack("truncated"),
        valid=stack("valid"),
        behaviour_logits=logits,
        core_state=first_core,
    )
    return trajectory, observations


def rule_inputs(loaded: LoadedAgent, trajectory: Trajectory) -> tuple[Trajectory, Predictions, Predictions]:
    """Return the rule's inputs: the trajectory with clipped rewards, the predictions, and those of the slow copy."""
    agent, state, rule = loaded.learner.setup.agent, loaded.agent, loaded.learner.setup.rule
    predictions = agent.unroll(state.params, trajectory)
    slow = agent.unroll(state.target_params, trajectory) if rule.has_copy else predictions
    return clip_rewards(trajectory, loaded.config.max_abs_reward), predictions, slow
