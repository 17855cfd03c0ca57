"""The package's own rules, and all that belongs to each: its agents, its populations, what its η is read from."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from agents.acting.replay import ReplayConfig
from agents.networks.agent import NetworkConfig
from agents.rules.impala import A2CConfig, ImpalaConfig, a2c, impala
from agents.rules.muesli import MuesliConfig, muesli
from agents.rules.ppo import DPOConfig, PPOConfig, dpo, ppo
from agents.rules.q_learning import QLearningConfig, q_learning
from agents.rules.td import TDLambdaConfig, td_lambda
from frodo.rules import disco103_weights
from frodo.rules.fitted import cached
from frodo.settings import population_presets
from frodo.settings.config import AgentConfig, OnlineConfig, PopulationConfig
from frodo.settings.presets import fitted, for_rule, is_image_torso, placed, with_images, with_memory
from frodo.settings.registry import RULES, Origin, RuleConfig, RuleEntry, Start
from meta.programs.drifts import DriftProgramConfig, drift_program
from meta.programs.policies import PolicyProgramConfig, policy_program
from meta.programs.rule import DoubleDQNConfig, DQNClippedConfig, DQNRegConfig, ProgramConfig, program
from meta.programs.targets import TargetProgramConfig, target_program
from meta.targets import disco103, fitting, policy_fitting
from meta.targets.disco import DiscoConfig, disco
from meta.targets.hand_made import TARGETS
from meta.targets.proximal import CorrectedPPOConfig, LPOConfig, corrected_ppo, lpo
from meta.targets.scalar import FrodoConfig, LearnedLossConfig, frodo, learned_loss
from meta.targets.self_tuned import SelfTunedConfig, self_tuned
from meta.updates.optimizers import OptimizerConfig, adam
from meta.updates.outer import OuterConfig

LIFE = 1_000_000  # environment steps of the agents of learned proximal rules
TRAINING_OF_DISCO103 = "206 agents on 2,048 TPUv3 cores for 60 hours (Oh et al. 2025)"


# Agents, where they are not those of the environment


def with_disco(of_env: OnlineConfig) -> OnlineConfig:
    """The evaluation of the public code (Oh et al. 2025): 58 steps an update, 64 replayed trajectories.

    For images batches are larger, and the rate is the paper's. First steps are left out on the public code's Catch.
    """
    is_image = is_image_torso(of_env.network)
    agent = AgentConfig(
        batch_size=8 if is_image else 2,
        unroll=29,
        validation_unroll=29,
        num_updates=1,
        replay=ReplayConfig(capacity=1024, batch_size=64, fresh=0.0),
        rule=RuleConfig(of_env.rule.name).with_known(skips_first_steps=of_env.env == "toy/catch/8x8"),
        outer=OuterConfig(discount=0.997, lambda_=0.95, is_advantage_normalised=True),
        network=NetworkConfig("mlp", (512, 512), action_model=128, head_stddev=0.01),
        optimizer=adam(3e-4 if is_image else 1e-2, max_update=1.0),
        meta_optimizer=adam(1e-4, max_gradient_norm=1.0),
    )
    return placed(agent, of_env.replace(vmap_seeds=False))


def with_ppo(of_env: OnlineConfig) -> OnlineConfig:
    """PPO's usual settings for many environments at once (Lu et al. 2022; DiscoBench, Goldie et al. 2026)."""
    rule = RuleConfig(of_env.rule.name).replace(discount=of_env.rule.settings.discount)
    config = of_env.replace(rule=rule, batch_size=64, unroll=128, num_updates=1, epochs=4, minibatches=8)
    optimizer = OptimizerConfig(1e-3, 0.999, 1e-5, max_gradient_norm=0.5, name="adam")
    if is_image_torso(config.network):
        return config.replace(optimizer=optimizer)
    network = NetworkConfig("mlp", (64, 64), is_orthogonal=True, is_critic_separate=True)
    return with_memory(config.replace(optimizer=optimizer, network=network), of_env)


def with_learned_ppo(of_env: OnlineConfig) -> OnlineConfig:
    """PPO's agent; what judges η is the next trajectory to learn from, and η's gradient goes through the last pass."""
    config = with_ppo(of_env)
    return config.replace(
        validation_unroll=config.unroll,
        is_validation_kept=True,
        truncation=config.minibatches,
        outer=OuterConfig(config.rule.settings.discount, lambda_=0.95, is_advantage_normalised=True),
        meta_optimizer=adam(1e-3, max_gradient_norm=1.0),
    )


