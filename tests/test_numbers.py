"""Short runs give the numbers of version 0.1.0; `python -m tests.numbers` runs all of them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

RUNS = ("impala", "q_learning", "td_lambda", "frodo_prediction", "host_impala")


@pytest.mark.slow
def test_numbers_are_those_of_version_0_1_0():
    # As the compiler makes them by default; another processor rounds otherwise.
    env = {name: x for name, x in os.environ.items() if name != "XLA_FLAGS"} | {"JAX_NUM_CPU_DEVICES": "1"}
    command = [sys.executable, "-m", "tests.numbers", *RUNS]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], env=env, capture_output=True, text=True, check=False)
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert list(lines) == list(RUNS)
    for run, text in lines.items():
        differs = re.fullmatch(r"\d+ numbers differ, \w+ by (.*)", text)
        assert text == "the same" or float(differs[1]) < 1e-4, (run, text)
