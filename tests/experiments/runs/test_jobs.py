"""Runs as processes: what is finished is not run again, and a folder goes on with the same settings alone."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from experiments.runs import jobs
from experiments.runs.jobs import Job
from frodo import files
from frodo.runs.errors import UsageError


def test_only_unfinished_jobs_are_run(tmp_path, monkeypatch):
    both = [Job(name, tmp_path / name, "experiments.online", ()) for name in ("done", "waiting")]
    finish = lambda job: files.write_json(job.folder / "summary.json", {})
    finish(both[0])
    started = []

    class Process:
        returncode = 0

        def poll(self):
            finish(both[1])
            return 0

    monkeypatch.setattr(jobs, "begin", lambda job, cores: started.append(job) or Process())
    jobs.run_all(both, 2, tmp_path)
    assert started == both[1:]
    jobs.run_all(both, 2, tmp_path)
    assert len(started) == 1


def test_sigterm_reaches_the_jobs(tmp_path, monkeypatch):
    started = []

    def start(job, cores):
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        return started[0]

    monkeypatch.setattr(jobs, "begin", start)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        jobs.run_all([Job("one", tmp_path, "experiments.online", ())], 1, tmp_path)
    assert started[0].wait(10) == -signal.SIGTERM and signal.getsignal(signal.SIGTERM) == before


def test_a_signal_that_was_turned_off_stays_so(tmp_path, monkeypatch):
    def start(job, cores):
        os.kill(os.getpid(), signal.SIGHUP)
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.5)"])

    monkeypatch.setattr(jobs, "begin", start)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        jobs.run_all([Job("one", tmp_path, "experiments.online", ())], 1, tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_folder_goes_on_with_the_same_alone(tmp_path):
    opened = lambda record, folder=tmp_path, **how: jobs.open_folder(
        folder, "comparison", record, ("cells/*",), **{"resume": False, "overwrite": False} | how
    )
    record = {"seeds": (0, 3), "methods": ("impala", "frodo")}
    opened(record)
    with pytest.raises(UsageError, match="holds a comparison: --resume"):
        opened(record)
    opened(record, resume=True)
    with pytest.raises(UsageError, match=r"methods was \['impala', 'frodo'\] .* is \['impala'\] now"):
        opened(record | {"methods": ("impala",)}, resume=True)
    more = record | {"methods": ("frodo", "impala", "ppo")}
    with pytest.raises(UsageError, match="methods was"):
        opened(more, resume=True)
    with pytest.raises(UsageError, match="seeds was"):
        opened(more | {"seeds": (0, 3, 4)}, resume=True, growing=("methods",))
    opened(more, resume=True, growing=("methods",))
    with pytest.raises(UsageError, match="methods was .*'ppo'"):  # it does not shrink
        opened(record, resume=True, growing=("methods",))
    with pytest.raises(UsageError, match="holds no comparison"):
        opened(record, folder=tmp_path / "other", resume=True)
    budgets = {"budgets": {"catch": 5}}  # of the kinds of environments that there were
    opened(budgets, folder=tmp_path / "budgets")
    opened({"budgets": {"catch": 5, "rooms": 3}}, folder=tmp_path / "budgets", resume=True, growing=("budgets",))
    with pytest.raises(UsageError, match="budgets was"):
        opened({"budgets": {"catch": 6, "rooms": 3}}, folder=tmp_path / "budgets", resume=True, growing=("budgets",))
    earlier, later = {"files": {"one": "a"}}, {"files": {"one": "a", "new": ""}}  # that an earlier version had not
    opened(earlier, folder=tmp_path / "files")
    opened(later, folder=tmp_path / "files", resume=True)
    with pytest.raises(UsageError, match="files was"):
        opened({"files": {"one": "a", "new": "b"}}, folder=tmp_path / "files", resume=True)
    opened({"limit": float("inf")}, folder=tmp_path / "inf")
    opened({"limit": float("inf")}, folder=tmp_path / "inf", resume=True)
    (tmp_path / "cells" / "one").mkdir(parents=True)
    (tmp_path / "cells" / ".hidden").touch()
    opened(record | {"seeds": (1,)}, overwrite=True)
    assert not list((tmp_path / "cells").iterdir())


def test_what_a_process_died_of_is_said(tmp_path, monkeypatch):
    kill = lambda job, cores: subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    monkeypatch.setattr(jobs, "begin", kill)
    jobs.run_all([Job("one", tmp_path, "experiments.online", ())], 1, tmp_path)
    assert jobs.failure(tmp_path) == "it was ended by SIGKILL"
