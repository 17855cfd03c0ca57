"""A process of a program: its cores and its memory, and the other processes that it does one run with."""

import atexit
import contextlib
import ctypes
import os
import socket
import sys
import threading
import typing

import jax
import numpy as np
from absl import flags
from jax.experimental import multihost_utils

from experiments.runs.errors import UsageError
from frodo.logs import note

_M_TRIM_THRESHOLD, _M_TOP_PAD = -1, -2  # of mallopt, from malloc.h
_leaving = threading.Lock()


def use_all_cores() -> None:
    """Make every core that this process may use a device of its own, before JAX looks for devices.

    Where the environment already says how many devices the CPU is, it stays so.
    """
    if _may_choose():
        jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))


def use_one_thread() -> None:
    """Let JAX run its programs on one device by one thread, if it has not begun: for small ones with nothing to share.

    On two cores the hand-offs between the threads of a small program cost half of its CPU time again, and save next to
    none of its wall time. JAX takes the size of the pool from the cores that the process may use when it begins;
    other threads, such as those that compile, may use all of them afterwards.
    """
    if not _may_choose():
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with contextlib.suppress(RuntimeError):  # JAX has begun
            jax.config.update("jax_num_cpu_devices", 1)
        jax.devices()
    finally:
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), cores)


def _may_choose() -> bool:
    is_set = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    return not is_set and "JAX_NUM_CPU_DEVICES" not in os.environ and hasattr(os, "sched_setaffinity")


def keep_freed_memory() -> None:
    """Let the C library keep what XLA frees after every call, where it is glibc.

    By default it goes back to the system, and asking for fresh pages takes up to a tenth of the CPU time of large
    networks. Each thread keeps a heap of at most 64 MB, the main one what it needs; what does not fit is mapped, and
    goes back. One heap for all threads, and no maps, would cost small programs a fifth of their speed after compiling.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for parameter, value in {_M_TRIM_THRESHOLD: 2**31 - 1, _M_TOP_PAD: 2**26}.items():
            mallopt(parameter, value)


def define_process_flags() -> None:
    """Define the flags of a program that several processes run together."""
    flags.DEFINE_string("coordinator", "", "host:port of process 0, where several processes do one run.")
    flags.DEFINE_integer("num_processes", 1, "Processes of the run.")
    flags.DEFINE_integer("process_id", 0, "Which of them this one is.")
    flags.DEFINE_integer(
        "timeout", 60, "Seconds to wait for the other processes, at the start and later.", lower_bound=1
    )


def join() -> None:
    """Join the other processes of a run, if the flags say that there are any.

    Where they do not come up within the timeout, the program ends with one line and exit code 2. Where one of them is
    killed later, the others end at once with one line and exit code 1 (`_watch`); where no answer comes any more, JAX
    ends them within the timeout. A coordinator on this machine's loopback listens there alone.

    Raises:
      UsageError: if the arguments do not go together.
    """
    given = flags.FLAGS
    coordinator, num_processes, process_id = given.coordinator, given.num_processes, given.process_id
    if num_processes == 1 and not coordinator:
        return
    if not coordinator or not 0 <= process_id < num_processes:
        raise UsageError(
            f"--process_id={process_id}: with --num_processes={num_processes}, give --coordinator=host:port and a "
            "number below --num_processes to each process"
        )
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # signals are `Run`'s

    def give_up() -> None:  # JAX itself would abort the process with a stack trace
        why = f"not all of {num_processes} processes came up within {given.timeout} s"
        note(f"error: --coordinator={coordinator}: {why}")
        os._exit(2)

    watch = threading.Timer(given.timeout, give_up)
    watch.start()
    how = {"initialization_timeout": given.timeout + 60, "heartbeat_timeout_seconds": given.timeout}
    host = coordinator.rpartition(":")[0]
    is_here = host in ("127.0.0.1", "localhost")
    if is_here:
        how["coordinator_bind_address"] = coordinator
    jax.distributed.initialize(coordinator, num_processes, process_id, **how)
    _watch(host, is_here)
    watch.cancel()


def _watch(host: str, is_here: bool) -> None:
    """End this process when another one is gone: each has a connection to process 0, which the system then closes.

    One that ends as it should says so first.
    """
    is_first = jax.process_index() == 0
    server = socket.create_server((host if is_here else "", 0), backlog=jax.process_count()) if is_first else None
    port = int(multihost_utils.broadcast_one_to_all(np.int32(server.getsockname()[1] if server else 0)))
    if server:
        others = [server.accept()[0] for _ in range(jax.process_count() - 1)]
    else:
        others = [socket.create_connection((host, port))]

    def wait(other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if other.recv(1):
                return
        leave_others()

    def say_goodbye() -> None:
        for other in others:
            with contextlib.suppress(OSError):
                other.sendall(b"\n")

    for other in others:
        threading.Thread(target=wait, args=(other,), daemon=True).start()
    atexit.register(say_goodbye)


def is_of_lost_process(error: jax.errors.JaxRuntimeError) -> bool:
    """Say whether an error of JAX is that another process of the run did not answer; Gloo joins those on CPUs."""
    return "Gloo" in str(error)


def leave_others() -> typing.NoReturn:
    """End this process with one line, because another one of the run is gone.

    To leave in the usual way would be to wait for it, and to be aborted with a stack trace.
    """
    _leaving.acquire()  # for good: one thread says so
    note("error: another process of the run is gone; start all of them with --resume to go on from the last checkpoint")
    os._exit(1)
