"""What --help prints: the program's own flags, then groups of settings in the words of their classes' docstrings."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from absl import flags

from agents.settings import descriptions
from frodo.settings.registry import RULES, RuleConfig

FLAGS = flags.FLAGS
SETTINGS = "settings"  # what flags of settings are defined in, in place of a module
made_by: tuple[Any, Callable[[], Any]] = (None, lambda: None)  # the program's settings, and what makes its preset
Group = tuple[str, dict[str, str]]  # its title, and the help of each of its flags


def show(is_full: bool) -> None:
    """Print the help of a program whose flags are parsed; the full one is absl's list of the flags of all modules."""
    config, make_preset = made_by
    is_known = False
    with contextlib.suppress(ValueError, ImportError, OSError):  # as of a name that is none
        config, is_known = make_preset(), True
    parts = [FLAGS.main_module_help().replace(sys.argv[0], "flags", 1)]
    for title, texts in _groups(config, "config", is_known) if config else ():
        title = flags.text_wrap(title, indent="  ", firstline_indent="")
        for name in texts.keys() & set(FLAGS):
            FLAGS[name].help = texts[name]
            FLAGS.register_key_flag_for_module(title, FLAGS[name])
        parts.append(FLAGS.module_help(title))
    print(sys.modules["__main__"].__doc__)
    print(FLAGS.get_help() if is_full else "\n".join([*filter(None, parts), "\n--helpfull lists all flags."]))


def _groups(config: Any, prefix: str, is_known: bool) -> Iterator[Group]:
    said, own = descriptions(type(config)), {}
    inner: list[Iterable[Group]] = []
    for field in dataclasses.fields(config):
        name, value = f"{prefix}.{field.name}", getattr(config, field.name)
        if isinstance(value, RuleConfig):
            inner += [_groups(value.settings, name, True)] if is_known else []
            inner.append([_of_rules(name, value.name if is_known else "")])
        elif dataclasses.is_dataclass(value):
            inner.append(_groups(value, name, is_known))
        else:
            default = f"by default as the preset's: {_as_given(value)}" if is_known else "by default as the preset's"
            own[name] = f"{said.get(field.name, '')}\n({default})"
    summary = (type(config).__doc__ or "").partition("\n")[0].rstrip(".")
    yield f"{prefix} ({type(config).__name__}): {summary}", own
    for groups in inner:
        yield from groups


def _of_rules(prefix: str, without: str) -> Group:
    """Return the group of the settings that rules have, without those of one of them."""
    found: dict[str, dict[str, list[str]]] = {}
    known = [field.name for field in dataclasses.fields(RULES[without].settings)] if without else []
    for rule, entry in RULES.items():
        said = descriptions(entry.settings)
        for name in (field.name for field in dataclasses.fields(entry.settings) if field.name not in known):
            found.setdefault(f"{prefix}.{name}", {}).setdefault(said.get(name, ""), []).append(rule)
    texts = {name: " ".join(f"{', '.join(x)}: {text}" for text, x in own.items()) for name, own in found.items()}
    return f"{prefix}: Settings of " + (f"other rules, which {without} refuses" if without else "rules"), texts


def _as_given(value: Any) -> str:
    """Return a value as the command line takes it."""
    text = ",".join(map(str, value)) or "()" if isinstance(value, tuple) else str(value)
    return {"": "''", "None": "none", "True": "true", "False": "false"}.get(text, text)
