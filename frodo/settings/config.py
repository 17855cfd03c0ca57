"""The settings of an agent, of an online run and of a population."""

import dataclasses
import numbers
from typing import Any, Self

import jax
import jax.numpy as jnp

from agents.networks.agent import NetworkConfig, make_agent
from agents.types import Array
from agents.validation import check_choice, check_numbers
from frodo.settings.registry import RULES, RuleConfig, make_update_rule, replace, with_prefix
from frodo.settings.strategies import StrategyConfig
from meta.updates.curriculum import UNIFORM, CurriculumConfig
from meta.updates.distillation import DistillationConfig, Teacher, distilled
from meta.updates.lifetime import LifetimeConfig, Setup
from meta.updates.optimizers import OptimizerConfig
from meta.updates.outer import OuterConfig, make_outer, settings_of, with_outer_head
from meta.updates.passes import Passes


def outer_settings(rule: RuleConfig, critic: str = "agent") -> tuple[str, ...]:
    """Return the names of the settings that the outer objective of a rule's agents has; () where none is learned."""
    return settings_of(make_update_rule(rule).spec(1), critic) if rule.entry.is_learned else ()


@dataclasses.dataclass
class AgentConfig(LifetimeConfig):
    """All settings of an agent; the defaults are Table 1 of Xu et al. 2020 (Atari).

    Attributes:
      rule: The rule that it learns by, with settings of its own.
      outer: The outer objective, of learned rules.
      network: Its network; a layer of 512 after the ConvNet is not in Table 1.
      optimizer: The optimiser of θ.
      meta_optimizer: The optimiser of η, of learned rules; decay and ε are those that Table 1 has for θ.
      curriculum: How tasks are chosen, of environments in trials.
      distillation: How a teacher helps it.
    """

    rule: RuleConfig = dataclasses.field(default_factory=RuleConfig)
    outer: OuterConfig = dataclasses.field(default_factory=OuterConfig)
    network: NetworkConfig = dataclasses.field(default_factory=lambda: NetworkConfig("conv", (512,)))
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    meta_optimizer: OptimizerConfig = dataclasses.field(default_factory=lambda: OptimizerConfig(learning_rate=5e-4))
    curriculum: CurriculumConfig = dataclasses.field(default_factory=CurriculumConfig)
    distillation: DistillationConfig = dataclasses.field(default_factory=DistillationConfig)

    def validate(self) -> None:
        """Raise a ValueError that names the first bad setting, its value and what was expected."""
        super().validate()
        self.rule.validate()
        with_prefix("outer", self.outer.validate)
        self.network.validate()
        self.optimizer.validate("optimizer")
        self.meta_optimizer.validate("meta_optimizer")
        with_prefix("curriculum", self.curriculum.validate)
        with_prefix("distillation", self.distillation.validate)
        check_numbers(self)
        if self.distillation.steps and self.rule.kind != "actor_critic":
            raise ValueError(
                f"distillation.steps is {self.distillation.steps}, expected 0 for the rule {self.rule.name!r}: an "
                "actor-critic alone has a policy that a teacher can move"
            )
        if self.curriculum.kind != UNIFORM and self.replay.capacity:
            raise ValueError(
                f"curriculum.kind is {self.curriculum.kind!r} and replay.capacity is {self.replay.capacity}, expected "
                "one of the two"
            )
        self._check_outer()
        if make_update_rule(self.rule).model_steps and not self.network.action_model:
            raise ValueError(
                f"network.action_model is 0, expected a positive number: the rule {self.rule.name!r} unrolls a model"
            )
        self._check_passes()

    def _check_passes(self) -> None:
        """Raise a ValueError where minibatches cannot be made, or are not for this rule."""
        if (self.epochs, self.minibatches) == (1, 1):
            return
        rule = make_update_rule(self.rule)
        if not rule.is_target_constant:
            raise ValueError(
                f"epochs is {self.epochs} and minibatches {self.minibatches}, expected 1 and 1: the rule "
                f"{self.rule.name!r} makes its targets anew for every update"
            )
        if (rule.model_steps > 1 or rule.is_of_order) and not self.network.core:
            raise ValueError(
                f"epochs is {self.epochs} and minibatches {self.minibatches}, expected 1 and 1: the rule "
                f"{self.rule.name!r} needs steps in their order, which minibatches have with an LSTM core alone"
            )
        if self.pass_size % self.minibatches:
            kind = "environments" if self.network.core else "steps"
            raise ValueError(
                f"minibatches is {self.minibatches}, expected a divisor of the {self.pass_size} {kind} of an update"
            )

    @property
    def pass_size(self) -> int:
        """How many steps of an update minibatches are drawn from; with a memory, environments with all their steps."""
        batch_size = self.replay.batch_size if self.replay.capacity else self.batch_size
        return batch_size if self.network.core else batch_size * self.unroll

    def _check_outer(self) -> None:
        """Raise a ValueError for a setting that the outer objective does not have, unless it is the default."""
        names, defaults = outer_settings(self.rule, self.outer.critic), OuterConfig()
        for field in dataclasses.fields(OuterConfig):
            value = getattr(self.outer, field.name)
            if field.name not in names and value != getattr(defaults, field.name):
                has = f"the outer objective of such agents of the rule {self.rule.name!r} has {', '.join(names)} alone"
                none = f"the rule {self.rule.name!r} learns no objective, and has no outer one"
                raise ValueError(f"outer.{field.name} is {value!r}, but {has if names else none}")
        outer = self.outer
        if outer.target_updates > self.num_updates:
            raise ValueError(
                f"outer.target_updates is {outer.target_updates}, expected at most num_updates ({self.num_updates}): "
                "K + L − 1 updates are an iteration, K at least 1"
            )
        if outer.is_bootstrapped and self.stride not in (0, self.num_updates):
            raise ValueError(f"stride is {self.stride}, expected 0 where outer.is_bootstrapped is True")

    def replace(self, **settings: Any) -> Self:
        """Return the same with other settings; a ValueError names one that there is not."""
        return replace("an agent", self, settings)

    def without_run(self) -> Self:
        """Return the same without what is of one run: how its tasks were chosen, and by whom its agent was taught."""
        return self.replace(curriculum=CurriculumConfig(), distillation=DistillationConfig())

    def agent_only(self) -> "AgentConfig":
        """Return the settings of the agent, without those of the run that a subclass adds."""
        return AgentConfig(**{field.name: getattr(self, field.name) for field in dataclasses.fields(AgentConfig)})


