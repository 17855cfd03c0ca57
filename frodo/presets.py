"""Settings by environment, and how they change with the rule: data, and the one place where names decide anything."""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from agents.environments.names import is_pure, make_environment
from agents.environments.suites import ATARI57, DMLAB30, PROCGEN
from agents.networks import NetworkConfig
from agents.replay import ReplayConfig
from frodo.config import AgentConfig, OnlineConfig, PopulationConfig, outer_settings
from frodo.rules import RULES, RuleConfig
from meta.disco import DiscoConfig
from meta.optimizers import OptimizerConfig, adam
from meta.outer import OuterConfig
from meta.scalar import FrodoConfig
from toy_envs.base import Environment

TARGET_INPUTS = ("reward", "discount", "next_value")
PROGRAMS = ("program", "dqn", "double_dqn", "dqn_reg", "dqn_clipped")
# Oh et al. 2025, Methods: environment steps of a lifetime, each drawn with a weight inverse to it.
LIFETIMES = (200_000_000, 100_000_000, 50_000_000, 20_000_000)
VALUE_COST = 1.0  # of critics but Atari's: the paper gives 0.5 for Atari, and none for its toys


def random_walk() -> OnlineConfig:
    """Appendix A.1 of Xu et al. 2020 for the random walk, with clipped meta-gradients."""
    return OnlineConfig(
        env="toy/random_walk",
        batch_size=1,
        unroll=16,
        validation_unroll=16,
        gradient_mode="reverse",  # the fastest where an update is small
        vmap_seeds=True,
        rule=RuleConfig(
            "frodo",
            FrodoConfig(
                kind="prediction",
                discount=1.0,
                reduction="mean",
                lstm=32,
                inputs=TARGET_INPUTS,
                next_value_gradient="literal",
            ),
        ),
        outer=OuterConfig(discount=1.0),
        network=NetworkConfig("tabular", ()),
        optimizer=OptimizerConfig(1e-1, decay=0.9, epsilon=1e-8),
        meta_optimizer=OptimizerConfig(1e-2, decay=0.9, epsilon=1e-8, max_gradient_norm=1.0),
    )


def td_lambda(config: OnlineConfig, lambda_: float) -> OnlineConfig:
    """Return the same with TD(λ) as the rule: as many steps an iteration, all of them for updates."""
    other = with_rule(config, "td_lambda")
    return other.replace(rule=other.rule.replace(lambda_=lambda_), num_updates=config.num_updates + 1)


def catch(is_value_based: bool = False) -> OnlineConfig:
    """Appendix A.1 of Xu et al. 2020 for Catch, with clipped meta-gradients.

    The decay of 0.999 and the meta-optimiser's ε of 1e-5 keep solved seeds solved; with a critic's cost of 1 more seeds
    are solved (docs/fidelity.md).
    """
    settings = FrodoConfig(discount=1.0, value_cost=VALUE_COST)
    outer = OuterConfig(discount=1.0, value_cost=VALUE_COST)
    if is_value_based:
        settings = FrodoConfig(kind="value_based", discount=1.0, inputs=TARGET_INPUTS)
        outer = OuterConfig(discount=1.0, lambda_=0.0)
    return OnlineConfig(
        env="toy/catch",
        batch_size=32,
        unroll=3,
        validation_unroll=5,
        gradient_mode="reverse",
        rule=RuleConfig("frodo", settings),
        outer=outer,
        network=NetworkConfig("mlp", (256, 256)),
        optimizer=OptimizerConfig(1e-3, decay=0.999, epsilon=1e-8),
        meta_optimizer=OptimizerConfig(1e-4, epsilon=1e-5, max_gradient_norm=1.0),
    )


def atari(env: str) -> OnlineConfig:
    """Table 1 of Xu et al. 2020, the consistency loss of section 5.2, and clipped rewards."""
    return OnlineConfig(env=env, max_abs_reward=1.0, rule=RuleConfig("frodo", FrodoConfig(consistency_cost=0.1)))


def frodo_atari57() -> dict[str, OnlineConfig]:
    """Section 5.3 of Xu et al. 2020: a run for each of the 57 games, of 16 billion frames, by Table 1."""
    return {env.partition("/")[2]: atari(env) for env in ATARI57}


