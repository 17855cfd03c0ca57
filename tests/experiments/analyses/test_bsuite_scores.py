"""Scores are bsuite's own, and whatever is of less than all episodes says so."""

import numpy as np
import pandas as pd
import pytest
from bsuite.logging import logging_utils

from experiments.analyses import bsuite_scores
from frodo.runs.errors import UsageError


def of_episodes(bsuite_id: str, episodes, **columns) -> pd.DataFrame:
    """A record with rows at these episodes; columns are multiples of the episode, or lists."""
    episodes = np.array(episodes)
    values = {name: x if isinstance(x, list) else x * episodes for name, x in columns.items()}
    return pd.DataFrame({"bsuite_id": bsuite_id, "episode": episodes, **values})


def scores(*records: pd.DataFrame) -> dict[str, dict]:
    own = bsuite_scores.scores(logging_utils.join_metadata(pd.concat(records)))
    return own.set_index("experiment").to_dict("index")


def row(score, ids, all_ids, episodes, all_episodes, part):
    counts = {"ids": ids, "all_ids": all_ids, "episodes": episodes, "all_episodes": all_episodes}
    return {"score": pytest.approx(score), **counts, "part": part}


def test_scores_are_over_the_episodes_that_all_ids_have():
    regret = [160 * 0.25, 1600 * 0.75]
    whole, half = (
        of_episodes("catch/0", [100, 1000], total_regret=regret),
        of_episodes("catch/1", [100], total_regret=1.6),
    )
    part = "2 of 20 ids, 1 % of episodes"
    assert scores(whole, half)["catch"] == row((0.75 + 0) / 2, 2, 20, 100, 10000, part)
    too_many = of_episodes("catch/0", [1000, 10000, 12000], total_regret=[0.0, 8000.0, 19200.0])
    assert scores(too_many)["catch"] == row(0.5, 1, 20, 10000, 10000, "1 of 20 ids")
    everything = [of_episodes(f"catch/{i}", [10000], total_regret=0.4) for i in range(20)]
    assert scores(*everything)["catch"] == row(0.75, 20, 20, 10000, 10000, "")


def test_scores_that_bsuite_cannot_compute_any_more_or_yet():
    solved, unsolved = (
        of_episodes(f"deep_sea/{i}", [100, 1000], total_bad_episodes=x) for i, x in ((0, 0.5), (1, 1.0))
    )
    assert scores(solved, unsolved)["deep_sea"]["score"] == 0.5
    assert not hasattr(pd.Series, "append")
    early = of_episodes("mnist/0", [1, 10], total_regret=1.0)  # its accuracy is that of the last tenth
    both = scores(early, solved)
    assert np.isnan(both["mnist"]["score"]) and both["deep_sea"]["score"] == 1


def test_what_is_no_file_of_scores_is_named(tmp_path):
    with pytest.raises(UsageError, match="scores.csv is no file of scores"):
        bsuite_scores.read(tmp_path / "scores.csv")
