"""Weights of the published rule, Disco103, and of others of the public code: their names there, and here.

Source: Oh et al. 2025; github.com/google-deepmind/disco_rl (Apache-2.0).
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from agents.types import Array, Params
from meta.targets.disco import DiscoConfig, disco

OF = "the public DiscoRL code"
# Names there, and in the meta-network: a layer with `w` and `b` each.
LAYERS = {
    "lstm/mlp/~/linear_0": "y_embedding",
    "lstm/mlp/~/linear_1": "y_embedding/out",
    "lstm/mlp_1/~/linear_0": "z_embedding",
    "lstm/mlp_1/~/linear_1": "z_embedding/out",
    "lstm/sequential/conv1_d": "action_embedding",
    "lstm/sequential/conv1_d_1": "action_embedding_1",
    "lstm/lstm/linear": "lstm",
    "lstm/linear": "lifetime_scale",
    "lstm/linear_1": "summary",
    "lstm/linear_2": "y",
    "lstm/linear_3": "z",
    "lstm/sequential_1/conv1_d": "policy_hidden",
    "lstm/linear_4": "policy",
    "lstm/~/meta_lstm/~unroll/mlp/~/linear_0": "lifetime/y_embedding",
    "lstm/~/meta_lstm/~unroll/mlp/~/linear_1": "lifetime/y_embedding/out",
    "lstm/~/meta_lstm/~unroll/mlp_1/~/linear_0": "lifetime/z_embedding",
    "lstm/~/meta_lstm/~unroll/mlp_1/~/linear_1": "lifetime/z_embedding/out",
    "lstm/~/meta_lstm/~unroll/sequential/conv1_d": "lifetime/action_embedding",
    "lstm/~/meta_lstm/~unroll/sequential/conv1_d_1": "lifetime/action_embedding_1",
    "lstm/~/meta_lstm/~unroll/mlp_2/~/linear_0": "lifetime/embedding",
    "lstm/~/meta_lstm/~unroll/lstm/linear": "lifetime/lstm/linear",
}


def expected_shapes(config: DiscoConfig | None = None) -> dict[str, jax.ShapeDtypeStruct]:
    """Return what every array of a published file is, by default Disco103's, in sorted order of their keys."""
    return jax.eval_shape(from_meta_params, disco(config or DiscoConfig()).meta_param_shapes())


def sizes(weights: Mapping[str, Any]) -> DiscoConfig:
    """Return the settings of the rule that arrays of these shapes belong to: their sizes, all else as of Disco103."""
    size = lambda layer: weights[f"{layer}/b"].shape[0]
    return DiscoConfig(
        prediction_size=size("lstm/linear_2"),
        lstm=size("lstm/lstm/linear") // 4,
        lifetime_lstm=size("lstm/~/meta_lstm/~unroll/lstm/linear") // 4,
        action_embedding=(size("lstm/sequential/conv1_d"), size("lstm/sequential/conv1_d_1")),
    )


def from_meta_params(params: Params) -> dict[str, Array]:
    """Name meta-parameters, or gradients to them, as the published file does; sorted."""
    weights: dict[str, Array] = {}
    for theirs, ours in LAYERS.items():
        w, b = params[f"target_network/{ours}"]["w"], params[f"target_network/{ours}"]["b"]
        weights |= {f"{theirs}/w": w[None] if "conv1_d" in theirs else w, f"{theirs}/b": b}
    return dict(sorted(weights.items()))


def to_meta_params(weights: Mapping[str, np.ndarray]) -> Params:
    """Turn published arrays into meta-parameters of `disco`."""
    params: dict[str, dict[str, np.ndarray]] = {}
    for theirs, ours in LAYERS.items():
        w, b = weights[f"{theirs}/w"], weights[f"{theirs}/b"]
        params[f"target_network/{ours}"] = {"w": w[0] if w.ndim == 3 else w, "b": b}
    return params
