"""What a change of shape must not change: the metrics of the first 20 iterations of short runs by public calls.

tests/data/unchanged.json has them as they were, of every kind of rule and all three regimes, also on a host, on two
devices, and with what an agent may have besides: a memory, a curriculum, a teacher, replay, passes, a sliding window.

    python -m tests.unchanged               compare all runs with the file, and print what differs, if only in a bit
    python -m tests.unchanged impala ppo    of some runs
    python -m tests.unchanged --write       write the file: where a change is meant to change numbers; also of some

Programs are compiled as the tests compile them, so that both give the same numbers. Other processors round otherwise,
which learning enlarges: the exit code is 1 where a number differs by 1e-4 of the largest of its array, or by more.

On the host a thread acts with the newest θ that it has, which is a matter of time. Numbers are the same each time where
actions are drawn uniformly, as at the start of a very long exploration, or where a life goes on by one iteration at a
time, in environments that `reset` brings back to the same start.
"""

import contextlib
import dataclasses
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import dm_env
import jax
import numpy as np

import frodo
from frodo.regimes.evolution import Evolution
from frodo.regimes.program_lanes import Task
from frodo.regimes.search_settings import EvolutionConfig
from meta.programs.lanes import LaneConfig
from meta.programs.language import LOSSES, to_formula
from tests.recorded import Difference, compare
from toy_envs.base import DmEnv
from toy_envs.catch import Catch
from toy_envs.random_walk import RandomWalk
from toy_envs.rule_room import RuleRoom

ROOT = Path(__file__).parents[1]
FILE = ROOT / "tests" / "data" / "unchanged.json"
TOLERANCE = 1e-4
PROGRAMS = 40  # of a search
Numbers = dict[str, np.ndarray]

CATCH = Catch(5, 5)
ROOMS = frodo.Trials(RuleRoom("easy", 16), 2)
HORIZON = ROOMS.horizon
MODEL = frodo.NetworkConfig("mlp", (16,), action_model=8, head_stddev=0.1)
MEMORY = frodo.NetworkConfig("mlp", (16,), core=8)
# With a smaller epsilon, the rounding of gradients near 0 becomes whole steps.
ADAM = dataclasses.replace(frodo.adam(1e-2), epsilon=1e-3)
REPLAY = frodo.ReplayConfig(capacity=16, batch_size=8, fresh=0.5)
AGENT: dict[str, Any] = dict(
    batch_size=4, unroll=4, num_updates=1, network=frodo.NetworkConfig("mlp", (16,)), optimizer=ADAM
)
META: dict[str, Any] = AGENT | dict(validation_unroll=5, num_updates=2, gradient_mode="reverse", meta_optimizer=ADAM)
SCALAR = ("reward", "discount", "next_value")  # what FRODO's targets are made of where nothing depends on a policy
# The share of random actions stays 1 to the last digit but few: how old the θ is that acts decides nothing.
UNIFORM: dict[str, Any] = dict(exploration=2**31 - 1, outer=frodo.OuterConfig())


class Repeated(dm_env.Environment):
    """Catch, whose first episode after `reset` is always the same, and so are the next ones."""

    def __init__(self, seed: int):
        self._seed = seed
        self._catch = DmEnv(CATCH, seed)

    def reset(self) -> dm_env.TimeStep:
        self._catch = DmEnv(CATCH, self._seed)
        return self._catch.reset()

    def step(self, action: int) -> dm_env.TimeStep:
        return self._catch.step(action)

    def observation_spec(self):
        return self._catch.observation_spec()

    def action_spec(self):
        return self._catch.action_spec()


def life(environment: Any, rule: Any, steps: int, num: int = 10, num_alone: int = 10, **settings: Any) -> Numbers:
    """Live for some iterations of so many steps, then for others one by one: these say how far they moved θ and η."""
    first = dict(num_steps=num * steps, key=jax.random.key(0))
    found = [frodo.discover_online(environment, rule, **first, **settings)]
    found.extend(found[-1].go_on(steps) for _ in range(num_alone))
    assert found[-1].metrics["env_steps"].tolist() == [steps * (1 + i) for i in range(num + num_alone)]
    own = {"params": [one.params for one in found], "meta_params": [one.meta_params for one in found]}
    return found[-1].metrics | {name: np.array(list(map(distance, all_[1:], all_))) for name, all_ in own.items()}


def distance(tree: Any, other: Any) -> float:
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    return float(np.sqrt(sum(np.sum(np.square(np.float64(x) - np.float64(y))) for x, y in pairs)))


def online_frodo() -> Numbers:
    rule = frodo.make_rule("frodo", lstm=8, consistency_cost=0.1)
    return life(CATCH, rule, 4 * (2 * 4 + 5), **META | dict(gradient_mode="mixed"))


