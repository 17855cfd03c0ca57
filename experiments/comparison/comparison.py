"""A comparison: methods in environments, what each agent's settings are there, and what cannot be compared.

A cell is a method in an environment.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from agents.acting.replay import ReplayConfig
from agents.environments.names import unscaled
from experiments.comparison.methods import METHODS, RULE_FLAGS, row_of, rule_flags
from experiments.comparison.protocol import Grid, Program, family
from frodo.regimes.scores import BSUITE_CATCH, reference_scores
from frodo.rules.files import Origin, load_origin, load_rule
from frodo.runs.errors import UsageError, caused_by
from frodo.settings import presets
from frodo.settings.config import OnlineConfig, outer_settings
from frodo.settings.registry import replace, starts
from toy_envs import names

EXPLORATION = 0.1  # share of a lifetime in which random actions become fewer, where there are such


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What is compared."""

    envs: tuple[str, ...]
    budgets: Mapping[str, int]  # family -> environment steps of each agent
    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...]
    methods: tuple[str, ...]
    files: Mapping[str, str]  # of `rule_flags`: a rule's name or path; "" for none
    grid: Grid = Grid()
    discount: float | None = None  # γ of rules that were not discovered, instead of theirs
    lambda_: float | None = None  # their λ
    replay: tuple[int, int] | None = None  # trajectories that are kept, and those of an update; else the method's own
    stale: int | None = None  # trajectories that one θ acts before the updates on them; else each is by the newest θ

    def budget(self, env: str) -> int:
        return self.budgets[family(env)]

    def rule(self, method: str) -> str | None:
        """Return the source of a method's η: a rule's name or path, "" for none, None if it is missing."""
        name = row_of(method).rule
        return self.files.get(name, "") or (None if name in RULE_FLAGS else "") if name in rule_flags() else name

    def origin(self, method: str) -> Origin | None:
        """Return where a method's η was found, None if nothing was searched for."""
        rule = self.rule(method)
        return load_origin(rule) if rule else row_of(method).origin

    def cells(self) -> list[tuple[str, str]]:
        """Return environment and method of what can be run."""
        return [(env, method) for env in self.envs for method in self.methods if self.rule(method) is not None]

    def configure(self, env: str, method: str, program: Program | None = None) -> OnlineConfig:
        """Return the settings of a method's agent, but for the learning rate of a point."""
        config = row_of(method).configure(presets.common_agent(env), self.rule(method) or "")
        if not self.rule(method):
            config = _with_returns(config, self.discount, self.lambda_)
        if program:
            batch_size, unroll = program.batch
            config = config.replace(batch_size=batch_size, unroll=unroll, validation_unroll=unroll)
            if program.entropy_cost is not None:
                config = _with_entropy_cost(config, program.entropy_cost)
        if self.replay:
            capacity, batch_size = self.replay
            replay = ReplayConfig(capacity, batch_size, fresh=0.0)
            config = config.replace(replay=replay, is_acting_interleaved=False, is_validation_kept=False)
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
        config = self.configure(env, method)
        return self.grid_of(config).programs(bool(_entropy_costs(config)))

    def grid_of(self, config: OnlineConfig) -> Grid:
        """Return the grid that a method with these settings has: of its rule's axes, those that are its own."""
        with caused_by(f"tuning of the rule {config.rule.name!r}"):
            own = replace("the grid", self.grid, config.rule.entry.tuning)
            own.validate()
        return own


def _with_returns(config: OnlineConfig, discount: float | None, lambda_: float | None) -> OnlineConfig:
    """The same with another γ and λ of the rule, where they are given; the outer objective keeps its own."""
    own = {"discount": discount, "lambda_": lambda_, "vtrace_lambda": lambda_}
    return config.replace(rule=config.rule.with_known(**{name: x for name, x in own.items() if x is not None}))


def _entropy_costs(config: OnlineConfig) -> list[str]:
    """Where the policy's entropy has a cost: "rule" for the loss of the agent, "outer" for that of η."""
    own = {field.name for field in dataclasses.fields(config.rule.settings)}
    is_meta = config.rule.entry.is_learned and not config.is_frozen
    return ["rule"] * ("entropy_cost" in own) + ["outer"] * (is_meta and "entropy_cost" in outer_settings(config.rule))


