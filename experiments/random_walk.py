"""The non-stationary random walk: FRODO's prediction variant compared with TD(λ). Figure 2b of Xu et al. 2020.

    frodo random_walk --seeds=0-9 --steps=5e6

Writes one run folder for each method and, above them, random_walk.png and summary.json: for each method `error` (mean
over the last fifth of the run of the squared error after an iteration's updates, averaged over states) and `spike`
(the same in the first iteration after the left reward changed), as mean, std, min and max over seeds and for each
seed, and steps_per_cpu_second over all seeds.
"""

import numpy as np

from experiments.results import plots
from experiments.runs import command_line, sweep
from frodo.settings import presets

LABELS = {"frodo": "FRODO"} | {f"td_{x:g}": f"TD({x:g})" for x in (0.0, 0.4, 0.8, 0.9, 0.99, 1.0)}
METRICS = ("error", "spike")


def main(argv: list[str]) -> None:
    config, options = command_line.parse_options(argv, presets.random_walk())
    others = {name: presets.td_lambda(config, float(name[3:])) for name in LABELS if name != "frodo"}
    folder, summary = sweep.run_all({"frodo": config} | others, options, experiment="random_walk", metrics=METRICS)
    inset = []  # the error after every iteration of the last three phases or so
    for name, label in LABELS.items():
        with np.load(folder / name / "last_iterations.npz") as last:
            steps = last["env_steps"][-35:]
            inset.append(plots.Series(label, steps - steps[-1], last["error"][:, -35:]))
    ylabel = "mean squared error of v after the iteration's updates"
    path, title = folder / "random_walk.png", "Non-stationary random walk"
    sweep.draw(folder, LABELS, "error", path=path, title=title, ylabel=ylabel, inset=inset)
    sweep.print_table(summary, METRICS)


if __name__ == "__main__":
    without = ("env", "rule.kind", "distillation")
    command_line.define_flags(presets.random_walk(), seeds="0-9", steps="5e6", without=without)
    command_line.start(main)
