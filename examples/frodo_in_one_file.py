"""FRODO on Catch, on one page: an agent that discovers its own objective.

Xu et al. 2020, "Meta-Gradient Reinforcement Learning with an Objective Discovered Online". There are two networks. The
agent, with the parameters θ, has a policy π(S, A) and values v(S). The meta-network, with the parameters η, reads a
trajectory from its end and says of each step what the return should have been: the target G = g_η(τ). An iteration

1. acts: M trajectories τ and one more, τ′, all by the same θ;
2. updates θ once on each τ, towards the targets that η makes of it (Eq. 5, 6 and 10);
3. asks on τ′, by a usual actor-critic loss, how good the updated agent is (Eq. 11);
4. moves η down the gradient of that loss, which goes back through all M updates (Eq. 7).

In Catch a pellet falls for five steps, and the reward comes with the last: 1 for a catch, -1 for a miss. Each τ has but
three steps. Who learns from the rewards of three steps has a return of 3/11 at most, so G has to bootstrap: to find out
what v(Sₜ₊₁) is good for. Nobody tells η so (section 4).

    python examples/frodo_in_one_file.py    # the return is above 3/11 after .5M steps, and 1 from 1.1M steps on
                                            # 2M steps: 230 CPU s on one core of an AMD EPYC, next to other work

From the same key the package makes the same θ and η, with the settings `frodo.presets.catch()`. Both differ
from appendix C, which lets the inner gradient through G, and v of the next episode into it (docs/papers/frodo.md), and
from A.1, which names neither π nor μ as inputs.
"""

from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import optax
import rlax
from jax import Array

from toy_envs.catch import Catch, CatchState

CATCH = Catch()


class Settings(NamedTuple):
    """What has a (p) is from section 4 or appendix A.1; of the rest the paper says nothing for Catch."""

    num_updates: int = 5  # M (p)
    num_steps: int = 3  # of each τ (p)
    num_validation_steps: int = 5  # of τ′ (p): a whole episode, as the M · 3 steps before it are three
    batch_size: int = 32  # environments
    hidden: tuple[int, ...] = (256, 256)  # layers of the agent (p)
    lstm: int = 256  # units of the meta-network (p)
    gamma: float = 1.0  # γ
    lambda_: float = 1.0  # λ of V-trace: 1 for the full return (p)
    value_cost: float = 1.0  # c₁
    entropy_cost: float = 0.01  # c₂
    # RMSProp (p) with ε inside of the root, or an update's derivative would be infinite where a gradient is 0.
    optimizer: Any = optax.rmsprop(1e-3, decay=0.999, eps=1e-8, eps_in_sqrt=True)
    meta_optimizer: Any = optax.chain(optax.clip_by_global_norm(1.0), optax.rmsprop(1e-4, 0.99, 1e-5, eps_in_sqrt=True))


class Trajectory(NamedTuple):
    """T steps of B environments: _tm1 is of a step's own state and action, _t of what they led to."""

    observation: Array  # [T + 1, B, rows, columns]
    a_tm1: Array  # [T, B]
    mu_logits_tm1: Array  # [T, B, A], of the policy μ that acted
    r_t: Array  # [T, B]
    discount_t: Array  # [T, B]: γ, or 0 where the episode ended


class State(NamedTuple):
    theta: hk.Params
    opt_state: Any
    eta: hk.Params
    meta_opt_state: Any
    actor: tuple[Array, CatchState]  # random key and environments [B], where acting goes on


def agent_fn(observation: Array, settings: Settings) -> tuple[Array, Array]:
    """The network of θ: [..., rows, columns] -> logits of π(S, ·) [..., A] and v(S) [...]."""
    hidden = jnp.reshape(observation, (*observation.shape[:-2], -1))
    for size in settings.hidden:
        hidden = jax.nn.relu(hk.Linear(size)(hidden))
    return hk.Linear(CATCH.num_actions)(hidden), jnp.squeeze(hk.Linear(1)(hidden), axis=-1)


