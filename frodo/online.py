"""The online regime: one agent in one environment learns its own objective within one lifetime.

An iteration is: M trajectories for M updates of θ and one more for the outer loss, then one update of η; with a
hand-made rule, M trajectories and M updates. Where the trajectory of the outer loss is kept, it is the first of the
next M. The learner is the same in both runtimes. With a pure environment, `make_online_program` makes environment,
actor and learner one jitted program: the first θ of an iteration acts all its trajectories (as in the paper's
pseudo-code), or the θ of each update acts its own. With an environment on the host, an actor thread hands trajectories
over.
"""

import functools
import numbers
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents import acting, splitting
from agents.acting import Actor, ActorState
from agents.environments.adapt import as_environment
from agents.environments.host import HostEnvironment, NotFiniteError
from agents.environments.names import is_pure
from agents.host_acting import ActedIteration, HostActor
from agents.types import Array, Params, Trajectory
from agents.validation import check_count, check_type, checked_key
from frodo import presets, results, states
from frodo.arguments import all_finite, check_meta_params
from frodo.config import AgentConfig
from frodo.devices import own_key, quick_to_compile, total
from frodo.learner import Control, Learner, LearnerState, build_learner, check_teacher, split
from frodo.logs import Progress
from frodo.memory import batch_shape, check_agents
from frodo.not_finite import NotFinite, first_not_finite, nothing, what_was_shown
from frodo.observations import note_layout, note_sizes
from frodo.results import Life, OnlineResult, num_done
from frodo.rule_files import Rule, get_rule
from frodo.rules import RULES
from frodo.value_bins import BinWatch, with_bins
from meta.curriculum import check_curriculum, make_curriculum
from meta.distillation import Teacher
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
      search: state, number of iterations -> NotFinite: run them again, and say what the environments show first that is
        not finite.
    """

    learner: Learner
    init: Callable[..., OnlineState]
    run: Callable[[OnlineState, int], tuple[OnlineState, dict[str, Array], Control]]
    search: Callable[[OnlineState, Array], NotFinite]
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

    def search(state: OnlineState, num_iterations: Array) -> NotFinite:
        def iteration(carry):
            i, state, _ = carry
            actor_state, trajectories, validation, _ = learner.act_iteration(state.learner, actor, state.actor)
            found = first_not_finite(trajectories, validation, np.isfinite(config.max_abs_reward))
            learner_state, *_ = learner.learn(state.learner, trajectories, validation)
            return i + 1, OnlineState(split(learner_state), acting.split(actor_state)), found

        is_on = lambda carry: (carry[0] < num_iterations) & ~carry[2].is_there
        num, _, found = jax.lax.while_loop(is_on, iteration, (jnp.zeros((), jnp.int32), state, nothing()))
        steps_before = (num - 1) * (config.num_env_steps(learner.is_meta) // config.batch_size)
        return splitting.whole(found._replace(step=found.step + steps_before))

    return OnlineProgram(learner, init, run, search, config.num_env_steps(learner.is_meta))


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
    check_count("num_devices", num_devices, 0)
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
      num_steps: environment steps, all environments of the batch counted, of which there are as many whole iterations
        as fit; at least those of one.
      key: of all randomness in JAX.
      is_frozen: whether η stays as it is.
      num_devices: over which the batch is split; 0 leaves it on one.
      teacher: `OnlineResult.teacher` of another agent, whose policy this one is moved to, too, as the setting
        `distillation` says.
      **settings: fields of `AgentConfig` that replace the rule's, or, for a name in `RULES`, the observations': those
        of pictures (three axes of uint8) are with a torso for pictures. In `Trials` agents have a memory, an LSTM, and
        trajectories are whole episodes (`presets.trials`), unless these or the rule's say otherwise.
    Raises:
      ValueError: naming the setting or argument that is not known, is bad, does not fit the environment, or asks for
        more memory than there is.
      TypeError: if the environment is of no kind that is known, or rule or key are none.
      FloatingPointError: if ten meta-gradients in a row, or the agent's parameters, were not finite: by what an
        environment showed, which is then named, or by what was learned. On the host it comes as soon as an environment
        shows an observation or a reward that is not finite; infinite rewards that are clipped (`max_abs_reward`) do no
        harm, and pass.
    """
    key = checked_key(key)
    if "batch_size" in settings:
        check_count("batch_size", settings["batch_size"])
    given = rule if isinstance(rule, str) and rule in RULES else get_rule(rule)
    meta_params = None if isinstance(given, str) else given.meta_params
    size, seed = 1, 0
    if isinstance(environment, str) and not is_pure(environment):
        preset = presets.for_rule(environment, given) if isinstance(given, str) else given.config
        size = settings.get("batch_size", preset.batch_size) // jax.process_count()
        seed = host_seeds(key, 2, jax.process_count())[jax.process_index()]
    environment = as_environment(environment, size, seed)
    host = environment if isinstance(environment, HostEnvironment) else None
    config = _settings(environment, given)
    if host is not None:
        num_envs = host.num_envs * jax.process_count()
        given = settings.setdefault("batch_size", num_envs)
        if given != num_envs:
            raise ValueError(f"batch_size is {given}, expected {num_envs}, as many as the environments")
    config = with_bins(config.replace(**settings), environment)
    note_layout(config.network, environment.observation_shape)
    check_teacher(config, teacher)
    check_split(config, num_devices)
    if host is not None:
        return _live_on_host(config, host, key, meta_params, is_frozen, num_steps, num_devices, teacher)
    return _live(config, environment, key, meta_params, is_frozen, num_steps, num_devices, teacher)


