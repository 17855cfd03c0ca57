"""Scores of bsuite by bsuite's own functions, from the records that its logger makes (Osband et al. 2020).

An experiment is scored from the episodes that every one of its runs has recorded, at most as many as bsuite asks for.
With all ids and all their episodes it is bsuite's score of the experiment; anything less is marked.
"""

import collections
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from bsuite import sweep
from bsuite.logging import logging_utils

from experiments.analyses.bsuite_runs import EXPERIMENTS, id_folder, record_path
from experiments.results import plots
from experiments.runs.jobs import failure
from frodo import files
from frodo.logs import note, table
from frodo.runs.errors import RunError, UsageError

TAGS = ("basic", "noise", "scale", "exploration", "credit_assignment", "memory", "generalization")


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
    all_ids = collections.Counter(bsuite_id.split(sweep.SEPARATOR)[0] for bsuite_id in sweep.SWEEP)
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
    return {tag: float(pd.Series(known, dtype=float).mean()) for tag, known in values.items()}


def read(path: Path) -> list[Score]:
    """Read scores.csv.

    Raises:
      UsageError: naming the file, if there is none or it is not what `report` writes.
    """
    try:
        rows = pd.read_csv(path).drop(columns="part").to_dict("records")
        return [files.from_plain(Score, row) for row in rows]
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is no file of scores: name the folder of a finished sweep") from None


def report(out: Path, label: str, ids: Sequence[str], beside: Sequence[Path]) -> str:
    """Write scores and figures of all ids in the folder that are finished; returns a table, and notes what has none.

    Args:
      out: the sweep's folder.
      label: its name in the figures.
      ids: the ids that should be there.
      beside: the folders of other sweeps, which are drawn too.
    Raises:
      RunError: if there is no score at all.
    """
    for bsuite_id in ids:
        has_record = record_path(out / "records", bsuite_id).exists()
        if reason := failure(id_folder(out, bsuite_id)) or "no episode ended" * (not has_record):
            note(f"no score of {bsuite_id}: {reason}")
    own = scores(read_records(out / "records", [x for x in sweep.SWEEP if not failure(id_folder(out, x))]))
    if not own:
        raise RunError(f"no id has a score; what the runs said is in {out}/ids/*/log.txt")
    files.write_csv(out / "scores.csv", [dataclasses.asdict(one) | {"part": one.part} for one in own])
    labels = [label, *(folder.name for folder in beside)]
    if len(set(labels)) < len(labels):
        labels = [label, *map(str, beside)]
    sweeps = dict(zip(labels, [own, *(read(folder / "scores.csv") for folder in beside)], strict=True))
    is_whole = all(len(scores) == len(EXPERIMENTS) and not any(x.part for x in scores) for scores in sweeps.values())
    title = "bsuite: mean score by tag" + "\nnot over all experiments, ids and episodes" * (not is_whole)
    plots.radar(out / "radar.png", pd.DataFrame({name: by_tag(one) for name, one in sweeps.items()}), title)
    rows = [{"sweep": name, "part": x.part, **vars(x)} for name, scores in sweeps.items() for x in scores]
    wide = pd.DataFrame(rows).pivot(index="experiment", columns="sweep", values=["score", "part"])
    wide = wide.reindex([name for name in EXPERIMENTS if name in wide.index])
    plots.bars(out / "bars.png", wide.score[labels].astype(float), wide.part[labels])
    return table([{"experiment": one.experiment, "score": one.score, "part": one.part or "-"} for one in own])


def _summary_analysis():
    with mpl.rc_context():  # which it changes
        from bsuite.experiments import summary_analysis
    return summary_analysis
