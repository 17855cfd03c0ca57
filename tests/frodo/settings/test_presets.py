"""Presets: all are valid with all rules, and a rule that takes another's place keeps what the two have in common."""

import collections
import dataclasses
import hashlib

import numpy as np
import pytest

from experiments.runs import settings
from frodo.settings import population_presets, presets
from frodo.settings.config import AgentConfig, make_setup
from frodo.settings.registry import RULES, RuleConfig
from meta.targets.disco import DiscoConfig
from meta.updates.outer import OuterConfig

ENVS = (
    "toy/random_walk",
    "toy/catch",
    "toy/catch/8x8",
    "toy/catch/5x5",
    "atari/Pong",
    "envpool/CartPole-v1",
    "trials/2/toy/bandit/2",
)


PROGRAMS = ("program", "dqn", "double_dqn", "dqn_reg", "dqn_clipped")
PROXIMAL = ("ppo", "dpo", "lpo", "corrected_ppo", "drift_program")
WITH_AGENTS_OF_THEIR_OWN = ("disco", "policy_program", "muesli", *PROXIMAL, *PROGRAMS)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("env", ENVS)
def test_the_settings_of_every_environment_and_rule_are_valid(env, rule):
    config = presets.for_rule(env, rule)
    assert (config.env, config.rule.name) == (env, rule)
    make_setup(config, 1 if config.rule.kind == "prediction" else 3)
    is_slow = not env.startswith(("toy/", "trials/")) and not RULES[rule].is_learned
    if rule not in WITH_AGENTS_OF_THEIR_OWN:
        assert config.num_updates == (1 if is_slow else 5)


RULES_OF_TRIALS = ["impala", "ppo", "muesli", "disco", "frodo", "catch_disco", "catch_and_grids", "vtrace"]


@pytest.mark.parametrize("rule", RULES_OF_TRIALS)
def test_agents_have_a_memory_for_trials_and_see_whole_episodes(rule):
    configure = settings.configure if rule in RULES else settings.configure_frozen
    config = configure("trials/4/toy/rule_room/main", rule)
    config.validate()
    assert (config.network.core, config.unroll, config.validation_unroll) == (128, 48, 48)
    assert config.batch_size == (16 if rule in ("muesli", "vtrace") else 64)
    assert not config.replay.capacity
    if rule not in ("ppo", "disco", "catch_disco", "catch_and_grids", "vtrace"):  # as these learn everywhere
        assert config.rule.settings.discount == 0.97
    assert configure("trials/4/toy/catch", rule).unroll == 48  # of unknown length
    assert [configure(f"trials/{k}/toy/bandit/2", rule).unroll for k in (48, 49)] == [480, 48]  # too long ones
    presets.for_rule("trials/0/toy/catch", "impala")  # refused where it is made


@pytest.mark.parametrize("make", population_presets.PRESETS.values(), ids=population_presets.PRESETS)
@pytest.mark.parametrize("rule", [name for name, entry in RULES.items() if entry.is_learned])
def test_the_settings_of_every_population_are_valid(make, rule):
    config = make(rule)
    config.validate()
    assert config.rule.name == rule and make_setup(config, 3).rule.reduction == "mean"


def test_the_papers_populations_are_those_of_its_methods():
    config, grids = population_presets.disco57("disco"), population_presets.grids57("disco")
    assert (config.batch_size, config.unroll, config.num_updates, config.gradient_mode) == (48, 29, 20, "mixed")
    assert (config.replay.batch_size, config.replay.num_fresh) == (96, 10)
    assert config.budgets == (200e6, 100e6, 50e6, 20e6) and config.is_optimizer_per_agent
    rates = config.optimizer, config.outer.value_optimizer, config.meta_optimizer
    assert [x.learning_rate for x in rates] == [3e-4, 3e-4, 1e-3] and config.meta_optimizer.max_gradient_norm == 1.0
    assert (config.outer.discount, config.outer.lambda_, config.outer.is_advantage_normalised) == (0.997, 0.95, True)
    assert grids.replace(network=config.network, max_abs_reward=1.0) == config
    envs = {name: collections.Counter(found) for name, found in population_presets.ENVS.items()}
    assert {name: found.total() for name, found in envs.items()} == {"disco57": 128, "disco103": 206, "grids57": 128}
    assert len(envs["disco103"]) == 103 and set(envs["disco103"].values()) == {2}
    assert envs["disco57"]["atari/Alien"] == 3 and envs["disco57"]["atari/Zaxxon"] == 2
    suites = [collections.Counter(env.partition("/")[0] for env in found.elements()) for found in envs.values()]
    assert suites == [{"atari": 128}, {"atari": 114, "envpool": 32, "dmlab": 60}, {"toy": 128}]
    assert settings.population("disco", population_presets.ENVS["disco103"], "disco103") == config


