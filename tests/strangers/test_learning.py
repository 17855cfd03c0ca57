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
TASKS = {
    "toy": lambda: last_return(Doors(is_picture=False)),
    "toy, pictures": lambda: last_return(Doors(is_picture=True), network=CONV),
    "gymnasium, next step": lambda: last_return(vector(AutoresetMode.NEXT_STEP), network=CONV),
    "gymnasium, same step": lambda: last_return(vector(AutoresetMode.SAME_STEP), network=CONV),
    "dm_env": lambda: last_return([DmEnvDoors(seed) for seed in range(BATCH)], network=CONV),
}


@pytest.mark.parametrize("name", TASKS)
def test_an_adapter(name):
    assert TASKS[name]() > 0.9
