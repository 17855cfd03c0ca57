"""ε-greedy action values, and n-step Q-learning as a hand-made rule."""

import jax
import jax.numpy as jnp
import rlax

from agents.rule import UpdateRule
from agents.td import vtrace
from agents.types import Array, Predictions, PredictionSpec, Trajectory


def epsilon_greedy_policy(predictions: Predictions, epsilon: float) -> Array:
    """Logits of the ε-greedy policy with respect to q, [..., A]. No gradient flows through them."""
    q = predictions["q"]
    return jnp.log(rlax.epsilon_greedy(epsilon).probs(jax.lax.stop_gradient(q)).astype(q.dtype))


def expected_values(predictions: Predictions, logits: Array) -> Array:
    """Σₐ π(a|s) q(s, a), [...]."""
    return jnp.sum(jax.nn.softmax(logits) * predictions["q"], axis=-1)


def taken(values: Array, trajectory: Trajectory) -> Array:
    """Pick the taken action's entry: [T + 1, B, A] -> [T, B]."""
    return rlax.batched_index(values[:-1], trajectory.action)


def taken_vectors(x: Array, trajectory: Trajectory) -> Array:
    """Pick the taken action's vector: [T + 1, B, A, N] -> [T, B, N]; of [T + 1, B, 1, N] it is the only one."""
    if x.shape[2] == 1:
        return x[:-1, :, 0]
    return jnp.take_along_axis(x[:-1], trajectory.action[..., None, None], axis=2)[:, :, 0]


def q_loss(targets: Array, predictions: Predictions, trajectory: Trajectory) -> Array:
    """½ (G − q(S, A))², [T, B]."""
    return 0.5 * jnp.square(targets - taken(predictions["q"], trajectory))


def q_learning(discount: float, lambda_: float, epsilon: float) -> UpdateRule:
    """Q(λ) of Peng and Williams: λ-returns of maxₐ q(s, a) within the trajectory; λ = 0 is one-step Q-learning."""

    def apply(meta_params, rule_state, trajectory, predictions, target_predictions):
        values = jnp.max(predictions["q"], axis=-1)
        return vtrace(trajectory, values, jnp.ones_like(values[1:]), discount, lambda_)[0], rule_state

    return UpdateRule(
        spec=lambda num_actions: {"q": PredictionSpec(is_per_action=True)},
        init_meta_params=lambda key, num_actions: {},
        init=lambda: (),
        apply=apply,
        loss=q_loss,
        policy=lambda predictions: epsilon_greedy_policy(predictions, epsilon),
    )
