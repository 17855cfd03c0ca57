"""Plans beside the programs that run: python -m experiments.benchmarks.planned

For programs of both regimes the FLOPs and the memory as planned, and as compiled here with full optimisation, and the
median time of a call, on random inputs. FLOPs of a compiled program can be counted on a CPU alone.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from agents.acting import in_jax as acting
from agents.environments.suites import seen
from agents.networks.agent import PRECISIONS
from frodo.devices import cpu_devices, make_mesh
from frodo.logs import quantity, table
from frodo.regimes.learner import build_learner
from frodo.regimes.plan import batch_shape, trajectory_shape, trajectory_shapes
from frodo.regimes.population import make_agent
from frodo.regimes.program_costs import Costs, costs_of, costs_of_compiled
from frodo.settings import population_presets, presets
from frodo.settings.config import make_setup
from meta.updates.lifetime import init_agent_state, make_agent_step
from meta.updates.population import AXIS, make_group_step
from toy_envs.catch import Catch

NUM_CALLS = 10


class Program(NamedTuple):
    """What runs here: its plan, its function and the arguments."""

    planned: Costs
    fn: Callable[..., Any]
    arguments: tuple[Any, ...]


def random_arrays(shapes: Any) -> Any:
    """Return arrays of such shapes: small random numbers and random images, other integers and booleans all zero."""
    rng = np.random.default_rng(0)

    def of(x: Any) -> Any:
        if jnp.issubdtype(x.dtype, jnp.floating):
            return jnp.asarray(0.1 * rng.standard_normal(x.shape, np.float32), x.dtype)
        is_image = x.dtype == jnp.uint8
        return jnp.asarray(rng.integers(256, size=x.shape, dtype=np.uint8)) if is_image else jnp.zeros(x.shape, x.dtype)

    return jax.tree.map(of, shapes)


def pong(precision: str) -> Program:
    config, environment = presets.for_rule("atari/Pong", "frodo"), seen("atari/Pong")
    learner = build_learner(_with_precision(config, precision), environment.num_actions, False)
    state = jax.jit(learner.init)(jax.random.key(0), random_arrays(batch_shape(config, environment)))
    trajectories = random_arrays(trajectory_shapes(config, learner.setup.agent, environment, True))
    return _planned(learner.learn, state, *trajectories)


def small(precision: str, rule: str = "frodo") -> Program:
    config, environment = _with_precision(population_presets.small(rule), precision), Catch(8, 8)
    agent = make_agent(config, setup := make_setup(config, environment.num_actions), environment)
    meta_params = setup.rule.random_meta_params(key := jax.random.key(0), 2)
    actor = acting.init_actor(environment, setup.agent, key, config.batch_size)
    states = jax.tree.map(lambda x: x[None], jax.jit(agent.init)(key, meta_params, actor))
    on = lambda devices: make_group_step(agent, make_mesh(1, devices, AXIS), config.vmap_agents)
    arguments = meta_params, states
    planned = costs_of(on(cpu_devices()), *jax.eval_shape(lambda: arguments))
    return Program(planned, on(jax.devices()), arguments)


def disco(precision: str) -> Program:
    config, environment = _with_precision(population_presets.disco57("disco"), precision), seen("atari/Pong")
    setup = make_setup(config, environment.num_actions)
    meta_params = setup.rule.random_meta_params(key := jax.random.key(0), 2)
    observation = batch_shape(config, environment, config.replay.batch_size)
    state = init_agent_state(setup, key, setup.agent.prepare(random_arrays(observation)))
    shapes = trajectory_shape(setup.agent, observation, config.unroll, environment.num_actions, (1,))
    step = make_agent_step(setup, config.gradient_mode)
    update = lambda meta_params, state, trajectories: step(meta_params, state, trajectories, None)
    return _planned(update, meta_params, state, random_arrays(shapes))


PROGRAMS = {
    "pong": (pong, "Pong, FRODO, the learner's step"),
    "small": (small, "`small` with the scalar rule, a meta-step of the agent on Catch"),
    "small_disco": (lambda precision: small(precision, "disco"), "`small` with π, y and z, the same"),
    "disco": (disco, "`disco103`, an update of an agent on Atari"),
}


def _with_precision(config: Any, precision: str) -> Any:
    return config.replace(network=dataclasses.replace(config.network, precision=precision))


def _planned(fn: Callable[..., Any], *arguments: Any) -> Program:
    return Program(costs_of(fn, *jax.eval_shape(lambda: arguments)), fn, arguments)


def row(program: Program) -> dict[str, str]:
    """Compile and time it; a row of what was planned, and what is."""
    compiled = jax.jit(program.fn).lower(*program.arguments).compile()
    real, seconds = costs_of_compiled(compiled), []
    for _ in range(1 + NUM_CALLS):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*program.arguments))
        seconds.append(time.perf_counter() - start)
    median, planned = statistics.median(seconds[1:]), program.planned
    return {
        "FLOP planned": quantity(planned.flops),
        "compiled": quantity(real.flops) if jax.default_backend() == "cpu" else "-",
        "arguments, MB: planned": f"{planned.arguments / 1e6:.1f}",
        "there": f"{real.arguments / 1e6:.1f}",
        "temporary, MB: planned": f"{planned.temporary / 1e6:.1f}",
        "there ": f"{real.temporary / 1e6:.1f}",
        "ms": f"{1000 * median:.2f}",
        "FLOP/s": quantity(planned.flops / median),
    }


def main(argv: list[str]) -> None:
    del argv
    rows = []
    for name in flags.FLAGS.only:
        make, description = PROGRAMS[name]
        for precision in flags.FLAGS.precisions:
            rows.append({"": description, "layers": precision} | row(make(precision)))
            print(f"{name}, {precision}: {rows[-1]['ms']} ms", flush=True)
    print(f"{jax.devices()[0].device_kind}, JAX {jax.__version__}\n{table(rows)}")


if __name__ == "__main__":
    flags.DEFINE_multi_enum("only", list(PROGRAMS), list(PROGRAMS), "Of these programs; once for each.")
    flags.DEFINE_multi_enum("precisions", list(PRECISIONS), PRECISIONS, "Of the network's layers; once for each.")
    app.run(main)
