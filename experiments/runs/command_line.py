"""The command line of an experiment: typed flags, one flag for each setting, and errors of one line.

    if __name__ == "__main__":
        command_line.define_flags(CatchConfig(), seeds="0-9", steps="2e6")
        command_line.start(main)

    def main(argv):
        config, options = command_line.parse_options(argv, CatchConfig())

Flags are defined where the program starts, not where it is imported, so that programs can be imported side by side.
"""

import collections
import dataclasses
import gc
import io
import math
import re
import sys
import traceback
import types
import typing
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
from absl import app, flags, logging

from agents.environments.host import NotFiniteError
from agents.validation import ON_HOST, did_you_mean
from experiments.runs import compiled_programs, jobs, processes, settings_help
from frodo.files import MAX_ENTRIES, DiskError
from frodo.runs import cores, errors
from frodo.runs.callbacks import WATCHERS, by_name
from frodo.runs.errors import RunError, UsageError
from frodo.runs.folders import check_out
from frodo.runs.options import RunOptions
from frodo.settings.registry import RULES, RuleConfig

Config = TypeVar("Config")
MAX_LINE = 2000  # characters of an error
FLAGS = flags.FLAGS
flags.disclaim_key_flags()  # --help lists the flags as the program's own


def define_flags(
    config: Any, *, seeds: str, steps: str, without: Sequence[str] = (), preset: Callable[[], Any] | None = None
) -> None:
    """Define --seeds, --steps, --out, --resume, --overwrite, --log_to, and --config.<field> for a dataclass's fields.

    A field that is a rule gets flags for the settings of all rules. Fields in `without`, such as "rule.kind" or all of
    "distillation", and a rule's name get none: the program decides them. For --help, `preset` makes of the flags what
    the settings change, if that is not `config`.
    """
    flags.DEFINE_string("seeds", seeds, "Seeds, such as 3 or 0,1,2 or 0-9.")
    flags.DEFINE_string("steps", steps, "Environment steps of each seed, such as 2e6 or 2M.")
    flags.DEFINE_string("out", "", "Results folder; results/<experiment>/<name> if not given.")
    flags.DEFINE_boolean("resume", False, "Go on with the run in the results folder.")
    flags.DEFINE_boolean("overwrite", False, "Replace the run in the results folder.")
    flags.DEFINE_list("log_to", [], f"Where metrics go beside metrics.csv: some of {', '.join(WATCHERS)}.")
    define_settings(config, without, preset)


def define_settings(config: Any, without: Sequence[str] = (), preset: Callable[[], Any] | None = None) -> None:
    """Define --config.<field> for every field of a dataclass, as `define_flags`."""
    settings_help.made_by = (config, preset or (lambda: config))
    _define_fields(config, "config", {f"config.{name}" for name in without})


def parse_options(argv: Sequence[str], config: Config) -> tuple[Config, RunOptions]:
    """Return the configuration with what the command line overrides, and the options.

    Args:
      argv: the program's name and the arguments that are no flags, which are refused.
      config: the dataclass given to `define_flags`, or another one of its type (a preset).
    Raises:
      UsageError: naming the flag, its value and what is right.
      ValueError: by `config.validate()`, where the configuration has one.
    """
    if FLAGS.resume and FLAGS.overwrite:
        raise UsageError("--resume and --overwrite: give one of them, to go on with the run or to replace it")
    check_out(Path(FLAGS.out))
    config = parse_settings(argv, config)
    options = RunOptions(
        seeds=parse_seeds(FLAGS.seeds),
        steps=parse_steps(FLAGS.steps),
        out=FLAGS.out,
        resume=FLAGS.resume,
        overwrite=FLAGS.overwrite,
        log_to=tuple(FLAGS.log_to),
    )
    by_name(options.log_to)
    return config, options


def parse_settings(argv: Sequence[str], config: Config) -> Config:
    """Return the configuration with what the command line overrides; arguments and errors as of `parse_options`."""
    no_arguments(argv)
    config = _override(config, "config")
    if hasattr(config, "validate"):
        config.validate()
    return config


def parse_seeds(text: str, flag: str = "seeds") -> tuple[int, ...]:
    """Return the seeds of "3", "0,1,2", "0-9" or "0-4,8", in order; UsageError if one is negative or given twice.

    There are MAX_ENTRIES at most.
    """
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if last < first:
            raise UsageError(
                f"--{flag}={text}: {part!r} is no seed; give whole numbers from 0 on, such as 0,1,2 or 0-9"
            )
        if len(seeds) + last - first >= MAX_ENTRIES:
            raise UsageError(f"--{flag}={text}: these are more than {MAX_ENTRIES} seeds; give fewer")
        seeds.extend(range(first, last + 1))
    if len(set(seeds)) < len(seeds):
        repeated = collections.Counter(seeds).most_common(1)[0][0]
        raise UsageError(f"--{flag}={text}: seed {repeated} is given more than once; give each seed once")
    return tuple(sorted(seeds))


