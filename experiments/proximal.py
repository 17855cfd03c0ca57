"""Rules in PPO's loop compared, each as it is: hand-designed ones, and discovered ones from files, the same agent.

    frodo proximal --rules=ppo,dpo --envs=gymnax/Breakout-MinAtar,gymnax/Asterix-MinAtar --seeds=1000-1029 --steps=1e6
    frodo proximal --rules=ppo,dpo,results/discover/corrected_ppo/rule.npz --resume    one rule more
    frodo proximal --rules=ppo,dpo,rules/searched_ppo    a folder of rules: several searches, which share the seeds
    frodo proximal --rules=ppo --formula="max(0.0, log(r) * A - 0.2)"    a drift by a formula of r, A and t = n / N

Discovered rules are frozen, with the agent of their file; hand-designed ones have PPO's, at a learning rate of 5e-3.
All learning rates fall to 0 over a run. Of n rules in a folder each has every n-th seed. Writes <out>/<env>/<rule>/, a
run folder each, and above them scores.csv, a row for each run of a seed: `score`, the return of the greedy policy at
its end (where the environment is not gymnax's, as the policy acts), and `return`, the mean return over its last fifth;
and statistics.csv: interquartile means of the scores, and mean differences from the first rule, seed by seed, with 95 %
bootstrap intervals over the seeds of each search, p-values, and Student-t intervals over searches.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from agents.validation import check_choice
from experiments.analyses import proximal
from experiments.runs import command_line, settings, sweep
from frodo import files, logs
from frodo.runs.errors import UsageError, caused_by
from frodo.settings import presets
from frodo.settings.config import OnlineConfig

HAND_DESIGNED, LEARNING_RATE = ("ppo", "dpo"), 5e-3


def rules_of(text: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the rules of --rules by the names of their folders, and in each by the names of their searches."""
    found = {}
    for rule in text:
        files_of = sorted(Path(rule).glob("*.npz")) if rule and Path(rule).is_dir() else []
        name = rule if rule in HAND_DESIGNED else str(Path(rule) if files_of else Path(rule).with_suffix(""))
        found[name.replace("/", "_")] = {path.stem: str(path) for path in files_of} or {"": rule}
    if len(found) < len(text) or not all(text):
        raise UsageError(f"--rules={','.join(text)}: give each rule once, ppo, dpo, a file or a folder of files")
    return found


def make_config(env: str, rule: str, steps: int, formula: str = "") -> OnlineConfig:
    """Return the settings of a rule's agent in an environment; flags of settings are for all of them."""
    if formula or rule in HAND_DESIGNED:
        config = settings.configure_frozen(env, "drift_program") if formula else presets.for_rule(env, rule)
        if formula:
            config = config.replace(rule=config.rule.replace(formula=formula))
            with caused_by(f"--formula={formula}"):
                config.rule.validate()
        config = config.replace(optimizer=dataclasses.replace(config.optimizer, learning_rate=LEARNING_RATE))
    else:
        with caused_by("--rules"):
            config = settings.configure_frozen(env, rule)
            check_choice("rule", config.rule.name, ["lpo", "corrected_ppo", "drift_program"])
    return command_line.with_settings(config.replace(annealing=steps), command_line.given_settings())


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    rules, envs = rules_of(FLAGS.rules), settings.parse_envs(FLAGS.envs)
    _, options = command_line.parse_options(argv, presets.for_rule(envs[0], "ppo"))
    configs: dict[str, OnlineConfig] = {}
    labels: dict[str, dict[str, str]] = {}  # of each run
    seeds: dict[str, tuple[int, ...]] = {}
    for env in envs:
        for rule, searches in (rules | {f"formula_{i}": {"": x} for i, x in enumerate(FLAGS.formula, start=1)}).items():
            if len(searches) > len(options.seeds):
                raise UsageError(f"--rules: {rule} has {len(searches)} files, more than there are seeds")
            for i, (search, source) in enumerate(searches.items()):
                name = str(Path(env.replace("/", "_"), rule, search))
                formula = "" if rule in rules else source
                configs[name] = make_config(env, source, options.steps, formula)
                labels[name] = {"env": env, "rule": rule, "search": search}
                seeds[name] = options.seeds[i :: len(searches)]
    folder, _ = sweep.run_all(configs, options, experiment="proximal", metrics=("return",), seeds=seeds)
    scores = proximal.scores_of(folder, labels, seeds)
    found = proximal.statistics(scores, next(iter(labels.values()))["rule"])
    files.write_csv(folder / "scores.csv", scores)
    files.write_csv(folder / "statistics.csv", found)
    print(logs.table([{name: f"{x:.3g}" if isinstance(x, float) else x for name, x in row.items()} for row in found]))


if __name__ == "__main__":
    games = ",".join(f"gymnax/{name}-MinAtar" for name in ("Breakout", "Freeway", "Asterix", "SpaceInvaders"))
    flags.DEFINE_string("envs", games, "Environments.")
    flags.DEFINE_list("rules", ["ppo", "dpo"], "Rules: ppo, dpo, files of learned ones, or folders of files.")
    flags.DEFINE_multi_string("formula", [], "Drift of one rule more; formula_1, formula_2 and so on.")
    without = ("env", "rule.kind", "distillation", "init_meta_params", "is_frozen", "annealing")
    preset = lambda: presets.for_rule("", "ppo")
    command_line.define_flags(OnlineConfig(), seeds="1000-1029", steps="1e6", without=without, preset=preset)
    command_line.start(main)
