"""What `experiments.compare` compares: methods, each a choice of targets and of a regime.

Every method has the agent of `presets.common_agent`, and adds to it what it is: rule and outer objective, how η is
learned, PPO's passes, DiscoRL's action model, and of action values the way in which DQN uses experience. A rule that
has no row here is compared by its name, as its entry says.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from agents.rules.impala import ImpalaConfig
from agents.validation import did_you_mean
from frodo.rules.files import load_rule
from frodo.runs.errors import UsageError
from frodo.settings import population_presets, presets
from frodo.settings.config import AgentConfig, OnlineConfig, outer_settings
from frodo.settings.registry import RULES, Origin, RuleConfig
from meta.programs.language import FORMULAS
from meta.targets.scalar import FrodoConfig
from meta.updates.outer import OuterConfig

VALUE_COST = 0.5  # of every critic's loss
LAMBDA = 0.95  # λ of every return
NUM_UPDATES = 5  # M, where η is learned
DQN_REG_OF_THE_CODE = FORMULAS["dqn_reg"].replace("0.1", "0.2")
OUTER = OuterConfig(lambda_=LAMBDA, value_cost=VALUE_COST)  # of scalar rules that begin with a random η
COMMON = dict(discount=ImpalaConfig.discount, lambda_=LAMBDA)  # of all rules that have them; and of those with v(S)
COMMON_OF_CRITICS = dict(
    reduction="mean", vtrace_lambda=LAMBDA, value_cost=VALUE_COST, entropy_cost=ImpalaConfig.entropy_cost
)
EVOLVED_LOSSES = Origin((), None, None, "searches of some 72 hours on 300 CPUs (Co-Reyes et al. 2021)")
Configure = Callable[[OnlineConfig, str], OnlineConfig]


class Method(NamedTuple):
    """One way to have an objective.

    Attributes:
      label: its name for people.
      targets, regime: its place in the matrix.
      rule: where η comes from: "" (none, or random), "disco103", or the flag that names a rule, of which those that
        are not in `RULE_FLAGS` need not be given: η is then at random.
      configure: the common agent, rule -> settings.
      frozen: where it learns η, the method with the same agent that does not: of FRODO's it has no meta-network.
      origin: where its η was found, where there is none but in the rule itself.
    """

    label: str
    targets: str
    regime: str
    rule: str
    configure: Configure
    frozen: str = ""
    origin: Origin | None = None


def _own(name: str, **of_rule: Any) -> Configure:
    """The common agent with a rule, and with what the rule is: passes, a model of actions, and how η is learned.

    It learns from fresh trajectories, as all rules do, but for those of action values: they explore, and use
    experience, as the rule's preset has it.
    """

    def configure(agent: OnlineConfig, rule: str) -> OnlineConfig:
        of = presets.for_rule(agent.env, name)
        own = of.rule.with_known(**COMMON | (COMMON_OF_CRITICS if of.rule.has_critic else {}) | of_rule)
        if rule:
            found = load_rule(rule).config.rule
            own = found.with_known(value_cost=VALUE_COST) if found.has_critic else found
        outer = OuterConfig(**{x: getattr(OUTER, x) for x in outer_settings(own)})
        network = dataclasses.replace(agent.network, action_model=of.network.action_model)
        config = agent.replace(rule=own, outer=outer, network=network, epochs=of.epochs, minibatches=of.minibatches)
        if own.entry.is_learned:
            of_eta = dict(meta_optimizer=of.meta_optimizer, init_meta_params=rule, is_validation_kept=bool(rule))
            config = config.replace(num_updates=NUM_UPDATES, **of_eta)
        if own.kind == "value_based":
            experience = ("exploration", "replay", "is_acting_interleaved")
            config = config.replace(**{x: getattr(of, x) for x in experience})
        return config

    return configure


def _frodo(agent: OnlineConfig, _: str) -> OnlineConfig:
    rule = RuleConfig("frodo", FrodoConfig(reduction="mean", lstm=64, vtrace_lambda=LAMBDA, value_cost=VALUE_COST))
    return agent.replace(rule=rule, outer=OUTER, num_updates=NUM_UPDATES)


@functools.cache
def _config_of(rule: str) -> AgentConfig:
    """Return the settings of a rule's file, which is read once: each cell of a comparison asks for them."""
    return load_rule(rule).config


def _learned(of: Callable[[str, str], AgentConfig], start: str = "") -> Configure:
    """The common agent with a learned rule, and the predictions and the outer objective that go with it.

    What is of the agent, not of the targets, is common to all: the weight of the critic's loss, and the outer objective
    of scalar rules that begin with an η which is known to be good. η begins with `start`, or with the method's rule.
    """

    def configure(agent: OnlineConfig, rule: str) -> OnlineConfig:
        own = of(agent.env, rule)
        network = dataclasses.replace(agent.network, action_model=own.network.action_model)
        if own.rule.has_critic:
            of_rule, outer = own.rule.replace(value_cost=VALUE_COST), presets.fitted(agent.env).outer
        else:
            of_rule, outer = own.rule, own.outer
        config = agent.replace(rule=of_rule, outer=outer, network=network, num_updates=NUM_UPDATES)
        return config.replace(init_meta_params=start or rule, is_validation_kept=bool(start or rule))

    return configure


