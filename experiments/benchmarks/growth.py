"""How the cost of a step grows with a size: benchmarks of several sizes, and a figure of their growth."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.benchmarks.timing import STEPS, TITLES, Benchmark, Sample
from experiments.results import plots

_CATCH = "--env=toy/catch/5x5 --config.num_updates=5 --config.batch_size=32 --config.unroll=16"
_CATCH += " --config.validation_unroll=16"
_DISCOVER = "--rule=frodo --config.budgets=1000000"
_UNROLL = "--config.unroll={0} --config.validation_unroll={0}"
# Of each size the program, its arguments, those that say the size, least steps, steps of each unit of the size, sizes.
SIZES: dict[str, tuple[str, str, str, int, int, tuple[int, ...]]] = {
    "batch_size": ("online", _CATCH, "--config.batch_size={0}", 100_000, 768, (32, 128, 512, 1024, 4096)),
    "unroll": ("online", _CATCH, _UNROLL, 100_000, 1536, (16, 64, 256, 512)),
    "num_updates": ("online", _CATCH, "--config.num_updates={0}", 100_000, 4096, (1, 5, 20, 80)),
    "seeds": ("online", _CATCH, "--seeds=0-{1}", 25_000, 0, (1, 4, 16, 64)),
    "agents": ("discover", _DISCOVER, "--envs=toy/catch/5x5{2}", 40, 0, (1, 4, 16, 64)),
}
GROWTH = {
    f"{name}_{n}": Benchmark(
        STEPS, program, f"{arguments} {own.format(n, n - 1, ',toy/catch/5x5' * (n - 1))} --steps={max(least, each * n)}"
    )
    for name, (program, arguments, own, least, each, sizes) in SIZES.items()
    for n in sizes
}


def draw(path: Path, samples: Mapping[str, Sequence[Sample]]) -> bool:
    """Write a PNG with the cost of a step, over that at the smallest size; return whether there was one to draw."""
    costs = {}
    for name, (*_, sizes) in SIZES.items():
        found = {n: samples[f"{name}_{n}"][1:] for n in sizes if f"{name}_{n}" in samples}
        if len(found) > 1:
            costs[name] = {n: statistics.median(one[TITLES[0]] for one in taken) for n, taken in found.items()}
    if not costs:
        return False
    with plots.new_figure((7.5, 5.5), path) as figure:
        axes = figure.subplots()
        for number, (name, cost) in enumerate(costs.items()):
            x, y = np.array(list(cost)), np.array(list(cost.values()))
            axes.plot(x / x[0], y / y[0], label=f"{name}, from {x[0]}", marker="o", **plots.look(number))
        plots.levels(axes, {"linear": 1.0, "1.2 times linear": 1.2})
        axes.set(xscale="log", xlabel="size over the smallest", ylabel="time of a step over that at the smallest size")
        figure.legend(loc="outside lower center", ncols=3)
    return True
