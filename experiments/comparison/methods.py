"""What `experiments.compare` compares: methods, each a choice of targets and of a regime, in environments.

Every method has the agent of `presets.common_agent`, and adds to it what it is: rule and outer objective, how η is
learned, PPO's passes, DiscoRL's action model, and of programs the way in which DQN uses experience. A cell is a method
in an environment.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from agents.impala import A2CConfig, ImpalaConfig
from agents.ppo import PPOConfig
from experiments.comparison.protocol import FAMILIES, Grid, Point, Program, family
from experiments.runs import settings
from frodo import population_presets, presets
from frodo.config import AgentConfig, OnlineConfig, outer_settings
from frodo.fitted import RULE_OF
from frodo.rule_files import EVOLVED_LOSSES, PUBLISHED, Origin, load_origin, load_rule
from frodo.rules import RuleConfig
from frodo.runs.errors import UsageError, caused_by
from frodo.scores import BSUITE_CATCH, reference_scores
from meta.outer import OuterConfig
from meta.program_language import FORMULAS
from meta.scalar import FrodoConfig
from toy_envs import names

VALUE_COST = 0.5  # of every critic's loss
LAMBDA = 0.95  # λ of every return
NUM_UPDATES = 5  # M, where η is learned
TRANSITIONS = (1, 1)  # an update for each step of one environment
EXPLORATION = 0.1  # share of a lifetime in which random actions become fewer, where there are such
DQN_REG_OF_THE_CODE = FORMULAS["dqn_reg"].replace("0.1", "0.2")
OUTER = OuterConfig(lambda_=LAMBDA, value_cost=VALUE_COST)  # of scalar rules that begin with a random η


class Method(NamedTuple):
    """One way to have an objective.

    Attributes:
      label: its name for people.
      targets, regime: its place in the matrix.
      rule: where η comes from: "" (none, or random), "disco103", or the flag that names a rule.
      configure: the common agent, rule -> settings.
      frozen: where it learns η, the method with the same agent that does not: of FRODO's it has no meta-network.
      is_tuned: whether its settings are chosen from the grid; else they are its own.
      batch: environments and steps of a trajectory, where they are not from the grid.
    """

    label: str
    targets: str
    regime: str
    rule: str
    configure: Callable[[OnlineConfig, str], OnlineConfig]
    frozen: str = ""
    is_tuned: bool = True
    batch: tuple[int, int] | None = None


def _hand_made(name: str, of_rule: A2CConfig, **own: int) -> Callable[[OnlineConfig, str], OnlineConfig]:
    return lambda agent, _: agent.replace(rule=RuleConfig(name, of_rule), **own)


def _muesli(agent: OnlineConfig, _: str) -> OnlineConfig:
    """From fresh trajectories, as all rules; the model, the bins and the slow copy, which acts, are what Muesli is."""
    of = presets.muesli(agent.env)
    network = dataclasses.replace(agent.network, action_model=of.network.action_model)
    return agent.replace(rule=of.rule.replace(discount=ImpalaConfig.discount, lambda_=LAMBDA), network=network)


def _frodo(agent: OnlineConfig, _: str) -> OnlineConfig:
    rule = RuleConfig("frodo", FrodoConfig(reduction="mean", lstm=64, vtrace_lambda=LAMBDA, value_cost=VALUE_COST))
    return agent.replace(rule=rule, outer=OUTER, num_updates=NUM_UPDATES)


def _fitted(agent: OnlineConfig, _: str) -> OnlineConfig:
    return _learned(agent, presets.fitted(agent.env)).replace(init_meta_params="vtrace", is_validation_kept=True)


def _fitted_fast(agent: OnlineConfig, rule: str) -> OnlineConfig:
    """The same, to leave the start sooner, where it is a bad one: a larger step of η, and the critic's loss."""
    config = _fitted(agent, rule)
    outer = dataclasses.replace(config.outer, value_cost=VALUE_COST)
    return config.replace(outer=outer, meta_optimizer=dataclasses.replace(config.meta_optimizer, learning_rate=1e-3))


def _corrected(agent: OnlineConfig, rule: str) -> OnlineConfig:
    """V-trace itself, and what a meta-network adds, which is nothing at first: with η frozen it is IMPALA."""
    config = _fitted(agent, rule)
    return config.replace(rule=config.rule.replace(base="vtrace"), init_meta_params="")


