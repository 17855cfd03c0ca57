"""The command line of a program: typed flags, one flag for each setting, and errors of one line.

    if __name__ == "__main__":
        command_line.define_flags(CatchConfig(), seeds="0-9", steps="2e6")
        command_line.start(main)

    def main(argv):
        config, options = command_line.parse_options(argv, CatchConfig())

Flags are defined where the program starts, not where it is imported, so that programs can be imported side by side.
"""

import collections
import contextlib
import gc
import io
import math
import os
import re
import sys
import traceback
import typing
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, TypeVar

import jax
from absl import app, flags, logging

from agents.environments.host import NotFiniteError
from agents.environments.names import is_pure
from agents.validation import ON_HOST, did_you_mean
from experiments.runs import compiled_programs, jobs, processes
from experiments.runs.setting_flags import define_settings, given_settings, show_help, with_settings
from frodo.files import MAX_ENTRIES, DiskError
from frodo.runs import cores, errors, workers
from frodo.runs.callbacks import WATCHERS, by_name
from frodo.runs.errors import RunError, UsageError
from frodo.runs.folders import RunOptions, check_out
from frodo.settings.config import AgentConfig, PopulationConfig
from frodo.settings.registry import with_prefix
from frodo.settings.unused import refuse_unused

Config = TypeVar("Config")
MAX_LINE = 2000  # characters of an error
FLAGS = flags.FLAGS
flags.disclaim_key_flags()  # --help lists the flags as the program's own


LENGTHS = {
    "steps": "Environment steps of each seed, such as 2e6 or 2M.",
    "programs": "Programs that are evaluated, such as 2000 or 2k.",
}


def define_flags(
    config: Any,
    *,
    seeds: str,
    without: Sequence[str] = (),
    preset: Callable[[], Any] | None = None,
    **length: str,
) -> None:
    """Define --seeds, --out, --resume, --overwrite, --log_to, what `define_settings` does, and one of LENGTHS."""
    flags.DEFINE_string("seeds", seeds, "Seeds, such as 3 or 0,1,2 or 0-9.")
    for name, default in length.items():
        flags.DEFINE_string(name, default, LENGTHS[name])
    flags.DEFINE_string("out", "", "Results folder; results/<experiment>/<name> if not given.")
    flags.DEFINE_boolean("resume", False, "Go on with the run in the results folder.")
    flags.DEFINE_boolean("overwrite", False, "Replace the run in the results folder.")
    flags.DEFINE_list("log_to", [], f"Where metrics go in addition to metrics.csv: some of {', '.join(WATCHERS)}.")
    define_settings(config, without, preset)


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
    has_more = isinstance(config, PopulationConfig) and config.strategy.generations > 0
    flag = next(name for name in LENGTHS if name in FLAGS)
    length = getattr(FLAGS, flag)
    steps = 0 if has_more and length == "0" else parse_steps(length, flag)
    seeds, log_to = parse_seeds(FLAGS.seeds), tuple(FLAGS.log_to)
    by_name(log_to)
    return config, RunOptions(seeds, steps, FLAGS.out, FLAGS.resume, FLAGS.overwrite, log_to=log_to, flag=flag)


def parse_settings(argv: Sequence[str], config: Config) -> Config:
    """Return the configuration with what the command line overrides; arguments and errors as of `parse_options`."""
    no_arguments(argv)
    given = given_settings()
    config = with_settings(config, given)
    if hasattr(config, "validate"):
        config.validate()
    if isinstance(config, AgentConfig) and not FLAGS.resume:  # a run goes on with what it was begun with
        is_in_jax = is_pure(getattr(config, "env", "toy"))
        with_prefix("--config", lambda: refuse_unused(config, given, is_in_jax))
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
            what = "give whole numbers from 0 on, such as 0,1,2 or 0-9"
            raise UsageError(f"--{flag}={text}: {part!r} is no seed; {what}")
        if len(seeds) + last - first >= MAX_ENTRIES:
            raise UsageError(f"--{flag}={text}: these are more than {MAX_ENTRIES} seeds; give fewer")
        seeds.extend(range(first, last + 1))
    seed, num = collections.Counter(seeds).most_common(1)[0]
    if num > 1:
        raise UsageError(f"--{flag}={text}: seed {seed} is given more than once; give each seed once")
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


def define_job_flags(what: str, processes: int | None = None) -> None:
    """Define --processes and --scheduler of a program of many jobs, for `job_executor`."""
    text = f"{what} at a time on this machine."
    flags.DEFINE_integer("processes", processes or os.cpu_count() or 1, text, lower_bound=1)
    define_scheduler_flag()


def define_scheduler_flag() -> None:
    text = "In place of this machine, the workers of a `dask scheduler` by its address, such as tcp://host:8786."
    flags.DEFINE_string("scheduler", "", text)


def job_executor() -> contextlib.AbstractContextManager[Executor]:
    """Return what the jobs of a program are handed to, by its flags."""
    if not FLAGS.scheduler:
        return workers.local(FLAGS.processes)
    if FLAGS["processes"].present:
        raise UsageError(f"--processes={FLAGS.processes}: give it or --scheduler, whose workers have a number")
    return workers.cluster(FLAGS.scheduler)


def one_argument(argv: Sequence[str]) -> Path:
    """Return the run folder that is the only argument."""
    if len(argv) != 2:
        raise UsageError(f"name one run folder: {Path(argv[0]).stem} RUN")
    return Path(argv[1])


