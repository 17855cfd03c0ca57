"""Environments by name, and names that are none."""

import importlib.util
import subprocess
import sys

import pytest

from agents.environments.names import is_pure, make_environment
from toy_envs.bandit import Bandit
from toy_envs.catch import Catch
from toy_envs.changing import Changing
from toy_envs.random_walk import RandomWalk
from toy_envs.rule_room import RuleRoom
from toy_envs.trials import Trials
from toy_envs.wrapper import Scaled

needs_envpool = pytest.mark.skipif(importlib.util.find_spec("envpool") is None, reason="envpool is not installed")
needs_gymnax = pytest.mark.skipif(importlib.util.find_spec("gymnax") is None, reason="gymnax is not installed")


def test_toys_are_pure_environments():
    assert make_environment("toy/catch", 32, 0) == Catch()
    assert make_environment("toy/random_walk", 1, 0) == RandomWalk()
    assert make_environment("changing/actions/50/toy/catch/8x8", 4, 0) == Changing(Catch(8, 8), "actions", 50)
    assert is_pure("changing/rewards/9/toy/catch")
    with pytest.raises(ValueError, match="^changing/actions/0/toy/catch: period is 0, expected at least 1 step$"):
        make_environment("changing/actions/0/toy/catch", 4, 0)


@pytest.mark.parametrize("factor", ["1e-3", "0.001", "1000", "1e3", "2.5"])
def test_pure_environments_at_another_scale_of_rewards(factor):
    assert make_environment(f"scaled/{factor}/toy/catch/8x8", 4, 0) == Scaled(Catch(8, 8), float(factor))
    assert is_pure(f"scaled/{factor}/toy/catch")
    with pytest.raises(ValueError, match="^scaled/0/toy/catch: factor is 0, expected 1e-30 to 1e.30$"):
        make_environment("scaled/0/toy/catch", 4, 0)


def test_trials_of_pure_environments():
    assert make_environment("trials/4/toy/rule_room/main/16", 64, 0) == Trials(RuleRoom("main", 16), 4)
    assert make_environment("trials/1-3/forgetful/toy/catch", 1, 0) == Trials(Catch(), 3, 1, is_forgetful=True)
    changing = make_environment("trials/3/changing/actions/7/toy/bandit/2", 1, 0)
    assert changing == Trials(Changing(Bandit(2), "actions", 7), 3) and changing.horizon == 30
    assert make_environment("trials/2/toy/rule_room/mixed", 1, 0).horizon == 32
    assert make_environment("trials/2/toy/catch", 1, 0).horizon is None
    assert is_pure("trials/2/toy/catch")
    with pytest.raises(ValueError, match="^trials/0/.*: num_trials is 0, expected a whole number of at least 1$"):
        make_environment("trials/0/toy/catch", 4, 0)


@pytest.mark.parametrize(
    ("name", "form", "nearest"),
    [
        ("toy/cach", "toy/<name>", "toy/catch"),
        ("bsuite/cach/0", "bsuite/<experiment>/<index>", "bsuite/catch/0"),
        ("bsuite/catch/99", "bsuite/<experiment>/<index>", "bsuite/catch/9"),
        ("bsuite/catch", "bsuite/<experiment>/<index>", "bsuite/catch/"),
        pytest.param("envpool/cartpole-v1", "envpool/<Id>", "envpool/CartPole-v1", marks=needs_envpool),
        pytest.param("envpool/Pong", "envpool/<Id>", "envpool/Pong-v5", marks=needs_envpool),
        ("atari/MsPackman", "atari/<Game>", "atari/MsPacman"),
        ("atari", "atari/<Game>", "atari/"),
        ("atri/Pong", "toy/<name> or .* or atari/<Game>", "atari/Pong"),
        pytest.param("CartPole-v1", "toy/<name> or .* or atari/<Game>", "gymnax/CartPole-v1", marks=needs_gymnax),
        ("", "toy/<name> or .* or atari/<Game>", ""),
        ("changing/rewards/toy/catch", "changing/<rewards or actions>/<steps>/<environment>", "changing/rewards/2000/"),
        ("scaled/x/toy/catch", "scaled/<factor>/<environment>", "scaled/10/"),
        ("scaled/2/bsuite/catch/0", "scaled/<factor>/<environment>", "scaled/"),
        ("scaled/2/scaled/3/toy/catch", "scaled/<factor>/<environment>", "scaled/"),
        ("scaled/2", "scaled/<factor>/<environment>", "scaled/"),
        ("trials/4/bsuite/catch/0", "trials/<trials>/<environment>", "trials/"),
        ("trials/4/trials/2/toy/catch", "trials/<trials>/<environment>", "trials/"),
        ("changing/rewards/9/trials/2/toy/catch", "changing/<rewards or actions>/<steps>/<environment>", "changing/"),
        ("changing/rewards/9/bsuite/catch/0", "changing/<rewards or actions>/<steps>/<environment>", "changing/"),
    ],
)
def test_a_misspelt_name_says_what_would_be_right(name, form, nearest):
    with pytest.raises(ValueError, match=f"'{name}': expected {form}, the nearest match is '{nearest}") as error:
        make_environment(name, 1, 0)
    assert "\n" not in str(error.value)


def test_what_plans_alone_know_is_said():
    with pytest.raises(ValueError, match="'dmlab/rooms_watermaze': DeepMind Lab has no adapter, plans alone know what"):
        make_environment("dmlab/rooms_watermaze", 1, 0)


def test_there_is_at_least_one_environment():
    for name in ("toy/catch", "bsuite/catch/0", "envpool/CartPole-v1"):
        with pytest.raises(ValueError, match="num_envs is 0, expected a whole number of at least 1"):
            make_environment(name, 0, 0)


def test_without_envpool_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    for name in ("envpool/CartPole-v1", "envpool/cartpole", "atari/Pong"):
        with pytest.raises(ImportError, match=r"^envpool/\.\.\. and atari/\.\.\. need .* pip install envpool$"):
            make_environment(name, 1, 0)
    for name, nearest in (("atari/Pongg", "atari/Pong"), ("ctch/0", "bsuite/catch/0")):
        with pytest.raises(ValueError, match=f"the nearest match is '{nearest}'"):
            make_environment(name, 1, 0)


def test_libraries_are_imported_where_they_are_used():
    modules = [
        f"agents.environments.{name}" for name in ("names", "adapt", "atari57", "bsuite", "envpool", "gymnasium")
    ]
    check = f"import sys, {', '.join(modules)}; print({{'envpool', 'bsuite', 'gymnasium'}} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True).stdout == "set()\n"
