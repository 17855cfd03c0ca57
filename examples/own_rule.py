"""A user-defined rule in one file: an actor-critic that learns the λ of its returns.

    FRODO_PLUGINS=examples/own_rule.py python -m experiments.online --rule=learned_lambda --env=toy/catch

In a user's program, to import this file is enough. η is one number, the logit of λ; with η frozen this is IMPALA.
"""

import dataclasses

import jax
import jax.numpy as jnp

import frodo


@dataclasses.dataclass
class LearnedLambdaConfig(frodo.Settings):
    """Settings of the rule.

    Attributes:
      discount: γ, from 0 to 1.
      value_cost: Weight of the critic's loss, at least 0.
      entropy_cost: Weight of the policy's entropy, at least 0.
      first_lambda: λ that η begins with, between 0 and 1.
    """

    discount: frodo.Fraction = 0.99
    value_cost: frodo.NotNegative = 0.5
    entropy_cost: frodo.NotNegative = 0.01
    first_lambda: float = 0.9

    def validate(self):
        super().validate()
        if not 0 < self.first_lambda < 1:
            raise ValueError(f"first_lambda is {self.first_lambda}, expected a number between 0 and 1")


def learned_lambda(config):
    def apply(meta_params, rule_state, trajectory, predictions, target_predictions):
        log_pi = frodo.log_probability(predictions["policy"][:-1], trajectory.action)
        rho = jnp.exp(log_pi - frodo.log_probability(trajectory.behaviour_logits, trajectory.action))
        lambda_ = jax.nn.sigmoid(meta_params["logit"])  # into which the meta-gradient flows through the targets
        targets = frodo.vtrace(trajectory, predictions["value"], rho, config.discount, lambda_, is_constant=False)
        return targets, rule_state

    def loss(targets, predictions, trajectory):
        values, advantages = targets
        every = jax.nn.log_softmax(predictions["policy"][:-1])
        of_policy = -advantages * frodo.log_probability(every, trajectory.action)
        of_entropy = config.entropy_cost * jnp.sum(jnp.exp(every) * every, axis=-1)
        return of_policy + 0.5 * config.value_cost * (values - predictions["value"][:-1]) ** 2 + of_entropy

    return frodo.UpdateRule(
        spec=lambda num_actions: {"policy": frodo.PredictionSpec((num_actions,)), "value": frodo.PredictionSpec()},
        apply=apply,
        loss=loss,
        policy=lambda predictions: predictions["policy"],
        random_meta_params=lambda *_: {"logit": -jnp.log(1 / config.first_lambda - 1)},
        reduction="mean",
    )


with_fast_eta = lambda config: config.replace(meta_optimizer=frodo.adam(1e-2, max_gradient_norm=1.0))
entry = frodo.RuleEntry(learned_lambda, LearnedLambdaConfig, is_learned=True, preset=with_fast_eta)
entry = entry._replace(population={"small": with_fast_eta}, tuning={"batches": ((16, 16),)})
frodo.register_rule("learned_lambda", entry)
