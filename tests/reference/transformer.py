"""Transformer-XL again, in plain NumPy: one environment, one step, one head, one past step at a time."""

import numpy as np


def attention(now, read, weights):
    """The four terms of Dai et al. 2019, Section 3.3, for `now` [d] and the list of what it reads, itself the last."""
    size = len(now)
    out = np.zeros(size)
    for h in range(weights["query"].shape[1]):
        w = {name: weights[name][:, h] for name in ("query", "key", "distance", "value", "output")}
        u, v = weights["key_bias"][h], weights["distance_bias"][h]
        query, scores = now @ w["query"], []
        for distance, then in zip(reversed(range(len(read))), read, strict=True):
            key, position = then @ w["key"], encoding(distance, size) @ w["distance"]
            scores.append((query @ key + query @ position + u @ key + v @ position) / np.sqrt(len(key)))
        exp = np.exp(np.array(scores) - max(scores))
        for share, then in zip(exp / exp.sum(), read, strict=True):
            out += w["output"] @ (share * (then @ w["value"]))
    return out


def encoding(distance, size):
    """Sines of falling rates, then cosines of the same."""
    rates = [10_000 ** (-2 * i / size) for i in range(size // 2)]
    return np.array([np.sin(distance * rate) for rate in rates] + [np.cos(distance * rate) for rate in rates])


def core(xs, is_first, params, memory):
    """Outputs [T, d] of the core with the activation tanh, for inputs [T, F] of one environment that begins an episode.

    Each layer reads what came to it, normalised, in this step and the last `memory` of the episode.
    """
    num_layers = sum("hidden_norm" in name for name in params)
    weights = params["transformer"]
    normalised = lambda x, name: (
        (x - x.mean()) / np.sqrt(x.var() + 1e-5) * params[name]["scale"] + params[name]["offset"]
    )
    outputs = []
    for x, starts in zip(xs, is_first, strict=True):
        if starts or not outputs:
            read = [[] for _ in range(num_layers)]
        x = linear(params, "embedding", x)
        for i in range(num_layers):
            read[i].append(normalised(x, f"transformer/attention_norm_{i}"))
            own = {name.removesuffix(f"_{i}"): w for name, w in weights.items() if name.endswith(f"_{i}")}
            x = x + attention(read[i][-1], read[i][-1 - memory :], own)
            hidden = linear(params, f"hidden_{i}", normalised(x, f"transformer/hidden_norm_{i}"))
            gate, hidden = hidden[: len(hidden) // 2], hidden[len(hidden) // 2 :]
            x = x + linear(params, f"feed_forward_{i}", np.tanh(gate) * hidden)
        outputs.append(normalised(x, "transformer/norm"))
    return np.array(outputs)


def linear(params, name, x):
    layer = params[f"transformer/{name}"]
    return x @ layer["w"] + layer["b"]
