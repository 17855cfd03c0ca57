"""How much a rule relies on y and z: fresh agents with a frozen rule that sees them, and with one that does not.

    python -m experiments.reliance --rule=disco103 --env=toy/catch/5x5
    python -m experiments.reliance --rule=…/rule.npz --env=toy/catch/5x5 --config.rule.hidden_as=mean

The agent's y and z, and those of its slow copy, are hidden where the rule makes its `own` targets ŷ and ẑ, where it
makes `all` targets, or not at all (`nothing`): their embeddings are 0 there, as in the paper, or their mean over the
trajectory, which, unlike 0, is a value that the rule has met. Source: Oh et al. 2025, Figure 4. Writes one run folder
for each and, above them, reliance.png and summary.json, with the mean return of the last fifth of a run.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import flags

from experiments.runs import command_line, settings, sweep
from frodo.runs.errors import UsageError, caused_by
from frodo.runs.folders import RunOptions
from frodo.settings.config import OnlineConfig
from frodo.settings.registry import make_update_rule
from meta.targets.disco import HIDDEN

LABELS = {"nothing": "y, z seen", "own": "y, z hidden from ŷ, ẑ", "all": "y, z hidden from all targets"}


def make_configs(config: OnlineConfig) -> dict[str, OnlineConfig]:
    """Return what is run, by the name of its folder; a UsageError if there is nothing to hide."""
    if "y" not in make_update_rule(config.rule).spec(1):
        raise UsageError(f"--rule: {config.init_meta_params or config.rule.name} has no y and z to hide")
    return {hidden: config.replace(rule=config.rule.replace(hidden=hidden)) for hidden in HIDDEN}


def run(config: OnlineConfig, options: RunOptions) -> Mapping[str, Any]:
    """Run them, draw them together and return the summary."""
    configs = make_configs(config)
    folder, summary = sweep.run_all(configs, options, experiment="reliance", metrics=("return",))
    labels = {name: LABELS[name] for name in configs}
    path, title = folder / "reliance.png", f"{Path(config.init_meta_params).stem or 'random η'} on {config.env}"
    sweep.draw(folder, labels, "return", path=path, title=title, ylabel="mean return")
    return summary


def main(argv: list[str]) -> None:
    with caused_by("--rule"):
        preset = settings.configure_frozen(flags.FLAGS.env, flags.FLAGS.rule)
    config, options = command_line.parse_options(argv, preset)
    sweep.print_table(run(config, options), ("return",))


if __name__ == "__main__":
    flags.DEFINE_string("env", "toy/catch/5x5", "Environment, as for experiments.online.")
    flags.DEFINE_string("rule", "disco103", f"Rule with y and z: {settings.DISCOVERED}.")
    without = ("env", "rule.hidden", "init_meta_params", "is_frozen", "distillation")
    preset = lambda: settings.known_frozen(flags.FLAGS.env, flags.FLAGS.rule)
    command_line.define_flags(OnlineConfig(), seeds="0-4", steps="58e3", without=without, preset=preset)
    command_line.start(main)
