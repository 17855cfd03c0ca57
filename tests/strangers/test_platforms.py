"""Windows and macOS: what their Pythons lack is not imported, locks and memory are by what they have."""

import json
import os
import subprocess
import sys
import types

import pytest

from experiments.runs import jobs
from frodo.runs import cores, folders, workers
from frodo.runs.errors import UsageError

MODULES = ("fcntl", "resource", "pwd", "grp", "termios")
OF_OS = ("sched_getaffinity", "sched_setaffinity", "fork", "killpg", "getpgid", "setsid", "sysconf")
OF_OS += ("getuid", "geteuid", "getloadavg", "fchmod", "mkfifo", "posix_fallocate")
OF_SIGNAL = ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD", "alarm", "pthread_kill")
# Other packages are as they are here; ours are imported after what Windows lacks has gone.
AS_ON_WINDOWS = f"""
import importlib, os, pkgutil, runpy, signal, sys
import asyncio, multiprocessing.util, subprocess, tempfile, unittest.mock
import bsuite, chex, envpool, gymnasium, gymnax, haiku, jax, matplotlib.pyplot, navix, optax, pandas, psutil
import rlax, scipy.stats, tensorboardX, wandb, xminigrid
import jax.experimental.multihost_utils, jax.experimental.pallas

jax.devices()

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name in {MODULES}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuse())
for name in {MODULES}:
    sys.modules.pop(name, None)
for module, names in ((os, {OF_OS}), (signal, {OF_SIGNAL})):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
import toy_envs, agents, meta, frodo, experiments
for package in (toy_envs, agents, meta, frodo, experiments):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(found.name)
import frodo.runs.folders
print("fcntl is", frodo.runs.folders.fcntl)
sys.argv = ["online", *sys.argv[1:]]
runpy.run_module("experiments.online", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
def test_all_packages_are_imported_and_a_program_runs_without_what_windows_lacks(tmp_path):
    arguments = ["--env=toy/bandit/2", "--rule=impala", "--config.batch_size=2", "--config.network.hidden=8"]
    arguments += ["--steps=500", f"--out={tmp_path}/run"]
    command = [sys.executable, "-W", "ignore", "-c", AS_ON_WINDOWS, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "fcntl is None" in done.stdout and "is not locked: this platform has no locks" in done.stderr
    assert json.loads((tmp_path / "run/summary.json").read_text())["env_steps"] > 0
    header, first, *_ = (tmp_path / "run/metrics.csv").read_text().splitlines()
    assert dict(zip(header.split(","), first.split(","), strict=True))["peak_memory_mb"] == ""  # which nobody tells


class Msvcrt(types.SimpleNamespace):
    """Windows' locks, as far as they are used: of bytes of a file, one holder each."""

    LK_NBLCK = 2

    def __init__(self):
        self.holders = {}

    def locking(self, descriptor, mode, num_bytes):
        assert (mode, num_bytes) == (self.LK_NBLCK, 1)
        file = os.fstat(descriptor).st_ino
        holder = self.holders.setdefault(file, descriptor)
        if holder != descriptor:
            raise PermissionError(13, "Permission denied")


def test_a_folder_is_locked_by_what_windows_has(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "fcntl", None)
    monkeypatch.setattr(folders, "msvcrt", Msvcrt())
    with folders.locked(tmp_path):
        with pytest.raises(UsageError, match="is being written by another process: wait for its end"):
            with folders.locked(tmp_path):
                pass
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    folders.check_free(tmp_path, folders.RunOptions((0,), 1))  # which is no run


def test_a_job_waits_for_a_lock(tmp_path, monkeypatch):
    tries = iter([False, False, True])
    monkeypatch.setattr(folders, "_is_locked", lambda descriptor: next(tries))
    monkeypatch.setattr(folders.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(folders, "may_wait", True)
    with folders.locked(tmp_path):
        pass
    assert next(tries, None) is None


@pytest.mark.parametrize("platform, told, expected", [("linux", 5 * 2**10, 5), ("darwin", 5 * 2**20, 5)])
def test_peak_memory_is_in_the_units_of_the_platform(monkeypatch, platform, told, expected):
    monkeypatch.setattr(cores.resource, "getrusage", lambda who: types.SimpleNamespace(ru_maxrss=told))
    monkeypatch.setattr(cores.sys, "platform", platform)
    assert cores.peak_memory_mb() == expected


def test_on_windows_peak_memory_is_that_of_the_working_set(monkeypatch):
    monkeypatch.setattr(cores, "resource", None)
    process = types.SimpleNamespace(memory_info=lambda: types.SimpleNamespace(peak_wset=7 * 2**20))
    monkeypatch.setitem(sys.modules, "psutil", types.SimpleNamespace(Process=lambda: process))
    assert cores.peak_memory_mb() == 7


def test_jobs_are_run_without_the_signals_of_unix(monkeypatch, tmp_path):
    monkeypatch.delattr(jobs.signal, "SIGHUP")
    with workers.local(1) as executor:
        jobs.run_all([], executor, tmp_path)


def test_what_a_job_says_is_read_whatever_bytes_it_is(tmp_path):
    (tmp_path / "log.txt").write_bytes("error: δ² is \xff".encode("latin-1", "replace") + b"\xff\xfe\n")
    assert jobs.failure(tmp_path).startswith("?")


def test_text_files_say_what_encoding_they_have():
    """Windows' own is another one."""
    from tests.test_structure import ROOT

    packages = ("toy_envs", "agents", "meta", "frodo", "experiments")
    code = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    done = subprocess.run(
        [sys.executable, "-c", ENCODINGS, *map(str, code)], capture_output=True, text=True, check=True
    )
    assert not done.stdout.split("\n")[:-1]


ENCODINGS = """
import ast, sys
for path in sys.argv[1:]:
    for node in ast.walk(ast.parse(open(path, encoding="utf-8").read())):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        given = [ast.unparse(x) for x in node.args] + [x.arg for x in node.keywords]
        is_text = name in ("read_text", "write_text") or (name == "open" and not any("b'" in x for x in given))
        of_bytes = ("os.open", "tarfile.open", "self._file.open")  # the last is of an archive
        if is_text and "encoding" not in given and ast.unparse(node.func) not in of_bytes:
            print(f"{path}:{node.lineno}: {ast.unparse(node)}")
"""
