"""Benchmarks: what is measured, what is compared with what, and what is said where something cannot be run."""

import json
import os
import re
import subprocess

import jax
import numpy as np
import pytest

from experiments import benchmark
from experiments.benchmarks import cases, planned, processes, revisions, tables
from experiments.benchmarks.cases import STEPS, UPDATE, Benchmark
from experiments.benchmarks.tables import OTHER, THIS
from experiments.runs import compiled_programs
from frodo import files
from frodo.regimes.program_costs import costs_of
from frodo.runs.errors import RunError, UsageError

TINY = Benchmark(
    "a tiny run", STEPS, "online", "--env=toy/random_walk --config.rule.lstm=4 --config.num_updates=1 --steps=1e4"
)


def write_run(folder, rows, columns=("seed", "update", "env_steps", "cpu_seconds", "seconds", "peak_memory_mb")):
    files.write_json(folder / "config.json", {"device": "1 x cpu cpu", "versions": {"jax": "1"}})
    files.write_csv(folder / "metrics.csv", [dict(zip(columns, row, strict=True)) for row in rows])


def test_the_numbers_of_a_run(tmp_path):
    times = ((1, 100, 9.0, 10.0, 500), (2, 200, 9.5, 11.0, 600), (4, 400, 10.1, 12.0, 550), (5, 500, 14.1, 15.0, 550))
    write_run(tmp_path, [(seed, *row) for row in times for seed in (0, 1)])
    sample = processes.read_sample(tmp_path, STEPS, {"cpu": 16.1, "wall": 18.0})
    assert sample == pytest.approx(
        {
            "cpu_ms_per_unit": 500 / 0.2,  # of 500 ms for 0.2, 600 ms for 0.4 and 4000 ms for 0.2 of a thousand steps
            "cpu_s_to_first_row": 9.0,
            "cpu_s_of_start_and_end": 2.0,
            "cpu_s": 16.1,
            "wall_ms_per_unit": 1000 / 0.2,
            "wall_s_to_first_row": 10.0,
            "wall_s_of_start_and_end": 3.0,
            "wall_s": 18.0,
            "peak_memory_mb": 600,
        }
    )
    assert processes.read_sample(tmp_path, UPDATE, {"cpu": 0, "wall": 0})["cpu_ms_per_unit"] == pytest.approx(500 / 2)


def test_a_run_without_numbers_says_so(tmp_path):
    write_run(tmp_path, [(0, 1, 100, 9.0, 10.0, 500), (1, 1, 100, 9.0, 10.0, 500)])
    with pytest.raises(RunError, match="it wrote one row"):
        processes.read_sample(tmp_path, STEPS, {"cpu": 1.0, "wall": 1.0})
    write_run(tmp_path, [(0, 1, 1)] * 3, columns=("seed", "env_steps", "seconds"))
    with pytest.raises(RunError, match="no cpu_seconds and no peak_memory_mb"):
        processes.read_sample(tmp_path, STEPS, {"cpu": 1.0, "wall": 1.0})


def test_ratios_are_those_of_pairs():
    taken = [{"x": x} for x in (8.0, 3.0, 6.0, 4.0)]
    others = [{"x": x} for x in (2.0, 1.0, 4.0, 8.0)]
    found = tables.result(TINY, {THIS: taken, OTHER: others})
    assert found["medians"] == {
        THIS: {"cold": {"x": 8.0}, "cached": {"x": 4.0}},
        OTHER: {"cold": {"x": 2.0}, "cached": {"x": 4.0}},
    }
    assert found["ratios"] == {"cold": {"x": [4.0, 4.0, 4.0]}, "cached": {"x": [1.5, 0.5, 3.0]}}
    assert found["samples"][OTHER] == {"cold": others[:1], "cached": others[1:]}
    assert found["command"].startswith("python -m experiments.online --env=toy/random_walk")
    assert "ratios" not in tables.result(TINY, {OTHER: others})


def numbers(clock, values):
    names = [f"{clock}_{name}" for name in ("ms_per_unit", "s_to_first_row", "s_of_start_and_end")]
    return dict(zip([*names, "peak_memory_mb"], values, strict=True))


MACHINE = {
    "processor": "P",
    "num_cores": 2,
    "revisions": {THIS: f"{'a' * 40}-dirty", OTHER: "b" * 40},
    "versions": {"jax": "1.2"},
}


