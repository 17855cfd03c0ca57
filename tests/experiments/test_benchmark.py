"""Benchmarks: what is measured, what is compared with what, and what is said where something cannot be run."""

import json
import os
import re
import subprocess
import sys

import pytest

from experiments.benchmarks import peers, timing
from experiments.benchmarks.growth import GROWTH, SIZES, draw
from experiments.benchmarks.timing import BENCHMARKS, STEPS, TITLES, UPDATE, Benchmark
from experiments.results import reading
from frodo import files
from frodo.runs.errors import RunError, UsageError

TINY = Benchmark(STEPS, "online", "--env=toy/random_walk --config.rule.lstm=4 --config.num_updates=1 --steps=1e4")


def write_run(folder, rows, columns=("seed", "update", "env_steps", "cpu_seconds", "seconds", "peak_memory_mb")):
    files.write_json(folder / "config.json", {"device": "1 x cpu cpu", "versions": {"jax": "1"}})
    files.write_csv(folder / "metrics.csv", [dict(zip(columns, row, strict=True)) for row in rows])


def test_the_numbers_of_a_run(tmp_path):
    times = ((1, 100, 9.0, 10.0, 500), (2, 200, 9.5, 11.0, 600), (4, 400, 10.1, 12.0, 550), (5, 500, 14.1, 15.0, 550))
    write_run(tmp_path, [(seed, *row) for row in times for seed in (0, 1)])
    took = {"cpu_seconds": 16.1, "seconds": 18.0}
    numbers = timing.read_sample(tmp_path, STEPS, took)
    # The first row's 0.2 took 0.5 s of the 9.0.
    # Of 500 ms for 0.2, 600 ms for 0.4 and 4000 ms for 0.2 of a thousand steps.
    assert numbers == pytest.approx(dict(zip(TITLES, (500 / 0.2, 8.5, 2.0, 600), strict=True)))
    assert timing.read_sample(tmp_path, UPDATE, took)["ms per unit"] == pytest.approx(500 / 2)


def test_a_run_without_numbers_says_so(tmp_path):
    write_run(tmp_path, [(0, 1, 100, 9.0, 10.0, 500), (1, 1, 100, 9.0, 10.0, 500)])
    with pytest.raises(RunError, match="it wrote one row"):
        timing.read_sample(tmp_path, STEPS, {})
    write_run(tmp_path, [(0, 1, 1)] * 3, columns=("seed", "env_steps", "seconds"))
    with pytest.raises(RunError, match="no (cpu_seconds and no peak_memory_mb|peak_memory_mb and no cpu_seconds)"):
        timing.read_sample(tmp_path, STEPS, {})


@pytest.mark.parametrize(("device", "clock"), [("1 x cpu cpu", "CPU"), ("1 x gpu NVIDIA H100", "wall")])
def test_tables_have_medians_and_ratios_of_pairs(device, clock):
    of = lambda *values: [dict.fromkeys(TITLES, value) for value in values]
    samples = {"new": of(8.0, 3.0, 6.0, 4.0), "old": of(2.0, 1.0, 4.0, 8.0)}
    results = {"device": device, "versions": {"jax": "1.2"}, "processor": "P", "num_cores": 2}
    text = timing.tables(results | {"samples": {"disco103": samples}}, BENCHMARKS).splitlines()
    header = ["benchmark", "of", "unit", "ms per unit: cold", "ms per unit: cached", "s to first step: cold"]
    cells = lambda line: [cell.strip() for cell in line.split("|")[1:-1]]
    assert text[0] == f"Medians, in {clock} time, with JAX 1.2 on {device}, 2 cores of P:"
    assert cells(text[2])[:6] == header and cells(text[4]) == ["`disco103`", "new", "update", *["8", "4"] * 4]
    assert text[7] == "This revision over others, medians of the ratios (smallest to largest):"
    assert cells(text[11])[:4] == ["`disco103`", "old", "4.00 (4.00 to 4.00)", "1.50 (0.50 to 3.00)"]


@pytest.mark.parametrize("failing", ["", "then", "benchmarks.peers"])
def test_revisions_and_peers_take_turns_and_one_that_fails_is_left_out(tmp_path, monkeypatch, capfd, failing):
    ran = []

    def run_once(case, packages, compiled, out):
        had = compiled.exists()
        name = case.program if packages == timing.ROOT else packages.name
        if name == failing:
            raise UsageError("it is not there")
        compiled.mkdir(parents=True, exist_ok=True)
        write_run(out, [(0, 1, 1, 1.0, 1.0, 1)] * 2)
        ran.append((name, had))
        return {"ms per unit": 2.0}

    monkeypatch.setattr(timing, "run_once", run_once)
    packages = {"this": tmp_path / "now", "other": tmp_path / "then"}
    case = TINY._replace(peer="purejaxrl_dqn")
    results = timing.run(case, packages, 2, "peers")
    turns = [name for name in ("now", "then", "benchmarks.peers") if name != failing]
    assert ran == [(name, turn > 0) for turn in range(3) for name in turns]
    assert [*map(len, results["samples"].values())] == [3] * len(turns)
    assert capfd.readouterr().err.count(" is left out: it is not there") == bool(failing)
    assert [*map(len, timing.run(case, packages, 1, "")["samples"].values())] == [2] * (1 + (failing != "then"))
    assert (results["device"], results["versions"]) == ("1 x cpu cpu", {"jax": "1"})


