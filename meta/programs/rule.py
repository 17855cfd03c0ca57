"""Programs as update rules of value-based agents: the loss is what the program computes (Co-Reyes et al. 2021).

η is the program's constants, if it has any: the k of δ² + k Q, say.
"""

import dataclasses
import functools
import itertools
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from agents.rule import UpdateRule, masked_means
from agents.rules.action_values import epsilon_greedy_logits
from agents.settings import Count, Fraction, OneOf, Settings
from agents.types import Array, PredictionSpec, successors
from meta.programs.equivalence import has_gradient
from meta.programs.evaluation import ENDS, Transition, constants_of, draw, evaluate_nodes, lists_of
from meta.programs.language import FORMULAS, LOSSES, RANDOM, Program, compact, parse_setting

MOST_MAXIMA = 2  # by which cases are distinguished


@dataclasses.dataclass
class ProgramConfig(Settings):
    """A program as the loss of value-based agents (Co-Reyes et al. 2021).

    Attributes:
      formula: Formula of the loss of a transition, or the name of one: 'dqn', 'double_dqn', 'dqn_reg' or 'dqn_clipped'.
      discount: γ, from 0 to 1.
      epsilon: Share of random actions of the ε-greedy policy when exploration is over, from 0 to 1 (Co-Reyes
        et al. 2021, appendix B).
      target_period: Updates from one hard copy of the agent's parameters to the next, at least 1 (Co-Reyes
        et al. 2021, appendix B).
      ends: What is 0 after a terminal step: 'gamma', or 'values', Q and Q_targ at s_next.
    """

    formula: str = FORMULAS["dqn"]
    discount: Fraction = 0.99
    epsilon: Fraction = 0.05
    target_period: Count = 100
    ends: Annotated[str, OneOf(ENDS)] = "gamma"

    def validate(self) -> None:
        super().validate()
        parse_loss("formula", self.formula, self.ends)


@functools.cache
def parse_loss(name: str, formula: str, ends: str) -> Program:
    """Read the loss that a setting of this name is, or the name of one; a ValueError begins with the setting's.

    Whether it has a gradient depends on what it is told of ends by.

    Raises:
      ValueError: if it is no formula of a loss, or Q has no gradient.
    """
    parsed = parse_setting(name, LOSSES, formula, FORMULAS)
    if not has_gradient(parsed, ends):
        raise ValueError(f"{name}: {formula!r} has no gradient to Q: nothing would be learned")
    return parsed


@dataclasses.dataclass
class DoubleDQNConfig(ProgramConfig):
    """`ProgramConfig` by double DQN's loss."""

    formula: str = FORMULAS["double_dqn"]


@dataclasses.dataclass
class DQNRegConfig(ProgramConfig):
    """`ProgramConfig` by DQNReg's loss."""

    formula: str = FORMULAS["dqn_reg"]


@dataclasses.dataclass
class DQNClippedConfig(ProgramConfig):
    """`ProgramConfig` by DQNClipped's loss."""

    formula: str = FORMULAS["dqn_clipped"]


class ProgramTargets(NamedTuple):
    """What a program makes of a trajectory.

    Attributes:
      loss: [T, B].
      cases: 1 where it is this case, else 0, [T, B]: in "case_12" the program's first Max takes the first of its two
        numbers, its second Max the second.
    """

    loss: Array
    cases: dict[str, Array]


def program(config: ProgramConfig, is_learned: bool = True) -> UpdateRule:
    """A loss for each transition, averaged: replayed trajectories of one step are DQN's transitions.

    Where a time limit hides a step's successor, s′ is s. Constants are η if it is to be learned. Metrics
    say which cases of its maxima are active, as in Figure 6 of the paper.
    """
    parsed = compact(LOSSES, parse_loss("formula", config.formula, config.ends))
    lists, constants = lists_of(LOSSES, parsed), constants_of(LOSSES, parsed) if is_learned else []
    is_random = any(node.operator in RANDOM for node in parsed)

    def apply(meta_params, rule_state, trajectory, predictions, target_predictions):
        def flat(x: Array) -> Array:
            return jnp.reshape(x, (-1, *x.shape[2:]))

        sources = {"Q": predictions["q"], "QTarget": target_predictions["q"]}
        at = {"s": lambda x: flat(x[:-1]), "s_next": lambda x: flat(successors(x, trajectory))}
        observation = jnp.reshape(trajectory.observation, (*trajectory.observation.shape[:2], -1)).astype(float)
        transition = Transition(
            lists={(network, state): at[state](sources[network]) for network, state in lists},
            action=flat(trajectory.action),
            reward=flat(trajectory.reward),
            gamma=config.discount * flat(trajectory.discount),
            state=at["s"](observation),
            next_state=at["s_next"](observation),
        ).told_ends(config.ends, config.discount, flat(trajectory.discount) == 0)
        key, draw_key = jax.random.split(rule_state) if is_random else ((), jax.random.key(0))
        draws = draw(draw_key, LOSSES.max_nodes)
        given = meta_params["program"]["constants"] if constants else None
        values = evaluate_nodes(LOSSES, parsed, transition, draws, given)
        found = ProgramTargets(values[-1], _cases(values))
        return jax.tree.map(lambda x: jnp.reshape(x, trajectory.action.shape), found), key

    def _cases(values: list[Array]) -> dict[str, Array]:
        """Say for each transition which case it is of those that the maxima of two numbers make, 1 and 2 for either."""
        maxima = [node.arguments for node in parsed if node.operator == "Max"][:MOST_MAXIMA]
        if not maxima:
            return {}
        larger = [jax.lax.stop_gradient(values[x] < values[y]) for x, y in maxima]
        cases = itertools.product((False, True), repeat=len(maxima))
        return {
            "case_" + "".join("12"[is_second] for is_second in case): jnp.all(
                jnp.stack([one == is_second for one, is_second in zip(larger, case, strict=True)]), axis=0
            ).astype(values[-1].dtype)
            for case in cases
        }

    return UpdateRule(
        spec=lambda num_actions: {"q": PredictionSpec(is_per_action=True)},
        apply=apply,
        loss=lambda targets, predictions, trajectory: targets.loss,
        metrics=lambda targets, predictions, trajectory: masked_means(targets.cases, trajectory.valid),
        policy=lambda predictions: epsilon_greedy_logits(predictions["q"], config.epsilon),
        random_meta_params=lambda key, num_actions: (
            {"program": {"constants": jnp.array(constants)}} if constants else {}
        ),
        init=lambda: jax.random.key(0) if is_random else (),
        target_period=config.target_period,
        reduction="mean",
        is_target_constant=False,
        is_of_transitions=True,
        is_last_constant=("Q", "s_next") not in lists_of(LOSSES, parsed, has_gradient=True),
    )
