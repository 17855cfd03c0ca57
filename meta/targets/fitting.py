"""η that makes a hand-designed target, fitted on made-up trajectories: a known start, without an environment.

A learned target that begins as V-trace, as a λ-return or as A2C's return teaches from the first step, and is learned
further from there.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from agents.networks.agent import TORSO
from agents.rule import UpdateRule
from agents.types import Array, Params, Predictions, Trajectory
from agents.validation import check_choice
from meta.targets.hand_made import TARGETS
from meta.targets.scalar import KINDS, FrodoConfig, frodo

NUM_STEPS, BATCH_SIZE, NUM_ACTIONS = 32, 64, 3  # of a made-up trajectory
NUM_UPDATES, LEARNING_RATE = 2000, 1e-2


def check_target(name: str, config: FrodoConfig) -> None:
    """Raise a ValueError that names the target, or the inputs that it cannot be made without."""
    check_choice("target", name, TARGETS)
    is_off_policy = name == "vtrace"
    if is_off_policy and config.kind != "actor_critic":
        raise ValueError(f"kind is {config.kind!r}, expected 'actor_critic': {name} is a target of v(S) under a policy")
    needs: list[tuple[str, ...]] = [("discount",)]
    if config.is_relative:
        needs += [("td_error",)]
    if not config.is_relative or config.kind == "value_based":  # where Q(S, A) is moved, TD errors do not tell V(S)
        needs += [("reward",), ("next_value",)]
    if is_off_policy:
        needs += [("pi", "log_pi"), ("mu",)] + ([] if config.is_relative else [("value", "td_error")])
    if missing := [" or ".join(names) for names in needs if not set(names) & set(config.inputs)]:
        raise ValueError(
            f"inputs are {','.join(config.inputs)}, expected {', '.join(missing)} besides: {name} is made of them"
        )


def hand_made(name: str, config: FrodoConfig, trajectory: Trajectory, predictions: Predictions) -> Array:
    """Compute the target of that name, [T, B], with the rule's γ and the λ of its `vtrace_lambda`."""
    kind = KINDS[config.kind]
    logits = kind.policy(predictions, config)
    values = kind.values(predictions, logits)
    return jax.lax.stop_gradient(TARGETS[name](trajectory, values, logits, config.discount, config.vtrace_lambda))


def fit(name: str, config: FrodoConfig, key: Array) -> Params:
    """Fit η, so that the rule's targets are those of that name. It can be jitted.

    The error of each column is in units of its change, what the target differs from the prediction by (of targets that
    are not relative, of its size), so that small rewards count as large ones do.

    Raises:
      ValueError: as `check_target`.
    """
    check_target(name, config)
    rule = frodo(config)

    def loss(meta_params: Params, key: Array) -> Array:
        trajectory, predictions = make_up(key, config)
        target = hand_made(name, config, trajectory, predictions)
        made, _ = rule.apply(meta_params, (), trajectory, predictions, predictions)
        start = KINDS[config.kind].moved(predictions, trajectory) if config.is_relative else 0.0
        error, size = (
            jnp.where(trajectory.valid, jnp.square(x), 0.0).mean(axis=0) for x in (made - target, target - start)
        )
        return jnp.mean(error / (size + 0.1 * size.mean()))

    return minimise(loss, rule, NUM_ACTIONS, key)


def minimise(loss: Callable[[Params, Array], Array], rule: UpdateRule, num_actions: int, key: Array) -> Params:
    """Minimise a loss of η and a key by Adam, from a random η on, a key of its own in each of the updates."""
    init_key, key = jax.random.split(key)
    meta_params = rule.random_meta_params(init_key, num_actions)
    schedule = optax.cosine_decay_schedule(LEARNING_RATE, NUM_UPDATES)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))

    def update(carry, key: Array):
        meta_params, opt_state = carry
        updates, opt_state = optimizer.update(jax.grad(loss)(meta_params, key), opt_state)
        return (optax.apply_updates(meta_params, updates), opt_state), None

    keys = jax.random.split(key, NUM_UPDATES)
    return jax.lax.scan(update, (meta_params, optimizer.init(meta_params)), keys)[0][0]