def parse_steps(text: str, flag: str = "steps") -> int:
    """Return the number of "2e6", "2_000_000", "2M" or "500k"; UsageError if it is not whole or not positive."""
    match = re.fullmatch(r"\s*([\d_.]+(?:e\+?\d+)?)\s*([kM]?)\s*", text)
    try:
        steps = float(match[1]) * {"": 1, "k": 1e3, "M": 1e6}[match[2]] if match else 0.0
    except ValueError:
        steps = 0.0
    if not 0 < steps < 1e18 or steps != int(steps):
        raise UsageError(f"--{flag}={text}: give a positive whole number, such as 5000, 2e6 or 2M")
    return int(steps)


def start(main: Callable[[list[str]], Any]) -> None:
    """Run a program: a mistake on its command line, or a disk that refuses, ends it with one line and no traceback.

    Exit code 2 for what a person can correct (flags, UsageError, and before a run is open any ValueError, ImportError
    or OSError of a file), 1 for the disk, for a device that is lost or full, or where another process of the run is
    gone. Of several processes, one that fails in another way ends at once, too, after its traceback.
    """

    def guarded(argv: list[str]) -> None:
        if FLAGS.keep_compiled:
            compiled_programs.keep()
        try:
            main(argv)
        except (DiskError, RunError, NotFiniteError) as error:
            _fail(error, 1)
        except (ValueError, ImportError) as error:  # envpool misses a system library, say
            if processes.is_of_another(error):
                processes.end_without_another(_first_line(error))
            if errors.run_is_open and not isinstance(error, UsageError):
                _raise(error)
            _fail(error, 2)
        except OSError as error:  # a name that is too long, a folder in place of a file
            if errors.run_is_open or error.filename is None:
                _raise(error)
            _fail(f"{error.filename}: {error.strerror}", 2)
        except jax.errors.JaxRuntimeError as error:
            why = _first_line(error)
            if processes.is_of_another(error):
                processes.end_without_another(why)
            if why.startswith("RESOURCE_EXHAUSTED") or "CUDA_ERROR_OUT_OF_MEMORY" in why:
                _fail(f"JAX: {why}; --plan of online and discover says how much memory a run needs", 1)
            if why.startswith(("UNAVAILABLE", "ABORTED", "DATA_LOSS")) or "CUDA_ERROR" in why:
                lost = "a device or another process" if processes.are_several() else "a device"
                _fail(f"JAX: {why}; {lost} seems to be lost: --resume goes on from the last checkpoint", 1)
            _raise(error)
        except KeyboardInterrupt as error:
            _fail(": ".join(["interrupted", *map(str, error.args)]), 130)
        except Exception as error:
            _raise(error)

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # where it knows no Greek letters
    flags.DEFINE_boolean("keep_compiled", True, "Keep compiled programs in the user's cache folder for later runs.")
    jobs.stop_with_parent()
    cores.use_all_cores()
    cores.keep_freed_memory()
    app.run(guarded, flags_parser=_parse_flags)


def no_arguments(argv: Sequence[str]) -> None:
    """Refuse arguments that are no flags; `argv` is the program's name and these arguments."""
    if len(argv) > 1:
        raise UsageError(f"argument {argv[1]!r} is not understood: settings are given as --name=value")


def not_both(one: str, other: str) -> None:
    """Refuse two given flags of which one would be ignored."""
    if FLAGS[one].present and FLAGS[other].present:
        raise UsageError(f"--{one}={FLAGS[one].value}: give it or --{other}, which names the rule itself")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _fail(message: Any, code: int) -> typing.NoReturn:
    text = " ".join(str(message).split())
    if len(text) > MAX_LINE:
        text = f"{text[: MAX_LINE // 2]} ... {text[-MAX_LINE // 2 :]}"
    processes.end(code, f"error: {text}")


def _raise(error: Exception) -> typing.NoReturn:
    if processes.are_several():
        processes.end(1, "".join(traceback.format_exception(error)).rstrip())
    raise error


