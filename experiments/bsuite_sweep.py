"""The behaviour suite bsuite for any rule in any regime, scored by bsuite's own functions.

    python -m experiments.bsuite_sweep --rule=impala
    python -m experiments.bsuite_sweep --rule=frodo --ids=catch,deep_sea/0,memory_len/3 --seeds=1
    python -m experiments.bsuite_sweep --rule=disco103 --ids=all --steps=1.1e6 --processes=8
    python -m experiments.bsuite_sweep --init_meta_params=FILE --beside=results/bsuite/impala,results/bsuite/frodo

--rule is a hand-made rule or one that is learned online, by its name as for `online`; or a discovered one, by its name
or its file as for `evaluate`: the rule stays as it is. --init_meta_params, of a discovered one, goes on learning it.

bsuite's protocol is one environment whose episodes are recorded at certain numbers, up to 1,000 or 10,000: so the agent
has a batch of 1, whatever its preset says, and the run ends when that many episodes have. It also ends after --steps
environment steps; then the score is that of fewer episodes, and says so. 1.1e6 steps are enough for all episodes of all
ids. By default one id of each experiment is run (FEW); that is not bsuite's score either, which is over all of them.
On two cores these take about ten minutes with IMPALA, twice that with FRODO, and hours with DiscoRL's targets, whose
agent learns from 64 replayed trajectories after each of its own.

Each id is a run folder <out>/ids/<id>/, made by a process of its own, whose messages are in log.txt; its record is in
<out>/records/, as bsuite's `csv_load` reads it. --resume goes on with the ids that are not finished, from their
beginning, since the counts of bsuite's environments are not in a checkpoint; it may name other ids, which are added.
Writes scores.csv, of each experiment, radar.png, by bsuite's tags, and bars.png; --beside draws other sweeps over them.
"""

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from absl import flags
from bsuite import sweep
from bsuite.utils import datasets, wrappers

from agents.environments.bsuite import make_bsuite
from agents.environments.dm_env import DmEnvBatch
from agents.environments.names import make_environment
from agents.validation import did_you_mean
from experiments.analyses import bsuite_scores
from experiments.analyses.bsuite_scores import EXPERIMENTS, Recorder, record_path
from experiments.results import plots
from experiments.runs import command_line, settings, training
from experiments.runs.jobs import Job, failure, open_folder, own_arguments, run_all
from frodo.logs import note, table
from frodo.regimes.learner import build_learner
from frodo.runs.errors import RunError, UsageError, caused_by
from frodo.runs.folders import folder_of
from frodo.runs.options import RunOptions
from frodo.settings.config import OnlineConfig
from frodo.settings.registry import RULES

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


class RecordedBsuite(DmEnvBatch):
    """One environment of bsuite, recorded as bsuite does; complete when as many episodes ended as bsuite asks for."""

    def __init__(self, bsuite_id: str, seed: int, path: Path):
        self._recorder, self._num_episodes = Recorder(path), sweep.EPISODES[bsuite_id]
        environment = wrappers.Logging(make_bsuite(bsuite_id, seed), self._recorder)
        super().__init__([environment], f"bsuite/{bsuite_id}")

    @property
    def is_complete(self) -> bool:  # type: ignore[override]
        rows = self._recorder.rows
        return bool(rows) and rows[-1]["episode"] >= self._num_episodes


def parse_ids(text: str) -> tuple[str, ...]:
    """Return the ids of "few", "all", or of a list of ids and experiments; UsageError if one is not bsuite's."""
    named = {"few": FEW, "all": sweep.SWEEP, **{bsuite_id: (bsuite_id,) for bsuite_id in sweep.SWEEP}}
    named |= {name: tuple(x for x in sweep.SWEEP if x.split("/")[0] == name) for name in EXPERIMENTS}
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


def id_folder(out: Path, bsuite_id: str) -> Path:
    return out / "ids" / bsuite_id.replace("/", "_")


