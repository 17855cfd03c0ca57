"""The processes that do one run together: they find each other, and where one is gone, the others end.

What they tell each other goes by the key-value store of JAX's own service, which is in process 0.
"""

import atexit
import contextlib
import itertools
import json
import os
import socket
import sys
import threading
import time
from typing import Any, NoReturn

import jax
from absl import flags
from jax._src import distributed  # the store has no public name

from frodo.logs import note
from frodo.runs import folders
from frodo.runs.errors import UsageError
from frodo.runs.provenance import matmul_precision, versions

GOODBYE, FAILED = "goodbye", "failed"  # what a process says before it ends; one that is killed says nothing
ALIVE = "alive"  # what it says until then, BEATS times in the timeout
BEATS = 4
OF_A_PROCESS = ("process_id", "coordinator", "keep_compiled", "flagfile")  # flags that may differ between processes
GRACE = 2.0  # seconds in which a process may tell its own error, after another one had one

_store: Any = None  # what processes say to each other, where there are several
_numbers = itertools.count()  # of what this one says
_has_left = threading.Event()
_ending = threading.Lock()


def define_process_flags() -> None:
    """Define the flags of a program that several processes run together."""
    flags.DEFINE_string("coordinator", "", "host:port of process 0, where several processes do one run.")
    flags.DEFINE_integer("num_processes", 1, "Processes of the run.")
    flags.DEFINE_integer("process_id", 0, "Which of them this one is.")
    flags.DEFINE_integer("timeout", 60, "Seconds to wait for the other processes, initially and later.", lower_bound=1)


def num_devices() -> int:
    """Return over how many devices a batch is split: --num_devices, else all of several processes, else 0."""
    return flags.FLAGS.num_devices or (jax.device_count() if jax.distributed.is_initialized() else 0)


def join() -> None:
    """Join the other processes of a run, if the flags say that there are any.

    Where they do not come up within the timeout, the program ends with one line and exit code 2. Where one of them ends
    by an error, the others end within seconds, with one line and exit code 1; where one is killed, stopped, or cut off
    from the network, they end so after the timeout, or at the next sum over processes that fails. After process 0 is
    killed, JAX is mostly faster, and aborts them with a message of its own. One that hangs in its work is waited for.
    Process 0 listens on the coordinator's address alone.

    Raises:
      UsageError: if the arguments do not go together, or process 0 cannot listen, or the processes differ.
    """
    global _store
    given = flags.FLAGS
    coordinator, num_processes, process_id = given.coordinator, given.num_processes, given.process_id
    if num_processes == 1 and not coordinator:
        return
    if not coordinator or not 0 <= process_id < num_processes:
        raise UsageError(
            f"--process_id={process_id}: with --num_processes={num_processes}, give --coordinator=host:port and a "
            "number below --num_processes to each process"
        )
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UsageError(f"--coordinator={coordinator}: give host:port, such as 10.0.0.1:8476")
    host = host.strip("[]")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # signals are those of `frodo.runs.signals`

    def give_up() -> None:  # JAX itself would abort the process with a stack trace
        why = f"not all of {num_processes} processes came up within {given.timeout} s"
        note(f"error: --coordinator={coordinator}: {why}")
        os._exit(2)

    deadline = threading.Timer(given.timeout, give_up)
    deadline.daemon = True
    deadline.start()
    if process_id == 0:
        try:  # JAX itself would crash, as it still does if another program is faster now
            family = socket.getaddrinfo(host, int(port))[0][0]
            socket.create_server((host, int(port)), family=family).close()
        except OSError as error:
            why = "give an address of this machine, and a port that is free on it"
            raise UsageError(f"--coordinator={coordinator}: {why}: {error}") from None
    later = given.timeout + 60  # by when this module's own lines have been said
    jax.distributed.initialize(
        coordinator,
        num_processes,
        process_id,
        initialization_timeout=later,
        heartbeat_timeout_seconds=later,
        coordinator_bind_address=coordinator,
    )
    if num_processes > 1:
        _store = distributed.global_state.client
        threading.Thread(target=_say_alive, args=(given.timeout / BEATS,), daemon=True).start()
        for other in range(1, num_processes) if process_id == 0 else [0]:
            last = threading.Thread(target=_end_with, args=(other, given.timeout), daemon=True)
            last.start()
        atexit.register(_leave, last)
    try:
        if num_processes > 1:
            _check_same(num_processes, given.timeout)
    finally:
        deadline.cancel()


