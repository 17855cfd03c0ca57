"""Programs as targets of policies: what DiscoRL's meta-network makes of a policy, as a formula.

π̂(a) is proportional to π(a) exp(f), and f is a program of what is known of the action a in one step. Agents learn
action values by Retrace, as with DiscoRL's rule, but no y, z and auxiliary policy. η is the program's constants.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from agents.rule import UpdateRule
from agents.rules.moving_average import normalise
from agents.settings import Count, Fraction, NotNegative, Settings
from agents.types import Array, Params
from meta.programs.evaluation import with_constants_as_eta
from meta.programs.language import POLICIES, Program, parse_setting
from meta.targets.disco import DiscoConfig, DiscoContext, DiscoState, DiscoTargets, disco, make_context

FORMULAS = {"cmpo": "slow + max(min(A, 1.0), -1.0)"}  # of Hessel et al. 2021, as `policy_fitting.cmpo` has it


@dataclasses.dataclass
class PolicyProgramConfig(Settings):
    """A program as the target of a policy; what is not the program's is as in `DiscoConfig`.

    Attributes:
      formula: Formula of what is added to log π(a), of A, A_q, slow, pi and taken, or the name of one: 'cmpo'.
      max_value: Bins of transformed action values are the whole numbers from -max_value to it, at least 1.
      discount: γ, from 0 to 1.
      lambda_: λ of Retrace, from 0 to 1.
      policy_cost: Weight of KL(π̂ ‖ π), at least 0.
      value_cost: Weight of the loss of action values, at least 0.
      target_decay: Decay of the agent's slow copy, the target network, in an update, from 0 to 1.
      skips_first_steps: Whether losses leave out the first step of an episode.
    """

    formula: str = FORMULAS["cmpo"]
    max_value: Count = DiscoConfig.max_value
    discount: Fraction = DiscoConfig.discount
    lambda_: Fraction = DiscoConfig.lambda_
    policy_cost: NotNegative = DiscoConfig.policy_cost
    value_cost: NotNegative = DiscoConfig.value_cost
    target_decay: Fraction = DiscoConfig.target_decay
    skips_first_steps: bool = DiscoConfig.skips_first_steps

    def validate(self) -> None:
        super().validate()
        _program(self.formula)


@functools.cache
def _program(formula: str) -> Program:
    return parse_setting("formula", POLICIES, formula, FORMULAS)


def policy_program(config: PolicyProgramConfig) -> UpdateRule:
    """DiscoRL's losses of policy and action values, with the policy target of a program."""
    of_constants, compute = with_constants_as_eta(POLICIES, _program(config.formula))
    shared = {name: x for name, x in vars(config).items() if name != "formula"}
    own = DiscoConfig(lifetime_lstm=0, without=("y_z", "aux_policy"), **shared)

    def apply(meta_params: Params, state: DiscoState, trajectory, predictions, target_predictions):
        context, td = make_context(state, trajectory, predictions, target_predictions, own)
        change = compute(meta_params, inputs_of(context))
        logits = jax.lax.stop_gradient(jax.nn.log_softmax(predictions["policy"][:-1])) + change
        assert context.values is not None
        return DiscoTargets(logits, None, None, context.values.returns), DiscoState((), context.average, td)

    return disco(own)._replace(random_meta_params=lambda key, num_actions: of_constants, apply=apply, regulariser=None)


def inputs_of(context: DiscoContext) -> dict[str, Array]:
    """Return the inputs of a program at all steps and actions by their names, [T, B, A], without gradient.

    A is the advantage, of Retrace for the action that was taken and of the slow copy's q for the others; A_q that of q
    for all. Both are normalised by the moving average. `slow` is log π_slow(a) − log π(a), `pi` is π(a), and `taken` 1
    for the action that was taken, else 0.
    """
    values, trajectory = context.values, context.trajectory
    assert values is not None
    own, slow = (jax.nn.log_softmax(x["policy"][:-1]) for x in (context.predictions, context.target_predictions))
    taken = jax.nn.one_hot(trajectory.action, own.shape[-1], dtype=own.dtype)
    of_q = values.action_advantage[:-1]
    mixed = jnp.where(taken > 0, values.advantage[..., None], of_q)
    inputs = {
        "A": normalise(context.average, mixed),
        "A_q": normalise(context.average, of_q),
        "slow": slow - own,
        "pi": jnp.exp(own),
        "taken": taken,
    }
    return {name: jax.lax.stop_gradient(inputs[name]) for name in POLICIES.inputs}
