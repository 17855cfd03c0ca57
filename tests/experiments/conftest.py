"""Programs started in this process: what their command lines say costs no interpreter of its own."""

import runpy
import subprocess
import sys
import warnings

import pytest
from absl import flags

from experiments.runs import command_line, errors


@pytest.fixture
def start(monkeypatch, capsys):
    """Return a function that runs a program by its module's name, or as code, and says what came of it."""

    def start(program, *args):
        before = set(flags.FLAGS)
        monkeypatch.setattr(sys, "argv", [program.split("\n")[0], *map(str, args)])
        for name in ("use_all_cores", "keep_freed_memory"):
            monkeypatch.setattr(command_line.devices, name, lambda: None)
        monkeypatch.setattr(command_line.app, "run", lambda main, flags_parser: main(flags_parser(sys.argv)))
        monkeypatch.setattr(errors, "run_is_open", False)
        capsys.readouterr()
        code = 0
        try:
            if "\n" in program:
                exec(program, {"__name__": "__main__"})
            else:
                with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # it may be imported already
                    runpy.run_module(program, run_name="__main__")
        except SystemExit as end:
            code = end.code
        finally:
            for name in set(flags.FLAGS) - before:
                delattr(flags.FLAGS, name)
            flags.FLAGS.unparse_flags()
        return subprocess.CompletedProcess(args, code, *capsys.readouterr())

    return start
