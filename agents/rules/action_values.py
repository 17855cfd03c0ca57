"""Action values: the entry of the taken action, the ε-greedy policy, and expectations under a policy."""

import jax
import jax.numpy as jnp

from agents.lazy import rlax
from agents.types import Array, Trajectory
from agents.validation import check_shape


def taken(values: Array, trajectory: Trajectory) -> Array:
    """Pick the taken action's entry: [T + 1, B, A] -> [T, B]."""
    num_steps, batch_size = trajectory.action.shape
    check_shape("values", values, (num_steps + 1, batch_size, None))
    return rlax.batched_index(values[:-1], trajectory.action)


def taken_vectors(x: Array, trajectory: Trajectory) -> Array:
    """Pick the taken action's vector, [T + 1, B, A, N] -> [T, B, N], or the only one of [T + 1, B, 1, N]."""
    num_steps, batch_size = trajectory.action.shape
    check_shape("x", x, (num_steps + 1, batch_size, None, None))
    if x.shape[2] == 1:
        return x[:-1, :, 0]
    return jnp.take_along_axis(x[:-1], trajectory.action[..., None, None], axis=2)[:, :, 0]


def epsilon_greedy_logits(q: Array, epsilon: float) -> Array:
    """Logits of the ε-greedy policy with respect to action values, [..., A]. No gradient flows through them."""
    return jnp.log(rlax.epsilon_greedy(epsilon).probs(jax.lax.stop_gradient(q)).astype(q.dtype))


def expected_values(q: Array, logits: Array) -> Array:
    """Σₐ π(a|s) q(s, a), twice [..., A] -> [...]."""
    return jnp.sum(jax.nn.softmax(logits) * q, axis=-1)


def squared_error(targets: Array, q: Array, trajectory: Trajectory) -> Array:
    """½ (G − q(S, A))², [T, B]."""
    return 0.5 * jnp.square(targets - taken(q, trajectory))
