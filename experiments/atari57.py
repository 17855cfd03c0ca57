"""The 57 games of Atari by the settings of Xu et al. 2020: runs that a cluster takes one by one, and a report of them.

    python -m experiments.atari57 --shard=3/57
    python -m experiments.atari57 --report

There is a run for each game, in alphabetical order, and --shard=i/n are the i-th of them and every n-th after it: a job
of an array takes its number for i. With --resume a job goes on with what it has begun, and begins the rest. --steps are
those of a game, of four frames each: by default the 16 billion frames of Figure 3a.

Writes a run folder for each game, results/atari57/<rule>/<Game>/, as `online` does, and shard_<i>_of_<n>.json.
--report reads the runs that are finished: a table of final scores with their median, and median.png, the median over
games of the human-normalised score.
"""

import dataclasses
from pathlib import Path

import numpy as np
from absl import flags

from experiments.results import plots, reading
from experiments.runs import command_line, sweep
from frodo import logs
from frodo.runs.errors import UsageError, caused_by
from frodo.runs.folders import folder_of
from frodo.settings import presets
from frodo.settings.config import OnlineConfig

SCORE = "human_normalised"


def report(folder: Path) -> list[dict[str, str | float]]:
    """Draw the median over the games that are finished; return the rows of the table.

    Raises:
      UsageError: if none is finished.
    """
    runs = [reading.read(path.parent) for path in sorted(folder.glob("*/summary.json"))]
    if not runs:
        raise UsageError(f"--report: no run in {folder} is finished")
    median = reading.median([reading.curve(run, SCORE) for run in runs], f"median of {len(runs)} games")
    title = f"Atari, {len(runs)} of {len(presets.frodo_atari57())} games"
    path = folder / "median.png"
    plots.curves(path, [median], title=title, xlabel="environment steps", ylabel="human-normalised score")
    rows: list[dict[str, str | float]] = [
        {"game": run.folder.name}
        | {reading.X: run.columns[reading.X].max()}
        | {name: float(np.mean(reading.final_values(run, name))) for name in ("return", SCORE)}
        for run in runs
    ]
    medians = {name: float(np.median([row[name] for row in rows])) for name in (reading.X, "return", SCORE)}
    return [*rows, {"game": "median"} | medians]


def presets_of_games() -> dict[str, OnlineConfig]:
    with caused_by("--rule"):
        return {name: presets.with_rule(one, flags.FLAGS.rule) for name, one in presets.frodo_atari57().items()}


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    runs = presets_of_games()
    configs = {name: command_line.parse_options(argv, config)[0] for name, config in runs.items()}
    options = command_line.parse_options(argv, next(iter(runs.values())))[1]
    folder = folder_of(options, "atari57", FLAGS.rule)
    if FLAGS.report:
        print(logs.table(report(folder)))
        logs.note(f"median over games: {folder / 'median.png'}")
        return
    chosen = list(configs)[sweep.shard(FLAGS.shard, len(configs))]
    is_begun = any((folder / name / "config.json").exists() for name in chosen)
    how = dict(out=str(folder), resume=options.resume and is_begun, num_devices=FLAGS.num_devices)
    _, summary = sweep.run_all(
        {name: configs[name] for name in chosen},
        dataclasses.replace(options, **how),
        experiment="atari57",
        metrics=(SCORE, "return"),
        summary_name=f"shard_{FLAGS.shard.replace('/', '_of_')}.json",
    )
    sweep.print_table(summary, (SCORE, "return"))


if __name__ == "__main__":
    flags.DEFINE_string("rule", "frodo", "Rule, such as impala, the paper's baseline.")
    flags.DEFINE_string("shard", "1/1", "Which of the runs: i/n for the i-th and every n-th after it.")
    flags.DEFINE_boolean("report", False, "Run nothing: show what is finished.")
    flags.DEFINE_integer("num_devices", 0, "Split the batch of each over so many, 0 for no split.", lower_bound=0)
    without, preset = ("env", "init_meta_params", "distillation"), lambda: next(iter(presets_of_games().values()))
    command_line.define_flags(OnlineConfig(), seeds="0", steps="4e9", without=without, preset=preset)
    command_line.start(main)