@pytest.mark.parametrize(
    ("device", "clock", "where"),
    [("1 x cpu cpu", "CPU", "2 cores of P"), ("1 x gpu NVIDIA H100", "wall", "1 x gpu NVIDIA H100, 2 cores of P")],
)
def test_tables(device, clock, where):
    one = {"unit": "update", "medians": {THIS: {}}, "ratios": {}}
    for state, scale in (("cold", 1), ("cached", 10)):
        one["medians"][THIS][state] = numbers(clock.lower(), [0.01234 * scale, 9.997 * scale, 0.5, 1304.4])
        one["ratios"][state] = numbers(clock.lower(), [[1.5, 0.5, scale], [2, 2, 2], [1, 1, 1], [1, 1, 1]])
    only_other = {"unit": "update", "medians": {OTHER: one["medians"][THIS]}}
    text = tables.tables(MACHINE | {"device": device, "benchmarks": {"tiny": one, "new": only_other}})
    lines = [[" ".join(cell.split()) for cell in line.split("|")[1:-1]] or line for line in text.splitlines()]
    header = ["benchmark", "unit", "ms per unit: cold", "cached", "s to first row: cold", "cached"]
    header += ["s of start and end: cold", "cached", "peak MB: cold", "cached"]
    assert lines[:3] == [f"Medians, in {clock} time, of aaaaaaa-dirty with JAX 1.2 on {where}:", "", header]
    assert [cell.strip("-") for cell in lines[3]] == ["", ""] + [":"] * 8
    assert lines[4] == ["`tiny`", "update", "0.0123", "0.123", "10", "100", "0.5", "0.5", "1304", "1304"]
    assert lines[5:9] == ["", "aaaaaaa-dirty over bbbbbbb, medians of the ratios (smallest to largest):", "", header]
    ratios = ["1.50 (0.50 to 1.00)", "1.50 (0.50 to 10.00)", "2.00", "2.00", "1.00", "1.00", "1.00", "1.00"]
    assert lines[10:] == [["`tiny`", "update", *ratios]]
    assert len({len(line) for line in text.splitlines()[2:5]}) == 1  # aligned


def test_revisions_take_turns_and_what_fails_is_left_out(tmp_path, monkeypatch, capsys):
    ran = []

    def run_once(case, packages, compiled, out, cores):
        had = compiled.exists()
        compiled.mkdir(parents=True, exist_ok=True)
        write_run(out, [(0, 1, 1, 1.0, 1.0, 1)] * 2)
        ran.append((case.description, packages.name, had, compiled.parent.name))
        if case.description == "new" and packages.name == "then":
            raise RunError("there is no such program")
        if case.description == "breaks" and had:
            raise RunError("it broke")
        return {"wall_s": 2.0}

    monkeypatch.setattr(benchmark, "run_once", run_once)
    packages = {THIS: tmp_path / "now", OTHER: tmp_path / "then"}
    table = {name: TINY._replace(description=name) for name in ("good", "new", "breaks")}
    results = benchmark.run(table, packages, 2, [0])
    turn = [("now", True, THIS), ("then", True, OTHER)]
    cold = [("now", False, THIS), ("then", False, OTHER)]
    assert ran == [
        *(("good", *one) for one in [*cold, *turn, *turn]),
        *(("new", *one) for one in [*cold, turn[0], turn[0]]),
        *(("breaks", *one) for one in [*cold, *turn]),
    ]
    assert results["failed"] == {
        "new": {OTHER: "there is no such program"},
        "breaks": {THIS: "it broke", OTHER: "it broke"},
    }
    assert list(results["benchmarks"]) == ["good", "new"]
    assert list(results["benchmarks"]["new"]["medians"]) == [THIS]
    assert (results["device"], results["versions"]) == ("1 x cpu cpu", {"jax": "1"})
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("1 of 18  good (this): cold, 2 s; 0:0")
    assert "new (other) is left out: there is no such program" in lines
    assert [line for line in lines if line.startswith("18 of 18")] == []  # it was left out