def variance_explained(
    name: str,
    config: FrodoConfig,
    meta_params: Params,
    trajectory: Trajectory,
    predictions: Predictions,
) -> Array:
    """Return what part of the change that a hand-designed target asks for the rule's targets ask for, too.

    1 − Σ (G − target)² / Σ (target − V(S))² over valid steps: 1 where they agree, 0 where nothing changes.
    """
    target = hand_made(name, config, trajectory, predictions)
    made, _ = frodo(config).apply(meta_params, (), trajectory, predictions, predictions)
    change = target - KINDS[config.kind].moved(predictions, trajectory)
    error, size = (jnp.where(trajectory.valid, jnp.square(x), 0.0).sum() for x in (made - target, change))
    return 1 - error / size


class Draws:
    """Random arrays of given shapes, each by a key of its own."""

    def __init__(self, key: Array):
        self._keys = iter(jax.random.split(key, 32))

    def key(self) -> Array:
        return next(self._keys)

    def normal(self, *shape: int) -> Array:
        return jax.random.normal(self.key(), shape)

    def uniform(self, low: float, high: float, *shape: int) -> Array:
        return jax.random.uniform(self.key(), shape, minval=low, maxval=high)

    def power(self, low: float, high: float, *shape: int) -> Array:
        """Draw powers of ten with exponents that are uniform."""
        return 10.0 ** self.uniform(low, high, *shape)


def make_up(
    key: Array,
    config: FrodoConfig,
    num_steps: int = NUM_STEPS,
    batch_size: int = BATCH_SIZE,
    is_on_policy: bool = False,
    num_actions: int = NUM_ACTIONS,
) -> tuple[Trajectory, Predictions]:
    """Make up a trajectory [T, B] and an agent's predictions on it.

    Rewards and values have a unit in common, and each column its own size and density of rewards, of either sign or
    both; values that are noise or a walk around a level; ends, of which a fifth are by a time limit, with a reset in
    the same or in the next step; and a policy that is μ, in a quarter of the columns, or differs from it, by little or
    much.
    """
    draws = Draws(key)
    columns, steps = (batch_size,), (num_steps, batch_size)
    normal = draws.normal
    power = lambda low, high: draws.power(low, high, *columns)
    chance = lambda p, *shape: draws.uniform(0, 1, *shape) < p
    unit = draws.power(-1, 0.5)
    constant = jnp.where(chance(0.5, *columns), 1.0, -1.0)
    reward = (
        jnp.where(chance(0.5, *columns), normal(*steps), constant)
        * chance(power(-2, 0), *steps)
        * unit
        * power(-0.5, 0.5)
    )
    is_over = chance(power(-3, -0.5), *steps)
    truncated = is_over & chance(0.2, *steps)
    resets_at_once = chance(0.5, *columns)
    is_after_end = jnp.concatenate([jnp.zeros((1, *columns), bool), is_over[:-1]])
    more = (num_steps + 1, *columns)
    walk = 0.3 * jnp.cumsum(normal(*more), axis=0)
    value = (normal(*columns) + jnp.where(chance(0.5, *columns), normal(*more), walk)) * unit * power(-1, 0.7)
    logits = normal(*more, num_actions) * power(-1, 0.6)[:, None]
    distance = jnp.where(chance(1.0 if is_on_policy else 0.25, *columns), 0.0, power(-1.5, 0.3))
    predictions = {"policy": logits, "value": value}
    if config.kind == "value_based":
        q = value[..., None] + normal(*more, num_actions) * unit * power(-1, 0.7)[:, None]
        predictions, logits = {"q": q}, KINDS[config.kind].policy({"q": q}, config)
    elif config.kind == "prediction":
        predictions, logits = {"value": value}, KINDS[config.kind].policy({"value": value}, config)
    behaviour_logits = logits[:-1] + normal(*logits[:-1].shape) * distance[:, None]
    if config.torso:
        predictions[TORSO] = jax.nn.relu(normal(*more, config.torso))
    trajectory = Trajectory(
        observation=jnp.zeros(more),
        is_first=jnp.concatenate([jnp.zeros((1, *columns), bool), jnp.where(resets_at_once, is_over, is_after_end)]),
        action=jax.random.categorical(draws.key(), behaviour_logits),
        reward=reward,
        discount=1.0 - (is_over & ~truncated),
        truncated=truncated,
        valid=jnp.where(resets_at_once, ~truncated, ~is_after_end),
        behaviour_logits=behaviour_logits,
        core_state=(),
    )
    return trajectory, predictions
