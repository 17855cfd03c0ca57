"""Compare the rule Disco103 with reference data: python -m experiments.check_disco103 --weights=W --reference=R.npz

The reference is a flat .npz of float32 arrays named <case>/u<update>/<key>: `in/` and `state_in/` are what one update
of the rule is given, `out/`, `state_out/`, `loss/`, `grad/`, `meta_grad/` and `dbg/` what comes of it; and
<case>/meta_grad_chain/<key>, of all updates of the case in a row. Every case is checked, whatever its shapes.

Errors are the largest absolute difference over the largest absolute value of the reference's array (of one leaf of a
meta-gradient: at least 0.03 of the largest leaf's norm, since some leaves are 0 up to rounding). Prints the largest
error per key and what is allowed: 2e-4; 2e-3 for the gradient of q and the first moments of the averages; 5e-5 for the
lifetime state. Exit code 1 if one is larger, or if the file holds a key that the rule does not give.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from agents.rules.categorical import to_scalars
from agents.rules.moving_average import MovingAverage, normalise
from agents.types import Array, Params, Trajectory
from experiments.runs.command_line import start
from frodo import archives, logs
from frodo.rules import disco103_weights
from frodo.runs.errors import UsageError, caused_by
from meta.targets import disco, disco103
from meta.targets.disco_inputs import DiscoContext
from meta.targets.target_network import LifetimeLSTMState

CONFIG = disco.DiscoConfig()
PREDICTIONS = {"logits": "policy", "y": "y", "z": "z", "aux_pi": "aux_policy", "q": "q"}  # names there, and here
TOLERANCES = {r"grad/agent_out/q|state_out/\w+/moment1": 2e-3, r"state_out/rnn_\w+": 5e-5}


def check(weights: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the largest error of every key over cases and updates; inf for a key that the rule does not give."""
    meta_params = disco103.to_meta_params(weights)
    errors: dict[str, float] = defaultdict(float)
    cases = sorted({key.split("/")[0] for key in reference})
    for case in cases:
        updates = sorted({int(match[1]) for key in reference if (match := re.match(rf"{case}/u(\d+)/", key))})
        inputs = [_read_update(reference, f"{case}/u{u}") for u in updates]
        results = {f"{case}/u{u}": jax.jit(_one_update)(meta_params, *x) for u, x in zip(updates, inputs, strict=True)}
        results[f"{case}/meta_grad_chain"] = _chain(meta_params, inputs)
        for prefix, result in results.items():
            own = {key for key in reference if key.startswith(prefix + "/")}
            for key in own:
                name = key.removeprefix(prefix + "/")
                if name.startswith(("in/", "state_in/")):
                    continue
                label = f"meta_grad_chain/{name}" if prefix.endswith("chain") else name
                floor = 0.03 * float(reference[f"{prefix}/norms"].max()) if name.startswith("full/") else 0.0
                error = _error(result[name], reference[key], floor) if name in result else float("inf")
                errors[label] = max(errors[label], error)
    return dict(sorted(errors.items()))


def tolerance(key: str) -> float:
    """What error is allowed for a key."""
    return next((value for pattern, value in TOLERANCES.items() if re.fullmatch(pattern, key)), 2e-4)


def _error(value: Array, expected: np.ndarray, floor: float) -> float:
    if np.shape(value) != expected.shape:
        return float("inf")
    error = np.max(np.abs(np.asarray(value, np.float64) - expected), initial=0.0)
    scale = max(np.max(np.abs(expected), initial=0.0), floor)
    return float(error / scale) if scale else float(error)


