"""Whole sweeps with a known truth: do the panels' statistics err as rarely as docs/statistics.md says?

The number of sweeps is fixed; MMTS_RAY_SWEEPS multiplies it (a nightly run takes 10). Bounds are what that many sweeps
can tell: a rate that holds fails a test once in a few hundred runs with other seeds, and never with these.
"""

import os

import numpy as np
import pandas as pd
import pytest
import rates
from mmts_ray.analysis import statistics as st
from scipy import stats
from simulator import Truth, random_sweep

pytestmark = pytest.mark.slow
TIMES = int(os.environ.get("MMTS_RAY_SWEEPS", "1"))
FIRST = 880_000  # seeds of no figure in the docs
DEAD, MARGIN, MIX = 5, 3, 4


def rows(function, sweeps, *arguments, **options):
    found = []
    for sweep in range(TIMES * sweeps):
        found += function(*arguments, FIRST + sweep, **options)
    return pd.DataFrame(found)


def no_more_often(hits, n, rate):
    """Whether `hits` of `n` are compatible with a rate of at most `rate`."""
    return stats.binom.sf(hits - 1, n, rate) > 0.005


@pytest.mark.parametrize("seeds", [3, 5])
def test_verdict_intervals_cover(seeds):
    truth, rng, covered, gained, sweeps = Truth(), np.random.default_rng(FIRST), 0, 0, 1000
    u = np.array([0.55, 0.5, 0.4, 0.2, 0.3, 0.5])
    score, sd = float(truth.score(u)[0]), float(truth.seed_sd(u)[0])
    apart = score - float(truth.score(rates.DEFAULT)[0])
    for _ in range(sweeps):
        shared = rng.standard_normal(seeds)
        arms = []
        for mean, spread in ((score, sd), (score - apart, float(truth.seed_sd(rates.DEFAULT)[0]))):
            noise = spread * (np.sqrt(0.5) * shared + np.sqrt(0.5) * rng.standard_normal(seeds))
            arms.append(pd.Series(np.round(347 * (mean + noise)) / 347, index=range(seeds)))
        level, gain = st.t_interval(arms[0]), st.difference(*arms)
        covered += level.lo <= score <= level.hi
        gained += gain.lo <= apart <= gain.hi
    assert 0.92 <= covered / sweeps <= 0.98
    assert 0.92 <= gained / sweeps <= 0.98


@pytest.mark.parametrize(
    ("sampler", "form", "n", "sweeps"),
    [("random", "additive", 50, 60), ("random", "multiplicative", 100, 40), ("tpe", "additive", 70, 30)],
)
def test_a_dead_parameter_is_seldom_important(sampler, form, n, sweeps):
    found = rows(rates.importance, sweeps, Truth(form=form), sampler, n, only=(DEAD,))
    assert no_more_often((found["p"] <= 0.05).sum(), len(found), 0.05)


def test_parameters_that_matter_are_found():
    found = rows(rates.importance, 10, Truth(), "random", 100).groupby("parameter")
    power = found["holm"].agg(lambda p: (p <= 0.05).mean())
    assert power[["lr", "tau"]].min() == 1
    assert power[["wd", "margin"]].mean() >= 0.7


def widths(sweeps, truth, sampler, n, rings):
    frame = rows(rates.plateau, sweeps, truth, sampler, n, rings=rings)
    live = frame[frame["parameter"] != "dead"]
    told = live[live["gate"].isin(["width", "width and interval"])]
    close = ((told["width"] / told["truth"] - 1).abs() <= 0.15).mean()
    covered = told["truth"].between(told["lo"] - 1e-9, told["hi"] + 1e-9).mean()
    return len(told) / len(live), close, covered


def test_widths_that_pass_the_gate_are_right_under_random_search():
    told, close, covered = widths(30, Truth(), "random", 200, rings=5)
    assert told >= 0.5
    assert close >= 0.85
    assert covered >= 0.92


def test_rings_make_widths_right_under_an_adaptive_sampler():
    told, close, covered = widths(20, Truth(), "tpe", 80, rings=5)
    assert told >= 0.2
    assert close >= 0.75
    assert covered >= 0.85


def test_widths_stand_another_form_of_response_than_the_models():
    _, close, covered = widths(24, Truth(form="multiplicative"), "random", 100, rings=5)
    assert close >= 0.8
    assert covered >= 0.85


def test_an_optimum_at_the_bound_is_seen_and_one_inside_is_not():
    at = rows(rates.bounds, 20, Truth(m=0.06), "random", 100).groupby("parameter")["touches"].mean()
    assert at["margin"] >= 0.8
    inside = rows(rates.bounds, 20, Truth(m=0.06, mopt=0.3), "random", 100)
    touched = inside.groupby("parameter")["touches"].sum()
    n = len(inside) // 6
    assert no_more_often(touched["margin"], n, 0.02)
    assert no_more_often(touched["dead"], n, 0.02)


@pytest.mark.parametrize("c", [0.0, 0.12, 0.24])
def test_interactions_are_found_and_not_invented(c):
    found = rows(rates.interactions, 150, Truth(c=c), "random", 100)
    assert no_more_often(found["false"].sum(), len(found), 0.06)
    if c:
        assert found["found"].mean() >= (0.85 if c < 0.2 else 0.99)


@pytest.mark.parametrize("n", [50, 100])
def test_any_setting_will_do_is_seldom_said_where_one_in_twenty_loses_more_than_delta(n):
    said = pd.concat([rows(rates.flat, 40, *case, n) for case in (("ramp", 1.5), ("product", 2.0), ("six ramps", 2.0))])
    wrong = said[said["wrong"]]
    assert len(wrong) >= 80
    assert no_more_often(wrong["said"].sum(), len(wrong), 0.05)
    assert no_more_often((~said["covered"]).sum(), len(said), 0.05)


def test_any_setting_will_do_is_said_where_nothing_matters():
    assert rows(rates.flat, 30, "nothing", 0.0, 100)["said"].mean() >= 0.25
    assert rows(rates.flat, 30, "nothing", 0.0, 200)["said"].mean() >= 0.55


def test_ties_and_failures_leave_the_band_conservative():
    truth, rng, n, sweeps, covered = Truth(), np.random.default_rng(FIRST), 50, 400, 0
    _, many = random_sweep(truth, 400_000, rng)
    true = np.quantile(np.where(np.isfinite(many), many, 0), 0.5 ** (1 / np.arange(1, n + 1)))
    for _ in range(sweeps):
        _, y = random_sweep(truth, n, rng)
        curve = st.tuning_curve(y[np.isfinite(y)], int((~np.isfinite(y)).sum()))
        covered += bool((curve.lo <= true + 1e-9).all() and (curve.hi >= true - 1e-9).all())
    assert covered / sweeps >= 0.95
