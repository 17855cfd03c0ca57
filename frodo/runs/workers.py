"""Jobs that do not depend on each other, on an executor: the cores of this machine, or the workers of a cluster.

A job is a function with arguments, both of which can be pickled. It is done by an executor of `concurrent.futures`:
`local`, whose jobs are processes of this machine, or `cluster`, the workers of dask.distributed, which runs the jobs of
a worker that was lost again on another one.
"""

import concurrent.futures
import contextlib
import itertools
import os
import pickle
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from importlib.metadata import version as _version
from typing import Any

from frodo.runs.errors import RunError, UsageError
from frodo.runs.signals import Signals

SAME = ("frodo-rl", "jax")  # packages that a worker has in the same version
SECONDS = 10  # in which a scheduler answers

_is_stopping = threading.Event()  # of jobs in threads of this process: nobody waits for them any more


@contextlib.contextmanager
def local(num_processes: int) -> Iterator[Executor]:
    """Run so many jobs at a time in threads, for jobs that are processes: each has its share of the cores."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    places = itertools.count()

    def pin() -> None:  # a thread, and the processes that it starts
        if own := cores[next(places) :: num_processes]:
            os.sched_setaffinity(0, own)

    with concurrent.futures.ThreadPoolExecutor(num_processes, initializer=pin) as executor:
        yield executor


@contextlib.contextmanager
def cluster(address: str) -> Iterator[Executor]:
    """Run jobs on the workers of the dask.distributed scheduler at an address, such as tcp://host:8786.

    Raises:
      UsageError: if dask.distributed is not installed, or no scheduler answers.
      RunError: if a worker has another version of this package or of JAX, which it names.
    """
    try:
        import distributed
    except ImportError:
        raise UsageError(f"--scheduler={address}: it needs dask.distributed: pip install 'frodo-rl[cluster]'") from None
    try:
        distributed.comm.get_address_host_port(address, strict=True)
        client = distributed.Client(address, timeout=SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        expected = "give the address that `dask scheduler` says, such as tcp://host:8786"
        raise UsageError(f"--scheduler={address}: no scheduler answers there ({error}); {expected}") from None
    with client:
        for name in SAME:
            for worker, own in client.run(_version, name, on_error="return").items():
                _refuse_other(worker, name, own, _version(name))
        yield client.get_executor(pure=False)


def submit(executor: Executor, function: Callable[..., Any], *arguments: Any) -> Future:
    """Hand a job to an executor; a worker with another version of this package or of JAX refuses it by a RunError.

    What is handed over can be read without this package, too: dask.distributed would lose a worker that cannot.
    """
    job = {"expected": [_version(name) for name in SAME], "job": pickle.dumps((function, arguments))}
    return executor.submit(eval, f"__import__({__name__!r}, fromlist='*').refuse_or_run(expected, job)", job)


def refuse_or_run(expected: Sequence[str], job: bytes) -> Any:
    """Do a job, on a worker, if this process has the expected versions of SAME."""
    for name, version in zip(SAME, expected, strict=True):
        _refuse_other(name_of_worker(), name, _version(name), version)
    function, arguments = pickle.loads(job)
    return function(*arguments)


def _refuse_other(worker: str, name: str, own: object, expected: str) -> None:
    if own != expected:
        raise RunError(f"worker {worker} has {name} {own}, expected {expected} as here: install the same version there")


def name_of_worker() -> str:
    """Return the name of this process among those of all machines."""
    return f"{socket.gethostname()}, process {os.getpid()},"


def result_of(future: Future) -> Any:
    """Return what a job came to.

    Raises:
      RunError: if a worker refused it, or does not have this package, or the scheduler is gone.
      Exception: that of the job.
    """
    try:
        return future.result()
    except (concurrent.futures.CancelledError, concurrent.futures.BrokenExecutor):
        raise RunError(
            "the scheduler or the executor is gone, or has cancelled a job: a run in a folder goes on"
        ) from None
    except (ImportError, AttributeError) as error:
        if "module" not in str(error) and not isinstance(error, ImportError):
            raise
        expected = " and ".join(f"{name} {_version(name)}" for name in SAME)
        raise RunError(f"a worker cannot do a job: {error}: install {expected} there") from error


def is_lost(error: Exception) -> bool:
    """Say whether an error is that of a cluster which gave a job up, as its workers were lost again and again."""
    return type(error).__module__.startswith("distributed.")


def run_all(
    executor: Executor,
    function: Callable[..., Any],
    jobs: Mapping[str, tuple[Any, ...]],
    on_done: Callable[[str, Future], None],
) -> None:
    """Do jobs, and call back when one is done.

    After an error, Ctrl-C or SIGTERM jobs that wait are dropped, and those that run are asked to end (`is_cancelled`).

    Args:
      executor: that does them.
      function: of all jobs.
      jobs: the arguments of each by its name.
      on_done: called with the name and the future (`result_of`).
    Raises:
      KeyboardInterrupt: after Ctrl-C or SIGTERM.
    """
    _is_stopping.clear()
    waiting = {submit(executor, function, *arguments): name for name, arguments in jobs.items()}
    try:
        with Signals() as signals:
            while waiting:
                done, _ = concurrent.futures.wait(waiting, 0.2, concurrent.futures.FIRST_COMPLETED)
                if signals.number:
                    raise KeyboardInterrupt
                for future in done:
                    on_done(waiting.pop(future), future)
    finally:
        if waiting:
            _is_stopping.set()
        for future in waiting:
            future.cancel()


def is_cancelled() -> bool:
    """Say, in a job, whether nobody waits for it any more."""
    if "distributed" in sys.modules:
        import distributed

        with contextlib.suppress(ValueError):  # this is no worker of a cluster
            worker = distributed.get_worker()
            task = worker.state.tasks.get(worker.get_current_task())
            return task is None or task.state == "cancelled"
    return _is_stopping.is_set()
