"""Pages of reference have all that there is: public names, settings, flags, and the columns of metrics.csv."""

import ast
import csv
import dataclasses
import inspect
import re
import types
from pathlib import Path

import pytest

import frodo
from docs.hooks import pages
from experiments.command import programs
from experiments.runs import setting_flags
from frodo import files
from frodo.rules.cards import ALL, Estimate
from frodo.settings.registry import RULES
from tests.experiments.runs.test_setting_flags import config_classes
from tests.frodo.rules.test_zoo import card_of
from tests.test_structure import LAYERS

ROOT = Path(__file__).parents[2]
LIBRARY = (ROOT / "docs/reference/library.md").read_text(encoding="utf-8")
ON_DISK = (ROOT / "docs/reference/results_on_disk.md").read_text(encoding="utf-8")


def test_every_public_name_is_on_the_page_once():
    assert sorted(re.findall(r"^::: frodo\.(\w+)$", LIBRARY, re.M)) == sorted(frodo.__all__)


@pytest.mark.parametrize("name", frodo.__all__)
def test_every_public_name_has_a_docstring(name):
    value = getattr(frodo, name)
    if isinstance(value, (type, types.FunctionType, types.ModuleType)):
        assert value.__doc__ and not value.__doc__.startswith(f"{name}("), name  # which would be NamedTuple's own
    else:
        assert documented(name), f"{name} has no docstring after its assignment"
    for member in vars(value) if isinstance(value, type) else ():
        is_shown = inspect.isfunction(getattr(value, member)) or isinstance(vars(value)[member], property)
        assert member.startswith("_") or not is_shown or inspect.getdoc(getattr(value, member)), f"{name}.{member}"


