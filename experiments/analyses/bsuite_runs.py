"""The runs of bsuite's sweep: which ids there are, and one id as bsuite records it."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from bsuite import sweep
from bsuite.logging import base, csv_logging
from bsuite.utils import wrappers

from agents.environments.bsuite import make_bsuite
from agents.environments.dm_env import DmEnvBatch
from agents.validation import did_you_mean
from experiments.runs import settings, training
from frodo import files
from frodo.runs.errors import UsageError, caused_by
from frodo.runs.folders import RunOptions
from frodo.settings.config import OnlineConfig
from frodo.settings.registry import RULES

EXPERIMENTS = tuple(dict.fromkeys(bsuite_id.split(sweep.SEPARATOR)[0] for bsuite_id in sweep.SWEEP))
# One id of each experiment, neither the easiest nor out of reach: noise of 1, rewards times 30, the smallest deep sea,
# a best horizon of 10, memory of 2 steps and of 2 bits, umbrella chains of 5 steps and with 5 distractors.
INDEX = {
    "discounting_chain": 2,
    "memory_len": 1,
    "memory_size": 1,
    "umbrella_distract": 4,
    "umbrella_length": 4,
    **{name: 8 for name in EXPERIMENTS if name.endswith("_noise")},
    **{name: 12 for name in EXPERIMENTS if name.endswith("_scale")},
}
FEW = tuple(f"{name}/{INDEX.get(name, 0)}" for name in EXPERIMENTS)


class RecordedBsuite(DmEnvBatch, base.Logger):
    """One environment of bsuite, recorded as bsuite does; complete when as many episodes ended as bsuite asks for.

    The file of the record is one that bsuite reads, written each time as a whole or not at all.
    """

    def __init__(self, bsuite_id: str, seed: int, path: Path):
        self._path, self._rows, self._num_episodes = path, list[Mapping](), sweep.EPISODES[bsuite_id]
        super().__init__([wrappers.Logging(make_bsuite(bsuite_id, seed), self)], f"bsuite/{bsuite_id}")

    def write(self, data: Mapping) -> None:
        self._rows.append(data)
        files.write_csv(self._path, self._rows)

    @property
    def is_complete(self) -> bool:  # type: ignore[override]
        return bool(self._rows) and self._rows[-1]["episode"] >= self._num_episodes


def parse_ids(text: str) -> tuple[str, ...]:
    """Return the ids of "few", "all", or of a list of ids and experiments; UsageError if one is not bsuite's."""
    named = {"few": FEW, "all": sweep.SWEEP, **{bsuite_id: (bsuite_id,) for bsuite_id in sweep.SWEEP}}
    named |= {name: tuple(x for x in sweep.SWEEP if x.startswith(f"{name}/")) for name in EXPERIMENTS}
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if part not in named:
            hint = did_you_mean(part, named) or ": give few, all, or such as catch or catch/0"
            raise UsageError(f"--ids={text}: {part!r} is no id and no experiment of bsuite{hint}")
    return tuple(dict.fromkeys(bsuite_id for part in parts for bsuite_id in named[part]))


def configure(bsuite_id: str, rule: str, init_meta_params: str = "") -> OnlineConfig:
    """Return the settings of the agent, with one environment; a UsageError for a rule that does not act."""
    is_online = init_meta_params or rule in RULES
    env = f"bsuite/{bsuite_id}"
    with caused_by("--init_meta_params" if init_meta_params else "--rule"):
        config = settings.configure(env, rule, init_meta_params) if is_online else settings.configure_frozen(env, rule)
    if config.rule.kind == "prediction":
        raise UsageError(f"--rule={rule}: it predicts values and does not act")
    return config.replace(batch_size=1)


def record_path(folder: Path, bsuite_id: str) -> Path:
    """Return the path of a record, with the name by which bsuite's `csv_load` finds it."""
    name = bsuite_id.replace(sweep.SEPARATOR, csv_logging.SAFE_SEPARATOR)
    return folder / f"{csv_logging.BSUITE_PREFIX}{name}.csv"


def id_folder(out: Path, bsuite_id: str) -> Path:
    return out / "ids" / bsuite_id.replace("/", "_")


def run_id(bsuite_id: str, config: OnlineConfig, options: RunOptions, out: Path) -> None:
    """Run one id in this process, from its beginning."""
    path = record_path(out / "records", bsuite_id)
    path.unlink(missing_ok=True)
    options = dataclasses.replace(options, out=str(id_folder(out, bsuite_id)), resume=False, overwrite=True)
    make = lambda name, num_envs, seed: RecordedBsuite(bsuite_id, seed, path)
    training.train(config, options, experiment="bsuite", name=bsuite_id, make=make)
