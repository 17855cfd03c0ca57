"""The command line: typed flags, and mistakes that are answered in one line."""

import dataclasses
import typing

import pytest

from experiments.runs import setting_flags
from experiments.runs.command_line import parse_seeds, parse_steps
from frodo.runs.errors import UsageError
from frodo.settings import presets
from frodo.settings.registry import RULES

FLAGS_ONLY = """
import dataclasses, sys
import jax
from typing import Literal
from experiments.runs import command_line
from frodo.runs import errors
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
    if options.out.isupper():
        raise jax.errors.JaxRuntimeError(f"{options.out}: it is said\\nin two lines")
    if options.out == "bug":
        errors.run_is_open = True
        raise ValueError("a bug")
command_line.define_flags(Config(), seeds="0-9", steps="2e6")
command_line.start(main)
"""
WITH_A_RULE = """
from experiments.runs import command_line
from frodo import presets
def main(argv):
    config, _ = command_line.parse_options(argv, presets.with_rule(presets.catch(), RULE))
    print(config.rule, config.outer)
command_line.define_flags(presets.catch(), seeds="0", steps="1", without=("rule.kind",))
command_line.start(main)
"""


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


def test_overrides_are_typed_nested_and_leave_the_rest_of_a_preset(start):
    overrides = ["learning_rate=3e-4", "kind=b", "is_slow", "inner.hidden=5,6", "inner.gain=2"]
    result = start(FLAGS_ONLY, "--seeds=0,4", "--steps=1k", "--resume", *(f"--config.{one}" for one in overrides))
    assert result.stdout.split("RunOptions")[0].strip() == (
        "Config(learning_rate=0.0003, num_seeds=5, kind='b', is_slow=True, inner=Inner(hidden=(5, 6), gain=2.0))"
    )
    assert "seeds=(0, 4), steps=1000, out='', resume=True, overwrite=False" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("--sed=1", "--sed is no flag of this program (did you mean '--seeds'?)"),
        ("--config.lerning_rate=1", "(did you mean '--config.learning_rate'?)"),
        ("--config.inner.hiden=1", "(did you mean '--config.inner.hidden'?)"),
        ("--config.num_seeds=abc", "--config.num_seeds=abc: give a whole number"),
        ("--config.kind=c", "--config.kind=c: give one of a, b"),
        ("--config.is_slow=maybe", "--config.is_slow=maybe: give true or false"),
        ("--config.learning_rate=-1", "config.learning_rate=-1.0: give a positive number"),
        ("--seeds=1,1", "--seeds=1,1: seed 1 is given more than once"),
        ("--resume --overwrite", "--resume and --overwrite"),
        ("more", "argument 'more' is not understood"),
    ],
)
def test_a_mistake_gives_one_line(start, arguments, error):
    assert_one_line(start(FLAGS_ONLY, *arguments.split()), error)


def assert_one_line(result, error):
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert error in result.stderr


@pytest.mark.parametrize(
    ("status", "hint"),
    [("UNAVAILABLE", "a device seems to be lost: --resume goes on"), ("RESOURCE_EXHAUSTED", "--plan of online")],
)
def test_a_device_that_is_lost_or_full_is_said_in_one_line(start, status, hint):
    done = start(FLAGS_ONLY, f"--out={status}")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith(f"error: JAX: {status}: it is said; {hint}")


def test_other_errors_of_jax_keep_their_traceback(start):
    with pytest.raises(RuntimeError, match="in two lines"):
        start(FLAGS_ONLY, "--out=INVALID_ARGUMENT")


def test_a_bug_keeps_its_traceback(start):
    with pytest.raises(ValueError, match="a bug"):
        start(FLAGS_ONLY, "--out=bug")


def test_a_rule_has_flags_for_its_own_settings(start):
    program = WITH_A_RULE.replace("RULE)", "'frodo')")
    flags = ["rule.lstm=8", "rule.inputs=reward,discount", "rule.consistency_cost=0.5", "outer.lambda_=0.5"]
    result = start(program, *(f"--config.{flag}" for flag in flags))
    expected = presets.catch()
    rule = expected.rule.replace(lstm=8, inputs=("reward", "discount"), consistency_cost=0.5)
    assert result.stdout == f"{rule} {dataclasses.replace(expected.outer, lambda_=0.5)}\n"


@pytest.mark.parametrize(
    ("rule", "flag", "error"),
    [
        (
            "impala",
            "rule.epsilon=0.3",
            "--config.rule.epsilon: epsilon is 0.3, but the rule 'impala' has no such setting: it has discount, ",
        ),
        (
            "a2c",
            "rule.inputs=reward,discount",
            "--config.rule.inputs: inputs is ('reward', 'discount'), but the rule 'a2c' has no such setting: it has",
        ),
        (
            "disco",
            "rule.vtrace_lambda=0.5",
            "the rule 'disco' has no such setting (did you mean 'lambda_'?): it has ",
        ),
        (
            "frodo",
            "rule.temperature=2",
            "--config.rule.temperature is no flag of this program (did you mean '--config.outer.",
        ),
        ("impala", "gradient_mode=remat", "--config.gradient_mode is 'remat', but changes nothing: the rule 'impala' "),
        ("frodo", "network.memory=3", "--config.network.memory is 3, but changes nothing: network.core_kind is 'lstm'"),
        ("frodo", "is_acting_in_turn", "(did you mean '--config.is_acting_interleaved'?)"),
    ],
)
def test_a_setting_that_there_is_not_or_that_changes_nothing_is_refused(start, rule, flag, error):
    assert_one_line(start(WITH_A_RULE.replace("RULE)", f"{rule!r})"), f"--config.{flag}"), error)


def test_settings_of_one_name_have_one_type():
    settings = setting_flags.rule_settings()
    for rule, entry in RULES.items():
        for name, hint in typing.get_type_hints(entry.settings).items():
            assert settings[name] in (hint, hint | None), (rule, name)
