"""The processes that do one run together: they find each other, and where one is gone, the others end."""

import atexit
import collections
import contextlib
import json
import os
import secrets
import selectors
import socket
import sys
import threading
import time
from typing import Any, NoReturn

import jax
import numpy as np
from absl import flags
from jax.experimental import multihost_utils

from frodo.logs import note
from frodo.runs import folders
from frodo.runs.errors import UsageError
from frodo.runs.provenance import matmul_precision, versions

GOODBYE, FAILED = b"g", b"f"  # what a process says before it ends; one that is killed says nothing
ALIVE = b"a"  # what it says until then, four times in the timeout
OF_A_PROCESS = ("process_id", "coordinator", "keep_compiled", "flagfile")  # flags that may differ between processes
MAX_STRANGERS = 64  # that are listened to at a time, where the processes are gathered
GRACE = 2.0  # seconds in which a process may tell its own error, after another one had one

_others: list[socket.socket] = []  # those of process 0 to all others, or the one to process 0
_ending = threading.Lock()
_last_alive = 0.0  # when this process last said that it is


def define_process_flags() -> None:
    """Define the flags of a program that several processes run together."""
    flags.DEFINE_string("coordinator", "", "host:port of process 0, where several processes do one run.")
    flags.DEFINE_integer("num_processes", 1, "Processes of the run.")
    flags.DEFINE_integer("process_id", 0, "Which of them this one is.")
    flags.DEFINE_integer(
        "timeout", 60, "Seconds to wait for the other processes, at the start and later.", lower_bound=1
    )


def num_devices() -> int:
    """Return over how many devices a batch is split: --num_devices, else all of several processes, else 0."""
    return flags.FLAGS.num_devices or (jax.device_count() if jax.distributed.is_initialized() else 0)