def load(path: Path | str) -> OnlineResult:
    """Load what `OnlineResult.save` wrote: the same θ, η, rule and metrics, which act at once and can go on learning.

    It goes on in an environment that is given then, `load(path).go_on(num_steps, environment)`, on one device.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: naming the file and, in one short line, what is wrong with it.
    """
    check_type("path", path, str | Path, "that of a file that `OnlineResult.save` wrote")
    return results.read(Path(path), _go_on_in)


def _go_on_in(loaded: OnlineResult, num_steps: float, environment: Any) -> OnlineResult:
    """Go on with a loaded result in an environment that must be of the same kind as its own was."""
    config, life, is_meta = loaded.learner.config, loaded.life, loaded.learner.is_meta
    seed = 0  # of a name on the host: from the key that goes on
    if life.is_on_host:
        (seed,) = host_seeds(states.restored(jax.eval_shape(own_key, life.key), life.actor, "actor"), 2, 1)
    here = as_environment(environment, config.batch_size, seed)
    host = here if isinstance(here, HostEnvironment) else None
    if config.distillation.steps:
        raise ValueError(f"distillation.steps is {config.distillation.steps}, expected 0: a file holds no teacher")
    own = lambda num_actions, x, is_on_host, num: (
        f"{num} {'on the host' if is_on_host else 'in JAX'} with {num_actions} actions and observations "
        f"{np.dtype(x.dtype)}{list(x.shape)}"
    )
    num_envs = config.batch_size if host is None else host.num_envs
    found = own(here.num_actions, _observation(here), host is not None, num_envs)
    expected = own(life.num_actions, life.observation, life.is_on_host, config.batch_size)
    if found != expected:
        raise ValueError(f"environments are {found}, expected {expected}")
    of = (life.key, loaded.meta_params, not is_meta, num_steps, 0, None, loaded)
    return _live(config, here, *of) if isinstance(here, Environment) else _live_on_host(config, here, *of)


