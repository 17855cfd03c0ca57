"""What the memory of a trained agent reads."""

import jax
import jax.numpy as jnp
import numpy as np

from agents.networks.transformer import Memory, Weights, attention_once
from agents.types import Trajectory
from experiments.runs.loaded_agent import LoadedAgent


def attention(loaded: LoadedAgent, trajectory: Trajectory) -> np.ndarray:
    """Return how much each step reads of each step, [T, layers, T] of T steps, as a mean over heads.

    Of the first environment of a trajectory that begins with an episode; of an agent without attention no layers.
    """
    agent, params = loaded.learner.setup.agent, loaded.learner.setup.acting_params(loaded.agent)
    memory = agent.initial_state(trajectory.action.shape[1])
    if not isinstance(memory, Memory):
        return np.zeros((len(trajectory.action), 0, len(trajectory.action)))
    own = next(part for name, part in params["heads"].items() if name.endswith("transformer"))
    layers = [Weights(*(own[f"{name}_{i}"] for name in Weights._fields)) for i in range(len(memory.inputs))]

    @jax.jit
    def run(params, trajectory):
        def step(memory, inputs):
            observation, is_first = inputs
            memory = agent.step(params, observation, is_first, memory)[1]
            num_before = memory.num_steps - 1
            slot = num_before % memory.inputs[0].shape[1]
            read = [
                attention_once(weights, ring[jnp.arange(len(slot)), slot], ring, num_before)[0].mean(axis=0)
                for weights, ring in zip(layers, memory.inputs, strict=True)
            ]
            return memory, (jnp.stack(read), num_before[0])

        return jax.lax.scan(step, memory, (trajectory.observation, trajectory.is_first))[1]

    of_slots, num_before = jax.device_get(run(params, trajectory))  # [T + 1, layers, M + 1], [T + 1]
    num_steps, num_slots = len(trajectory.action), of_slots.shape[-1]
    found = np.zeros((num_steps, len(layers), num_steps))
    for t in range(num_steps):
        for back in range(min(num_before[t], num_slots - 1) + 1):
            found[t, :, t - back] = of_slots[t, :, (num_before[t] - back) % num_slots]
    return found