def meta_network_fn(inputs: Array, is_over_t: Array, settings: Settings) -> Array:
    """The network of η: [T, B, inputs] -> G [T, B], by an LSTM that goes back in time and begins anew at each end."""
    lstm = hk.ResetCore(hk.LSTM(settings.lstm))
    hidden, _ = hk.dynamic_unroll(lstm, (inputs, is_over_t), lstm.initial_state(inputs.shape[1]), reverse=True)
    return jnp.squeeze(hk.Linear(1, name="target")(hidden), axis=-1)


agent: Any = hk.without_apply_rng(hk.transform(agent_fn))
meta_network: Any = hk.without_apply_rng(hk.transform(meta_network_fn))


def init(key: Array, settings: Settings) -> State:
    """Draw θ, η and the first episodes; keys are split as in the package, where a torso has a key of its own."""
    actor_key, learner_key = jax.random.split(key)
    key, env_key = jax.random.split(actor_key)
    agent_key, eta_key = jax.random.split(learner_key)
    _, theta_key = jax.random.split(agent_key)
    env_state = jax.vmap(CATCH.initial_state)(jax.random.split(env_key, settings.batch_size))
    theta = agent.init(theta_key, jax.vmap(CATCH.observe)(env_state), settings)
    eta = meta_network.init(eta_key, jnp.zeros((1, 1, 5)), jnp.zeros((1, 1), bool), settings)
    return State(theta, settings.optimizer.init(theta), eta, settings.meta_optimizer.init(eta), (key, env_state))


def act(theta: hk.Params, actor: tuple[Array, CatchState], num_steps: int, settings: Settings):
    """Act by π; where an episode ends, which in Catch is always a termination, the next one begins at once."""

    def step(env_state: CatchState, key: Array):
        observation = jax.vmap(CATCH.observe)(env_state)
        logits, _ = agent.apply(theta, observation, settings)
        action = jax.random.categorical(key, logits)
        env_state, r_t, is_over_t, _ = jax.vmap(CATCH.transition)(env_state, action)
        restarted = jax.vmap(CATCH.restart)(env_state)
        env_state = jax.tree.map(lambda new, old: jnp.where(is_over_t, new, old), restarted, env_state)
        return env_state, (observation, action, logits, r_t, jnp.where(is_over_t, 0.0, settings.gamma))

    key, env_state = actor
    key, steps_key = jax.random.split(key)
    env_state, (observation, *others) = jax.lax.scan(step, env_state, jax.random.split(steps_key, num_steps))
    observation = jnp.concatenate([observation, jax.vmap(CATCH.observe)(env_state)[None]])
    return (key, env_state), Trajectory(observation, *others)


def learned_target(eta: hk.Params, theta: hk.Params, trajectory: Trajectory, settings: Settings) -> Array:
    """G = g_η(τ), [T, B] (section 3.2), of Rₜ₊₁, γₜ₊₁, v(Sₜ₊₁), π(Sₜ, Aₜ) and μ(Sₜ, Aₜ) (section 5.1)."""
    _, a_tm1, mu_logits_tm1, r_t, discount_t = trajectory
    logits, v = agent.apply(theta, trajectory.observation, settings)
    pi_a = rlax.batched_index(jax.nn.softmax(logits[:-1]), a_tm1)
    mu_a = rlax.batched_index(jax.nn.softmax(mu_logits_tm1), a_tm1)
    v_t = jnp.where(discount_t > 0, v[1:], 0.0)  # after an end, v[1:] is of another episode
    return meta_network.apply(eta, jnp.stack([r_t, discount_t, v_t, pi_a, mu_a], axis=-1), discount_t == 0, settings)


def actor_critic_loss(logits_tm1: Array, a_tm1: Array, advantage: Array, error: Array, settings: Settings) -> Array:
    """-advantage log π(S, A) + c₁ ½ (G - v(S))² - c₂ H(π(S)), summed: a step down it is that of Eq. 10 or 11."""
    log_pi = jax.nn.log_softmax(logits_tm1)
    entropy = -jnp.sum(jnp.exp(log_pi) * log_pi, axis=-1)
    losses = -advantage * rlax.batched_index(log_pi, a_tm1) + settings.value_cost * 0.5 * jnp.square(error)
    return jnp.sum(losses - settings.entropy_cost * entropy)


