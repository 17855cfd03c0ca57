"""What targets depend on: their derivatives with respect to rewards, discounts and values, by central differences.

Hand-designed rules stop gradients, which differences do not see.
"""

import jax
import jax.numpy as jnp

from agents.rule import RuleState, UpdateRule
from agents.types import Array, Params, Predictions, Targets, Trajectory

STEP = 1e-2  # of central differences: exact where a target is linear, else to about 1e-4
INPUTS = ("reward", "discount", "value")


def target_derivatives(
    rule: UpdateRule,
    meta_params: Params,
    rule_state: RuleState,
    trajectory: Trajectory,
    predictions: Predictions,
    target_predictions: Predictions,
) -> dict[str, Targets]:
    """Differentiate a rule's targets.

    Args:
      rule, meta_params, rule_state: those that make the targets.
      trajectory: [T, B].
      predictions, target_predictions: those of the agent and of its slow copy, [T + 1, B, ...].
    Returns:
      for each of INPUTS the derivatives of the targets, leaves [T, T, B, ...]. Entry [k, t] is that of step t's target
      with respect to step k's reward, its discount, or the value of the observation after it, changed in all
      environments at once. Values are there if agents predict them. Where a discount is 0, its derivative is 0.
    """
    num_steps = len(trajectory.action)

    def targets(name: str, change: Array) -> Targets:
        changed, own, slow = trajectory, predictions, target_predictions
        if name == "value":
            own, slow = ({**x, "value": x["value"].at[1:].add(change[:, None])} for x in (own, slow))
        elif name == "discount":  # 0 says that the episode is over, and stays 0
            changed = trajectory._replace(discount=trajectory.discount + change[:, None] * (trajectory.discount > 0))
        else:
            changed = trajectory._replace(reward=trajectory.reward + change[:, None])
        return rule.apply(meta_params, rule_state, changed, own, slow)[0]

    def derivative(name: str, direction: Array) -> Targets:
        above, below = targets(name, STEP * direction), targets(name, -STEP * direction)
        return jax.tree.map(lambda x, y: (x - y) / (2 * STEP), above, below)

    names = [name for name in INPUTS if name != "value" or "value" in predictions]
    return {name: jax.vmap(lambda x, name=name: derivative(name, x))(jnp.eye(num_steps)) for name in names}
