"""Settings by experiment: data, and the one place where names of rules and environments decide anything."""

import dataclasses

from agents.networks import NetworkConfig
from frodo.online import OnlineConfig, OptimizerConfig
from frodo.rule import RuleConfig

TARGET_INPUTS = ("reward", "discount", "next_value")


def random_walk() -> OnlineConfig:
    """Appendix A.1 of Xu et al. 2020 for the random walk, with clipped meta-gradients."""
    return OnlineConfig(
        env="toy/random_walk",
        batch_size=1,
        unroll=16,
        validation_unroll=16,
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


def td_lambda(lambda_: float) -> OnlineConfig:
    """TD(λ) on the random walk: as many steps an iteration, all of them for updates."""
    config = random_walk()
    config.rule = dataclasses.replace(config.rule, name="td_lambda", lambda_=lambda_)
    config.num_updates += 1
    return config


def catch(rule: str = "frodo") -> OnlineConfig:
    """Appendix A.1 of Xu et al. 2020 for Catch, with clipped meta-gradients; `rule` as in `experiments.catch`."""
    config = OnlineConfig(
        env="toy/catch",
        batch_size=32,
        unroll=3,
        validation_unroll=5,
        rule=RuleConfig(name=rule, discount=1.0),
        network=NetworkConfig("mlp", (256, 256)),
        optimizer=OptimizerConfig(1e-3, epsilon=1e-8),
        meta_optimizer=OptimizerConfig(1e-4, epsilon=1e-8, max_gradient_norm=1.0),
    )
    return config
