"""The games of Atari-57: their names, and the scores of random and of human play."""

import csv
import difflib
import functools
import pathlib


@functools.cache
def atari57_scores() -> dict[str, tuple[float, float]]:
    """Return the mean return of a random and of a human player for each Atari-57 game, by its snake_case name.

    Source: DeepMind's DQN Zoo (`dqn_zoo/atari_data.py`). Episodes start with 1 to 30 no-ops, of 108,000 frames at most.
    """
    with open(pathlib.Path(__file__).with_name("atari57_scores.csv"), newline="", encoding="utf-8") as file:
        return {row["game"]: (float(row["random"]), float(row["human"])) for row in csv.DictReader(file)}


def human_normalised(game: str, episode_return: float) -> float:
    """Return the human-normalised score, (return - random) / (human - random); errors are those of `atari_scores`."""
    random, human = atari_scores(game)
    return (episode_return - random) / (human - random)


def atari_scores(game: str) -> tuple[float, float]:
    """Return the scores of random and of human play.

    Raises:
      ValueError: if the game, in any spelling that `make_environment` takes, is not one of Atari-57.
    """
    if snake_case(game) not in atari57_scores():
        nearest = difflib.get_close_matches(game, map(camel_case, atari57_scores()), n=1, cutoff=0.0)[0]
        raise ValueError(f"unknown game {game!r}: expected one of Atari-57, the nearest match is {nearest!r}")
    return atari57_scores()[snake_case(game)]


def snake_case(game: str) -> str:
    """Return the Atari-57 name of a game that may be spelt in camel case, or the name itself where there is none."""
    by_letters = {known.replace("_", ""): known for known in atari57_scores()}
    return by_letters.get(game.replace("_", "").lower(), game)


def camel_case(game: str) -> str:
    """Return the name of a game in camel case, as envpool has it, from that in snake_case."""
    return "".join(word.capitalize() for word in game.split("_"))


def envpool_id(game: str) -> str:
    """Return envpool's id of a game in snake_case."""
    return f"{camel_case(game)}-v5"
