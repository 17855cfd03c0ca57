"""How fast agents learn by programs as data, beside DQN that is written by hand: python -m experiments.benchmarks.lanes

Prints updates of agents per CPU second, side by side in one process, each the median of several turns that alternate:
lanes with the program of DQN, both kinds of lanes of a search with random programs, and a hand-written DQN with the
same agents.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags

from agents.environments.names import make_environment
from frodo.logs import table
from frodo.regimes.program_lanes import BASIC, fits
from meta.programs.equivalence import has_gradient
from meta.programs.evaluation import LISTS, Instructions, assemble, registers_of
from meta.programs.generation import random_program
from meta.programs.lanes import LaneConfig, Lanes, make_lanes
from meta.programs.language import FORMULAS, LOSSES, Program, parse
from toy_envs.base import Environment

NUM_LANES, NUM_STEPS, NUM_TURNS = 32, 100, 7
HIDDEN = ((64, 64), (256, 256))


def by_hand(environment: Environment, config: LaneConfig) -> Lanes:
    """DQN with nothing but what it needs: the same agent, replay and environment as a lane's, and no program."""
    optimizer = optax.adam(config.learning_rate)
    sizes = (int(np.prod(environment.observation_shape)), *config.hidden, environment.num_actions)

    def q_of(params: Any, states: jax.Array) -> jax.Array:
        x = states
        for i, (w, b) in enumerate(params):
            x = x @ w + b
            x = jax.nn.relu(x) if i < len(params) - 1 else x
        return x

    def init(key: jax.Array) -> dict[str, Any]:
        env_key, *keys = jax.random.split(key, len(sizes))
        shapes = zip(keys, sizes[:-1], sizes[1:], strict=True)
        params = [(jax.random.normal(k, (n, m)) / np.sqrt(n), jnp.zeros(m)) for k, n, m in shapes]
        state = environment.initial_state(env_key)
        observation = environment.observe(state).ravel()
        rows = jnp.zeros((config.capacity, len(observation)))
        numbers = jnp.zeros(config.capacity)
        replay = (rows, numbers.astype(jnp.int32), numbers, numbers, rows)
        opt_state, count = optimizer.init(params), jnp.zeros((), jnp.int32)
        return dict(key=key, params=params, slow=params, opt_state=opt_state, env=state, replay=replay, count=count)

    def step(lane: dict[str, Any]) -> dict[str, Any]:
        key, chance_key, action_key, batch_key = jax.random.split(lane["key"], 4)
        state = environment.observe(lane["env"]).ravel()
        epsilon = jnp.maximum(config.epsilon, 1 - lane["count"] / config.exploration)
        at_random = jax.random.randint(action_key, (), 0, environment.num_actions)
        greedy = jnp.argmax(q_of(lane["params"], state[None])[0])
        action = jnp.where(jax.random.uniform(chance_key) < epsilon, at_random, greedy).astype(jnp.int32)
        env, reward, terminated, truncated = environment.transition(lane["env"], action)
        new = (state, action, reward, 1.0 - terminated, environment.observe(env).ravel())
        replay = tuple(x.at[lane["count"] % config.capacity].set(y) for x, y in zip(lane["replay"], new, strict=True))
        is_end = terminated | truncated
        env = jax.tree.map(lambda x, y: jnp.where(is_end, x, y), environment.restart(env), env)
        count = lane["count"] + 1
        drawn = jax.random.randint(batch_key, (config.batch_size,), 0, jnp.minimum(count, config.capacity))
        states, actions, rewards, discounts, next_states = (x[drawn] for x in replay)
        target = rewards + config.discount * discounts * jnp.max(q_of(lane["slow"], next_states), axis=-1)

        def loss(params: Any) -> jax.Array:
            return jnp.mean((q_of(params, states)[jnp.arange(len(actions)), actions] - target) ** 2)

        updates, opt_state = optimizer.update(jax.grad(loss)(lane["params"]), lane["opt_state"])
        params = optax.apply_updates(lane["params"], updates)
        slow = optax.periodic_update(params, lane["slow"], count, config.target_period)
        return dict(key=key, params=params, slow=slow, opt_state=opt_state, env=env, replay=replay, count=count)

    def run(instructions: Any, num: Any, lane: dict[str, Any], num_steps: int) -> dict[str, Any]:
        return jax.lax.scan(lambda lane, _: (step(lane), None), lane, length=num_steps)[0]

    return Lanes(init, run)


def stack(programs: list[Program], lists: tuple) -> Instructions:
    return jax.tree.map(lambda *x: np.stack(x), *(assemble(LOSSES, one, registers_of(lists)) for one in programs))


def random_programs(num: int, is_basic: bool) -> list[Program]:
    """Programs as a search from `Q(s)[a]` has them in its lanes, for two networks or for all: those with a gradient."""
    rng, start, found = np.random.default_rng(0), parse(LOSSES, "Q(s)[a]"), list[Program]()
    while len(found) < num:
        program = random_program(LOSSES, rng, start)
        if fits(program, BASIC, has_draws=False) == is_basic and has_gradient(program):
            found.append(program)
    return found


def turn(functions: Lanes, instructions: Instructions) -> tuple[Callable[[], float], float]:
    """Compile; return what runs the lanes once and says how many CPU seconds it took, and those of compilation."""
    longest = int(np.max(instructions.num))
    run = jax.jit(
        lambda one, lanes: jax.vmap(lambda a, b: functions.run(a, longest, b, NUM_STEPS))(one, lanes), donate_argnums=1
    )
    lanes = jax.jit(jax.vmap(functions.init))(jax.random.split(jax.random.key(0), NUM_LANES))
    before = time.process_time()
    compiled = run.lower(instructions, lanes).compile()
    compilation = time.process_time() - before
    kept = [jax.block_until_ready(compiled(instructions, lanes))]

    def again() -> float:
        before = time.process_time()
        kept[0] = jax.block_until_ready(compiled(instructions, kept[0]))
        return time.process_time() - before

    return again, compilation


def main(argv: list[str]) -> None:
    del argv
    environment = make_environment(flags.FLAGS.env, 1, 0)
    assert isinstance(environment, Environment)
    rows = []
    for hidden in HIDDEN:
        config = LaneConfig(hidden=hidden, capacity=10_000, num_episodes=10**6, max_steps=10**9)
        lanes = make_lanes(environment, config, BASIC, has_draws=False)
        dqn = stack([parse(LOSSES, FORMULAS["dqn"])] * NUM_LANES, BASIC)
        cases = {
            "DQN by hand": turn(by_hand(environment, config), dqn),
            "lanes, DQN": turn(lanes, dqn),
            "lanes, random programs": turn(lanes, stack(random_programs(NUM_LANES, True), BASIC)),
            "lanes for all programs": turn(
                make_lanes(environment, config), stack(random_programs(NUM_LANES, False), LISTS)
            ),
        }
        seconds = [{name: again() for name, (again, _) in cases.items()} for _ in range(NUM_TURNS)]
        for name, (_, compilation) in cases.items():
            own = statistics.median(x[name] for x in seconds)
            share = statistics.median(x["DQN by hand"] / x[name] for x in seconds)
            rows.append(
                {
                    "": f"{name}, {hidden}",
                    "updates / CPU s": f"{NUM_LANES * NUM_STEPS / own:,.0f}",
                    "of that by hand": f"{share:.2f}",
                    "compilation, CPU s": f"{compilation:.1f}",
                }
            )
    print(table(rows))


if __name__ == "__main__":
    flags.DEFINE_string("env", "gymnax/CartPole-v1", "Environment in JAX.")
    app.run(main)