def _learned(agent: OnlineConfig, of: AgentConfig) -> OnlineConfig:
    """The common agent with a learned rule, and the predictions and the outer objective that go with it.

    What is of the agent, not of the targets, is common to all: the weight of the critic's loss, and the outer objective
    of scalar rules that begin with an η which is known to be good.
    """
    network = dataclasses.replace(agent.network, action_model=of.network.action_model)
    rule, outer = of.rule, of.outer
    if rule.name == "frodo":
        rule, outer = rule.replace(value_cost=VALUE_COST), presets.fitted(agent.env).outer
    return agent.replace(rule=rule, outer=outer, network=network, num_updates=NUM_UPDATES)


def _disco_from_random(agent: OnlineConfig, _: str) -> OnlineConfig:
    return _learned(agent, population_presets.small("disco"))


def _cmpo(agent: OnlineConfig, rule: str) -> OnlineConfig:
    return _disco_from_random(agent, rule).replace(init_meta_params="cmpo", is_validation_kept=True)


def _adapted(agent: OnlineConfig, rule: str) -> OnlineConfig:
    return _learned(agent, load_rule(rule).config).replace(init_meta_params=rule, is_validation_kept=True)


def _frozen(configure: Callable[[OnlineConfig, str], OnlineConfig]) -> Callable[[OnlineConfig, str], OnlineConfig]:
    """The same, with η as it is."""
    return lambda agent, rule: configure(agent, rule).replace(is_frozen=True, num_updates=1)


def _as_published(agent: OnlineConfig, rule: str) -> OnlineConfig:
    """The public code's agent and way to learn; on Atari with images, as `presets.disco` has them."""
    config = settings.configure_frozen(agent.env, rule)
    return config.replace(rule=config.rule.replace(skips_first_steps=True))


def _program(name: str, **own: str) -> Callable[[OnlineConfig, str], OnlineConfig]:
    """The common agent with a loss that is a program: of action values, by replayed transitions, as DQN learns."""

    def configure(agent: OnlineConfig, rule: str) -> OnlineConfig:
        of = presets.dqn(agent.env, name)
        program = of.rule.replace(**own)
        if rule:
            found = load_rule(rule).config.rule.settings
            program = program.replace(formula=found.formula, ends=found.ends)
            agent = agent.replace(init_meta_params=rule, is_frozen=True)
        return agent.replace(
            rule=program, exploration=of.exploration, replay=of.replay, is_acting_interleaved=of.is_acting_interleaved
        )

    return configure


def _evolved_targets(agent: OnlineConfig, rule: str) -> OnlineConfig:
    of_rule = load_rule(rule).config.rule.replace(value_cost=VALUE_COST)
    return agent.replace(rule=of_rule, init_meta_params=rule, is_frozen=True)