@dataclasses.dataclass
class OnlineConfig(AgentConfig):
    """All settings of an online run.

    Attributes:
      env: The environment's name.
      num_actors: Threads that act on the host, each with a batch of its own, at least 1; the learner takes them in
        turn.
      vmap_seeds: Whether seeds of an environment in JAX run side by side, rather than one after another; on a CPU as
        many at a time as its core's cache holds the parameters of.
      is_frozen: Whether η stays as it is.
      init_meta_params: The initial η: the file of a rule, the name of a discovered or fitted one, such as
        'disco103', or '' for random.
    """

    env: str = "atari/Pong"
    num_actors: int = 1
    vmap_seeds: bool = False
    is_frozen: bool = False
    init_meta_params: str = ""

    def validate(self) -> None:
        super().validate()
        known = getattr(self.rule.settings, "known_values", "")
        if known and known != self.env:
            raise ValueError(f"rule.known_values is {known!r} and env {self.env!r}, expected the same")


@dataclasses.dataclass
class PopulationConfig(AgentConfig):
    """The settings that a population's agents have in common, how long they live, and how η moves.

    Attributes:
      budgets: Environment steps of a lifetime, drawn with weights inverse to them (Oh et al. 2025, Methods), each at
        least those of a meta-step.
      is_optimizer_per_agent: Whether each agent has an optimiser of η, and updates are averaged (Oh et al. 2025,
        Methods); else there is one for the mean of the meta-gradients, as in their public code.
      vmap_agents: Whether agents of a group, on one device, run side by side, rather than one after another.
      num_devices: Devices that agents are spread over; 0 for all there are.
      strategy: Generations of an evolution strategy, after the meta-steps.
    """

    budgets: tuple[int, ...] = (70_000, 210_000)
    is_optimizer_per_agent: bool = True
    vmap_agents: bool = False
    num_devices: int = 0
    strategy: StrategyConfig = dataclasses.field(default_factory=StrategyConfig)

    def validate(self) -> None:
        check_choice("rule", self.rule.name, [name for name, entry in RULES.items() if entry.is_learned])
        super().validate()
        if self.curriculum.kind != UNIFORM:
            raise ValueError(f"curriculum.kind is {self.curriculum.kind!r}, expected {UNIFORM!r} in a population")
        if self.distillation.steps:
            raise ValueError(f"distillation.steps is {self.distillation.steps}, expected 0 in a population")
        with_prefix("strategy", self.strategy.validate)
        if self.strategy.generations and len(self.budgets) != 1:
            raise ValueError(f"budgets are {self.budgets}, expected a single one with strategy.generations")
        if self.strategy.generations and min(self.budgets) < (own := self.num_env_steps(is_meta=False)):
            raise ValueError(f"budgets are {self.budgets}, expected at least the {own} steps of an iteration")
        steps = self.num_env_steps(is_meta=True)
        if not self.budgets or min(self.budgets) < steps:
            raise ValueError(f"budgets are {self.budgets}, expected at least the {steps} steps of one meta-step")
        if not 0 <= self.num_devices <= len(jax.devices()):
            raise ValueError(f"num_devices is {self.num_devices}, expected at most {len(jax.devices())}, or 0 for all")