def vector_observations(env: str) -> OnlineConfig:
    """Catch's network and meta-optimiser with Table 1's ε for the agent: for environments without images."""
    return OnlineConfig(
        env=env,
        batch_size=32,
        unroll=20,
        validation_unroll=20,
        network=NetworkConfig("mlp", (256, 256)),
        optimizer=OptimizerConfig(1e-3, decay=0.999, epsilon=0.1),
        meta_optimizer=OptimizerConfig(1e-4, epsilon=1e-5, max_gradient_norm=1.0),
        rule=RuleConfig("frodo", FrodoConfig(value_cost=VALUE_COST)),
        outer=OuterConfig(value_cost=VALUE_COST),
    )


def trials(env: str) -> OnlineConfig:
    """An agent with a memory, for episodes of trials: each trajectory of 64 environments is a whole episode.

    Where an episode has more than 480 steps, or no known length, a trajectory has 48, as that of four trials of a rule
    room. The paper (AdA 2023) has a larger agent, and names neither γ nor optimiser. An LSTM of 128, Adam with 1e-3,
    γ = .97 and mean losses are what IMPALA was seen to learn rule rooms with; the entropy's cost is smaller than
    elsewhere, as a trial's rewards are, which add up to 1 at most (docs/adaptation.md).
    """
    horizon = None
    with contextlib.suppress(ValueError):  # a name that is none is refused where the environment is made
        environment = make_environment(env, 1, 0)
        horizon = environment.horizon if isinstance(environment, Environment) else None
    unroll = horizon if horizon and horizon <= 480 else 48
    return OnlineConfig(
        env=env,
        batch_size=64,
        unroll=unroll,
        validation_unroll=unroll,
        is_acting_interleaved=True,
        gradient_mode="reverse",
        network=NetworkConfig("mlp", (128,), core=128),
        optimizer=adam(1e-3, max_gradient_norm=0.5),
        meta_optimizer=OptimizerConfig(1e-4, epsilon=1e-5, max_gradient_norm=1.0),
        rule=RuleConfig(
            "frodo", FrodoConfig(discount=0.97, reduction="mean", value_cost=VALUE_COST, entropy_cost=0.003)
        ),
        outer=OuterConfig(discount=0.97, value_cost=VALUE_COST, entropy_cost=0.003),
    )


def with_memory(config: Any, agent: AgentConfig) -> Any:
    """Return settings with another agent's LSTM, if it has one, and its trajectories: no old ones are replayed."""
    if not agent.network.core:
        return config
    network = dataclasses.replace(config.network, core=agent.network.core)
    lengths = dict(batch_size=agent.batch_size, unroll=agent.unroll, validation_unroll=agent.validation_unroll)
    return config.replace(network=network, replay=ReplayConfig(), **lengths)


def disco103_on_catch() -> OnlineConfig:
    """The evaluation of the public code (Oh et al. 2025): 58 steps an update, 64 replayed trajectories."""
    return OnlineConfig(
        env="toy/catch/8x8",
        batch_size=2,
        unroll=29,
        validation_unroll=29,
        num_updates=1,
        replay=ReplayConfig(capacity=1024, batch_size=64, fresh=0.0),
        rule=RuleConfig("disco", DiscoConfig(skips_first_steps=True)),
        outer=OuterConfig(discount=0.997, lambda_=0.95, is_advantage_normalised=True),
        network=NetworkConfig("mlp", (512, 512), action_model=128, head_stddev=0.01),
        optimizer=adam(1e-2, max_update=1.0),
        meta_optimizer=adam(1e-4, max_gradient_norm=1.0),
    )


def disco(env: str) -> OnlineConfig:
    """An agent for DiscoRL's rule: that of the public code, for images with larger batches and the paper's rate."""
    config = disco103_on_catch()
    of_env = for_environment(env)
    if env != config.env:
        config = config.replace(env=env, max_abs_reward=of_env.max_abs_reward, rule=RuleConfig("disco"))
    if not is_image_torso(of_env.network):
        return with_memory(config, of_env)
    return with_images(config, of_env.network).replace(batch_size=8, optimizer=adam(3e-4, max_update=1.0))


def ppo(env: str) -> OnlineConfig:
    """PPO's usual settings for many environments at once (Lu et al. 2022; DiscoBench, Goldie et al. 2026)."""
    config = with_rule(for_environment(env), "ppo")
    config = config.replace(rule=RuleConfig("ppo").replace(discount=config.rule.settings.discount))
    config = config.replace(batch_size=64, unroll=128, num_updates=1, epochs=4, minibatches=8)
    optimizer = OptimizerConfig(1e-3, 0.999, 1e-5, max_gradient_norm=0.5, name="adam")
    if is_image_torso(config.network):
        return config.replace(optimizer=optimizer)
    network = NetworkConfig("mlp", (64, 64), is_orthogonal=True, is_critic_separate=True)
    return with_memory(config.replace(optimizer=optimizer, network=network), for_environment(env))


