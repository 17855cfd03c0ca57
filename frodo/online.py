"""The online regime: one agent in one environment learns its own objective within one lifetime.

An iteration is: M trajectories for M updates of θ and one more for the outer loss, then one update of η; with a
hand-made rule, M trajectories and M updates. Where the trajectory of the outer loss is kept, it is the first of the
next M. The learner is the same in both runtimes. With a pure environment, `make_online_program` makes environment,
actor and learner one jitted program: the first θ of an iteration acts all its trajectories (as in the paper's
pseudo-code), or the θ of each update acts its own. With an environment on the host, an actor thread hands trajectories
over.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents import acting, splitting
from agents.acting import Actor, ActorState
from agents.environments.adapt import as_environment
from agents.environments.host import HostEnvironment
from agents.environments.names import is_pure
from agents.host_acting import ActedIteration, HostActor
from agents.types import Array, Params, Trajectory
from frodo import presets
from frodo.config import AgentConfig
from frodo.devices import own_key, quick_to_compile, total
from frodo.learner import Control, Learner, LearnerState, build_learner, check_teacher, split
from frodo.logs import Progress
from frodo.observations import note_layout, note_sizes
from frodo.rule_files import Origin, Rule, get_rule
from frodo.rules import RULES
from meta.curriculum import check_curriculum, make_curriculum
from meta.distillation import DistillationConfig, Teacher
from meta.experience import apart, jit_in_place, together
from toy_envs.base import Environment
from toy_envs.trials import Trials

MAX_SKIPPED_IN_A_ROW = 10  # non-finite meta-gradients that a run survives
CHUNK = 100  # iterations of one call of a compiled program, at most


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
    """

    learner: Learner
    init: Callable[..., OnlineState]
    run: Callable[[OnlineState, int], tuple[OnlineState, dict[str, Array], Control]]
    env_steps: int


def make_online_program(
    learner: Learner, environment: Environment, evaluate: Evaluate = lambda before, after: {}
) -> OnlineProgram:
    """Make environment, actor and learner one program; `evaluate` adds metrics to each iteration."""
    config, agent, policy = learner.config, learner.setup.agent, learner.setup.rule.policy
    check_tasks(learner, environment)
    discount = getattr(config.rule.settings, "discount", 1.0)  # a rule of somebody's own may have none
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

    return OnlineProgram(learner, init, run, config.num_env_steps(learner.is_meta))


def make_host_learn(learner: Learner) -> Callable[..., tuple[LearnerState, dict[str, Array], Control]]:
    """Make `learner.learn` for a host's trajectories, `of_all_actors`: what comes of it lies as a lifetime does."""

    def learn(state: LearnerState, trajectories: Trajectory, validation: Trajectory | None):
        state, *outputs = learner.learn(state, trajectories, validation)
        return split(state), *splitting.whole(outputs)

    return learn


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
    num, num_processes = jax.device_count(), jax.process_count()
    if not 0 <= num_devices <= num:
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


class OnlineResult:
    """An agent and its objective at the end of a run.

    Attributes:
      learner: the agent's functions.
      state: all that learning changed; `state.params` is θ, `state.meta_params` η.
      metrics: of every iteration, [iterations] each: env_steps, return (the mean of the episodes that ended, nan if
        none did), and what rule and outer objective report.
      rule: the rule with its η as it is now, to save, or to learn by elsewhere.
    """

    def __init__(self, learner: Learner, state: LearnerState, metrics: dict[str, np.ndarray], go_on: Callable):
        self.learner, self.state, self.metrics, self._go_on = learner, state, metrics, go_on

    @property
    def params(self) -> Params:
        """θ of the agent that acts."""
        return self.state.params

    @property
    def meta_params(self) -> Params:
        """η."""
        return self.state.meta_params

    @property
    def teacher(self) -> Teacher:
        """The agent that acts, to teach another one."""
        return self.learner.setup.teacher(self.state.agent)

    @property
    def rule(self) -> Rule:
        steps = int(self.metrics["env_steps"][-1])
        config = self.learner.config.replace(distillation=DistillationConfig())
        return Rule(config.rule.name, config, self.meta_params, Origin((), steps, None))

    def go_on(self, num_steps: float) -> "OnlineResult":
        """Go on with the same lifetime for so many environment steps; metrics are those of all of it.

        On the host, episodes begin anew.
        """
        return self._go_on(num_steps)


