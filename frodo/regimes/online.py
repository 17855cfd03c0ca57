"""The online regime as a call: one agent in one environment learns its own objective within one lifetime."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.environments.adapt import as_environment
from agents.environments.host import HostEnvironment
from agents.environments.names import is_pure
from agents.types import Array, Params
from agents.validation import check_count, check_type, checked_key
from frodo import states
from frodo.devices import own_key
from frodo.regimes import results
from frodo.regimes.arguments import check_known_values, check_meta_params
from frodo.regimes.in_jax import LivesInJax
from frodo.regimes.learner import build_learner, check_teacher
from frodo.regimes.life_rows import Lives
from frodo.regimes.lifetimes import OnlineState, check_split, whole_steps
from frodo.regimes.on_host import LivesOnHost
from frodo.regimes.results import AGENTS, Life, OnlineResult, facts_of, shipped_agents
from frodo.rules.files import Rule, get_rule
from frodo.runs.driver import drive, go_on_or_end
from frodo.runs.run import Run, opened
from frodo.settings import presets
from frodo.settings.config import AgentConfig
from frodo.settings.observations import note_layout
from frodo.settings.registry import RULES
from frodo.settings.unused import paths, refuse_unused
from frodo.settings.value_bins import with_bins
from meta.updates.distillation import Teacher
from toy_envs.base import Environment
from toy_envs.trials import Trials


def discover_online(
    environment: Any,
    rule: Rule | str = "frodo",
    *,
    num_steps: float,
    key: Array,
    is_frozen: bool = False,
    num_devices: int = 0,
    teacher: Teacher | None = None,
    folder: Path | str | None = None,
    callbacks: Sequence[Any] = (),
    **settings: Any,
) -> OnlineResult:
    """Train one agent in an environment. With a learned rule it also discovers its own objective (Xu et al. 2020).

    Args:
      environment: a pure one (`Environment`, or one of gymnax, craftax, navix or xminigrid), which is batched here; a
        batch on the host, such as a `gymnasium.vector.VectorEnv`, or a sequence of `dm_env.Environment`; or the name of
        one, as 'toy/catch'. `frodo.as_environment` lists the kinds. A name on the host makes `batch_size` environments,
        a setting, with seeds from the key.
      rule: a `Rule`, or a name that `make_rule` or `load_rule` takes.
      num_steps: environment steps, all environments of the batch counted. The run has as many whole iterations as fit,
        at least one.
      key: of all randomness in JAX.
      is_frozen: whether η stays as it is.
      num_devices: the number of devices that share the batch; 0 is one device, without a split.
      teacher: `OnlineResult.teacher` of another agent. This agent is also moved towards its policy, as the setting
        `distillation` says.
      folder: keeps rows and checkpoints. If it holds a run of the same call, that run goes on as if it had never been
        stopped; on the host, episodes begin anew.
      callbacks: functions of each row of metrics, or `Callback`s. The run ends when one returns a true value. Rows are
        those of metrics.csv: one every hundred iterations, on the host two hundred in all.
      **settings: fields of `AgentConfig`. They replace those of the rule, or, for a name in `RULES`, those of the
        preset for such observations: pictures (three axes of uint8) have a torso for pictures. In `Trials`, agents have
        an LSTM as their memory, and trajectories are whole episodes (`presets.trials`), unless a setting differs.
    Returns:
      The trained agent, its rule, and metrics of every iteration.
    Raises:
      ValueError: naming the setting or argument that is not known, is bad, does not fit the environment, or asks for
        more memory than there is; or the folder, where it holds another run, or is another process's.
      TypeError: if the environment is of no known kind, or the rule, the key or a callback has another type.
      KeyboardInterrupt: by Ctrl-C, after a checkpoint is written; in a notebook the result so far is returned instead.
      FloatingPointError: if ten meta-gradients in a row, or the agent's parameters, were not finite. The message names
        the environment if that was the cause. On the host it is raised at the first observation or reward that is not
        finite, except infinite rewards that are clipped (`max_abs_reward`).
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
    config = config.replace(**settings)
    config.validate()
    refuse_unused(config, paths(settings), host is None)
    config = with_bins(config, environment)
    note_layout(config.network, environment.observation_shape)
    check_teacher(config, teacher)
    check_split(config, num_devices)
    regime = _regime(config, environment, key, meta_params, is_frozen, num_devices, teacher, num_steps)
    shape = list(environment.observation_shape)
    what = f"{environment.num_actions} actions {np.dtype(environment.observation_dtype)}{shape}"
    about = {"key": str(jax.random.key_data(key).tolist()), "environment": f"{type(environment).__name__} {what}"}
    about["is_frozen"] = str(is_frozen)
    with opened(folder, "online", config.rule.name, config, int(num_steps), about) as run:
        return _run(regime, environment, key, callbacks, run)


