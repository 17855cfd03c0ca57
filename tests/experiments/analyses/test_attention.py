"""What a memory reads: sums of 1 over what is within its reach, as the four terms of its scores have it."""

import jax
import numpy as np
import pytest

from experiments.analyses.attention import attention
from experiments.runs import loaded_agent
from tests.experiments.test_watch import untrained


def played(num_steps, **network):
    agent = untrained("trials/2/toy/rule_room/easy", "impala", core=8, core_heads=2, core_layers=2, **network)
    return agent, loaded_agent.play(agent, num_steps, 1, seed=0)[0]


@pytest.mark.parametrize("memory", [5, 60])
def test_each_step_reads_itself_and_those_of_its_episode_within_reach(memory):
    agent, trajectory = played(40, core_kind="transformer", memory=memory)
    found = attention(agent, trajectory)
    assert found.shape == (40, 2, 40)
    np.testing.assert_allclose(found.sum(axis=-1), 1, rtol=1e-5)
    now, then = np.arange(40)[:, None], np.arange(40)
    is_reached = (then <= now) & (now - then <= memory) & (then // 24 == now // 24)
    np.testing.assert_array_equal(found.transpose(1, 0, 2) > 0, np.broadcast_to(is_reached, (2, 40, 40)))


def test_the_first_layer_by_hand():
    agent, trajectory = played(10, core_kind="transformer", memory=60)
    params = jax.tree.map(np.asarray, agent.agent.params["heads"])
    own = next(value for name, value in params.items() if name.endswith("transformer"))
    learner, memory = agent.learner.setup.agent, agent.learner.setup.agent.initial_state(1)
    for t in range(10):
        memory = learner.step(agent.agent.params, trajectory.observation[t], trajectory.is_first[t], memory)[1]
    inputs = np.asarray(memory.inputs[0])[0, :10]
    waves = np.arange(10)[:, None] * 10_000.0 ** -(np.arange(0, 8, 2) / 8)
    waves = np.concatenate([np.sin(waves), np.cos(waves)], axis=-1)
    found = attention(agent, trajectory)
    for t in range(10):
        of_heads = []
        for head in range(2):
            part = lambda name, head=head: own[f"{name}_0"][:, head]
            query = inputs[t] @ part("query")
            scores = [
                (query + own["key_bias_0"][head]) @ (inputs[s] @ part("key"))
                + (query + own["distance_bias_0"][head]) @ (waves[t - s] @ part("distance"))
                for s in range(t + 1)
            ]
            shares = np.exp(np.array(scores) / 2)  # the square root of a head's size, 4
            of_heads.append(shares / shares.sum())
        np.testing.assert_allclose(found[t, 0, : t + 1], np.mean(of_heads, axis=0), rtol=1e-4)


def test_an_agent_without_attention_has_no_layers():
    agent, trajectory = played(30)
    assert attention(agent, trajectory).shape == (30, 0, 30)