NONE, RANDOM, FROZEN, ADAPTED = "no η", "online, from random η", "population, frozen", "population, then online"
FITTED, FITTED_ONLINE = "fitted to V-trace, frozen", "fitted to V-trace, then online"
CMPO, CMPO_ONLINE = "fitted to CMPO, frozen", "fitted to CMPO, then online"
CORRECTED = "V-trace and what is added, online"
EVOLVED, PUBLISHED_PROGRAM = "evolution", "evolution, by Co-Reyes et al. 2021"
HAND_MADE, SCALAR, DISCO, OF_DISCO103, PROGRAM = "hand-made", "scalar G", "π, y, z", "π, y, z of Disco103", "program"
BASELINES = ("impala", "ppo", "dqn")  # what differences are to
METHODS = {
    "impala": Method(
        "IMPALA",
        HAND_MADE,
        NONE,
        "",
        _hand_made("impala", ImpalaConfig(reduction="mean", lambda_=LAMBDA, value_cost=VALUE_COST)),
    ),
    "ppo": Method(
        "PPO",
        HAND_MADE,
        NONE,
        "",
        _hand_made("ppo", PPOConfig(lambda_=LAMBDA, value_cost=VALUE_COST), epochs=4, minibatches=8),
    ),
    "a2c": Method("A2C", HAND_MADE, NONE, "", _hand_made("a2c", A2CConfig(reduction="mean", value_cost=VALUE_COST))),
    "muesli": Method("Muesli", HAND_MADE, NONE, "", _muesli),
    "frodo": Method("FRODO", SCALAR, RANDOM, "", _frodo, "impala"),
    "fitted_frozen": Method("V-trace fitted, frozen", SCALAR, FITTED, "", _frozen(_fitted)),
    "fitted_online": Method("FRODO from V-trace", SCALAR, FITTED_ONLINE, "", _fitted, "fitted_frozen"),
    "fitted_fast": Method("FRODO from V-trace, faster η", SCALAR, FITTED_ONLINE, "", _fitted_fast, "fitted_frozen"),
    "corrected": Method("FRODO on top of V-trace", SCALAR, CORRECTED, "", _corrected, "impala"),
    "scalar_frozen": Method("discovered scalar rule, frozen", SCALAR, FROZEN, "scalar_rule", _frozen(_adapted)),
    "scalar_adapted": Method(
        "discovered scalar rule, online", SCALAR, ADAPTED, "scalar_rule", _adapted, "scalar_frozen"
    ),
    "cmpo_frozen": Method("CMPO fitted, frozen", DISCO, CMPO, "", _frozen(_cmpo)),
    "cmpo_online": Method("π, y, z online, from CMPO", DISCO, CMPO_ONLINE, "", _cmpo, "cmpo_frozen"),
    "disco": Method("π, y, z online, from random η", DISCO, RANDOM, "", _disco_from_random, "disco_frozen"),
    "disco_frozen": Method("discovered π, y, z rule, frozen", DISCO, FROZEN, "disco_rule", _frozen(_adapted)),
    "disco_adapted": Method("discovered π, y, z rule, online", DISCO, ADAPTED, "disco_rule", _adapted, "disco_frozen"),
    "disco103_frozen": Method("Disco103, frozen", OF_DISCO103, FROZEN, PUBLISHED, _frozen(_adapted)),
    "disco103_adapted": Method("Disco103, online", OF_DISCO103, ADAPTED, PUBLISHED, _adapted, "disco103_frozen"),
    "disco103_published": Method(
        "Disco103, frozen, as published", OF_DISCO103, FROZEN, PUBLISHED, _as_published, is_tuned=False
    ),
    "dqn": Method("DQN", HAND_MADE, NONE, "", _program("dqn"), batch=TRANSITIONS),
    "double_dqn": Method("double DQN", HAND_MADE, NONE, "", _program("double_dqn"), batch=TRANSITIONS),
    "dqn_reg": Method("DQNReg", PROGRAM, PUBLISHED_PROGRAM, "", _program("dqn_reg"), batch=TRANSITIONS),
    "dqn_reg_of_the_code": Method(
        "DQNReg, δ² + 0.2 Q",
        PROGRAM,
        PUBLISHED_PROGRAM,
        "",
        _program("dqn_reg", formula=DQN_REG_OF_THE_CODE),
        batch=TRANSITIONS,
    ),
    "dqn_clipped": Method("DQNClipped", PROGRAM, PUBLISHED_PROGRAM, "", _program("dqn_clipped"), batch=TRANSITIONS),
    "evolved": Method("evolved program", PROGRAM, EVOLVED, "program_rule", _program("program"), batch=TRANSITIONS),
    "evolved_targets": Method("evolved targets", SCALAR, EVOLVED, "target_rule", _evolved_targets),
}
RULE_FLAGS = {  # a rule's file, what it holds
    "scalar_rule": "frodo",
    "disco_rule": "disco",
    "program_rule": "program",
    "target_rule": "target_program",
}


class Discovery(NamedTuple):
    """How --discover makes the rule of a flag: by `experiments.discover` with a preset, in environments of its own."""

    rule: str
    envs: str
    meta_steps: int


