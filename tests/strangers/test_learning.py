"""A short life for each adapter and for each rule that acts, and the return that it must reach.

Chance, and what is left to who does not learn from the step at a limit, looks one step ahead, sees pictures unscaled or
in the wrong layout, are below it (`tests/strangers/doors.py`).
"""

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import frodo
from tests.strangers.doors import DmEnvDoors, Doors, GymnasiumDoors

BATCH = 16


def last_return(environment, rule="impala", num_steps=8e3, **settings) -> float:
    """Live, and return the mean return of the episodes that ended in the last sixth of the life."""
    given = dict(optimizer=frodo.adam(1e-2), unroll=8, num_updates=1, network=frodo.NetworkConfig("mlp", (32,)))
    if not isinstance(environment, (list, gymnasium.vector.VectorEnv)):
        given["batch_size"] = BATCH
    result = frodo.discover_online(environment, rule, num_steps=num_steps, key=jax.random.key(0), **given | settings)
    metrics = result.metrics
    last = slice(-max(1, len(metrics["episodes"]) // 6), None)
    returns, episodes = np.nan_to_num(metrics["return"][last]), metrics["episodes"][last]
    return float(np.sum(returns * episodes) / np.sum(episodes))


def vector(mode: AutoresetMode) -> SyncVectorEnv:
    return SyncVectorEnv([lambda seed=seed: GymnasiumDoors(seed) for seed in range(BATCH)], autoreset_mode=mode)


CONV = frodo.NetworkConfig("conv", (32,))
ADAPTERS = {  # an environment, settings, and the return to reach
    "toy": (lambda: Doors(is_picture=False), {}, 0.9),
    "toy, pictures": (lambda: Doors(is_picture=True), dict(network=CONV), 0.9),
    "gymnasium, next step": (lambda: vector(AutoresetMode.NEXT_STEP), dict(network=CONV), 0.9),
    "gymnasium, same step": (lambda: vector(AutoresetMode.SAME_STEP), dict(network=CONV), 0.9),
    "dm_env": (lambda: [DmEnvDoors(seed) for seed in range(BATCH)], dict(network=CONV), 0.9),
    "bsuite": (lambda: "bsuite/catch/0", dict(num_steps=2.5e4), 0.2),  # at random −.6
    "gymnax": (lambda: "gymnax/Catch-bsuite", dict(num_steps=2.5e4), 0.2),
    "envpool": (lambda: "envpool/CartPole-v1", dict(num_steps=2e4, unroll=16), 60),  # at random 22
    "navix": (lambda: "navix/Navix-Empty-5x5-v0", dict(num_steps=1.5e4, unroll=16), 0.75),  # at random .25
    "xminigrid": (lambda: empty_room(), dict(num_steps=3e4, unroll=16), 0.2),  # at random .01
}


def empty_room():
    return pytest.importorskip("xminigrid").make("MiniGrid-Empty-5x5")


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter(name):
    make, settings, least = ADAPTERS[name]
    if name in ("gymnax", "navix", "envpool", "bsuite"):
        pytest.importorskip(name)
    assert last_return(make(), **settings) > least


META = dict(validation_unroll=8, gradient_mode="reverse", meta_optimizer=frodo.adam(1e-4, max_gradient_norm=1.0))
PASSES = dict(epochs=2, minibatches=2, truncation=2, annealing=8000)
MODEL = dict(network=frodo.NetworkConfig("mlp", (32,), action_model=16, head_stddev=0.01))
REPLAY = frodo.ReplayConfig(capacity=2000, batch_size=32, fresh=0.0)
DQN = dict(exploration=3000, unroll=1, batch_size=4, replay=REPLAY, optimizer=frodo.adam(3e-3))
ON_VTRACE = dict(
    lstm=16, is_relative=True, base="vtrace", inputs=("td_error", "discount", "pi", "mu"), reduction="mean"
)
RULES = {  # a rule, and settings
    "impala": ("impala", {}),
    "a2c": ("a2c", {}),
    "a2c_no_bootstrap": ("a2c_no_bootstrap", {}),
    "ppo": ("ppo", {}),
    "dpo": ("dpo", {}),
    "lpo": ("lpo", META | PASSES),
    "corrected_ppo": ("corrected_ppo", META | PASSES),
    "drift_program": ("drift_program", META | PASSES),
    "muesli": ("muesli", MODEL),
    "q_learning": ("q_learning", {}),
    "dqn": ("dqn", DQN),
    "double_dqn": ("double_dqn", DQN),
    "dqn_reg": ("dqn_reg", DQN),
    "dqn_clipped": ("dqn_clipped", DQN),
    # Of the eight steps of an iteration one is replayed: another one of an episode's three each time.
    "program": ("program", DQN | META | dict(validation_unroll=7, num_steps=3e4)),
    "target_program": ("target_program", META | dict(optimizer=frodo.adam(2e-2))),
    "frodo": (frodo.make_rule("frodo", **ON_VTRACE), META),  # from a random η it takes longer: Catch, below
    "learned_loss": (
        frodo.make_rule("learned_loss", lstm=16, inputs=("reward", "discount", "next_value", "pi", "mu", "td_error")),
        META | dict(num_steps=4e4, num_updates=2, meta_optimizer=frodo.adam(3e-3, max_gradient_norm=1.0)),
    ),
    "self_tuned": ("self_tuned", META),
    "policy_program": (frodo.make_rule("policy_program", max_value=3), META | MODEL | dict(num_steps=1.6e4)),
    "disco": ("catch_disco", MODEL | dict(is_frozen=True, num_steps=1.2e4)),
}


def test_each_rule_that_acts_has_a_life():
    assert set(RULES) == {name for name, entry in frodo.RULES.items() if entry.kinds != ("prediction",)}


@pytest.mark.parametrize("name", RULES)
def test_a_rule(name):
    rule, settings = RULES[name]
    assert last_return(Doors(is_picture=False), rule, **settings) > 0.8
