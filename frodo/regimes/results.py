"""The result of a lifetime: an agent and its objective, which act, go on, and are kept in a file.

The file is an .npz archive without pickle. `result.json` says what the agent is, its settings and what it sees;
`learner…` is all that learning changed, leaf by leaf; `actor…` is where acting goes on: in a pure environment its whole
state, on the host a random key; and `metrics…` are those of every iteration. A file that is for acting alone has the
parameters that act, and η, in the place of the first two.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from agents.environments.host import HostEnvironment
from agents.types import Array, CoreState, Params
from agents.validation import as_array, check_shape, check_type
from frodo import archives, files, states
from frodo.regimes.arguments import check_is_batch
from frodo.regimes.learner import Learner, LearnerState, build_learner
from frodo.rules.files import CONFIG, RESULT, SHIPPED, Origin, Rule
from frodo.settings.config import AgentConfig
from frodo.settings.earlier_versions import FORMAT
from meta.updates.distillation import DistillationConfig, Teacher
from meta.updates.experience import LifetimeState
from toy_envs.base import Environment

AGENTS = SHIPPED / "agents"  # of each agent <name>.npz, and what it is, <name>.md
LEARNER, ACTOR, METRICS = "learner", "actor", "metrics."  # with these begin the names of what is in a file


class Facts(NamedTuple):
    """What identifies a lifetime: what `result.json` says, apart from its format.

    Attributes:
      config: all settings of the agent.
      num_actions, is_on_host: of the environment.
      observation_shape, observation_dtype: of one observation, as the environment gives it.
      key_type: of random keys; "" for those that are plain numbers.
      is_for_acting: whether the file has no more than what acts.
    """

    config: AgentConfig
    num_actions: int
    is_frozen: bool
    is_on_host: bool
    observation_shape: tuple[int, ...]
    observation_dtype: str
    key_type: str
    is_for_acting: bool = False

    @property
    def key(self) -> Array:
        """A random key of that type."""
        return jax.random.key(0, impl=self.key_type) if self.key_type else jax.random.PRNGKey(0)

    @property
    def of_environment(self) -> str:
        """What the environment is, in words."""
        where, shape = "on the host" if self.is_on_host else "in JAX", list(self.observation_shape)
        return f"{where} with {self.num_actions} actions and observations {self.observation_dtype}{shape}"


def facts_of(learner: Learner, environment: Environment | HostEnvironment, key: Array) -> Facts:
    """Return what identifies a lifetime in that environment."""
    return Facts(
        config=learner.config,
        num_actions=int(environment.num_actions),
        is_frozen=learner.config.rule.entry.is_learned and not learner.is_meta,
        is_on_host=isinstance(environment, HostEnvironment),
        observation_shape=tuple(map(int, environment.observation_shape)),
        observation_dtype=str(np.dtype(environment.observation_dtype)),
        key_type=str(jax.random.key_impl(key)) if states.is_key(key) else "",
    )


class Life(NamedTuple):
    """Where a lifetime goes on, in addition to the learner's state.

    Attributes:
      actor: leaves by their path: of the actor's state in a pure environment, of its random key on the host.
      parts: metrics as they came, one part after the other, [iterations] each.
    """

    facts: Facts
    actor: dict[str, Any]
    parts: list[dict[str, np.ndarray]]


class OnlineResult:
    """An agent and its objective at the end of a run. `save` keeps it, `frodo.load` reads it; it does not pickle.

    Attributes:
      learner: the agent's functions.
      state: all that learning changed; `state.params` is θ, `state.meta_params` η.
      metrics: of every iteration, [iterations] each: env_steps, return (the mean of the episodes that ended, nan if
        none did), and what rule and outer objective report.
      rule: the rule with its η as it is now, to save, or to learn by elsewhere.
    """

    def __init__(
        self,
        learner: Learner,
        state: LearnerState,
        life: Life,
        go_on: Callable[..., "OnlineResult"],
        is_loaded: bool = False,
    ):
        self.learner, self.state, self.life, self._go_on, self._is_loaded = learner, state, life, go_on, is_loaded
        self.metrics = _metrics(life.parts, learner.config.num_env_steps(learner.is_meta))

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
        """The rule with the η that was learned."""
        steps = int(self.metrics["env_steps"][-1])
        config = self.learner.config.replace(distillation=DistillationConfig())
        return Rule(config.rule.name, config, self.meta_params, Origin((), steps, None))

    def act(
        self,
        observation: Array,
        key: Array | None = None,
        is_first: Array | None = None,
        core_state: CoreState | None = None,
    ) -> tuple[Array, CoreState]:
        """Choose actions by the policy that was learned, in B environments, as many as there are.

        Args:
          observation: [B, ...], as the environment gives it: a batch, also of one.
          key: of the draw; None for the most probable action of each, which is that of the highest value for
            value-based agents.
          is_first: [B] bool, whether an observation begins an episode, where the memory is emptied. None is all of
            them without a core state, and none of them with one.
          core_state: what the last call returned; None for an empty memory, and always for an agent without one.
        Returns:
          actions [B] int32, core state.
        Raises:
          ValueError: naming what has another shape or dtype than it should.
        """
        observation = self._checked(observation)
        batch_size = len(observation)
        is_first = (
            jnp.full(batch_size, core_state is None)
            if is_first is None
            else as_array("is_first", is_first).astype(bool)
        )
        if core_state is None:
            core_state = self.learner.setup.agent.initial_state(batch_size)
        draw = jax.random.key(0) if key is None else key
        actions, logits, core_state = self._act(self.state, draw, observation, is_first, core_state)
        return (jnp.argmax(logits, axis=-1).astype(jnp.int32) if key is None else actions), core_state

    @functools.cached_property
    def _act(self) -> Callable[..., Any]:
        return jax.jit(self.learner.act)

    def _checked(self, observation: Any) -> Array:
        facts, array = self.life.facts, as_array("observation", observation)
        check_shape("observation", array, (None, *facts.observation_shape))
        check_is_batch(array)
        if facts.observation_dtype == "uint8" != array.dtype:  # pictures, whose numbers mean something else as floats
            raise ValueError(f"observation is {array.dtype}, expected uint8, as the agent has learned from")
        return array.astype(facts.observation_dtype)

    def go_on(self, num_steps: float, environment: Any = None) -> "OnlineResult":
        """Go on with the same lifetime for so many environment steps; metrics are those of all of it.

        In a pure environment it is as if it had never stopped, bit for bit, also where the result was loaded. On the
        host, episodes begin anew.

        Args:
          num_steps: environment steps, all environments of the batch counted.
          environment: of a result that was loaded, that in which it goes on, of the kinds that `discover_online` takes;
            None for any other.
        Raises:
          ValueError: naming what does not fit the lifetime that goes on.
        """
        if self.life.facts.is_for_acting:
            raise ValueError("the file is for acting alone, expected one that was saved without is_for_acting=True")
        if self._is_loaded == (environment is None):
            expected = "that to go on in: a file holds none" if self._is_loaded else "None: the lifetime has its own"
            raise ValueError(f"environment is {type(environment).__name__}, expected {expected}")
        return self._go_on(num_steps, environment) if self._is_loaded else self._go_on(num_steps)

    def save(self, path: Path | str, is_for_acting: bool = False) -> None:
        """Write all of it to an .npz file, whole or not at all; `frodo.load(path)` reads it. For η alone: `rule.save`.

        Args:
          path: of the file.
          is_for_acting: whether to leave out what only learning needs, such as Adam's moments, two thirds of most
            files: the agent acts then, but does not go on.
        Raises:
          ValueError: where several processes have parts of it.
          OSError: naming the path and the reason, where the disk refuses.
        """
        check_type("path", path, str | Path, "that of the file to write")
        if jax.process_count() > 1:
            raise ValueError(f"a result of {jax.process_count()} processes, expected that of one: no file holds parts")
        life, config = self.life, dataclasses.asdict(self.learner.config)
        is_part = is_for_acting or life.facts.is_for_acting
        record = {"format": FORMAT} | life.facts._asdict() | {"config": config, "is_for_acting": is_part}
        arrays = {RESULT: np.frombuffer(json.dumps(files.plain(record)).encode(), np.uint8)}
        kept = states.leaves(_acting(self.learner, self.state) if is_part else self.state)
        for kind, own in ((LEARNER, kept), (ACTOR, {} if is_part else life.actor), (METRICS, joined(life.parts))):
            arrays |= {f"{kind}{name}": states.as_array(leaf) for name, leaf in own.items()}
        files.write_arrays(Path(path), arrays)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a result does not pickle: result.save(path) keeps it, and frodo.load(path) reads it")


def read(path: Path, go_on: Callable[[OnlineResult, float, Any], OnlineResult]) -> OnlineResult:
    """Read what `OnlineResult.save` wrote; `go_on` goes on with it: the result, steps, an environment.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: naming the file, and what is wrong with it, in one short line.
    """
    with archives.opened(path) as archive:
        if RESULT not in archive:
            what = ": it is that of a rule, which load_rule reads" if CONFIG in archive else ""
            raise ValueError(f"{path} is not the file of a result{what or f': it has no key {RESULT!r}'}")
        record = archive.json(RESULT)
        with files.refusing(f"{path} is a result that this version does not know"):
            if (written := record.pop("format")) != FORMAT:
                raise ValueError(f"format is {written!r}, expected {FORMAT}")
            facts = files.from_plain(Facts, record)
            learner = build_learner(facts.config, facts.num_actions, facts.is_frozen)
            shape = (facts.config.batch_size, *facts.observation_shape)
            batch = jax.ShapeDtypeStruct(shape, np.dtype(facts.observation_dtype))
            template: Any = jax.eval_shape(learner.init, facts.key, batch)
            template = _acting(learner, template) if facts.is_for_acting else template
        expected = {f"{LEARNER}{name}": leaf for name, leaf in states.leaves(template).items()}
        others = tuple(name for name in archive if name.startswith((ACTOR, METRICS)))
        arrays = archive.read_all(expected, "the result", (RESULT, *others), are_finite=False)
        size = path.stat().st_size  # which they cannot exceed, as they are written without compression
        arrays |= {name: archive.read(name, size) for name in others}
    own = lambda kind: {name[len(kind) :]: x for name, x in arrays.items() if name.startswith(kind)}
    part = own(METRICS)
    if len({len(x) if x.ndim else -1 for x in part.values()}) != 1 or not {"episodes", "return_sum"} <= set(part):
        raise ValueError(f"{path} has no good metrics, expected those of as many iterations each")
    state = states.restored(template, own(LEARNER), LEARNER)
    state = _with_what_acts(learner, facts.key, jnp.zeros(shape, batch.dtype), state) if facts.is_for_acting else state
    result = OnlineResult(
        learner, state, Life(facts, own(ACTOR), [part]), lambda *of: go_on(result, *of), is_loaded=True
    )
    return result


def _acting(learner: Learner, state: LearnerState) -> dict[str, Params]:
    """Return what acts, and η."""
    return {"params": learner.setup.acting_params(state.agent), "meta_params": state.meta_params}


def _with_what_acts(learner: Learner, key: Array, observation: Array, found: dict[str, Params]) -> LearnerState:
    """Return a learner's state that acts as `_acting` says, without experience."""
    agent = jax.jit(lambda key, observation: learner.init(key, observation).agent)(key, observation)
    params = found["params"]
    agent = agent._replace(params=params, target_params=params if learner.setup.rule.has_copy else ())
    return LearnerState(LifetimeState(agent, (), ()), found["meta_params"], ())


def shipped_agents() -> list[str]:
    """Return the names of the trained agents that are part of the package, which `frodo.load` takes."""
    return sorted(path.stem for path in AGENTS.glob("*.npz"))


def joined(parts: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Join metrics [iterations] that came one part after the other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _metrics(parts: list[dict[str, np.ndarray]], env_steps: int) -> dict[str, np.ndarray]:
    """Join the metrics of all iterations, with the mean return of each, and the environment steps up to it."""
    metrics = joined(parts)
    with np.errstate(invalid="ignore"):
        metrics["return"] = metrics.pop("return_sum") / metrics["episodes"]
    return metrics | {"env_steps": env_steps * np.arange(1, 1 + len(metrics["return"]))}
