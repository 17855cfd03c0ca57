"""The names of the Atari games, and their scores."""

import pytest

from agents.environments import atari57


def test_all_57_games_are_environments_by_their_usual_names():
    envpool = pytest.importorskip("envpool")
    games = atari57.atari57_scores()
    assert len(games) == 57
    ids = {atari57.envpool_id(game) for game in games}
    assert len(ids) == 57 and ids <= set(envpool.list_all_envs())
    for env_id in ids:
        assert atari57.envpool_id(atari57.snake_case(env_id.removesuffix("-v5"))) == env_id
    for spelling, game in (("MsPacman", "ms_pacman"), ("UpNDown", "up_n_down"), ("pong", "pong"), ("HERO", "hero")):
        assert atari57.snake_case(spelling) == game


def test_atari57_scores():
    scores = atari57.atari57_scores()
    assert scores["pong"] == (-20.7, 14.6) and scores["zaxxon"] == (32.5, 9173.3)
    assert all(random < human for random, human in scores.values())
    assert atari57.human_normalised("pong", -20.7) == 0.0
    assert atari57.human_normalised("Breakout", 30.5) == 1.0
    assert atari57.human_normalised("ms_pacman", 307.3 + 2 * (6951.6 - 307.3)) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="unknown game 'pongg': expected one of Atari-57, the nearest match is 'Pong'"):
        atari57.human_normalised("pongg", 0.0)
