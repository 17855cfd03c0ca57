"""The pages of the site do what they say: Python runs, commands are understood, files are there.

Blocks after a line `<!-- long -->` are run by `make docs-test` alone.
"""

import contextlib
import json
import os
import re
import shlex
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
from absl import flags

from experiments.command import programs
from experiments.runs import command_line, planning, processes, sweep
from frodo.regimes import evolution, plan
from frodo.rules.files import SHIPPED
from frodo.runs import workers
from frodo.settings.registry import RULES
from meta.programs.operators import REGISTRIES
from meta.targets.inputs import INPUTS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
NOTEBOOKS = sorted(DOCS.glob("tutorials/*.ipynb"))
PAGES = sorted([*DOCS.glob("*/*.md"), *(DOCS / name for name in ("index.md", "style.md")), README])
PAGES = [path for path in PAGES if path.exists()]
RUN = [path for path in PAGES if path.parent.name in ("start", "how_to", "concepts", "papers", "results")]
BLOCK = re.compile(
    r"^(?P<long> *<!-- long -->\s*\n)?(?P<indent> *)```(?P<kind>\w+)[^\n]*\n(?P<code>.*?)^ *```", re.M | re.S
)
PARSED_ALONE = ("analyse", "benchmark", "card", "check_disco103", "report", "zoo")  # with files of others, or no folder
REGISTERED = re.compile(r"register_(?:rule|operator)\(\s*[\"'](\w+)")
WITH_FOLDERS = ("config.json", "comparison.json", "sweep.json")


def blocks(text, kind):
    """Return each block of code of a kind, and whether it is a long one."""
    found = (match for match in BLOCK.finditer(text) if match["kind"] == kind)
    return [(textwrap.dedent(match["code"]), bool(match["long"])) for match in found]


def text_of(path):
    """Return the text of a page, or of the cells of a notebook that are no code."""
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def commands(path):
    """Return the words of each command of a page, without comments, variables, and what only says where it runs."""
    found = []
    for code, _ in blocks(text_of(path), "sh"):
        for line in code.replace("\\\n", " ").splitlines():
            words = []
            for word in [*shlex.split(line, comments=True), ";"]:
                if word not in (";", "&&", "||", "|", "&"):
                    words.append(word)
                elif words:
                    found.append(without_prefix(words))
                    words = []
    return found


def without_prefix(words):
    if words[:2] == ["taskset", "-c"]:
        return without_prefix(words[3:])
    is_prefix = words[0] in ("nohup", "time") or re.fullmatch(r"[A-Z_0-9]+=.*", words[0])
    return without_prefix(words[1:]) if is_prefix and len(words) > 1 else words


@contextlib.contextmanager
def as_before():
    """Take back what a page registers, and where it has JAX keep programs."""
    import jax

    registries = [(registry, dict(registry)) for registry in (RULES, INPUTS, *REGISTRIES)]
    cache = jax.config.jax_compilation_cache_dir
    try:
        yield
    finally:
        for registry, own in registries:
            registry.clear()
            registry.update(own)
        jax.config.update("jax_compilation_cache_dir", cache)


