"""Runs on Catch that are over in seconds, and what they wrote."""

import csv

from agents.networks.agent import NetworkConfig
from frodo.runs.folders import RunOptions
from frodo.settings import presets

CLOCKS = ("seconds", "cpu_seconds", "peak_memory_mb", "learner_waiting", "actors_waiting")


def small_catch(**settings):
    config = presets.catch()
    config = config.replace(batch_size=4, network=NetworkConfig("mlp", (16,)), rule=config.rule.replace(lstm=8))
    return config.replace(**settings)


def options(folder, steps, seeds=(0, 1), **others):
    return RunOptions(seeds=seeds, steps=steps, out=str(folder), **others)


def rows(folder, without=CLOCKS):
    """Every row of metrics.csv as text, but for what depends on the machine."""
    with (folder / "metrics.csv").open(newline="") as file:
        return [{key: value for key, value in row.items() if key not in without} for row in csv.DictReader(file)]
