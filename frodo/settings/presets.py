"""Settings by environment, and how they change with the rule, as its entry says."""

import contextlib
import dataclasses
from typing import Any

import numpy as np

from agents.acting.replay import ReplayConfig
from agents.environments.names import is_pure, make_environment, unscaled
from agents.environments.suites import ATARI57
from agents.networks.agent import IMAGE_TORSOS, NetworkConfig
from frodo.settings.config import AgentConfig, OnlineConfig, outer_settings
from frodo.settings.registry import RuleConfig
from meta.targets.scalar import FrodoConfig
from meta.targets.self_tuned import SelfTunedConfig
from meta.updates.optimizers import OptimizerConfig, adam, sgd
from meta.updates.outer import OuterConfig
from toy_envs.base import Environment
from toy_envs.trials import Trials

TARGET_INPUTS = ("reward", "discount", "next_value")
LONGEST = 480  # steps of an episode of trials that one trajectory holds
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
    are solved (docs/papers/frodo.md).
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


def two_colours() -> OnlineConfig:
    """Bootstrapped meta-gradients on two colours: Flennerhag et al. 2022, section 5.1 and appendix B.

    What is not in the paper's text is that of the public re-implementation MagiFeeney/Bootstrapped-Meta-Learning.
    """
    settings = SelfTunedConfig(
        tuned=("entropy_cost",),
        is_corrected=False,
        entropy_cost=0.5,
        lambda_=0.0,
        value_cost=1.0,
        reduction="mean",
        eta_inputs=("mean_rewards",),
    )
    return OnlineConfig(
        env="toy/two_colours",
        batch_size=1,
        unroll=16,
        validation_unroll=16,
        num_updates=15,
        is_acting_interleaved=True,
        gradient_mode="reverse",
        vmap_seeds=True,
        rule=RuleConfig("self_tuned", settings),
        outer=OuterConfig(lambda_=0.0, value_cost=0.0, entropy_cost=0.0, is_bootstrapped=True, target_updates=9),
        network=NetworkConfig("mlp", (256, 256), is_critic_separate=True),
        optimizer=sgd(0.1),
        meta_optimizer=OptimizerConfig(1e-4, 0.999, 1e-4 / 16, float("inf"), "adam"),  # KL is a mean here, a sum there
    )


def discounting_chain() -> OnlineConfig:
    """A tuned γ on Discounting Chain, by an outer critic: Bonnet et al. 2022, section 5.1, and their public code.

    The agent's step size is ten times theirs, for a tenth of their 50,000 iterations.
    """
    settings = SelfTunedConfig(
        tuned=("discount",),
        discount=0.95,
        discount_range=(0.9, 1.0),
        lambda_=0.0,
        value_cost=0.0,
        entropy_cost=0.005,
        reduction="mean",
        known_values="toy/discounting_chain/3",
    )
    return OnlineConfig(
        env="toy/discounting_chain/3",
        batch_size=128,
        unroll=100,
        validation_unroll=100,
        num_updates=1,
        is_acting_interleaved=True,
        gradient_mode="reverse",
        vmap_seeds=True,
        rule=RuleConfig("self_tuned", settings),
        outer=OuterConfig(discount=1.0, lambda_=0.0, value_cost=0.0, entropy_cost=0.005, critic="head"),
        network=NetworkConfig("mlp", (), head_stddev=7e-3),
        optimizer=sgd(5.0),
        meta_optimizer=adam(0.1),
    )


