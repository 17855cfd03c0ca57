"""The 57 games of Atari by the settings of Xu et al. 2020: a run for each, on one machine or many.

    frodo atari57 --scheduler=tcp://host:8786
    frodo report results/atari57/frodo/*/summary.json --metric=human_normalised --median

Each game is a process of its own, whose messages are in log.txt of its run folder, results/atari57/<rule>/<Game>/, as
`online` writes it. With --resume those that are not finished go on. --steps are those of a game, of four frames each:
by default the 16 billion frames of Figure 3a, which the second command draws of the games that are finished.
"""

import dataclasses

from absl import flags

from agents.validation import check_choice
from experiments.runs import command_line, training
from experiments.runs.jobs import Job, failure, open_folder, own_arguments, run_all
from experiments.runs.setting_flags import given_settings
from frodo.runs.errors import RunError, caused_by
from frodo.runs.folders import folder_of, has_checkpoint
from frodo.settings import presets
from frodo.settings.config import OnlineConfig


def presets_of_games() -> dict[str, OnlineConfig]:
    with caused_by("--rule"):
        return {name: presets.with_rule(one, flags.FLAGS.rule) for name, one in presets.frodo_atari57().items()}


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    runs = presets_of_games()
    configs = {name: command_line.parse_options(argv, config)[0] for name, config in runs.items()}
    options = command_line.parse_options(argv, next(iter(runs.values())))[1]
    folder = folder_of(options, "atari57", FLAGS.rule)
    if FLAGS.only:
        check_choice("--only", FLAGS.only, configs)
        own = folder / FLAGS.only
        how = dict(resume=has_checkpoint(own), overwrite=not has_checkpoint(own), num_devices=FLAGS.num_devices)
        options = dataclasses.replace(options, out=str(own), **how)
        training.train(configs[FLAGS.only], options, experiment="atari57", name=FLAGS.only)
        return
    jobs = [
        Job(name, folder / name, "experiments.atari57", (*own_arguments(), f"--out={folder}", f"--only={name}"))
        for name in configs
    ]
    record = {"rule": FLAGS.rule, "seeds": options.seeds, "steps": options.steps}
    record |= {"settings": {f"config.{name}": value for name, value in given_settings().items()}}
    with command_line.job_executor() as executor:
        open_folder(folder, "sweep", record, (*configs,), resume=options.resume, overwrite=options.overwrite)
        run_all(jobs, executor, folder)
    if failed := [job.name for job in jobs if not job.is_finished]:
        raise RunError(f"{len(failed)} of {len(jobs)} games failed, {failed[0]} first: {failure(folder / failed[0])}")


if __name__ == "__main__":
    flags.DEFINE_string("rule", "frodo", "Rule, such as impala, the paper's baseline.")
    flags.DEFINE_string("only", "", "Run only this game, in this process.")
    command_line.define_job_flags("Games", processes=1)
    flags.DEFINE_integer("num_devices", 0, "Split the batch of each over so many, 0 for no split.", lower_bound=0)
    without, preset = ("env", "init_meta_params", "distillation"), lambda: next(iter(presets_of_games().values()))
    command_line.define_flags(OnlineConfig(), seeds="0", steps="4e9", without=without, preset=preset)
    command_line.start(main)
