"""A process of a program: its cores and its memory."""

import contextlib
import ctypes
import os
import sys

import jax

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_M_TRIM_THRESHOLD, _M_TOP_PAD = -1, -2  # of mallopt, from malloc.h
_THREADS = "/proc/self/task"  # of Linux
_NUM_THREADS = "PJRT_NPROC"  # of XLA's pool


def use_all_cores() -> None:
    """Make every core that this process may use a device of its own, before JAX looks for devices.

    Where the environment already says how many devices the CPU is, it stays so. XLA has as many threads for all devices
    as there are cores: each device may block one in a loop, so that of as many devices none would go on. It gets twice
    as many (measured: PPO with four seeds side by side on two devices hung).
    """
    if _may_choose():
        num = len(os.sched_getaffinity(0))
        jax.config.update("jax_num_cpu_devices", num)
        if num > 1:
            os.environ.setdefault(_NUM_THREADS, str(2 * num))


def use_one_thread() -> None:
    """Let JAX run its programs on one device by one thread, if it has not begun: for small ones with nothing to share.

    On two cores the hand-offs between the threads of a small program cost half of its CPU time again, and save next to
    none of its wall time. JAX takes the size of the pool from the cores that the process may use when it begins;
    other threads, such as those that compile, may use all of them afterwards.
    """
    if not _may_choose():
        return
    cores = os.sched_getaffinity(0)
    os.environ.pop(_NUM_THREADS, None)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with contextlib.suppress(RuntimeError):  # JAX has begun
            jax.config.update("jax_num_cpu_devices", 1)
        jax.devices()
    finally:
        for thread in os.listdir(_THREADS) if os.path.isdir(_THREADS) else [0]:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), cores)


def _may_choose() -> bool:
    is_set = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    return not is_set and "JAX_NUM_CPU_DEVICES" not in os.environ and hasattr(os, "sched_setaffinity")


def peak_memory_mb() -> float:
    """Return how many MiB of memory this process had at most."""
    if resource:
        of_mebibyte = 2**20 if sys.platform == "darwin" else 2**10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // of_mebibyte
    import psutil

    return psutil.Process().memory_info().peak_wset // 2**20


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