def _with_entropy_cost(config: OnlineConfig, cost: float) -> OnlineConfig:
    config = config.replace(rule=config.rule.with_known(entropy_cost=cost))
    is_outer = "outer" in _entropy_costs(config)
    return config.replace(outer=dataclasses.replace(config.outer, entropy_cost=cost)) if is_outer else config


def check_names(comparison: Comparison) -> None:
    """Raise a UsageError where a method or an environment, by whatever name, is there twice."""
    known: dict[object, str] = {}
    for name, identity in [(x, x) for x in comparison.methods] + [(env, _identity(env)) for env in comparison.envs]:
        if identity in known:
            same = f", which is {known[identity]}" if known[identity] != name else ""
            raise UsageError(f"{name}{same} is to be compared twice: give it once")
        known[identity] = name


def check(comparison: Comparison, allow_seen: bool) -> dict[str, list[str]]:
    """Refuse what cannot be compared, before anything is run.

    Returns:
      method -> the environments that its rule was discovered in.
    Raises:
      UsageError: naming the first value that the grid has twice, seed that is for tuning and for evaluation,
        environment without scores to normalise by, rule file that is none or has other targets, rule that was
        discovered in an environment that it is to be evaluated in, unless `allow_seen`, or rule that has no other
        environment to be tuned in.
    """
    comparison.grid.validate()
    if comparison.stale and comparison.replay:
        why = "what is replayed is of older θ anyway"
        raise UsageError(f"--stale={comparison.stale}: {why}; give one of --stale and --replay")
    if both := sorted(set(comparison.seeds) & set(comparison.tuning_seeds)):
        raise UsageError(f"--tuning_seeds: seed {both[0]} is in --seeds, too: settings are chosen by other seeds")
    for env in comparison.envs:
        reference_scores(env)
    for flag, expected in rule_flags().items():
        if path := comparison.files.get(flag, ""):
            if path in starts(is_fitted=True):
                agent, own = presets.common_agent(comparison.envs[0]), {m: x for m, x in METHODS.items() if not x.rule}
                having = [name for name, x in own.items() if x.configure(agent, "").init_meta_params == path]
                raise UsageError(f"--{flag}={path} was not discovered: --methods={','.join(having)} have it")
            with caused_by(f"--{flag}"):
                name = load_rule(path).config.rule.name
            if name != expected:
                raise UsageError(f"--{flag}={path} holds a rule named {name}, expected {expected}")
    seen: dict[str, list[str]] = {}
    for method in comparison.methods:
        if rule := comparison.rule(method):
            seen[method] = refuse_seen(comparison, rule, load_origin(rule).envs, allow_seen)
            if len(comparison.envs) == 1:
                raise UsageError(
                    f"{method}: the settings of a discovered rule are chosen in other environments than the one that "
                    "it is shown in: give --envs at least two"
                )
    for env, method in comparison.cells():
        for program in comparison.programs(env, method):
            with caused_by(f"{method} on {env} with {program}"):
                comparison.configure(env, method, program).validate()
    return {method: envs for method, envs in seen.items() if envs}


def refuse_seen(comparison: Comparison, rule: str, known: Sequence[str], allow_seen: bool) -> list[str]:
    """Return the environments that a rule was discovered in and is to be evaluated in: a UsageError, unless allowed."""
    suites = tuple(env[:-1] for env in known if env.endswith("/*"))
    identities = {_identity(unscaled(env)[1]) for env in known}
    is_seen = lambda env: _identity(env) in identities or (suites and env.startswith(suites))
    seen = [env for env in comparison.envs if is_seen(unscaled(env)[1])]
    if seen and not allow_seen:
        raise UsageError(
            f"{rule} was discovered in {seen[0]}, which it would be evaluated in: leave the environment out, or say "
            "--allow_seen, which the report then marks"
        )
    return seen


def _identity(env: str) -> object:
    """What two names of one environment share: toy/catch is toy/catch/6x11, and bsuite's ids of Catch are seeds."""
    factor, plain = unscaled(env)
    if plain != env:
        return factor, _identity(plain)
    suite, _, name = env.partition("/")
    if suite == "toy":
        return names.make(name) or env
    if suite == "bsuite":
        return BSUITE_CATCH if name.startswith("catch/") else (suite, name.partition("/")[0])
    return name.lower() if suite in ("gymnax", "navix", "envpool") else env.lower()  # CartPole-v1 is one in both
