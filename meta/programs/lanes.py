"""Lanes: value-based agents that learn by programs, side by side in one compiled program.

A lane is an agent, its replay and its environment for as many episodes as an evaluation has (Co-Reyes et al. 2021,
Algorithm 1): ε-greedy acting, one update by replayed transitions for each step, and a hard copy of Q every so many.
Its program is data (`evaluation.Instructions`). Lanes share nothing: what one computes does not depend on the
others.

Unlike in trajectories, `s_next` of a transition that ended its episode is the episode's own last state.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents.networks.agent import NetworkConfig, make_agent
from agents.settings import Count, Fraction, OneOf, Positive, Settings, Sizes
from agents.types import Array, Params, PredictionSpec
from meta.programs.evaluation import ENDS, LISTS, Draws, Instructions, ListName, Transition, draw, features, interpret
from meta.programs.language import LOSSES
from toy_envs.base import Environment


@dataclasses.dataclass
class LaneConfig(Settings):
    """How an agent learns by a loss; "appendix B" is that of Co-Reyes et al. 2021, for classical control.

    Attributes:
      hidden: Units of the layers of Q, at least 1 each (appendix B).
      learning_rate: Learning rate of Adam, positive (appendix B).
      discount: γ, from 0 to 1.
      ends: What is 0 after a terminal step: 'gamma', or 'values', Q and Q_targ at s_next.
      epsilon: ε at the end of the exploration, from 0 to 1 (appendix B).
      exploration: Environment steps over which ε falls from 1, at least 1 (appendix B).
      target_period: Updates from one copy of Q to the next, at least 1 (appendix B).
      capacity: Transitions that are replayed, at least 1.
      batch_size: Transitions of an update, at least 1.
      num_episodes: Episodes of a training, at least 1 (appendix B).
      max_steps: Environment steps of a training at most, whatever the number of episodes, at least 1.
    """

    hidden: Sizes = (256, 256)
    learning_rate: Positive = 1e-4
    discount: Fraction = 0.99
    ends: Annotated[str, OneOf(ENDS)] = "gamma"
    epsilon: Fraction = 0.05
    exploration: Count = 1000
    target_period: Count = 100
    capacity: Count = 100_000
    batch_size: Count = 32
    num_episodes: Count = 400
    max_steps: Count = 1_000_000


class Replayed(NamedTuple):
    """Transitions, [capacity, ...] each."""

    state: Array
    action: Array
    reward: Array
    discount: Array  # 0 where the episode terminated, else 1
    next_state: Array


class Luck(NamedTuple):
    """What is random in a step: bits for acting, [2], and for the batch, and what programs draw."""

    bits: Array
    draws: Draws


class Lane(NamedTuple):
    """One evaluation under way.

    Attributes:
      params, slow, opt_state: Q, its copy, and Adam's moments.
      num_steps: environment steps until it is over.
      episode_return: of the episode under way.
      num_episodes, return_sum: of the episodes that ended.
      is_over: whether there were enough episodes or steps, or parameters were not finite; counts then stay, whatever
        the agent does until the lane is renewed.
    """

    key: Array
    params: Params
    slow: Params
    opt_state: optax.OptState
    env_state: Any
    replayed: Replayed
    num_steps: Array
    episode_return: Array
    num_episodes: Array
    return_sum: Array
    is_over: Array
    is_finite: Array


class Lanes(NamedTuple):
    """The functions of a lane, to be mapped over lanes.

    Attributes:
      init: key -> lane, a NamedTuple with the counts that `Lane` has.
      run: Instructions, the most instructions of any lane, lane, number of steps (static) -> lane.
    """

    init: Callable[[Array], Any]
    run: Callable[[Instructions, Array | int, Any, int], Any]


def make_lanes(
    environment: Environment, config: LaneConfig, lists: tuple[ListName, ...] = LISTS, has_draws: bool = True
) -> Lanes:
    """Make the functions of a lane in an environment.

    They are for programs that use these outputs of networks, or fewer, and random numbers only if there are draws: what
    no program uses would take a third of the time and more.
    """
    spec = {"q": PredictionSpec(is_per_action=True)}
    agent = make_agent(NetworkConfig("mlp", config.hidden), spec, environment.num_actions)
    optimizer = optax.adam(config.learning_rate)

    def q_of(params: Params, states: Array) -> Array:
        return agent.step(params, states, jnp.zeros(len(states), bool), ())[0]["q"]

    def init(key: Array) -> Lane:
        key, env_key, agent_key = jax.random.split(key, 3)
        env_state = environment.initial_state(env_key)
        state = environment.observe(env_state)
        params = agent.init(agent_key, state[None])
        rows = lambda *shape: jnp.zeros((config.capacity, *shape))
        states = lambda: rows(*state.shape).astype(state.dtype)
        replayed = Replayed(states(), rows().astype(jnp.int32), rows(), rows(), states())
        none, zero, no = jnp.zeros((), jnp.int32), jnp.zeros(()), jnp.zeros((), bool)
        return Lane(key, params, params, optimizer.init(params), env_state, replayed, none, zero, none, zero, no, ~no)

    def lists_of(params: Params, slow: Params, state: Array, next_state: Array) -> dict[ListName, Array]:
        found: dict[ListName, Array] = {}
        for network, own in (("Q", params), ("QTarget", slow)):
            where = [name for name in lists if name[0] == network]
            states = [{"s": state, "s_next": next_state}[name[1]] for name in where]
            if states:
                found |= dict(zip(where, jnp.split(q_of(own, jnp.concatenate(states)), len(states)), strict=True))
        return {name: found[name] for name in lists}

    def update(instructions: Instructions, num: Array | int, lane: Lane, batch: Replayed, draws: Draws):
        def loss(params: Params) -> Array:
            flat = lambda x: jnp.reshape(x, (len(x), -1))
            transition = Transition(
                lists_of(params, lane.slow, batch.state, batch.next_state),
                batch.action,
                batch.reward,
                config.discount * batch.discount,
                flat(batch.state),
                flat(batch.next_state),
            )
            told = transition.told_ends(config.ends, config.discount, batch.discount == 0)
            return jnp.mean(interpret(instructions, draws, features(told), num))

        updates, opt_state = optimizer.update(jax.grad(loss)(lane.params), lane.opt_state)
        return optax.apply_updates(lane.params, updates), opt_state

    def luck_of(key: Array) -> Luck:
        """Draw what a step needs; drawn for many steps at once, it takes next to no time."""
        bits_key, draw_key = jax.random.split(key)
        none = jnp.zeros(LOSSES.max_nodes)
        draws = draw(draw_key, LOSSES.max_nodes) if has_draws else Draws(none, none)
        return Luck(jax.random.bits(bits_key, (2 + config.batch_size,)), draws)

    def step(instructions: Instructions, num: Array | int, lane: Lane, luck: Luck) -> Lane:
        state = environment.observe(lane.env_state)
        share = jnp.maximum(0.0, 1 - lane.num_steps / config.exploration)
        is_random = luck.bits[0] * 2.0**-32 < share + (1 - share) * config.epsilon
        at_random = luck.bits[1] % environment.num_actions
        q = q_of(lane.params, state[None])[0]
        action = jnp.where(is_random, at_random, jnp.argmax(q)).astype(jnp.int32)
        is_finite = lane.is_finite & (lane.is_over | jnp.all(jnp.isfinite(q)))  # NaN in parameters is NaN in Q
        env_state, reward, terminated, truncated = environment.transition(lane.env_state, action)
        is_end = terminated | truncated
        new = Replayed(state, action, reward, 1.0 - terminated, environment.observe(env_state))
        row = lane.num_steps % config.capacity
        replayed = jax.tree.map(lambda rows, x: rows.at[row].set(x), lane.replayed, new)
        env_state = jax.tree.map(lambda x, y: jnp.where(is_end, x, y), environment.restart(env_state), env_state)
        num_steps = lane.num_steps + ~lane.is_over
        drawn = luck.bits[2:] % jnp.minimum(num_steps, config.capacity).astype(jnp.uint32)
        batch = jax.tree.map(lambda x: x[drawn], replayed)
        params, opt_state = update(instructions, num, lane, batch, luck.draws)
        slow = optax.periodic_update(params, lane.slow, num_steps, config.target_period)
        episode_return = lane.episode_return + reward
        is_counted = is_end & ~lane.is_over
        num_episodes = lane.num_episodes + is_counted
        return lane._replace(
            params=params,
            slow=slow,
            opt_state=opt_state,
            env_state=env_state,
            replayed=replayed,
            num_steps=num_steps,
            episode_return=jnp.where(is_end, 0.0, episode_return),
            num_episodes=num_episodes,
            return_sum=lane.return_sum + jnp.where(is_counted, episode_return, 0.0),
            is_over=lane.is_over | (num_episodes >= config.num_episodes) | (num_steps >= config.max_steps) | ~is_finite,
            is_finite=is_finite,
        )

    def run(instructions: Instructions, num: Array | int, lane: Lane, num_steps: int) -> Lane:
        keys = jax.vmap(jax.random.fold_in, (None, 0))(lane.key, lane.num_steps + jnp.arange(num_steps))
        return jax.lax.scan(
            lambda lane, own: (step(instructions, num, lane, own), None), lane, jax.vmap(luck_of)(keys)
        )[0]

    return Lanes(init, run)
