"""Differences over queries and seeds together, and over data sets: closed forms, and coverage with known truth."""

import math

import numpy as np
import pandas as pd
import pytest
from mmts_ray.analysis import statistics as st
from scipy import stats

SWEEPS = 600
SEED = 0.04  # on the probit scale: .014 of recall, what fresh seeds of the default data show


def hits(rng, queries, seeds, means, shared=0.0):
    """0/1 hits of two arms: query difficulty, configuration-query, seed (correlated over arms) and residual effects."""
    difficulty, luck = rng.normal(0, 1.0, queries), rng.normal(0, 1, seeds)
    arms = []
    for mean in means:
        taste = rng.normal(0, 0.35, queries)
        seed = SEED * (math.sqrt(shared) * luck + math.sqrt(1 - shared) * rng.normal(0, 1, seeds))
        arms.append((mean + difficulty + taste + seed[:, None] + rng.normal(0, 0.5, (seeds, queries)) > 0) * 1.0)
    return arms


def truth(means):
    spread = math.sqrt(1.0 + 0.35**2 + SEED**2 + 0.5**2)
    return stats.norm.cdf(means[0] / spread) - stats.norm.cdf(means[1] / spread)


@pytest.mark.parametrize(("queries", "seeds", "shared"), [(30, 3, 0.0), (115, 2, 0.0), (115, 5, 0.5), (347, 3, 0.5)])
@pytest.mark.parametrize("paired", [False, True])
def test_the_crossed_interval_covers_other_queries_and_other_seeds(queries, seeds, shared, paired):
    rng, means = np.random.default_rng(5_000 + queries + seeds), (0.0, -0.15)
    found = [st.crossed_difference(*hits(rng, queries, seeds, means, shared), paired=paired) for _ in range(SWEEPS)]
    covered = np.mean([f.lo <= truth(means) <= f.hi for f in found])
    assert 0.92 <= covered <= 0.985


def test_queries_alone_would_not_cover():
    rng, means, covered, sweeps = np.random.default_rng(6_000), (0.0, -0.15), 0, 1000
    for _ in range(sweeps):
        a, b = hits(rng, 347, 3, means)
        d = a.mean(0) - b.mean(0)
        covered += abs(d.mean() - truth(means)) <= stats.t.ppf(0.975, len(d) - 1) * stats.sem(d)
    assert covered < 0.935 * sweeps


def test_without_seed_effects_the_crossed_error_is_that_of_the_queries():
    a = np.tile(np.array([1.0, 0.0, 1.0, 1.0, 0.0]), (3, 1))
    found = st.crossed_difference(a, np.zeros((3, 5)), paired=True)
    expected = stats.t.interval(0.95, 4, loc=0.6, scale=stats.sem(a[0]))
    assert (found.lo, found.hi) == pytest.approx(expected)
    assert (found.n, found.queries, found.se_seeds) == (3, 5, 0.0)


def test_a_crossed_interval_needs_two_seeds_and_two_queries_and_the_same_queries():
    assert st.crossed_difference(np.ones((1, 5)), np.zeros((1, 5)), paired=False) is None
    assert st.crossed_difference(np.ones((2, 1)), np.zeros((2, 1)), paired=False) is None
    with pytest.raises(ValueError, match="query by query"):
        st.crossed_difference(np.ones((2, 5)), np.zeros((2, 4)), paired=False)
    with pytest.raises(ValueError, match="query by query"):
        st.crossed_difference(np.ones((2, 5)), np.zeros((3, 5)), paired=True)


def test_three_looks_widen_a_crossed_interval():
    a, b = hits(np.random.default_rng(0), 40, 3, (0.2, 0.0))
    one, three = (st.crossed_difference(a, b, paired=False, comparisons=k) for k in (1, 3))
    assert three.half / one.half == pytest.approx(stats.t.ppf(1 - 0.05 / 6, one.df) / stats.t.ppf(0.975, one.df))


def over_datasets(rng, effects, seeds, sd):
    found = []
    for effect in effects:
        a = pd.Series(rng.normal(effect, sd, seeds), index=range(seeds))
        found.append(st.difference(a, pd.Series(rng.normal(0, sd, seeds), index=range(seeds))))
    return found


@pytest.mark.parametrize(("count", "seeds"), [(1, 5), (3, 3), (10, 5)])
def test_the_mean_over_given_data_sets_covers(count, seeds):
    rng = np.random.default_rng(7_000 + count)
    effects, covered = np.linspace(-0.01, 0.03, count), 0
    for _ in range(SWEEPS):
        found = st.mean_over_given(over_datasets(rng, effects, seeds, 0.012))
        covered += found.lo <= effects.mean() <= found.hi
    assert 0.92 <= covered / SWEEPS <= 0.985


def test_a_claim_on_new_data_sets_covers_and_needs_three():
    rng, covered = np.random.default_rng(8_000), 0
    for _ in range(SWEEPS):
        found = st.mean_over_new(over_datasets(rng, rng.normal(0.01, 0.01, 3), 5, 0.012))
        covered += found.lo <= 0.01 <= found.hi
    assert 0.93 <= covered / SWEEPS <= 0.97
    assert st.mean_over_new(over_datasets(rng, [0.0, 0.0], 5, 0.012)) is None


def test_the_average_chance_of_better_covers():
    rng, effects, sd, covered = np.random.default_rng(9_000), np.array([0.0, 0.012, 0.02]), 0.012, 0
    expected = stats.norm.cdf(effects / (math.sqrt(2) * sd)).mean()
    for sweep in range(300):
        found = st.chance_on_average(over_datasets(rng, effects, 5, sd), 1, st.generator(sweep, "test"))
        covered += found.lo <= expected <= found.hi
    assert 0.91 <= covered / 300 <= 0.985