def _parse_flags(argv: list[str]) -> list[str]:
    """Return the arguments that are no flags; where help is asked for, print it and end the program."""
    asked = {"-?", "--help", "--helpshort", "--helpfull"}.intersection(argv)
    try:
        rest = FLAGS([argument for argument in argv if argument not in asked])
    except flags.UnrecognizedFlagError as error:
        hint = did_you_mean(f"--{error.flagname}", [f"--{name}" for name in FLAGS]) or ": --help lists the flags"
        _fail(f"--{error.flagname} is no flag of this program{hint}", 2)
    except flags.Error as error:
        match = re.match(r"flag --([^=]+)=(.*?): ", str(error))
        if not match or match[1] not in FLAGS:
            _fail(error, 2)
        parser = FLAGS[match[1]].parser
        expected = parser.syntactic_help or "true or false"
        if isinstance(parser, flags.EnumParser):
            expected = "one of " + ", ".join(parser.enum_values)
        _fail(f"--{match[1]}={match[2]}: give {expected}", 2)
    for name in FLAGS:
        value = FLAGS[name].value if FLAGS[name].present else None
        if isinstance(FLAGS[name].parser, flags.FloatParser) and not math.isfinite(value or 0):
            _fail(f"--{name}={value}: give a finite number", 2)
        bound = 2**63 if name.removeprefix("config.") in ON_HOST else 2**31
        if isinstance(value, int) and abs(value) >= bound:
            _fail(f"--{name}={value}: give a whole number below {bound}", 2)
    if asked:
        settings_help.show("--helpfull" in asked)
        gc.freeze()  # else the end looks for garbage, for half a second
        sys.exit(0)
    if FLAGS["verbosity"].using_default_value:
        FLAGS.verbosity = logging.WARNING  # type: ignore[assignment]  # else absl turns it up, and JAX and Orbax tell of every step
    return rest


def _define_fields(config: Any, prefix: str, without: Collection[str]) -> None:
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        name, value = f"{prefix}.{field.name}", getattr(config, field.name)
        if isinstance(value, RuleConfig):
            for setting, hint in rule_settings().items():
                _define(f"{name}.{setting}", hint, without)
        elif dataclasses.is_dataclass(value):
            if name not in without:
                _define_fields(value, name, without)
        else:
            _define(name, hints[field.name], without)


def _define(name: str, hint: Any, without: Collection[str]) -> None:
    if name in without:
        return
    if hint is bool:
        flags.DEFINE_boolean(name, None, "", module_name=settings_help.SETTINGS)
    elif _expected(hint):
        flags.DEFINE(_Parser(hint), name, None, "", module_name=settings_help.SETTINGS)


def rule_settings() -> dict[str, Any]:
    """Return the settings of all rules: for each name its type, the widest one."""
    found: dict[str, Any] = {}
    for entry in RULES.values():
        for name, hint in typing.get_type_hints(entry.settings).items():
            found[name] = hint if type(None) in typing.get_args(hint) else found.get(name, hint)
    return found


def _override(config: Config, prefix: str) -> Config:
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        name, value = f"{prefix}.{field.name}", getattr(config, field.name)
        if isinstance(value, RuleConfig):
            changes[field.name] = _override_rule(value, name)
        elif dataclasses.is_dataclass(value):
            changes[field.name] = _override(value, name)
        elif name in FLAGS and FLAGS[name].present:
            changes[field.name] = FLAGS[name].value
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def _override_rule(config: RuleConfig, prefix: str) -> RuleConfig:
    own = [field.name for field in dataclasses.fields(config.settings)]
    changes: dict[str, Any] = {}
    for setting in rule_settings():
        name = f"{prefix}.{setting}"
        if name not in FLAGS or not FLAGS[name].present:
            continue
        changes[setting] = value = FLAGS[name].value
        if setting not in own:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else value
            raise UsageError(
                f"--{name}={text}: the rule {config.name!r} has no setting {setting}{did_you_mean(setting, own)}; it "
                f"has {', '.join(own) or 'none'}"
            )
    return config.replace(**changes)


class _Parser(flags.ArgumentParser):
    """Parses a value of an annotated type: numbers, text, Literal, tuple[X, ...] and X | None."""

    def __init__(self, hint: Any):
        self._hint = hint
        self.syntactic_help = _expected(hint)

    def parse(self, argument: Any) -> Any:
        try:
            return _convert(argument, self._hint) if isinstance(argument, str) else argument
        except KeyError:
            raise ValueError(argument) from None


def _is_optional(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType) and len(typing.get_args(hint)) == 2


def _expected(hint: Any) -> str:
    """Say what values a type has: "" for one that the command line cannot give."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return "one of " + ", ".join(map(str, args))
    if _is_optional(hint) and type(None) in args:
        inner = _expected(args[0])
        return inner and f"{inner}, or none"
    if origin is tuple and len(args) == 2 and args[1] is ...:
        inner = _expected(args[0])
        return inner and f"{inner} for each entry, such as 1,2,3"
    return {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}.get(hint, "")


def _convert(text: str, hint: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return {str(value): value for value in args}[text]
    if _is_optional(hint):
        return None if text.lower() == "none" else _convert(text, args[0])
    if origin is tuple:
        inside = text.strip("()[] ").removesuffix(",")
        return tuple(_convert(part.strip(), args[0]) for part in inside.split(",")) if inside else ()
    if hint is float and (math.isnan(number := float(text)) or (math.isinf(number) and "inf" not in text.lower())):
        raise ValueError(text)
    return {"true": True, "false": False}[text.lower()] if hint is bool else hint(text)
