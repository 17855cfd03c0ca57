"""A run folder whose numbers are known."""

from frodo.runs.folders import RunOptions
from frodo.runs.run import Run
from tests.frodo.runs.random_sum import Config


def make_run(folder, metric="return", seeds=(0, 1)):
    """A run whose metric is the number of the row, plus 10 for each seed."""
    options = RunOptions(seeds=seeds, steps=20, out=str(folder))
    with Run(options, experiment="catch", name="a", config=Config()) as run:
        for i in range(20):
            counts = {"update": i, "env_steps": 5 * i, "env_frames": 5 * i}
            run.log([counts | {"seed": seed, metric: i + 10 * seed, "late": None if i < 10 else 1.0} for seed in seeds])
    return folder