def discover_online(
    environment: Any,
    rule: Rule | str = "frodo",
    *,
    num_steps: float,
    key: Array,
    is_frozen: bool = False,
    num_devices: int = 0,
    teacher: Teacher | None = None,
    **settings: Any,
) -> OnlineResult:
    """Let one agent live in an environment, and learn its own objective if the rule has one to learn.

    Args:
      environment: a pure one (`Environment`, or one of gymnax, navix or xminigrid), which is batched here; a batch on
        the host, such as a `gymnasium.vector.VectorEnv`, or a sequence of `dm_env.Environment`; or the name of one, as
        'toy/catch'. `agents.environments.adapt.as_environment` says what is taken. Of a name on the host there are
        `batch_size` environments, that of the settings, with seeds from the key.
      rule: a `Rule`, or a name that `make_rule` or `load_rule` takes.
      num_steps: environment steps, all environments of the batch counted; it is a whole number of iterations.
      key: of all randomness in JAX.
      is_frozen: whether η stays as it is.
      num_devices: over which the batch is split; 0 leaves it on one.
      teacher: `OnlineResult.teacher` of another agent, whose policy this one is moved to, too, as the setting
        `distillation` says.
      **settings: fields of `AgentConfig` that replace the rule's, or, for a name in `RULES`, the observations': those
        of pictures (three axes of uint8) are with a torso for pictures. In `Trials` agents have a memory, an LSTM, and
        trajectories are whole episodes (`presets.trials`), unless these or the rule's say otherwise.
    Raises:
      ValueError: naming the setting that is not known, is bad, or does not fit the environment.
      TypeError: if the environment is of no kind that is known.
      FloatingPointError: if ten meta-gradients in a row, or the agent's parameters, were not finite.
    """
    given = rule if isinstance(rule, str) and rule in RULES else get_rule(rule)
    meta_params = None if isinstance(given, str) else given.meta_params
    if isinstance(environment, str) and not is_pure(environment):
        preset = presets.for_rule(environment, given) if isinstance(given, str) else given.config
        size = settings.get("batch_size", preset.batch_size) // jax.process_count()
        environment = as_environment(environment, size, host_seeds(key, 2, jax.process_count())[jax.process_index()])
    environment = as_environment(environment)
    host = environment if isinstance(environment, HostEnvironment) else None
    config = _settings(environment, given)
    if host is not None:
        num_envs = host.num_envs * jax.process_count()
        given = settings.setdefault("batch_size", num_envs)
        if given != num_envs:
            raise ValueError(f"batch_size is {given}, expected {num_envs}, as many as the environments")
    config = config.replace(**settings)
    note_layout(config.network, environment.observation_shape)
    check_teacher(config, teacher)
    check_split(config, num_devices)
    if host is not None:
        return _live_on_host(config, host, key, meta_params, is_frozen, num_steps, num_devices, teacher)
    return _live(config, environment, key, meta_params, is_frozen, num_steps, num_devices, teacher)


def _settings(environment: Environment | HostEnvironment, rule: Rule | str) -> AgentConfig:
    """Return the settings of agents in this environment that learn by a rule, or by one of that name in `RULES`."""
    name = rule if isinstance(rule, str) else rule.config.rule.name
    if isinstance(environment, Trials):
        preset = presets.for_trials(environment, name)
    else:
        preset = presets.for_observations(environment.observation_shape, environment.observation_dtype, name)
    if isinstance(rule, str):
        return preset
    config = rule.config.without_run()
    if presets.is_image_torso(preset.network):
        return presets.with_images(config, preset.network)
    return config if config.network.core else presets.with_memory(config, preset)


def host_seeds(key: Array, number: int, num: int) -> list[int]:
    """Return so many seeds of environments on the host; the key's own split takes the numbers below this one."""
    own_key = jax.random.fold_in(jax.random.clone(key), number)
    return (jax.random.bits(own_key, (num,)) >> 1).tolist()