_fitted = _learned(lambda env, _: presets.fitted(env), "vtrace")
_cmpo = _learned(lambda *_: population_presets.small("disco"), "cmpo")
_disco_from_random = _learned(lambda *_: population_presets.small("disco"))
_adapted = _learned(lambda _, rule: _config_of(rule))


def _fitted_fast(agent: OnlineConfig, rule: str) -> OnlineConfig:
    """The same, to leave the start sooner, where it is a bad one: a larger step of η, and the critic's loss."""
    config = _fitted(agent, rule)
    outer = dataclasses.replace(config.outer, value_cost=VALUE_COST)
    return config.replace(outer=outer, meta_optimizer=dataclasses.replace(config.meta_optimizer, learning_rate=1e-3))


def _corrected(agent: OnlineConfig, rule: str) -> OnlineConfig:
    """V-trace itself, and what a meta-network adds, which is nothing at first: with η frozen it is IMPALA."""
    config = _fitted(agent, rule)
    return config.replace(rule=config.rule.replace(base="vtrace"), init_meta_params="")


def _with_outer(configure: Configure, **settings: Any) -> Configure:
    """The same, with other settings of the outer objective."""

    def configure_outer(agent: OnlineConfig, rule: str) -> OnlineConfig:
        config = configure(agent, rule)
        return config.replace(outer=dataclasses.replace(config.outer, **settings))

    return configure_outer


def _with_rule(configure: Configure, **settings: Any) -> Configure:
    """The same, with other settings of the rule."""

    def configure_rule(agent: OnlineConfig, rule: str) -> OnlineConfig:
        config = configure(agent, rule)
        return config.replace(rule=config.rule.replace(**settings))

    return configure_rule


def _frozen(configure: Configure) -> Configure:
    """The same, with η as it is."""
    return lambda agent, rule: configure(agent, rule).replace(is_frozen=True, num_updates=1)


def _evolved(agent: OnlineConfig, rule: str) -> OnlineConfig:
    """An agent that learns as DQN does, with the loss of a program."""
    found = _config_of(rule).rule.settings
    own = presets.for_rule(agent.env, "program").rule.replace(formula=found.formula, ends=found.ends)
    return _own("dqn")(agent, "").replace(rule=own, init_meta_params=rule, is_frozen=True)


def _evolved_targets(agent: OnlineConfig, rule: str) -> OnlineConfig:
    of_rule = _config_of(rule).rule.replace(value_cost=VALUE_COST)
    return agent.replace(rule=of_rule, init_meta_params=rule, is_frozen=True)


