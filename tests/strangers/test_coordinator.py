"""Where process 0 of several listens, and strangers who connect to it. Nothing here listens but on the loopback."""

import socket
import threading

import jax
import pytest
from absl import flags

from experiments.runs import processes
from frodo.runs.errors import UsageError

PASSWORD = b"\x01\x02\x03\x04"


class Stopped(Exception):
    pass


@pytest.fixture
def join(monkeypatch):
    """Return a function that lets process 0 join, up to JAX: the address that JAX would bind, and those of sockets."""
    flags_before = set(flags.FLAGS)
    processes.define_process_flags()
    flags.FLAGS.mark_as_parsed()

    def join(host):
        asked, said = [], {}

        def listen(address, family):
            asked.append((address[0], family))
            return socket.socket()  # bound to nothing

        def initialize(*where, **how):
            said.update(how)
            raise Stopped

        monkeypatch.setattr(socket, "create_server", listen)
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


@pytest.mark.parametrize(
    "host, address",
    [("127.0.0.1", "127.0.0.1"), ("127.0.0.2", "127.0.0.2"), ("127.255.1.9", "127.255.1.9"), ("localhost", "127.0.0.1")]
    + [("10.1.2.3", "10.1.2.3")],
)
def test_process_0_listens_on_the_address_that_was_named_alone(join, host, address):
    assert join(host) == (f"{address}:8476", [(address, socket.AF_INET)])


@pytest.mark.parametrize("host", ["[::1]", "[2001:db8::7]"])
def test_of_ipv6_too(join, host):
    assert join(host) == (f"{host}:8476", [(host.strip("[]"), socket.AF_INET6)])


def test_a_name_is_the_address_that_it_has_here(join, monkeypatch):
    found = [(socket.AF_INET6, 0, 0, "", ("fe80::1", 0, 0, 0)), (socket.AF_INET, 0, 0, "", ("10.9.8.7", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *of, **how: found)
    assert join("trainer") == ("10.9.8.7:8476", [("10.9.8.7", socket.AF_INET)])


def test_an_address_of_another_machine_is_refused(join, monkeypatch):
    def refuse(*of, **how):
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(processes, "_listen", refuse)
    with pytest.raises(UsageError, match="--coordinator=192.0.2.1:8476: give an address of this machine, and a port"):
        join("192.0.2.1")


@pytest.mark.parametrize("first", [b"", b"\x01\x02", b"GET / HTTP/1.1\r\n\r\n"])
def test_strangers_are_in_nobodys_way(first):
    """Each of them would once have been waited for, 5 s: 200 s in all. More than are listened to are dropped."""
    with processes._listen("127.0.0.1") as server:
        num, found = processes.MAX_STRANGERS + 40, []
        gather = threading.Thread(target=lambda: found.extend(processes._gather(server, PASSWORD, 2)), daemon=True)
        gather.start()
        connect = lambda: socket.create_connection(server.getsockname())
        strangers = [connect() for _ in range(num)]
        for stranger in strangers:
            stranger.sendall(first)
        friends = [connect(), connect()]
        friends[0].sendall(PASSWORD[:2])  # a word may come in parts
        friends[1].sendall(PASSWORD)
        friends[0].sendall(PASSWORD[2:])
        gather.join(60)
        assert sorted(one.getpeername() for one in found) == sorted(one.getsockname() for one in friends)
        for one in (*strangers, *friends, *found):
            one.close()


def test_strangers_who_leave_are_forgotten():
    with processes._listen("127.0.0.1") as server:
        for _ in range(3):
            socket.create_connection(server.getsockname()).close()
        friend = socket.create_connection(server.getsockname())
        friend.sendall(PASSWORD)
        (found,) = processes._gather(server, PASSWORD, 1)
        assert found.getpeername() == friend.getsockname()
        friend.close()
        found.close()
