"""Settings by environment, and how they change with the rule: data, and the one place where names decide anything."""

import dataclasses
from typing import Any

from agents.networks import NetworkConfig
from agents.replay import ReplayConfig
from frodo.online import OnlineConfig
from frodo.rule import LEARNED_RULES, RULES, RuleConfig
from meta.disco import DiscoConfig
from meta.optimizers import OptimizerConfig, adam

HAND_MADE_SETTINGS: dict[str, dict[str, Any]] = {
    "q_learning": {"kind": "value_based", "lambda_": 1.0},
    "td_lambda": {"kind": "prediction"},
}
TARGET_INPUTS = ("reward", "discount", "next_value")


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
            kind="prediction",
            discount=1.0,
            reduction="mean",
            lstm=32,
            inputs=TARGET_INPUTS,
            next_value_gradient="literal",
        ),
        network=NetworkConfig("tabular", ()),
        optimizer=OptimizerConfig(1e-1, decay=0.9, epsilon=1e-8),
        meta_optimizer=OptimizerConfig(1e-2, decay=0.9, epsilon=1e-8, max_gradient_norm=1.0),
    )


def td_lambda(config: OnlineConfig, lambda_: float) -> OnlineConfig:
    """Return the same with TD(λ) as the rule: as many steps an iteration, all of them for updates."""
    rule = dataclasses.replace(config.rule, name="td_lambda", lambda_=lambda_)
    return dataclasses.replace(config, rule=rule, num_updates=config.num_updates + 1)


def catch(is_value_based: bool = False) -> OnlineConfig:
    """Appendix A.1 of Xu et al. 2020 for Catch, with clipped meta-gradients.

    The decay of 0.999 and the meta-optimiser's ε of 1e-5 keep solved seeds solved (docs/fidelity.md).
    """
    if is_value_based:
        rule = RuleConfig(kind="value_based", discount=1.0, lambda_=0.0, inputs=TARGET_INPUTS)
    else:
        rule = RuleConfig(discount=1.0)
    return OnlineConfig(
        env="toy/catch",
        batch_size=32,
        unroll=3,
        validation_unroll=5,
        gradient_mode="reverse",
        rule=rule,
        network=NetworkConfig("mlp", (256, 256)),
        optimizer=OptimizerConfig(1e-3, decay=0.999, epsilon=1e-8),
        meta_optimizer=OptimizerConfig(1e-4, epsilon=1e-5, max_gradient_norm=1.0),
    )


def atari(env: str) -> OnlineConfig:
    """Table 1 of Xu et al. 2020, the consistency loss of section 5.2, and clipped rewards."""
    return OnlineConfig(env=env, max_abs_reward=1.0, rule=RuleConfig(consistency_cost=0.1))


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
    )


def disco103_on_catch() -> OnlineConfig:
    """The evaluation of the public code (Oh et al. 2025): 58 steps an update, 64 replayed trajectories."""
    return OnlineConfig(
        env="toy/catch/8x8",
        batch_size=2,
        unroll=29,
        validation_unroll=29,
        num_updates=1,
        replay=ReplayConfig(capacity=1024, batch_size=64, fresh=0.0),
        rule=RuleConfig(
            name="disco",
            reduction="mean",
            discount=0.997,
            lambda_=0.95,
            is_advantage_normalised=True,
            disco=DiscoConfig(skips_first_steps=True),
        ),
        network=NetworkConfig("mlp", (512, 512), action_model=128, head_stddev=0.01),
        optimizer=adam(1e-2, max_update=1.0),
        meta_optimizer=adam(1e-4, max_gradient_norm=1.0),
    )


def disco(env: str) -> OnlineConfig:
    """An agent for DiscoRL's rule: that of the public code, for images with larger batches and the paper's rate."""
    config = disco103_on_catch()
    of_env = for_environment(env)
    if env != config.env:
        rule = dataclasses.replace(config.rule, disco=DiscoConfig())
        config = dataclasses.replace(config, env=env, max_abs_reward=of_env.max_abs_reward, rule=rule)
    if of_env.network.torso not in ("conv", "resnet"):
        return config
    network = dataclasses.replace(config.network, torso=of_env.network.torso, hidden=of_env.network.hidden)
    return dataclasses.replace(config, batch_size=8, network=network, optimizer=adam(3e-4, max_update=1.0))


def for_environment(env: str) -> OnlineConfig:
    """Return the settings for an environment by its name."""
    if env in ("toy/random_walk", "toy/catch"):
        return {"toy/random_walk": random_walk, "toy/catch": catch}[env]()
    return atari(env) if env.startswith("atari/") else vector_observations(env)


def with_rule(config: OnlineConfig, rule: str) -> OnlineConfig:
    """Return the same with another rule; a hand-made one updates on every trajectory of a host as it comes."""
    num_updates = config.num_updates
    if rule in RULES and rule not in LEARNED_RULES and not config.env.startswith("toy/"):
        num_updates = 1
    settings = HAND_MADE_SETTINGS.get(rule, {})
    new_rule = dataclasses.replace(config.rule, name=rule, **settings)
    return dataclasses.replace(config, rule=new_rule, num_updates=num_updates)