def load(path: Path | str) -> OnlineResult:
    """Load what `OnlineResult.save` wrote: the same θ, η, rule and metrics, which act at once and can go on learning.

    It goes on in an environment that is given then, `load(path).go_on(num_steps, environment)`, on one device.

    Args:
      path: of the file; or, if there is no file of that name, one of `shipped_agents()`, which act and do not go on.
    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: naming the file and, in one short line, what is wrong with it.
    """
    check_type("path", path, str | Path, "that of a file that `OnlineResult.save` wrote")
    is_shipped = str(path) in shipped_agents() and not Path(path).exists()
    return results.read(AGENTS / f"{path}.npz" if is_shipped else Path(path), _go_on_in)


def _go_on_in(loaded: OnlineResult, num_steps: float, environment: Any) -> OnlineResult:
    """Go on with a loaded result in an environment that must be of the same kind as its own was."""
    config, life, key = loaded.learner.config, loaded.life, loaded.life.facts.key
    seed = 0  # of a name on the host: from the key that goes on
    if life.facts.is_on_host:
        (seed,) = host_seeds(states.restored(jax.eval_shape(own_key, key), life.actor, "actor"), 2, 1)
    here = as_environment(environment, config.batch_size, seed)
    if config.distillation.steps:
        raise ValueError(f"distillation.steps is {config.distillation.steps}, expected 0: a file holds no teacher")
    num_envs = here.num_envs if isinstance(here, HostEnvironment) else config.batch_size
    found = f"{num_envs} {facts_of(loaded.learner, here, key).of_environment}"
    expected = f"{config.batch_size} {life.facts.of_environment}"
    if found != expected:
        raise ValueError(f"environments are {found}, expected {expected}")
    regime = _regime(config, here, key, loaded.meta_params, not loaded.learner.is_meta, 0, None, num_steps)
    init = own_key if isinstance(regime, LivesOnHost) else lambda key: regime.program.init(key).actor
    actor = states.restored(jax.eval_shape(init, key), life.actor, "actor")
    start = OnlineState(loaded.state, actor)
    return _run(regime.going_on(start, life.parts, regime.total), here, key)


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


def _regime(
    config: AgentConfig,
    environment: Environment | HostEnvironment,
    key: Array,
    meta_params: Params | None,
    is_frozen: bool,
    num_devices: int,
    teacher: Teacher | None,
    num_steps: float,
) -> LivesInJax | LivesOnHost:
    """Make the regime of one lifetime; errors are those of `discover_online`."""
    make_learner = functools.partial(build_learner, config, environment.num_actions, is_frozen, teacher=teacher)
    learner = make_learner()
    check_meta_params(learner.setup.rule, environment.num_actions, meta_params)
    check_known_values(config, environment)
    steps = whole_steps(num_steps, config.num_env_steps(learner.is_meta))
    lives = Lives(key[None], (0,))
    how: dict[str, Any] = dict(meta_params=meta_params, num_devices=num_devices, is_kept=True)
    if isinstance(environment, Environment):
        return LivesInJax(config, environment, make_learner, lives, steps, **how)
    how |= dict(make=lambda seed: environment, is_owner=False)
    return LivesOnHost(config, environment, make_learner, lives, steps, **how)


def _run(
    regime: Any,
    environment: Environment | HostEnvironment,
    key: Array,
    callbacks: Sequence[Any] = (),
    run: Run | None = None,
) -> OnlineResult:
    """Run a regime of one lifetime, and return its result."""
    facts = facts_of(regime.learner, environment, key)

    def result(state: Any) -> OnlineResult:
        of_host = facts.is_on_host
        start = (state["learner"], state["actor_key"]) if of_host else jax.tree.map(lambda x: x[0], state[0])
        learner_state, actor = start
        life = Life(facts, states.leaves(actor), list(regime.parts))

        def go_on(num_steps: float) -> OnlineResult:
            return _run(regime.going_on(start, life.parts, num_steps), environment, key)

        return OnlineResult(regime.learner, learner_state, life, go_on)

    stopped = drive(regime, run, callbacks, lambda state, step: result(jax.tree.map(jnp.copy, state)))
    go_on_or_end(stopped, run)
    return result(stopped.state)
