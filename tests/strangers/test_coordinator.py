"""Where process 0 of several listens: on the address that was named alone. Nothing here listens."""

import socket
import threading

import jax
import pytest
from absl import flags

from experiments.runs import processes
from frodo.runs.errors import UsageError


class Stopped(Exception):
    pass


@pytest.fixture
def join(monkeypatch):
    """Return a function that lets process 0 join, up to JAX: the address that JAX would bind, and what was tried."""
    flags_before = set(flags.FLAGS)
    processes.define_process_flags()
    flags.FLAGS.mark_as_parsed()

    def join(host, create=None):
        asked, said = [], {}

        def listen(address, family):
            asked.append((address, family))
            return socket.socket()  # bound to nothing

        def initialize(*where, **how):
            said.update(how)
            raise Stopped

        monkeypatch.setattr(socket, "create_server", create or listen)
        monkeypatch.setattr(jax.distributed, "initialize", initialize)
        flags.FLAGS.coordinator, flags.FLAGS.num_processes = f"{host}:8476", 2
        with pytest.raises(Stopped):
            processes.join()
        return said["coordinator_bind_address"], asked

    monkeypatch.setattr(jax.config, "update", lambda *setting: None)
    monkeypatch.setattr(threading.Timer, "start", lambda self: None)
    yield join
    for name in set(flags.FLAGS) - flags_before:
        delattr(flags.FLAGS, name)
    flags.FLAGS.unparse_flags()


NAMES = {"trainer": socket.AF_INET, "trainer6": socket.AF_INET6}  # of this machine, by what resolves names


@pytest.mark.parametrize("host", ["127.0.0.1", "127.255.1.9", "10.1.2.3", "[::1]", "[2001:db8::7]", *NAMES])
def test_process_0_listens_where_it_was_named(join, host, monkeypatch):
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda x, port: [(NAMES[x],)] if x in NAMES else resolve(x, port))
    family = NAMES.get(host, socket.AF_INET6 if ":" in host else socket.AF_INET)
    assert join(host) == (f"{host}:8476", [((host.strip("[]"), 8476), family)])


def test_an_address_of_another_machine_is_refused(join):
    def refuse(address, family):
        raise OSError(99, "Cannot assign requested address")

    with pytest.raises(UsageError, match="--coordinator=192.0.2.1:8476: give an address of this machine, and a port"):
        join("192.0.2.1", refuse)
