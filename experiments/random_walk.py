"""The non-stationary random walk: FRODO's prediction variant beside TD(λ). Figure 2b of Xu et al. 2020.

    python -m experiments.random_walk --seeds=0-9 --steps=5e6

Writes one run folder for each method and, above them, random_walk.png and summary.json: for each method `error` (mean
over the last fifth of the run of the squared error after an iteration's updates, averaged over states) and `spike`
(the same in the first iteration after the left reward changed), as mean, std, min and max over seeds and for each
seed, and steps_per_cpu_second over all seeds.
"""

from pathlib import Path
from typing import Any

import numpy as np

from experiments.results import plots, reading
from experiments.runs import command_line, sweep
from frodo.runs.options import RunOptions
from frodo.settings import presets
from frodo.settings.config import OnlineConfig

LAMBDAS = (0.0, 0.4, 0.8, 0.9, 0.99, 1.0)
METRICS = ("error", "spike")


def run(config: OnlineConfig, options: RunOptions) -> dict[str, Any]:
    """Run FRODO with this configuration, and TD(λ) with its learning rate; draw them together."""
    configs = {"frodo": config} | {f"td_{lambda_:g}": presets.td_lambda(config, lambda_) for lambda_ in LAMBDAS}
    folder, summary = sweep.run_all(configs, options, experiment="random_walk", metrics=METRICS)
    labels = ["FRODO"] + [f"TD({lambda_:g})" for lambda_ in LAMBDAS]
    pairs = list(zip(configs, labels, strict=True))
    series = [reading.curve(reading.read(folder / name), "error")._replace(label=x) for name, x in pairs]
    plots.curves(
        folder / "random_walk.png",
        series,
        title="Non-stationary random walk",
        xlabel="environment steps",
        ylabel="mean squared error of v after the iteration's updates",
        inset=[_last_iterations(folder / name, x) for name, x in pairs],
    )
    return summary


def _last_iterations(folder: Path, label: str) -> plots.Series:
    """The error after every iteration of the last three phases or so, by steps before the end of the run."""
    with np.load(folder / "last_iterations.npz") as last:
        steps = last["env_steps"][-35:]
        return plots.Series(label, steps - steps[-1], last["error"][:, -35:])


def main(argv: list[str]) -> None:
    config, options = command_line.parse_options(argv, presets.random_walk())
    summary = run(config, options)
    sweep.print_table(summary, METRICS)


if __name__ == "__main__":
    command_line.define_flags(
        presets.random_walk(), seeds="0-9", steps="5e6", without=("env", "rule.kind", "distillation")
    )
    command_line.start(main)
