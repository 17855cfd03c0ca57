"""The behaviour suite bsuite for any rule in any regime, scored by bsuite's own functions.

    frodo bsuite_sweep --rule=impala
    frodo bsuite_sweep --rule=frodo --ids=catch,deep_sea/0,memory_len/3 --seeds=1
    frodo bsuite_sweep --rule=disco103 --ids=all --steps=1.1e6 --processes=8
    frodo bsuite_sweep --init_meta_params=FILE --beside=results/bsuite/impala,results/bsuite/frodo

--rule is a hand-designed rule or one that is learned online, by its name as for `online`; or a discovered one, by its
name or its file as for `evaluate`: the rule stays as it is. --init_meta_params goes on learning a discovered one.

bsuite's protocol is one environment whose episodes are recorded at certain numbers, up to 1,000 or 10,000: so the agent
has a batch of 1, whatever its preset says, and the run ends when that many episodes have. It also ends after --steps
environment steps; then the score is that of fewer episodes, and says so. 1.1e6 steps are enough for all episodes of all
ids. By default one id of each experiment is run (FEW); that is not bsuite's score either, which is over all of them.
On two cores these take about ten minutes with IMPALA, twice that with FRODO, and hours with DiscoRL's targets, whose
agent learns from 64 replayed trajectories after each of its own.

Each id is a run folder <out>/ids/<id>/, made by a process of its own, whose messages are in log.txt; its record is in
<out>/records/, as bsuite's `csv_load` reads it. --resume goes on with the ids that are not finished, from their
beginning, since the counts of bsuite's environments are not in a checkpoint; it may name other ids, which are added.
Writes scores.csv, of each experiment, and bars.png; --beside draws other sweeps next to it.
"""

import contextlib
from pathlib import Path

from absl import flags
from bsuite.utils import datasets

from agents.environments.names import make_environment
from experiments.analyses import bsuite_scores
from experiments.analyses.bsuite_runs import configure, id_folder, parse_ids, run_id
from experiments.runs import command_line, settings
from experiments.runs.jobs import Job, open_folder, own_arguments, run_all
from experiments.runs.loaded_agent import check_learner
from experiments.runs.setting_flags import given_settings
from frodo.logs import note
from frodo.regimes.learner import build_learner
from frodo.runs.errors import UsageError
from frodo.runs.folders import folder_of
from frodo.settings.config import OnlineConfig


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
    for one in {x.partition("/")[0]: x for x in ids}.values():  # a setting may change nothing in some of them
        command_line.parse_settings(argv, configure(one, FLAGS.rule, FLAGS.init_meta_params))
    if not ids[0].startswith("mnist"):  # whose data may be missing; each run checks itself, too
        environment = make_environment(f"bsuite/{ids[0]}", 1, 0)
        check_learner(build_learner(config, environment.num_actions, config.is_frozen), environment)
    changed = {f"config.{name}": value for name, value in given_settings().items()}
    record = {"rule": FLAGS.rule, "init_meta_params": FLAGS.init_meta_params}
    record |= {"seeds": options.seeds, "steps": options.steps, "settings": changed}
    results = ("ids/*", "records/*", "scores.csv", "*.png")
    arguments = (*own_arguments(), f"--out={out}")
    jobs = [Job(x, id_folder(out, x), "experiments.bsuite_sweep", (*arguments, f"--only={x}")) for x in ids]
    with command_line.job_executor() as executor:
        open_folder(out, "sweep", record, results, resume=options.resume, overwrite=options.overwrite)
        if any(bsuite_id.startswith("mnist") for bsuite_id in ids):
            with contextlib.suppress(OSError):  # which each run then says
                datasets.load_mnist()  # downloads it, before several processes would at once
        run_all(jobs, executor, out)
    print(bsuite_scores.report(out, label, ids, beside))
    note(f"scores and their figure: {out}/scores.csv, bars.png")


if __name__ == "__main__":
    flags.DEFINE_string("rule", "impala", f"Rule, of `online` by its name; {settings.STARTS}.")
    flags.DEFINE_string("init_meta_params", "", f"Begin with this rule, and learn it further: {settings.STARTS}.")
    flags.DEFINE_string("ids", "few", "few (one of each experiment), all, or ids and experiments of bsuite.")
    flags.DEFINE_string("only", "", "Run only this id, in this process, and write no scores.")
    flags.DEFINE_string("beside", "", "Folders of finished sweeps to draw next to this one.")
    command_line.define_job_flags("Ids")
    without = ("env", "batch_size", "init_meta_params", "is_frozen", "distillation", "num_actors")
    command_line.define_flags(OnlineConfig(), seeds="0", steps="250e3", without=without, preset=preset)
    command_line.start(main)