def _check_same(num_processes: int, timeout: float) -> None:
    """Raise a UsageError in all processes where what they were started with differs, naming the first difference."""
    told: dict[str, Any] = {f"--{name}": flags.FLAGS[name].value for name in flags.FLAGS if name not in OF_A_PROCESS}
    told |= {f"version of {name}": version for name, version in versions().items()}
    told |= {"JAX_DEFAULT_MATMUL_PRECISION": matmul_precision(), "number of devices": jax.local_device_count()}
    _store.key_value_set(f"told/{flags.FLAGS.process_id}", json.dumps(told, default=str))
    texts = [_store.blocking_key_value_get(f"told/{i}", int(1000 * timeout)) for i in range(num_processes)]
    first, *others = map(json.loads, texts)
    for number, other in enumerate(others, start=1):
        for name in first | other:
            if first.get(name) != other.get(name):
                raise UsageError(
                    f"{name} is {first.get(name)} in process 0 and {other.get(name)} in process {number}: expected "
                    "the same in all processes of a run"
                )


def _say(what: str) -> None:
    number = next(_numbers)
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # process 0 may be gone
        _store.key_value_set(f"said/{flags.FLAGS.process_id}/{number}", what)
        _store.key_value_delete(f"said/{flags.FLAGS.process_id}/{number - 4 * BEATS}")


def _say_alive(seconds: float) -> None:
    while not _has_left.wait(seconds):
        _say(ALIVE)


def _end_with(other: int, timeout: float) -> None:
    """Read what another process says, until it says goodbye; where it fails, or says nothing for the timeout, end."""
    said = ALIVE
    for number in itertools.count():
        for _ in range(BEATS):  # a part counts once, also if this process itself was stopped in it for long
            try:
                said = _store.blocking_key_value_get(f"said/{other}/{number}", int(1000 * timeout / BEATS))
                break
            except jax.errors.JaxRuntimeError as error:
                if _has_left.is_set() and not flags.FLAGS.process_id:
                    return  # JAX has taken the store away, at the end of this process
                if "DEADLINE_EXCEEDED" not in str(error):
                    end_without_another()
        else:
            end_without_another(f"it has said nothing for {timeout:.0f} s")
        if said == FAILED:
            time.sleep(GRACE)
            end_without_another()
        if said == GOODBYE:
            return


def _leave(thread: threading.Thread) -> None:
    """Say goodbye; what process 0 does alone at the end, the others wait for, as JAX would not for long."""
    _has_left.set()
    _say(GOODBYE)
    if flags.FLAGS.process_id:
        thread.join()


def are_several() -> bool:
    return _store is not None


def is_of_another(error: Exception) -> bool:
    """Say whether an error is that another process of the run did not answer; Gloo joins those on CPUs.

    JAX raises it, or NumPy as a ValueError where it was to copy what did not come.
    """
    return are_several() and "Gloo" in str(error)


def end_without_another(why: str = "") -> NoReturn:
    """End this process with one line, because another one of the run is gone."""
    text = "another process of the run is gone; start all of them with --resume to go on from the last checkpoint"
    end(1, f"error: {text}" + (f" ({why})" if why else ""))


def end(code: int, text: str) -> NoReturn:
    """End this process by an error that `text` says, and with it the others of the run, if there are any.

    In the usual way it would wait for them, for minutes, and then all would be aborted by JAX with stack traces.
    """
    if not are_several():
        note(text)
        sys.exit(code)
    _ending.acquire()  # for good: one thread ends the process
    try:
        note(text)
        sys.stdout.flush()
        last = threading.Thread(target=_say, args=(FAILED,), daemon=True)
        last.start()
        last.join(GRACE)  # process 0, which has the store, may be stopped
        if flags.FLAGS.process_id == 0:  # JAX aborts those that live longer
            time.sleep(1.5 * GRACE)
        folders.remove_temporary()
    finally:
        os._exit(code)
