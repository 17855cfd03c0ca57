"""Aggregates of scores are rliable's."""

import itertools

import numpy as np
import pytest
import scipy.stats
from rliable import metrics

from experiments.results import statistics


def test_statistics_are_those_of_rliable_and_the_same_every_time():
    rng = np.random.default_rng(0)
    scores = {name: rng.normal(shift, 0.3, (5, 4)) for name, shift in (("a", 0.2), ("b", 0.6))}
    found = {name: statistics.aggregate(name, scores) for name in statistics.AGGREGATES}
    for name in scores:
        assert found["IQM"][name].value == metrics.aggregate_iqm(scores[name])
        assert found["median"][name].value == metrics.aggregate_median(scores[name])
        assert found["optimality gap"][name].value == metrics.aggregate_optimality_gap(scores[name])
        assert all(x[name].low < x[name].value < x[name].high for x in found.values())
    trimmed = np.sort(scores["a"].ravel())[5:-5]  # the middle half of twenty runs
    assert found["IQM"]["a"].value == pytest.approx(trimmed.mean())
    assert statistics.means(scores)["b"].value == pytest.approx(scores["b"].mean())
    (better,) = statistics.improvements(scores, "a").values()
    wins = [np.mean([x > y for x, y in itertools.product(scores["b"][:, e], scores["a"][:, e])]) for e in range(4)]
    assert better.value == pytest.approx(np.mean(wins)) and better.low < better.value <= better.high <= 1
    assert str(found) == str({name: statistics.aggregate(name, scores) for name in statistics.AGGREGATES})


def test_paired_differences_have_a_student_interval():
    rng = np.random.default_rng(1)
    alone = rng.normal(0.3, 1.0, (6, 1))
    found = statistics.mean_difference(alone)
    expected = scipy.stats.ttest_1samp(alone[:, 0], 0).confidence_interval(0.95)
    np.testing.assert_allclose([found.value, found.low, found.high], [alone.mean(), *expected])
    both = rng.normal(0.3, (1.0, 3.0), (6, 2))  # of two means with their own variances, half of the sum
    welch = scipy.stats.ttest_ind(both[:, 0], -both[:, 1], equal_var=False).confidence_interval(0.95)
    np.testing.assert_allclose(statistics.mean_difference(both)[1:], np.array(welch) / 2)
    assert statistics.mean_difference(np.full((3, 2), 0.5)) == (0.5, 0.5, 0.5)
    assert np.isnan(statistics.mean_difference(np.ones((1, 2))).low)