def prediction() -> Numbers:
    settings = dict(kind="prediction", discount=1.0, reduction="mean", next_value_gradient="literal")
    rule = frodo.make_rule("frodo", lstm=8, inputs=SCALAR, **settings)
    own = dict(batch_size=1, unroll=16, validation_unroll=16, num_updates=3, stride=1)
    own |= dict(replay=frodo.ReplayConfig(capacity=8, batch_size=2, fresh=0.5))
    own |= dict(network=frodo.NetworkConfig("tabular", ()), outer=frodo.OuterConfig(discount=1.0))
    return life(RandomWalk(), rule, 1 * (1 * 16 + 16), **META | own)


def learned_loss() -> Numbers:
    rule = frodo.make_rule("learned_loss", lstm=8)
    return life(CATCH, rule, 4 * (1 * 4 + 4), **META | dict(validation_unroll=4, is_validation_kept=True))


def disco() -> Numbers:
    sizes = dict(prediction_size=7, max_value=3, lstm=8, lifetime_lstm=4, action_embedding=(8, 4))
    own = dict(num_updates=1, network=MODEL, gradient_mode="mixed", outer=frodo.OuterConfig(value_hidden=(16,)))
    return life(CATCH, frodo.make_rule("disco", discount=0.99, **sizes), 4 * (1 * 4 + 5), **META | own)


def dqn() -> Numbers:
    replay = frodo.ReplayConfig(capacity=64, batch_size=8, fresh=0.0)
    rule = frodo.make_rule("dqn", target_period=4)
    return life(CATCH, rule, 4 * 1, **AGENT | dict(unroll=1, exploration=40, replay=replay))


def trials() -> Numbers:
    own = dict(network=MEMORY, unroll=HORIZON, validation_unroll=HORIZON, is_acting_interleaved=True)
    return life(ROOMS, frodo.make_rule("frodo", lstm=8), 4 * (2 * HORIZON + HORIZON), **META | own)


def curriculum() -> Numbers:
    chosen = frodo.CurriculumConfig("plr", num_train=2, capacity=8, replay=0.5)
    return life(ROOMS, "impala", 4 * HORIZON, **AGENT | dict(network=MEMORY, unroll=HORIZON, curriculum=chosen))


def distilled() -> Numbers:
    """Taught for ten iterations by an agent that has learned nothing but differs."""
    teacher = frodo.discover_online(CATCH, "impala", num_steps=16, key=jax.random.key(1), **AGENT).teacher
    settings = dict(teacher=teacher, distillation=frodo.DistillationConfig(steps=10 * 16))
    return life(CATCH, "impala", 4 * 4, **AGENT, **settings)


def two_devices() -> Numbers:
    return life(CATCH, frodo.make_rule("frodo", lstm=8), 4 * (2 * 4 + 5), num_devices=2, **META)


def value_based() -> Any:
    return frodo.make_rule("frodo", kind="value_based", lstm=8, inputs=SCALAR)


def host_frodo() -> Numbers:
    return life([DmEnv(CATCH, i) for i in range(4)], value_based(), 4 * (2 * 4 + 5), 20, 0, **META | UNIFORM)


def population(environments: Any, rule: Any, budgets: tuple[int, ...], **settings: Any) -> Numbers:
    how = dict(num_meta_steps=20, key=jax.random.key(0), num_devices=1)
    return frodo.discover(environments, rule, budgets=budgets, **how, **settings).metrics


def population_with_host() -> Numbers:
    """An agent on the host is not reset here: how far its thread is by then is a matter of time."""
    environments = {"pure": CATCH, "host": [DmEnv(CATCH, i) for i in range(4)]}
    replay = frodo.ReplayConfig(capacity=64, batch_size=8, fresh=0.5)
    return population(environments, frodo.make_rule("program"), (10**9,), **META | UNIFORM | dict(replay=replay))


def evolution() -> Numbers:
    lane = LaneConfig(hidden=(8,), learning_rate=1e-3, exploration=50, capacity=100, batch_size=8, num_episodes=20)
    sizes = dict(population_size=10, tournament_size=4, num_lanes=8, num_full_lanes=8, chunk=20)
    search = Evolution([Task(CATCH, -1.0, 1.0)], EvolutionConfig(**sizes, num_seeds=2, hurdle=0.2, lane=lane), 0)
    while len(search.records) < PROGRAMS or not search.is_idle:
        search.step(PROGRAMS)
    formulas = [to_formula(LOSSES, record.program) for record in search.records]
    return {"score": np.array([record.score for record in search.records]), "formula": np.array(formulas)}


