"""DiscoRL's rule in plain NumPy, float64, for trajectories in which every step is valid and nothing is truncated."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def relu(x):
    return np.maximum(x, 0)


def slog(x):
    return np.sign(x) * np.log(1 + np.abs(x))


def kl(p, q):
    p, q = softmax(p), softmax(q)
    return np.sum(p * (np.log(p) - np.log(q)), axis=-1)


def h(x, eps=1e-3):
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + eps * x


def h_inverse(x, eps=1e-3):
    z = (np.sqrt(1 + 4 * eps * (eps + 1 + np.abs(x))) - 1) / (2 * eps)
    return np.sign(x) * (z**2 - 1)


def linear(w, name, x):
    weights = w[f"{name}/w"]
    return x @ (weights[0] if weights.ndim == 3 else weights) + w[f"{name}/b"]


def mlp(w, name, x):
    return linear(w, f"{name}/~/linear_1", relu(linear(w, f"{name}/~/linear_0", softmax(x))))[..., 0]


def block(w, name, x):
    mean = np.broadcast_to(x.mean(axis=2, keepdims=True), x.shape)
    return relu(linear(w, name, np.concatenate([x, mean], axis=-1)))


def lstm_cell(w, name, x, hidden, cell):
    i, g, f, o = np.split(linear(w, name, np.concatenate([x, hidden], axis=-1)), 4, axis=-1)
    cell = sigmoid(f + 1) * cell + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(cell), cell


def average(state, x):
    m1, m2, p = state
    return 0.99 * m1 + 0.01 * x.mean(), 0.99 * m2 + 0.01 * (x**2).mean(), 0.99 * p


def normalise(state, x):
    mean = state[0] / (1 - state[2])
    variance = max(0.0, state[1] / (1 - state[2]) - mean**2)
    return (x - mean) / (np.sqrt(variance + 1e-12) + 1e-6)


def at_action(x, action):
    """x [T, B, A, ...] at the taken actions [T, B], by loops."""
    return np.array([[x[t, b, action[t, b]] for b in range(action.shape[1])] for t in range(len(action))])


def scalars(logits):
    limit = logits.shape[-1] // 2
    return h_inverse(softmax(logits) @ np.arange(-limit, limit + 1.0))


def update(w, state, trajectory, agent, target, gamma, lambda_):
    """One update: targets, values and losses by name, and the new (hidden, cell, advantage average, td average)."""
    hidden, cell, adv_state, td_state = state
    action, reward, going_on = trajectory.action, trajectory.reward, trajectory.discount
    num_steps = len(action)
    pi, target_pi, mu = softmax(agent["policy"]), softmax(target["policy"]), softmax(trajectory.behaviour_logits)
    q, tq = scalars(agent["q"]), scalars(target["q"])
    v, tv = np.sum(pi * q, axis=-1), np.sum(pi * tq, axis=-1)
    rho = at_action(pi, action) / at_action(mu, action)
    c = lambda_ * np.minimum(1, rho)
    returns = np.zeros_like(reward)
    for t in reversed(range(num_steps)):
        following = tv[t + 1]
        if t < num_steps - 1:
            following = following + c[t + 1] * (returns[t + 1] - at_action(tq[:-1], action)[t + 1])
        returns[t] = reward[t] + gamma * going_on[t] * following
    adv, td, action_adv = returns - tv[:-1], returns - at_action(q, action), tq - tv[..., None]
    adv_state, td_state = average(adv_state, adv), average(td_state, td)

    def features(prefix):
        y, ty = mlp(w, f"{prefix}mlp", agent["y"]), mlp(w, f"{prefix}mlp", target["y"])
        z, tz = mlp(w, f"{prefix}mlp_1", agent["z"]), mlp(w, f"{prefix}mlp_1", target["z"])
        one_hot = np.eye(pi.shape[-1])[action]
        channels = [pi, None, target_pi, z, tz, slog(tq), slog(action_adv), normalise(adv_state, action_adv), None]
        channels = [x[:-1] if x is not None else x for x in channels]
        channels[1], channels[8] = mu, one_hot
        x = block(w, f"{prefix}sequential/conv1_d", np.stack(channels, axis=-1))
        embedding = block(w, f"{prefix}sequential/conv1_d_1", x)
        taken = lambda x: at_action(x[:-1], action)
        pair = lambda x: [x[:-1], x[1:]]
        columns = [taken(pi), at_action(mu, action), slog(reward), going_on, *pair(slog(v)), slog(adv)]
        columns += [normalise(adv_state, adv), taken(target_pi), *pair(y), *pair(ty)]
        for x in (z, tz):
            columns += [taken(x), *pair(np.sum(pi * x, axis=-1)), *pair(x.max(axis=-1))]
        whole = [np.stack(columns, axis=-1), embedding.mean(axis=2), at_action(embedding, action)]
        return np.concatenate(whole, axis=-1), embedding

    x, embedding = features("lstm/")
    size = w["lstm/lstm/linear/b"].size // 4
    outputs = np.zeros((*action.shape, size))
    state_h = state_c = np.zeros((action.shape[1], size))
    for t in reversed(range(num_steps)):
        keep = going_on[t][:, None]
        state_h, state_c = lstm_cell(w, "lstm/lstm/linear", x[t], state_h * keep, state_c * keep)
        outputs[t] = state_h
    outputs = outputs * linear(w, "lstm/linear", hidden)
    summary, y, z = (linear(w, f"lstm/linear_{i}", outputs) for i in (1, 2, 3))
    repeated = np.broadcast_to(outputs[:, :, None], (*embedding.shape[:3], size))
    policy = block(w, "lstm/sequential_1/conv1_d", np.concatenate([repeated, embedding], axis=-1))
    policy = linear(w, "lstm/linear_4", policy)[..., 0]

    prefix = "lstm/~/meta_lstm/~unroll/"
    columns = [features(prefix)[0], summary, mlp(w, f"{prefix}mlp", y)[..., None]]
    embedded = linear(w, f"{prefix}mlp_2/~/linear_0", np.concatenate(columns, axis=-1)).mean(axis=(0, 1))
    hidden, cell = lstm_cell(w, f"{prefix}lstm/linear", embedded, hidden, cell)

    limit = agent["q"].shape[-1] // 2
    taken = lambda x: at_action(x[:-1], action)
    value = np.zeros_like(reward)
    for t, b in np.ndindex(*reward.shape):
        x = np.clip(h(returns[t, b]), -limit, limit)
        low, high = int(np.floor(x)), int(np.ceil(x))
        p = (high - x) / (high - low + 1e-5)
        log_q = np.log(softmax(agent["q"][t, b, action[t, b]]))
        value[t, b] = -p * log_q[low + limit] - (1 - p) * log_q[high + limit]
    results = {
        "policy": policy,
        "y": y,
        "z": z,
        "returns": returns,
        "loss_policy": kl(policy, agent["policy"][:-1]),
        "loss_y": kl(y, agent["y"][:-1]),
        "loss_z": kl(z, taken(agent["z"])),
        "loss_aux_policy": kl(agent["policy"][1:], taken(agent["aux_policy"])) * going_on,
        "loss_value": value,
    }
    return results, (hidden, cell, adv_state, td_state)
