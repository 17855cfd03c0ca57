"""Pages of the site that the code itself has: settings, commands and the changelog, made anew by each build.

mkdocs calls `on_files`; nothing of what is made here is in the repository.
"""

import contextlib
import dataclasses
import html
import inspect
import os
import re
import runpy
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES: dict[str, Callable[[], str]] = {}  # by their paths in docs/
SETTINGS_INTRO = """\
A setting is a field of a dataclass. Its name is the same everywhere:

- In Python, `config.replace(batch_size=64)` returns the settings with another value. `config.rule.replace(lstm=32)`
  does so for the rule.
- On the command line it is a flag: `--config.batch_size=64`, `--config.network.hidden=64,64`, `--config.rule.lstm=32`.
- In a run's folder, config.json has all of them.

The defaults below are those of the classes. A preset changes many of them for an environment and a rule:
`frodo online --env=toy/catch --help` shows the values of the preset that these flags choose. A value that is not
allowed, or a name that does not exist, ends the call with one line that says what was expected.
"""
LEADERBOARD_INTRO = """\
A row is a rule, as fresh agents learn by it with η as it is; a column is an environment. Each rule has a
[card](../reference/zoo.md) with its costs, its differences from PPO and IMPALA by seed, and the command.
Scores are 0 for random play and 1 for the reference: interquartile means with 95 % bootstrap intervals over seeds.
Intervals of many cells leave out the truth here and there; a card counts where a rule is above and below.
"""
COMMANDS_INTRO = """\
The package installs one command, `frodo`. It takes a program and its flags: `frodo online --env=toy/catch`.
`frodo PROGRAM --help` shows the flags of a program, and `frodo --help` lists the programs. In a checkout that is not
installed, `python -m experiments.online` is the same as `frodo online`.
"""