def tuned_discount(env: str) -> OnlineConfig:
    """The common agent with a quarter of its batch, whose γ begins at .8; η moves as that of Bonnet et al. 2022."""
    agent, cost = common_agent(env), OuterConfig.value_cost
    rule = SelfTunedConfig(tuned=("discount",), discount=0.8, lambda_=0.95, value_cost=cost, reduction="mean")
    return agent.replace(
        batch_size=16,
        is_validation_kept=True,
        rule=RuleConfig("self_tuned", rule),
        outer=OuterConfig(lambda_=0.95),
        meta_optimizer=adam(3e-3, max_gradient_norm=0.1),
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
        gradient_mode="reverse",
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
    elsewhere, as a trial's rewards are, which add up to 1 at most (docs/results/adaptation.md).
    """
    horizon = None
    with contextlib.suppress(ValueError):  # a name that is none is refused where the environment is made
        environment = make_environment(env, 1, 0)
        horizon = environment.horizon if isinstance(environment, Environment) else None
    unroll = horizon if horizon and horizon <= LONGEST else 48
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


def placed(own: AgentConfig, preset: Any) -> Any:
    """Return a preset with an agent of its own in it.

    The preset gives what is of the run, as the environment, the choice of its tasks, the clipping of rewards and, for
    images, the network, for trials the memory.
    """
    of_run = {name: getattr(preset, name) for name in ("max_abs_reward", "curriculum", "distillation")}
    config = preset.replace(**vars(own.agent_only()) | of_run)
    return with_images(config, preset.network) if is_image_torso(preset.network) else with_memory(config, preset)


def with_memory(config: Any, agent: AgentConfig) -> Any:
    """Return settings with another agent's LSTM, if it has one, and its trajectories: no old ones are replayed."""
    if not agent.network.core:
        return config
    network = dataclasses.replace(config.network, core=agent.network.core)
    lengths = dict(batch_size=agent.batch_size, unroll=agent.unroll, validation_unroll=agent.validation_unroll)
    return config.replace(network=network, replay=ReplayConfig(), **lengths)


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
    """FRODO from an η that is fitted to a hand-designed target, with the common agent.

    Targets are relative, so that they fit rewards of any size, and every trajectory trains. The outer objective has no
    critic's loss, and normalised advantages: what disturbs a good η least (docs/papers/frodo.md).
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
    if (plain := unscaled(env)[1]) != env:
        return for_environment(plain).replace(env=env)
    return atari(env) if env.startswith("atari/") else vector_observations(env)


def for_rule(env: str, rule: str) -> OnlineConfig:
    """Return the settings for an environment and a rule, both by name."""
    config = with_rule(for_environment(env), rule)
    return config.rule.adapted(config, "preset", config.rule.entry.preset)


def for_observations(shape: tuple[int, ...], dtype: Any, rule: str) -> AgentConfig:
    """Return the settings for observations of one environment; those of pictures are Atari's.

    But rewards are not clipped.
    """
    env = "atari/" if is_picture(shape, dtype) else ""
    return for_rule(env, rule).agent_only().replace(max_abs_reward=float("inf"))


def is_picture(shape: tuple[int, ...], dtype: Any) -> bool:
    """Say whether observations are pictures: of three axes, in uint8."""
    return len(shape) == 3 and np.dtype(dtype) == np.uint8


def for_trials(environment: Trials, rule: str) -> AgentConfig:
    """Return the settings for episodes of trials: those of `trials`, in which an agent has a memory.

    Rules of agents without one, such as DQN, have none here either.
    """
    config = for_rule("trials/", rule).agent_only()
    horizon = environment.horizon
    if not config.network.core or horizon is None or horizon > LONGEST:
        return config
    return config.replace(unroll=horizon, validation_unroll=horizon)


def is_image_torso(network: NetworkConfig) -> bool:
    return network.torso in IMAGE_TORSOS


def with_images(config: Any, images: NetworkConfig) -> Any:
    """Return settings of an agent with the torso of a network for images, and its layers."""
    return config.replace(network=dataclasses.replace(config.network, torso=images.torso, hidden=images.hidden))


def with_rule(config: Any, name: str) -> Any:
    """Return the same with another rule, which keeps the settings of the same names, and those of its outer objective.

    A hand-designed rule updates on every trajectory of a host as it comes.
    """
    if name == config.rule.name:
        return config
    old = dict(vars(config.rule.settings))
    if config.rule.kind == "actor_critic" and not config.rule.has_critic:  # costs of the same names are of other losses
        old = {"discount": old.get("discount")}
    rule = RuleConfig(name).with_known(**old)
    of_outer = outer_settings(rule, config.outer.critic)
    outer = OuterConfig(**{field: getattr(config.outer, field) for field in of_outer})
    is_slow = not rule.entry.is_learned and not is_pure(getattr(config, "env", "toy/"))
    return config.replace(rule=rule, outer=outer, num_updates=1 if is_slow else config.num_updates)
