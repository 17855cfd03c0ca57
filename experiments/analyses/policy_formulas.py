"""Formulas for the policy target of a rule of DiscoRL's form: π̂(a) is proportional to π(a) exp(f), and f is a formula.

They are fitted to the targets of fresh agents that learn by the rule, of what they replay, and are rules themselves, of
the kind policy_program: their agents learn action values in the same way, but not y and z. A formula sees one step at a
time, and neither y and z nor the state of the lifetime LSTM: what it lacks may be due to these.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp

from experiments.analyses import target_formulas
from experiments.analyses.target_formulas import Rows, Stages, is_held_out
from frodo.logs import note
from frodo.regimes.learner import Learner
from frodo.rules.files import Rule
from frodo.runs.errors import UsageError
from frodo.settings.registry import RuleConfig
from meta.programs.language import POLICIES, Program, parse
from meta.programs.policies import FORMULAS, PolicyProgramConfig, inputs_of
from meta.programs.regression import fit, values_of
from meta.targets.disco import make_context


def stage_of(learner: Learner, *inputs: Any) -> dict[str, Any]:
    """Return a program's inputs, log π̂ − log π, log π and π̂, of all actions, [T, B, A] each; and the trajectory.

    Args:
      inputs: of the rule, as `learner.rule_inputs` returns them.
    """
    _, state, trajectory, predictions, slow = inputs
    context, _ = make_context(state, trajectory, predictions, slow, learner.config.rule.settings)
    found = jax.nn.log_softmax(learner.setup.rule.apply(*inputs)[0].policy)
    before = jax.nn.log_softmax(predictions["policy"][:-1])
    cut = trajectory._replace(observation=())
    made = {"targets": found - before, "log_pi": before, "policy": jnp.exp(found)}
    return {"trajectory": cut, "inputs": inputs_of(context)} | made


def rule_of(formula: str, rule: Rule) -> Rule:
    """Return the rule whose policy target a formula makes, for the agents of a rule of DiscoRL's form."""
    of = rule.config.rule.settings
    shared = {x.name: getattr(of, x.name) for x in dataclasses.fields(PolicyProgramConfig) if x.name != "formula"}
    config = rule.config.replace(rule=RuleConfig("policy_program", PolicyProgramConfig(formula=formula, **shared)))
    found = Rule("policy_program", config, None, rule.origin)
    return dataclasses.replace(found, meta_params=found.update_rule.random_meta_params(jax.random.key(0), 2))


def formulas(stages: Stages) -> Rows:
    """Return formulas, from short to exact, and CMPO's: `error` is KL(π̂ ‖ formula's) as a share of KL(π̂ ‖ π).

    Both are of trajectories that formulas were not fitted to. They are fitted by the same KL.
    """
    rng, points = np.random.default_rng(target_formulas.SEED), []
    for stage in stages:
        is_seen = stage["trajectory"].valid & ~is_held_out(stage)
        of = stage["inputs"] | {"targets": stage["targets"], "policy": stage["policy"]}
        num = target_formulas.NUM_POINTS // (len(stages) * stage["policy"].shape[-1])
        states = rng.permutation(np.count_nonzero(is_seen))[:num]
        points.append({name: x[is_seen][states] for name, x in of.items()})
    flat = lambda name: np.concatenate([np.ravel(one[name]) for one in points]).astype(np.float64)
    num_actions = [one["targets"].shape[-1] for one in points for _ in one["targets"]]
    group = np.repeat(np.arange(len(num_actions)), num_actions)
    note(f"formulas: {target_formulas.NUM_PROGRAMS:,} programs are tried")
    how = dict(num_programs=target_formulas.NUM_PROGRAMS, max_nodes=target_formulas.MAX_NODES)
    found = fit({name: flat(name) for name in POLICIES.inputs}, flat("targets"), p=flat("policy"), group=group, **how)
    programs = {one.formula: one.program for one in found} | {FORMULAS["cmpo"]: parse(POLICIES, FORMULAS["cmpo"])}
    before = divergence(stages, lambda inputs: np.zeros_like(inputs["A"]))
    return [
        {"size": len(program), "error": divergence(stages, as_change(program)) / before, "formula": formula}
        for formula, program in programs.items()
    ]


def as_change(program: Program) -> Callable[[dict[str, Any]], np.ndarray]:
    """Return the function of a program's inputs, [T, B, A] each, that computes it."""

    def compute(inputs: dict[str, Any]) -> np.ndarray:
        return values_of(program, {name: np.ravel(x) for name, x in inputs.items()}).reshape(inputs["A"].shape)

    return compute


def divergence(stages: Stages, compute: Callable[[dict[str, Any]], np.ndarray]) -> float:
    """Return the mean of KL(π̂ ‖ π exp(f)) in nats over the steps that are held out, where f is `compute` of inputs."""
    found = []
    for stage in stages:
        change = compute(stage["inputs"])
        normaliser = logsumexp(stage["log_pi"] + change, axis=-1)
        kl = np.sum(stage["policy"] * (stage["targets"] - change), axis=-1) + normaliser
        found.append(kl[stage["trajectory"].valid & is_held_out(stage)])
    return float(np.mean(np.concatenate(found)))


def of_rule(name: str, rule: Rule, folder: Path, envs: Sequence[str] = ()) -> Path:
    """Fit formulas to the policy targets of fresh agents; files as of `target_formulas.write`.

    Raises:
      UsageError: if there are no environments, or one is not known or not pure, or agents learn no action values.
    """
    if "q" in rule.config.rule.settings.without:
        raise UsageError(f"{name} holds a rule whose agents learn no action values: formulas are made of them")
    seen = target_formulas.of_lives(name, rule, envs, stage_of)
    stages, of = [stage for of_env in seen.values() for stage in of_env], target_formulas.fitted_in(rule, name, seen)
    return target_formulas.write(of, formulas(stages), rule_of, folder, target_formulas.stem(name))
