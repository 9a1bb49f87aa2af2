"""Intervals against closed forms and by simulation with known truth."""

import math

import numpy as np
import pandas as pd
import pytest
from ledger_maker import DEFAULT, diverges, native, score_of, seed_sd, unit
from mmts_ray.analysis import statistics as st
from scipy import stats
from simulator import Truth, top_of


def series(values, first_seed=1000):
    return pd.Series(values, index=range(first_seed, first_seed + len(values)), dtype=float)


def test_t_interval_is_students():
    x = np.array([0.30, 0.32, 0.31, 0.35, 0.29])
    expected = stats.t.interval(0.95, 4, loc=x.mean(), scale=stats.sem(x))
    found = st.t_interval(x)
    assert (found.lo, found.hi) == pytest.approx(expected)
    assert found.n == 5


def test_t_interval_of_one_and_of_none():
    one = st.t_interval(np.array([0.3]))
    assert (one.mean, one.n) == (0.3, 1)
    assert math.isnan(one.lo)
    assert st.t_interval(np.array([])).n == 0


def test_paired_difference_uses_shared_seeds_only():
    a, b = series([0.40, 0.42, 0.41, 0.90]), series([0.30, 0.33, 0.30])
    found = st.difference(a, b)
    delta = np.array([0.10, 0.09, 0.11])
    assert found.paired
    assert found.n == 3
    assert found.mean == pytest.approx(delta.mean())
    assert found.half == pytest.approx(stats.t.ppf(0.975, 2) * delta.std(ddof=1) / math.sqrt(3))


def test_without_shared_seeds_it_is_welchs():
    rng = np.random.default_rng(0)
    a, b = series(rng.normal(0.4, 0.02, 6)), series(rng.normal(0.3, 0.01, 4), first_seed=1)
    expected = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    found = st.difference(a, b)
    assert not found.paired
    assert (found.lo, found.hi) == pytest.approx((expected.low, expected.high))


def test_a_difference_needs_two_runs_each():
    assert st.difference(series([0.4]), series([0.3, 0.2])) is None
    assert st.difference(series([]), series([])) is None


def test_bonferroni_widens():
    a, b = series([0.40, 0.42, 0.41]), series([0.30, 0.33, 0.30])
    one, three = st.difference(a, b), st.difference(a, b, comparisons=3)
    assert three.half / one.half == pytest.approx(stats.t.ppf(1 - 0.05 / 6, 2) / stats.t.ppf(0.975, 2))


@pytest.mark.parametrize("n", [3, 5])
def test_paired_interval_covers_at_its_level(n):
    rng, truth, runs = np.random.default_rng(n), 0.012, 1000
    hits = 0
    for _ in range(runs):
        shared = rng.normal(0, 0.012, n)
        a = series(0.4 + truth + 0.7 * shared + rng.normal(0, 0.009, n))
        b = series(0.4 + 0.7 * shared + rng.normal(0, 0.009, n))
        found = st.difference(a, b)
        hits += found.lo <= truth <= found.hi
    assert 0.93 <= hits / runs <= 0.97


def test_chance_of_better_covers_and_repeats():
    rng, runs, n, d, sd = np.random.default_rng(7), 300, 5, 0.012, 0.015
    truth = stats.norm.cdf(d / sd)
    hits = 0
    for run in range(runs):
        delta = rng.normal(d, sd, n)
        found = st.difference(series(delta), series(np.zeros(n)))
        chance = st.chance_of_better(found, 1, st.generator(run, "test"))
        hits += chance.lo <= truth <= chance.hi
    assert 0.91 <= hits / runs <= 0.985
    again = [st.chance_of_better(found, 1, st.generator(3, "test")) for _ in range(2)]
    assert again[0] == again[1]


def test_chance_of_better_knows_the_direction_and_refuses_no_spread():
    found = st.difference(series([0.5, 0.52, 0.51]), series([0.3, 0.33, 0.30]))
    up = st.chance_of_better(found, 1, st.generator(0, "a"))
    down = st.chance_of_better(found, -1, st.generator(0, "a"))
    assert up.mean > 0.99
    assert down.mean == pytest.approx(1 - up.mean)
    same = st.difference(series([0.5, 0.6]), series([0.4, 0.5]))
    assert st.chance_of_better(st.Difference(0.1, 0.1, 0.1, 2, 0.0, 1, True, 1.0), 1, st.generator(0, "a")) is None
    assert same.mean == pytest.approx(0.1)


def test_streams_of_different_panels_differ():
    a, b = (st.generator(0, name).random(4) for name in ("verdict", "importance"))
    assert not np.allclose(a, b)