def with_life(config: AgentConfig, is_meta: bool) -> RuleConfig:
    """Return an agent's rule, which knows the trajectories of a lifetime where its settings leave them open."""
    if getattr(config.rule.settings, "life", None) != 0:
        return config.rule
    return config.rule.replace(life=config.num_annealed_updates(is_meta) // (config.epochs * config.minibatches))


def make_setup(
    config: AgentConfig,
    num_actions: int,
    is_meta: bool = True,
    learning_rate: Array | None = None,
    teacher: Teacher | None = None,
) -> Setup:
    """Make the parts of an agent for an environment with that many actions; `is_meta` says whether it learns η.

    A learning rate that is given, which may be traced, takes the place of the optimiser's. Without the teacher that its
    settings speak of, the agent has the same state, but is not taught.

    Raises:
      ValueError: naming the setting that is bad, or does not fit the number of actions.
    """
    config.validate()
    if not isinstance(num_actions, numbers.Integral) or isinstance(num_actions, bool) or num_actions < 1:
        raise ValueError(f"num_actions is {num_actions!r}, expected a positive whole number")
    if config.rule.kind == "prediction" and num_actions > 1:
        raise ValueError(
            f"rule {config.rule.name!r} is of the kind 'prediction', expected one that acts: there are {num_actions} "
            "actions"
        )
    num_annealed = config.num_annealed_updates(is_meta)
    rule = make_update_rule(with_life(config, is_meta))
    found = jax.tree.leaves(rule.meta_param_shapes(num_actions))
    is_differentiable = found and all(jnp.issubdtype(x.dtype, jnp.floating) for x in found)
    if is_meta and config.rule.entry.is_learned and not is_differentiable:
        raise ValueError(
            f"rule {config.rule.name!r} has nothing to learn with these settings: keep it as it is, by is_frozen=True"
        )
    num_taught = max(1, round(config.num_trajectories(config.distillation.steps, is_meta)))
    for name, steps, num in (
        ("annealing", config.annealing, num_annealed),
        ("distillation.steps", config.distillation.steps, num_taught),
    ):
        if num >= 2**31:
            raise ValueError(f"{name} is {steps}, expected those of fewer than 2147483648 updates, not of {num}")
    if config.distillation.steps:
        rule = distilled(rule, teacher, num_taught, config.distillation.cost)
    if config.outer.critic == "head" and not rule.with_known_values:
        rule = with_outer_head(rule, config.outer)
    agent = make_agent(config.network, rule.spec(num_actions), num_actions)
    outer = make_outer(config.outer, rule, config.network, num_actions)
    of_agent = config.optimizer
    if learning_rate is not None:
        of_agent = dataclasses.replace(of_agent, learning_rate=learning_rate)
    optimizer = of_agent.make(num_annealed)
    return Setup(agent, rule, optimizer, outer, Passes(config.epochs, config.minibatches, config.truncation))
