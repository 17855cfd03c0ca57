"""The command line: typed flags, and mistakes that are answered in one line."""

import subprocess
import sys
from pathlib import Path

import pytest

from experiments.runs.command_line import parse_seeds, parse_steps
from experiments.runs.errors import UsageError

ROOT = Path(__file__).parents[3]
# Asks for flags as a program does, without JAX: 0.2 s to start.
FLAGS_ONLY = """
import dataclasses, sys
from typing import Literal
from experiments.runs import command_line, errors
@dataclasses.dataclass(frozen=True)
class Inner:
    hidden: tuple[int, ...] = (3, 4)
    gain: float | None = None
@dataclasses.dataclass(frozen=True)
class Config:
    learning_rate: float = 0.1
    num_seeds: int = 3
    kind: Literal["a", "b"] = "a"
    is_slow: bool = False
    inner: Inner = Inner()
    def validate(self):
        if self.learning_rate <= 0:
            raise ValueError(f"config.learning_rate={self.learning_rate}: give a positive number")
def main(argv):
    config, options = command_line.parse_options(argv, Config(num_seeds=5))
    print(config, options)
    if options.out == "bug":
        errors.run_is_open = True
        raise ValueError("a bug")
command_line.define_flags(Config(), seeds="0-9", steps="2e6")
command_line.start(main)
"""


def start(*args, program=(sys.executable, "-c", FLAGS_ONLY)):
    return subprocess.run([*program, *args], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", (3,)), ("0,1,2", (0, 1, 2)), ("0-3", (0, 1, 2, 3)), ("8,0-1", (0, 1, 8))]
)
def test_seeds(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "-1", "1,1", "0-3,2", "3-1", "a", "1.5", "1,,2"])
def test_seeds_that_are_none(text):
    with pytest.raises(UsageError, match=f"--seeds={text}: .*give"):
        parse_seeds(text)


@pytest.mark.parametrize(
    ("text", "steps"), [("2e6", 2_000_000), ("2_000_000", 2_000_000), ("2M", 2_000_000), ("1.5k", 1500), ("7", 7)]
)
def test_steps(text, steps):
    assert parse_steps(text) == steps
    assert isinstance(parse_steps(text), int)


@pytest.mark.parametrize("text", ["0", "-5", "1.5", "nan", "inf", "1e400", "many", "", "2G", "."])
def test_steps_that_are_none(text):
    with pytest.raises(UsageError, match=f"--steps={text}: give a positive whole number"):
        parse_steps(text)


def test_overrides_are_typed_nested_and_leave_the_rest_of_a_preset():
    overrides = ["learning_rate=3e-4", "kind=b", "is_slow", "inner.hidden=5,6", "inner.gain=2"]
    result = start("--seeds=0,4", "--steps=1k", "--resume", *(f"--config.{one}" for one in overrides))
    assert result.stdout.split("RunOptions")[0].strip() == (
        "Config(learning_rate=0.0003, num_seeds=5, kind='b', is_slow=True, inner=Inner(hidden=(5, 6), gain=2.0))"
    )
    assert "seeds=(0, 4), steps=1000, out='', resume=True, overwrite=False" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("--sed=1", "--sed is no flag of this program; did you mean --seeds?"),
        ("--config.lerning_rate=1", "did you mean --config.learning_rate?"),
        ("--config.inner.hiden=1", "did you mean --config.inner.hidden?"),
        ("--config.num_seeds=abc", "--config.num_seeds=abc: give a whole number"),
        ("--config.kind=c", "--config.kind=c: give one of a, b"),
        ("--config.is_slow=maybe", "--config.is_slow=maybe: give true or false"),
        ("--config.learning_rate=-1", "config.learning_rate=-1.0: give a positive number"),
        ("--seeds=1,1", "--seeds=1,1: seed 1 is given more than once"),
        ("--resume --overwrite", "--resume and --overwrite"),
        ("more", "argument 'more' is not understood"),
    ],
)
def test_a_mistake_gives_one_line(arguments, error):
    result = start(*arguments.split())
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert error in result.stderr
    assert result.stderr.count("\n") == 1
    assert not result.stdout


def test_a_bug_keeps_its_traceback():
    result = start("--out=bug")
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert "ValueError: a bug" in result.stderr