def muesli(env: str) -> OnlineConfig:
    """Three of four trajectories are replayed, as in Hessel et al. 2021, and Adam's updates are clipped.

    For images their batch of 96 trajectories of 30 steps; else small batches, networks and bins (of values up to 900):
    a CPU learns in fewer steps by more updates.
    """
    of_env = for_environment(env)
    rule = RuleConfig("muesli").replace(discount=of_env.rule.settings.discount)
    config = OnlineConfig(
        env=env,
        batch_size=8,
        unroll=16,
        num_updates=1,
        max_abs_reward=of_env.max_abs_reward,
        replay=ReplayConfig(capacity=1024, batch_size=32, fresh=0.25),
        rule=rule.replace(max_value=30),
        network=NetworkConfig("mlp", (128, 128), action_model=64, head_stddev=0.01),
        optimizer=adam(3e-3, max_update=1.0),
    )
    if not is_image_torso(of_env.network):
        return with_memory(config, of_env)
    return config.replace(
        batch_size=24,
        unroll=30,
        replay=ReplayConfig(capacity=1024, batch_size=96, fresh=0.25),
        rule=rule,
        network=dataclasses.replace(of_env.network, action_model=256, head_stddev=0.01),
        optimizer=adam(3e-4, max_update=1.0),
    )


def dqn(env: str, rule: str) -> OnlineConfig:
    """Co-Reyes et al. 2021, appendix B: an update by 32 replayed transitions for each step."""
    images = for_environment(env).network
    config = OnlineConfig(
        env=env,
        batch_size=1,
        unroll=1,
        validation_unroll=20,
        num_updates=5 if RULES[rule].is_learned else 1,
        exploration=1000,
        max_abs_reward=for_environment(env).max_abs_reward,
        gradient_mode="reverse",
        replay=ReplayConfig(capacity=100_000, batch_size=32, fresh=0.0),
        rule=RuleConfig(rule),
        network=NetworkConfig("mlp", (256, 256)),
        optimizer=adam(1e-4),
        meta_optimizer=adam(1e-3, max_gradient_norm=1.0),
    )
    if not is_image_torso(images):
        return config
    settings = config.rule.replace(epsilon=0.1, target_period=1000)
    replay = dataclasses.replace(config.replay, capacity=10_000)
    return with_images(config, images).replace(rule=settings, exploration=1_000_000, replay=replay)


def common_agent(env: str) -> OnlineConfig:
    """The agent that `experiments.compare` gives to every rule: no setting is of one rule alone.

    On Atari the network and the clipping of rewards are Table 1's of Xu et al. 2020.
    """
    of_env = for_environment(env)
    is_image = is_image_torso(of_env.network)
    config = OnlineConfig(
        env=env,
        batch_size=64,
        unroll=16,
        validation_unroll=16,
        num_updates=1,
        is_acting_interleaved=is_pure(env),
        max_abs_reward=of_env.max_abs_reward,
        gradient_mode=of_env.gradient_mode if is_image else "reverse",
        network=of_env.network if is_image else NetworkConfig("mlp", (64, 64), head_stddev=0.01),
        optimizer=OptimizerConfig(1e-3, 0.999, 1e-5, max_gradient_norm=0.5, name="adam"),
        meta_optimizer=OptimizerConfig(1e-4, epsilon=1e-5, max_gradient_norm=1.0),
    )
    return with_memory(config, of_env)


def fitted(env: str) -> OnlineConfig:
    """FRODO from an η that is fitted to a hand-made target, with the common agent.

    Targets are relative, so that they fit rewards of any size, and every trajectory trains. The outer objective has no
    critic's loss, and normalised advantages: what disturbs a good η least (docs/fidelity.md).
    """
    agent = common_agent(env)
    rule = FrodoConfig(
        reduction="mean",
        lstm=64,
        inputs=("td_error", "discount", "pi", "mu"),
        is_relative=True,
        vtrace_lambda=0.95,
    )
    return agent.replace(
        batch_size=16,
        num_updates=5,
        is_validation_kept=True,
        rule=RuleConfig("frodo", rule),
        outer=OuterConfig(lambda_=0.95, value_cost=0.0, is_advantage_normalised=True),
        optimizer=dataclasses.replace(agent.optimizer, learning_rate=3e-3),
    )