def run(path, is_long, folder, monkeypatch):
    """Run the blocks of a page in order, in one namespace and in a folder of its own."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MPLBACKEND", "agg")
    text, namespace = text_of(path), {"__name__": path.stem}
    with as_before():
        for code, own in blocks(text, "python"):
            line = text[: text.index(textwrap.dedent(code).splitlines()[0])].count("\n") if code.strip() else 0
            if is_long or not own:  # the error of a block names the page, and its line
                exec(compile("\n" * line + code, path, "exec"), namespace)


@pytest.mark.parametrize("path", [x for x in RUN if blocks(text_of(x), "python")], ids=lambda x: x.name)
def test_the_blocks_of_a_page_run(path, tmp_path, monkeypatch):
    run(path, False, tmp_path, monkeypatch)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("path", [x for x in RUN if "<!-- long -->" in text_of(x)], ids=lambda x: x.name)
def test_the_long_blocks_of_a_page_run(path, tmp_path, monkeypatch):
    run(path, True, tmp_path, monkeypatch)


FITTED_FIRST = {"--rule=cmpo", "--rule=vtrace"}  # which takes long
OWN = [
    pytest.param(path, words, marks=[] if FITTED_FIRST.isdisjoint(words) else [pytest.mark.long])
    for path in [*PAGES, *NOTEBOOKS]
    for words in commands(path)
    if words[0] == "frodo" or path != README and "-m" in words
]


@pytest.mark.parametrize("path, words", OWN, ids=lambda x: x.stem if isinstance(x, Path) else " ".join(x)[:60])
def test_a_command_is_understood(path, words, start, tmp_path, monkeypatch):
    assert "experiments." not in " ".join(words), "a page has commands as users type them: frodo <program>"
    if words[0] != "frodo" or words[1:] in (["--help"], ["-h"]):
        return
    assert words[1] in programs()
    if "disco103" in " ".join(words) and not os.environ.get("DISCO103_WEIGHTS"):
        pytest.skip("DISCO103_WEIGHTS does not name the published weights")
    monkeypatch.chdir(tmp_path)
    with as_before():
        register(path, words)
        done = ask(start, words[1], [with_file(word) for word in words[2:]], tmp_path, monkeypatch)
    assert done.returncode in (0, 2), done.stderr
    assert "--overwrite replaces" in done.stderr or "understood" in done.stdout or "--help" in words, done.stderr


def register(path, words):
    """Register what a page does before it uses its name in a command."""
    named = {name: code for code, _ in blocks(text_of(path), "python") for name in REGISTERED.findall(code)}
    if not any(word.partition("=")[2] in named for word in words):
        return
    namespace = {"__name__": path.stem}
    for code, _ in blocks(text_of(path), "python"):
        exec(code, namespace)
        if REGISTERED.search(code):
            break


def with_file(word):
    """Return an argument with a rule that there is, where a page has the file of one that the reader is to find."""
    flag, _, value = word.partition("=")
    if not value.endswith(".npz") or flag == "--out" or flag == "--weights" or Path(value).is_absolute():
        return word
    if flag == "--target_rule":
        return f"{flag}={DOCS}/compare_formula/catch_and_grids_5.npz"
    is_scalar = flag == "--scalar_rule" or "frodo" in value
    return f"{flag}={SHIPPED}/{'catch_and_grids' if is_scalar else 'catch_disco'}.npz"


def ask(start, program, arguments, folder, monkeypatch):
    """Start a program as far as it takes to see that it understands its arguments: it finds its folder not free."""
    own = command_line.start
    parsed = lambda argv: print("understood") if argv[1:] or program not in ("report", "analyse") else None
    if program in PARSED_ALONE:
        monkeypatch.setattr(command_line, "start", lambda main: own(parsed))
        return start(f"experiments.{program}", *arguments)
    if program == "score":
        monkeypatch.setattr(evolution, "Evolution", understood)
    monkeypatch.setattr(processes, "join", lambda: None)  # there are no others here
    monkeypatch.setattr(processes, "num_devices", lambda: flags.FLAGS.num_devices)
    monkeypatch.setattr(workers, "cluster", lambda address: contextlib.nullcontext())
    for name in ("plan_online", "plan_population"):
        monkeypatch.setattr(plan, name, lambda *_: None)
    monkeypatch.setattr(planning, "describe", lambda *_: "understood")
    for name in WITH_FOLDERS:
        (folder / name).touch()
    monkeypatch.setattr(sweep, "training", SimpleNamespace(train=understood))  # before which all settings are checked
    of_folder = [x for x in arguments if x not in ("--resume", "--overwrite")]  # which say what becomes of the folder
    return start(f"experiments.{program}", *of_folder, *([] if program == "score" else [f"--out={folder}"]))


def understood(*_, **__):
    print("understood")
    raise SystemExit(0)


def test_what_is_not_understood_is_found(start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for program, argument, said in (
        ("online", "--rulle=frodo", "did you mean"),
        ("online", "--rule=frodoo", "did you mean"),
        ("evaluate", "--env=toy/catchh", "catchh"),
        ("report", "--metricc=return", "did you mean"),
    ):
        done = ask(start, program, [argument], tmp_path, monkeypatch)
        assert said in done.stderr and "understood" not in done.stdout and "replaces" not in done.stderr
        monkeypatch.undo()
        monkeypatch.chdir(tmp_path)
        for path in tmp_path.iterdir():
            path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS], ids=lambda x: x.name)
def test_targets_of_make_and_of_links_are_there(path):
    text = text_of(path)
    targets = re.findall(r"^([\w-]+(?: [\w-]+)*):(?!=)", (ROOT / "Makefile").read_text(), re.M)
    known = {name for names in targets for name in names.split()}
    for words in commands(path):
        assert words[0] != "make" or set(x for x in words[1:] if "=" not in x and x[0] != "-") <= known, words
    generated = {"settings.md", "commands.md", "changelog.md"}
    without_code = re.sub(r"`[^`\n]*`", "", BLOCK.sub("", text))
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", without_code):
        if not target.startswith(("https://", "mailto:")):
            assert path == README or (path.parent / target).resolve().is_relative_to(DOCS), f"{target} is not in docs/"
            assert (path.parent / target).exists() or Path(target).name in generated, target
