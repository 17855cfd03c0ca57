"""Measures of DiscoRL's predictions y and z in a trained agent: confidence, and how they bootstrap.

Source: Oh et al. 2025, Figure 4.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import log_softmax

from agents.rule import UpdateRule
from agents.rules.action_values import expected_values, taken_vectors
from agents.rules.categorical import entropy, to_scalars
from agents.types import Array, Params, Predictions, Trajectory
from experiments.runs.loaded_agent import LoadedAgent, rule_inputs

TARGETS = ("policy", "y", "z")  # logits in DiscoTargets


def values(predictions: Predictions, logits: Array | None = None) -> dict[str, Array]:
    """Return v(s), or Σₐ π(a|s) q(s, a), [...], as "value": nothing if the agent predicts neither.

    Logits are those of π where they are not predicted.
    """
    if "value" in predictions or "q" not in predictions:
        return {name: x for name, x in predictions.items() if name == "value"}
    q, logits = predictions["q"], predictions["policy"] if logits is None else logits
    return {"value": expected_values(to_scalars(q) if q.ndim > logits.ndim else q, logits)}


def certainty(logits: Array) -> Array:
    """1 − H / log N, [..., N] -> [...]: 0 where all N categories are as probable, 1 where one is certain."""
    return 1 - entropy(logits) / jnp.log(logits.shape[-1])


def confidence(loaded: LoadedAgent, trajectory: Trajectory) -> dict[str, Array]:
    """Measure how sure the agent is along a trajectory.

    Returns:
      reward, value, policy entropy (nats), and the confidence of y and of z at the taken action, each [T, B], where the
      agent predicts them. Confidence is negative entropy as in the paper, scaled (`certainty`).
    """
    agent, rule = loaded.learner.setup.agent, loaded.learner.setup.rule

    @jax.jit
    def run(params: Params, trajectory: Trajectory) -> dict[str, Array]:
        predictions = agent.unroll(params, trajectory)
        logits = rule.policy(predictions)
        found = {"reward": trajectory.reward, "policy_entropy": entropy(logits)[:-1]}
        found |= {name: x[:-1] for name, x in values(predictions, logits).items()}
        if "y" in predictions:
            found["y_confidence"] = certainty(predictions["y"][:-1])
            found["z_confidence"] = certainty(taken_vectors(predictions["z"], trajectory))
        return found

    return run(loaded.agent.params, trajectory)


def horizon(loaded: LoadedAgent, trajectory: Trajectory, num_steps: int) -> dict[str, np.ndarray]:
    """Measure how far targets move with the prediction z that the agent makes k steps later.

    Args:
      trajectory: [T, B], of which the last `num_steps` count: they are what the rule is given.
    Returns:
      for each of TARGETS the mean of `moves` over the pairs t, t + k of one episode, [num_steps − 1, B], k = 1 first;
      NaN where there is no pair.
    """
    seen, predictions, slow = jax.jit(functools.partial(rule_inputs, loaded))(trajectory)
    before = len(trajectory.action) - num_steps
    everything = (seen._replace(core_state=()), predictions, slow)
    seen, predictions, slow = jax.tree.map(lambda x: x[before:], everything)
    rule, agent = loaded.learner.setup.rule, loaded.agent
    moved = moves(rule, loaded.meta_params, agent.rule_state, seen, predictions, slow)
    is_last, goes_on = np.asarray(seen.is_last), np.asarray(seen.valid)  # from t to t + k, for each t
    means: dict[str, list[np.ndarray]] = {name: [] for name in TARGETS}
    for k in range(1, num_steps):
        goes_on = goes_on[: num_steps - k + 1] & ~is_last[k - 1 :]
        for name, own in means.items():
            pairs = np.array([moved[name][t + k - 1, t] for t in range(num_steps - k + 1)])
            own.append(np.ma.masked_array(pairs, ~goes_on).mean(axis=0).filled(np.nan))
    return {name: np.array(rows) for name, rows in means.items()}


def moves(
    rule: UpdateRule,
    meta_params: Params,
    rule_state: object,
    trajectory: Trajectory,
    predictions: Predictions,
    slow: Predictions,
) -> dict[str, np.ndarray]:
    """Perturb the predictions z of one step after another, and see how far all targets move.

    The logits of z, of all actions, get normal noise of deviation 1. What the slow copy predicts stays, and so do the
    state of the lifetime LSTM and the moving averages: they are those of the update before, or depend on values alone.

    Returns:
      for each of TARGETS KL(unperturbed ‖ perturbed) in nats, [T, T, B]: entry [s, t] is that of step t with z
      perturbed at observation s + 1. It is 0 where s < t − 1, for targets look ahead, and where an episode ends at a
      step from t to s − 1. Where step s itself ends one it is not: there too the rule, as published, is shown what is
      predicted at observation s + 1.
    """
    num_steps = len(trajectory.action)
    noise = jax.random.normal(jax.random.key(0), predictions["z"].shape)

    @jax.jit
    def targets(index, trajectory, predictions, slow, noise):
        chosen = (jnp.arange(num_steps + 1) == index)[:, None, None, None]
        changed = {**predictions, "z": predictions["z"] + jnp.where(chosen, noise, 0.0)}
        made = rule.apply(meta_params, rule_state, trajectory, changed, slow)[0]
        return {name: getattr(made, name) for name in TARGETS}

    inputs = (trajectory, predictions, slow, noise)
    unperturbed = targets(-1, *inputs)  # by the same program: where nothing moves, the difference is exactly 0
    rows = [jax.tree.map(_kl_divergence, unperturbed, targets(i, *inputs)) for i in range(1, num_steps + 1)]
    return {name: np.array([row[name] for row in rows]) for name in TARGETS}


def _kl_divergence(p_logits: Array, q_logits: Array) -> np.ndarray:
    """KL(p ‖ q), [..., N] -> [...], in float64: small ones would drown in the rounding of a float32."""
    log_p, log_q = (log_softmax(np.asarray(x, np.float64), axis=-1) for x in (p_logits, q_logits))
    return np.sum(np.exp(log_p) * (log_p - log_q), axis=-1)