def _read_update(reference: Mapping[str, np.ndarray], prefix: str):
    """An update's trajectory, predictions, target predictions and state."""
    read = lambda name: jnp.asarray(reference[f"{prefix}/{name}"])
    try:
        is_terminal = read("in/is_terminal")
        trajectory = Trajectory(
            observation=jnp.zeros((len(is_terminal) + 1, is_terminal.shape[1])),
            is_first=jnp.zeros((len(is_terminal) + 1, is_terminal.shape[1]), bool),
            action=read("in/actions")[:-1].astype(int),
            reward=read("in/rewards"),
            discount=1 - is_terminal,
            truncated=jnp.zeros(is_terminal.shape, bool),
            valid=jnp.ones(is_terminal.shape, bool),
            behaviour_logits=read("in/behaviour/logits")[:-1],
            core_state=(),
        )
        predictions = {ours: read(f"in/agent_out/{name}") for name, ours in PREDICTIONS.items()}
        target_predictions = {
            ours: read(f"in/target_out/{name}") for name, ours in PREDICTIONS.items() if name != "aux_pi"
        }
        averages = [
            MovingAverage(*(read(f"state_in/{name}/{field}") for field in MovingAverage._fields))
            for name in ("adv_ema", "td_ema")
        ]
        lifetime = LifetimeLSTMState(read("state_in/rnn_hidden"), read("state_in/rnn_cell"))
    except KeyError as error:
        raise UsageError(f"--reference: {error.args[0]}") from None
    return trajectory, predictions, target_predictions, disco.DiscoState(lifetime, *averages)


def _agent_loss(meta_params: Params, trajectory, predictions, target_predictions, state) -> tuple[Array, Any]:
    """The mean of the losses that carry meta-gradient, and the new state."""
    rule = disco.disco(CONFIG)
    targets, state = rule.apply(meta_params, state, trajectory, predictions, target_predictions)
    return jnp.mean(rule.loss(targets, predictions, trajectory)), state


def _one_update(meta_params: Params, trajectory, predictions, target_predictions, state) -> dict[str, Array]:
    """Everything that the reference may hold of one update, by its names there."""
    rule = disco.disco(CONFIG)
    targets, new = rule.apply(meta_params, state, trajectory, predictions, target_predictions)
    context, td = disco.make_context(state, trajectory, predictions, target_predictions, CONFIG)
    values, average = context.values, context.average
    assert values is not None
    losses = disco.prediction_losses(targets, predictions, trajectory)
    value_loss = disco.value_loss(targets.returns, predictions["q"], trajectory)
    agent_loss = rule.loss(targets, predictions, trajectory)
    no_meta = CONFIG.value_cost * value_loss
    mask = jnp.concatenate([jnp.ones_like(trajectory.discount[:1]), trajectory.discount[:-1]])
    total = lambda p: jnp.mean(
        rule.loss(targets, p, trajectory) + CONFIG.value_cost * disco.value_loss(targets.returns, p["q"], trajectory)
    )
    of_agent = jax.grad(total)(predictions)
    arguments = (trajectory, predictions, target_predictions, state)
    of_meta, of_inputs = jax.grad(lambda *x: _agent_loss(x[0], x[1], *x[2:])[0], argnums=(0, 2))(
        meta_params, *arguments
    )
    result = _intermediate(meta_params, context, state.lifetime)
    result |= {
        "out/pi": targets.policy,
        "out/y": targets.y,
        "out/z": targets.z,
        "out/q_value": to_scalars(predictions["q"]),
        "out/target_q_value": values.target_q,
        "out/v_scalar": values.v,
        "out/q_target": values.returns,
        "out/adv": values.advantage,
        "out/normalized_adv": normalise(average, values.advantage),
        "out/qv_adv": values.action_advantage,
        "out/normalized_qv_adv": normalise(average, values.action_advantage),
        "out/q_td": values.td,
        "out/normalized_q_td": normalise(td, values.td, is_centred=False),
        "state_out/rnn_hidden": new.lifetime.hidden,
        "state_out/rnn_cell": new.lifetime.cell,
        "loss/value": value_loss,
        "loss/agent_loss": agent_loss,
        "loss/agent_loss_no_meta": no_meta,
        "loss/mean_total": jnp.mean(agent_loss + no_meta),
        "loss/masked_mean_total": jnp.sum(mask * (agent_loss + no_meta)) / jnp.sum(mask),
        "meta_grad/norms": _norms(disco103.from_meta_params(of_meta)),
        "meta_grad/agent_out_norms": _norms({name: of_inputs[PREDICTIONS[name]] for name in _GRADIENT_ORDER}),
    }
    result |= {f"loss/{name}": x for name, x in zip(("pi", "y", "z", "aux"), losses.values(), strict=True)}
    result |= {f"grad/agent_out/{name}": of_agent[ours] for name, ours in PREDICTIONS.items()}
    for name, moving in (("adv_ema", new.advantage), ("td_ema", new.td)):
        result |= {f"state_out/{name}/{field}": x for field, x in moving._asdict().items()}
    return result


