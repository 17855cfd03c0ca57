"""What is timed: programs with their arguments. Older revisions take them, too, where possible."""

from typing import NamedTuple

from agents.validation import did_you_mean
from frodo.runs.errors import UsageError


class Unit(NamedTuple):
    """What the speed of a program is counted in: so many of a column of metrics.csv."""

    name: str
    column: str
    size: int = 1


class Benchmark(NamedTuple):
    """A program with its arguments."""

    description: str
    unit: Unit
    program: str
    arguments: str

    @property
    def command(self) -> str:
        return f"python -m experiments.{self.program} {self.arguments}"


STEPS, UPDATE, META_STEP = Unit("1000 steps", "env_steps", 1000), Unit("update", "update"), Unit("meta-step", "update")

_SMALL_AGENT = (
    "--env=toy/grid_world/0 --config.batch_size=64 --config.unroll=16 --config.validation_unroll=16 "
    "--config.network.hidden=64,64"
)
_TRIALS = "--env=trials/4/toy/rule_room/main --rule=impala"
_TWO_AGENTS = "--envs=toy/catch,toy/catch"

# So long that there are ten rows of metrics after compilation, and no longer.
BENCHMARKS = {
    "catch": Benchmark("FRODO on Catch", STEPS, "online", "--env=toy/catch --steps=1e5"),
    "catch_a2c": Benchmark("A2C on Catch", STEPS, "online", "--env=toy/catch --rule=a2c --steps=5e5"),
    "random_walk": Benchmark(
        "FRODO on the random walk, ten seeds", STEPS, "online", "--env=toy/random_walk --seeds=0-9 --steps=1e5"
    ),
    "grid_world": Benchmark(
        "FRODO with small networks", STEPS, "online", f"{_SMALL_AGENT} --config.rule.lstm=64 --steps=2e5"
    ),
    "grid_world_a2c": Benchmark("A2C with the same agent", STEPS, "online", f"{_SMALL_AGENT} --rule=a2c --steps=1e6"),
    "pong_frodo": Benchmark("FRODO on Atari", STEPS, "online", "--env=atari/Pong --steps=27e3"),
    "pong_impala": Benchmark("IMPALA on Atari", STEPS, "online", "--env=atari/Pong --rule=impala --steps=1e4"),
    "disco103": Benchmark(
        "the published rule", UPDATE, "evaluate", "--rule=disco103 --env=toy/catch/8x8 --seeds=0 --steps=1e4"
    ),
    "trials": Benchmark("an LSTM in trials of rule rooms", STEPS, "online", f"{_TRIALS} --steps=1e6"),
    "trials_transformer": Benchmark(
        "a transformer there",
        STEPS,
        "online",
        f"{_TRIALS} --config.network.core_kind=transformer --config.network.core=64 --steps=3e5",
    ),
    "population_scalar": Benchmark(
        "discovery of a scalar rule", META_STEP, "discover", f"--rule=frodo {_TWO_AGENTS} --steps=100"
    ),
    "population_disco": Benchmark("discovery of DiscoRL's targets", META_STEP, "discover", f"{_TWO_AGENTS} --steps=10"),
    "harness": Benchmark(
        "discovery as by the public code", META_STEP, "discover", "--preset=harness --envs=toy/catch --steps=7"
    ),
}


def choose(names: str) -> dict[str, Benchmark]:
    """Return the benchmarks of these names, "" for all; a UsageError names the first that there is not."""
    chosen = names.split(",") if names else list(BENCHMARKS)
    for name in chosen:
        if name not in BENCHMARKS:
            hint = did_you_mean(name, BENCHMARKS) or f": give some of {', '.join(BENCHMARKS)}"
            raise UsageError(f"--only={names}: {name!r} is no benchmark{hint}")
    return {name: BENCHMARKS[name] for name in chosen}
