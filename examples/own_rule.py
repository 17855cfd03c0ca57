"""A rule of one's own, in one file: an actor-critic that learns the λ of its returns.

    FRODO_PLUGINS=examples/own_rule.py python -m experiments.online --rule=learned_lambda --env=toy/catch

In a program of one's own, to import this file is enough. η is one number, the logit of λ; with η frozen this is IMPALA.
"""

import dataclasses

import jax
import jax.numpy as jnp

import frodo
from agents.rules.impala import ActorCriticTargets, actor_critic_loss, actor_critic_spec
from agents.rules.returns import importance_ratios, vtrace


@dataclasses.dataclass
class LearnedLambdaConfig:
    """Settings of the rule.

    Attributes:
      discount: γ, from 0 to 1.
      value_cost: Weight of the critic's loss, at least 0.
      entropy_cost: Weight of the policy's entropy, at least 0.
      first_lambda: λ that η begins with, between 0 and 1.
    """

    discount: float = 0.99
    value_cost: float = 0.5
    entropy_cost: float = 0.01
    first_lambda: float = 0.9

    def validate(self):
        if not 0 < self.first_lambda < 1:
            raise ValueError(f"first_lambda is {self.first_lambda}, expected a number between 0 and 1")


def learned_lambda(config):
    def apply(meta_params, rule_state, trajectory, predictions, target_predictions):
        rho, lambda_ = importance_ratios(predictions["policy"], trajectory), jax.nn.sigmoid(meta_params["logit"])
        found = vtrace(trajectory, predictions["value"], rho, config.discount, lambda_, is_constant=False)
        return ActorCriticTargets(*found), rule_state  # through which the meta-gradient flows into λ

    return frodo.UpdateRule(
        spec=actor_critic_spec,
        apply=apply,
        loss=lambda targets, predictions, trajectory: actor_critic_loss(
            targets, predictions, trajectory, config.value_cost, config.entropy_cost
        ),
        policy=lambda predictions: predictions["policy"],
        random_meta_params=lambda *_: {"logit": -jnp.log(1 / config.first_lambda - 1)},
        reduction="mean",
    )


with_fast_eta = lambda config: config.replace(meta_optimizer=frodo.adam(1e-2, max_gradient_norm=1.0))
entry = frodo.RuleEntry(learned_lambda, LearnedLambdaConfig, is_learned=True, preset=with_fast_eta)
entry = entry._replace(population={"small": with_fast_eta}, tuning={"batches": ((16, 16),)})
frodo.register_rule("learned_lambda", entry)
