"""The settings of a population, and its presets."""

import dataclasses

import jax

from agents.networks import NetworkConfig
from frodo import presets
from frodo.online import OnlineConfig
from frodo.rule import LEARNED_RULES, RuleConfig
from meta.disco import DiscoConfig
from meta.optimizers import adam
from meta.population import LifetimeConfig


@dataclasses.dataclass
class DiscoverConfig:
    """A population: its agents' common settings, their environments and budgets, and how η moves."""

    agent: OnlineConfig = dataclasses.field(default_factory=OnlineConfig)
    envs: tuple[str, ...] = ()  # one agent for each entry
    budgets: tuple[int, ...] = (70_000, 210_000)  # environment steps of a lifetime
    is_optimizer_per_agent: bool = True  # else one for the mean of the meta-gradients
    vmap_agents: bool = False  # of a group, on one device: side by side rather than one after another
    num_devices: int = 0  # 0 for all there are

    def validate(self) -> None:
        if not self.envs:
            raise ValueError("envs is empty, expected at least one environment: a population needs an agent")
        self.agent.validate()
        if self.agent.rule.name not in LEARNED_RULES:
            raise ValueError(f"rule.name is {self.agent.rule.name!r}, expected one of {', '.join(LEARNED_RULES)}")
        steps = self.lifetime().steps
        if not self.budgets or min(self.budgets) < steps:
            raise ValueError(f"budgets are {self.budgets}, expected at least the {steps} steps of one meta-step")
        if not 0 <= self.num_devices <= len(jax.devices()):
            raise ValueError(f"num_devices is {self.num_devices}, expected at most {len(jax.devices())}, or 0 for all")

    def lifetime(self) -> LifetimeConfig:
        a = self.agent
        return LifetimeConfig(
            a.batch_size,
            a.unroll,
            a.validation_unroll,
            a.num_updates,
            a.num_fresh(is_meta=True),
            a.is_acting_in_turn,
            a.max_abs_reward,
            a.gradient_mode,
            a.replay,
            self.budgets,
        )


def small(rule: str) -> DiscoverConfig:
    """Small networks and predictions, and short lifetimes: what a CPU discovers a rule with."""
    config = OnlineConfig(
        env="toy/catch",
        batch_size=32,
        unroll=16,
        validation_unroll=32,
        num_updates=5,
        is_acting_in_turn=True,
        gradient_mode="reverse",
        rule=RuleConfig(
            name="disco",
            reduction="mean",
            lambda_=0.95,
            is_advantage_normalised=True,
            value_hidden=(64, 64),
            value_optimizer=adam(1e-3, max_update=1.0),
            disco=DiscoConfig(
                prediction_size=30, max_value=10, lstm=64, lifetime_lstm=32, action_embedding=(16, 8), discount=0.99
            ),
        ),
        network=NetworkConfig("mlp", (64, 64), action_model=32, head_stddev=0.01),
        optimizer=adam(5e-3, max_update=1.0),
        meta_optimizer=adam(1e-3, max_gradient_norm=1.0),
    )
    if rule == "disco":
        return DiscoverConfig(config, budgets=(100_000, 300_000))
    config = dataclasses.replace(
        config,
        rule=RuleConfig(name=rule, reduction="mean", lambda_=0.95, is_advantage_normalised=True, lstm=64),
        network=NetworkConfig("mlp", (64, 64), head_stddev=0.01),
        optimizer=adam(1e-2, max_update=1.0),
        meta_optimizer=adam(5e-4, max_gradient_norm=1.0),
    )
    return DiscoverConfig(config)


def harness(rule: str) -> DiscoverConfig:
    """The public code's meta-training (Oh et al. 2025): agents that are never reset, one Adam for all."""
    config = OnlineConfig(
        env="toy/catch/5x5",
        batch_size=32,
        unroll=16,
        validation_unroll=32,
        num_updates=2,
        gradient_mode="reverse",
        rule=RuleConfig(
            name=rule,
            reduction="mean",
            lambda_=0.96,
            is_advantage_normalised=True,
            value_optimizer=adam(1e-3, max_update=1.0),
            disco=DiscoConfig(skips_first_steps=True),
        ),
        network=NetworkConfig("mlp", (512, 512), action_model=256, head_stddev=0.01),
        optimizer=adam(5e-4, max_update=1.0),
        meta_optimizer=adam(5e-4),
    )
    return DiscoverConfig(config, budgets=(10**9,), is_optimizer_per_agent=False)


PRESETS = {"small": small, "harness": harness}


def preset(rule: str, envs: tuple[str, ...], name: str) -> DiscoverConfig:
    """Return the settings for a rule and environments; with images, the paper's ConvNet."""
    config = dataclasses.replace(PRESETS[name](rule), envs=envs)
    torsos = {presets.for_environment(env).network.torso for env in envs} - {"mlp", "tabular"}
    if torsos and len(torsos) == 1 and all(env.startswith("atari/") for env in envs):
        network = dataclasses.replace(config.agent.network, torso=torsos.pop(), hidden=(512,))
        config = dataclasses.replace(
            config, agent=dataclasses.replace(config.agent, network=network, max_abs_reward=1.0)
        )
    return config
