"""Settings of populations: those that a CPU discovers a rule with, and those of the paper (Oh et al. 2025).

Each is a function of the rule. It has the settings of the names that it knows; what else it has in a population is in
its entry (`RuleEntry.population`).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from agents.acting.replay import ReplayConfig
from agents.environments.suites import ATARI57, DMLAB30, PROCGEN
from agents.networks.agent import NetworkConfig
from frodo.settings import presets
from frodo.settings.config import PopulationConfig, outer_settings
from frodo.settings.registry import RuleConfig
from meta.updates.optimizers import adam
from meta.updates.outer import OuterConfig

# Oh et al. 2025, Methods: environment steps of a lifetime, each drawn with a weight inverse to it.
LIFETIMES = (200_000_000, 100_000_000, 50_000_000, 20_000_000)


def _with_entry(make: Callable[[str], PopulationConfig]) -> Callable[[str], PopulationConfig]:
    """Return the preset with what the rule's entry makes of it."""

    @functools.wraps(make)
    def preset(rule: str) -> PopulationConfig:
        config = make(rule)
        own = config.rule.entry.population.get(make.__name__, lambda config: config)
        return config.rule.adapted(config, f"population[{make.__name__!r}]", own)

    return preset


def _outer(rule: RuleConfig, **settings: Any) -> OuterConfig:
    """Normalised advantages, and of these settings those that the outer objective of the rule's agents has."""
    own = outer_settings(rule)
    return OuterConfig(**{x: value for x, value in (settings | {"is_advantage_normalised": True}).items() if x in own})


@_with_entry
def small(rule: str) -> PopulationConfig:
    """Small networks and predictions, and short lifetimes: what a CPU discovers a rule with."""
    own = RuleConfig(rule).with_known(reduction="mean", lstm=64, vtrace_lambda=0.95, value_cost=presets.VALUE_COST)
    return PopulationConfig(
        batch_size=32,
        unroll=16,
        validation_unroll=32,
        num_updates=5,
        is_acting_interleaved=True,
        gradient_mode="reverse",
        rule=own,
        outer=_outer(own, lambda_=0.95, value_cost=presets.VALUE_COST),
        network=NetworkConfig("mlp", (64, 64), head_stddev=0.01),
        optimizer=adam(1e-2, max_update=1.0),
        meta_optimizer=adam(5e-4, max_gradient_norm=1.0),
    )


@_with_entry
def harness(rule: str) -> PopulationConfig:
    """The public code's meta-training (Oh et al. 2025): agents that are never reset, one Adam for all."""
    own = RuleConfig(rule).with_known(reduction="mean", vtrace_lambda=0.96, skips_first_steps=True)
    return PopulationConfig(
        batch_size=32,
        unroll=16,
        validation_unroll=32,
        num_updates=2,
        gradient_mode="reverse",
        budgets=(10**9,),
        is_optimizer_per_agent=False,
        rule=own,
        outer=_outer(own, lambda_=0.96, value_optimizer=adam(1e-3, max_update=1.0)),
        network=NetworkConfig("mlp", (512, 512), action_model=256, head_stddev=0.01),
        optimizer=adam(5e-4, max_update=1.0),
        meta_optimizer=adam(5e-4),
    )


@_with_entry
def disco57(rule: str) -> PopulationConfig:
    """The discovery of Oh et al. 2025: numbers with "Methods" are of its section "Implementation details".

    The paper does not say how large the agents of the discovery are, but that those of its evaluation are larger (Main,
    "Atari"): they have four residual blocks of 256, 384, 384 and 256 filters, a layer of 768, an action LSTM of 1,024
    and a layer of 1,024 (Methods, "Hyperparameters and evaluation"). These have IMPALA's ResNet (Espeholt et al. 2018,
    Figure 3), of which the larger ones are said to be a version.
    """
    # Sizes of the rule are not in the text: the defaults are those of the published weights.
    own = RuleConfig(rule).with_known(reduction="mean", discount=0.997, vtrace_lambda=0.95)
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
        rule=own,
        # Methods: γ and λ; "Meta-optimization stabilization": advantages are normalised; Adam at 3e-4 for agents and
        # meta-value function. Updates clipped to ±1: the public code.
        outer=_outer(own, discount=0.997, lambda_=0.95, value_optimizer=adam(3e-4, max_update=1.0)),
        network=NetworkConfig("resnet", (256,), action_model=256, head_stddev=0.01, channels=(16, 32, 32)),
        optimizer=adam(3e-4, max_update=1.0),
        meta_optimizer=adam(1e-3, max_gradient_norm=1.0),  # Methods; one for each agent: ibid., "stabilization"
    )


@_with_entry
def grids57(rule: str) -> PopulationConfig:
    """The same on 57 grid worlds, with the meta-learning settings of Disco57 (Main, on toy environments).

    The agents are not described: their layers are those of the public code's meta-training.
    """
    network = NetworkConfig("mlp", (512, 512), action_model=256, head_stddev=0.01)
    return disco57(rule).replace(network=network, max_abs_reward=float("inf"))


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