def inner_loss(theta: hk.Params, g: Array, trajectory: Trajectory, settings: Settings) -> Array:
    """Eq. 10. For its gradient G is a constant, but the meta-gradient goes through G: so G is an argument."""
    logits, v = agent.apply(theta, trajectory.observation, settings)
    advantage = g - jax.lax.stop_gradient(v[:-1])
    return actor_critic_loss(logits[:-1], trajectory.a_tm1, advantage, g - v[:-1], settings)


def outer_loss(theta: hk.Params, trajectory: Trajectory, settings: Settings) -> Array:
    """Eq. 11, with V-trace (section 5.1), as θ is M updates away from the one that acted."""
    _, a_tm1, mu_logits_tm1, r_t, discount_t = trajectory
    logits, v = agent.apply(theta, trajectory.observation, settings)
    rho_tm1 = rlax.categorical_importance_sampling_ratios(logits[:-1], mu_logits_tm1, a_tm1)
    vtrace = jax.vmap(rlax.vtrace_td_error_and_advantage, in_axes=(1, 1, 1, 1, 1, None), out_axes=1)
    returns = vtrace(v[:-1], v[1:], r_t, discount_t, rho_tm1, settings.lambda_)
    return actor_critic_loss(logits[:-1], a_tm1, jax.lax.stop_gradient(returns.pg_advantage), returns.errors, settings)


def updates_and_outer_loss(eta, theta, opt_state, trajectories: Trajectory, validation: Trajectory, settings: Settings):
    """Update θ on each of M trajectories (Eq. 5 and 6); the outer loss of what comes of it is a function of η."""

    def update(carry, trajectory: Trajectory):
        theta, opt_state = carry
        g = learned_target(eta, theta, trajectory, settings)
        gradient = jax.grad(inner_loss)(theta, g, trajectory, settings)
        delta, opt_state = settings.optimizer.update(gradient, opt_state)
        return (optax.apply_updates(theta, delta), opt_state), None

    (theta, opt_state), _ = jax.lax.scan(update, (theta, opt_state), trajectories)
    return outer_loss(theta, validation, settings), (theta, opt_state)


def iteration(state: State, settings: Settings) -> tuple[State, Array]:
    """Act, update θ M times and η once (Eq. 7); also return the mean return of the episodes that ended in τ′."""
    theta, opt_state, eta, meta_opt_state, actor = state
    act_for_update = lambda actor, _: act(theta, actor, settings.num_steps, settings)
    actor, trajectories = jax.lax.scan(act_for_update, actor, length=settings.num_updates)
    actor, validation = act(theta, actor, settings.num_validation_steps, settings)
    meta_gradient_fn = jax.grad(updates_and_outer_loss, has_aux=True)
    meta_gradient, (theta, opt_state) = meta_gradient_fn(eta, theta, opt_state, trajectories, validation, settings)
    delta, meta_opt_state = settings.meta_optimizer.update(meta_gradient, meta_opt_state)
    mean_return = validation.r_t.sum() / (validation.discount_t == 0).sum()
    return State(theta, opt_state, optax.apply_updates(eta, delta), meta_opt_state, actor), mean_return


def main(settings: Settings, num_lines: int, iterations: int) -> None:
    """Learn, with a line of progress every so many iterations; then see which pellets the greedy policy catches."""
    learn = jax.jit(lambda state: jax.lax.scan(lambda state, _: iteration(state, settings), state, length=iterations))
    state = init(jax.random.key(0), settings)
    env_steps = settings.batch_size * (settings.num_updates * settings.num_steps + settings.num_validation_steps)
    for line in range(1, num_lines + 1):
        state, returns = learn(state)
        print(f"{line * iterations * env_steps:10,} steps   return {returns.mean():6.3f}", flush=True)
    logits, _ = agent.apply(state.theta, CATCH.all_observations(), settings)
    greedy = CATCH.expected_return(jax.nn.one_hot(logits.argmax(axis=-1), CATCH.num_actions))  # exact
    print(f"Catch is {'solved' if greedy > 0.999 else 'not solved'}: the greedy policy's return is {greedy:.3f}")


if __name__ == "__main__":
    main(Settings(), num_lines=20, iterations=160)
