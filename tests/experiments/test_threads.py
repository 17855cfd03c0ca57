"""One life of a small toy is run by one thread: nothing begins JAX before that is decided, whatever the program."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = """
import runpy, sys
from jax._src import xla_bridge
from experiments.runs import training
def decide():
    print("begun" if xla_bridge._backends else "not begun")
    sys.exit(0)
training.use_one_thread = decide
program, *sys.argv[1:] = sys.argv[1:]
runpy.run_module(f"experiments.{program}", run_name="__main__")
"""


@pytest.mark.parametrize(
    "command",
    [
        "online --env=toy/catch",
        "online --env=toy/catch/5x5 --init_meta_params=catch_and_grids --config.is_frozen",
        "evaluate --env=toy/catch/5x5 --rule=catch_and_grids --seeds=0",
        "adapt --env=toy/rule_room/main",
    ],
)
def test_jax_has_not_begun_when_threads_are_chosen(command, tmp_path):
    arguments = [*command.split(), f"--out={tmp_path}"]
    done = subprocess.run([sys.executable, "-c", CODE, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.split("\n")[-2] == "not begun", done.stdout + done.stderr
