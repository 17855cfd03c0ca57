"""What it costs to split a batch: JAX_NUM_CPU_DEVICES=8 taskset -c 0 python -m experiments.benchmarks.split

Prints the CPU time of an iteration over all devices as a multiple of that on one of them, with the same batch: the
median of several turns that alternate in one process. On one core it is what devices and their messages cost.
"""

import statistics
import time
from collections.abc import Callable

import jax
from absl import app, flags

from agents import splitting
from agents.environments.names import make_environment
from frodo.logs import table
from frodo.regimes.learner import build_learner
from frodo.regimes.lifetimes import make_online_program
from frodo.settings import presets
from toy_envs.base import Environment

NUM_TURNS = 5


def turn(environment: Environment, rule: str, batch_size: int, num_devices: int) -> Callable[[], float]:
    """Compile; return what runs some iterations, and says how many CPU seconds they took."""
    config = presets.for_rule(flags.FLAGS.env, rule).replace(batch_size=batch_size)
    program = make_online_program(build_learner(config, environment.num_actions), environment)
    num_iterations = max(1, 1024 // batch_size)
    over = splitting.over(num_devices)
    run = over(jax.jit(program.run, static_argnums=1, donate_argnums=0))
    kept = [run(over(jax.jit(program.init))(jax.random.key(0)), num_iterations)[0]]

    def again() -> float:
        before = time.process_time()
        kept[0] = jax.block_until_ready(run(kept[0], num_iterations)[0])
        return (time.process_time() - before) / num_iterations

    again()
    return again


def main(argv: list[str]) -> None:
    del argv
    given, num_devices = flags.FLAGS, jax.device_count()
    environment = make_environment(given.env, 1, 0)
    assert isinstance(environment, Environment)
    rows = []
    for rule in given.rules:
        for batch_size in map(int, given.batch_sizes):
            one, all_devices = (turn(environment, rule, batch_size, num) for num in (0, num_devices))
            seconds = [(one(), all_devices()) for _ in range(NUM_TURNS)]
            rows.append(
                {
                    "rule": rule,
                    "batch": batch_size,
                    "one device, CPU ms": f"{1000 * statistics.median(x for x, _ in seconds):.1f}",
                    f"{num_devices} devices": f"{statistics.median(y / x for x, y in seconds):.2f}",
                }
            )
    print(table(rows))


if __name__ == "__main__":
    flags.DEFINE_string("env", "toy/catch", "Environment in JAX.")
    flags.DEFINE_list("rules", ["impala", "frodo"], "Rules to compare.")
    flags.DEFINE_list("batch_sizes", ["64", "256", "1024"], "Environments in a batch, which the devices divide.")
    app.run(main)