def no_arguments(argv: Sequence[str]) -> None:
    """Refuse arguments that are no flags; `argv` is the program's name and these arguments."""
    if len(argv) > 1:
        raise UsageError(f"argument {argv[1]!r} is not understood: settings are given as --name=value")


def not_both(one: str, other: str) -> None:
    """Refuse two given flags of which one would be ignored."""
    if FLAGS[one].present and FLAGS[other].present:
        raise UsageError(f"--{one}={FLAGS[one].value}: give it or --{other}, which names the rule itself")


def start(main: Callable[[list[str]], Any]) -> None:
    """Run a program: a mistake on its command line, or a disk that refuses, ends it with one line and no traceback.

    Of several processes, one that fails in another way ends at once, too, after its traceback.
    """

    def guarded(argv: list[str]) -> None:
        if FLAGS.keep_compiled:
            compiled_programs.keep()
        try:
            main(argv)
        except KeyboardInterrupt as error:
            _fail(": ".join(["interrupted", *map(str, error.args)]), 130)
        except Exception as error:
            if processes.is_of_another(error):
                processes.end_without_another(_first_line(error))
            if answer := _answer(error):
                _fail(*answer)
            if processes.are_several():
                processes.end(1, "".join(traceback.format_exception(error)).rstrip())
            raise

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # where it knows no Greek letters
    flags.DEFINE_boolean("keep_compiled", True, "Keep compiled programs in the user's cache folder for later runs.")
    jobs.stop_with_parent()
    cores.use_all_cores()
    cores.keep_freed_memory()
    app.run(guarded, flags_parser=_parse_flags)


def _answer(error: Exception) -> tuple[str, int] | None:
    """Return the line and the exit code of an error that is no bug; None for one that shows where it comes from.

    The code is 2 for what a person can correct (flags, UsageError, and before a run is open any ValueError, ImportError
    or OSError of a file), 1 for the disk, and for a device that is lost or full.
    """
    if isinstance(error, (DiskError, RunError, NotFiniteError)):
        return str(error), 1
    if isinstance(error, UsageError) or (isinstance(error, (ValueError, ImportError)) and not errors.run_is_open):
        return str(error), 2  # an ImportError: envpool misses a system library, say
    if isinstance(error, OSError) and not errors.run_is_open and error.filename is not None:
        return f"{error.filename}: {error.strerror}", 2  # a name that is too long, a folder in place of a file
    if isinstance(error, jax.errors.JaxRuntimeError):
        why = _first_line(error)
        if why.startswith("RESOURCE_EXHAUSTED") or "CUDA_ERROR_OUT_OF_MEMORY" in why:
            return f"JAX: {why}; --plan of online and discover says how much memory a run needs", 1
        if why.startswith(("UNAVAILABLE", "ABORTED", "DATA_LOSS")) or "CUDA_ERROR" in why:
            lost = "a device or another process" if processes.are_several() else "a device"
            return f"JAX: {why}; {lost} seems to be lost: --resume goes on from the last checkpoint", 1
    return None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _fail(message: Any, code: int = 2) -> typing.NoReturn:
    text = " ".join(str(message).split())
    if len(text) > MAX_LINE:
        text = f"{text[: MAX_LINE // 2]} ... {text[-MAX_LINE // 2 :]}"
    processes.end(code, f"error: {text}")


def _parse_flags(argv: list[str]) -> list[str]:
    """Return the arguments that are no flags; where help is asked for, print it and end the program."""
    asked = {"-?", "--help", "--helpshort", "--helpfull"}.intersection(argv)
    try:
        rest = FLAGS([argument for argument in argv if argument not in asked])
    except flags.UnrecognizedFlagError as error:
        name = error.flagname
        length = next((f" (did you mean '--{known}'?)" for known in LENGTHS if known in FLAGS and name in LENGTHS), "")
        near = length or did_you_mean(f"--{name}", [f"--{known}" for known in FLAGS]) or ": --help lists the flags"
        _fail(f"--{name} is no flag of this program{near}")
    except flags.Error as error:
        match = re.match(r"flag --([^=]+)=(.*?): ", str(error))
        if not match or match[1] not in FLAGS:
            _fail(error)
        parser = FLAGS[match[1]].parser
        expected = parser.syntactic_help or "true or false"
        if isinstance(parser, flags.EnumParser):
            expected = "one of " + ", ".join(parser.enum_values)
        _fail(f"--{match[1]}={match[2]}: give {expected}")
    for name, flag in ((name, FLAGS[name]) for name in FLAGS if FLAGS[name].present):
        if isinstance(flag.parser, flags.FloatParser) and not math.isfinite(flag.value or 0):
            _fail(f"--{name}={flag.value}: give a finite number")
        bound = 2**63 if name.removeprefix("config.") in ON_HOST else 2**31
        if isinstance(flag.value, int) and abs(flag.value) >= bound:
            _fail(f"--{name}={flag.value}: give a whole number below {bound}")
    if asked:
        show_help("--helpfull" in asked)
        gc.freeze()  # else the end looks for garbage, for half a second
        sys.exit(0)
    if FLAGS["verbosity"].using_default_value:
        FLAGS.verbosity = logging.WARNING  # type: ignore[assignment]  # else absl turns it up, and JAX tells of every step
    return rest
