"""What DiscoRL's rule knows of a trajectory: values, their moving averages, and the inputs of its meta-network.

Source: Oh et al. 2025, Methods; the constants are those of the published rule, Disco103.
"""

from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import rlax

from agents.impala import behaviour_log_probability, log_probability
from agents.q_learning import expected_values, taken
from agents.rule import masked_reduce
from agents.types import Array, Predictions, Trajectory
from meta.target_network import Inputs

EMBEDDING = 16  # units of the layer between a distribution of y or z and the number it is turned into
EMA_DECAY, EMA_EPSILON, EMA_ROOT_EPSILON = 0.99, 1e-6, 1e-12


class MovingAverage(NamedTuple):
    """Of a quantity's mean and mean square over updates, biased to 0 at its start as `decay_product` says."""

    moment1: Array
    moment2: Array
    decay_product: Array


class Values(NamedTuple):
    """What is known of values from a trajectory, without gradient."""

    v: Array  # Σₐ π(a) q(s, a), [T + 1, B]
    target_q: Array  # of the target parameters, [T + 1, B, A]
    returns: Array  # Retrace, [T, B]
    advantage: Array  # returns − target V, [T, B]
    action_advantage: Array  # target Q − target V, [T + 1, B, A]
    td: Array  # returns − q(S, A), [T, B]


class Context(NamedTuple):
    """What the meta-network's inputs are computed from."""

    trajectory: Trajectory
    predictions: Predictions
    target_predictions: Predictions
    values: Values | None  # None where action values are not learned
    average: MovingAverage  # of the advantage, this update included


def to_scalars(logits: Array) -> Array:
    """Expected action values of logits over transformed bins, [..., bins] -> [...]."""
    limit = logits.shape[-1] // 2
    bins = jnp.linspace(-limit, limit, logits.shape[-1], dtype=logits.dtype)
    return rlax.signed_parabolic(expectation(logits, bins[:, None])[..., 0])


def expectation(logits: Array, x: Array) -> Array:
    """Σᵢ softmax(logits)ᵢ xᵢ, [..., N] and [N, K] -> [..., K], in fewer passes over memory than the softmax itself."""
    exponentials = jnp.exp(logits - jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True)))
    sums = exponentials @ jnp.concatenate([x, jnp.ones_like(x[:, :1])], axis=-1)
    return sums[..., :-1] / sums[..., -1:]


def compute_values(
    predictions: Predictions, target_predictions: Predictions, trajectory: Trajectory, discount: float, lambda_: float
) -> Values:
    """Compute Retrace and what follows from it, without gradient.

    Gₜ = rₜ + γₜ [Vₜ₊₁ + cₜ₊₁ (Gₜ₊₁ − Qₜ₊₁(aₜ₊₁))], Q of the target parameters, V = Σₐ π(a) Q(a) with the current π,
    cₜ = λ min(1, π(aₜ) / μ(aₜ)). Source: Munos et al. 2016, Eq. 3. A truncated step bootstraps and cuts the trace.
    """
    logits = predictions["policy"]
    q, target_q = to_scalars(predictions["q"]), to_scalars(target_predictions["q"])
    v, target_v = expected_values({"q": q}, logits), expected_values({"q": target_q}, logits)
    rho = jnp.exp(log_probability(logits, trajectory) - behaviour_log_probability(trajectory))
    is_cut = (trajectory.truncated | ~trajectory.valid)[:-1] | ~trajectory.valid[1:]
    c = jnp.where(is_cut, 0.0, lambda_ * jnp.minimum(1.0, rho[1:])).astype(q.dtype)
    returns = jax.vmap(rlax.general_off_policy_returns_from_q_and_v, in_axes=1, out_axes=1)(
        taken(target_q, trajectory)[1:],
        target_v[1:],
        trajectory.reward.astype(q.dtype),
        (discount * trajectory.discount).astype(q.dtype),
        c,
    )
    values = Values(
        v=v,
        target_q=target_q,
        returns=returns,
        advantage=returns - target_v[:-1],
        action_advantage=target_q - target_v[..., None],
        td=returns - taken(q, trajectory),
    )
    return jax.lax.stop_gradient(values)


def initial_average() -> MovingAverage:
    return MovingAverage(jnp.zeros(()), jnp.zeros(()), jnp.ones(()))


def update_average(average: MovingAverage, x: Array, valid: Array) -> MovingAverage:
    """Take the mean of x [T, B] over valid steps, and that of its square, into the average."""
    mix = lambda old, new: EMA_DECAY * old + (1 - EMA_DECAY) * masked_reduce(new, valid, "mean")
    return MovingAverage(
        mix(average.moment1, x), mix(average.moment2, jnp.square(x)), EMA_DECAY * average.decay_product
    )


def normalise(average: MovingAverage, x: Array, is_centred: bool = True) -> Array:
    """Subtract the average's mean, if it is to be centred, and divide by the standard deviation."""
    mean, square = (moment / (1 - average.decay_product) for moment in average[:2])
    variance = jnp.maximum(0.0, square - jnp.square(mean))
    return (x - mean * is_centred) / (jnp.sqrt(variance + EMA_ROOT_EPSILON) + EMA_EPSILON)


class Embedding(hk.Module):
    """Two layers from a categorical distribution, given by its logits, to a number: [..., N] -> [...]."""

    def __call__(self, logits: Array) -> Array:
        std = logits.shape[-1] ** -0.5
        w = hk.get_parameter("w", (logits.shape[-1], EMBEDDING), logits.dtype, hk.initializers.TruncatedNormal(std))
        b = hk.get_parameter("b", (EMBEDDING,), logits.dtype, jnp.zeros)
        return hk.Linear(1, name="out")(jax.nn.relu(expectation(logits, w) + b))[..., 0]


def make_inputs(c: Context, is_hidden: bool, targets: dict[str, Array] | None = None) -> Inputs:
    """The features per step, those per step and action, and what the lifetime LSTM sees of the targets.

    The order is that of the published weights. Gradient flows through y and z alone. What an agent does not predict is
    left out; where y and z are hidden, they are zeros.
    """
    trajectory, action = c.trajectory, c.trajectory.action
    logits, target_logits = jax.lax.stop_gradient((c.predictions["policy"], c.target_predictions["policy"]))
    pi, target_pi = jax.nn.softmax(logits), jax.nn.softmax(target_logits)
    mu = jax.nn.softmax(trajectory.behaviour_logits).astype(pi.dtype)
    pick = lambda x: rlax.batched_index(x, action)
    pair = lambda x: [x[:-1], x[1:]]
    columns = [pick(pi[:-1]), pick(mu), rlax.signed_logp1(trajectory.reward), trajectory.discount]
    if c.values:
        advantage = c.values.advantage
        columns += [*pair(rlax.signed_logp1(c.values.v)), rlax.signed_logp1(advantage), normalise(c.average, advantage)]
    columns.append(pick(target_pi[:-1]))
    action_columns = [pi[:-1], mu, target_pi[:-1]]
    target_features = None
    if "y" in c.predictions:
        embed_y, embed_z = Embedding(name="y_embedding"), Embedding(name="z_embedding")
        seen = 0.0 if is_hidden else 1.0
        y, target_y = (seen * embed_y(x["y"]) for x in (c.predictions, c.target_predictions))
        z, target_z = (seen * embed_z(x["z"]) for x in (c.predictions, c.target_predictions))
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
    return Inputs(
        features=stack(columns, valid),
        action_features=stack(action_columns, valid[..., None]),
        action=action,
        target_features=target_features,
    )