def page(path: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Make a function that returns Markdown that of a page."""

    def add(make: Callable[[], str]) -> Callable[[], str]:
        PAGES[path] = make
        return make

    return add


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to those that mkdocs has found."""
    from mkdocs.structure.files import File

    sys.path[:0] = [str(ROOT)]
    try:
        for path, make in PAGES.items():
            files.append(File.generated(config, path, content=make()))
        for name, text in _card_pages():
            files.append(File.generated(config, f"zoo/{name}.md", content=text))
    finally:
        sys.path.remove(str(ROOT))
    return files


@page("changelog.md")
def changelog() -> str:
    """Return CHANGELOG.md, with its links to pages as they are from here; what is no page is named alone."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

    def moved(match: re.Match[str]) -> str:
        words, target = match[1], match[2]
        if target.startswith(("https://", "#")):
            return match[0]
        own = target.removeprefix("docs/")
        is_page = own != target and (ROOT / "docs" / own.partition("#")[0]).is_file()
        return f"[{words}]({own})" if is_page else words

    return re.sub(r"\[([^\]\[]+)\]\(([^)\s]+)\)", moved, text)


@page("reference/settings.md")
def settings() -> str:
    """Return a table for each class of settings, and one for the settings of each rule."""
    from frodo.regimes.search_settings import EvolutionConfig
    from frodo.settings.config import AgentConfig, OnlineConfig, PopulationConfig
    from frodo.settings.registry import RULES

    programs = [_of_flags(name).config for name in _programs()]
    of_agents = [
        AgentConfig(),
        OnlineConfig(),
        PopulationConfig(),
        *(x for x in programs if isinstance(x, AgentConfig)),
    ]
    searches = [EvolutionConfig(), *(x for x in programs if x is not None and not isinstance(x, AgentConfig))]
    parts = ["# Settings", SETTINGS_INTRO, "## Agents, online runs and populations", *_tables(of_agents)]
    parts += ["## Searches", *_tables(searches)]
    parts += ["## Rules", f"The rule is `rule.name`, one of {', '.join(f'`{name}`' for name in RULES)}."]
    parts += ["Each has settings of its own, `--config.rule.<setting>` on the command line."]
    for name, entry in RULES.items():
        kinds = " or ".join(kind.replace("_", "-") for kind in entry.kinds)
        learned = "It has meta-parameters η, which are learned." if entry.is_learned else "It is hand-designed."
        parts += [f"### {name}", f"Agents are {kinds}. {learned}", _table(entry.settings())]
    return "\n\n".join(parts) + "\n"


@page("reference/commands.md")
def commands() -> str:
    """Return what each program says of itself, with its flags."""
    known = {name: _of_flags(name) for name in _programs()}
    parts = ["# Commands", COMMANDS_INTRO]
    rows = [(f"[`{name}`](#frodo-{name})", _escaped(_first(found.doc))) for name, found in known.items()]
    parts.append(_rows(("Program", "What it does"), rows))
    parts.append(
        "All programs also take `--keep_compiled`, true by default: compiled programs are kept in the user's cache "
        "folder for later runs. Settings are flags as well; [Settings](settings.md) lists them."
    )
    for name, found in known.items():
        parts += [f"## frodo {name}", *_prose(found.doc), _rows(("Flag", "Values", "Default", "Meaning"), found.rows)]
        if found.config is not None:
            own = type(found.config).__name__
            text = f"Its settings are those of [{own}](settings.md#{own.lower()}), as `--config.<setting>`"
            without = ", ".join(f"`{x}`" for x in found.without)
            parts.append(text + (f", without {without}, which the program decides." if without else "."))
    return "\n\n".join(parts) + "\n"


@page("results/leaderboard.md")
def leaderboard() -> str:
    """Return the tables of all cards in docs/zoo/, and links to their pages."""
    from frodo.rules import cards

    found = _cards()
    if not found:
        return f"# Leaderboard\n\n{LEADERBOARD_INTRO}\nThere are no cards yet.\n"
    links = "\n".join(f"- [{name}](../zoo/{name}.md)" for name in found)
    table = cards.leaderboard(list(found.values()))
    return "\n\n".join(["# Leaderboard", LEADERBOARD_INTRO, table, "## Cards", links]) + "\n"


def _cards() -> dict[str, Any]:
    """Return the cards in docs/zoo/, each in a folder of its name; a ValueError names one that is elsewhere."""
    from frodo.rules import zoo

    found = {path.parent.name: zoo.card_of(path.parent) for path in sorted((ROOT / "docs/zoo").glob(f"*/{zoo.CARD}"))}
    for name, card in found.items():
        if card.name != name:
            raise ValueError(f"docs/zoo/{name} has the card of {card.name!r}, expected a folder of that name")
    return found


def _card_pages() -> Iterator[tuple[str, str]]:
    """Give name and text of the page of each card."""
    from frodo.rules import cards

    yield from ((name, cards.to_markdown(card)) for name, card in _cards().items())


class _Flags(typing.NamedTuple):
    """A program's docstring, rows of its flags, and its settings: whose flags it does not have."""

    doc: str
    rows: list[tuple[str, ...]]
    config: Any
    without: list[str]


def _programs() -> list[str]:
    from experiments.command import programs

    return list(programs())


_known: dict[str, _Flags] = {}


def _of_flags(program: str) -> _Flags:
    """Run a program up to where it would parse its command line, and look at the flags that it defined."""
    if program not in _known:
        _known[program] = _defined(program)
    return _known[program]


def _defined(program: str) -> _Flags:
    from absl import flags

    from experiments.runs import command_line, setting_flags

    before, argv = set(flags.FLAGS), sys.argv
    own, sys.argv = command_line.start, [f"frodo {program}"]
    command_line.start = lambda main: None
    setting_flags.made_by = None, lambda: None
    try:
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # it may be imported already
            found = runpy.run_module(f"experiments.{program}", run_name="__main__")
        config, _ = setting_flags.made_by
        names = [name for name in flags.FLAGS if name not in before]
        rows = [_flag_row(flags.FLAGS[name]) for name in names if not name.startswith("config.")]
        without = list(_without(config, set(names))) if config is not None else []
        return _Flags(inspect.cleandoc(found["__doc__"] or ""), rows, config, without)
    finally:
        command_line.start, sys.argv = own, argv
        setting_flags.made_by = None, lambda: None
        for name in set(flags.FLAGS) - before:
            with contextlib.suppress(AttributeError):  # the short name of another one
                delattr(flags.FLAGS, name)


def _flag_row(flag: Any) -> tuple[str, ...]:
    from absl import flags

    values = flag.parser.syntactic_help or {"string": "a text", "bool": "true or false"}.get(flag.flag_type(), "")
    if isinstance(flag.parser, flags.EnumParser):
        values = "one of " + ", ".join(flag.parser.enum_values)
    default = (flag.default_as_str or "").strip("'")
    if flag.name == "processes" and flag.default == os.cpu_count():
        default = "as many as cores"
    elif default:
        default = f"`{default}`"
    said = re.sub(r"^<[^>]*>: ", "", " ".join((flag.help or "").split()))  # of an enumeration, its values
    return f"`--{flag.name}`", _escaped(_comma(values)), default, _escaped(said)


def _comma(text: str) -> str:
    return "texts with commas between" if "comma" in text else text


def _without(config: Any, names: set[str]) -> Iterator[str]:
    """Give the settings that a program has no flags for, of a part of which none has one that part's name alone."""
    from experiments.runs.setting_flags import _expected, _groups

    hints = {x: hint for _, group in _groups(config, "config", False) for x, (hint, _) in group.items()}
    every = {name for name, hint in hints.items() if hint is bool or _expected(hint)}
    left = sorted(every - names)
    while left:
        parts = left[0].split(".")
        prefixes = [".".join(parts[:n]) for n in range(2, len(parts) + 1)]
        short = next(x for x in prefixes if not any(f"{name}.".startswith(f"{x}.") for name in every & names))
        yield short.removeprefix("config.")
        left = [name for name in left if not f"{name}.".startswith(f"{short}.")]


def _tables(configs: Iterable[Any]) -> Iterator[str]:
    """Give heading and table of each, and of the settings inside; a subclass of one before has its own alone."""
    todo, done = list(configs), set[type]()
    while todo:
        config = todo.pop(0)
        kind = type(config)
        if kind in done or kind.__name__ == "RuleConfig":
            continue
        done.add(kind)
        parents = [one for one in kind.__mro__[1:] if one in done]
        inherited = {field.name for one in parents for field in dataclasses.fields(one)}
        fields = [field.name for field in dataclasses.fields(kind) if field.name not in inherited]
        yield f"### {kind.__name__}"
        yield _escaped(_first(inspect.getdoc(kind) or ""))
        if parents:
            name = parents[0].__name__
            yield f"It has all settings of [{name}](#{name.lower()}), and these:"
        yield _table(config, fields)
        todo += [getattr(config, x) for x in fields if dataclasses.is_dataclass(getattr(config, x))]


def _table(config: Any, fields: Iterable[str] | None = None) -> str:
    """Return the table of the settings of a dataclass."""
    from agents.settings import descriptions

    said, hints = descriptions(type(config)), typing.get_type_hints(type(config), include_extras=True)
    defaults = {field.name: getattr(type(config)(), field.name) for field in dataclasses.fields(config)}
    rows = []
    for name in fields if fields is not None else defaults:
        default = defaults[name]
        if dataclasses.is_dataclass(default):
            kind = type(default).__name__
            target = "rules" if kind == "RuleConfig" else kind.lower()
            rows.append((f"`{name}`", f"[{kind}](#{target})", "", _escaped(said[name])))
        else:
            rows.append((f"`{name}`", _escaped(_values(hints[name])), f"`{default!r}`", _escaped(said[name])))
    return _rows(("Setting", "Type", "Default", "Meaning"), rows) if rows else "It has no settings."


def _values(hint: Any) -> str:
    """Say what values a type has."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _values(args[0])
    if origin is typing.Literal:
        return ", ".join(map(repr, args))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_values, args))
    if origin is tuple:
        return f"tuple of {_values(args[0])}"
    return {types.NoneType: "None"}.get(hint, getattr(hint, "__name__", str(hint)))


def _first(text: str) -> str:
    """Return the first paragraph of a docstring, as on the command line."""
    return _as_typed(" ".join(text.partition("\n\n")[0].split()))


def _as_typed(text: str) -> str:
    return re.sub(r"python -m experiments\.(\w+)", r"frodo \1", text)


def _prose(text: str) -> Iterator[str]:
    """Turn a docstring into Markdown: indented blocks are code."""
    for block in re.split(r"\n\s*\n", _as_typed(text)):
        if block.startswith("    "):
            yield f"```text\n{inspect.cleandoc(block)}\n```"
        else:
            yield _escaped(" ".join(block.split()))


def _escaped(text: str) -> str:
    """Return a text as Markdown that shows it as it is; what is between backticks stays code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # one of them is no pair
        parts = [text.replace("`", "'")]
    words = lambda part: re.sub(r"([\\*_\[\]|])", r"\\\1", html.escape(part, quote=False))
    return "`".join(part if i % 2 else words(part) for i, part in enumerate(parts))


def _rows(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(cell or " " for cell in line) + " |" for line in lines)
