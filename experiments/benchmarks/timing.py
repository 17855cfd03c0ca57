"""Timing of the programs: what is timed, runs of it in processes of their own, and tables of medians and ratios."""

import contextlib
import io
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.results import reading
from experiments.runs.compiled_programs import MIN_SECONDS
from experiments.runs.jobs import failure
from frodo.logs import note
from frodo.runs import workers
from frodo.runs.errors import RunError, UsageError
from frodo.runs.provenance import git_revision

PACKAGE = __name__.removesuffix(".benchmarks.timing")  # another one in a wheel
ROOT = Path(__file__).parents[2 + PACKAGE.count(".")]
STATES = ("cold", "cached")
TITLES = ("ms per unit", "s to first step", "s of start and end", "peak MB")

Sample = Mapping[str, float]  # the numbers of one process, by TITLES


class Benchmark(NamedTuple):
    """A program with its arguments, what its speed is counted in, and which one of `PEERS` does the same."""

    unit: str
    program: str
    arguments: str
    peer: str = ""


STEPS, UPDATE, META_STEP = "1000 steps", "update", "meta-step"
UNITS = {STEPS: ("env_steps", 1000), UPDATE: ("update", 1), META_STEP: ("update", 1)}  # so many of a column
_SMALL_AGENT = "--env=toy/grid_world/0 --config.batch_size=64 --config.unroll=16 --config.network.hidden=64,64"
_SMALL_RULE = "--config.validation_unroll=16 --config.rule.lstm=64"
_TRIALS = "--env=trials/4/toy/rule_room/main --rule=impala"
_TRANSFORMER = "--config.network.core_kind=transformer --config.network.core=64"
_LARGE_BATCH = "--env=toy/catch --rule=impala --config.batch_size=256 --steps=2e6"
_DQN = "--env=gymnax/CartPole-v1 --rule=dqn --config.batch_size=10 --config.unroll=1 --config.num_updates=1 --steps=6e5"
_DQN += " --config.replay.capacity=10000 --config.replay.batch_size=128 --config.exploration=250000"
_DQN += " --config.optimizer.learning_rate=2.5e-4 --config.rule.target_period=50 --config.network.hidden"
_PPO = "--rule=ppo --steps=1e6 --config.annealing=10000000 --config.optimizer.learning_rate"
_CARTPOLE = "--env=gymnax/CartPole-v1 --config.network.activation=tanh"
_FIVE = "--config.batch_size=5 --config.unroll=100 --config.epochs=5 --config.minibatches=5"
_PONG = "--env=atari/Pong --rule=ppo --config.batch_size=8 --config.unroll=8 --config.minibatches=4 --steps=384"
_PONG += " --config.annealing=384 --config.optimizer.learning_rate=2.5e-4 --config.network.torso=resnet"
_PONG += " --config.network.channels=4,8,8 --config.network.hidden=256 --config.rule.clip=0.1"
_PONG += " --noconfig.rule.is_value_clipped"
_BREAKOUT = "--env=gymnax/Breakout-MinAtar"
_DISCO103 = "--rule=disco103 --env=toy/catch/8x8"
_ENVS = "--envs=toy/catch/5x5,toy/catch/5x5"

# So long that there are ten rows of metrics after compilation, and no longer. Those with a peer have its settings.
BENCHMARKS = {
    "catch": Benchmark(STEPS, "online", "--env=toy/catch --steps=1e5"),
    "catch_impala": Benchmark(STEPS, "online", "--env=toy/catch --rule=impala --steps=5e5"),
    "catch_a2c": Benchmark(STEPS, "online", "--env=toy/catch --rule=a2c --steps=5e5"),
    "random_walk": Benchmark(STEPS, "online", "--env=toy/random_walk --seeds=0-9 --steps=1e5"),
    "grid_world": Benchmark(STEPS, "online", f"{_SMALL_AGENT} {_SMALL_RULE} --steps=2e5"),
    "grid_world_a2c": Benchmark(STEPS, "online", f"{_SMALL_AGENT} --rule=a2c --steps=1e6"),
    "dqn": Benchmark(STEPS, "online", f"{_DQN}=120,84", "purejaxrl_dqn"),
    "dqn_64": Benchmark(STEPS, "online", f"{_DQN}=64,64", "rejax_dqn"),
    "dqn_host": Benchmark(STEPS, "online", "--env=envpool/CartPole-v1 --rule=dqn --steps=1e4"),
    "ppo": Benchmark(
        STEPS, "online", f"{_CARTPOLE} {_PPO}=2.5e-4 --config.batch_size=4 --config.minibatches=4", "purejaxrl_ppo"
    ),
    "ppo_minatar": Benchmark(
        STEPS, "online", f"{_BREAKOUT} {_PPO}=5e-3 --config.batch_size=64", "purejaxrl_ppo_minatar"
    ),
    "ppo_5": Benchmark(STEPS, "online", f"{_CARTPOLE} {_PPO}=7.5e-4 {_FIVE}", "rejax_ppo"),
    "pong_frodo": Benchmark(STEPS, "online", "--env=atari/Pong --steps=27e3"),
    "pong_impala": Benchmark(STEPS, "online", "--env=atari/Pong --rule=impala --steps=1e4"),
    "ppo_pong": Benchmark(STEPS, "online", _PONG, "cleanba_ppo"),
    "disco103": Benchmark(
        UPDATE, "evaluate", "--rule=disco103 --env=toy/catch/8x8 --seeds=0 --steps=1e4", "disco_rl_eval"
    ),
    "minatar": Benchmark(STEPS, "online", f"{_BREAKOUT} --steps=2e5"),
    "minatar_64": Benchmark(STEPS, "online", f"{_BREAKOUT} --config.rule.lstm=64 --steps=2e5"),
    "minatar_impala": Benchmark(STEPS, "online", f"{_BREAKOUT} --rule=impala --steps=6e5"),
    "trials": Benchmark(STEPS, "online", f"{_TRIALS} --steps=1e6"),
    "trials_transformer": Benchmark(STEPS, "online", f"{_TRIALS} {_TRANSFORMER} --steps=3e5"),
    "one_device": Benchmark(STEPS, "online", _LARGE_BATCH),
    "eight_devices": Benchmark(STEPS, "online", f"{_LARGE_BATCH} --num_devices=8"),
    "population_scalar": Benchmark(META_STEP, "discover", "--rule=frodo --envs=toy/catch,toy/catch --steps=100"),
    "population_disco": Benchmark(META_STEP, "discover", "--envs=toy/catch,toy/catch --steps=10"),
    "harness": Benchmark(META_STEP, "discover", f"--preset=harness {_ENVS} --steps=7", "disco_rl_meta_train"),
}


