"""The rule Disco103 compared with reference data: one update, and the gradient through several, key by key."""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

from agents.rules.categorical import to_scalars
from agents.rules.moving_average import MovingAverage, normalise
from agents.types import Array, Params, Trajectory
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
    for case in sorted({key.split("/")[0] for key in reference}):
        updates = sorted({int(match[1]) for key in reference if (match := re.match(rf"{case}/u(\d+)/", key))})
        inputs = {f"{case}/u{u}": _read_update(reference, f"{case}/u{u}") for u in updates}
        results = {prefix: jax.jit(_one_update)(meta_params, *x) for prefix, x in inputs.items()}
        results[f"{case}/meta_grad_chain"] = _chain(meta_params, list(inputs.values()))
        for prefix, result in results.items():
            for key in (key for key in reference if key.startswith(f"{prefix}/")):
                name = key.removeprefix(f"{prefix}/")
                if name.startswith(("in/", "state_in/")):
                    continue
                floor = 0.03 * float(reference[f"{prefix}/norms"].max()) if name.startswith("full/") else 0.0
                error = _error(result[name], reference[key], floor) if name in result else float("inf")
                label = f"meta_grad_chain/{name}" if prefix.endswith("chain") else name
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

    def read(name: str) -> Array:
        if f"{prefix}/{name}" not in reference:
            raise ValueError(f"{prefix}/{name} is missing")
        return jnp.asarray(reference[f"{prefix}/{name}"])

    is_terminal = read("in/is_terminal")
    num_steps, batch_size = is_terminal.shape
    no = jnp.zeros((num_steps + 1, batch_size), bool)
    trajectory = Trajectory(
        observation=no.astype(float),
        is_first=no,
        action=read("in/actions")[:-1].astype(int),
        reward=read("in/rewards"),
        discount=1 - is_terminal,
        truncated=no[1:],
        valid=~no[1:],
        behaviour_logits=read("in/behaviour/logits")[:-1],
        core_state=(),
    )
    predictions = {ours: read(f"in/agent_out/{name}") for name, ours in PREDICTIONS.items()}
    slow = {ours: read(f"in/target_out/{name}") for name, ours in PREDICTIONS.items() if name != "aux_pi"}
    average = lambda name: MovingAverage(*(read(f"state_in/{name}/{field}") for field in MovingAverage._fields))
    lifetime = LifetimeLSTMState(read("state_in/rnn_hidden"), read("state_in/rnn_cell"))
    return trajectory, predictions, slow, disco.DiscoState(lifetime, average("adv_ema"), average("td_ema"))


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
    value_losses = lambda p: CONFIG.value_cost * disco.value_loss(targets.returns, p["q"], trajectory)
    of_agent = jax.grad(lambda p: jnp.mean(rule.loss(targets, p, trajectory) + value_losses(p)))(predictions)
    mean_loss = lambda meta_params, p: _agent_loss(meta_params, trajectory, p, target_predictions, state)[0]
    of_meta, of_inputs = jax.grad(mean_loss, argnums=(0, 1))(meta_params, predictions)
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
        "meta_grad/agent_out_norms": _norms({name: of_inputs[ours] for name, ours in PREDICTIONS.items()}),
    }
    result |= {f"loss/{name}": x for name, x in zip(("pi", "y", "z", "aux"), losses.values(), strict=True)}
    result |= {f"grad/agent_out/{name}": of_agent[ours] for name, ours in PREDICTIONS.items()}
    for name, moving in (("adv_ema", new.advantage), ("td_ema", new.td)):
        result |= {f"state_out/{name}/{field}": x for field, x in moving._asdict().items()}
    return result


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
