"""Every setting is documented where it is defined, and help() and --help show what is said there."""

import dataclasses
import importlib
import os
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest

import frodo
from agents.settings import descriptions
from frodo.settings.registry import RULES, RuleConfig
from tests.test_structure import LAYERS

PROGRAMS = sorted(Path(__file__).parents[3].glob("experiments/*.py"))
WITH_SETTINGS = [
    path.stem for path in PROGRAMS if re.search(r"command_line\.define_(flags|settings)", path.read_text())
]


def config_classes():
    """Return the classes of settings of all programs and of the library, by name."""
    for path in PROGRAMS:
        importlib.import_module(f"experiments.{path.stem}")
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] in LAYERS]
    found = {entry.settings for entry in RULES.values()}
    found |= {x for module in modules for x in vars(module).values() if dataclasses.is_dataclass(x) and is_config(x)}
    for one in list(found - {RuleConfig}):
        for field in dataclasses.fields(one):
            value = field.default_factory() if callable(field.default_factory) else field.default
            assert not dataclasses.is_dataclass(value) or type(value) in found, (one, field.name)
    return sorted(found, key=lambda one: one.__name__)


def is_config(one):
    return isinstance(one, type) and one.__name__.endswith("Config")


def test_each_setting_has_words_and_none_is_documented_that_is_not_there():
    classes = config_classes()
    assert len(classes) > 25
    for one in classes:
        said = descriptions(one)
        names = [field.name for field in dataclasses.fields(one)]
        assert [name for name in names if not said.get(name)] == [], f"{one.__name__} says nothing of them"
        assert sorted(said) == sorted(names), f"{one.__name__} speaks of what it has not"


def test_what_a_base_says_is_said_again_only_of_what_is_defined_again():
    for one in config_classes():
        for base in one.__bases__:
            own, inherited = descriptions(one), descriptions(base)
            again = {name for name, words in inherited.items() if own[name] != words}
            assert again <= set(vars(one).get("__annotations__", {})), one


@pytest.mark.parametrize("settings", [frodo.AgentConfig, frodo.PopulationConfig, RULES["ppo"].settings])
def test_help_shows_inherited_settings(settings):
    shown = shown_words(pydoc.render_doc(settings, renderer=pydoc.plaintext))
    for base in settings.__mro__[1:-2]:
        for name in (
            field.name for field in dataclasses.fields(base) if field.name not in vars(settings)["__annotations__"]
        ):
            assert shown_words(f"{name}: {descriptions(base)[name]}") in shown


def shown_words(text):
    return " ".join(text.replace("|", " ").split())


@pytest.mark.parametrize("program", WITH_SETTINGS)
def test_a_programs_help_has_words_for_each_setting_in_groups(start, monkeypatch, program):
    monkeypatch.setenv("COLUMNS", "100")
    done = start(f"experiments.{program}", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    first, *groups = re.split(r"\n\n(?=config)", done.stdout.partition("\nflags:\n")[2])
    assert "  --config" not in first and first.count("\n  --") > 3
    assert len(groups) > 1 and all(
        group.count("\n  --") == group.count("\n  --config") + group.count("\n  --[no]c") for group in groups
    )
    assert re.findall(r"\n  (\S+config\.\S+:)(?! \S)", done.stdout) == []
    assert "by default as the preset's: " in done.stdout and "the preset's)" not in done.stdout
    assert max(map(len, "\n".join(groups).splitlines())) <= 100


def test_help_knows_the_preset_that_flags_after_it_name(start):
    shown = shown_words(start("experiments.online", "--help", "--env=toy/catch/5x5", "--rule=disco").stdout)
    assert "config.rule (DiscoConfig): DiscoRL's rule" in shown
    assert (
        "--config.rule.prediction_size: Categories of y, and of z, at least 1. (by default as the preset's: 600)"
        in shown
    )
    of_others = shown.partition("config.rule: Settings of other rules, which disco refuses:")[2]
    assert "--config.rule.torso: frodo, learned_loss: Units of the agent's last layer" in of_others
    assert "--config.rule.prediction_size" not in of_others


def test_help_ends_where_nobody_reads_it():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "experiments.score", "--help"], stdout=write, stderr=subprocess.PIPE, timeout=120
    )
    os.close(write)
    assert b"Traceback" not in done.stderr and b"BrokenPipe" not in done.stderr


def test_help_is_there_without_a_preset(start):
    done = start("experiments.online", "--help", "--rule=none")
    assert done.returncode == 0 and "(by default as the preset's)" in done.stdout
    assert "--config.rule.lstm: frodo, learned_loss: Units of the meta-network" in shown_words(done.stdout)


def test_the_full_help_has_words_too(start):
    done = start("experiments.score", "--helpfull")
    assert (
        "--config.lane.capacity: Transitions that are replayed, at least 1." in done.stdout and "\nabsl" in done.stdout
    )
