"""The page makes the same θ and η as the package with its preset for Catch, and needs no more than the environment."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

import frodo
from agents.networks.agent import NetworkConfig
from examples import frodo_in_one_file as page
from frodo.settings import presets
from meta.updates.outer import OuterConfig
from tests.test_structure import LAYERS, imported

NUM_ITERATIONS = 10
SMALL = page.Settings(batch_size=8, hidden=(32, 16), lstm=16)
# No setting is 1, and an episode may end at any step of a trajectory.
OTHER = SMALL._replace(
    num_updates=3, num_steps=4, num_validation_steps=6, gamma=0.9, lambda_=0.7, value_cost=0.4, entropy_cost=0.05
)


def of_package(settings):
    """The preset with the settings of the page; its optimisers are those of the preset."""
    preset = presets.catch().agent_only()
    losses = dict(discount=settings.gamma, value_cost=settings.value_cost, entropy_cost=settings.entropy_cost)
    return preset.replace(
        num_updates=settings.num_updates,
        unroll=settings.num_steps,
        validation_unroll=settings.num_validation_steps,
        batch_size=settings.batch_size,
        network=NetworkConfig("mlp", settings.hidden),
        rule=preset.rule.replace(lstm=settings.lstm, **losses),
        outer=OuterConfig(lambda_=settings.lambda_, **losses),
    )


def discover(settings, key):
    config = of_package(settings)
    rule = frodo.make_rule("frodo", **vars(config.rule.settings))
    others = {name: value for name, value in vars(config).items() if name != "rule"}
    num_steps = NUM_ITERATIONS * config.num_env_steps(is_meta=True)
    return frodo.discover_online("toy/catch", rule, num_steps=num_steps, key=key, **others)


def check_moved_alike(start, actual, expected):
    for before, x, y in zip(*map(jax.tree.leaves, (start, actual, expected)), strict=True):
        movement = np.linalg.norm(y - before)
        assert movement > 1e-3  # of float32 weights below 1, whose rounding is 1e-7
        assert np.linalg.norm(x - y) < 1e-4 * movement


def test_the_defaults_are_those_of_the_preset():
    assert of_package(page.Settings()) == presets.catch().agent_only()


@pytest.mark.parametrize("settings", [SMALL, OTHER], ids=["small", "other"])
def test_the_page_learns_what_the_package_learns(settings):
    key = jax.random.key(3)
    expected = discover(settings, key)
    start = page.init(key, settings)
    learn = jax.jit(lambda state: jax.lax.scan(lambda s, _: page.iteration(s, settings), state, length=NUM_ITERATIONS))
    state, _ = learn(start)
    check_moved_alike(start.eta, state.eta, expected.meta_params)
    check_moved_alike(start.theta, state.theta, expected.params)


def test_the_page_prints_the_return_as_it_learns_and_whether_catch_is_solved(capsys):
    page.main(SMALL, num_lines=2, iterations=NUM_ITERATIONS)
    *progress, last = capsys.readouterr().out.splitlines()
    lines = [re.fullmatch(r" +([\d,]+) steps   return +(-?\d\.\d{3})", line) for line in progress]
    assert [line[1] for line in lines] == ["1,600", "3,200"] and all(-1 <= float(line[2]) <= 1 for line in lines)
    assert re.fullmatch(r"Catch is not solved: the greedy policy's return is -?\d\.\d{3}", last)


def test_it_is_one_page_that_needs_the_environment_alone():
    source = Path(page.__file__).read_text()
    assert len(source.splitlines()) <= 200
    assert {name.partition(".")[0] for name in imported(source)} & {*LAYERS} == {"toy_envs"}