NONE, RANDOM, FROZEN, ADAPTED = "no η", "online, from random η", "population, frozen", "population, then online"
FITTED, FITTED_ONLINE = "fitted to V-trace, frozen", "fitted to V-trace, then online"
CMPO, CMPO_ONLINE = "fitted to CMPO, frozen", "fitted to CMPO, then online"
CORRECTED = "V-trace and what is added, online"
OWN_ONLINE, OWN_FROZEN = "its own, online", "its own, frozen"
EVOLVED, PUBLISHED_PROGRAM = "evolution", "evolution, by Co-Reyes et al. 2021"
HAND_MADE, SCALAR, DISCO, OF_DISCO103, PROGRAM = "hand-made", "scalar G", "π, y, z", "π, y, z of Disco103", "program"
BASELINES = ("impala", "ppo", "dqn")  # what differences are to
METHODS = {
    "impala": Method("IMPALA", HAND_MADE, NONE, "", _own("impala")),
    "ppo": Method("PPO", HAND_MADE, NONE, "", _own("ppo")),
    "a2c": Method("A2C", HAND_MADE, NONE, "", _own("a2c")),
    "muesli": Method("Muesli", HAND_MADE, NONE, "", _own("muesli")),
    "frodo": Method("FRODO", SCALAR, RANDOM, "", _frodo, "impala"),
    "fitted_frozen": Method("V-trace fitted, frozen", SCALAR, FITTED, "", _frozen(_fitted)),
    "fitted_online": Method("FRODO from V-trace", SCALAR, FITTED_ONLINE, "", _fitted, "fitted_frozen"),
    "fitted_fast": Method("FRODO from V-trace, faster η", SCALAR, FITTED_ONLINE, "", _fitted_fast, "fitted_frozen"),
    "corrected": Method("FRODO on top of V-trace", SCALAR, CORRECTED, "", _corrected, "impala"),
    "corrected_outer_critic": Method(
        "FRODO on top of V-trace, outer critic", SCALAR, CORRECTED, "", _with_outer(_corrected, critic="head"), "impala"
    ),
    "corrected_bootstrapped": Method(
        "FRODO on top of V-trace, bootstrapped",
        SCALAR,
        CORRECTED,
        "",
        _with_outer(_corrected, is_bootstrapped=True, target_updates=3),
        "impala",
    ),
    "scalar_frozen": Method("discovered scalar rule, frozen", SCALAR, FROZEN, "scalar_rule", _frozen(_adapted)),
    "scalar_adapted": Method(
        "discovered scalar rule, online", SCALAR, ADAPTED, "scalar_rule", _adapted, "scalar_frozen"
    ),
    "cmpo_frozen": Method("CMPO fitted, frozen", DISCO, CMPO, "", _frozen(_cmpo)),
    "cmpo_online": Method("π, y, z online, from CMPO", DISCO, CMPO_ONLINE, "", _cmpo, "cmpo_frozen"),
    "disco": Method("π, y, z online, from random η", DISCO, RANDOM, "", _disco_from_random, "disco_frozen"),
    "disco_frozen": Method("discovered π, y, z rule, frozen", DISCO, FROZEN, "disco_rule", _frozen(_adapted)),
    "disco_adapted": Method("discovered π, y, z rule, online", DISCO, ADAPTED, "disco_rule", _adapted, "disco_frozen"),
    "disco103_frozen": Method("Disco103, frozen", OF_DISCO103, FROZEN, "disco103", _frozen(_adapted)),
    "disco103_adapted": Method("Disco103, online", OF_DISCO103, ADAPTED, "disco103", _adapted, "disco103_frozen"),
    "disco103_held": Method(
        "Disco103, lifetime LSTM held",
        OF_DISCO103,
        FROZEN,
        "disco103",
        _with_rule(_frozen(_adapted), is_lifetime_held=True),
    ),
    "disco103_policy": Method(
        "Disco103, without the losses of y, z and p",
        OF_DISCO103,
        FROZEN,
        "disco103",
        _with_rule(_frozen(_adapted), y_cost=0.0, z_cost=0.0, aux_policy_cost=0.0),
    ),
    "dqn": Method("DQN", HAND_MADE, NONE, "", _own("dqn")),
    "double_dqn": Method("double DQN", HAND_MADE, NONE, "", _own("double_dqn")),
    "dqn_reg": Method("DQNReg", PROGRAM, PUBLISHED_PROGRAM, "", _own("dqn_reg"), origin=EVOLVED_LOSSES),
    "dqn_reg_of_the_code": Method(
        "DQNReg, δ² + 0.2 Q",
        PROGRAM,
        PUBLISHED_PROGRAM,
        "",
        _own("dqn_reg", formula=DQN_REG_OF_THE_CODE),
        origin=EVOLVED_LOSSES,
    ),
    "dqn_clipped": Method("DQNClipped", PROGRAM, PUBLISHED_PROGRAM, "", _own("dqn_clipped"), origin=EVOLVED_LOSSES),
    "evolved": Method("evolved program", PROGRAM, EVOLVED, "program_rule", _evolved),
    "evolved_targets": Method("evolved targets", SCALAR, EVOLVED, "target_rule", _evolved_targets),
}
# Without what takes too long for most: Disco103, and DQN's update for each step.
BY_DEFAULT = (
    "impala,ppo,a2c,frodo,fitted_frozen,fitted_online,scalar_frozen,scalar_adapted,disco,disco_frozen,disco_adapted"
)
RULE_FLAGS = {  # a rule's file, what it holds
    "scalar_rule": "frodo",
    "disco_rule": "disco",
    "program_rule": "program",
    "target_rule": "target_program",
}


def all_methods() -> dict[str, Method]:
    """Return `METHODS`, and of rules without a row that act, those with their names.

    What such a rule learns begins with its file, --<rule>_rule, or else at random; <rule>_frozen leaves it so.
    """
    found = dict(METHODS)
    flags = {rule: flag for flag, rule in rule_flags().items()}
    for name in RULES:
        if name in METHODS or RuleConfig(name).kind == "prediction":
            continue
        found[name] = Method(name, HAND_MADE, NONE, "", _own(name))
        if name in flags:
            frozen = f"{name}_frozen"
            found[name] = Method(f"{name}, online", name, OWN_ONLINE, flags[name], _own(name), frozen)
            found[frozen] = Method(f"{name}, frozen", name, OWN_FROZEN, flags[name], _frozen(_own(name)))
    return found


def parse_methods(text: str) -> tuple[str, ...]:
    """Return the methods of "impala,ppo"."""
    methods, known = tuple(text.split(",")), all_methods()
    for name in methods:
        if name not in known:
            hint = did_you_mean(name, known) or f": give some of {', '.join(known)}"
            raise UsageError(f"--methods={text}: {name!r} is no method{hint}")
    return methods


def row_of(name: str) -> Method:
    """Return the method of that name: its row of `METHODS`, or that which `all_methods` has for a rule's name."""
    return METHODS.get(name) or all_methods()[name]


def rule_flags() -> dict[str, str]:
    """Return `RULE_FLAGS`, and a flag for each other rule that is learned."""
    others = [name for name, entry in RULES.items() if entry.is_learned and name not in RULE_FLAGS.values()]
    return RULE_FLAGS | {f"{name}_rule": name for name in others}