def _observation(environment: Environment | HostEnvironment) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of one observation, as the environment gives it."""
    return jax.ShapeDtypeStruct(environment.observation_shape, environment.observation_dtype)


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
    start: OnlineResult | None = None,
) -> OnlineResult:
    learner = build_learner(config, environment.num_actions, is_frozen, teacher=teacher)
    program, seen = make_online_program(learner, environment), _observation(environment)
    check_meta_params(learner.setup.rule, environment.num_actions, meta_params)

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

    search = splitting.over(num_devices)(jax.jit(program.search))

    def look(state: OnlineState, num_iterations: int, step: int) -> str:
        found, shape = search(state, num_iterations), state.actor.time_step.observation.shape[1:]
        return what_was_shown(found, type(environment).__name__, shape, step // config.batch_size)

    def go_on(state: OnlineState, parts: list, num_steps: float) -> OnlineResult:
        iterations, done = num_iterations(num_steps, program.env_steps), 0
        progress, bins = Progress(iterations * program.env_steps), BinWatch()
        while done < iterations:
            num = min(CHUNK, iterations - done)
            before, (state, outputs) = state, run(state, num)
            metrics, control = jax.tree.map(lambda x, num=num: x[:num], jax.device_get(outputs))
            step = num_done(parts) * program.env_steps
            _check(control, state.learner.params, num, functools.partial(look, before, num, step))
            bins.look(metrics)
            parts, done = [*parts, metrics], done + num
            progress.update(done * program.env_steps, _text(metrics))
        life = Life(environment.num_actions, seen, False, key, states.leaves(state.actor), parts)
        return OnlineResult(program.learner, state.learner, life, functools.partial(go_on, state, parts))

    num_iterations(num_steps, program.env_steps)  # refuses a bad number before anything is compiled
    init = jax.jit(program.init, compiler_options=quick_to_compile())
    with splitting.over(num_devices):
        shapes = jax.eval_shape(init, key, meta_params)
        check_agents(config, learner.setup.agent, environment, learner.is_meta, shapes)
        if start is not None:
            acting_state = states.restored(shapes.actor, start.life.actor, "actor")
            return go_on(OnlineState(start.state, acting_state), start.life.parts, num_steps)
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
    start: OnlineResult | None = None,
) -> OnlineResult:
    learner = build_learner(config, environment.num_actions, is_frozen, teacher=teacher)
    check_tasks(learner, environment)
    check_meta_params(learner.setup.rule, environment.num_actions, meta_params)
    learn_of_all, agent = jit_in_place(make_host_learn(learner)), learner.setup.agent
    learn = splitting.over(num_devices)(lambda state, acted: learn_of_all(state, *of_all_actors(acted)))
    acting_params = lambda agent: splitting.here(learner.setup.acting_params(agent))
    schedule, env_steps = config.schedule(learner.is_meta), config.num_env_steps(learner.is_meta)
    num_processes = jax.process_count()

    def go_on(state: LearnerState, actor_key: Array, parts: list, num_steps: float) -> OnlineResult:
        iterations = num_iterations(num_steps, env_steps)
        progress, bins = Progress(iterations * env_steps), BinWatch()
        parts = list(parts)
        explored = -(-config.exploration // num_processes), num_done(parts) * env_steps // num_processes
        acting_from = (acting_params(state.agent), actor_key, *explored, np.isfinite(config.max_abs_reward))
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
                bins.look(parts[-1])
                progress.update((i + 1) * env_steps, _text(parts[-1]))
        life = Life(environment.num_actions, _observation(environment), True, key, states.leaves(acted.key), parts)
        return OnlineResult(learner, state, life, functools.partial(go_on_from_copy, state, acted.key, parts))

    def go_on_from_copy(state: LearnerState, *of: Any, **how: Any) -> OnlineResult:
        experience, lifetime = apart(state.lifetime)  # that of the result stays as it is
        return go_on(state._replace(lifetime=together(jax.tree.map(jnp.copy, experience), lifetime)), *of, **how)

    num_iterations(num_steps, env_steps)
    actor_key, learner_key = jax.random.split(key)
    if start is not None:
        acting_key = states.restored(jax.eval_shape(own_key, actor_key), start.life.actor, "actor")
        return go_on_from_copy(start.state, acting_key, start.life.parts, num_steps)
    init = jax.jit(lambda *of: split(learner.init(*of)), compiler_options=quick_to_compile())
    observation = batch_shape(config, environment)
    with splitting.over(num_devices):
        shapes = jax.eval_shape(init, learner_key, observation, meta_params)
        check_agents(config, learner.setup.agent, environment, learner.is_meta, shapes)
        state = init(learner_key, jnp.zeros(observation.shape, observation.dtype), meta_params)
    return go_on(state, own_key(actor_key), [], num_steps)


def num_iterations(num_steps: float, env_steps: int) -> int:
    """Return how many iterations of so many steps there are in a lifetime's steps; a ValueError where there is none."""
    if isinstance(num_steps, (jax.Array, np.ndarray)) and not num_steps.shape:
        num_steps = num_steps.item()
    is_number = isinstance(num_steps, numbers.Real) and not isinstance(num_steps, bool)
    if not is_number or not env_steps <= num_steps < float("inf"):
        raise ValueError(
            f"num_steps is {num_steps!r}, expected a number of at least {env_steps}, the environment steps of one "
            "iteration"
        )
    return int(num_steps) // env_steps


def why_stopped(control: Control, params: Params) -> str:
    """Say why a run cannot go on after iterations with these results, "" if it can."""
    if np.max(control.skipped_in_a_row) >= MAX_SKIPPED_IN_A_ROW:
        return f"{MAX_SKIPPED_IN_A_ROW} meta-gradients in a row were not finite"
    return "" if all_finite(params) else "the agent's parameters are not finite"


def cause(reason: str, shown: str, when: str, remedy: str) -> str:
    """Say why a run cannot go on: by what the environments showed, else by what was learned."""
    return f"{reason}: {shown or f'all that the environments showed {when}was finite, so {remedy}'}"


def _check(control: Control, params: Params, num_iterations: int = 0, look: Callable[[], str] = lambda: "") -> None:
    if reason := why_stopped(control, params):
        when = f"in the last {num_iterations} iterations " if num_iterations else ""
        remedy = "try a smaller learning_rate of optimizer or meta_optimizer"
        raise NotFiniteError(cause(reason, look(), when, remedy))


def _text(metrics: dict[str, np.ndarray]) -> str:
    episodes = metrics["episodes"].sum()
    return f"return {metrics['return_sum'].sum() / episodes:.3f}" if episodes else ""
