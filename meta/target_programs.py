"""Programs as targets of actor-critics: what FRODO's meta-network computes, as a formula.

A program is one step of a scan from the last step of a trajectory to the first. From reward, discount, v(S), v(S′),
π(A|S), μ(A|S) and the target of the next step it makes that of this one; the scan begins with v(S′). The language's
operators are the numerical ones of `program_language`. η is the program's constants: the λ of a λ-return, say.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.action_values import taken
from agents.categorical import log_probability
from agents.impala import actor_critic_spec
from agents.rule import REDUCTIONS, UpdateRule
from agents.types import Array, Trajectory
from agents.validation import check_choice, check_fractions, check_not_negative
from meta.program_evaluation import ARITHMETIC, Draws, ListName, constants_of, evaluate
from meta.program_language import Language, Program, parse
from meta.scalar import actor_critic_inner_loss, difference_from_vtrace

TARGETS = Language(dict.fromkeys(("r", "gamma", "v", "v_next", "pi", "mu", "G_next"), "R"), ("Constant", *ARITHMETIC))
FORMULAS = {  # with λ = 0.95
    "n_step_return": "r + gamma * G_next",
    "lambda_return": "r + gamma * (v_next + 0.95 * (G_next - v_next))",
    "vtrace": "rho = min(pi / mu, 1.0); v + rho * (r + gamma * (v_next + 0.95 * (G_next - v_next)) - v)",
}


class Step(NamedTuple):
    """The inputs of a program of `TARGETS` by their names, [B] each."""

    inputs: Mapping[str, Array]
    lists: Mapping[ListName, Array] = {}


@dataclasses.dataclass
class TargetProgramConfig:
    formula: str = FORMULAS["vtrace"]  # of the target of a step
    discount: float = 0.99  # γ
    reduction: str = "mean"  # of per-step losses: 'sum' or 'mean'
    value_cost: float = 0.5
    entropy_cost: float = 0.01
    vtrace_lambda: float = 0.95  # of the V-trace that metrics compare targets with

    def validate(self) -> None:
        _program(self.formula)
        check_fractions(self, "discount", "vtrace_lambda")
        check_choice("reduction", self.reduction, REDUCTIONS)
        check_not_negative(self, "value_cost", "entropy_cost")


@functools.cache
def _program(formula: str) -> Program:
    return parse(TARGETS, formula)


def target_program(config: TargetProgramConfig) -> UpdateRule:
    """FRODO's losses with the targets of a program, whose constants are η.

    Nothing is bootstrapped from after the end of an episode: v(S′), the next target and γ are 0 there. At a step whose
    successor the trajectory does not go on from the next target is v(S′); at a step that is not valid it is v(S).
    """
    program = _program(config.formula)
    constants = constants_of(TARGETS, program)

    def apply(meta_params, rule_state, trajectory, predictions, target_predictions):
        del target_predictions
        given = meta_params["program"]["constants"] if constants else None
        return targets(program, trajectory, predictions["value"], predictions["policy"], config.discount, given), ()

    return UpdateRule(
        spec=actor_critic_spec,
        apply=apply,
        loss=functools.partial(actor_critic_inner_loss, value_cost=config.value_cost, entropy_cost=config.entropy_cost),
        policy=lambda predictions: predictions["policy"],
        random_meta_params=lambda key, num_actions: (
            {"program": {"constants": jnp.array(constants)}} if constants else {}
        ),
        metrics=functools.partial(difference_from_vtrace, discount=config.discount, lambda_=config.vtrace_lambda),
        reduction=config.reduction,
    )


def targets(
    program: Program,
    trajectory: Trajectory,
    values: Array,
    logits: Array,
    discount: float,
    constants: Array | None = None,
) -> Array:
    """Compute a program's targets, [T, B], of values [T + 1, B] and logits of π [T + 1, B, A]."""
    gamma = (discount * trajectory.discount).astype(values.dtype)
    after = jnp.where(gamma > 0, values[1:], 0.0)
    steps = {
        "r": trajectory.reward.astype(values.dtype),
        "gamma": gamma,
        "v": values[:-1],
        "v_next": after,
        "pi": jnp.exp(taken(jax.nn.log_softmax(logits), trajectory)),
        "mu": jnp.exp(log_probability(trajectory.behaviour_logits, trajectory.action)).astype(values.dtype),
    }
    none = jnp.zeros((0,), values.dtype)

    def step(following: Array, at: tuple[dict[str, Array], Array, Array]) -> tuple[Array, Array]:
        inputs, is_cut, is_valid = at
        following = jnp.where(is_cut, inputs["v_next"], jnp.where(inputs["gamma"] > 0, following, 0.0))
        target = evaluate(TARGETS, program, Step(inputs | {"G_next": following}), Draws(none, none), constants)
        target = jnp.where(is_valid, target, inputs["v"])
        return target, target

    is_cut = trajectory.truncated | ~trajectory.valid
    _, found = jax.lax.scan(step, values[-1], (steps, is_cut, trajectory.valid), reverse=True)
    return found