@pytest.mark.long
def test_another_revision_is_run_beside_this_one(start, tmp_path, monkeypatch):
    if not revisions.describe():
        pytest.skip("there is no repository")
    output = tmp_path / "new" / "benchmark.json"
    broken = TINY._replace(program="nothing")
    monkeypatch.setattr(cases, "BENCHMARKS", {"tiny": TINY, "broken": broken})
    done = start("experiments.benchmark", "--against=HEAD", "--repeats=1", f"--out={output}")
    assert done.returncode == 1, done.stderr
    assert re.search(r"^broken \(this\) is left out: .*No module named experiments.nothing$", done.stderr, re.MULTILINE)
    assert done.stderr.splitlines()[-1] == "error: 1 of 2 benchmarks could not be run: broken"
    assert done.stdout.startswith("Medians, in CPU time, of ") and done.stdout.count("| `tiny`    | 1000 steps |") == 2
    results = json.loads(output.read_bytes())
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=revisions.ROOT, capture_output=True, text=True, check=True)
    assert results["revisions"][OTHER] == head.stdout.strip() == results["revisions"][THIS].removesuffix("-dirty")
    assert results["num_cores"] == 1 and results["device"].startswith("1 x ") and "jax" in results["versions"]
    assert set(results["failed"]["broken"]) == {THIS, OTHER}
    for states in results["benchmarks"]["tiny"]["samples"].values():
        (cold,), (cached,) = states["cold"], states["cached"]
        for sample in (cold, cached):
            assert 0 < sample["cpu_s_to_first_row"] < sample["cpu_s"] and 0 < sample["cpu_s_of_start_and_end"]
            assert 0 < sample["cpu_ms_per_unit"] < 1000 and 100 < sample["peak_memory_mb"] < 10_000


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--only=catch,cach", "--only=catch,cach: 'cach' is no benchmark (did you mean 'catch'?)"),
        ("--only=xyz", "--only=xyz: 'xyz' is no benchmark: give some of catch, catch_a2c, "),
        ("--against=nothing", "--against=nothing: "),
        ("--num_cores=9999", "--num_cores=9999: this process may use "),
        ("--repeats=0", "--repeats=0: give "),
        ("--out=.", "--out=. is a folder: name a file"),
    ],
)
def test_a_mistake_is_answered_in_one_line(start, flag, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = start("experiments.benchmark", flag)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: {message}") and not list(tmp_path.iterdir())


def test_a_revision_that_does_not_install_is_refused(tmp_path, monkeypatch):
    root = tmp_path / "repository"
    monkeypatch.setattr(revisions, "ROOT", root)
    check_out = lambda: revisions.check_out("HEAD", tmp_path / "out")
    root.mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    with pytest.raises(UsageError, match="--against=HEAD: fatal: not a git repository"):
        check_out()
    assert revisions.describe() is None
    git = lambda *args: subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=b", *args], cwd=root, check=True)
    commit = lambda: git("add", ".") and git("commit", "--quiet", "--message=x")
    git("init", "--quiet")
    with pytest.raises(UsageError, match="--against=HEAD: there is no such revision"):
        check_out()
    (root / "README.md").touch()
    commit()
    with pytest.raises(UsageError, match="does not install here: frodo is that of .*__init__.py"):
        check_out()
    (root / "experiments").mkdir()
    (root / "experiments" / "online.py").write_text("import no_such_package")
    commit()
    with pytest.raises(UsageError, match="does not install here: .*: No module named 'no_such_package'$"):
        check_out()
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(UsageError, match="--against=HEAD: git cannot be run: "):
        check_out()


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
says = {"compiled": os.environ["JAX_COMPILATION_CACHE_DIR"], "cores": sorted(os.sched_getaffinity(0))}
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

    def run(how, cores=(), out="out"):
        case = Benchmark("", STEPS, "probe", f"--how={how}")
        return processes.run_once(case, tmp_path / "packages", tmp_path / "compiled", tmp_path / out, cores)

    return run


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="processes cannot be pinned")
def test_a_process_has_its_packages_folder_and_cores(probe, tmp_path):
    cores = sorted(os.sched_getaffinity(0))
    probe("busy", out="before")  # does not count
    sample = probe("busy", cores[-1:])
    assert json.loads((tmp_path / "out" / "config.json").read_bytes()) == {
        "compiled": str(tmp_path / "compiled"),
        "cores": cores[-1:],
    }
    assert 0.5 <= sample["cpu_s"] < 1 and sample["cpu_s"] == sample["cpu_s_of_start_and_end"]
    assert sample["wall_s"] > 0.4 and sample["peak_memory_mb"] == 7
    assert sorted(os.sched_getaffinity(0)) == cores


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("killed", "it was ended by SIGKILL"),
        ("refused", "^there is no such thing$"),
        ("silent", "it said nothing"),
    ],
)
def test_a_process_that_fails_says_why(probe, how, message):
    with pytest.raises(RunError, match=message):
        probe(how)


def test_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 3, 4}, raising=False)
    assert [processes.choose_cores(number) for number in (0, 1, 2)] == [[], [3], [3, 4]]
    monkeypatch.delattr(os, "sched_getaffinity")
    assert processes.choose_cores(8) == []


def test_what_is_compiled_is_kept_as_by_the_programs_themselves():
    assert processes.MIN_COMPILE_SECONDS == compiled_programs._MIN_SECONDS


@pytest.mark.parametrize("name", cases.BENCHMARKS)
def test_the_arguments_are_understood(start, name, tmp_path):
    if name == "disco103" and not os.environ.get("DISCO103_WEIGHTS"):
        pytest.skip("DISCO103_WEIGHTS does not name the published weights")
    (tmp_path / "config.json").touch()
    case = cases.BENCHMARKS[name]
    done = start(f"experiments.{case.program}", *case.arguments.split(), f"--out={tmp_path}")
    assert (done.returncode, done.stdout) == (2, "") and "--overwrite replaces" in done.stderr, done.stderr


def test_a_plan_is_shown_beside_its_program():
    product = lambda x: x @ x
    arguments = planned.random_arrays((jax.ShapeDtypeStruct((64, 64), np.float32),))
    found = planned.row(planned.Program(costs_of(product, *arguments), product, arguments))
    assert found["FLOP planned"] == found["compiled"] == "524k"  # 2 · 64³
    assert found["arguments, MB: planned"] == found["there"] == "0.0" and float(found["ms"]) > 0
