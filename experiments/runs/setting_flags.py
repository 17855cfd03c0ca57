"""A flag for each setting, --config.<name>: its type, and what --help says of it, as its class's docstring does."""

import contextlib
import dataclasses
import math
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from absl import flags

from agents.settings import descriptions
from frodo.runs.errors import caused_by
from frodo.settings.registry import RULES, RuleConfig

Config = TypeVar("Config")
Group = tuple[str, dict[str, tuple[Any, str]]]  # its title, and of each of its flags the type and the help
FLAGS = flags.FLAGS
SETTINGS = "settings"  # what flags of settings are defined in, in place of a module
made_by: tuple[Any, Callable[[], Any]] = (None, lambda: None)  # the program's settings, and what makes its preset


def define_settings(config: Any, without: Sequence[str] = (), preset: Callable[[], Any] | None = None) -> None:
    """Define --config.<field> for every field of a dataclass.

    A field that is a rule gets flags for the settings of all rules. Fields in `without`, such as "rule.kind" or all of
    "distillation", and a rule's name get none: the program decides them. For --help, `preset` makes of the flags what
    the settings change, if that is not `config`.
    """
    global made_by
    made_by = (config, preset or (lambda: config))
    left_out = tuple(f"config.{name}." for name in without)
    for name, (hint, _) in [one for _, group in _groups(config, "config", False) for one in group.items()]:
        if f"{name}.".startswith(left_out):
            continue
        if hint is bool:
            flags.DEFINE_boolean(name, None, "", module_name=SETTINGS)
        elif _expected(hint):
            flags.DEFINE(_Parser(hint), name, None, "", module_name=SETTINGS)


def given_settings() -> dict[str, Any]:
    """Return the settings that the command line gives, by their names after "config."."""
    is_given = lambda name: name.startswith("config.") and FLAGS[name].present
    return {name.removeprefix("config."): FLAGS[name].value for name in sorted(FLAGS) if is_given(name)}


def with_settings(config: Config, given: Mapping[str, Any]) -> Config:
    """Return a dataclass with settings that are given by their names, such as "outer.lambda_".

    Raises:
      UsageError: for a setting that the rule does not have.
    """
    for name, value in given.items():
        first, _, rest = name.partition(".")
        if isinstance(rule := getattr(config, first), RuleConfig):
            with caused_by(f"--config.{name}"):
                value = rule.replace(**{rest: value})
        elif rest:
            value = with_settings(getattr(config, first), {rest: value})
        config = dataclasses.replace(config, **{first: value})  # type: ignore[type-var]
    return config


def show_help(is_full: bool) -> None:
    """Print the help of a program whose flags are parsed; the full one is absl's list of the flags of all modules."""
    config, make_preset = made_by
    is_known = False
    with contextlib.suppress(ValueError, ImportError, OSError):  # as of a name that is none
        config, is_known = make_preset(), True
    parts = [FLAGS.main_module_help().replace(sys.argv[0], "flags", 1)]
    for title, group in _groups(config, "config", is_known) if config else ():
        title = flags.text_wrap(title, indent="  ", firstline_indent="")
        for name in group.keys() & set(FLAGS):
            FLAGS[name].help = group[name][1]
            FLAGS.register_key_flag_for_module(title, FLAGS[name])
        parts.append(FLAGS.module_help(title))
    text = FLAGS.get_help() if is_full else "\n".join([*filter(None, parts), "\n--helpfull lists all flags."])
    with contextlib.suppress(BrokenPipeError):  # of head, say
        print(sys.modules["__main__"].__doc__, text, sep="\n", flush=True)


def _groups(config: Any, prefix: str, is_known: bool) -> Iterator[Group]:
    """Give the settings of a dataclass, and after them those inside of it; `is_known` says whether it is the preset."""
    said, hints, own = descriptions(type(config)), typing.get_type_hints(type(config)), {}
    inner: list[Iterator[Group]] = []
    for field in dataclasses.fields(config):
        name, value = f"{prefix}.{field.name}", getattr(config, field.name)
        if isinstance(value, RuleConfig):
            inner += [_groups(value.settings, name, True)] if is_known else []
            inner.append(iter([_of_rules(name, value.name if is_known else "")]))
        elif dataclasses.is_dataclass(value):
            inner.append(_groups(value, name, is_known))
        else:
            default = f": {_as_given(value)}" if is_known else ""
            own[name] = hints[field.name], f"{said.get(field.name, '')}\n(by default as the preset's{default})"
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
            found.setdefault(name, {}).setdefault(said.get(name, ""), []).append(rule)
    text = lambda own: " ".join(f"{', '.join(rules)}: {words}" for words, rules in own.items())
    hints = rule_settings()
    title = f"{prefix}: Settings of " + (f"other rules, which {without} refuses" if without else "rules")
    return title, {f"{prefix}.{name}": (hints[name], text(own)) for name, own in found.items()}


def rule_settings() -> dict[str, Any]:
    """Return the settings of all rules: for each name its type, the widest one."""
    found: dict[str, Any] = {}
    for entry in RULES.values():
        for name, hint in typing.get_type_hints(entry.settings).items():
            found[name] = hint if type(None) in typing.get_args(hint) else found.get(name, hint)
    return found


def _as_given(value: Any) -> str:
    """Return a value as the command line takes it."""
    text = ",".join(map(str, value)) or "()" if isinstance(value, tuple) else str(value)
    return {"": "''", "None": "none", "True": "true", "False": "false"}.get(text, text)


class _Parser(flags.ArgumentParser):
    """Parses a value of an annotated type: numbers, text, Literal, tuple[X, ...] and X | None."""

    def __init__(self, hint: Any):
        self._hint = hint
        self.syntactic_help = _expected(hint)

    def parse(self, argument: Any) -> Any:
        try:
            return convert(argument, self._hint) if isinstance(argument, str) else argument
        except KeyError:
            raise ValueError(argument) from None


def _expected(hint: Any) -> str:
    """Say what values a type has: "" for one that the command line cannot give."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return "one of " + ", ".join(map(str, args))
    if origin in (typing.Union, types.UnionType, tuple):
        after = {types.NoneType: ", or none", ...: " for each entry, such as 1,2,3"}.get(args[-1])
        return f"{_expected(args[0])}{after}" if len(args) == 2 and after and _expected(args[0]) else ""
    return {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}.get(hint, "")


def convert(text: str, hint: Any) -> Any:
    """Return the value of an annotated type that a text says; a ValueError or KeyError if it says none."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return {str(value): value for value in args}[text]
    if origin in (typing.Union, types.UnionType):
        return None if text.lower() == "none" else convert(text, args[0])
    if origin is tuple:
        inside = text.strip("()[] ").removesuffix(",")
        return tuple(convert(part.strip(), args[0]) for part in inside.split(",")) if inside else ()
    if hint is float and (math.isnan(number := float(text)) or (math.isinf(number) and "inf" not in text.lower())):
        raise ValueError(text)
    return {"true": True, "false": False}[text.lower()] if hint is bool else hint(text)
