"""FRODO's outer loss as a function of η, written out a second time with loops, for central differences.

Nothing of the package's losses, returns, networks or gradients is used. `Held` stands for every stop-gradient: at the
base η it records what passes, at another η it gives back what it recorded. So the derivative of the whole by central
differences is what the meta-gradient must be.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """What the outer loss depends on besides arrays: a rule by name, its settings, and those of its outer objective."""

    name: str
    rule: Any
    outer: Any

    @property
    def is_loss(self):
        return self.name == "learned_loss"

    @property
    def kind(self):
        return "actor_critic" if self.is_loss else self.rule.kind

    @property
    def is_next_held(self):
        """Whether v(S') is an input without any gradient."""
        return not self.rule.is_next_value_differentiated if self.is_loss else self.next_value_gradient == "stopped"

    @property
    def is_target_constant(self):
        return not self.is_loss and self.next_value_gradient != "literal"

    @property
    def is_relative(self):
        return not self.is_loss and self.rule.is_relative

    @property
    def next_value_gradient(self):
        return self.rule.next_value_gradient

    @property
    def consistency_cost(self):
        return 0.0 if self.is_loss else self.rule.consistency_cost


class Held:
    """Records values in order, or replays them."""

    def __init__(self, values=None):
        self.is_replaying = values is not None
        self.values = list(values or [])
        self._next = iter(self.values)

    def __call__(self, x):
        if self.is_replaying:
            return next(self._next)
        self.values.append(x)
        return x


def linear(layer, x):
    return x @ layer["w"] + layer["b"]


def agent(params, observation, names, activation=jnp.tanh):
    """An MLP with one head for each name: [T + 1, B, ...] -> predictions."""
    layers = params["heads"]
    keys = ["linear"] + [f"linear_{i}" for i in range(1, len(layers))]
    x = observation.reshape(*observation.shape[:2], -1)
    for key in keys[: -len(names)]:
        x = activation(linear(layers[key], x))
    heads = {name: linear(layers[key], x) for key, name in zip(keys[-len(names) :], names, strict=True)}
    return {name: y[..., 0] if name == "value" else y for name, y in heads.items()} | {"torso": x}


def meta_network(meta_params, features, is_last, head="target"):
    """Reverse-time LSTM by a loop, with a linear head: [T, B, F] -> [T, B]."""
    w, b = (meta_params["target_network/lstm"][name] for name in "wb")
    size = w.shape[1] // 4
    hidden = cell = jnp.zeros((features.shape[1], size))
    outputs = []
    for t in reversed(range(len(features))):
        hidden = jnp.where(is_last[t][:, None], 0.0, hidden)
        cell = jnp.where(is_last[t][:, None], 0.0, cell)
        gates = jnp.concatenate([features[t], hidden], axis=-1) @ w + b
        i, g, f, o = (gates[:, k * size : (k + 1) * size] for k in range(4))
        cell = jax.nn.sigmoid(f + 1) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
        outputs.append(linear(meta_params[f"target_network/{head}"], hidden)[:, 0])
    return jnp.stack(outputs[::-1])


def successors(trajectory, x):
    """x of the observation that each step led to, or where a time limit hid it of the one before: [T + 1, B]."""
    return jnp.stack(
        [jnp.where(trajectory.truncated[t] & trajectory.is_first[t + 1], x[t], x[t + 1]) for t in range(len(x) - 1)]
    )


def vtrace(trajectory, values, rho, gamma, lambda_):
    """Targets and advantages by a loop."""
    targets, advantages, after = [], [], successors(trajectory, values)
    following = values[-1]  # v_s + 1
    for t in reversed(range(len(rho))):
        ratio = jnp.where(trajectory.valid[t], jnp.minimum(1.0, rho[t]), 0.0)
        discount = gamma * trajectory.discount[t]
        # After a truncation, or with λ < 1, part of the bootstrap is the value itself.
        keep = jnp.where(trajectory.truncated[t], 0.0, lambda_)
        delta = ratio * (trajectory.reward[t] + discount * after[t] - values[t])
        targets.append(values[t] + delta + discount * keep * ratio * (following - after[t]))
        bootstrap = keep * following + (1 - keep) * after[t]
        advantages.append(ratio * (trajectory.reward[t] + discount * bootstrap - values[t]))
        following = targets[-1]
    return jnp.stack(targets[::-1]), jnp.stack(advantages[::-1])


def log_probability(logits, action):
    log_pi = logits - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    return jnp.sum(log_pi * jax.nn.one_hot(action, logits.shape[-1]), axis=-1), log_pi


def policy_logits(predictions, c):
    if c.kind == "actor_critic":
        return predictions["policy"]
    if c.kind == "prediction":
        return jnp.zeros((*predictions["value"].shape, 1))
    greedy, epsilon = predictions["greedy"], c.rule.epsilon
    return jnp.log((1 - epsilon) * greedy + epsilon / greedy.shape[-1])


def with_greedy(predictions, held):
    """Add which action is greedy: no gradient flows through that, so it is held."""
    if "q" in predictions:
        predictions["greedy"] = held(jax.nn.one_hot(jnp.argmax(predictions["q"], -1), predictions["q"].shape[-1]))
    return predictions


def values_of(predictions, c):
    if c.kind == "value_based":
        return jnp.sum(jnp.exp(policy_logits(predictions, c)) * predictions["q"], axis=-1)
    return predictions["value"]


def moved_of(predictions, trajectory, c):
    """What the targets are of."""
    if c.kind == "value_based":
        q = predictions["q"][:-1]
        return jnp.sum(q * jax.nn.one_hot(trajectory.action, q.shape[-1]), axis=-1)
    return predictions["value"][:-1]


def base_of(predictions, trajectory, c):
    """What targets are relative to."""
    if c.rule.base == "value":
        return moved_of(predictions, trajectory, c)
    assert c.kind == "actor_critic"
    log_pi, _ = log_probability(predictions["policy"][:-1], trajectory.action)
    log_mu, _ = log_probability(trajectory.behaviour_logits, trajectory.action)
    rho = {"vtrace": jnp.exp(log_pi - log_mu), "lambda_return": jnp.ones_like(log_mu)}[c.rule.base]
    return vtrace(trajectory, predictions["value"], rho, c.rule.discount, c.rule.vtrace_lambda)[0]


def td_errors(next_values, moved, trajectory, c):
    return trajectory.reward + c.rule.discount * trajectory.discount * next_values - moved


def unit_of(predictions, trajectory, c):
    """The size of TD errors: the root of their mean square over valid steps."""
    errors = td_errors(
        successors(trajectory, values_of(predictions, c)), moved_of(predictions, trajectory, c), trajectory, c
    )
    return jnp.sqrt(jnp.sum(errors**2 * trajectory.valid) / jnp.sum(trajectory.valid)) + 1e-6


def reduce(loss, trajectory, reduction):
    total = jnp.sum(loss * trajectory.valid)
    return total if reduction == "sum" else total / jnp.sum(trajectory.valid)


def actor_critic_loss(targets, advantage, predictions, trajectory, costs, temperature=1.0):
    log_pi_a, log_pi = log_probability(predictions["policy"][:-1] / temperature, trajectory.action)
    entropy = -jnp.sum(jnp.exp(log_pi) * log_pi, axis=-1)
    error = targets - predictions["value"][:-1]
    return -advantage * log_pi_a + costs.value_cost * 0.5 * error**2 - costs.entropy_cost * entropy


def targets_fn(meta_params, predictions, trajectory, c, names, next_values=None, base_and_unit=None):
    """`next_values` is what is held of v(S'), or None; `base_and_unit` are what relative targets have besides, and what
    is held of what they are of, or None."""
    values = values_of(predictions, c)
    base, unit, moved = base_and_unit or (0.0, 1.0, None)
    moved = moved_of(predictions, trajectory, c) if moved is None else moved
    next_values = successors(trajectory, values) if next_values is None else next_values
    log_pi, _ = log_probability(policy_logits(predictions, c)[:-1], trajectory.action)
    log_mu, _ = log_probability(trajectory.behaviour_logits, trajectory.action)
    columns = {
        "reward": trajectory.reward / unit,
        "discount": c.rule.discount * trajectory.discount,
        "next_value": trajectory.discount * next_values / unit,
        "value": values[:-1] / unit,
        "td_error": td_errors(next_values, moved, trajectory, c) / unit,
        "pi": jnp.exp(log_pi),
        "mu": jnp.exp(log_mu),
        "log_pi": log_pi,
    }
    features = jnp.stack([columns[name] for name in names], axis=-1)
    if c.rule.torso:
        features = jnp.concatenate([features, predictions["torso"][:-1]], axis=-1)
    features = features * trajectory.valid[..., None]
    is_last = (trajectory.discount == 0) | trajectory.truncated | ~trajectory.valid
    return base + unit * meta_network(meta_params, features, is_last)


def consistency(targets, trajectory, c, held):
    """½ Σ (⊥(...) − G)², by loops."""
    broken = jnp.asarray(trajectory.truncated) | ~trajectory.valid
    for t in range(len(targets) - 1):
        broken = broken.at[t].set(broken[t] | ((trajectory.discount[t] > 0) & ~trajectory.valid[t + 1]))
    total, following = 0.0, targets[-1]
    expected = []
    for t in reversed(range(len(targets) - 1)):
        ends = broken[t + 1] | (not c.rule.is_consistency_multi_step)
        chained = jnp.where(ends, targets[t + 1], following)
        following = trajectory.reward[t] + c.rule.discount * trajectory.discount[t] * chained
        expected.append(following)
    expected = held(jnp.stack(expected[::-1]))
    total = 0.5 * (expected - targets[:-1]) ** 2 * ~broken[:-1]
    return jnp.sum(total)


def inner_loss(
    params, meta_params, targets, fixed_values, fixed_next, base_and_unit, greedy, trajectory, c, names, head_names
):
    """The loss whose gradient with respect to params is an update; what is not a function of params is passed."""
    predictions = agent(params, trajectory.observation, head_names) | {"greedy": greedy}
    if targets is None:
        targets = targets_fn(meta_params, predictions, trajectory, c, names, fixed_next, base_and_unit)
    if c.is_loss:
        _, log_pi = log_probability(predictions["policy"][:-1], trajectory.action)
        loss = targets + c.rule.entropy_cost * jnp.sum(jnp.exp(log_pi) * log_pi, axis=-1)
    elif c.kind == "prediction":
        loss = (targets - predictions["value"][:-1]) ** 2
    elif c.kind == "value_based":
        q = jnp.sum(predictions["q"][:-1] * jax.nn.one_hot(trajectory.action, predictions["q"].shape[-1]), axis=-1)
        loss = 0.5 * (targets - q) ** 2
    else:
        loss = actor_critic_loss(targets, targets - fixed_values, predictions, trajectory, c.rule)
    return reduce(loss, trajectory, c.rule.reduction)


@functools.partial(jax.jit, static_argnames=("names", "head_names", "optimizer", "case"))
def outer_loss(
    meta_params, params, second_moment, trajectories, validation, values, *, case, optimizer, names, head_names
):
    """Return the outer loss after M updates, and what was held; `values` is what a call at the base η returned, or
    None."""
    c, o, held = case, case.outer, Held(values)
    learning_rate, decay, epsilon = optimizer
    regulariser = 0.0
    for m in range(len(trajectories.action)):
        trajectory = jax.tree.map(lambda x, m=m: x[m], trajectories)
        predictions = with_greedy(agent(params, trajectory.observation, head_names), held)
        state_values = values_of(predictions, c)
        fixed_values = held(state_values[:-1]) if c.kind == "actor_critic" and not c.is_loss else None
        fixed_next = held(successors(trajectory, state_values)) if c.is_next_held else None
        base_and_unit = None
        if c.is_relative:
            base, unit = base_of(predictions, trajectory, c), held(unit_of(predictions, trajectory, c))
            moved = held(moved_of(predictions, trajectory, c)) if c.is_next_held else None
            base_and_unit = base if c.next_value_gradient == "semi" else held(base), unit, moved
        targets = targets_fn(meta_params, predictions, trajectory, c, names, fixed_next, base_and_unit)
        if c.consistency_cost:
            regulariser += c.consistency_cost * consistency(targets, trajectory, c, held)
        fixed_targets, greedy = targets if c.is_target_constant else None, predictions.get("greedy")
        grads = jax.grad(inner_loss)(
            params,
            meta_params,
            fixed_targets,
            fixed_values,
            fixed_next,
            base_and_unit,
            greedy,
            trajectory,
            c,
            names,
            head_names,
        )
        second_moment = jax.tree.map(lambda s, g: decay * s + (1 - decay) * g**2, second_moment, grads)
        params = jax.tree.map(
            lambda p, g, s: p - learning_rate * g / jnp.sqrt(s + epsilon), params, grads, second_moment
        )
    predictions = with_greedy(agent(params, validation.observation, head_names), held)
    state_values = values_of(predictions, c)
    if c.kind == "actor_critic":
        log_pi, _ = log_probability(predictions["policy"][:-1] / o.temperature, validation.action)
        log_mu, _ = log_probability(validation.behaviour_logits, validation.action)
        returns = vtrace(validation, state_values, jnp.exp(log_pi - log_mu), o.discount, o.lambda_)
        returns, advantage = held(returns[0]), held(returns[1])
        loss = actor_critic_loss(returns, advantage, predictions, validation, o, o.temperature)
    else:
        ones = jnp.ones_like(state_values[1:])
        returns = held(vtrace(validation, state_values, ones, o.discount, o.lambda_)[0])
        if c.kind == "prediction":
            loss = (returns - state_values[:-1]) ** 2
        else:
            q = jnp.sum(predictions["q"][:-1] * jax.nn.one_hot(validation.action, predictions["q"].shape[-1]), axis=-1)
            loss = 0.5 * (returns - q) ** 2
    return reduce(loss, validation, c.rule.reduction) + regulariser, held.values
