"""Returns, losses, LSTMs and the residual torso again, in plain NumPy loops over single steps and environments."""

import numpy as np


def successors(trajectory, x):
    """x of the observation that each step led to, or where a time limit hid it of the one before: [T + 1, B, ...]."""
    found = np.array(x[1:])
    for t, b in np.ndindex(trajectory.reward.shape):
        if trajectory.truncated[t, b] and trajectory.is_first[t + 1, b]:
            found[t, b] = x[t, b]
    return found


def vtrace(trajectory, values, rho, gamma, lambda_, alpha=1.0):
    """Add up Eq. 1 of Espeholt et al. 2018 forwards from every step: targets and advantages, [T, B].

    Leaky V-trace has an α below 1 (Zahavy et al. 2020).
    """
    clipped = lambda ratio: alpha * min(1.0, ratio) + (1 - alpha) * ratio
    num_steps, batch_size = trajectory.reward.shape
    after = successors(trajectory, values)
    targets = np.array(values[:-1], np.float64)
    for b in range(batch_size):
        for s in range(num_steps):
            weight = 1.0
            for t in range(s, num_steps):
                if not trajectory.valid[t, b]:
                    break
                ratio = clipped(rho[t, b])
                next_value = gamma * trajectory.discount[t, b] * after[t, b]
                targets[s, b] += weight * ratio * (trajectory.reward[t, b] + next_value - values[t, b])
                if trajectory.discount[t, b] == 0 or trajectory.truncated[t, b]:
                    break
                weight *= gamma * lambda_ * ratio
    advantages = np.zeros_like(targets)
    for b in range(batch_size):
        for s in range(num_steps):
            bootstrap = after[s, b]
            if s + 1 < num_steps and not trajectory.truncated[s, b]:
                bootstrap = lambda_ * targets[s + 1, b] + (1 - lambda_) * bootstrap
            error = trajectory.reward[s, b] + gamma * trajectory.discount[s, b] * bootstrap - values[s, b]
            advantages[s, b] = clipped(rho[s, b]) * error if trajectory.valid[s, b] else 0.0
    return targets, advantages


def retrace(trajectory, q, v, rho, gamma, lambda_):
    """Add up Eq. 3 of Munos et al. 2016 from every step until the trace is cut: [T, B]."""
    num_steps, batch_size = trajectory.reward.shape
    taken_q, after = taken(q, trajectory.action), successors(trajectory, v)
    targets = np.zeros((num_steps, batch_size))
    for t, b in np.ndindex(num_steps, batch_size):
        weight, s = 1.0, t
        while True:
            discount = gamma * trajectory.discount[s, b]
            targets[t, b] += weight * (trajectory.reward[s, b] + discount * after[s, b])
            if s + 1 == num_steps or trajectory.truncated[s, b] or not (trajectory.valid[s : s + 2, b]).all():
                break
            weight *= discount * lambda_ * min(1.0, rho[s + 1, b])
            targets[t, b] -= weight * taken_q[s + 1, b]
            s += 1
    return targets


def probabilities(logits):
    exp = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
    return exp / np.sum(exp, axis=-1, keepdims=True)


def taken(values, action):
    """Pick values[t, b, action[t, b]]: [T, B]."""
    return np.array([[values[t, b, a] for b, a in enumerate(row)] for t, row in enumerate(action)])


def importance_ratios(policy, trajectory, temperature=1.0):
    pi = taken(probabilities(policy[:-1] / temperature), trajectory.action)
    return pi / taken(probabilities(trajectory.behaviour_logits), trajectory.action)


def actor_critic_loss(target, advantage, predictions, action, value_cost, entropy_cost, temperature=1.0):
    """Eq. 10 of Xu et al. 2020 as a loss, with the ½ of its appendix C.4, step by step."""
    loss = np.zeros(action.shape)
    for t, b in np.ndindex(action.shape):
        pi = probabilities(predictions["policy"][t, b] / temperature)
        loss[t, b] = -advantage[t, b] * np.log(pi[action[t, b]])
        loss[t, b] += value_cost * 0.5 * (target[t, b] - predictions["value"][t, b]) ** 2
        loss[t, b] += entropy_cost * sum(p * np.log(p) for p in pi)
    return loss


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm_step(x, hidden, cell, w, b):
    """One step of an LSTM with gates i, g, f, o and forget bias 1: next hidden, next cell."""
    i, g, f, o = np.split(np.concatenate([x, hidden], axis=-1) @ w + b, 4, axis=-1)
    cell = sigmoid(f + 1) * cell + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(cell), cell


def reverse_lstm(x, is_last, w, b):
    """Read each environment's steps from the last to the first, from zeros at every end: [T, B, F] -> [T, B, size]."""
    num_steps, batch_size, _ = x.shape
    size = w.shape[1] // 4
    out = np.zeros((num_steps, batch_size, size))
    for n in range(batch_size):
        hidden, cell = np.zeros(size), np.zeros(size)
        for t in reversed(range(num_steps)):
            if is_last[t, n]:
                hidden, cell = np.zeros(size), np.zeros(size)
            hidden, cell = lstm_step(x[t, n], hidden, cell, w, b)
            out[t, n] = hidden
    return out


def convolution(x, w, b):
    """Convolve one image [H, W, C] with kernels [3, 3, C, D], stride 1, zeros around: [H, W, D]."""
    height, width, _ = x.shape
    padded = np.pad(x, ((1, 1), (1, 1), (0, 0)))
    out = np.zeros((height, width, w.shape[-1]))
    for i, j in np.ndindex(height, width):
        out[i, j] = np.tensordot(padded[i : i + 3, j : j + 3], w, 3) + b
    return out


def max_pool(x):
    """Pool one image [H, W, C] by windows of 3 with stride 2 and padding SAME."""
    sizes = [-(-size // 2) for size in x.shape[:2]]
    starts = [(max(0, 2 * (out - 1) + 3 - size)) // 2 for out, size in zip(sizes, x.shape[:2], strict=True)]
    out = np.zeros((*sizes, x.shape[2]))
    for i, j in np.ndindex(*sizes):
        top, left = 2 * i - starts[0], 2 * j - starts[1]
        out[i, j] = x[max(top, 0) : top + 3, max(left, 0) : left + 3].max(axis=(0, 1))
    return out


def resnet(x, layers):
    """Figure 3 of Espeholt et al. 2018 on one image [H, W, C]; `layers` are 15 pairs (w, b) in the order of
    application."""
    relu = lambda y: np.maximum(y, 0)
    layers = iter(layers)
    for _ in range(3):
        x = max_pool(convolution(x, *next(layers)))
        for _ in range(2):
            x = x + convolution(relu(convolution(relu(x), *next(layers))), *next(layers))
    return x.reshape(-1)
