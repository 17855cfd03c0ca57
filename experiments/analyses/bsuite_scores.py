"""Scores of bsuite by bsuite's own functions, from the records that its logger makes (Osband et al. 2020).

An experiment is scored from the episodes that every one of its runs has recorded, at most as many as bsuite asks for.
With all ids and all their episodes it is bsuite's score of the experiment; anything less is marked.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from bsuite import sweep
from bsuite.logging import base, csv_logging, logging_utils

from frodo import files
from frodo.files import from_plain
from frodo.runs.errors import UsageError

TAGS = ("basic", "noise", "scale", "exploration", "credit_assignment", "memory", "generalization")
EXPERIMENTS = tuple(dict.fromkeys(bsuite_id.split(sweep.SEPARATOR)[0] for bsuite_id in sweep.SWEEP))


@dataclasses.dataclass(frozen=True)
class Score:
    """How an agent does in an experiment: a row of scores.csv."""

    experiment: str
    score: float  # from 0 to 1; nan where bsuite's function gives none for so few episodes
    ids: int  # that were run
    all_ids: int  # that bsuite has
    episodes: int  # that each of them has recorded
    all_episodes: int  # that bsuite asks for

    @property
    def part(self) -> str:
        """Say how much the score covers, if not all: "1 of 20 ids, 50 % of episodes"."""
        ids = f"{self.ids} of {self.all_ids} ids" if self.ids < self.all_ids else ""
        share = 100 * self.episodes / self.all_episodes
        return ", ".join(filter(None, (ids, f"{share:.3g} % of episodes" if share < 100 else "")))


class Recorder(base.Logger):
    """Writes the rows of bsuite's logger to a file that bsuite reads, each time the whole file or nothing."""

    def __init__(self, path: Path):
        self.path = path
        self.rows: list[Mapping] = []

    def write(self, data: Mapping) -> None:
        self.rows.append(data)
        files.write_csv(self.path, self.rows)


def record_path(folder: Path, bsuite_id: str) -> Path:
    """Return the path of a record, with the name by which bsuite's `csv_load` finds it."""
    name = bsuite_id.replace(sweep.SEPARATOR, csv_logging.SAFE_SEPARATOR)
    return folder / f"{csv_logging.BSUITE_PREFIX}{name}.csv"


def read_records(folder: Path, ids: Sequence[str]) -> pd.DataFrame:
    """Return the records of those ids in which an episode ended, with bsuite's settings of each."""
    paths = {bsuite_id: record_path(folder, bsuite_id) for bsuite_id in ids}
    frames = [pd.read_csv(path).assign(bsuite_id=bsuite_id) for bsuite_id, path in paths.items() if path.exists()]
    return logging_utils.join_metadata(pd.concat(frames)) if frames else pd.DataFrame()


def scores(records: pd.DataFrame) -> list[Score]:
    """Score every experiment of the records, in bsuite's order; none without records."""
    if not len(records):
        return []
    last = records.groupby(["bsuite_env", "bsuite_id"]).episode.max().groupby("bsuite_env")
    wanted = records.bsuite_id.map(sweep.EPISODES)
    common = records[records.episode <= np.minimum(records.bsuite_env.map(last.min()), wanted)]
    pd.Series.append = lambda self, other: pd.concat([self, other])  # of pandas 1: deep_sea's score calls it
    try:
        by_name = _summary_analysis().bsuite_score(common).set_index("bsuite_env")
    finally:
        del pd.Series.append
    all_ids = {name: sum(x.split(sweep.SEPARATOR)[0] == name for x in sweep.SWEEP) for name in EXPERIMENTS}
    return [
        Score(
            experiment=name,
            score=float(by_name.score[name]),
            ids=int(last.size()[name]),
            all_ids=all_ids[name],
            episodes=int(common[common.bsuite_env == name].episode.max()),
            all_episodes=sweep.EPISODES[f"{name}/0"],
        )
        for name in EXPERIMENTS
        if name in by_name.index
    ]


def by_tag(own: Sequence[Score]) -> dict[str, float]:
    """Return the mean score over the experiments of each of bsuite's tags; nan for a tag of which none has a score."""
    info = _summary_analysis().BSUITE_INFO
    values = {tag: [one.score for one in own if tag in info[one.experiment].tags] for tag in TAGS}
    return {tag: float(np.mean(known)) if (known := [x for x in values[tag] if x == x]) else np.nan for tag in TAGS}


def write(path: Path, own: Sequence[Score]) -> None:
    """Write scores.csv."""
    files.write_csv(path, [dataclasses.asdict(one) | {"part": one.part} for one in own])


def read(path: Path) -> list[Score]:
    """Read scores.csv.

    Raises:
      UsageError: naming the file, if there is none or it is not what `write` writes.
    """
    try:
        rows = pd.read_csv(path).drop(columns="part").to_dict("records")
        return [from_plain(Score, row) for row in rows]
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is no file of scores: name the folder of a finished sweep") from None


def _summary_analysis():
    with mpl.rc_context():  # which it changes
        from bsuite.experiments import summary_analysis
    return summary_analysis