DISCOVERIES = {
    "scalar_rule": Discovery(
        "frodo", "toy/catch/5x5,toy/catch/5x5,toy/catch/9x9,toy/catch/9x9,toy/grid_world/0-3", 3000
    ),
    "disco_rule": Discovery("disco", "toy/catch/5x5,toy/catch/5x5", 1600),
}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What is compared."""

    envs: tuple[str, ...]
    budgets: Mapping[str, int]  # family -> environment steps of each agent
    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...]
    methods: tuple[str, ...]
    files: Mapping[str, str]  # of RULE_FLAGS: a rule's name or path; "" for none
    grid: Grid = Grid()
    discount: float | None = None  # γ of rules that were not discovered, instead of theirs
    lambda_: float | None = None  # their λ
    stale: int | None = None  # trajectories that one θ acts before the updates on them; else each is by the newest θ

    def budget(self, env: str) -> int:
        return self.budgets[family(env)]

    def rule(self, method: str) -> str | None:
        """Return the source of a method's η: a rule's name or path, "" for none, None if it is missing."""
        name = METHODS[method].rule
        return self.files.get(name) or None if name in RULE_FLAGS else name

    def origin(self, method: str) -> Origin | None:
        """Return where a method's η was found, None if nothing was searched for."""
        rule = self.rule(method)
        if rule:
            return load_origin(rule)
        return EVOLVED_LOSSES if METHODS[method].regime == PUBLISHED_PROGRAM else None

    def missing(self, method: str) -> str:
        """Say why a method cannot be run, or ""."""
        return f"no --{METHODS[method].rule}" if self.rule(method) is None else ""

    def cells(self) -> list[tuple[str, str]]:
        """Return environment and method of what can be run."""
        return [(env, method) for env in self.envs for method in self.methods if not self.missing(method)]

    def tuned_cells(self) -> list[tuple[str, str]]:
        """Return environment and method of what is tuned first."""
        return [(env, method) for env, method in self.cells() if METHODS[method].is_tuned]

    def configure(self, env: str, method: str, program: Program | None = None) -> OnlineConfig:
        """Return the settings of a method's agent, but for the learning rate of a point."""
        config = METHODS[method].configure(presets.common_agent(env), self.rule(method) or "")
        if not METHODS[method].rule:
            config = _with_returns(config, self.discount, self.lambda_)
        if not METHODS[method].is_tuned:
            return config
        if program:
            batch_size, unroll = program.batch
            config = config.replace(batch_size=batch_size, unroll=unroll, validation_unroll=unroll)
            if program.entropy_cost is not None:
                config = _with_entropy_cost(config, program.entropy_cost)
        if self.stale and not config.replay.capacity:
            config = config.replace(num_updates=self.stale, is_acting_interleaved=False)
        if config.exploration:
            config = config.replace(exploration=int(EXPLORATION * self.budget(env)))
        if config.replay.capacity:  # no more than a lifetime fills
            capacity = min(config.replay.capacity, max(self.budget(env), config.replay.batch_size))
            config = config.replace(replay=dataclasses.replace(config.replay, capacity=capacity))
        return config.replace(annealing=0 if family(env) == "changing" else self.budget(env))

    def programs(self, env: str, method: str) -> list[Program]:
        """Return the part of the grid that a method has, without learning rates."""
        return self._grid(method).programs(bool(_entropy_costs(self.configure(env, method))))

    def points(self, env: str, method: str) -> list[Point]:
        """Return the grid that a method has."""
        return self._grid(method).points(bool(_entropy_costs(self.configure(env, method))))

    def _grid(self, method: str) -> Grid:
        own = METHODS[method].batch
        return dataclasses.replace(self.grid, batches=(own,)) if own else self.grid


def _with_returns(config: OnlineConfig, discount: float | None, lambda_: float | None) -> OnlineConfig:
    """The same with another γ and λ of the rule, where they are given; the outer objective keeps its own."""
    names = {field.name for field in dataclasses.fields(config.rule.settings)}
    own = {"discount": discount, "lambda_": lambda_, "vtrace_lambda": lambda_}
    given = {name: value for name, value in own.items() if value is not None and name in names}
    return config.replace(rule=config.rule.replace(**given))


def _entropy_costs(config: OnlineConfig) -> list[str]:
    """Where the policy's entropy has a cost: "rule" for the loss of the agent, "outer" for that of η."""
    own = {field.name for field in dataclasses.fields(config.rule.settings)}
    is_meta = config.rule.entry.is_learned and not config.is_frozen
    return ["rule"] * ("entropy_cost" in own) + ["outer"] * (is_meta and "entropy_cost" in outer_settings(config.rule))


