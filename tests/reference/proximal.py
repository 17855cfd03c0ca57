"""PPO with the corrections that η makes, written out a second time."""

import numpy as np

from tests.reference.frodo import linear, log_probability, meta_network, successors, vtrace


def corrected_losses(config, eta, progress, trajectory, known, predictions):
    """Return the losses of steps [T, B] of a rule with all parts.

    Args:
      progress: n / N.
      known: predictions before the first minibatch, of which targets are made.
      predictions: those of now.
    """
    valid, values, c = trajectory.valid, known["value"], config
    mean = lambda x: np.sum(np.where(valid, x, 0)) / np.sum(valid)
    log_pi_a, log_pi = log_probability(known["policy"][:-1], trajectory.action)
    log_mu, _ = log_probability(trajectory.behaviour_logits, trajectory.action)
    _, advantage = vtrace(trajectory, values, np.ones(valid.shape), c.discount, c.lambda_)
    of_policy = -np.sum(np.exp(log_pi) * log_pi, axis=-1)
    seen = np.array([progress, np.log(c.life) / 10, mean(of_policy), np.log(1 + mean(np.abs(advantage)))])
    out = linear(eta["settings"]["linear"], np.tanh(linear(eta["settings"]["linear_1"], seen)))
    constants = {name: np.tanh(5 * x) for name, x in eta["constants"].items()}
    entropy_cost = c.entropy_cost * np.exp(3 * np.tanh(out[0]) + 3 * constants["entropy_cost"])
    clip = c.clip * np.exp(np.tanh(out[1]) + constants["clip"])
    lambda_ = max(0, 1 - (1 - c.lambda_) * np.exp(2 * np.tanh(out[2]) + 2 * constants["lambda_"]))
    value_cost = c.value_cost * np.exp(2 * constants["value_cost"])

    target, advantage = vtrace(trajectory, values, np.ones(valid.shape), c.discount, lambda_)
    discounted = c.discount * trajectory.discount * successors(trajectory, values)
    td_error = trajectory.reward + discounted - values[:-1]
    unit = np.sqrt(mean(td_error**2)) + 1e-6
    of_next = np.where(trajectory.discount > 0, successors(trajectory, values), 0)
    columns = [trajectory.reward / unit, c.discount * trajectory.discount, of_next / unit, values[:-1] / unit]
    columns += [td_error / unit, np.exp(log_pi_a), np.exp(log_mu)]
    features = np.stack(columns, axis=-1) * valid[..., None]
    is_last = (trajectory.discount == 0) | trajectory.truncated | ~valid
    by = {x: np.tanh(meta_network(eta["targets"], features, is_last, x)) for x in ("advantage", "value")}
    advantage = advantage + unit * c.largest_correction * by["advantage"]
    target = target + unit * c.largest_correction * by["value"]

    advantage = advantage - mean(advantage)
    advantage = advantage / (np.sqrt(mean(advantage**2)) + 1e-8)
    log_now, log_pi = log_probability(predictions["policy"][:-1], trajectory.action)
    log_r = log_now - log_mu
    r = np.exp(log_r)
    of_policy = np.maximum(-r * advantage, -np.clip(r, 1 - clip, 1 + clip) * advantage)
    change = np.clip(predictions["value"][:-1] - values[:-1], -c.clip, c.clip)
    errors = [target - predictions["value"][:-1], target - values[:-1] - change]
    of_value = 0.5 * np.maximum(errors[0] ** 2, errors[1] ** 2)
    of_entropy = np.sum(np.exp(log_pi) * log_pi, axis=-1)
    of_ratio = np.stack([r - 1, (r - 1) ** 2, log_r, log_r**2], axis=-1)
    seen = np.concatenate([of_ratio, of_ratio * np.asarray(advantage)[..., None]], axis=-1)
    seen = np.concatenate([seen, progress * seen, np.log(c.life) / 10 * seen], axis=-1)
    drift = (np.tanh(seen @ eta["drift"]["linear"]["w"]) @ eta["drift"]["linear_1"]["w"])[..., 0]
    return of_policy + value_cost * of_value + entropy_cost * of_entropy + drift
