"""The first command of the README, with few steps; tests/docs has its code, its links and its other commands."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SMALL = ["--seeds=0", "--steps=1000", "--config.batch_size=2", "--config.num_updates=1", "--config.network.hidden=8"]


def test_make_run_runs(tmp_path):
    assert "\nmake run " in (ROOT / "README.md").read_text(encoding="utf-8")
    env = {name: x for name, x in os.environ.items() if name not in ("MAKEFLAGS", "ARGS")}  # of a make around this
    dry = ["make", "run", "-n", "--no-print-directory"]
    shown = subprocess.run(dry, cwd=ROOT, capture_output=True, text=True, check=True, env=env).stdout
    python, *own = shlex.split(shown.splitlines()[-1])
    assert python == ".venv/bin/python"
    command = [sys.executable, *own, *SMALL, "--config.rule.lstm=4", f"--out={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "return" in done.stdout and list(tmp_path.glob("*.png")) and list(tmp_path.glob("**/summary.json"))
