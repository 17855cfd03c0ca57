"""Scores of several methods in one number, with intervals: rliable, which `pip install 'frodo-rl[compare]'` brings.

Source: Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice".
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

REPETITIONS = 2000  # of the stratified bootstrap
SEED = 0
AGGREGATES = {"IQM": "aggregate_iqm", "median": "aggregate_median", "optimality gap": "aggregate_optimality_gap"}


class Estimate(NamedTuple):
    """A number, or an array of them, and its 95 % interval over stratified bootstraps of the seeds."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def aggregate(name: str, scores: Mapping[str, np.ndarray]) -> dict[str, Estimate]:
    """Return one of AGGREGATES of each method's normalised scores, [num_seeds, num_envs], by method."""
    return _estimates(scores, getattr(require()[1], AGGREGATES[name]))


def improvements(scores: Mapping[str, np.ndarray], over: str) -> dict[str, Estimate]:
    """Return for each other method the probability that it is better than `over`, averaged over environments."""
    _, metrics = require()
    pairs = {name: (own, scores[over]) for name, own in scores.items() if name != over}
    return _estimates(pairs, metrics.probability_of_improvement)


def means(values: Mapping[str, np.ndarray]) -> dict[str, Estimate]:
    """Return the mean of each method's values, [num_seeds, num_envs]."""
    return _estimates(values, np.mean)


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


def _estimates(scores: Mapping, function: Callable[..., Any]) -> dict[str, Estimate]:
    """Return a number, or an array of them, of each method."""
    library, _ = require()
    state = np.random.get_state()
    np.random.seed(SEED)  # rliable draws from NumPy's global generator, whatever it is given
    try:
        of_arrays = lambda *x: np.atleast_1d(function(*x))
        points, intervals = library.get_interval_estimates(dict(scores), of_arrays, reps=REPETITIONS)
    finally:
        np.random.set_state(state)
    found = {name: (points[name], *intervals[name]) for name in scores}
    return {name: Estimate(*(x[0] if len(x) == 1 else x for x in own)) for name, own in found.items()}


def require():
    """Return rliable's `library` and `metrics`; an ImportError says how they are installed."""
    try:
        from rliable import library, metrics
    except ImportError:
        raise ImportError("rliable is not installed: pip install 'frodo-rl[compare]' brings it") from None
    return library, metrics
