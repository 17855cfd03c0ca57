"""Probes: small networks that predict the future from an agent's y, z, policy or value.

Source: Oh et al. 2025, Figure 4, where more of the future is in y and z than in policy and value.
"""

import functools
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax

from agents.rules.action_values import taken_vectors
from agents.rules.categorical import entropy
from agents.types import Array, Predictions, Trajectory
from experiments.analyses.predictions import values
from experiments.runs.loaded_agent import LoadedAgent

AHEAD = (1, 2, 4, 8, 16)  # k
NUM_FOLDS = 5
HIDDEN = {"policy": (128, 64, 32), "value": (128, 64, 32)}  # layers, by the kind of input
HIDDEN_OF_OTHERS = (256, 256, 256)
ROUNDS, UPDATES, BATCH, LEARNING_RATE = 20, 20, 128, 1e-3  # updates by Adam in each round; after it, whether to stop


class Future(NamedTuple):
    """What probes predict, for each k of AHEAD, [T, B, K], and where it is known."""

    entropy: np.ndarray  # of the policy k steps later, in the same episode; nats
    is_entropy_known: np.ndarray
    is_large: np.ndarray  # one of the next k rewards, of the same episode, is large
    is_large_known: np.ndarray


class Scores(NamedTuple):
    """Scores of one kind of input, over the test folds: [K, NUM_FOLDS], NaN where nothing is known."""

    entropy: np.ndarray  # R²
    large_reward: np.ndarray  # accuracy
    majority: np.ndarray  # accuracy of the class that is more frequent in training


def probes(loaded: LoadedAgent, trajectory: Trajectory) -> dict[str, Scores]:
    """Predict what comes from y, z of all actions, z of the taken one, the policy, and the value: each by its own MLP.

    Inputs are log-probabilities, but the value's. One MLP predicts for all k, policy entropy by squared error and large
    rewards by cross-entropy. Of five folds of environments, one tests, one says when to stop, for each output, and
    three train; each is the test fold once.

    Args:
      trajectory: [T, B], B a multiple of NUM_FOLDS.
    """
    predictions = jax.jit(loaded.learner.setup.agent.unroll)(loaded.agent.params, trajectory)
    ahead = future(trajectory, np.asarray(entropy(predictions["policy"])))
    return {
        name: cross_validate(x, ahead, HIDDEN.get(name, HIDDEN_OF_OTHERS))
        for name, x in inputs(predictions, trajectory).items()
    }


def inputs(predictions: Predictions, trajectory: Trajectory) -> dict[str, Array]:
    """For each kind of input [T, B, F]; without q there is no value."""
    z = jax.nn.log_softmax(predictions["z"])
    return {
        "y": jax.nn.log_softmax(predictions["y"])[:-1],
        "z": jnp.reshape(z[:-1], (*trajectory.action.shape, -1)),
        "z of the action": taken_vectors(z, trajectory),
        "policy": jax.nn.log_softmax(predictions["policy"])[:-1],
        **{name: x[:-1, :, None] for name, x in values(predictions).items()},
    }


def future(trajectory: Trajectory, policy_entropy: np.ndarray) -> Future:
    """Collect what probes are to predict along a trajectory; policy_entropy is [T + 1, B].

    A reward is large, of either sign, if it is at least half the largest absolute one. Whether one comes within k steps
    is known where these are in the trajectory or the episode ends before.
    """
    is_last, valid, size = (np.asarray(x) for x in (trajectory.is_last, trajectory.valid, np.abs(trajectory.reward)))
    num_steps = len(is_last)
    is_large = (size >= size.max() / 2) & (size > 0)
    shift = lambda x, k, fill: np.concatenate([x[k:], np.full_like(x[:k], fill)])  # [t] is what was at t + k
    comes, over, columns = np.zeros_like(valid), ~valid, []
    for k in range(1, AHEAD[-1] + 1):
        j = min(k - 1, num_steps)
        comes = comes | ~over & shift(is_large, j, False)
        over = over | shift(is_last, j, False)
        inside = (np.arange(num_steps) + k <= num_steps)[:, None]
        if k in AHEAD:
            later = shift(policy_entropy[1:], j, 0)
            columns.append((later, inside & ~over, comes, valid & (inside | over)))
    return Future(*(np.stack(x, axis=-1) for x in zip(*columns, strict=True)))


