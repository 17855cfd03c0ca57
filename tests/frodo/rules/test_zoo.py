"""Rules of others: from a folder or a hub they come whole and checked, or one line says why not and nothing is left."""

import hashlib
import http.server
import json
import os
import socket
import threading
from pathlib import Path

import jax
import numpy as np
import pytest

import frodo
from experiments import zoo as program
from frodo.rules import cards, zoo
from frodo.rules.cards import Card, Estimate, Sensitivity
from frodo.rules.files import Origin, load_rule
from frodo.runs.errors import UsageError
from tests.small_rule import save_small_rule

NAME = "someone/small"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The three files of a small rule."""
    path = tmp_path_factory.mktemp("rule") / zoo.RULE
    size = sum(x.size for x in jax.tree.leaves(save_small_rule(path).meta_params))
    card = card_of(hashlib.sha256(path.read_bytes()).hexdigest(), num_meta_params=size)
    return {zoo.RULE: path.read_bytes(), zoo.CARD: card.to_json(), zoo.PAGE: cards.to_markdown(card).encode()}


def card_of(sha256: str, **others) -> Card:
    scores = [("toy/catch", "", 0.5), ("toy/catch", "ppo", 0.75), ("all", "", 0.5), ("all", "ppo", 0.75)]
    card = Card(
        name="small",
        kind="frodo",
        regime="population, frozen",
        num_meta_params=100,
        sha256=sha256,
        origin=Origin(("toy/catch",), 100, 1.5, "small"),
        licence="Apache-2.0",
        version="0.3.0",
        machine="a CPU",
        command="frodo card small.npz",
        budgets=(1000,),
        num_seeds=5,
        cpu_seconds=12.0,
        seen=("toy/catch",),
        scores=tuple(Estimate(env, method, x, x - 0.25, x + 0.25) for env, method, x in scores),
        differences=(Estimate("toy/catch", "ppo", -0.25, -0.5, -0.125), Estimate("all", "ppo", -0.25, -0.5, 0.0)),
        sensitivity=(Sensitivity("learning_rate", 1e-3, 0.5), Sensitivity("learning_rate", 1e-2, 0.25)),
    )
    return card.__class__(**vars(card) | others)


def laid(root: Path, files: dict[str, bytes]) -> Path:
    folder = root / NAME
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of the user's cache; there is no zoo yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("FRODO_ZOO", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def folder(cache, tmp_path, monkeypatch, made):
    """A zoo in a folder with one rule."""
    monkeypatch.setenv("FRODO_ZOO", str(tmp_path / "zoo"))
    return laid(tmp_path / "zoo", made)


class Handler(http.server.BaseHTTPRequestHandler):
    """As much of Hugging Face's hub as the library asks for; the answers are the server's `files`."""

    def do_GET(self):
        self._answer(has_body=True)

    def do_HEAD(self):
        self._answer(has_body=False)

    def _answer(self, has_body: bool) -> None:
        path, files = self.path.partition("?")[0], self.server.files
        self.server.paths.append(path)
        headers = {}
        if path == "/api/models":
            data = json.dumps([{"id": NAME, "tags": [zoo.TAG]}]).encode()
        elif path.startswith(f"/api/models/{NAME}"):
            listed = [{"rfilename": x, "size": self.server.sizes.get(x, len(y))} for x, y in files.items()]
            data = json.dumps({"id": NAME, "sha": "0" * 40, "siblings": listed}).encode()
        elif path.startswith(f"/{NAME}/resolve/") and path.rpartition("/")[2] in files:
            data = files[path.rpartition("/")[2]]
            headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": "0" * 40}
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        self.send_response(200)
        for name, value in ({"Content-Length": str(len(data))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if has_body:
            self.wfile.write(data[: len(data) // 2] if path.endswith(self.server.cut) else data)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(cache, monkeypatch, made):
    """A hub with one rule."""
    pytest.importorskip("huggingface_hub")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.files, server.sizes, server.paths, server.cut = dict(made), {}, [], "?"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield server
        server.shutdown()
        thread.join()


def files_under(folder: Path) -> list[str]:
    return sorted(str(x.relative_to(folder)) for x in folder.rglob("*") if x.is_file())


def test_a_card_is_read_as_it_was_written(made):
    card = card_of("0" * 64)
    assert cards.from_json(card.to_json(), "x") == card
    page = cards.to_markdown(card)
    assert "| toy/catch * | 0.50 [0.25, 0.75] | 0.75 [0.50, 1.00] | -0.25 [-0.50, -0.12] |" in page
    assert "Against PPO: above in 0 of 1 environments, below in 1." in page
    assert "| learning_rate | 0.001: 0.50, 0.01: 0.25 |" in page and "license: apache-2.0" in page


def test_the_leaderboard_has_the_best_first_and_baselines_once():
    good = tuple(x._replace(value=x.value + 0.5) if not x.method else x for x in card_of("").scores)
    other = card_of("", budgets=(2000,))
    table, apart = cards.leaderboard([card_of(""), card_of("", name="good", scores=good), other]).split("\n\n| ")
    assert [line.split(" | ")[0] for line in table.splitlines()[2:5]] == ["| good *", "| PPO", "| small *"]
    assert "5 seeds; environment steps: 1k." in table and "environment steps: 2k." in apart
    assert table.splitlines()[0] == "| rule | all | toy/catch |"
    assert table.splitlines()[3] == "| PPO | 0.75 [0.50, 1.00] | 0.75 [0.50, 1.00] |"
    assert cards.leaderboard([]) == ""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda x: x | {"format": 2}, "it has no format 1"),
        (lambda x: {y: x[y] for y in x if y != "kind"}, ".*kind"),
        (lambda x: x | {"more": 1}, "'more' is no setting of Card"),
        (lambda x: x | {"name": "a\nb"}, "it has the text 'a.nb', expected one line"),
        (lambda x: x | {"machine": "<script>"}, "it has the text '<script>', expected one line"),
        (lambda x: x | {"origin": x["origin"] | {"note": "\x1b[2J"}}, "it has the text .*, expected one line"),
        (lambda x: x | {"scores": [["toy/catch", "", None, 0, 1]]}, "the value .* is .*, expected .*|.*expected.*"),
        (lambda x: [], "it has no format 1"),
    ],
)
def test_a_bad_card_is_one_line(change, reason):
    record = change(json.loads(card_of("").to_json()))
    with pytest.raises(ValueError, match=f"^here is no card of a rule: {reason}") as error:
        cards.from_json(json.dumps(record).encode(), "here")
    assert "\n" not in str(error.value)


def test_a_rule_of_a_folder_is_loaded_by_its_name(folder, cache):
    rule = frodo.load_rule(f"hub:{NAME}")
    assert rule.name == f"hub:{NAME}" and rule.config.rule.settings.lstm == 2
    jax.tree.map(np.testing.assert_array_equal, rule.meta_params, load_rule(folder / zoo.RULE).meta_params)
    assert "## Where it works" in rule.describe()
    assert zoo.hub().names() == [NAME] and not cache.exists()


def test_a_rule_of_a_hub_comes_once(server, cache, capsys):
    for _ in range(2):
        assert frodo.load_rule(f"hub:{NAME}").config.rule.settings.lstm == 2
    assert files_under(cache) == sorted(f"frodo-rl/zoo/{NAME}/{x}" for x in (zoo.RULE, zoo.CARD, zoo.PAGE))
    asked = [x for x in server.paths if x.startswith("/api/models")]
    assert len(asked) == 1 and f"for {NAME}" in capsys.readouterr().err
    (cache / "frodo-rl/zoo" / NAME / zoo.RULE).write_bytes(b"damaged")
    assert frodo.load_rule(f"hub:{NAME}").config.rule.settings.lstm == 2
    assert "pulling it again" in capsys.readouterr().err
    assert zoo.hub().names() == [NAME]
    assert "## Where it works" in zoo.page(NAME)
    server.shutdown()
    assert "## Where it works" in zoo.page(NAME)  # of the cache


def spoilt(files: dict[str, bytes], sizes: dict[str, int], how: str) -> None:
    if how == "damaged":
        files[zoo.RULE] = files[zoo.RULE][:-1] + b"x"
    elif how == "missing":
        del files[zoo.RULE]
    elif how == "card":
        files[zoo.CARD] = b"{"
    else:
        sizes[zoo.RULE] = 2**30


BAD = {
    "damaged": r"rule.npz of .* has the SHA-256 [0-9a-f]{64}, expected [0-9a-f]{64}, as in its card",
    "missing": "is no rule: it has no rule.npz",
    "card": "card.json of .* is no card of a rule",
    "large": "rule.npz of .* has 1,073,741,824 bytes, expected at most 67,108,864",
}


@pytest.mark.parametrize("how", BAD)
def test_what_is_wrong_on_a_hub_is_one_line_and_nothing_is_left(server, cache, how):
    spoilt(server.files, server.sizes, how)
    with pytest.raises(ValueError, match=BAD[how]) as error:
        frodo.load_rule(f"hub:{NAME}")
    assert "\n" not in str(error.value) and not files_under(cache)
    if how == "large":
        assert not any("resolve" in x for x in server.paths)  # refused before it is downloaded


def test_a_size_that_is_false_or_unknown_is_refused(server, cache):
    for size, reason in ((10, "README.md of .* came with [0-9,]+ bytes, expected 10"), (None, "has no known size")):
        server.sizes[zoo.PAGE] = size
        with pytest.raises(ValueError, match=reason):
            zoo.pull(NAME)
    assert not files_under(cache)


def test_a_hub_that_is_silent_ends_in_one_line(server, monkeypatch):
    monkeypatch.setattr(zoo, "TIMEOUT_SECONDS", 0.2)
    ended = threading.Event()
    monkeypatch.setattr(Handler, "_answer", lambda self, has_body: ended.wait(5))
    with pytest.raises(ValueError, match="did not answer: no answer in 0.2 seconds"):
        zoo.hub().names()
    ended.set()


def test_an_answer_that_ends_early_is_one_line_and_nothing_is_left(server, cache):
    server.cut = zoo.RULE
    with pytest.raises(ValueError, match=f"rule.npz of hub:{NAME} cannot be downloaded: ") as error:
        zoo.pull(NAME)
    assert "\n" not in str(error.value) and not files_under(cache)


@pytest.mark.parametrize("how", ["damaged", "missing", "card"])
def test_what_is_wrong_in_a_folder_is_one_line(folder, made, how):
    files = dict(made)
    spoilt(files, {}, how)
    (folder / zoo.RULE).unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    with pytest.raises(ValueError, match=BAD[how]) as error:
        frodo.load_rule(f"hub:{NAME}")
    assert "\n" not in str(error.value)


def test_a_large_file_in_a_folder_is_refused_unread(folder):
    os.truncate(folder / zoo.RULE, 2**30)  # a hole
    with pytest.raises(ValueError, match=BAD["large"]):
        frodo.load_rule(f"hub:{NAME}")


def test_no_such_rule_and_no_network_are_one_line(server, cache, monkeypatch):
    with pytest.raises(ValueError, match="hub:nobody/none cannot be found at http://127.0.0.1:"):
        frodo.load_rule("hub:nobody/none")
    with socket.socket() as closed:  # bound, but not listening
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(ValueError, match=f"hub:{NAME} cannot be found at http://127.0.0.1:.*[Rr]efused"):
            frodo.load_rule(f"hub:{NAME}")
    assert not files_under(cache)


@pytest.mark.parametrize("name", ["small", "a/b/c", "../../x", "a/..", "a/b@", "a b/c", ""])
def test_a_bad_name_is_refused(folder, name):
    with pytest.raises(ValueError, match="is no name in a zoo, expected hub:owner/name"):
        zoo.find(f"hub:{name}")


def test_a_zoo_that_is_no_folder_is_refused(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("FRODO_ZOO", str(tmp_path / "none"))
    with pytest.raises(ValueError, match="FRODO_ZOO=.*none names no folder"):
        frodo.load_rule(f"hub:{NAME}")


def test_without_the_hubs_library_one_line_says_what_to_install(cache, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match=r"pip install 'frodo-rl\[hub\]'; or name a folder by FRODO_ZOO"):
        frodo.load_rule(f"hub:{NAME}")


def test_what_is_handed_in_is_checked(folder, made):
    assert program.check(folder).name == "small"
    (folder / zoo.PAGE).write_text("mine")
    with pytest.raises(UsageError, match="README.md is not what card.json says"):
        program.check(folder)
    good = cards.from_json(made[zoo.CARD], "x")
    for others, reason in (
        ({"licence": ""}, "card.json names no licence"),
        ({"kind": "disco"}, "the kind of rule.npz is 'frodo', expected 'disco'"),
        ({"num_meta_params": 10**9}, "rule.npz has [0-9]+ meta-parameters and .*, which is not what card.json says"),
    ):
        card = Card(**vars(good) | others)
        (folder / zoo.CARD).write_bytes(card.to_json())
        with pytest.raises(UsageError, match=reason):
            program.check(folder)


def test_the_program_lists_shows_and_pulls(folder, capsys):
    program.main(["zoo", "list"])
    assert f"hub:{NAME}" in (shown := capsys.readouterr().out) and "catch_and_grids" in shown
    for name, text in (("catch_and_grids", "# catch_and_grids"), (NAME, "# small"), (f"hub:{NAME}", "# small")):
        program.main(["zoo", "show", name])
        assert text in capsys.readouterr().out
    program.main(["zoo", "pull", NAME])
    assert capsys.readouterr().out == f"{folder / zoo.RULE}: use it as --rule=hub:{NAME}\n"
    program.main(["zoo", "check", str(folder)])
    assert "small is ready, a rule of the kind 'frodo' with 4 scores" in capsys.readouterr().out
    program.main(["zoo", "board", str(folder.parent)])
    assert capsys.readouterr().out.startswith("| rule | all | toy/catch |\n")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "'' is no action: give one of list, show, pull, check, board"),
        (["lst"], "'lst' is no action"),
        (["list", "x"], "frodo zoo list takes nothing, not x"),
        (["pull"], "frodo zoo pull takes the name of a rule, owner/name, not nothing"),
        (["check", "a", "b"], "frodo zoo check takes a folder, not a b"),
        (["board", "/none"], "/none has no cards"),
    ],
)
def test_the_program_refuses_in_one_line(folder, arguments, reason):
    with pytest.raises(UsageError, match=reason):
        program.main(["zoo", *arguments])
