"""Runs as jobs: each is done once, by processes of this machine or a cluster; a folder goes on with the same alone."""

import concurrent.futures
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import types
from importlib.metadata import version
from pathlib import Path

import pytest

from experiments.runs import jobs
from experiments.runs.jobs import Job
from frodo import files
from frodo.runs import workers
from frodo.runs.errors import RunError, UsageError

ROOT = Path(__file__).parents[3]
PROBE = """
import os, signal, sys, threading, time
from pathlib import Path

threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()  # as other jobs do
name, seconds = sys.argv[1:]
with open(Path(name, "begun"), "a") as file:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    file.write(f"{os.getpid()} {cores}\\n")
if seconds == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if seconds == "refused":
    sys.exit("error: there is no such thing")
time.sleep(float(seconds))
Path(name, "summary.json").write_text("{}")
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with a program whose jobs say that they have begun."""
    monkeypatch.chdir(tmp_path)
    Path("probe.py").write_text(PROBE)
    return tmp_path


def job(name, does):
    return Job(name, Path(name), "probe", (name, str(does)))


def begun(name):
    """The process and the cores of each time that a job was begun."""
    path = Path(name, "begun")
    return [line.split(" ", 1) for line in path.read_text().splitlines()] if path.exists() else []


def is_alive(process):
    return subprocess.run(["ps", "-o", "stat=", "-p", process], capture_output=True).stdout.strip() not in (b"", b"Z")


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_unfinished_jobs_are_run_and_counted(here, capsys):
    own = [job(*x) for x in (("finished", 0), ("a", 0.1), ("killed", "killed"), ("refused", "refused"), ("b", 0.1))]
    files.write_json(Path("finished", "summary.json"), {})
    with workers.local(1) as executor:
        jobs.run_all(own, executor, here)
    assert [len(begun(one.name)) for one in own] == [0, 1, 1, 1, 1]
    said = re.sub(r" in \d+ s|; about 0 min left", "", capsys.readouterr().err).splitlines()
    assert said == [
        "5 runs, 1 of them finished",
        "a: done; 1 done, 0 running, 0 failed, of 4",
        "killed: failed: it was ended by SIGKILL; 1 done, 0 running, 1 failed, of 4",
        "refused: failed: there is no such thing; 1 done, 0 running, 2 failed, of 4",
        "b: done; 2 done, 0 running, 2 failed, of 4",
    ] or "1 running" in str(said)
    assert [jobs.failure(one.folder) for one in own[1:4]] == ["", "it was ended by SIGKILL", "there is no such thing"]


@pytest.mark.skipif(len(getattr(os, "sched_getaffinity", lambda _: [])(0)) < 2, reason="there is one core")
def test_jobs_side_by_side_share_the_cores(here):
    with workers.local(2) as executor:
        jobs.run_all([job(x, 0.5) for x in "ab"], executor, here)
    first, second = (set(eval(begun(name)[0][1])) for name in "ab")
    assert first and second and first | second == os.sched_getaffinity(0) and not first & second


def interrupt(number):
    """Send a signal to this process as soon as a job has begun."""

    def send():
        wait_for(lambda: begun("one"))
        os.kill(os.getpid(), number)

    threading.Thread(target=send).start()


def test_a_signal_reaches_the_jobs(here, capsys):
    before = signal.getsignal(signal.SIGTERM)
    interrupt(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), workers.local(1) as executor:
        jobs.run_all([job("one", 60), job("two", 60)], executor, here)
    assert not is_alive(begun("one")[0][0]) and not begun("two") and signal.getsignal(signal.SIGTERM) == before
    assert f"go on with the same settings and --resume --out={here}" in capsys.readouterr().err
    assert jobs.failure(Path("one")) == "it said nothing"


def test_a_worker_that_does_not_see_the_folders_is_refused(here):
    for folder, missing in (("/nowhere", "/nowhere"), (str(here), here / "one")):
        with pytest.raises(RunError, match=f"worker .* does not see the folder {missing}: all machines must share it"):
            jobs.run(job("one", 0), folder)


@pytest.fixture(scope="module")
def cluster():
    """A scheduler and two workers of dask.distributed on the loopback."""
    import distributed

    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0", memory_limit=0
    ) as started:
        yield started


def test_on_a_cluster_the_jobs_of_a_worker_that_is_killed_are_run_again(here, cluster, capsys):
    own = [job("one", 1), *(job(str(i), 0.3) for i in range(5)), job("refused", "refused")]
    killed = []

    def kill():
        wait_for(lambda: begun("one"))
        parent = subprocess.check_output(["ps", "-o", "ppid=", "-p", begun("one")[0][0]], text=True)
        killed.append(int(parent))
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    with workers.cluster(cluster.scheduler_address) as executor:
        jobs.run_all(own, executor, here)
    thread.join()
    assert killed and killed[0] not in (os.getpid(), os.getppid())
    assert [jobs.failure(one.folder) for one in own] == [""] * 6 + ["there is no such thing"]
    assert [len(begun(one.name)) for one in own[1:]] == [1] * 6 and len(begun("one")) == 2
    said = capsys.readouterr().err
    assert "6 done, 0 running, 1 failed, of 7" in said and re.search("1 done, [12] running, [01] failed, of 7", said)