def test_seeds_to_resolve_is_the_smallest_that_does():
    sd, half = 0.012, 0.004
    n = st.seeds_to_resolve(sd, half)
    width = [stats.t.ppf(0.975, k - 1) * sd / math.sqrt(k) for k in (n - 1, n)]
    assert width[1] <= half < width[0]


@pytest.mark.parametrize(("hits", "n"), [(0, 10), (11, 120), (6, 6)])
def test_wilson(hits, n):
    expected = stats.binomtest(hits, n).proportion_ci(method="wilson")
    found = st.wilson(hits, n)
    assert (found.lo, found.hi) == pytest.approx((expected.low, expected.high))


def test_rank_correlation():
    rng = np.random.default_rng(0)
    x = rng.random(40)
    y = -x + 0.1 * rng.random(40)
    found = st.rank_correlation(x, y)
    assert found.mean == pytest.approx(stats.spearmanr(x, y).statistic)
    assert found.lo < found.mean < found.hi < 0
    assert st.rank_correlation(x[:9], y[:9]) is None
    assert st.rank_correlation(x, np.ones(40)) is None


def test_pooled_sd_is_the_root_of_the_mean_square_within():
    rng = np.random.default_rng(0)
    groups = [rng.normal(m, 0.5, n) for m, n in ((0, 3), (5, 5), (9, 4))]
    sd, df = st.pooled_sd(groups)
    assert df == 9
    assert sd**2 == pytest.approx(sum((n - 1) * g.var(ddof=1) for g, n in zip(groups, (3, 5, 4))) / 9)
    assert st.pooled_sd([np.array([1.0])])[1] == 0


def test_an_axis_ends_at_the_fence_on_the_worse_side_only():
    scores = np.array([0.30, 0.31, 0.32, 0.33, 0.34, 0.05, 0.60])
    assert st.worst_shown(scores, 1) == pytest.approx(0.305 - 1.5 * 0.03)
    assert st.worst_shown(scores, -1) == pytest.approx(0.335 + 1.5 * 0.03)
    assert st.worst_shown(np.array([0.1, 0.2]), 1) == 0.1


def test_failing_end_finds_a_cliff_and_no_chance_run():
    position = np.linspace(0, 1, 60)
    failed = position > 0.85
    low, high = st.failing_end(position, failed, parameters=5)
    assert low is None
    assert high == pytest.approx(position[~failed].max())
    assert st.failing_end(position, np.zeros(60, dtype=bool), 5) == (None, None)
    assert st.failing_end(position, np.ones(60, dtype=bool), 5) == (None, None)
    rng = np.random.default_rng(1)
    flagged = sum(
        any(end is not None for end in st.failing_end(rng.random(60), rng.random(60) < 0.4, parameters=1))
        for _ in range(500)
    )
    assert flagged <= 10  # allowed: 1 in 100


def test_the_simulator_has_its_published_values():
    best = np.array([0.60617, 0.55, 0.38577, 0.0, 0.35, 0.9])
    assert score_of(best) == pytest.approx(0.41, abs=1e-6)
    assert seed_sd(best) == pytest.approx(0.01012, abs=1e-5)
    assert score_of(np.full(6, 0.5)) == pytest.approx(0.382167, abs=1e-6)
    far = np.array([0.9, 0.4, 0.5, 0.2, 0.1, 0.9])
    assert score_of(far) == pytest.approx(0.336578, abs=1e-6)
    assert seed_sd(far) == pytest.approx(0.017468, abs=1e-6)
    assert diverges(far) == pytest.approx(0.924142, abs=1e-6)
    tops = [top_of(c) for c in (0.12, 0.0, 0.06, 0.24)]
    assert tops == pytest.approx([0.4089961, 0.41, 0.4096040, 0.4069108], abs=1e-6)
    widths = [[Truth().width(best, j, delta) for j in range(5)] for delta in (0.0054, 0.010, 0.015)]
    published = [
        [0.141, 0.409, 0.466, 0.180, 0.675],
        [0.194, 0.451, 0.635, 0.333, 0.810],
        [0.242, 0.487, 0.774, 0.500, 0.912],
    ]
    assert np.array(widths) == pytest.approx(np.array(published), abs=0.003)
    u = np.random.default_rng(0).random((20_000, 6))
    u = u[np.random.default_rng(2).random(20_000) > Truth().diverges(u)]
    rungs = Truth().rungs(u, np.random.default_rng(1))
    for rung, correlation in ((0, 0.920), (1, 0.946)):
        assert stats.spearmanr(rungs[:, rung], rungs[:, 2]).statistic == pytest.approx(correlation, abs=0.01)
    assert unit(native(np.full(6, 0.3))) == pytest.approx(np.full(6, 0.3))
    assert native(unit(DEFAULT)) == pytest.approx(DEFAULT)