def run(benchmark: Benchmark, packages: Mapping[str, Path], repeats: int, peers: str) -> dict[str, Any]:
    """Run a benchmark in turns: once cold, then `repeats` times with what the cold process compiled.

    A revision or peer that cannot be run is left out, which is said; not so the first revision.

    Args:
      packages: the folder that the packages are imported from, by revision.
      peers: the folder of the peers' packages, "" to run none.
    Returns:
      `samples` by revision or peer, the `device` and `versions` as the last run has them, and this machine.
    Raises:
      RunError: if the program fails, saying why.
      UsageError: if it wrote no metrics.
    """
    sides = {revision: (benchmark, folder) for revision, folder in packages.items()}
    if peers and benchmark.peer:
        arguments = f"--peer={benchmark.peer} --packages={shlex.quote(str(Path(peers).resolve()))}"
        sides[benchmark.peer] = benchmark._replace(program="benchmarks.peers", arguments=arguments), ROOT
    samples: dict[str, list[Sample]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory(prefix="frodo_benchmark_") as folder:
        for turn in range(1 + repeats):
            for number, name in enumerate(sides):
                if name not in samples:
                    continue
                out = Path(folder, str(number), str(turn))
                try:
                    sample = run_once(*sides[name], out.with_name("compiled"), out)
                except (RunError, UsageError) as error:
                    if not number:
                        raise
                    note(f"{name} is left out: {error}")
                    del samples[name]
                    continue
                samples[name].append(sample)
                what = f"{sides[name][0].program} {sides[name][0].arguments}"
                note(f"{what}, {name}: {STATES[turn > 0]}; {repeats - turn} to go")
        config = reading.read(Path(folder, "0", str(repeats))).config
    return {"samples": samples, "device": config["device"], "versions": config["versions"]} | machine()


def run_once(benchmark: Benchmark, packages: Path, compiled: Path, out: Path) -> Sample:
    """Run a benchmark once, on the cores of this process.

    Args:
      packages: the folder that the packages are imported from.
      compiled: the folder of compiled programs, empty or from an earlier process.
      out: the folder of the run, which is not there yet.
    """
    env = {
        "PYTHONPATH": str(packages),
        "PYTHONSAFEPATH": "1",  # not those of the working folder
        "PYTHONIOENCODING": "utf-8",
        "JAX_COMPILATION_CACHE_DIR": str(compiled),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": str(MIN_SECONDS),  # of revisions before it, too
    }
    command = [
        sys.executable,
        "-m",
        f"{PACKAGE}.{benchmark.program}",
        *shlex.split(benchmark.arguments),
        f"--out={out}",
    ]
    out.mkdir(parents=True)
    with (out / "log.txt").open("w", encoding="utf-8") as log:
        wall = time.monotonic()
        process = subprocess.Popen(command, env=os.environ | env, stdout=log, stderr=subprocess.STDOUT)
        cpu = _cpu_seconds(process)
    if process.returncode:
        raise RunError(f"exit code {process.returncode}: {failure(out)}")
    return read_sample(out, benchmark.unit, {"cpu_seconds": cpu, "seconds": time.monotonic() - wall})


def _cpu_seconds(process: subprocess.Popen) -> float:
    """Wait for the end of a process, which is stopped with this job; return its CPU seconds where the system says."""
    ended = usage = None
    try:
        while not ended and process.returncode is None and not workers.is_cancelled():
            time.sleep(0.05)
            if not hasattr(os, "wait4"):
                process.poll()
                continue
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            process.returncode = os.waitstatus_to_exitcode(status) if ended else None
    finally:
        process.kill()
    if process.returncode is None:
        raise RunError("it was stopped")
    return usage.ru_utime + usage.ru_stime if usage else 0.0


def read_sample(out: Path, unit: str, seconds: Mapping[str, float]) -> Sample:
    """Return the numbers of a run.

    The time per unit is the median over pairs of neighbouring rows. Up to its first step, which is the time of the
    first row without that of the row's units, a run mostly compiles. Start and end are what the process does before
    the run (imports) and after its last row.

    Args:
      out: the run's folder.
      unit: what its speed is counted in, that of all seeds together.
      seconds: of the whole process, by the clocks "cpu_seconds" and "seconds".
    """
    _, config, columns = reading.read(out)
    clock, (column, size) = clock_of(config["device"]), UNITS[unit]
    if missing := {column, clock, "peak_memory_mb"} - set(columns):
        raise RunError(f"its metrics have no {' and no '.join(sorted(missing))}")
    of_first = columns["seed"] == columns["seed"][0]
    if of_first.sum() < 2:
        raise RunError("it wrote one row of metrics, expected at least two")
    at, units = columns[clock][of_first], columns[column][of_first] * len(set(columns["seed"])) / size
    per_unit = 1000 * np.median(np.diff(at) / np.diff(units))
    before = max(at[0] - units[0] * per_unit / 1000, 0.0)
    numbers = (per_unit, before, seconds[clock] - at[-1], columns["peak_memory_mb"].max())
    return dict(zip(TITLES, map(float, numbers), strict=True))


def clock_of(device: str) -> str:
    """Return the column of metrics.csv with the time that counts on a device."""
    return "cpu_seconds" if " cpu " in device and os.name == "posix" else "seconds"


def tables(results: Mapping[str, Any], benchmarks: Mapping[str, Benchmark]) -> str:
    """Return a table of medians, and where there are several revisions or a peer, one of ratios, with lines above them.

    Args:
      benchmarks: what was run, by name.
      results: what `run` returns, with `samples` by benchmark: those of this revision are the first.
    """
    titles = [f"{title}: {state}" for title in TITLES for state in STATES]
    medians, ratios = [["benchmark", "of", "unit", *titles]], [["benchmark", "over", *titles]]
    for name, samples in results["samples"].items():
        columns = [(title, part) for title in TITLES for part in (slice(1), slice(1, None))]
        values = {of: [[one[title] for one in taken[part]] for title, part in columns] for of, taken in samples.items()}
        first, *others = values
        for of in values:
            medians.append(
                [f"`{name}`", of, benchmarks[name].unit, *(f"{statistics.median(x):.4g}" for x in values[of])]
            )
        for other in others:
            pairs = [np.divide(x, y) for x, y in zip(values[first], values[other], strict=True)]
            ratios.append(
                [f"`{name}`", other, *(f"{np.median(x):.2f} ({x.min():.2f} to {x.max():.2f})" for x in pairs)]
            )
    clock = "CPU" if clock_of(results["device"]) == "cpu_seconds" else "wall"
    where = f"{results['device']}, {results['num_cores']} cores of {results['processor']}"
    text = [f"Medians, in {clock} time, with JAX {results['versions']['jax']} on {where}:", "", *_table(medians)]
    if len(ratios) > 1:
        text += ["", "This revision over others, medians of the ratios (smallest to largest):", "", *_table(ratios)]
    return "\n".join(text)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:])]


@contextlib.contextmanager
def revisions(against: str) -> Iterator[dict[str, Path]]:
    """Give the folders of the packages by revision: of this one, and of another as long as it is needed.

    Raises:
      UsageError: if there is no such revision, or no repository.
    """
    with tempfile.TemporaryDirectory(prefix="frodo_revision_") as folder:
        packages = {git_revision(num_digits=7) or "this": ROOT}
        if against:
            if not git_revision():
                raise UsageError(f"--against={against}: this package is installed, expected a checkout with git")
            try:
                commit = git("rev-parse", "--verify", "--end-of-options", f"{against}^{{commit}}").decode().strip()
                with tarfile.open(fileobj=io.BytesIO(git("archive", "--format=tar", commit))) as tar:
                    tar.extractall(folder, filter="data")
            except (OSError, subprocess.CalledProcessError) as error:
                raise UsageError(f"--against={against}: there is no such revision, or no git: {error}") from None
            packages[f"{commit[:7]}, by --against"] = Path(folder)
        yield packages


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout


def machine() -> dict[str, Any]:
    """Return the name of this machine's processor, and how many cores this process may use."""
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        if found := re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M):
            name = found[1]
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"processor": name, "num_cores": num_cores}
