"""Formulas for a learned scalar target: what G is, step by step, in reward, values, policy and the target after it.

A formula is fitted to the targets of agents that learn by the rule where it was discovered, and is a rule itself, of
the kind target_program.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.environments.names import make_pure
from experiments.runs import settings
from frodo import files
from frodo.logs import Progress, note, table
from frodo.regimes.learner import build_learner
from frodo.regimes.lifetimes import make_online_program
from frodo.rules.files import Rule
from frodo.runs.errors import UsageError
from frodo.settings.registry import RuleConfig
from meta.programs.evaluation import Given, evaluate, no_draws
from meta.programs.language import TARGETS, Program, parse
from meta.programs.regression import fit, values_of
from meta.programs.targets import FORMULAS, TargetProgramConfig, inputs_of, is_cut, targets, with_next

ENV_STEPS, STAGES = 100_000, 10  # of a life in each environment, in which targets are looked at so many times
NUM_POINTS, NUM_PROGRAMS, MAX_NODES = 4_000, 20_000, 14  # steps that formulas are fitted to
SEED = 0

Stages = list[dict[str, Any]]
Rows = list[dict[str, Any]]


def experience(path: Path, rule: Rule, env: str) -> Stages:
    """Return what targets are made of, what they are, and what formulas need, at several times of a life: [T, B] each.

    Args:
      path: of the rule's file, by which an agent learns.
    """
    config = settings.configure_frozen(env, str(path))
    environment = make_pure(env)
    learner = build_learner(config, environment.num_actions, is_frozen=True)
    program = make_online_program(learner, environment)
    run, again = jax.jit(program.run, static_argnums=1), jax.jit(program.again)
    state = jax.jit(program.init)(jax.random.key(SEED), rule.meta_params)

    @jax.jit
    def look(learner_state: Any, trajectory: Any) -> dict[str, Any]:
        inputs = learner.rule_inputs(learner_state, trajectory)
        _, _, trajectory, predictions, _ = inputs
        found = learner.setup.rule.apply(*inputs)[0]
        steps = inputs_of(trajectory, predictions["value"], predictions["policy"], rule.config.rule.settings.discount)
        following = jnp.concatenate([found[1:], predictions["value"][-1:]])
        given = {"trajectory": trajectory._replace(observation=()), "predictions": predictions}
        return given | {"inputs": with_next(steps, following, is_cut(trajectory)), "targets": found}

    stages = []
    for _ in range(STAGES):
        state, *_ = run(state, max(1, ENV_STEPS // program.env_steps // STAGES))
        _, parts = again(state)
        stages.append(jax.tree.map(np.asarray, look(state.learner, jax.tree.map(lambda x: x[0], parts[0]))))
    return stages


def errors_of(program: Program, discount: float, stages: Stages) -> float:
    """Return the error of targets that a program makes alone, from a trajectory's last step to its first.

    It is the mean square of what they lack, as a share of the variance of G − v, as all errors here.
    """

    @jax.jit
    def errors(stage: dict[str, Any]) -> Any:
        compute = lambda inputs: evaluate(TARGETS, program, Given(inputs), no_draws(), None)
        predictions = stage["predictions"]
        found = targets(compute, stage["trajectory"], predictions["value"], predictions["policy"], discount)
        return found - stage["targets"]

    own = [np.asarray(errors(stage))[stage["trajectory"].valid] for stage in stages]
    return float(np.mean(np.square(np.concatenate(own))) / spread(stages))


def spread(stages: Stages) -> float:
    """Return the variance of G − v over all valid steps."""
    return float(np.var(_flat(stages, lambda stage: stage["targets"] - stage["inputs"]["v"])))


def rule_of(formula: str, rule: Rule) -> Rule:
    """Return the rule whose targets a formula makes, for the agents of a scalar rule."""
    names = ("discount", "reduction", "value_cost", "entropy_cost")
    shared = {name: getattr(rule.config.rule.settings, name) for name in names}
    config = rule.config.replace(rule=RuleConfig("target_program", TargetProgramConfig(formula=formula, **shared)))
    found = Rule("target_program", config, None, rule.origin)
    return dataclasses.replace(found, meta_params=found.update_rule.random_meta_params(jax.random.key(0), 2))


def formulas(rule: Rule, stages: Stages) -> Rows:
    """Return formulas, from short to exact, and V-trace's: `error` from the rule's own next target, `alone` without it.

    The first is of environments that the formula was not fitted to, every third of a batch.
    """
    is_out = _flat(stages, lambda stage: np.indices(stage["targets"].shape)[1] % 3 == 1)
    inputs = {name: _flat(stages, lambda stage: stage["inputs"][name]) for name in TARGETS.inputs}  # noqa: B023
    y, discount = _flat(stages, lambda stage: stage["targets"]), rule.config.rule.settings.discount
    of = lambda where: {name: x[where] for name, x in inputs.items()}
    points = np.random.default_rng(SEED).permutation(np.flatnonzero(~is_out))[:NUM_POINTS]
    found = fit(of(points), y[points], num_programs=NUM_PROGRAMS, max_nodes=MAX_NODES)
    programs = {one.formula: one.program for one in found} | {FORMULAS["vtrace"]: parse(TARGETS, FORMULAS["vtrace"])}
    rows = []
    for formula, program in programs.items():
        error = np.mean(np.square(values_of(program, of(is_out)) - y[is_out])) / spread(stages)
        alone = errors_of(program, discount, stages)
        rows.append({"size": len(program), "error": float(error), "alone": alone, "formula": formula})
    return rows


def write(path: Path, rule: Rule, out: str = "") -> Path:
    """Print formulas for a rule's targets, and write them into analysis/ next to its file, or into a folder.

    There is <name>_formulas.csv, and of each formula a rule, <name>_<its size>.npz. Returns the path of the former.

    Raises:
      UsageError: if the rule was discovered in environments that are not known, or is not of actor-critics.
    """
    envs = list(dict.fromkeys(rule.origin.envs)) if rule.origin else []
    if rule.config.rule.kind != "actor_critic" or not envs:
        kind, where = rule.config.rule.kind, ", ".join(envs) or "environments without names"
        raise UsageError(f"{path} is a rule of {kind} agents from {where}, expected actor-critics and names")
    stages: Stages = []
    progress = Progress(len(envs), unit="environments")
    for i, env in enumerate(envs):
        stages += experience(path, rule, env)
        progress.update(i + 1)
    note(f"formulas: {NUM_PROGRAMS:,} programs are tried")
    rows, folder = formulas(rule, stages), Path(out or path.parent / "analysis")
    for row in rows[:-1]:
        rule_of(row["formula"], rule).save(folder / f"{path.stem}_{row['size']}.npz")
    files.write_csv(folder / f"{path.stem}_formulas.csv", rows)
    print(table([row | {name: f"{row[name]:.2g}" for name in ("error", "alone")} for row in rows]))
    return folder / f"{path.stem}_formulas.csv"


def _flat(stages: Stages, of: Callable[[dict[str, Any]], Any]) -> np.ndarray:
    """Return what is of all valid steps, [N]."""
    return np.concatenate([np.asarray(of(stage))[stage["trajectory"].valid] for stage in stages])
