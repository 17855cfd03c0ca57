"""Formulas for a learned scalar target: what G is, step by step, in reward, values, policy and the target after it.

A formula is fitted to the targets of agents that learn by the rule where it was discovered, and is a rule itself, of
the kind target_program. Without a replay the trajectories are on-policy: π is μ, so how a rule weighs actions of other
policies is not seen.
"""

import dataclasses
import functools
import itertools
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.acting import replay as replays
from agents.environments.names import is_pure, make_pure
from agents.types import Trajectory
from experiments.runs import settings
from experiments.runs.loaded_agent import LoadedAgent, play, rule_inputs
from frodo import files
from frodo.logs import Progress, note, table
from frodo.regimes.learner import Learner, LearnerState, build_learner
from frodo.regimes.lifetimes import make_online_program
from frodo.rules.files import Origin, Rule, load_rule
from frodo.runs.errors import UsageError, caused_by
from frodo.settings.registry import RuleConfig
from meta.programs.evaluation import Given, evaluate, no_draws
from meta.programs.language import TARGETS, Program, parse
from meta.programs.regression import fit, values_of
from meta.programs.targets import FORMULAS, TargetProgramConfig, inputs_of, is_cut, targets, with_next

ENV_STEPS, STAGES = 100_000, 10  # of a life in each environment, in which targets are looked at so many times
NUM_COLUMNS, WARM_UP = 64, 100  # environments in which a trained agent acts, and steps before it is looked at
NUM_POINTS, NUM_PROGRAMS, MAX_NODES = 4_000, 20_000, 14  # steps that formulas are fitted to
SEED = 0

Stages = list[dict[str, Any]]
Rows = list[dict[str, Any]]
StageOf = Callable[..., dict[str, Any]]


def stage_of(learner: Learner, *inputs: Any) -> dict[str, Any]:
    """Return what the targets of a trajectory are made of, what they are, and what formulas need: [T, B] each.

    Args:
      inputs: of the rule, as `learner.rule_inputs` returns them.
    """
    _, _, trajectory, predictions, _ = inputs
    found = learner.setup.rule.apply(*inputs)[0]
    discount = learner.config.rule.settings.discount
    steps = inputs_of(trajectory, predictions["value"], predictions["policy"], discount)
    following = jnp.concatenate([found[1:], predictions["value"][-1:]])
    given = {"trajectory": trajectory._replace(observation=()), "predictions": predictions}
    return given | {"inputs": with_next(steps, following, is_cut(trajectory)), "targets": found}


