"""η of DiscoRL's form that makes a hand-designed policy target, CMPO's, fitted on made-up trajectories.

ŷ and ẑ stay what a random η makes of them: a hand-designed objective has none.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.rule import masked_reduce
from agents.rules.categorical import kl_divergence, two_hot
from agents.rules.moving_average import normalise
from agents.rules.muesli import cmpo_logits
from agents.types import Array, Params, Predictions, Trajectory
from meta.targets.disco import DiscoConfig, DiscoState, disco, make_context
from meta.targets.fitting import Draws, make_up, minimise
from meta.targets.scalar import FrodoConfig
from meta.targets.target_network import LifetimeLSTMState

MadeUp = tuple[DiscoState, Trajectory, Predictions, Predictions]  # what a rule's `apply` takes, but for η
NUM_STEPS, BATCH_SIZE, NUM_ACTIONS = 8, 24, (2, 5, 18)  # of made-up trajectories: the target looks no further
CLIP = 1.0  # of advantages, in units of their standard deviation: Muesli's


def check_target(config: DiscoConfig) -> None:
    """Raise a ValueError that names what the target cannot be made without."""
    if "q" in config.without:
        raise ValueError(f"without is {','.join(config.without)}, expected it not to have q: cmpo is made of q")


def cmpo(
    config: DiscoConfig,
    state: DiscoState,
    trajectory: Trajectory,
    predictions: Predictions,
    target_predictions: Predictions,
) -> Array:
    """Compute logits of π_target exp(clip((A − μ) / σ, −1, 1)), [T, B, A], without gradient.

    A(S, a) is Retrace's advantage for the taken action, and that of the target parameters' q for the others; μ and σ
    are moving averages of the former. Source: Hessel et al. 2021, "Clipped MPO", with the rule's own advantages.
    """
    context, _ = make_context(state, trajectory, predictions, target_predictions, config)
    values, policy = context.values, target_predictions["policy"][:-1]
    assert values is not None
    is_taken = jax.nn.one_hot(trajectory.action, policy.shape[-1], dtype=bool)
    advantage = jnp.where(is_taken, values.advantage[..., None], values.action_advantage[:-1])
    return jax.lax.stop_gradient(cmpo_logits(policy, normalise(context.average, advantage), CLIP))


def _policies(config: DiscoConfig, meta_params: Params, made_up: MadeUp) -> tuple[Array, Array, Array]:
    """Return logits of CMPO's policy, of π̂ and of π_target, [T, B, A]."""
    made, _ = disco(config).apply(meta_params, *made_up)
    return cmpo(config, *made_up), made.policy, made_up[-1]["policy"][:-1]


def divergence(config: DiscoConfig, meta_params: Params, made_up: MadeUp) -> tuple[Array, Array]:
    """Return KL(CMPO ‖ π̂) and KL(CMPO ‖ π_target), means over valid steps: where π̂ is right the first is 0."""
    target, made, policy = _policies(config, meta_params, made_up)
    mean = lambda logits: masked_reduce(kl_divergence(target, logits), made_up[1].valid, "mean")
    return mean(made), mean(policy)


class Agreement(NamedTuple):
    """How near a rule's π̂ is to CMPO's policy, scalars.

    Attributes:
      explained: 1 − KL(CMPO ‖ π̂) / KL(CMPO ‖ π_target): 1 where π̂ is CMPO's, 0 where it is π_target.
      size: KL(π̂ ‖ π_target) / KL(CMPO ‖ π_target).
      cosine: of the angle between the changes of the log-probabilities, weighted by π_target: the direction alone.
      change: KL(CMPO ‖ π_target) in nats.
    """

    explained: Array
    size: Array
    cosine: Array
    change: Array


def agreement(config: DiscoConfig, meta_params: Params, made_up: MadeUp) -> Agreement:
    """Compare the rule's policy target with CMPO's on a trajectory, means over valid steps."""
    target, made, policy = _policies(config, meta_params, made_up)
    mean = lambda x: masked_reduce(x, made_up[1].valid, "mean")
    rest, size, change = (mean(kl_divergence(*pair)) for pair in ((target, made), (made, policy), (target, policy)))

    def move(logits: Array) -> Array:
        change = jax.nn.log_softmax(logits) - jax.nn.log_softmax(policy)
        return change - jnp.sum(jax.nn.softmax(policy) * change, axis=-1, keepdims=True)

    product = lambda x, y: mean(jnp.sum(jax.nn.softmax(policy) * x * y, axis=-1))
    own, of_cmpo = move(made), move(target)
    cosine = product(own, of_cmpo) / jnp.sqrt(product(own, own) * product(of_cmpo, of_cmpo))
    return Agreement(1 - rest / change, size / change, cosine, change)


def fit(config: DiscoConfig, key: Array) -> Params:
    """Fit η, so that the rule's policy target is `cmpo`. It can be jitted.

    Raises:
      ValueError: as `check_target`.
    """
    check_target(config)

    def loss(meta_params: Params, key: Array) -> Array:
        keys = jax.random.split(key, len(NUM_ACTIONS))
        made_up = [make_up_for_disco(key, config, num) for key, num in zip(keys, NUM_ACTIONS, strict=True)]
        return sum((divergence(config, meta_params, one)[0] for one in made_up), start=jnp.zeros(()))

    return minimise(loss, disco(config), NUM_ACTIONS[0], key)


def make_up_for_disco(
    key: Array, config: DiscoConfig, num_actions: int, num_steps: int = NUM_STEPS, batch_size: int = BATCH_SIZE
) -> MadeUp:
    """Make up a rule's state, a trajectory, an agent's predictions on it, and those of its target parameters.

    Values and rewards of all columns have one unit, as those of one environment have.
    """
    draws = Draws(key)
    normal, power = draws.normal, draws.power
    trajectory, known = make_up(draws.key(), FrodoConfig(), num_steps, batch_size, num_actions=num_actions)
    policy, value = known["policy"], known["value"]
    size = jnp.sqrt(jnp.square(trajectory.reward).mean(axis=0) + value.var(axis=0))
    scale = power(-1, 0.5) / size
    trajectory, value = trajectory._replace(reward=trajectory.reward * scale), value * scale
    spread = (value.std(axis=0) * power(-1, 0.5, batch_size))[:, None]
    q = value[..., None] + spread * normal(*policy.shape)

    def predict(distance: float) -> Predictions:
        found = {
            name: normal(*value.shape, *x.axes(num_actions)) for name, x in disco(config).spec(num_actions).items()
        }
        bins = two_hot(q + distance * spread * found["policy"], 2 * config.max_value + 1)
        return found | {"policy": policy + distance * normal(*policy.shape), "q": jnp.log(bins + 1e-6)}

    state = disco(config).init()
    if config.lifetime_lstm:  # any state of a lifetime: the target does not depend on it
        size = draws.uniform(0, 1)
        lifetime = LifetimeLSTMState(*(size * jnp.tanh(normal(config.lifetime_lstm)) for _ in range(2)))
        state = state._replace(lifetime=lifetime)
    return state, trajectory, predict(0.0), predict(0.1)
