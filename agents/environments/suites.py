"""Benchmarks as lists of environments, and what environments on the host show, known without making them."""

import re
from typing import NamedTuple

import numpy as np

from agents.environments import atari57
from agents.environments.host import HostEnvironment
from agents.environments.names import make_environment

ATARI57 = tuple(f"atari/{atari57.camel_case(game)}" for game in sorted(atari57.atari57_scores()))
# Cobbe et al. 2020.
PROCGEN = tuple(
    f"envpool/{game}Hard-v0"
    for game in (
        *("Bigfish", "Bossfight", "Caveflyer", "Chaser", "Climber", "Coinrun", "Dodgeball", "Fruitbot"),
        *("Heist", "Jumper", "Leaper", "Maze", "Miner", "Ninja", "Plunder", "Starpilot"),
    )
)
# Espeholt et al. 2018. There is no adapter for DeepMind Lab: what they show is known, but they cannot be made.
DMLAB30 = tuple(
    f"dmlab/{level}"
    for level in (
        *(
            "rooms_collect_good_objects_train",
            "rooms_exploit_deferred_effects_train",
            "rooms_select_nonmatching_object",
        ),
        *("rooms_watermaze", "rooms_keys_doors_puzzle", "language_select_described_object"),
        *("language_select_located_object", "language_execute_random_task", "language_answer_quantitative_question"),
        *("lasertag_one_opponent_small", "lasertag_three_opponents_small", "lasertag_one_opponent_large"),
        *("lasertag_three_opponents_large", "natlab_fixed_large_map", "natlab_varying_map_regrowth"),
        *("natlab_varying_map_randomized", "skymaze_irreversible_path_hard", "skymaze_irreversible_path_varied"),
        *("psychlab_arbitrary_visuomotor_mapping", "psychlab_continuous_recognition", "psychlab_sequential_comparison"),
        *("psychlab_visual_search", "explore_object_locations_small", "explore_object_locations_large"),
        *("explore_obstructed_goals_small", "explore_obstructed_goals_large", "explore_goal_locations_small"),
        *("explore_goal_locations_large", "explore_object_rewards_few", "explore_object_rewards_many"),
    )
)


class Seen(NamedTuple):
    """What a host environment shows, and how many actions it takes."""

    observation_shape: tuple[int, ...]  # of one environment
    observation_dtype: np.dtype
    num_actions: int


_BYTE = np.dtype(np.uint8)
# Patterns of names; of Atari with `ATARI_PREPROCESSING`, of DMLab-30 as IMPALA's agents see it.
_KNOWN = {
    r"atari/.*": Seen((4, 84, 84), _BYTE, 18),
    "|".join(PROCGEN): Seen((3, 64, 64), _BYTE, 15),
    r"dmlab/.*": Seen((3, 72, 96), _BYTE, 9),
}


def seen(name: str) -> Seen:
    """Return what a host environment shows; of Atari with all actions, of which some games have fewer.

    Raises:
      ValueError or ImportError: those of `make_environment`, which is called where it is not known.
    """
    for pattern, known in _KNOWN.items():
        if re.fullmatch(pattern, name):
            return known
    environment = make_environment(name, 1, 0)
    assert isinstance(environment, HostEnvironment)
    environment.close()
    return Seen(environment.observation_shape, environment.observation_dtype, environment.num_actions)
