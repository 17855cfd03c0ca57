"""Inputs of DiscoRL's meta-network, and the values that they are computed from.

Source: Oh et al. 2025, Methods; the constants are those of the published rule, Disco103.
"""

from collections.abc import Callable
from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from agents.lazy import rlax
from agents.rules.action_values import expected_values, taken
from agents.rules.categorical import expectation, to_scalars
from agents.rules.moving_average import MovingAverage, normalise
from agents.rules.returns import importance_ratios, retrace
from agents.types import Array, Predictions, Trajectory, successors
from meta.targets.target_network import TargetInputs

EMBEDDING = 16  # units of the layer between a distribution of y or z and the number it is turned into


class Values(NamedTuple):
    """Values along a trajectory, without gradient."""

    v: Array  # Σₐ π(a) q(s, a), [T + 1, B]
    target_q: Array  # of the target parameters, [T + 1, B, A]
    returns: Array  # Retrace, [T, B]
    advantage: Array  # returns − target V, [T, B]
    action_advantage: Array  # target Q − target V, [T + 1, B, A]
    td: Array  # returns − q(S, A), [T, B]


class DiscoContext(NamedTuple):
    """What the meta-network's inputs are computed from."""

    trajectory: Trajectory
    predictions: Predictions
    target_predictions: Predictions
    values: Values | None  # None where action values are not learned
    average: MovingAverage  # of the advantage, this update included


def compute_values(
    predictions: Predictions, target_predictions: Predictions, trajectory: Trajectory, discount: float, lambda_: float
) -> Values:
    """Compute Retrace, advantages and temporal differences, without gradient.

    Retrace takes Q of the target parameters, and V = Σₐ π(a) Q(a) and ρ of the current π.
    """
    logits = predictions["policy"]
    q, target_q = to_scalars(predictions["q"]), to_scalars(target_predictions["q"])
    v, target_v = expected_values(q, logits), expected_values(target_q, logits)
    returns = retrace(trajectory, target_q, target_v, importance_ratios(logits, trajectory), discount, lambda_)
    values = Values(
        v=v,
        target_q=target_q,
        returns=returns,
        advantage=returns - target_v[:-1],
        action_advantage=target_q - target_v[..., None],
        td=returns - taken(q, trajectory),
    )
    return jax.lax.stop_gradient(values)


class Embedding(hk.Module):
    """Two layers from a categorical distribution, given by its logits, to a number: [..., N] -> [...]."""

    def __call__(self, logits: Array) -> Array:
        std = logits.shape[-1] ** -0.5
        w = hk.get_parameter("w", (logits.shape[-1], EMBEDDING), logits.dtype, hk.initializers.TruncatedNormal(std))
        b = hk.get_parameter("b", (EMBEDDING,), logits.dtype, jnp.zeros)
        return hk.Linear(1, name="out")(jax.nn.relu(expectation(logits, w) + b))[..., 0]


def make_inputs(
    c: DiscoContext, see: Callable[[Array], Array], targets: dict[str, Array] | None = None
) -> TargetInputs:
    """Return features per step, features per step and action, and those of the targets for the lifetime LSTM.

    The order is that of the published weights. Gradients flow through y and z alone. What an agent does not predict is
    left out; of y and z the inputs are what `see` makes of their embeddings, [T + 1, B] and [T + 1, B, A].
    """
    trajectory, action = c.trajectory, c.trajectory.action
    logits, target_logits = jax.lax.stop_gradient((c.predictions["policy"], c.target_predictions["policy"]))
    pi, target_pi = jax.nn.softmax(logits), jax.nn.softmax(target_logits)
    mu = jax.nn.softmax(trajectory.behaviour_logits).astype(pi.dtype)
    pick = lambda x: rlax.batched_index(x, action)
    pair = lambda x: [x[:-1], successors(x, trajectory)]
    columns = [pick(pi[:-1]), pick(mu), rlax.signed_logp1(trajectory.reward), trajectory.discount]
    if c.values:
        advantage = c.values.advantage
        columns += [*pair(rlax.signed_logp1(c.values.v)), rlax.signed_logp1(advantage), normalise(c.average, advantage)]
    columns.append(pick(target_pi[:-1]))
    action_columns = [pi[:-1], mu, target_pi[:-1]]
    target_features = None
    if "y" in c.predictions:
        embed_y, embed_z = Embedding(name="y_embedding"), Embedding(name="z_embedding")
        y, target_y = (see(embed_y(x["y"])) for x in (c.predictions, c.target_predictions))
        z, target_z = (see(embed_z(x["z"])) for x in (c.predictions, c.target_predictions))
        columns += [*pair(y), *pair(target_y)]
        for own in (z, target_z):
            columns += [pick(own[:-1]), *pair(jnp.sum(pi * own, axis=-1)), *pair(jnp.max(own, axis=-1))]
        action_columns += [z[:-1], target_z[:-1]]
        target_features = None if targets is None else embed_y(targets["y"])[..., None]
    if c.values:
        advantage = c.values.action_advantage[:-1]
        action_columns += [
            rlax.signed_logp1(c.values.target_q[:-1]),
            rlax.signed_logp1(advantage),
            normalise(c.average, advantage),
        ]
    action_columns.append(jax.nn.one_hot(action, pi.shape[-1], dtype=pi.dtype))
    valid = trajectory.valid[..., None]
    stack = lambda columns, mask: jnp.where(mask, jnp.stack([x.astype(pi.dtype) for x in columns], axis=-1), 0.0)
    return TargetInputs(
        features=stack(columns, valid),
        action_features=stack(action_columns, valid[..., None]),
        action=action,
        target_features=target_features,
    )
