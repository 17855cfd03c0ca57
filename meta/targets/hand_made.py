"""Hand-designed targets by name: what η is fitted to, and what the output of a meta-network is added to."""

from collections.abc import Callable

from agents.rules.returns import importance_ratios, lambda_returns, vtrace
from agents.types import Array, Trajectory

# trajectory, V [T + 1, B], logits of π [T + 1, B, A], γ, λ -> [T, B], with the gradient of V and of π
Target = Callable[[Trajectory, Array, Array, float, float], Array]


def _vtrace(trajectory: Trajectory, values: Array, logits: Array, discount: float, lambda_: float) -> Array:
    return vtrace(trajectory, values, importance_ratios(logits, trajectory), discount, lambda_, is_constant=False)[0]


def _lambda_return(trajectory: Trajectory, values: Array, logits: Array, discount: float, lambda_: float) -> Array:
    return lambda_returns(trajectory, values, discount, lambda_, is_constant=False)[0]


def _n_step_return(trajectory: Trajectory, values: Array, logits: Array, discount: float, lambda_: float) -> Array:
    return _lambda_return(trajectory, values, logits, discount, 1.0)


TARGETS: dict[str, Target] = {"vtrace": _vtrace, "lambda_return": _lambda_return, "n_step_return": _n_step_return}
