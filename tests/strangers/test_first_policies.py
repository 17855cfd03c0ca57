"""Every agent begins near the uniform policy and near value 0, whatever its core."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks.agent import NetworkConfig, make_agent
from agents.types import PredictionSpec

B, A, UNITS = 32, 5, 16
SPEC = {"policy": PredictionSpec((A,)), "value": PredictionSpec(), "q": PredictionSpec(is_per_action=True)}
CORES = {
    "none": {},
    "lstm": dict(core=UNITS),
    "transformer": dict(core=UNITS, core_kind="transformer", core_layers=1, memory=4),
}
OTHERS = {
    "plain": {},
    "orthogonal": dict(is_orthogonal=True),
    "critic": dict(is_critic_separate=True),
    "model": dict(action_model=16),
    "bfloat16": dict(precision="bfloat16"),
    "all": dict(is_orthogonal=True, is_critic_separate=True, action_model=16, precision="bfloat16"),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("core", CORES)
def test_the_first_policy_is_near_the_uniform_one_and_values_are_near_0(core, other):
    agent = make_agent(NetworkConfig("mlp", (UNITS,), **CORES[core], **OTHERS[other]), SPEC, A)
    rng = np.random.default_rng(0)
    observation = (rng.random((B, 100)) < 0.05).astype(np.float32)  # one-hot parts, as in a room

    @jax.jit
    def first_predictions(key):
        params, is_first = agent.init(key, observation), jnp.ones(B, bool)
        return agent.step(params, observation, is_first, agent.initial_state(B))[0]

    found = jax.device_get(jax.vmap(first_predictions)(jax.random.split(jax.random.key(0), 4)))
    pi = np.asarray(jax.nn.softmax(found["policy"]), np.float64)
    assert np.log(A) - np.mean(-np.sum(pi * np.log(pi), axis=-1)) < 0.02
    for name in ("value", "q"):
        assert np.sqrt(np.mean(np.square(found[name]))) < 0.35, name  # .30 without a core, with orthogonal weights


def test_heads_that_are_given_stay_as_they_are():
    agent = make_agent(NetworkConfig("mlp", (UNITS,), **CORES["transformer"], head_stddev=1.0), SPEC, A)
    heads = jax.jit(agent.init)(jax.random.key(0), jnp.zeros((2, 7)))["heads"]
    found = [own["w"] for own in heads.values() if own.get("w", jnp.zeros(())).shape == (UNITS, A)]
    assert len(found) == 2 and all(0.7 < np.std(x) < 1.3 for x in found)