def of_fresh(
    name: str, rule: Rule, env: str, look_at: StageOf = stage_of, tick: Callable[[], None] = lambda: None
) -> Stages:
    """Return what is known of the targets of a fresh agent at several times of its life, as `look_at` has it.

    With a replay they are targets of what was drawn from it.

    Args:
      name: of the rule, or its file, by which an agent learns.
      tick: is called after each stage.
    """
    config = settings.configure_frozen(env, name)
    environment = make_pure(env)
    learner = build_learner(config, environment.num_actions, is_frozen=True)
    program = make_online_program(learner, environment)
    run, again = jax.jit(program.run, static_argnums=1), jax.jit(program.again)
    state = jax.jit(program.init)(jax.random.key(SEED), rule.meta_params)

    @jax.jit
    def look(state: LearnerState, trajectory: Trajectory) -> dict[str, Any]:
        if isinstance(kept := state.lifetime.replay, replays.Replay):
            trajectory = replays.sample(config.replay, kept, trajectory)[1]
        loaded = LoadedAgent(config, SEED, learner, state.agent, rule.meta_params)
        return look_at(learner, rule.meta_params, state.agent.rule_state, *rule_inputs(loaded, trajectory))

    stages = []
    for _ in range(STAGES):
        state, *_ = run(state, max(1, ENV_STEPS // program.env_steps // STAGES))
        _, parts = again(state)
        first = jax.tree.map(lambda x: x[0], parts[0])
        stages.append(jax.tree.map(np.asarray, look(state.learner, first)))
        tick()
    return stages


def of_trained(loaded: LoadedAgent) -> Stages:
    """Return the same of an agent at the end of a run, which acts on in new environments."""
    num_steps = loaded.config.unroll
    num = max(STAGES, 2 * NUM_POINTS // (num_steps * NUM_COLUMNS))
    trajectory, _ = play(loaded, WARM_UP + num * num_steps, NUM_COLUMNS, loaded.seed)
    trajectory, predictions, _ = jax.jit(lambda trajectory: rule_inputs(loaded, trajectory))(trajectory)
    look = jax.jit(functools.partial(stage_of, loaded.learner))
    longer = {"observation", "is_first"}  # by the observation after the last step
    stages = []
    for start in range(WARM_UP, WARM_UP + num * num_steps, num_steps):
        steps = lambda x, more=0, start=start: x[start : start + num_steps + more]
        cut = {name: steps(x, name in longer) for name, x in trajectory._asdict().items() if name != "core_state"}
        own = {name: steps(x, 1) for name, x in predictions.items()}
        inputs = loaded.meta_params, loaded.agent.rule_state, trajectory._replace(**cut), own, own
        stages.append(jax.tree.map(np.asarray, look(*inputs)))
    return stages


def errors_of(program: Program, discount: float, stages: Stages) -> float:
    """Return the mean square of what the targets lack that a program makes alone, from the last step to the first."""

    @jax.jit
    def errors(stage: dict[str, Any]) -> Any:
        compute = lambda inputs: evaluate(TARGETS, program, Given(inputs), no_draws(), None)
        predictions = stage["predictions"]
        found = targets(compute, stage["trajectory"], predictions["value"], predictions["policy"], discount)
        return found - stage["targets"]

    own = [np.asarray(errors(stage))[stage["trajectory"].valid] for stage in stages]
    return float(np.mean(np.square(np.concatenate(own))))


def spread(stages: Stages) -> float:
    """Return the variance of G − v over all valid steps."""
    return float(np.var(flat(stages, lambda stage: stage["targets"] - stage["inputs"]["v"])))


def is_held_out(stage: dict[str, Any]) -> np.ndarray:
    """Say which steps formulas are only judged on, [T, B]: of a third of the trajectories, or of one or two, of steps.

    A trajectory that is drawn repeatedly is so always, or never.
    """
    trajectory = stage["trajectory"]
    steps, columns = np.indices(trajectory.valid.shape)
    if columns.shape[1] <= 2:
        return steps % 3 == 1
    shown = trajectory.action, trajectory.reward, trajectory.behaviour_logits
    parts = [np.ascontiguousarray(np.moveaxis(np.asarray(x), 1, 0)) for x in shown]
    hashes = [zlib.crc32(b"".join(part[i].tobytes() for part in parts)) for i in range(columns.shape[1])]
    return np.broadcast_to(np.array(hashes) % 3 == 1, columns.shape)


def rule_of(formula: str, rule: Rule) -> Rule:
    """Return the rule whose targets a formula makes, for the agents of a scalar rule."""
    names = ("discount", "reduction", "value_cost", "entropy_cost", "vtrace_lambda")
    shared = {name: getattr(rule.config.rule.settings, name) for name in names}
    config = rule.config.replace(rule=RuleConfig("target_program", TargetProgramConfig(formula=formula, **shared)))
    found = Rule("target_program", config, None, rule.origin)
    return dataclasses.replace(found, meta_params=found.update_rule.random_meta_params(jax.random.key(0), 2))


def formulas(rule: Rule, stages: Stages) -> Rows:
    """Return formulas, from short to exact, and V-trace's: `error` from the rule's own next target, `alone` without it.

    Both are mean squares as shares of the variance of G − v. The first is of trajectories that the formula was not
    fitted to, or of such steps (`is_held_out`).
    """
    is_out = flat(stages, is_held_out)
    inputs = {name: flat(stages, lambda stage: stage["inputs"][name]) for name in TARGETS.inputs}  # noqa: B023
    y, discount = flat(stages, lambda stage: stage["targets"]), rule.config.rule.settings.discount
    note(f"formulas: {NUM_PROGRAMS:,} programs are tried")
    of = lambda where: {name: x[where] for name, x in inputs.items()}
    points = np.random.default_rng(SEED).permutation(np.flatnonzero(~is_out))[:NUM_POINTS]
    found = fit(of(points), y[points], num_programs=NUM_PROGRAMS, max_nodes=MAX_NODES)
    programs = {one.formula: one.program for one in found} | {FORMULAS["vtrace"]: parse(TARGETS, FORMULAS["vtrace"])}
    rows, variance = [], spread(stages)
    for formula, program in programs.items():
        error = np.mean(np.square(values_of(program, of(is_out)) - y[is_out])) / variance
        alone = errors_of(program, discount, stages) / variance
        rows.append({"size": len(program), "error": float(error), "alone": alone, "formula": formula})
    return rows


def of_rule(name: str, rule: Rule, folder: Path, envs: Sequence[str] = ()) -> Path:
    """Fit formulas to the targets of fresh agents, where a rule was discovered or in `envs`; files as of `write`.

    Raises:
      UsageError: if there are no environments, or one is not known or not pure, or the rule is not of actor-critics.
    """
    check_kind(name, rule)
    seen = of_lives(name, rule, envs)
    stages = [stage for of_env in seen.values() for stage in of_env]
    return write(fitted_in(rule, name, seen), formulas(rule, stages), rule_of, folder, stem(name))


def of_lives(name: str, rule: Rule, envs: Sequence[str], look_at: StageOf = stage_of) -> dict[str, Stages]:
    """Return the stages of a life in each of the environments, by default those where a rule was discovered.

    Raises:
      UsageError: if there are none, or one is not known or not pure.
    """
    given = "--envs" if envs else name
    envs = list(dict.fromkeys(envs or (rule.origin.envs if rule.origin else ())))
    if not envs:
        raise UsageError(f"{name} does not say where its rule was discovered: give --envs")
    for env in envs:
        if not is_pure(env):
            raise UsageError(f"{given}: {env} is on the host, expected --envs in JAX")
        with caused_by(given):
            make_pure(env)
    progress, done = Progress(STAGES * len(envs), unit="stages"), itertools.count(1)
    tick = lambda: progress.update(next(done))
    return {env: of_fresh(name, rule, env, look_at, tick) for env in envs}


def fitted_in(rule: Rule, name: str, envs: Iterable[str]) -> Rule:
    """Return the rule with the origin of formulas for it: the environments that both have seen, and how."""
    before = rule.origin or Origin((), None, None)
    how = "; ".join(filter(None, (f"formulas for {stem(name)}, fitted in {', '.join(envs)}", before.note)))
    return dataclasses.replace(rule, origin=before._replace(envs=tuple(dict.fromkeys((*before.envs, *envs))), note=how))


def stem(name: str) -> str:
    """Return what files of a rule are named by: the last part of its name, without .npz."""
    return name.rpartition("/")[2].removesuffix(".npz")


def of_run(loaded: LoadedAgent, run: Path, out: str = "") -> Path:
    """Fit formulas to the targets of a run's own agent at its end; files as of `write`, in analysis/ of the run.

    η is written as a rule, too, <the run's name>.npz.

    Raises:
      UsageError: if it is not of actor-critics.
    """
    config, name = loaded.config, run.resolve().name
    before = load_rule(config.init_meta_params).origin if config.init_meta_params else None
    envs = (*(before.envs if before else ()), *(() if config.is_frozen else (config.env,)))
    rule = Rule(name, config.agent_only(), loaded.meta_params, Origin(tuple(dict.fromkeys(envs)), None, None))
    check_kind(str(run), rule)
    folder = Path(out or run / "analysis")
    rule.save(folder / f"{name}.npz")
    of = fitted_in(rule, name, [config.env])
    return write(of, formulas(rule, of_trained(loaded)), rule_of, folder, name)


def check_kind(name: str, rule: Rule) -> None:
    if (kind := rule.config.rule.kind) != "actor_critic":
        shown = kind.replace("_", "-")
        raise UsageError(f"{name} holds a rule of {shown} agents, expected actor-critics: formulas are their targets")


def write(rule: Rule, rows: Rows, rule_of: Callable[[str, Rule], Rule], folder: Path, name: str) -> Path:
    """Print formulas for a rule's targets, and write <name>_formulas.csv, and of each a rule, <name>_<its size>.npz.

    The last row is a known formula, of which no rule is written. Returns the path of the former.
    """
    for row in rows[:-1]:
        rule_of(row["formula"], rule).save(folder / f"{name}_{row['size']}.npz")
    files.write_csv(folder / f"{name}_formulas.csv", rows)
    print(table([row | {x: f"{of:.2g}" for x, of in row.items() if isinstance(of, float)} for row in rows]))
    return folder / f"{name}_formulas.csv"


def flat(stages: Stages, of: Callable[[dict[str, Any]], Any]) -> np.ndarray:
    """Return what is of all valid steps, [N]."""
    return np.concatenate([np.asarray(of(stage))[stage["trajectory"].valid] for stage in stages])
