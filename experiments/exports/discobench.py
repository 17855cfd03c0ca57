"""A proximal rule of frodo in DiscoBench's OnPolicyRL, whose targets.py and loss.py import their functions from here.

Needs JAX alone, and next to this file frodo_rule.npz, which `frodo export` wrote: η and the settings of the rule. The
discount, λ, clipping range and weights of losses are those of DiscoBench's config; η multiplies them. Where their code
shows less than frodo does:

- The entropy of the policy that acted is estimated by the mean of −log μ(A).
- The learning rate is DiscoBench's, whose script tries ten; a factor that η has for it is left out.
- A time limit is a termination there.
"""

import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

FILE = Path(__file__).with_name("frodo_rule.npz")
LARGEST = {"entropy_cost": 3.0, "clip": 1.0, "lambda_": 2.0, "value_cost": 2.0}  # logarithms of factors, at most
GAIN = 5.0  # of constants


def load(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of the rule, and η by part, module and name."""
    meta_params: dict[str, Any] = {}
    with np.load(path) as file:
        for key in file.files:
            if key != "settings":
                *parts, name = key.split("|")
                own = meta_params
                for part in parts:
                    own = own.setdefault(part, {})
                own[name] = jnp.asarray(file[key])
        return json.loads(file["settings"].item()), meta_params


SETTINGS, ETA = load(FILE) if FILE.exists() or __name__ == "frodo_rule" else ({}, {})


def linear(layer, x):
    return x @ layer["w"] + layer.get("b", 0.0)


def lstm(layer, features, is_last):
    """Read [T, B, F] backwards, from a state of zeros at each step that ends an episode: [T, B, units]."""
    size = layer["w"].shape[1] // 4

    def step(state, now):
        seen, ends = now
        hidden, cell = jax.tree.map(lambda x: jnp.where(ends[:, None], 0.0, x), state)
        i, g, f, o = jnp.split(linear(layer, jnp.concatenate([seen, hidden], axis=-1)), 4, axis=-1)
        cell = jax.nn.sigmoid(f + 1) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
        return (hidden, cell), hidden

    start = jnp.zeros((features.shape[1], size))
    return jax.lax.scan(step, (start, start), (features, is_last), reverse=True)[1]


def advantages_of(traj_batch, last_val, gamma, lambda_):
    """Return TD errors, advantages, v(S') and 1 where an episode goes on, [T, B] each."""
    goes_on = 1.0 - traj_batch.done
    after = jnp.concatenate([traj_batch.value[1:], last_val[None]])
    deltas = traj_batch.reward + gamma * goes_on * after - traj_batch.value

    def step(advantage, now):
        delta, decay = now
        advantage = delta + decay * advantage
        return advantage, advantage

    decay = gamma * lambda_ * goes_on
    return deltas, jax.lax.scan(step, jnp.zeros_like(last_val), (deltas, decay), reverse=True)[1], after, goes_on


def get_targets(traj_batch, last_val, config):
    """Return advantages [T, B], and what the loss takes besides, [T, B] each."""
    gamma, lambda_ = config["GAMMA"], config["GAE_LAMBDA"]
    costs = {"entropy_cost": config["ENT_COEF"], "clip": config["CLIP_EPS"], "value_cost": config["VF_COEF"]}
    deltas, advantages, after, goes_on = advantages_of(traj_batch, last_val, gamma, lambda_)
    num_before = (traj_batch.info["timestep"][0, 0] - 1) // config["NUM_STEPS"]
    progress, log_life = num_before / config["NUM_UPDATES"], math.log(config["NUM_UPDATES"]) / 10
    constants = ETA.get("constants", {})
    logs = {name: most * jnp.tanh(GAIN * constants.get(name, 0.0)) for name, most in LARGEST.items()}
    if "settings" in ETA:
        sizes = [-jnp.mean(traj_batch.log_prob), jnp.log1p(jnp.mean(jnp.abs(advantages)))]
        seen = jnp.stack([progress, log_life, *sizes])
        of_life = ETA["settings"]
        out = linear(of_life["linear"], jnp.tanh(linear(of_life["linear_1"], seen)))
        for name, x in zip(("entropy_cost", "clip", "lambda_"), out, strict=True):
            logs[name] += LARGEST[name] * jnp.tanh(x)
    lambda_ = jnp.maximum(0.0, 1 - (1 - lambda_) * jnp.exp(logs["lambda_"]))
    _, advantages, _, _ = advantages_of(traj_batch, last_val, gamma, lambda_)
    values = advantages + traj_batch.value
    if "targets" in ETA:
        unit = jnp.sqrt(jnp.mean(jnp.square(deltas))) + 1e-6
        acted = jnp.exp(traj_batch.log_prob)  # π is the policy that acted
        of_next = goes_on * after / unit
        columns = [traj_batch.reward / unit, gamma * goes_on, of_next, traj_batch.value / unit, deltas / unit]
        network = {name.rpartition("/")[2]: layer for name, layer in ETA["targets"].items()}
        hidden = lstm(network["lstm"], jnp.stack([*columns, acted, acted], axis=-1), traj_batch.done)
        by = lambda name: unit * SETTINGS["largest_correction"] * jnp.tanh(linear(network[name], hidden)[..., 0])
        advantages, values = advantages + by("advantage"), values + by("value")
    found = {name: cost * jnp.exp(logs[name]) for name, cost in costs.items()} | {"progress": progress}
    whole = {name: jnp.broadcast_to(x, values.shape) for name, x in found.items()}
    return advantages, whole | {"value": values, "log_life": jnp.full(values.shape, log_life)}


def drift_of(log_ratio, advantage, progress, log_life):
    """The network f(r, A) of LPO, with n / N and log N where the rule has them, [n] each."""
    log_r = jnp.clip(log_ratio, -10.0, 10.0)
    r = jnp.exp(log_r) - 1
    of_ratio = jnp.stack([r, r**2, log_r, log_r**2], axis=-1)
    x = jnp.concatenate([of_ratio, of_ratio * advantage[:, None]], axis=-1)
    if SETTINGS["is_temporal"]:
        x = jnp.concatenate([x, progress[:, None] * x, log_life[:, None] * x], axis=-1)
    network = ETA.get("drift", ETA)
    return linear(network["linear_1"], jnp.tanh(linear(network["linear"], x)))[..., 0]


def loss_actor_and_critic(params, traj_batch, gae, targets, network, config):
    """Return the loss of a minibatch, and its parts; `targets` is what `get_targets` returned besides."""
    pi, value = network.apply(params, traj_batch.obs)
    log_ratio = pi.log_prob(traj_batch.action) - traj_batch.log_prob
    near = traj_batch.value + jnp.clip(value - traj_batch.value, -config["CLIP_EPS"], config["CLIP_EPS"])
    errors = jnp.maximum(jnp.square(value - targets["value"]), jnp.square(near - targets["value"]))
    value_loss, entropy = 0.5 * errors, pi.entropy()
    advantage, r = (gae - gae.mean()) / (gae.std() + 1e-8), jnp.exp(log_ratio)
    kind, seen = SETTINGS["kind"], (log_ratio, advantage, targets["progress"], targets["log_life"])
    clipped = jnp.clip(r, 1 - targets["clip"], 1 + targets["clip"]) * advantage
    if kind == "dpo":
        of = jnp.where(advantage >= 0, r - 1, log_ratio) * advantage
        scale = jnp.where(advantage >= 0, SETTINGS["drift_alpha"], SETTINGS["drift_beta"])
        actor = jax.nn.relu(of - scale * jnp.tanh(of / scale)) - r * advantage
    elif kind == "lpo":
        actor = jax.nn.relu(drift_of(*seen) - 1e-6) - r * advantage
    else:
        actor = -jnp.minimum(r * advantage, clipped) + (drift_of(*seen) if "drift" in ETA else 0.0)
    total = jnp.mean(actor + targets["value_cost"] * value_loss - targets["entropy_cost"] * entropy)
    return total, (value_loss.mean(), actor.mean(), entropy.mean())