@pytest.mark.long
def test_another_revision_is_run_beside_this_one_and_what_fails_is_left_out(start, tmp_path, monkeypatch):
    output = tmp_path / "new" / "benchmark.json"
    monkeypatch.setitem(BENCHMARKS, "random_walk", TINY)
    monkeypatch.setitem(BENCHMARKS, "catch", TINY._replace(program="nothing"))
    arguments = ("--only=random_walk,catch", "--against=HEAD", "--repeats=1", f"--out={output}")
    done = start("experiments.benchmark", *arguments)
    assert done.returncode == 1, done.stderr
    assert re.search(r"^catch is left out: exit code 1: .*No module named .*nothing", done.stderr, re.MULTILINE)
    assert done.stderr.splitlines()[-1] == "error: 1 of 2 benchmarks could not be run: catch"
    assert (
        done.stdout.startswith("Medians, in CPU time, of ") and done.stdout.count("| `random_walk` | 1000 steps |") == 2
    )
    results = json.loads(output.read_bytes())
    assert results["num_cores"] >= 1 and results["device"].startswith("1 x ") and "jax" in results["versions"]
    assert len(results["samples"]["random_walk"]) == 2
    for sample in [one for of in results["samples"]["random_walk"].values() for one in of]:
        assert 0 < sample["s to first step"] and 0 < sample["s of start and end"]
        assert 0 < sample["ms per unit"] < 1000 and 100 < sample["peak MB"] < 10_000


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--against=nothing", "--against=nothing: there is no such revision, or no git: "),
        ("--repeats=0", "--repeats=0: give "),
        ("--out=.", "--out=. is a folder: name a file"),
    ],
)
def test_a_mistake_is_answered_in_one_line(start, flag, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = start("experiments.benchmark", flag)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: {message}") and not list(tmp_path.iterdir())


def test_an_unknown_name_is_left_out_and_the_rest_goes_on(start, tmp_path, monkeypatch):
    monkeypatch.setitem(BENCHMARKS, "broken", TINY._replace(program="no_program"))
    done = start("experiments.benchmark", "--only=cach,broken", f"--out={tmp_path / 'out.json'}")
    first, *_, second, last = done.stderr.splitlines()
    assert done.returncode == 1 and first.endswith("(did you mean 'catch'?)")
    assert first.startswith("--only=cach,broken: cach is left out: expected growth or one of catch, ")
    assert "No module named experiments.no_program" in second and second.startswith("broken is left out: ")
    assert last == "error: 2 of 2 benchmarks could not be run: cach, broken"


WRAPPERS = "class LogWrapper: pass"
DQN = """
from brax import envs
from gymnax.wrappers.purerl import LogWrapper
import gymnax, jax, wandb
def make_train(settings):
    environment, params = gymnax.make(settings["ENV_NAME"])
    def train(key):
        shown, state = environment.reset(key, params)
        shown, state, reward, done, info = environment.step(key, state, 0, params)
        return jax.tree_map(abs, reward)
    return train
"""


def test_a_peer_is_timed_as_a_run_is(tmp_path):
    pytest.importorskip("gymnax")
    command = [sys.executable, "-m", "experiments.benchmarks.peers"]
    start = lambda: subprocess.run([*command, *arguments], capture_output=True, text=True)  # it changes modules
    folder = tmp_path / "peers" / "purejaxrl" / "purejaxrl"
    arguments = ("--peer=purejaxrl_dqn", f"--packages={tmp_path / 'peers'}", f"--out={tmp_path / 'out'}")
    done = start()
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.endswith(f"there is no {folder.parent}, of the peer purejaxrl_dqn\n")
    files.write(folder / "wrappers.py", WRAPPERS.encode())
    files.write(folder / "dqn.py", DQN.encode())
    done = start()
    assert done.returncode == 0, done.stderr
    sample = timing.read_sample(tmp_path / "out", STEPS, {"cpu_seconds": 60.0, "seconds": 60.0})
    assert 0 <= sample["ms per unit"] < 1 and 0 < sample["s to first step"] < 60
    columns = reading.read(tmp_path / "out").columns
    assert columns["update"].tolist() == [1, 2, 3, 4, 5, 6] and columns["env_steps"][-1] == 6e5


CLEANBA = """
import sys
import envpool, jax, numpy as np
class AgentParams:
    pass
environment = envpool.make("CartPole-v1", env_type="gym", num_envs=2)
environment.num_envs = len(environment.reset())
shown, reward, done, info = environment.step(np.zeros(2, np.int32))
assert len(done) == 2 == environment.num_envs and "env_id" in info and "name" not in AgentParams()
environment.close()
update = jax.pmap(abs)
for _ in range(int(sys.argv[-1]) // 64):
    update(np.zeros((1, 2)))
"""


def test_updates_of_cleanba_are_rows(tmp_path):
    pytest.importorskip("envpool")
    pytest.importorskip("gymnax")
    files.write(tmp_path / "cleanba" / "cleanba" / "cleanba_ppo.py", CLEANBA.encode())
    arguments = ("--peer=cleanba_ppo", f"--packages={tmp_path}", f"--out={tmp_path / 'out'}")
    command = [sys.executable, "-m", "experiments.benchmarks.peers", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert reading.read(tmp_path / "out").columns["env_steps"].tolist() == [64 * n for n in range(1, 7)]


def test_all_peers_are_known_and_no_other():
    assert {case.peer for case in BENCHMARKS.values()} - {""} == set(peers.PEERS)


def test_growth_is_drawn(tmp_path):
    samples = {name: [dict.fromkeys(TITLES, 2.0)] * 2 for name in GROWTH if name.startswith(("unroll", "seeds"))}
    assert not draw(tmp_path / "none.png", {"unroll_16": samples["unroll_16"]}) and not list(tmp_path.iterdir())
    assert draw(tmp_path / "two.png", samples) and (tmp_path / "two.png").stat().st_size > 10_000


PROBE = """
import json, os, signal, sys
from pathlib import Path
how, out = (argument.partition("=")[2] for argument in sys.argv[1:])
if how == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if how == "refused":
    sys.exit("a line\\nerror: there is no such thing")
if how == "silent":
    sys.exit(3)
says = {"device": "1 x cpu cpu", "compiled": os.environ["JAX_COMPILATION_CACHE_DIR"]}
Path(out, "config.json").write_text(json.dumps(says))
rows = ["seed,env_steps,cpu_seconds,seconds,peak_memory_mb", "0,1000,0,0,7", "0,2000,0,0,7"]
Path(out, "metrics.csv").write_text("\\n".join(rows))
Path(out, "summary.json").touch()
while how == "busy" and os.times().user + os.times().system < 0.5:
    pass
"""


@pytest.fixture
def probe(tmp_path):
    """Return a function that runs, as a benchmark, a program that is in other packages than these."""
    (tmp_path / "packages" / "experiments").mkdir(parents=True)
    (tmp_path / "packages" / "experiments" / "__init__.py").touch()
    (tmp_path / "packages" / "experiments" / "probe.py").write_text(PROBE)

    def run(how, out="out"):
        case = Benchmark(STEPS, "probe", f"--how={how}")
        return timing.run_once(case, tmp_path / "packages", tmp_path / "compiled", tmp_path / out)

    return run


def test_a_process_has_its_packages_and_folder(probe, tmp_path):
    probe("busy", out="before")  # does not count
    sample = probe("busy")
    config = json.loads((tmp_path / "out" / "config.json").read_bytes())
    assert config["compiled"] == str(tmp_path / "compiled")
    assert 0.45 < sample["s of start and end"] < 1 and sample["peak MB"] == 7


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("killed", "^exit code -9: it said nothing"),
        ("refused", "^exit code 1: there is no such thing$"),
        ("silent", "^exit code 3: it said nothing"),
    ],
)
def test_a_process_that_fails_says_why(probe, how, message):
    with pytest.raises(RunError, match=message):
        probe(how)


ONE_OF_EACH = [pytest.param(f"{name}_{sizes[0]}", marks=pytest.mark.long) for name, (*_, sizes) in SIZES.items()]


@pytest.mark.parametrize("name", [*BENCHMARKS, *ONE_OF_EACH])
def test_the_arguments_are_understood(start, name, tmp_path):
    if name == "disco103" and not os.environ.get("DISCO103_WEIGHTS"):
        pytest.skip("DISCO103_WEIGHTS does not name the published weights")
    (tmp_path / "config.json").touch()
    case = (BENCHMARKS | GROWTH)[name]
    done = start(f"experiments.{case.program}", *case.arguments.split(), f"--out={tmp_path}")
    assert (done.returncode, done.stdout) == (2, "") and "--overwrite replaces" in done.stderr, done.stderr
