"""Scores of several methods in one number, with intervals: rliable, which `pip install 'frodo-rl[compare]'` brings.

Source: Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice".
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

REPETITIONS = 2000  # of the stratified bootstrap
SEED = 0


class Estimate(NamedTuple):
    """A number, or an array of them, and its 95 % interval over stratified bootstraps of the seeds."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def aggregates(scores: Mapping[str, np.ndarray]) -> dict[str, dict[str, Estimate]]:
    """Return interquartile mean, median and optimality gap of each method.

    Args:
      scores: of each method its normalised scores, [num_seeds, num_envs], without nan.
    Returns:
      method -> "IQM", "median" or "optimality gap" -> estimate.
    """
    _, metrics = require()
    functions = {
        "IQM": metrics.aggregate_iqm,
        "median": metrics.aggregate_median,
        "optimality gap": metrics.aggregate_optimality_gap,
    }
    estimates = _estimates(scores, lambda x: np.array([function(x) for function in functions.values()]))
    return {
        method: {name: Estimate(*(x[i] for x in estimate)) for i, name in enumerate(functions)}
        for method, estimate in estimates.items()
    }


def iqms(scores: Mapping[str, np.ndarray]) -> dict[str, Estimate]:
    """Return the interquartile mean of each method's normalised scores, [num_seeds, num_envs]."""
    _, metrics = require()
    estimates = _estimates(scores, lambda x: np.array([metrics.aggregate_iqm(x)]))
    return {name: Estimate(*(x[0] for x in estimate)) for name, estimate in estimates.items()}


def improvements(scores: Mapping[str, np.ndarray], over: str) -> dict[str, Estimate]:
    """Return for each other method the probability that it is better than `over`, averaged over environments."""
    _, metrics = require()
    pairs = {name: (own, scores[over]) for name, own in scores.items() if name != over}
    estimates = _estimates(pairs, lambda x, y: np.array([metrics.probability_of_improvement(x, y)]))
    return {name: Estimate(*(x[0] for x in estimate)) for name, estimate in estimates.items()}


def means(values: Mapping[str, np.ndarray]) -> dict[str, Estimate]:
    """Return the mean of each method's values, [num_seeds, num_envs]."""
    estimates = _estimates(values, lambda x: np.array([np.mean(x)]))
    return {name: Estimate(*(x[0] for x in estimate)) for name, estimate in estimates.items()}


def mean_difference(differences: np.ndarray) -> Estimate:
    """Return the mean of paired differences, [num_seeds, num_envs], and its 95 % Student-t interval.

    Environments count the same, and are independent: variances of their means add up, with Welch's and Satterthwaite's
    degrees of freedom. With one seed there is no interval: nan.
    """
    num_seeds, num_envs = differences.shape
    mean = differences.mean()
    if num_seeds < 2:
        return Estimate(mean, mean * np.nan, mean * np.nan)
    variances = differences.var(axis=0, ddof=1) / num_seeds / num_envs**2
    total = variances.sum()
    if total == 0:
        return Estimate(mean, mean, mean)
    freedom = total**2 / np.sum(variances**2 / (num_seeds - 1))
    half_width = stdtrit(freedom, 0.975) * np.sqrt(total)
    return Estimate(mean, mean - half_width, mean + half_width)


def profiles(scores: Mapping[str, np.ndarray], thresholds: np.ndarray) -> dict[str, Estimate]:
    """Return for each method the fraction of its runs with a score above each threshold."""
    return _estimates(scores, lambda x: np.mean(x[..., None] > thresholds, axis=(0, 1)))


def _estimates(scores: Mapping, function: Callable[..., np.ndarray]) -> dict[str, Estimate]:
    library, _ = require()
    state = np.random.get_state()
    np.random.seed(SEED)  # rliable draws from NumPy's global generator, whatever it is given
    try:
        points, intervals = library.get_interval_estimates(dict(scores), function, reps=REPETITIONS)
    finally:
        np.random.set_state(state)
    return {name: Estimate(points[name], *intervals[name]) for name in scores}


def require():
    """Return rliable's `library` and `metrics`; an ImportError says how they are installed."""
    try:
        from rliable import library, metrics
    except ImportError:
        raise ImportError("rliable is not installed: pip install 'frodo-rl[compare]' brings it") from None
    return library, metrics
