"""Programs as targets of actor-critics: what FRODO's meta-network computes, as a formula.

A program is one step of a scan from the last step of a trajectory to the first. From reward, discount, v(S), v(S′),
π(A|S), μ(A|S) and the target of the next step it makes that of this one; the scan begins with v(S′). The language's
operators are the numerical ones of `language.py`. η is the program's constants: the λ of a λ-return, say. Or η is
the program as a whole, as data: one compiled program then serves all, and agents can be mapped over programs.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.rule import Reduction, UpdateRule
from agents.rules.action_values import taken
from agents.rules.categorical import log_probability
from agents.rules.impala import A2CConfig, actor_critic
from agents.settings import Fraction
from agents.types import Array, Params, Trajectory, successors
from meta.programs.evaluation import (
    Given,
    Instructions,
    assemble,
    constants_of,
    evaluate,
    interpret,
    no_draws,
)
from meta.programs.language import TARGETS, Program, parse_setting
from meta.targets.fitting import make_up
from meta.targets.scalar import FrodoConfig, actor_critic_inner_loss, difference_from_vtrace

FORMULAS = {  # with λ = 0.95
    "n_step_return": "r + gamma * G_next",
    "lambda_return": "r + gamma * (v_next + 0.95 * (G_next - v_next))",
    "vtrace": "rho = min(pi / mu, 1.0); v + rho * (r + gamma * (v_next + 0.95 * (G_next - v_next)) - v)",
}


@dataclasses.dataclass
class TargetProgramConfig(A2CConfig):
    """A program as the target of actor-critics.

    Attributes:
      formula: Formula of the target of a step, or the name of one: 'n_step_return', 'lambda_return' or 'vtrace'.
      vtrace_lambda: λ of the V-trace that metrics compare targets with, from 0 to 1.
      is_data: Whether η is the program itself, of which nothing is learned, else its constants.
    """

    reduction: Reduction = "mean"
    formula: str = FORMULAS["vtrace"]
    vtrace_lambda: Fraction = 0.95
    is_data: bool = False

    def validate(self) -> None:
        super().validate()
        _program(self.formula)


@functools.cache
def _program(formula: str) -> Program:
    return parse_setting("formula", TARGETS, formula)


def target_program(config: TargetProgramConfig) -> UpdateRule:
    """FRODO's losses with the targets of a program, whose constants are η.

    Nothing is bootstrapped from after the end of an episode: v(S′), the next target and γ are 0 there. At a step whose
    successor the trajectory does not go on from the next target is v(S′); at a step that is not valid it is v(S).
    """
    program = _program(config.formula)
    constants = constants_of(TARGETS, program)
    of_constants: Params = {"program": {"constants": jnp.array(constants)}} if constants else {}

    def apply(meta_params, rule_state, trajectory, predictions, target_predictions):
        del target_predictions
        if config.is_data:
            compute = meta_params.target
        else:
            given = meta_params["program"]["constants"] if constants else None
            compute = lambda inputs: evaluate(TARGETS, program, Given(inputs), no_draws(), given)
        found = targets(compute, trajectory, predictions["value"], predictions["policy"], config.discount)
        return found, rule_state

    loss = functools.partial(actor_critic_inner_loss, value_cost=config.value_cost, entropy_cost=config.entropy_cost)
    return actor_critic(apply, loss, config)._replace(
        random_meta_params=lambda key, num_actions: assembled(program) if config.is_data else of_constants,
        metrics=functools.partial(difference_from_vtrace, discount=config.discount, lambda_=config.vtrace_lambda),
    )


class Data(NamedTuple):
    """A program as η: its instructions, and how many of them are run, which mapped programs share."""

    instructions: Instructions
    num: Array

    def target(self, inputs: dict[str, Array]) -> Array:
        """Compute it: inputs of a step by their names, in the order of `TARGETS`, [B] each -> target, [B]."""
        return interpret(self.instructions, no_draws(), jnp.stack(list(inputs.values())), self.num)


def assembled(program: Program) -> Data:
    instructions = assemble(TARGETS, program, {name: i for i, name in enumerate(TARGETS.inputs)})
    return jax.tree.map(jnp.asarray, Data(instructions, instructions.num))


def targets(
    compute: Callable[[dict[str, Array]], Array], trajectory: Trajectory, values: Array, logits: Array, discount: float
) -> Array:
    """Compute the targets of all steps, [T, B], from the last to the first.

    Args:
      compute: the program: inputs of a step by their names, in the order of `TARGETS`, [B] each -> target, [B].
      trajectory, values, logits, discount: V of every observation [T + 1, B], logits of π [T + 1, B, A], γ.
    """

    def step(following: Array, at: tuple[dict[str, Array], Array, Array]) -> tuple[Array, Array]:
        inputs, cut, is_valid = at
        target = jnp.where(is_valid, compute(with_next(inputs, following, cut)), inputs["v"])
        return target, target

    steps = inputs_of(trajectory, values, logits, discount)
    _, found = jax.lax.scan(step, values[-1], (steps, is_cut(trajectory), trajectory.valid), reverse=True)
    return found


def inputs_of(trajectory: Trajectory, values: Array, logits: Array, discount: float) -> dict[str, Array]:
    """Return the inputs of a program at all steps by their names, [T, B], without the next target."""
    gamma = (discount * trajectory.discount).astype(values.dtype)
    return {
        "r": trajectory.reward.astype(values.dtype),
        "gamma": gamma,
        "v": values[:-1],
        "v_next": jnp.where(gamma > 0, successors(values, trajectory), 0.0),
        "pi": jnp.exp(taken(jax.nn.log_softmax(logits), trajectory)),
        "mu": jnp.exp(log_probability(trajectory.behaviour_logits, trajectory.action)).astype(values.dtype),
    }


def is_cut(trajectory: Trajectory) -> Array:
    """Say at which steps the trajectory does not go on with their successor, [T, B]."""
    return trajectory.truncated | ~trajectory.valid


def with_next(inputs: dict[str, Array], following: Array, cut: Array) -> dict[str, Array]:
    """Return all inputs of a program, in the order of `TARGETS`, where `following` is the target after a step."""
    following = jnp.where(cut, inputs["v_next"], jnp.where(inputs["gamma"] > 0, following, 0.0))
    return {name: (inputs | {"G_next": following})[name] for name in TARGETS.inputs}


def probe() -> tuple[Trajectory, Array, Array]:
    """Return a fixed made-up trajectory [16, 8], with ends of every kind, values and logits."""
    trajectory, predictions = make_up(jax.random.key(0), FrodoConfig(), num_steps=16, batch_size=8)
    return trajectory, predictions["value"], predictions["policy"]


@jax.jit
def fingerprint(data: Data) -> Array:
    """Return the errors G − v of a program on a fixed trajectory, [128], with large ones on a logarithmic scale.

    The losses' gradients are made of these errors. They are not scaled: their size relative to the entropy's counts.
    About 0 for a program that leaves values and policies as they are.
    """
    trajectory, values, logits = probe()
    errors = targets(data.target, trajectory, values, logits, TargetProgramConfig.discount) - values[:-1]
    return jnp.arcsinh(errors).ravel()