def with_muesli(of_env: OnlineConfig) -> OnlineConfig:
    """Three of four trajectories are replayed, as in Hessel et al. 2021, and Adam's updates are clipped.

    For images their batch of 96 trajectories of 30 steps; else small batches and networks: a CPU learns in fewer steps
    by more updates. So 16 fresh trajectories for an agent with a memory, too. Bins are those that fit the environment.
    """
    is_image = is_image_torso(of_env.network)
    agent = AgentConfig(
        batch_size=24 if is_image else 8,
        unroll=30 if is_image else 16,
        num_updates=1,
        replay=ReplayConfig(capacity=1024, batch_size=96 if is_image else 32, fresh=0.25),
        rule=RuleConfig("muesli").replace(discount=of_env.rule.settings.discount),
        network=NetworkConfig("mlp", (128, 128), action_model=256 if is_image else 64, head_stddev=0.01),
        optimizer=adam(3e-4 if is_image else 3e-3, max_update=1.0),
    )
    config = placed(agent, of_env.replace(vmap_seeds=False))
    return config.replace(batch_size=16) if config.network.core else config


def with_dqn(of_env: OnlineConfig) -> OnlineConfig:
    """Co-Reyes et al. 2021, appendix B: an update by 32 replayed transitions for each step."""
    is_image = is_image_torso(of_env.network)
    rule = RuleConfig(of_env.rule.name)
    config = OnlineConfig(
        env=of_env.env,
        batch_size=1,
        unroll=1,
        validation_unroll=20,
        num_updates=5 if rule.entry.is_learned else 1,
        exploration=1_000_000 if is_image else 1000,
        max_abs_reward=of_env.max_abs_reward,
        gradient_mode="reverse",
        replay=ReplayConfig(capacity=10_000 if is_image else 100_000, batch_size=32, fresh=0.0),
        rule=rule.replace(epsilon=0.1, target_period=1000) if is_image else rule,
        network=NetworkConfig("mlp", (256, 256)),
        optimizer=adam(1e-4),
        meta_optimizer=adam(1e-3, max_gradient_norm=1.0),
    )
    return with_images(config, of_env.network) if is_image else config


# Populations, where they are not those of rules with scalar targets


def small_with_disco(config: PopulationConfig) -> PopulationConfig:
    """Small predictions and bins, and a meta-value function as small as the agent."""
    sizes = dict(prediction_size=30, max_value=10, lstm=64, lifetime_lstm=32, action_embedding=(16, 8))
    value_optimizer = adam(1e-3, max_update=1.0)
    return config.replace(
        budgets=(100_000, 300_000),
        rule=RuleConfig(config.rule.name).with_known(discount=0.99, **sizes),
        outer=dataclasses.replace(config.outer, value_hidden=(64, 64), value_optimizer=value_optimizer),
        network=dataclasses.replace(config.network, action_model=32),
        optimizer=adam(5e-3, max_update=1.0),
        meta_optimizer=adam(1e-3, max_gradient_norm=1.0),
    )


def with_proximal(config: PopulationConfig) -> PopulationConfig:
    """PPO's agent, and lifetimes of a million steps, over which its learning rate falls."""
    agent = for_rule("toy/", config.rule.name).agent_only().replace(annealing=LIFE)
    return PopulationConfig(**vars(agent), budgets=(LIFE,), is_optimizer_per_agent=config.is_optimizer_per_agent)


def with_programs(config: PopulationConfig) -> PopulationConfig:
    """DQN's agent, made small; of the preset are the lifetimes and how η moves."""
    agent = for_rule("toy/", config.rule.name).agent_only()
    agent = agent.replace(network=NetworkConfig("mlp", (64, 64)), optimizer=adam(1e-3))
    own = {name: getattr(config, name) for name in ("budgets", "is_optimizer_per_agent")}
    return PopulationConfig(**vars(agent), **own)


# What η can begin with


def fit(target: str, make: Callable, check: Callable, agent: Callable, in_population: Any = None) -> Start:
    origin = Origin((), 0, None, f"fitted to {target} on made-up trajectories")
    meta_params = lambda rule: cached(target, rule, functools.partial(make, rule.settings))
    return Start(meta_params, agent, origin, True, check, in_population)


def in_small_steps(own: AgentConfig, preset: Any) -> Any:
    """Let η move in small steps, and the θ of each update act its trajectory.

    With the settings of `presets.fitted` a population lost what the fit can do (docs/results/population.md).
    """
    slow = dataclasses.replace(own.meta_optimizer, learning_rate=2e-5)
    return placed(own.replace(is_acting_interleaved=True, meta_optimizer=slow), preset)