def join() -> None:
    """Join the other processes of a run, if the flags say that there are any.

    Where they do not come up within the timeout, the program ends with one line and exit code 2. Where one of them is
    killed later, the others end at once with one line and exit code 1, unless after process 0 JAX is faster, and aborts
    them with a message of its own. Where one is stopped, or cut off from the network, they end so after the timeout;
    one that hangs in its work is waited for. Process 0 listens on the coordinator's address alone.

    Raises:
      UsageError: if the arguments do not go together, or process 0 cannot listen or be reached.
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
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UsageError(f"--coordinator={coordinator}: give host:port, such as 10.0.0.1:8476")
    host = host.strip("[]")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # signals are those of `frodo.runs.signals`

    address = ""  # where process 0 listens

    def give_up() -> None:  # JAX itself would abort the process with a stack trace
        why = f"not all of {num_processes} processes came up within {given.timeout} s"
        if address not in ("", host):
            why += f"; process 0 listens on {address}, which {host} is on its machine"
        note(f"error: --coordinator={coordinator}: {why}")
        os._exit(2)

    deadline = threading.Timer(given.timeout, give_up)
    deadline.daemon = True
    deadline.start()
    later = given.timeout + 60  # by when this module's own lines have been said
    how = {"initialization_timeout": later, "heartbeat_timeout_seconds": later}
    if process_id == 0:
        try:
            address = _address_of(host)
            _listen(address, int(port)).close()
        except OSError as error:  # JAX itself would crash, as it still does if another program is faster now
            why = "give an address of this machine, and a port that is free on it"
            raise UsageError(f"--coordinator={coordinator}: {why}: {error}") from None
        how["coordinator_bind_address"] = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    jax.distributed.initialize(coordinator, num_processes, process_id, **how)
    counts = collections.Counter(device.process_index for device in jax.devices())
    if len(set(counts.values())) > 1:  # what processes tell each other would already fail
        found = ", ".join(f"{counts[i]} in process {i}" for i in sorted(counts))
        raise UsageError(f"number of devices is {found}: expected the same in all processes of a run")
    try:
        _connect(host, address, given.timeout)
    except OSError as error:
        raise UsageError(f"--coordinator={coordinator}: process 0 cannot be reached there: {error}") from None
    deadline.cancel()
    _check_same()


def _check_same() -> None:
    """Raise a UsageError in all processes where flags, versions or precision differ, naming the first difference."""
    told: dict[str, Any] = {f"--{name}": flags.FLAGS[name].value for name in flags.FLAGS if name not in OF_A_PROCESS}
    told |= {f"version of {name}": version for name, version in versions().items()}
    told["JAX_DEFAULT_MATMUL_PRECISION"] = matmul_precision()
    own = json.dumps(told, default=str)
    text = np.frombuffer(own.encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.array(len(text)))
    padded = np.zeros(max(sizes), np.uint8)
    padded[: len(text)] = text
    texts = multihost_utils.process_allgather(padded)
    first, *others = (json.loads(bytes(one[:size])) for one, size in zip(texts, sizes, strict=True))
    for number, other in enumerate(others, start=1):
        for name in first | other:
            if first.get(name) != other.get(name):
                raise UsageError(
                    f"{name} is {first.get(name)} in process 0 and {other.get(name)} in process {number}: expected "
                    "the same in all processes of a run"
                )


def _connect(host: str, address: str, timeout: float) -> None:
    """Connect every process with process 0: the system closes the connections of a process that is killed.

    Process 0 listens on an address, the others reach it by the host's name.
    """
    num_others = jax.process_count() - 1
    if not num_others:
        return
    server = _listen(address) if jax.process_index() == 0 else None
    found = np.array([server.getsockname()[1] if server else 0, secrets.randbits(31)], np.int32)
    port, token = (int(x) for x in multihost_utils.broadcast_one_to_all(found))
    password = token.to_bytes(4, "big")
    if server:
        with server:
            _others.extend(_gather(server, password, num_others))
    else:
        _others.append(socket.create_connection((host, port)))
        _others[0].sendall(password)
    threading.Thread(target=_say_alive, args=(timeout / 4,), daemon=True).start()
    for other in _others:
        other.settimeout(timeout)
        last = threading.Thread(target=_end_with, args=(other,), daemon=True)
        last.start()
    atexit.register(_leave, last)


def _say_alive(seconds: float) -> None:
    global _last_alive
    while True:
        _last_alive = time.monotonic()
        _say(ALIVE)
        time.sleep(seconds)


def _leave(thread: threading.Thread) -> None:
    """Say goodbye; what process 0 does alone at the end, the others wait for, as JAX would not for long."""
    _say(GOODBYE)
    if jax.process_index():
        thread.join()


def _gather(server: socket.socket, password: bytes, num: int) -> list[socket.socket]:
    """Return the connections of so many that say the password; strangers, who do not, are in nobody's way."""
    found: list[socket.socket] = []
    said: dict[socket.socket, bytes] = {}  # by those of whom it is not known yet, the one that came first first
    server.setblocking(False)
    with selectors.DefaultSelector() as ready:

        def part(other: socket.socket) -> socket.socket:
            ready.unregister(other)
            del said[other]
            return other

        ready.register(server, selectors.EVENT_READ)
        while len(found) < num:
            for one in [key.fileobj for key, _ in ready.select()]:
                assert isinstance(one, socket.socket)
                if one is server:
                    with contextlib.suppress(OSError):  # one that is gone already
                        other = server.accept()[0]
                        other.setblocking(False)
                        ready.register(other, selectors.EVENT_READ)
                        said[other] = b""
                    if len(said) > MAX_STRANGERS:
                        part(next(iter(said))).close()
                elif one in said:
                    more = b""
                    with contextlib.suppress(OSError):
                        more = one.recv(len(password) - len(said[one]))
                    said[one] += more
                    if said[one] == password:
                        found.append(part(one))
                    elif not more or not password.startswith(said[one]):
                        part(one).close()
    for stranger in said:
        stranger.close()
    return found


def _address_of(host: str) -> str:
    """Return the address that a host's name has here, of IPv4 if there is one."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return str(min(found, key=lambda one: one[0] != socket.AF_INET)[4][0])


def _listen(address: str, port: int = 0) -> socket.socket:
    return socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)


def _end_with(other: socket.socket) -> None:
    """Wait until another process ends, or says nothing for the timeout; unless it says goodbye, end, too."""
    said, timeout = ALIVE, other.gettimeout() or 0.0
    while said == ALIVE:
        try:
            said = other.recv(1)
        except TimeoutError:
            if time.monotonic() - _last_alive < timeout / 2:  # else this process itself was stopped for a while
                end_without_another(f"it has said nothing for {timeout:.0f} s")
        except OSError:
            said = b""
    if said == GOODBYE:
        return
    if said == FAILED:
        time.sleep(GRACE)
    end_without_another()


def _say(what: bytes) -> None:
    for other in _others:
        with contextlib.suppress(OSError):
            other.sendall(what)


def are_several() -> bool:
    return bool(_others)


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
    if not _others:
        note(text)
        sys.exit(code)
    _ending.acquire()  # for good: one thread ends the process
    try:
        note(text)
        sys.stdout.flush()
        _say(FAILED)
        if jax.process_index() == 0:  # JAX aborts those that live longer
            time.sleep(1.5 * GRACE)
        folders.remove_temporary()
    finally:
        os._exit(code)