def for_environment(env: str) -> OnlineConfig:
    """Return the settings for an environment by its name."""
    if env in ("toy/random_walk", "toy/catch"):
        return {"toy/random_walk": random_walk, "toy/catch": catch}[env]()
    if env.startswith("trials/"):
        return trials(env)
    return atari(env) if env.startswith("atari/") else vector_observations(env)


def for_rule(env: str, rule: str) -> OnlineConfig:
    """Return the settings for an environment and a rule, both by name."""
    if rule in PROGRAMS:
        return dqn(env, rule)
    of_rule = {"disco": disco, "muesli": muesli, "ppo": ppo}
    return with_rule(of_rule.get(rule, for_environment)(env), rule)


def for_observations(shape: tuple[int, ...], dtype: Any, rule: str) -> AgentConfig:
    """Return the settings for observations of one environment: images [C, H, W] are those of three axes in uint8.

    Those of images are Atari's, but that rewards are not clipped.
    """
    is_image = len(shape) == 3 and np.dtype(dtype) == np.uint8
    return for_rule("atari/" if is_image else "", rule).agent_only().replace(max_abs_reward=float("inf"))


def is_image_torso(network: NetworkConfig) -> bool:
    return network.torso in ("conv", "resnet")


def with_images(config: Any, images: NetworkConfig) -> Any:
    """Return settings of an agent with the torso of a network for images, and its layers."""
    return config.replace(network=dataclasses.replace(config.network, torso=images.torso, hidden=images.hidden))


def with_rule(config: Any, name: str) -> Any:
    """Return the same with another rule, which keeps the settings of the same names, and those of its outer objective.

    A hand-made rule updates on every trajectory of a host as it comes.
    """
    if name == config.rule.name:
        return config
    old, rule = config.rule.settings, RuleConfig(name)
    own = {field.name for field in dataclasses.fields(rule.settings)}
    if config.rule.name == "disco":  # costs of the same names are of other losses
        own = {"discount"}
    common = {field.name: getattr(old, field.name) for field in dataclasses.fields(old) if field.name in own}
    rule = rule.replace(**common)
    outer = OuterConfig(**{field: getattr(config.outer, field) for field in outer_settings(rule)})
    num_updates = config.num_updates
    if not RULES[name].is_learned and not is_pure(getattr(config, "env", "toy/")):
        num_updates = 1
    return config.replace(rule=rule, outer=outer, num_updates=num_updates)


def small_population(rule: str) -> PopulationConfig:
    """Small networks and predictions, and short lifetimes: what a CPU discovers a rule with."""
    if rule in PROGRAMS:
        agent = dqn("toy/", rule).replace(network=NetworkConfig("mlp", (64, 64)), optimizer=adam(1e-3))
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
        rule=_scalar(rule, lstm=64, vtrace_lambda=0.95, value_cost=VALUE_COST),
        outer=OuterConfig(lambda_=0.95, is_advantage_normalised=True, value_cost=VALUE_COST),
        network=NetworkConfig("mlp", (64, 64), head_stddev=0.01),
        optimizer=adam(1e-2, max_update=1.0),
        meta_optimizer=adam(5e-4, max_gradient_norm=1.0),
    )


def harness_population(rule: str) -> PopulationConfig:
    """The public code's meta-training (Oh et al. 2025): agents that are never reset, one Adam for all."""
    if rule in PROGRAMS:
        return small_population(rule).replace(budgets=(10**9,), is_optimizer_per_agent=False)
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
    if rule in PROGRAMS:
        return small_population(rule).replace(budgets=LIFETIMES)
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
    if rule in PROGRAMS:
        return config
    network = NetworkConfig("mlp", (512, 512), action_model=256, head_stddev=0.01)
    return config.replace(network=network, max_abs_reward=float("inf"))


def _cycle(envs: Sequence[str], num: int) -> tuple[str, ...]:
    return tuple(envs[i % len(envs)] for i in range(num))


POPULATIONS = {
    "small": small_population,
    "harness": harness_population,
    "disco57": disco57,
    "disco103": disco57,
    "grids57": grids57,
}
# Where the agents of a population live, if that is part of its settings: an environment for each agent.
POPULATION_ENVS = {
    "disco57": _cycle(ATARI57, 128),  # Methods: 128 agents, through the games in lexicographic order
    "disco103": _cycle((*ATARI57, *PROCGEN, *DMLAB30), 206),  # Methods: 206 agents, two copies of each environment
    "grids57": _cycle([f"toy/grid_world/{i}" for i in range(57)], 128),  # as many agents as Disco57's: not said
}