def with_disco103(own: AgentConfig, preset: Any) -> Any:
    """Put the rule into a population's preset, and keep its agents: those of the discovery are not known."""
    skips = getattr(preset.rule.settings, "skips_first_steps", False)
    return preset.replace(rule=own.rule.replace(skips_first_steps=skips))


def small_disco(env: str) -> OnlineConfig:
    return placed(population_presets.small("disco").agent_only(), for_rule(env, "disco"))


def scalar_fit(target: str) -> Start:
    make, check = (functools.partial(x, target) for x in (fitting.fit, fitting.check_target))
    return fit(target, make, check, fitted, in_small_steps)


STARTS_OF_DISCO = {
    "disco103": Start(
        lambda rule: disco103.to_meta_params(disco103_weights.read(disco103_weights.find())),
        agent=lambda env: for_rule(env, "disco"),
        origin=Origin(("atari/*", "procgen/*", "dmlab/*"), None, None, TRAINING_OF_DISCO103),
        in_population=with_disco103,
    ),
    "cmpo": fit("cmpo", policy_fitting.fit, policy_fitting.check_target, small_disco),
}
_program = functools.partial(
    RuleEntry,
    kinds=("value_based",),
    preset=with_dqn,
    population=dict.fromkeys(population_presets.PRESETS, with_programs)
    | {"small": lambda config: with_programs(config.replace(budgets=(20_000, 60_000)))},
    tuning={"batches": ((1, 1),)},  # an update for each step of one environment
    eta_settings=("formula", "ends"),
)
_proximal = functools.partial(
    RuleEntry,
    is_learned=True,
    preset=with_learned_ppo,
    population=dict.fromkeys(population_presets.PRESETS, with_proximal),
)
_hand_made_program = functools.partial(program, is_learned=False)
OWN: dict[str, RuleEntry] = {
    "frodo": RuleEntry(
        frodo,
        FrodoConfig,
        ("actor_critic", "value_based", "prediction"),
        is_learned=True,
        eta_settings=("kind", "inputs", "is_relative", "base"),
        starts={target: scalar_fit(target) for target in TARGETS},
    ),
    "learned_loss": RuleEntry(learned_loss, LearnedLossConfig, is_learned=True, eta_settings=("inputs",)),
    "disco": RuleEntry(
        disco,
        DiscoConfig,
        is_learned=True,
        preset=with_disco,
        population={"small": small_with_disco},
        eta_settings=("without", "core"),
        starts=STARTS_OF_DISCO,
        other_files=disco103,
    ),
    "self_tuned": RuleEntry(
        self_tuned,
        SelfTunedConfig,
        is_learned=True,
        eta_settings=("tuned", "discount_range", "cost_range", "heads", "eta_inputs", "history", "eta_hidden"),
    ),
    "impala": RuleEntry(impala, ImpalaConfig),
    "a2c": RuleEntry(a2c, A2CConfig),
    "a2c_no_bootstrap": RuleEntry(functools.partial(a2c, is_bootstrapped=False), A2CConfig),
    "lpo": _proximal(lpo, LPOConfig, eta_settings=("drift_units", "is_temporal")),
    "corrected_ppo": _proximal(
        corrected_ppo, CorrectedPPOConfig, eta_settings=("drift_units", "is_temporal", "parts", "lstm")
    ),
    "drift_program": _proximal(drift_program, DriftProgramConfig, eta_settings=("formula",)),
    "ppo": RuleEntry(ppo, PPOConfig, preset=with_ppo),
    "dpo": RuleEntry(dpo, DPOConfig, preset=with_ppo),
    "muesli": RuleEntry(muesli, MuesliConfig, preset=with_muesli),
    "q_learning": RuleEntry(q_learning, QLearningConfig, ("value_based",)),
    "td_lambda": RuleEntry(td_lambda, TDLambdaConfig, ("prediction",)),
    "target_program": RuleEntry(target_program, TargetProgramConfig, is_learned=True, eta_settings=("formula",)),
    "policy_program": RuleEntry(
        policy_program,
        PolicyProgramConfig,
        is_learned=True,
        preset=with_disco,
        population={"small": small_with_disco},
        eta_settings=("formula",),
    ),
    "program": _program(program, DQNRegConfig, is_learned=True),
    "dqn": _program(_hand_made_program, ProgramConfig),
    "double_dqn": _program(_hand_made_program, DoubleDQNConfig),
    "dqn_reg": _program(_hand_made_program, DQNRegConfig),
    "dqn_clipped": _program(_hand_made_program, DQNClippedConfig),
}
RULES.update(OWN)
