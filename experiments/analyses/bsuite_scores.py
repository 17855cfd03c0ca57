"""Scores of bsuite by bsuite's own functions, from the records that its logger makes (Osband et al. 2020).

An experiment is scored from the episodes that every one of its runs has recorded, at most as many as bsuite asks for.
With all ids and all their episodes it is bsuite's score of the experiment; anything less is marked.
"""

import collections
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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


def read_records(folder: Path, ids: Sequence[str]) -> pd.DataFrame:
    """Return the records of those ids in which an episode ended, with bsuite's settings of each."""
    paths = {bsuite_id: record_path(folder, bsuite_id) for bsuite_id in ids}
    frames = [pd.read_csv(path).assign(bsuite_id=bsuite_id) for bsuite_id, path in paths.items() if path.exists()]
    return logging_utils.join_metadata(pd.concat(frames)) if frames else pd.DataFrame()


def scores(records: pd.DataFrame) -> pd.DataFrame:
    """Score every experiment of the records, in bsuite's order: the rows of scores.csv.

    They have its name; the score, from 0 to 1, or nan where bsuite's function gives none for so few episodes; the ids
    that were run, and how many there are; the episodes that each of them has, and that bsuite asks for; and `part`.
    """
    if not len(records):
        return pd.DataFrame()
    last = records.groupby(["bsuite_env", "bsuite_id"]).episode.max().groupby("bsuite_env")
    wanted = records.bsuite_id.map(sweep.EPISODES)
    common = records[records.episode <= np.minimum(records.bsuite_env.map(last.min()), wanted)]
    pd.Series.append = lambda self, other: pd.concat([self, other])  # of pandas 1: deep_sea's score calls it
    try:
        by_name = _summary_analysis().bsuite_score(common).set_index("bsuite_env")
    finally:
        del pd.Series.append
    all_ids = collections.Counter(bsuite_id.split(sweep.SEPARATOR)[0] for bsuite_id in sweep.SWEEP)
    rows = [
        {
            "experiment": name,
            "score": float(by_name.score[name]),
            "ids": int(last.size()[name]),
            "all_ids": all_ids[name],
            "episodes": int(common[common.bsuite_env == name].episode.max()),
            "all_episodes": sweep.EPISODES[f"{name}/0"],
        }
        for name in EXPERIMENTS
        if name in by_name.index
    ]
    return pd.DataFrame([row | {"part": _part(row)} for row in rows])


def _part(row: Mapping[str, Any]) -> str:
    """Say how much a score covers, if not all: "1 of 20 ids, 50 % of episodes"."""
    ids = f"{row['ids']} of {row['all_ids']} ids" if row["ids"] < row["all_ids"] else ""
    share = 100 * row["episodes"] / row["all_episodes"]
    return ", ".join(filter(None, (ids, f"{share:.3g} % of episodes" if share < 100 else "")))


def read(path: Path) -> pd.DataFrame:
    """Read scores.csv; a UsageError names the file if there is none or it is not what `report` writes."""
    try:
        own = pd.read_csv(path)
        return own.assign(score=own.score.astype(float), part=own.part.fillna("").astype(str)).set_index("experiment")
    except (OSError, ValueError, KeyError, AttributeError):
        raise UsageError(f"{path} is no file of scores: name the folder of a finished sweep") from None


def report(out: Path, label: str, ids: Sequence[str], beside: Sequence[Path]) -> str:
    """Write the scores of all ids in the folder that are finished, and their figure; returns a table.

    Args:
      out: the sweep's folder.
      label: its name in the figure.
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
    if own.empty:
        raise RunError(f"no id has a score; what the runs said is in {out}/ids/*/log.txt")
    files.write_csv(out / "scores.csv", own.to_dict("records"))
    labels = [label, *(folder.name for folder in beside)]
    if len(set(labels)) < len(labels):
        labels = [label, *map(str, beside)]
    sweeps = dict(zip(labels, [read(folder / "scores.csv") for folder in (out, *beside)], strict=True))
    wide = pd.concat(sweeps, axis=1).reindex([x for x in EXPERIMENTS if any(x in one.index for one in sweeps.values())])
    plots.bars(out / "bars.png", *(wide.xs(name, axis=1, level=1) for name in ("score", "part")))
    return table(own[["experiment", "score", "part"]].replace({"part": {"": "-"}}).to_dict("records"))


def _summary_analysis():
    with mpl.rc_context():  # which it changes
        from bsuite.experiments import summary_analysis
    return summary_analysis
