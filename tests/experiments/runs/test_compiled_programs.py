"""Compiled programs are kept for the next process, and what is wrong with them is one line."""

import os
import subprocess
import sys

import pytest

from experiments.runs import compiled_programs

PROGRAM = """
import jax
from experiments.runs import compiled_programs
compiled_programs.MIN_SECONDS = 0
compiled_programs.keep()
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("/cache_hits") else None)
def fn(x):
    return x * 2 + 1
print(jax.jit(fn)(3.0), len(hits))
"""


@pytest.fixture
def run(tmp_path):
    def run(**environment):
        env = {
            name: x
            for name, x in os.environ.items()
            if not name.startswith(("JAX_COMPILATION_CACHE", "JAX_PERSISTENT"))
        }
        env |= {"XDG_CACHE_HOME": str(tmp_path)} | environment
        done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
        return done.stdout.split(), done.stderr

    return run


def entries(tmp_path):
    return sorted(tmp_path.glob("frodo-rl/compiled/*/jit_fn-*-cache"))


@pytest.mark.long
def test_a_program_is_compiled_once_and_a_damaged_one_once_more(run, tmp_path):
    assert run() == (["7.0", "0"], "")
    (entry,) = entries(tmp_path)
    assert run() == (["7.0", "1"], "")
    whole = entry.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"something else"):
        entry.write_bytes(damaged)
        result, errors = run()
        assert result == ["7.0", "0"]
        assert errors.startswith(f"jit_fn: the compiled program in {entry.parent} cannot be read, and is ignored: ")
        assert errors.count("\n") == 1
        assert run() == (["7.0", "1"], "") and len(entries(tmp_path)) == 1


def test_a_folder_that_cannot_be_written_is_one_line(run, tmp_path):
    (tmp_path / "frodo-rl").write_text("")
    result, errors = run()
    assert result == ["7.0", "0"] and errors.count("\n") == 1
    assert errors.startswith(f"compiled programs are not kept: {tmp_path / 'frodo-rl'}") and "Not a directory" in errors


@pytest.mark.long
def test_the_environment_has_its_say(run, tmp_path):
    run(JAX_ENABLE_COMPILATION_CACHE="false")
    own = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "own"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    assert run(**own) == (["7.0", "0"], "") and run(**own) == (["7.0", "1"], "")
    (entry,) = (tmp_path / "own").glob("jit_fn-*-cache")
    whole = entry.read_bytes()
    others = [tmp_path / "own" / name for name in ("jit_fn-notes.txt", "jit_fn-1-cache")]
    for other in others:
        other.write_bytes(b"mine")
    entry.write_bytes(b"something else")
    _, errors = run(**own)
    assert errors.startswith("jit_fn: ") and "cannot be read, and is ignored" in errors and errors.count("\n") == 1
    assert entry.read_bytes() == whole and all(other.exists() for other in others)  # compiled anew, and no other gone
    entry.unlink()
    entry.mkdir()
    result, errors = run(**own)
    assert result == ["7.0", "0"] and "Traceback" not in errors
    assert not (tmp_path / "frodo-rl").exists()
    (tmp_path / "file").write_text("")
    result, errors = run(JAX_COMPILATION_CACHE_DIR=str(tmp_path / "file" / "x"))
    assert (
        result == ["7.0", "0"]
        and errors == f"compiled programs are not kept: {tmp_path / 'file' / 'x'}: Not a directory\n"
    )


def test_the_oldest_go_first(tmp_path):
    for number, (folder, name) in enumerate([("new", "b"), ("old", "a"), ("new", "c"), ("new", "a")]):
        path = tmp_path / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 10)
        os.utime(path, (0, number))
    os.utime(tmp_path / "new" / "b", (9, 0))  # the one that was read last
    compiled_programs._remove_oldest(tmp_path, 29)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"new/a", "new/b"}


@pytest.mark.parametrize(("flags", "times"), [([], 1), (["--nokeep_compiled"], 0)])
def test_a_flag_turns_it_off(start, monkeypatch, flags, times):
    calls = []
    monkeypatch.setattr(compiled_programs, "keep", lambda: calls.append(1))
    program = "from experiments.runs import command_line\ncommand_line.start(lambda argv: None)\n"
    assert start(program, *flags).returncode == 0
    assert len(calls) == times