def _with_entropy_cost(config: OnlineConfig, cost: float) -> OnlineConfig:
    where = _entropy_costs(config)
    if "rule" in where:
        config = config.replace(rule=config.rule.replace(entropy_cost=cost))
    if "outer" in where:
        config = config.replace(outer=dataclasses.replace(config.outer, entropy_cost=cost))
    return config


def check_names(comparison: Comparison) -> None:
    """Raise a UsageError where a method or an environment, by whatever name, is there twice."""
    known: dict[object, str] = {}
    for name, identity in [(x, x) for x in comparison.methods] + [(env, _identity(env)) for env in comparison.envs]:
        if identity in known:
            same = f", which is {known[identity]}" if known[identity] != name else ""
            raise UsageError(f"{name}{same} is to be compared twice: give it once")
        known[identity] = name


def check(comparison: Comparison, allow_seen: bool, is_discovering: bool = False) -> dict[str, list[str]]:
    """Refuse what cannot be compared, before anything is run; `is_discovering` says that rules are to be made first.

    Returns:
      method -> the environments that its rule was discovered in.
    Raises:
      UsageError: naming the first value that the grid has twice, seed that is for tuning and for evaluation,
        environment without scores to normalise by, rule file that is none or has other targets, rule that was
        discovered in an environment that it is to be evaluated in, unless `allow_seen`, or rule that has no other
        environment to be tuned in.
    """
    comparison.grid.validate()
    if both := sorted(set(comparison.seeds) & set(comparison.tuning_seeds)):
        raise UsageError(f"--tuning_seeds: seed {both[0]} is in --seeds, too: settings are chosen by other seeds")
    for name in comparison.budgets:
        if name not in FAMILIES:
            raise UsageError(f"--budgets: {name!r} is no family: give some of {', '.join(FAMILIES)}")
    for env in comparison.envs:
        reference_scores(env)
    for flag, expected in RULE_FLAGS.items():
        if path := comparison.files.get(flag, ""):
            if path in RULE_OF:
                having = "cmpo_frozen,cmpo_online" if RULE_OF[path] == "disco" else "fitted_frozen,fitted_online"
                raise UsageError(f"--{flag}={path} was not discovered: --methods={having} have it")
            with caused_by(f"--{flag}"):
                found = load_rule(path).config.rule.name
            if found != expected:
                raise UsageError(f"--{flag}={path} holds a rule named {found}, expected {expected}")
    seen: dict[str, list[str]] = {}
    for method in comparison.methods:
        if rule := comparison.rule(method):
            seen[method] = refuse_seen(comparison, rule, load_origin(rule).envs, allow_seen)
        has_rule = bool(rule) or (is_discovering and METHODS[method].rule in DISCOVERIES)
        if has_rule and METHODS[method].is_tuned and len(comparison.envs) == 1:
            raise UsageError(
                f"{method}: the settings of a discovered rule are chosen in other environments than the one that it is "
                "shown in: give --envs at least two"
            )
    for env, method in comparison.cells():
        for program in comparison.programs(env, method):
            with caused_by(f"{method} on {env} with {program}"):
                comparison.configure(env, method, program).validate()
    return {method: envs for method, envs in seen.items() if envs}


def refuse_seen(comparison: Comparison, rule: str, known: Sequence[str], allow_seen: bool) -> list[str]:
    """Return the environments that a rule was discovered in and is to be evaluated in: a UsageError, unless allowed."""
    suites = tuple(env[:-1] for env in known if env.endswith("/*"))
    identities = {_identity(env) for env in known}
    seen = [env for env in comparison.envs if _identity(env) in identities or (suites and env.startswith(suites))]
    if seen and not allow_seen:
        raise UsageError(
            f"{rule} was discovered in {seen[0]}, which it would be evaluated in: leave the environment out, or say "
            "--allow_seen, which the report then marks"
        )
    return seen


def _identity(env: str) -> object:
    """What two names of one environment share: toy/catch is toy/catch/6x11, and bsuite's ids of Catch are seeds."""
    suite, _, name = env.partition("/")
    if suite == "toy":
        return names.make(name) or env
    if suite == "bsuite":
        return BSUITE_CATCH if name.startswith("catch/") else (suite, name.partition("/")[0])
    return name.lower() if suite in ("gymnax", "navix", "envpool") else env.lower()  # CartPole-v1 is one in both
