"""Programs as a user meets them: what they answer to a mistake and to Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = (sys.executable, "-m")


def start(*args):
    return subprocess.run([*PYTHON, *args], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["online", "--env=toy/cach"], "the nearest match is 'toy/catch'"),
        (["online", "--rule=frod"], "rule.name is 'frod', .* (did you mean 'frodo'?)"),
        (["online", "--config.unrol=3"], "--config.unrol is no flag of this program; did you mean --config.unroll?"),
        (["online", "--config.num_updates=0"], "num_updates is 0, expected an integer of at least 1"),
        (["catch", "--rule=z"], "--rule=z: give one of frodo, q, learned_loss"),
        (["online", "--env=toy/random_walk", "--rule=impala"], "rule.kind is 'prediction', expected 'actor_critic'"),
    ],
)
def test_a_mistake_is_answered_in_one_line(args, message, tmp_path):
    done = start(f"experiments.{args[0]}", *args[1:], f"--out={tmp_path / 'run'}")
    pattern = message.split(" .* ")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ") and all(part in done.stderr for part in pattern), done.stderr
    assert not (tmp_path / "run").exists()


def test_an_interrupted_run_saves_and_says_how_to_go_on(tmp_path):
    args = [*PYTHON, "experiments.online", "--config.batch_size=2", "--config.network.hidden=8", "--config.rule.lstm=4"]
    args += ["--steps=1e9", f"--out={tmp_path}"]
    env = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(args, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=env) as process:
        while not (tmp_path / "metrics.csv").exists() and process.poll() is None:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert f"go on with the same settings and --resume --out={tmp_path}" in stderr.splitlines()[-1]
    assert len(list((tmp_path / "checkpoints").glob("[0-9]*"))) == 1
    assert not (tmp_path / "summary.json").exists()