def documented(name):
    """Whether the assignment of a name, wherever it is, has a docstring after it."""
    for path in (path for layer in LAYERS for path in (ROOT / layer).rglob("*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for one, after in zip(body, body[1:], strict=False):
            is_own = isinstance(one, ast.AnnAssign) and ast.unparse(one.target) == name
            if is_own and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                return bool(after.value.value)
    return False


@pytest.fixture(scope="module")
def settings():
    """Return the page of settings: by heading, the names in its table, and where its types link to."""
    text = pages.settings()
    found = dict(part.split("\n", 1) for part in re.split(r"^### ", text, flags=re.M)[1:])
    assert text.count("\n### ") == len(found)
    return {
        name: (re.findall(r"^\| `(\w+)` \|", own, re.M), re.findall(r"\(#(\w+)\)", own)) for name, own in found.items()
    }


def test_every_setting_is_on_the_page(settings):
    of_rules = {entry.settings for entry in RULES.values()}
    inner = {"RuleConfig", "LifetimeConfig", "MetaNetworkConfig", "TargetNetworkConfig", "LambdaConfig"}  # parts, bases
    for one in config_classes():
        if one in of_rules or one.__name__ in inner:
            continue
        names = [field.name for field in dataclasses.fields(one)]
        shown = [x for base in one.__mro__ if base.__name__ in settings for x in settings[base.__name__][0]]
        assert one.__name__ in settings and sorted(shown) == sorted(names), one
    for name, entry in RULES.items():
        assert settings[name][0] == [field.name for field in dataclasses.fields(entry.settings)], name


def test_the_leaderboard_is_made_of_cards_in_folders_of_their_names(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    assert "There are no cards yet." in pages.leaderboard() and not list(pages._card_pages())
    for name, value in (("mine", 0.5), ("other", 0.7)):
        score = (Estimate(ALL, "", value, 0.1, 0.9), Estimate("toy/catch", "", value, 0.1, 0.9))
        card = dataclasses.replace(card_of("0" * 64), name=name, scores=score, seen=())
        files.write(tmp_path / "docs/zoo" / name / "card.json", card.to_json())
    text = pages.leaderboard()
    assert "- [mine](../zoo/mine.md)\n- [other](../zoo/other.md)" in text
    assert 0 < text.index("| other | 0.70") < text.index("| mine | 0.50")
    assert {name: "# " + name in page for name, page in pages._card_pages()} == {"mine": True, "other": True}
    (tmp_path / "docs/zoo/mine").rename(tmp_path / "docs/zoo/ppo")
    with pytest.raises(ValueError, match="docs/zoo/ppo has the card of 'mine', expected a folder of that name"):
        pages.leaderboard()


def test_links_of_the_page_of_settings_are_to_its_headings(settings):
    targets = {target for _, links in settings.values() for target in links}
    assert targets <= {name.lower() for name in settings} | {"rules"}


def test_every_program_and_its_flags_are_on_the_page(start, monkeypatch):
    text = pages.commands()
    found = dict(part.split("\n", 1) for part in re.split(r"^## frodo ", text, flags=re.M)[1:])
    assert list(found) == list(programs())
    for name in ("online", "compare", "report"):
        monkeypatch.setattr(setting_flags, "made_by", (None, lambda: None))
        said = start(f"experiments.{name}", "--help").stdout.partition("\n\nconfig")[0]
        own = set(re.findall(r"^  --(?:\[no\])?(\w+):", said, re.M)) - {"keep_compiled"}
        assert own and own <= set(re.findall(r"^\| `--(\w+)` \|", found[name], re.M)), name
    assert "python -m experiments" not in text.partition("\n## ")[2]
    assert not re.search(r"`/\w+/", text), "a path of the machine that builds the site"


def test_links_of_the_changelog_are_to_pages_or_elsewhere():
    for target in re.findall(r"\]\(([^)\s]+)\)", pages.changelog()):
        assert target.startswith("https://") or (ROOT / "docs" / target.partition("#")[0]).is_file(), target


SAID = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", ON_DISK, flags=re.M | re.S))
COLUMNS = [re.sub(r"<\w+>", "*", x) for x in SAID]


def is_documented(column):
    fits = lambda known: re.fullmatch(re.escape(known).replace(r"\*", ".+"), column)
    numbered = re.fullmatch(r"(trial|case)_[\d]+", column)
    return numbered or any(map(fits, COLUMNS))


SMALL = ("--config.batch_size=2", "--config.num_updates=1", "--config.network.hidden=8")


@pytest.mark.parametrize(
    "program, arguments",
    [
        ("online", "--env=toy/catch/5x5 --rule=impala --steps=2e3"),
        pytest.param("online", "--env=toy/catch --rule=frodo --steps=2e3 --config.rule.lstm=4", marks=pytest.mark.long),
        pytest.param(
            "online", "--env=toy/catch/5x5 --rule=muesli --steps=2e3 --config.replay.capacity=0", marks=pytest.mark.long
        ),
        pytest.param("online", "--env=gymnax/CartPole-v1 --rule=dqn --steps=2e3", marks=pytest.mark.long),
        pytest.param("online", "--env=envpool/CartPole-v1 --rule=impala --steps=2e3", marks=pytest.mark.long),
        pytest.param("random_walk", "--seeds=0 --steps=2e3", marks=pytest.mark.long),
        pytest.param("adapt", "--env=toy/bandit/2 --trials=2 --steps=2e3 --test_tasks=2", marks=pytest.mark.long),
        pytest.param("discover", "--envs=toy/catch/5x5 --rule=frodo --steps=2", marks=pytest.mark.long),
    ],
)
def test_every_column_of_a_run_is_on_the_page(start, program, arguments, tmp_path):
    small = SMALL if program != "random_walk" else ()
    done = start(f"experiments.{program}", *arguments.split(), *small, f"--out={tmp_path}")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / ("frodo" if program == "random_walk" else "")
    with (folder / "metrics.csv").open(newline="") as file:
        columns = next(csv.reader(file))
    assert [column for column in columns if not is_documented(column)] == []
    written = [path.name + "/" * path.is_dir() for path in folder.iterdir() if path.suffix != ".png"]
    assert [name for name in written if not any(said.startswith(name) for said in SAID)] == []