_GRADIENT_ORDER = ("logits", "y", "z", "aux_pi", "q")


def _norms(leaves: Mapping[str, Array]) -> Array:
    return jnp.stack([jnp.linalg.norm(jnp.ravel(x)) for x in leaves.values()])


def _intermediate(meta_params: Params, context: DiscoContext, lifetime: LifetimeLSTMState) -> dict[str, Array]:
    """What layers of the meta-network are given and put out."""
    caught: dict[str, Array] = {}

    def catch(call: Callable, args: tuple, kwargs: dict, method: hk.MethodContext):
        output = call(*args, **kwargs)
        name = method.module.module_name.removeprefix("target_network/")
        if method.method_name == "__call__":
            caught[f"{name}/in"], caught[f"{name}/out"] = args[0], output
        return output

    with hk.intercept_methods(catch):
        disco.make_network(CONFIG).apply(meta_params, context, lifetime)
    return {
        "out/meta_input_emb": caught["summary/out"],
        "dbg/features": caught["lstm/in"],
        "dbg/policy_emb": jax.nn.relu(caught["action_embedding_1/out"]),
        "dbg/features_meta_rnn": caught["lifetime/embedding/in"][..., :27],
    }


def _chain(meta_params: Params, inputs: list) -> dict[str, Array]:
    """The loss of all updates in a row, and its gradient through the state that is carried."""

    def loss(meta_params, inputs):
        total, state = jnp.zeros(()), disco.disco(CONFIG).init()
        for trajectory, predictions, target_predictions, _ in inputs:
            one, state = _agent_loss(meta_params, trajectory, predictions, target_predictions, state)
            total += one
        return total

    value, gradient = jax.jit(jax.value_and_grad(loss))(meta_params, inputs)
    leaves = disco103.from_meta_params(gradient)
    return {"loss": value, "norms": _norms(leaves)} | {f"full/{name}": x for name, x in leaves.items()}


def _rows(errors: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    for key, error in errors.items():
        yield {
            "key": key,
            "largest error": error,
            "allowed": tolerance(key),
            "": "" if error <= tolerance(key) else "X",
        }


def main(argv: list[str]) -> None:
    del argv
    for name in ("weights", "reference"):
        if not flags.FLAGS[name].value:
            raise UsageError(f"--{name} is missing: name an .npz file")
    with caused_by("--weights"):
        arrays = disco103_weights.read(Path(flags.FLAGS.weights))
    try:
        with caused_by("--reference"):
            reference = archives.read_arrays(Path(flags.FLAGS.reference))
    except FileNotFoundError:
        raise UsageError(f"--reference={flags.FLAGS.reference} names no file") from None
    errors = check(arrays, reference)
    print(logs.table(list(_rows(errors))))
    if wrong := [key for key, error in errors.items() if not error <= tolerance(key)]:
        sys.exit(f"error: {len(wrong)} of {len(errors)} keys differ by more than is allowed, the first is {wrong[0]}")
    print(f"all {len(errors)} keys agree")


if __name__ == "__main__":
    flags.DEFINE_string("weights", "", "The published weights, disco_103.npz.")
    flags.DEFINE_string("reference", "", "Reference data, an .npz file.")
    start(main)