def _live(
    config: AgentConfig,
    environment: Environment,
    key,
    meta_params,
    is_frozen: bool,
    num_steps,
    num_devices: int,
    teacher: Teacher | None,
) -> OnlineResult:
    learner = build_learner(config, environment.num_actions, is_frozen, teacher=teacher)
    program = make_online_program(learner, environment)

    @splitting.over(num_devices)
    @jax.jit
    def run(state: OnlineState, num_iterations: Array) -> tuple[OnlineState, Any]:
        """Run `num_iterations`, at most CHUNK: one compiled program serves any number."""
        one = jax.eval_shape(lambda state: program.run(state, 1)[1:], state)
        outputs = jax.tree.map(lambda x: jnp.zeros((CHUNK, *x.shape[1:]), x.dtype), one)

        def iteration(i, carry):
            state, *new = program.run(carry[0], 1)
            return state, jax.tree.map(lambda all_, x: all_.at[i].set(x[0]), carry[1], tuple(new))

        return jax.lax.fori_loop(0, num_iterations, iteration, (state, outputs))

    def go_on(state: OnlineState, parts: list, num_steps: float) -> OnlineResult:
        iterations, done = max(1, int(num_steps) // program.env_steps), 0
        progress = Progress(iterations * program.env_steps)
        while done < iterations:
            num = min(CHUNK, iterations - done)
            state, outputs = run(state, num)
            metrics, control = jax.tree.map(lambda x, num=num: x[:num], jax.device_get(outputs))
            _check(control, state.learner.params)
            parts, done = [*parts, metrics], done + num
            progress.update(done * program.env_steps, _text(metrics))
        metrics = _metrics(parts, program.env_steps)
        return OnlineResult(program.learner, state.learner, metrics, functools.partial(go_on, state, parts))

    init = splitting.over(num_devices)(jax.jit(program.init, compiler_options=quick_to_compile()))
    state = init(key, meta_params)
    note_sizes(state.actor.time_step.observation.addressable_shards[0].data)
    return go_on(state, [], num_steps)


def _live_on_host(
    config: AgentConfig,
    environment: HostEnvironment,
    key,
    meta_params,
    is_frozen: bool,
    num_steps,
    num_devices: int,
    teacher: Teacher | None,
) -> OnlineResult:
    learner = build_learner(config, environment.num_actions, is_frozen, teacher=teacher)
    check_tasks(learner, environment)
    learn_of_all, agent = jit_in_place(make_host_learn(learner)), learner.setup.agent
    learn = splitting.over(num_devices)(lambda state, acted: learn_of_all(state, *of_all_actors(acted)))
    acting_params = lambda agent: splitting.here(learner.setup.acting_params(agent))
    schedule, env_steps = config.schedule(learner.is_meta), config.num_env_steps(learner.is_meta)
    num_processes = jax.process_count()

    def go_on(state: LearnerState, actor_key: Array, parts: list, num_steps: float) -> OnlineResult:
        iterations = max(1, int(num_steps) // env_steps)
        progress = Progress(iterations * env_steps)
        parts = list(parts)
        explored = -(-config.exploration // num_processes), len(parts) * env_steps // num_processes
        acting_from = (acting_params(state.agent), actor_key, *explored)
        with HostActor(environment, agent, learner.setup.rule.policy, schedule, *acting_from) as actor:
            for i in range(iterations):
                acted = actor.get()
                if not parts:
                    note_sizes(acted.trajectories.observation[:1, :1])
                state, metrics, control = learn(state, acted)
                actor.params = acting_params(state.agent)
                _check(control, state.params)
                metrics |= zip(("episodes", "return_sum"), total(len(acted.returns), sum(acted.returns)), strict=True)
                parts.append({name: np.asarray(x)[None] for name, x in metrics.items()})
                progress.update((i + 1) * env_steps, _text(parts[-1]))
        metrics = _metrics(parts, env_steps)
        return OnlineResult(learner, state, metrics, functools.partial(go_on_from_copy, state, acted.key, parts))

    def go_on_from_copy(state: LearnerState, *of: Any, **how: Any) -> OnlineResult:
        experience, lifetime = apart(state.lifetime)  # that of the result stays as it is
        return go_on(state._replace(lifetime=together(jax.tree.map(jnp.copy, experience), lifetime)), *of, **how)

    actor_key, learner_key = jax.random.split(key)
    init = jax.jit(lambda *of: split(learner.init(*of)), compiler_options=quick_to_compile())
    observation = jnp.zeros((config.batch_size, *environment.observation_shape), environment.observation_dtype)
    state = splitting.over(num_devices)(init)(learner_key, observation, meta_params)
    return go_on(state, own_key(actor_key), [], num_steps)


def why_stopped(control: Control, params: Params) -> str:
    """Say why a run cannot go on after iterations with these results, "" if it can."""
    if np.max(control.skipped_in_a_row) >= MAX_SKIPPED_IN_A_ROW:
        return f"{MAX_SKIPPED_IN_A_ROW} meta-gradients in a row were not finite"
    return "" if _all_finite(params) else "the agent's parameters are not finite"


@jax.jit
def _all_finite(params: Params) -> Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(params)]))


def _check(control: Control, params: Params) -> None:
    if reason := why_stopped(control, params):
        raise FloatingPointError(f"{reason}: try a smaller learning_rate of optimizer or meta_optimizer")


def _metrics(parts: list[dict[str, np.ndarray]], env_steps: int) -> dict[str, np.ndarray]:
    """Join the metrics of all iterations, with the mean return of each, and the environment steps up to it."""
    metrics = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    with np.errstate(invalid="ignore"):
        metrics["return"] = metrics.pop("return_sum") / metrics["episodes"]
    return metrics | {"env_steps": env_steps * np.arange(1, 1 + len(metrics["return"]))}


def _text(metrics: dict[str, np.ndarray]) -> str:
    episodes = metrics["episodes"].sum()
    return f"return {metrics['return_sum'].sum() / episodes:.3f}" if episodes else ""
