"""The command `frodo`: what it lists, how it starts programs, what it refuses."""

import subprocess
import sys

import pytest

from experiments import command
from tests.test_structure import PROGRAMS, ROOT


def run(*arguments, code=""):
    text = f"import sys; sys.argv = ['frodo', *{list(arguments)}]; from experiments.command import main; main()\n{code}"
    return subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=False)


def test_all_programs_are_listed_with_a_line_each_and_nothing_is_imported():
    assert {f"experiments.{name}" for name in command.programs()} == PROGRAMS
    done = run("--help", code="assert not {'jax', 'numpy', 'absl', 'frodo'} & set(sys.modules)")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()[2:]
    assert len(lines) == len(PROGRAMS) and lines[0].startswith("  online ") and all(len(x.split()) > 3 for x in lines)


def test_a_program_is_started_as_by_its_module(monkeypatch):
    started = []
    monkeypatch.setattr(command.runpy, "run_module", lambda name, run_name: started.append((name, run_name, *sys.argv)))
    monkeypatch.setattr(sys, "argv", ["frodo", "online", "--env=toy/catch"])
    monkeypatch.setattr(sys.modules["__main__"], "__doc__", None)
    command.main()
    assert sys.modules["__main__"].__doc__.startswith("Online discovery")  # what --help prints
    assert started == [("experiments.online", "__main__", "frodo online", "--env=toy/catch")]


@pytest.mark.parametrize(
    ("name", "hint"), [("onlin", " (did you mean 'online'?)"), ("x/y", ": frodo --help lists them")]
)
def test_what_is_no_program_is_refused_in_one_line(name, hint):
    done = run(name)
    assert (done.returncode, done.stderr.strip()) == (2, f"error: {name!r} is no program{hint}")
