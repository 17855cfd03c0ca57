"""Where Disco103's weights are looked for, and a download: whole and right, or one line and nothing left behind."""

import hashlib
import http.server
import os
import re
import socket
import threading

import pytest

from frodo.files import DiskError
from frodo.rules import disco103_weights as weights

DATA = bytes(range(200))


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.paths.append(self.path)
        if self.path == "/none":
            return self.send_error(404)
        if self.path == "/no_http":
            return self.wfile.write(b"hello\nthere\n")
        if self.path == "/silent":
            return self.server.ended.wait(2)
        self.send_response(200)
        if self.path != "/unsaid":
            self.send_header("Content-Length", str(len(DATA) + (100 if self.path == "/short" else 0)))
        self.end_headers()
        self.wfile.write(DATA[::-1] if self.path == "/wrong" else DATA)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.paths, server.ended = [], threading.Event()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.ended.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def cached(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("DISCO103_WEIGHTS", raising=False)
    monkeypatch.setattr(weights, "SHA256", hashlib.sha256(DATA).hexdigest())
    return tmp_path / "cache" / "frodo-rl" / "disco_103.npz"


@pytest.fixture
def serve(server, cached, monkeypatch):
    def serve(path):
        monkeypatch.setattr(weights, "URL", f"http://127.0.0.1:{server.server_port}{path}")
        return server

    return serve


def files_under(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def assert_refused(cached, reason, before=()):
    """A download fails with one line that says why and what to put where, and leaves the files as they were."""
    with pytest.raises(ValueError) as error:
        weights.find()
    by_hand = f"download {weights.URL} by hand to {cached}, or name the file with DISCO103_WEIGHTS"
    assert re.fullmatch(f"cannot download Disco103's weights: {reason}; {re.escape(by_hand)}", str(error.value))
    assert files_under(cached.parents[1]) == sorted(before)


@pytest.mark.parametrize("path", ["/weights", "/unsaid"])
def test_a_download_is_kept(cached, serve, capsys, path):
    server = serve(path)
    assert weights.find() == cached
    assert cached.read_bytes() == DATA
    assert capsys.readouterr().err == f"there is no {cached}: downloading {weights.URL}\n"
    assert weights.find("") == cached and server.paths == [path]
    assert files_under(cached.parents[1]) == ["frodo-rl/disco_103.npz"]
    assert capsys.readouterr().err == ""


def test_the_order_of_the_places(cached, serve, tmp_path, monkeypatch):
    server = serve("/weights")
    flag, variable, home = tmp_path / "flag.npz", tmp_path / "variable.npz", tmp_path / "home/.cache/frodo-rl"
    for path in (flag, variable):
        path.write_bytes(b"taken as it is")
    home.mkdir(parents=True)
    (home / "disco_103.npz").write_bytes(DATA)
    monkeypatch.setenv("DISCO103_WEIGHTS", str(variable))
    assert weights.find(str(flag)) == flag
    assert weights.find() == variable
    monkeypatch.setenv("DISCO103_WEIGHTS", "")
    assert not cached.exists() and not server.paths
    assert weights.find() == cached and len(server.paths) == 1
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert weights.find() == home / "disco_103.npz" and len(server.paths) == 1


def test_a_named_file_that_is_missing_is_refused(cached, serve, tmp_path, monkeypatch):
    server, none, there = serve("/weights"), tmp_path / "none.npz", tmp_path / "there.npz"
    there.write_bytes(DATA)
    refused = "{}{} names no file: give the path of the published weights, disco_103.npz"
    monkeypatch.setenv("DISCO103_WEIGHTS", str(there))
    for path in (none, tmp_path):
        with pytest.raises(ValueError) as error:
            weights.find(str(path))
        assert str(error.value) == refused.format("", path)
    monkeypatch.setenv("DISCO103_WEIGHTS", str(none))
    with pytest.raises(ValueError) as error:
        weights.find()
    assert str(error.value) == refused.format("DISCO103_WEIGHTS=", none)
    assert not server.paths and files_under(tmp_path) == ["there.npz"]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/none", "HTTP Error 404: Not Found"),
        ("/short", r"IncompleteRead\(200 bytes read, 100 more expected\)"),
        ("/wrong", f"the SHA-256 of what came is {hashlib.sha256(DATA[::-1]).hexdigest()}, expected [0-9a-f]{{64}}"),
        ("/no_http", "hello"),
        ("/silent", "timed out"),
    ],
)
def test_a_download_that_fails_leaves_nothing(cached, serve, monkeypatch, path, reason):
    monkeypatch.setattr(weights, "TIMEOUT_SECONDS", 0.2 if path == "/silent" else 10)
    server = serve(path)
    assert_refused(cached, reason)
    assert server.paths == [path]


def test_no_server_is_said(cached, monkeypatch):
    with socket.socket() as closed:  # bound, but not listening
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setattr(weights, "URL", f"http://127.0.0.1:{closed.getsockname()[1]}/weights")
        assert_refused(cached, r"\[Errno \d+\] Connection refused")


@pytest.mark.parametrize("damaged", [DATA[:-1], DATA[::-1], b""])
def test_a_damaged_file_in_the_cache_is_replaced(cached, serve, capsys, damaged):
    cached.parent.mkdir(parents=True)
    cached.write_bytes(damaged)
    serve("/short")
    assert_refused(cached, "IncompleteRead.*", before=["frodo-rl/disco_103.npz"])
    assert cached.read_bytes() == damaged
    capsys.readouterr()
    server = serve("/weights")
    assert weights.find() == cached and cached.read_bytes() == DATA
    assert capsys.readouterr().err.startswith(f"{cached} is damaged, as its SHA-256 is ")
    assert server.paths == ["/short", "/weights"]


def test_a_cache_that_cannot_be_used_is_named(cached, serve, tmp_path, monkeypatch):
    server = serve("/weights")
    cached.mkdir(parents=True)
    with pytest.raises(ValueError, match=f"^cannot read {cached}: Is a directory; download .* DISCO103_WEIGHTS$"):
        weights.find()
    assert not server.paths
    cached.rmdir()

    def replace(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(DiskError, match=f"^cannot write {cached}: Permission denied$"):
        weights.find()
    assert not files_under(tmp_path)


def test_the_published_file_has_the_digest():
    path = os.environ.get("DISCO103_WEIGHTS")
    if not path:
        pytest.skip("DISCO103_WEIGHTS does not name the published weights")
    with open(path, "rb") as file:
        assert hashlib.sha256(file.read()).hexdigest() == weights.SHA256
