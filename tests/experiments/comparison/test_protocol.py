"""Settings are chosen by the tuning runs, and elsewhere than a discovered rule is judged."""

import itertools
import math

import pytest

from experiments.comparison import protocol
from experiments.comparison.protocol import Grid, Point, choose, choose_one
from frodo.runs.errors import UsageError

A, B, C = (Point(rate, 0.01, (2, 20)) for rate in (1e-3, 3e-3, 1e-2))
CATCH, OTHER_CATCH, GRID_WORLD = "toy/catch", "toy/catch/8x8", "toy/grid_world/46"


def scores(**by_env):
    names = {"catch": CATCH, "other_catch": OTHER_CATCH, "grid_world": GRID_WORLD}
    return {(names[x], point): score for x, own in by_env.items() for point, score in zip((A, B, C), own, strict=True)}


def test_a_hand_made_rule_has_its_best_setting_in_the_environment():
    own = scores(catch=(0.1, 0.9, 0.5), other_catch=(0.9, 0.0, 0.0), grid_world=(0.0, 0.1, 1.0))
    assert [choose(own, env, False) for env in (CATCH, OTHER_CATCH, GRID_WORLD)] == [B, A, C]


def test_a_discovered_rule_is_not_tuned_where_it_is_shown():
    own = scores(catch=(0.1, 0.9, 0.5), other_catch=(0.9, 0.0, 0.0), grid_world=(0.0, 0.1, 1.0))
    assert choose(own, CATCH, True) == A and choose(own, OTHER_CATCH, True) == B  # by the other one of its family
    assert choose(own, GRID_WORLD, True) == A  # by all others, alone in its family
    for env in (CATCH, OTHER_CATCH, GRID_WORLD):  # whatever it does there
        for changed in itertools.permutations((5.0, -5.0, 0.0)):
            there = {
                (name, point): changed[(A, B, C).index(point)] if name == env else x for (name, point), x in own.items()
            }
            assert choose(there, env, True) == choose(own, env, True)


def test_one_setting_is_the_best_over_all():
    own = scores(catch=(0.1, 0.9, 0.5), other_catch=(0.9, 0.0, 0.0), grid_world=(0.0, 0.1, 1.0))
    assert choose_one(own) == C


def test_a_setting_without_an_episode_is_worse_than_any():
    own = scores(catch=(math.nan, -9.0, math.nan), other_catch=(0.9, 0.0, math.nan))
    assert choose(own, CATCH, False) == B and choose_one(own) == B and choose(own, OTHER_CATCH, True) == B
    nowhere = scores(catch=(math.nan, math.nan, math.nan), other_catch=(-0.5, 0.0, 0.9))
    assert choose(nowhere, CATCH, False) == A and choose_one(nowhere) == C


def test_families_and_points_have_names():
    families = {"toy/catch/8x8": "catch", "bsuite/catch/0": "catch", "toy/grid_world/3": "grid_worlds"}
    families |= {"scaled/10/toy/catch": "catch", "scaled/1e-3/changing/rewards/9/toy/catch": "changing"}
    families |= {"gymnax/Breakout-MinAtar": "minatar", "atari/Pong": "atari", "gymnax/CartPole-v1": "control"}
    assert {env: protocol.family(env) for env in families} == families
    assert str(A) == "rate 0.001, entropy 0.01, 2 × 20" and A.program.folder == "entropy_0.01_batch_2x20"
    assert Point(1.0, None, (3, 4)).program.folder == "batch_3x4"


def test_a_family_alone_is_all():
    assert protocol.groups_of([CATCH, OTHER_CATCH]) == {"all": [0, 1]}
    of_two = {"catch": [0, 2], "grid_worlds": [1], "all": [0, 1, 2]}
    assert protocol.groups_of([CATCH, GRID_WORLD, OTHER_CATCH]) == of_two


def test_the_grid_of_a_rule_without_entropy_is_smaller():
    grid = Grid()
    assert len(set(grid.programs(True))) == 6 and len(set(grid.programs(False))) == 2
    assert grid.edges(A) == ["rate", "entropy"]
    two_costs = Grid(entropy_costs=(0.01, 0.03))
    assert two_costs.edges(A) == ["rate"] and not two_costs.edges(B)  # two costs have no middle


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rates": (1e-3, 0.001)}, "--learning_rates=0.001,0.001: 0.001 is given more than once"),
        ({"entropy_costs": (0.0, 0.0)}, "--entropy_costs=0,0: 0 is given more than once"),
        ({"batches": ((2, 3), (2, 3))}, "--batches=2x3,2x3: 2x3 is given more than once"),
        ({"learning_rates": (0.0, 1.0)}, "--learning_rates=0,1: give positive numbers"),
        ({"batches": ((0, 3),)}, "--batches=0x3: give positive numbers"),
        ({"learning_rates": (1.0, math.nan)}, "--learning_rates=1,nan: give positive numbers"),
        ({"entropy_costs": (math.inf,)}, "--entropy_costs=inf: give positive numbers"),
        ({"learning_rates": ()}, "--learning_rates=: give at least one value"),
    ],
)
def test_a_bad_grid_is_refused(settings, message):
    Grid(entropy_costs=(0.0,)).validate()
    with pytest.raises(UsageError, match=message):
        Grid(**settings).validate()


def test_the_replay_is_read_from_a_flag():
    assert protocol.parse_replay("") is None and protocol.parse_replay("1024x64") == (1024, 64)
    for text in ("64", "3x2,4x2", "0x64", "64x0"):
        with pytest.raises(UsageError, match=f"^--replay={text}: give trajectories kept x those of an update, such as"):
            protocol.parse_replay(text)


def test_the_grid_is_read_from_flags():
    found = protocol.parse_grid(["1e-3", "0.01"], ["0.1"], "16x16,64x32")
    assert found == Grid((0.001, 0.01), (0.1,), ((16, 16), (64, 32)))
    for text in ("16", "16x16x2", "axb"):
        with pytest.raises(UsageError, match=f"--batches={text}: give environments x steps"):
            protocol.parse_grid(["1"], ["1"], text)
    with pytest.raises(UsageError, match="--entropy_costs=0.1,many: give numbers"):
        protocol.parse_grid(["1"], ["0.1", "many"], "1x1")