META_METRICS = ("outer_loss", "meta_gradient_norm")
# Of each run what it gives, and of that what is kept.
RUNS: dict[str, tuple[Callable[[], Numbers], tuple[str, ...]]] = {
    "frodo": (online_frodo, (*META_METRICS, "regulariser", "meta_params")),
    "prediction": (prediction, ("return", *META_METRICS, "meta_params")),
    "learned_loss": (learned_loss, (*META_METRICS, "params", "meta_params")),
    "disco": (disco, (*META_METRICS, "params", "meta_params")),
    "impala": (
        lambda: life(CATCH, "impala", 4 * 4, **AGENT, replay=REPLAY, annealing=400),
        ("return", "params"),
    ),
    "ppo": (lambda: life(CATCH, "ppo", 4 * 4, **AGENT, epochs=2, minibatches=2), ("return", "params")),
    "muesli": (
        lambda: life(CATCH, "muesli", 4 * 4, **AGENT | dict(network=MODEL, replay=REPLAY)),
        ("return", "entropy", "params"),
    ),
    "dqn": (dqn, ("return", "params")),
    "trials": (trials, (*META_METRICS, "target", "meta_params")),
    "curriculum": (curriculum, ("return", "params")),
    "distilled": (distilled, ("return", "teacher_kl", "params")),
    "two_devices": (two_devices, (*META_METRICS, "target", "meta_params")),
    "host_impala": (
        lambda: life([Repeated(i) for i in range(4)], "impala", 4 * 4, 1, 7, **AGENT),  # eight: each is compiled anew
        ("return", "params"),
    ),
    "host_frodo": (host_frodo, ("return", *META_METRICS)),
    "population": (
        lambda: population({"a": CATCH, "b": CATCH}, frodo.make_rule("frodo", lstm=8), (4 * 52, 9 * 52), **META),
        (*META_METRICS, "return/a", "lifetimes"),
    ),
    "population_with_host": (population_with_host, (*META_METRICS, "return/pure", "return/host")),
    "evolution": (evolution, ("score", "formula")),
}


def run(name: str) -> Numbers:
    """Return what a run gives, of that what is kept; for two devices in a process that has as many."""
    if name == "two_devices" and jax.device_count() < 2:
        command = [sys.executable, "-m", "tests.unchanged", "--show", name]
        environment = os.environ | {"JAX_NUM_CPU_DEVICES": "2"}
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return numbers(json.loads(done.stdout))
    function, kept = RUNS[name]
    with contextlib.redirect_stderr(io.StringIO()):  # the progress
        found = function()
    arrays = {key: np.asarray(found[key]) for key in kept}
    return {key: x if x.dtype.kind == "U" else x.astype(np.float32) for key, x in arrays.items()}


def plain(found: Numbers) -> dict[str, Any]:
    """Return arrays as JSON holds them: numbers in as many digits as tell them from all other float32."""
    texts = {key: x.tolist() if x.dtype.kind == "U" else " ".join(map(str, x)) for key, x in found.items()}
    for key, x in numbers(texts).items():
        np.testing.assert_array_equal(x, found[key])
    return texts


def numbers(texts: dict[str, Any]) -> Numbers:
    return {key: np.array(x.split(), np.float32) if isinstance(x, str) else np.array(x) for key, x in texts.items()}


def recorded() -> dict[str, Any]:
    """Return what the file has, by run."""
    return json.loads(FILE.read_text())


def difference(name: str) -> Difference:
    return compare(run(name), numbers(recorded()[name]))


def write(names: Iterable[str]) -> None:
    """Write these runs, and keep others that there are."""
    known = recorded() if FILE.exists() else {}
    known |= {name: plain(run(name)) for name in names}
    FILE.write_text(json.dumps({name: known[name] for name in RUNS if name in known}, indent=1) + "\n")


def main(arguments: list[str]) -> int:
    flags, names = ([x for x in arguments if x.startswith("-") is is_flag] for is_flag in (True, False))
    if unknown := [x for x in names if x not in RUNS] + [x for x in flags if x not in ("--write", "--show")]:
        sys.exit(f"error: {unknown[0]!r} is no run: give some of {', '.join(RUNS)}, or --write")
    names = names or list(RUNS)
    if "--show" in flags:  # what `run` reads
        print(json.dumps(plain(run(names[0]))))
        return 0
    if "--write" in flags:
        write(names)
        return 0
    found = {}
    for name in names:
        print(f"{name}: ", end="", flush=True)
        found[name] = difference(name)
        print(found[name], flush=True)
    num_same = sum(not one.count for one in found.values())
    print(f"{num_same} of {len(found)} the same bit for bit")
    return int(any(not one.worst < TOLERANCE for one in found.values()))


if __name__ == "__main__":
    from tests import conftest  # noqa: F401  # says how programs are compiled, before the first one is

    sys.exit(main(sys.argv[1:]))