def test_the_runs_of_atari_have_the_settings_of_table_1():
    for name, config in presets.frodo_atari57().items():
        assert config == presets.for_rule(f"atari/{name}", "frodo")
    assert (config.batch_size, config.unroll, config.num_updates, config.max_abs_reward) == (30, 30, 5, 1.0)
    assert (config.rule.settings.consistency_cost, config.rule.settings.value_cost) == (0.1, 0.5)
    assert (config.optimizer.learning_rate, config.optimizer.decay, config.optimizer.epsilon) == (1e-3, 0.99, 0.1)
    assert (config.meta_optimizer.learning_rate, config.meta_optimizer.max_gradient_norm) == (5e-4, 1e4)


def test_another_rule_keeps_the_settings_of_the_same_names():
    config = presets.catch().replace(rule=presets.catch().rule.replace(entropy_cost=0.07, reduction="mean"))
    impala = presets.with_rule(config, "impala").rule.settings
    assert (impala.discount, impala.entropy_cost, impala.reduction, impala.lambda_) == (1.0, 0.07, "mean", 1.0)
    loss = presets.with_rule(config.replace(rule=config.rule.replace(lstm=8)), "learned_loss").rule.settings
    assert (loss.discount, loss.entropy_cost, loss.lstm) == (1.0, 0.07, 8)
    assert presets.with_rule(config, "frodo") is config
    others = [field.name for field in dataclasses.fields(config) if field.name not in ("rule", "outer")]
    changed = presets.with_rule(config, "impala")
    assert all(getattr(changed, name) == getattr(config, name) for name in others)
    assert changed.outer == OuterConfig() != config.outer  # a hand-made rule learns no objective
    assert presets.with_rule(config, "learned_loss").outer == config.outer
    population = population_presets.small("disco")
    scalar = presets.with_rule(population, "frodo")
    scalar.validate()  # without the value function of the outer objective
    assert scalar.outer.is_advantage_normalised and scalar.outer.value_hidden == OuterConfig().value_hidden


def test_a_hand_made_rule_updates_on_every_trajectory_of_a_host():
    assert presets.for_rule("envpool/CartPole-v1", "frodo").num_updates == 5
    assert presets.for_rule("envpool/CartPole-v1", "impala").num_updates == 1
    assert presets.for_rule("toy/catch", "impala").num_updates == 5
    # The settings of an agent alone say nothing of where it acts: its rule is not slowed down.
    assert presets.with_rule(AgentConfig(), "impala").num_updates == 5


def test_ppo_takes_passes_over_long_trajectories_with_the_discount_of_the_environment():
    config = presets.for_rule("toy/catch", "ppo")
    assert (config.batch_size, config.unroll, config.epochs, config.minibatches, config.num_updates) == (
        64,
        128,
        4,
        8,
        1,
    )
    assert (config.rule.settings.discount, config.rule.settings.reduction) == (1.0, "mean")
    assert config.network.is_critic_separate and config.network.is_orthogonal
    assert presets.for_rule("atari/Pong", "ppo").network == presets.atari("atari/Pong").network


def test_td_lambda_takes_as_many_steps_all_of_them_for_updates():
    config = presets.random_walk()
    other = presets.td_lambda(config, 0.4)
    assert (other.rule.name, other.rule.settings.lambda_, other.rule.settings.discount) == ("td_lambda", 0.4, 1.0)
    assert other.num_env_steps(is_meta=False) == config.num_env_steps(is_meta=True)