def run_id(bsuite_id: str, config: OnlineConfig, options: RunOptions, out: Path) -> None:
    """Run one id in this process, from its beginning."""
    path = record_path(out / "records", bsuite_id)
    path.unlink(missing_ok=True)
    options = dataclasses.replace(options, out=str(id_folder(out, bsuite_id)), resume=False, overwrite=True)
    make = lambda name, num_envs, seed: RecordedBsuite(bsuite_id, seed, path)
    training.train(config, options, experiment="bsuite", name=bsuite_id, make=make)


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
    finished = [x for x in sweep.SWEEP if not failure(id_folder(out, x))]
    for bsuite_id in ids:
        folder = id_folder(out, bsuite_id)
        if reason := failure(folder) or (
            "" if record_path(out / "records", bsuite_id).exists() else "no episode ended"
        ):
            note(f"no score of {bsuite_id}: {reason}")
    own = bsuite_scores.scores(bsuite_scores.read_records(out / "records", finished))
    if not own:
        raise RunError(f"no id has a score; what the runs said is in {out}/ids/*/log.txt")
    labels = [label, *(folder.name for folder in beside)]
    if len(set(labels)) < len(labels):
        labels = [label, *map(str, beside)]
    others = [bsuite_scores.read(folder / "scores.csv") for folder in beside]
    sweeps = dict(zip(labels, [own, *others], strict=True))
    bsuite_scores.write(out / "scores.csv", own)
    is_whole = all(len(scores) == len(EXPERIMENTS) and not any(x.part for x in scores) for scores in sweeps.values())
    title = "bsuite: mean score by tag" + "\nnot over all experiments, ids and episodes" * (not is_whole)
    plots.radar(out / "radar.png", {name: bsuite_scores.by_tag(one) for name, one in sweeps.items()}, title)
    names = [name for name in EXPERIMENTS if any(x.experiment == name for scores in sweeps.values() for x in scores)]
    by_name = {name: {x.experiment: (x.score, x.part) for x in scores} for name, scores in sweeps.items()}
    plots.bars(out / "bars.png", names, by_name)
    return table([{"experiment": one.experiment, "score": one.score, "part": one.part or "-"} for one in own])


def preset() -> OnlineConfig:
    FLAGS = flags.FLAGS
    return configure(parse_ids(FLAGS.only or FLAGS.ids)[0], FLAGS.rule, FLAGS.init_meta_params)


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    if FLAGS.init_meta_params:
        command_line.not_both("rule", "init_meta_params")
    label = Path(FLAGS.init_meta_params or FLAGS.rule).stem + "_online" * bool(FLAGS.init_meta_params)
    ids = parse_ids(FLAGS.only or FLAGS.ids)
    config, options = command_line.parse_options(argv, preset())
    if len(options.seeds) > 1:
        raise UsageError(f"--seeds={FLAGS.seeds}: bsuite has one run of each id: give one seed")
    out = folder_of(options, "bsuite", label)
    if FLAGS.only:
        run_id(ids[0], config, options, out)
        return
    beside = [Path(folder) for folder in FLAGS.beside.split(",")] if FLAGS.beside else []
    for folder in beside:
        bsuite_scores.read(folder / "scores.csv")
    if not ids[0].startswith("mnist"):  # whose data may be missing; each run checks itself, too
        environment = make_environment(f"bsuite/{ids[0]}", 1, 0)
        training.check_learner(build_learner(config, environment.num_actions, config.is_frozen), environment)
    changed = {name: FLAGS[name].value for name in sorted(FLAGS) if name.startswith("config.") and FLAGS[name].present}
    record = {"rule": FLAGS.rule, "init_meta_params": FLAGS.init_meta_params}
    record |= {"seeds": options.seeds, "steps": options.steps, "settings": changed}
    results = ("ids/*", "records/*", "scores.csv", "*.png")
    open_folder(out, "sweep", record, results, resume=options.resume, overwrite=options.overwrite)
    if any(bsuite_id.startswith("mnist") for bsuite_id in ids):
        with contextlib.suppress(OSError):  # which each run then says
            datasets.load_mnist()  # downloads it, before several processes would at once
    arguments = (*own_arguments(), f"--out={out}")
    jobs = [Job(x, id_folder(out, x), "experiments.bsuite_sweep", (*arguments, f"--only={x}")) for x in ids]
    run_all(jobs, FLAGS.processes, out)
    print(report(out, label, ids, beside))
    note(f"scores and figures: {out}/scores.csv, radar.png, bars.png")


if __name__ == "__main__":
    flags.DEFINE_string("rule", "impala", f"Rule, of `online` by its name; {settings.STARTS}.")
    flags.DEFINE_string("init_meta_params", "", f"Begin with this rule, and learn it further: {settings.STARTS}.")
    flags.DEFINE_string("ids", "few", "few (one of each experiment), all, or ids and experiments of bsuite.")
    flags.DEFINE_string("only", "", "Run only this id, in this process, and write no scores.")
    flags.DEFINE_string("beside", "", "Folders of finished sweeps to draw over this one.")
    flags.DEFINE_integer("processes", os.cpu_count() or 1, "Ids at a time.", lower_bound=1)
    without = ("env", "batch_size", "init_meta_params", "is_frozen", "distillation", "num_actors")
    command_line.define_flags(OnlineConfig(), seeds="0", steps="250e3", without=without, preset=preset)
    command_line.start(main)
