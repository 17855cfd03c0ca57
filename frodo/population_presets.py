"""Settings of populations: those that a CPU discovers a rule with, and those of the paper (Oh et al. 2025)."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from agents.environments.suites import ATARI57, DMLAB30, PROCGEN
from agents.networks import NetworkConfig
from agents.replay import ReplayConfig
from frodo import presets
from frodo.config import PopulationConfig
from frodo.rules import RuleConfig
from meta.disco import DiscoConfig
from meta.optimizers import adam
from meta.outer import OuterConfig

# Oh et al. 2025, Methods: environment steps of a lifetime, each drawn with a weight inverse to it.
LIFETIMES = (200_000_000, 100_000_000, 50_000_000, 20_000_000)


def small(rule: str) -> PopulationConfig:
    """Small networks and predictions, and short lifetimes: what a CPU discovers a rule with."""
    if rule in presets.PROGRAMS:
        agent = presets.dqn("toy/", rule).replace(network=NetworkConfig("mlp", (64, 64)), optimizer=adam(1e-3))
        return PopulationConfig(**vars(agent.agent_only()), budgets=(20_000, 60_000))
    config = PopulationConfig(
        batch_size=32,
        unroll=16,
        validation_unroll=32,
        num_updates=5,
        is_acting_interleaved=True,
        gradient_mode="reverse",
        budgets=(100_000, 300_000),
        rule=RuleConfig(
            "disco",
            DiscoConfig(
                prediction_size=30, max_value=10, lstm=64, lifetime_lstm=32, action_embedding=(16, 8), discount=0.99
            ),
        ),
        outer=OuterConfig(
            lambda_=0.95,
            is_advantage_normalised=True,
            value_hidden=(64, 64),
            value_optimizer=adam(1e-3, max_update=1.0),
        ),
        network=NetworkConfig("mlp", (64, 64), action_model=32, head_stddev=0.01),
        optimizer=adam(5e-3, max_update=1.0),
        meta_optimizer=adam(1e-3, max_gradient_norm=1.0),
    )
    if rule == "disco":
        return config
    return config.replace(
        budgets=PopulationConfig.budgets,
        rule=_scalar(rule, lstm=64, vtrace_lambda=0.95, value_cost=presets.VALUE_COST),
        outer=OuterConfig(lambda_=0.95, is_advantage_normalised=True, value_cost=presets.VALUE_COST),
        network=NetworkConfig("mlp", (64, 64), head_stddev=0.01),
        optimizer=adam(1e-2, max_update=1.0),
        meta_optimizer=adam(5e-4, max_gradient_norm=1.0),
    )


def harness(rule: str) -> PopulationConfig:
    """The public code's meta-training (Oh et al. 2025): agents that are never reset, one Adam for all."""
    if rule in presets.PROGRAMS:
        return small(rule).replace(budgets=(10**9,), is_optimizer_per_agent=False)
    is_disco = rule == "disco"
    outer = OuterConfig(lambda_=0.96, is_advantage_normalised=True)
    return PopulationConfig(
        batch_size=32,
        unroll=16,
        validation_unroll=32,
        num_updates=2,
        gradient_mode="reverse",
        budgets=(10**9,),
        is_optimizer_per_agent=False,
        rule=RuleConfig(rule, DiscoConfig(skips_first_steps=True)) if is_disco else _scalar(rule, vtrace_lambda=0.96),
        outer=dataclasses.replace(outer, value_optimizer=adam(1e-3, max_update=1.0)) if is_disco else outer,
        network=NetworkConfig("mlp", (512, 512), action_model=256, head_stddev=0.01),
        optimizer=adam(5e-4, max_update=1.0),
        meta_optimizer=adam(5e-4),
    )


def _scalar(rule: str, **settings: Any) -> RuleConfig:
    """A rule with mean losses, and of these settings those that it has."""
    config = RuleConfig(rule)
    names = {field.name for field in dataclasses.fields(config.settings)}
    return config.replace(**{k: v for k, v in (settings | {"reduction": "mean"}).items() if k in names})


def disco57(rule: str) -> PopulationConfig:
    """The discovery of Oh et al. 2025: numbers with "Methods" are of its section "Implementation details".

    The paper does not say how large the agents of the discovery are, but that those of its evaluation are larger (Main,
    "Atari"): they have four residual blocks of 256, 384, 384 and 256 filters, a layer of 768, an action LSTM of 1,024
    and a layer of 1,024 (Methods, "Hyperparameters and evaluation"). These have IMPALA's ResNet (Espeholt et al. 2018,
    Figure 3), of which the larger ones are said to be a version.
    """
    if rule in presets.PROGRAMS:
        return small(rule).replace(budgets=LIFETIMES)
    is_disco = rule == "disco"
    # Methods: γ and λ; "Meta-optimization stabilization": advantages are normalised.
    outer = OuterConfig(discount=0.997, lambda_=0.95, is_advantage_normalised=True)
    return PopulationConfig(
        batch_size=48,  # Methods: trajectories of a meta-step; how many an update adds to the replay is not said
        unroll=29,  # Methods: 29 time steps
        validation_unroll=29,  # not said: as those of updates
        num_updates=20,  # Main, "Meta-optimization": back through 20 updates
        stride=1,  # "a sliding window", ibid.; by how many updates it slides is not said
        max_abs_reward=1.0,  # not said
        gradient_mode="mixed",  # Methods: MixFlow-MG
        budgets=LIFETIMES,
        replay=ReplayConfig(
            capacity=1024,  # not said: that of the public code's evaluation
            batch_size=96,  # Methods: trajectories of an update
            fresh=0.1,  # Methods: 90 % of them from the replay
        ),
        # Sizes of the rule are not in the text: the defaults are those of the published weights.
        rule=RuleConfig(rule) if is_disco else _scalar(rule, discount=0.997, vtrace_lambda=0.95),
        # Methods: Adam at 3e-4 for agents and meta-value function. Updates clipped to ±1: the public code.
        outer=dataclasses.replace(outer, value_optimizer=adam(3e-4, max_update=1.0)) if is_disco else outer,
        network=NetworkConfig("resnet", (256,), action_model=256, head_stddev=0.01, channels=(16, 32, 32)),
        optimizer=adam(3e-4, max_update=1.0),
        meta_optimizer=adam(1e-3, max_gradient_norm=1.0),  # Methods; one for each agent: ibid., "stabilization"
    )


def grids57(rule: str) -> PopulationConfig:
    """The same on 57 grid worlds, with the meta-learning settings of Disco57 (Main, on toy environments).

    The agents are not described: their layers are those of the public code's meta-training.
    """
    config = disco57(rule)
    if rule in presets.PROGRAMS:
        return config
    network = NetworkConfig("mlp", (512, 512), action_model=256, head_stddev=0.01)
    return config.replace(network=network, max_abs_reward=float("inf"))


def _cycle(envs: Sequence[str], num: int) -> tuple[str, ...]:
    return tuple(envs[i % len(envs)] for i in range(num))


PRESETS = {
    "small": small,
    "harness": harness,
    "disco57": disco57,
    "disco103": disco57,
    "grids57": grids57,
}
# Where the agents of a population live, if that is part of its settings: an environment for each agent.
ENVS = {
    "disco57": _cycle(ATARI57, 128),  # Methods: 128 agents, through the games in lexicographic order
    "disco103": _cycle((*ATARI57, *PROCGEN, *DMLAB30), 206),  # Methods: 206 agents, two copies of each environment
    "grids57": _cycle([f"toy/grid_world/{i}" for i in range(57)], 128),  # as many agents as Disco57's: not said
}