def test_observations_say_whether_the_network_is_one_for_images():
    frames, vectors = ((4, 84, 84), np.uint8), ((6,), np.float32)
    for rule in ("frodo", "disco", "impala"):
        assert presets.for_observations(*frames, rule).network.torso == "conv"
        config = presets.for_observations(*vectors, rule)
        assert config.network.torso == "mlp" and type(config) is AgentConfig
        assert presets.for_observations((4, 84, 84), np.float32, rule).network.torso == "mlp"
    for observations in (frames, vectors):  # nothing is known of the rewards: they are not clipped
        assert presets.for_observations(*observations, "frodo").max_abs_reward == float("inf")


def test_disco_on_images_keeps_its_heads_and_takes_the_torso():
    vectors, images = (presets.for_rule(env, "disco") for env in ("toy/catch/5x5", "atari/Pong"))
    assert (images.network.torso, images.network.hidden) == ("conv", (512,))
    assert images.network.action_model == vectors.network.action_model == 128
    assert (images.batch_size, images.max_abs_reward) == (8, 1.0) and vectors.max_abs_reward == float("inf")
    # First steps are left out in the evaluation of the public code alone.
    assert presets.for_rule("toy/catch/8x8", "disco").rule.settings == DiscoConfig(skips_first_steps=True)
    assert vectors.rule == images.rule == RuleConfig("disco")


def test_dqn_on_images_has_the_papers_settings_of_atari():
    vectors, images = (presets.for_rule(env, "dqn") for env in ("toy/catch", "atari/Pong"))
    assert (images.network.torso, images.network.hidden, vectors.network.hidden) == ("conv", (512,), (256, 256))
    assert (images.rule.settings.target_period, images.rule.settings.epsilon) == (1000, 0.1)
    assert (images.exploration, images.max_abs_reward) == (1_000_000, 1.0)
    images.validate()


# What the settings are

DIGESTS = {
    "frodo": "19c787ba9f9d",
    "learned_loss": "8c8ccee67f29",
    "disco": "5e5ed44775c7",
    "self_tuned": "355d74b3e6a1",
    "impala": "61918d8832dd",
    "a2c": "9f7f103cf3c3",
    "a2c_no_bootstrap": "9b920f71d9d9",
    "ppo": "c1e55293565f",
    "dpo": "3e38a4ad7fcc",
    "lpo": "657c60013477",
    "corrected_ppo": "5c7f855bd2d5",
    "drift_program": "1667a657980c",
    "muesli": "7ff29f1bc250",
    "q_learning": "60cdce87a5e4",
    "td_lambda": "6573b8c5a09f",
    "target_program": "998dcc7ff8e8",
    "policy_program": "f81f69c5133e",
    "program": "ef1cf6b07c93",
    "dqn": "05cc06a9de92",
    "double_dqn": "9248457e8372",
    "dqn_reg": "bde3facbfa7f",
    "dqn_clipped": "ec0b63916a2d",
}


def changed(config, prefix=""):
    """Every setting that is not the default of its class, by its name."""
    default = type(config)()
    for field in dataclasses.fields(config):
        name, value = f"{prefix}{field.name}", getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from changed(value, f"{name}.")
        elif value != getattr(default, field.name):
            yield f"{name}={value!r}"


@pytest.mark.parametrize("rule", RULES)
def test_the_settings_of_a_rule_are_what_they_were(rule):
    """Who changes settings on purpose writes the new digest here: of all environments, observations and populations."""
    found = {env: presets.for_rule(env, rule) for env in (*ENVS, "", "toy/grid_world/0", "trials/4/toy/rule_room/main")}
    found |= {f"pictures {x}": presets.for_observations((4, 84, 84), x, rule) for x in (np.uint8, np.float32)}
    if RULES[rule].is_learned:
        found |= {name: make(rule) for name, make in population_presets.PRESETS.items()}
    text = "\n".join(f"{name}: {', '.join(sorted(changed(config)))}" for name, config in found.items())
    assert hashlib.sha256(text.encode()).hexdigest()[:12] == DIGESTS[rule], text


def test_the_scale_of_rewards_changes_no_setting():
    for env in ("toy/catch", "gymnax/CartPole-v1"):
        scaled = f"scaled/1e-3/{env}"
        assert presets.for_environment(scaled) == presets.for_environment(env).replace(env=scaled)