def cross_validate(x: Array, ahead: Future, hidden: tuple[int, ...]) -> Scores:
    """Train and test one kind of input, [T, B, F], with hidden layers: environment b is in fold b mod NUM_FOLDS."""
    y, known = np.stack([ahead.entropy, ahead.is_large]), np.stack([ahead.is_entropy_known, ahead.is_large_known])
    fold = lambda array: jnp.stack([array[:, i::NUM_FOLDS].reshape(-1, array.shape[-1]) for i in range(NUM_FOLDS)])
    join = lambda pair: jnp.concatenate([fold(pair[0]), fold(pair[1])], axis=-1)
    scores = _cross_validate(fold(x), join(y.astype(np.float32)), join(known), hidden)
    return Scores(*(np.array(score).T for score in scores))


@functools.partial(jax.jit, static_argnums=3)
def _cross_validate(x: Array, y: Array, known: Array, hidden: tuple[int, ...]) -> tuple[Array, Array, Array]:
    """x [folds, N, F], y and known [folds, N, 2 K], entropies before rewards -> scores, each [folds, K]."""
    num_outputs = y.shape[-1]
    is_class = jnp.arange(num_outputs) >= num_outputs // 2
    network: Any = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP((*hidden, num_outputs))(x)))
    optimizer = optax.adam(LEARNING_RATE)

    def losses(out, y, known):  # [N, 2 K] -> means over what is known, [2 K]
        each = jnp.where(is_class, optax.sigmoid_binary_cross_entropy(out, y), jnp.square(out - y))
        return _mean(each, known)

    def one_fold(number):
        folds = jax.tree.map(lambda a: jnp.roll(a, -number, axis=0), (x, y, known))
        test, stop = jax.tree.map(lambda a: a[0], folds), jax.tree.map(lambda a: a[1], folds)
        train = jax.tree.map(lambda a: a[2:].reshape(-1, a.shape[-1]), folds)
        mean, deviation = train[0].mean(0), train[0].std(0)
        apply = lambda params, x: network.apply(params, (x - mean) / jnp.where(deviation > 1e-6, deviation, 1.0))
        center = jnp.where(is_class, 0.0, _mean(train[1], train[2]))
        scale = jnp.sqrt(_mean(jnp.square(train[1] - center), train[2]))
        scale = jnp.where(is_class | (scale < 1e-6), 1.0, scale)

        def update(state, key):
            params, opt_state = state
            x, y, known = jax.tree.map(lambda a: a[jax.random.randint(key, (BATCH,), 0, len(a))], train)
            loss = lambda params: losses(apply(params, x), (y - center) / scale, known).sum()
            updates, opt_state = optimizer.update(jax.grad(loss)(params), opt_state)
            return (optax.apply_updates(params, updates), opt_state), None

        def one_round(state, key):
            state, _ = jax.lax.scan(update, state, jax.random.split(key, UPDATES))
            of_stop = losses(apply(state[0], stop[0]), (stop[1] - center) / scale, stop[2])
            return state, (of_stop, apply(state[0], test[0]))

        init_key, key = jax.random.split(jax.random.key(0))
        params = network.init(init_key, train[0][:1])
        state = params, optimizer.init(params)
        _, (of_stop, out) = jax.lax.scan(one_round, state, jax.random.split(key, ROUNDS))  # [rounds, ...]
        out = jnp.take_along_axis(out, of_stop.argmin(0)[None, None], axis=0)[0] * scale + center
        _, y_test, known_test = test
        mean_test = lambda x: _mean(x, known_test)
        spread = mean_test(jnp.square(y_test - mean_test(y_test)))
        r2 = 1 - mean_test(jnp.square(out - y_test)) / jnp.where(spread > 0, spread, jnp.nan)
        is_right = lambda guess: jnp.where(known_test.any(0), mean_test(guess == (y_test > 0.5)), jnp.nan)
        accuracy, majority = is_right(out > 0), is_right(_mean(train[1], train[2]) > 0.5)
        return r2[: num_outputs // 2], accuracy[num_outputs // 2 :], majority[num_outputs // 2 :]

    return jax.lax.map(one_fold, jnp.arange(NUM_FOLDS))


def _mean(x: Array, known: Array) -> Array:
    """Mean over what is known, [N, K] -> [K]; 0 where nothing is."""
    return jnp.sum(jnp.where(known, x, 0.0), axis=0) / jnp.maximum(1, jnp.sum(known, axis=0))