def test_on_a_cluster_a_signal_reaches_the_jobs(here, cluster):
    interrupt(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), workers.cluster(cluster.scheduler_address) as executor:
        jobs.run_all([job("one", 60), job("two", 60), job("three", 60)], executor, here)
    wait_for(lambda: not any(is_alive(process) for name in ("one", "two") for process, _ in begun(name)))
    assert not begun("three")


def test_a_job_is_refused_where_a_version_differs():
    expected = [version(name) for name in workers.SAME]
    job = pickle.dumps((len, ("four",)))
    assert workers.refuse_or_run(expected, job) == 4
    message = f"^worker .*, process {os.getpid()}, has jax {expected[1]}, expected 9.9 as here: install the same"
    with pytest.raises(RunError, match=message):
        workers.refuse_or_run([expected[0], "9.9"], job)


@pytest.mark.long
@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("package, other", [("frodo-rl", "0.0.9"), ("jax", "9.9"), ("", "")])
def test_a_worker_of_another_version_or_without_the_package_is_refused(here, package, other, is_late):
    """It is there when the jobs are handed over, or comes later, as those of Slurm do."""
    import distributed

    (here / "packages" / "frodo").mkdir(parents=True)
    if package:
        info = here / "packages" / f"{package.replace('-', '_')}-{other}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {other}\n")
        message = f"^worker .* has {package} {other}, expected {version(package)} as here: install the same version"
    else:
        (here / "packages" / "frodo" / "__init__.py").write_text("raise ImportError('there is none')")
        message = "^a worker cannot do a job: there is none: install frodo-rl .* and jax .* there$"
    env = os.environ | {"PYTHONPATH": f"{here / 'packages'}:{ROOT}"}
    with distributed.LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster:
        command = [sys.executable, "-m", "distributed.cli.dask_worker", cluster.scheduler_address]
        command += ["--host=127.0.0.1", "--no-dashboard", "--nthreads=1", "--no-nanny"]
        with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) as worker:
            try:
                wait_for(lambda: is_late or cluster.scheduler.workers)
                with pytest.raises(RunError, match=message), workers.cluster(cluster.scheduler_address) as executor:
                    jobs.run_all([job("one", 0), job("two", 0)], executor, here)
            finally:
                worker.kill()
    assert not begun("one") and not begun("two")


def test_a_job_that_a_cluster_gives_up_has_failed(here, capsys):
    import distributed.scheduler

    class Executor(concurrent.futures.Executor):
        def submit(self, *arguments):
            future = concurrent.futures.Future()
            future.set_exception(
                distributed.scheduler.KilledWorker("one", types.SimpleNamespace(address="tcp://a:1"), 3)
            )
            return future

    jobs.run_all([job("one", 0)], Executor(), here)
    assert "one: failed: it was lost with its worker, again and again: " in capsys.readouterr().err
    Executor.submit = lambda *_: cancelled()
    with pytest.raises(RunError, match="^the scheduler or the executor is gone"):
        jobs.run_all([job("one", 0)], Executor(), here)


def cancelled():
    future = concurrent.futures.Future()
    future.cancel()
    future.set_running_or_notify_cancel()
    return future


@pytest.mark.long
def test_on_a_cluster_the_jobs_of_a_process_that_is_killed_stop(here, cluster):
    handing = (
        "import sys\nfrom pathlib import Path\nfrom experiments.runs import jobs\nfrom frodo.runs import workers\n"
        f"with workers.cluster({cluster.scheduler_address!r}) as executor:\n"
        "  jobs.run_all([jobs.Job('one', Path('one'), 'probe', ('one', '60'))], executor, Path())"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", handing], env=env) as process:
        wait_for(lambda: begun("one"))
        process.kill()
    wait_for(lambda: not is_alive(begun("one")[0][0]))


@pytest.mark.parametrize("address", ["host", "tcp://host", "http://127.0.0.1:1", "tcp://127.0.0.1:1"])
def test_an_address_without_a_scheduler_is_refused(address, monkeypatch):
    monkeypatch.setattr(workers, "SECONDS", 0.5)
    with pytest.raises(UsageError, match=f"^--scheduler={address}: no scheduler answers there .*tcp://host:8786$"):
        with workers.cluster(address):
            pass


def test_without_the_extra_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r"^--scheduler=tcp://a:1: .*pip install 'frodo-rl\[cluster\]'$"):
        with workers.cluster("tcp://a:1"):
            pass


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
