"""The model-based statistics against closed forms, brute force and derivatives."""

import numpy as np
import pytest
from mmts_ray.analysis import statistics as st
from mmts_ray.analysis.statistics import gaussian, importance
from mmts_ray.analysis.statistics.budget import rank_limits
from scipy import optimize, stats


def some_points(n=40, seed=0):
    rng = np.random.default_rng(seed)
    u = rng.random((n, 4))
    u[:, 3] = rng.integers(0, 3, n)
    y = np.sin(5 * u[:, 0]) + u[:, 1] + 0.3 * (u[:, 3] == 1) + rng.normal(0, 0.1, n)
    return st.Points(u, y, rng.integers(1, 4, n).astype(float), (False, False, False, True))


@pytest.mark.parametrize("smooth", [True, False])
def test_the_gradient_is_that_of_the_objective(smooth):
    points = some_points()
    gaps = gaussian._gaps(points.u, points.u, points.choice)
    y = (points.y - points.y.mean()) / points.y.std()
    theta = np.random.default_rng(1).normal(-0.5, 0.5, 6)

    def value(t):
        return gaussian.objective(t, gaps, y, points.k, smooth)[0]

    found = gaussian.objective(theta, gaps, y, points.k, smooth)[1]
    assert found == pytest.approx(optimize.approx_fprime(theta, value, 1e-6), abs=1e-4)


@pytest.mark.parametrize("smooth", [True, False])
def test_prediction_and_left_out_residuals_equal_brute_force(smooth):
    points = some_points(25)
    process = st.fit(points, smooth=smooth)
    mean, residual = process.left_out()
    for out in (0, 7, 24):
        kept = np.arange(25) != out
        kernel = gaussian._cross(process, points.u)
        noise = np.diag(np.exp(process.theta[-1]) / points.k + gaussian.JITTER)
        y = (points.y - points.y.mean()) / points.y.std()
        weights = np.linalg.solve((kernel + noise)[np.ix_(kept, kept)], kernel[kept, out])
        predicted = weights @ y[kept]
        variance = kernel[out, out] + noise[out, out] - weights @ kernel[kept, out]
        assert mean[out] == pytest.approx(points.y.mean() + points.y.std() * predicted)
        assert residual[out] == pytest.approx((y[out] - predicted) / np.sqrt(variance), rel=1e-5)


def test_draws_have_the_posteriors_mean_and_covariance():
    process = st.fit(some_points())
    u = np.random.default_rng(3).random((5, 4))
    u[:, 3] = 1
    mean, covariance = process.joint(u)
    drawn = process.draws(u, np.random.default_rng(4).standard_normal((40_000, 5)))
    assert drawn.mean(0) == pytest.approx(mean, abs=0.005)
    assert np.cov(drawn.T) == pytest.approx(covariance, abs=0.05 * covariance.max())
    assert process.mean(u) == pytest.approx(mean)


def test_a_fit_repeats_to_the_last_bit():
    first, second = (st.fit(some_points()).theta for _ in range(2))
    assert first.tobytes() == second.tobytes()


def test_holm_is_the_step_down_bound():
    p = np.array([0.01, 0.04, 0.03, 0.20])
    assert st.holm(p) == pytest.approx([0.04, 0.09, 0.09, 0.20])
    assert st.holm(np.array([0.6, 0.7])) == pytest.approx([1.0, 1.0])


def test_columns_of_a_parameter_are_orthonormal_centred_and_as_many_as_the_data_tell_apart():
    u = np.random.default_rng(0).random(50)
    main, linear = importance.basis(u, False)
    assert main.T @ main == pytest.approx(np.eye(3), abs=1e-9)
    assert main.sum(0) == pytest.approx(np.zeros(3), abs=1e-9)
    assert abs(np.corrcoef(linear[:, 0], u)[0, 1]) == pytest.approx(1)
    assert importance.basis(np.round(u), False)[0].shape == (50, 1)
    assert importance.basis(np.floor(3 * u), True)[0].shape == (50, 2)
    assert importance.basis(np.ones(50), False)[0].shape == (50, 0)


def cut(gain, grid=None, centre=2, feasible=None):
    grid = np.linspace(0, 1, 5) if grid is None else grid
    gain = np.atleast_2d(gain).astype(float)
    return st.Slice(grid, centre, gain, np.ones(len(grid), bool) if feasible is None else np.array(feasible))


def test_a_width_ends_where_the_line_crosses():
    found = st.plateau(cut([-2, -1, 0, -1, -2]), 0.5)
    assert (found.left, found.right, found.width) == pytest.approx((0.375, 0.625, 0.25))
    assert found.gate == "width"
    assert st.plateau(cut([0, 0, 0, 0, 0]), 0.5).width == 1


def test_a_second_hill_counts_for_the_upper_limit_only():
    one = np.tile([-2.0, -2, 0, -2, 0], (200, 1))
    found = st.plateau(cut(one), 0.5)
    assert found.lo == pytest.approx(0.125)
    assert found.hi == pytest.approx(0.5625)
    assert found.gate == "not resolved"


def test_a_width_stops_at_a_cliff():
    found = st.plateau(cut([0, 0, 0, 0, 0], feasible=[True, True, True, False, False]), 0.5)
    assert (found.left, found.right) == (0, 0.5)


def test_the_best_at_an_end_is_counted_per_draw_and_never_over_a_cliff():
    draws = np.array([[0, 0, 0, 0, 1], [0, 0, 0, 0, 1], [1, 0, 0, 0, 0], [0, 0, 0, 1, 0]], dtype=float)
    assert st.chance_at_ends(cut(draws)) == (0.25, 0.5)
    assert st.chance_at_ends(cut(draws, feasible=[True, True, True, True, False]))[1] == 0


def test_near_levels_of_a_choice():
    found = st.near_levels(cut([[0, -1, 0], [0, -1, -1]], np.arange(3.0), 0), 0.5)
    assert found == pytest.approx([1, 0, 0.5])


def test_slices_are_zero_at_the_winner():
    points = some_points()
    found = st.slices(st.fit(points), points.u[3], 1, lambda u: np.ones(len(u), bool), np.random.default_rng(0))
    for j, one in enumerate(found):
        assert one.grid[one.centre] == pytest.approx(points.u[3, j])
        assert not one.gain[:, one.centre].any()
    assert list(found[3].grid) == [0, 1, 2]


def test_feasibility_is_the_vote_of_the_nearest_trials():
    u = np.column_stack([np.linspace(0, 1, 40), np.full(40, 0.5)])
    feasible = st.feasibility(u, u[:, 0] > 0.6)
    assert list(feasible(np.array([[0.2, 0.5], [0.9, 0.5]]))) == [True, False]
    assert st.feasibility(u, np.zeros(40, bool))(u).all()


def test_an_interaction_is_found_with_its_size_and_sign():
    rng = np.random.default_rng(0)
    u = rng.random((300, 4))
    y = u[:, 0] ** 2 - 0.9 * (2 * u[:, 0] - 1) * (2 * u[:, 2] - 1) + rng.normal(0, 0.1, 300)
    found = st.pairs(u, y, (False,) * 4, np.ones((300, 4), bool))
    chosen = [p for p in found if p.step]
    assert [(p.first, p.second) for p in chosen] == [(0, 2)]
    assert chosen[0].slope == pytest.approx(-0.9, abs=0.05)
    assert chosen[0].lo <= 0.3 <= chosen[0].hi
    assert len(found) == 6


def test_pairs_are_refused_when_there_are_more_effects_than_data():
    rng = np.random.default_rng(0)
    assert st.pairs(rng.random((24, 6)), rng.random(24), (False,) * 6, np.ones((24, 6), bool)) is None


def test_a_pair_with_a_choice_of_three_values_is_not_looked_for_and_one_of_two_is():
    rng = np.random.default_rng(0)
    u = np.column_stack([rng.random(100), rng.integers(0, 3, 100), rng.integers(0, 2, 100)])
    y = (2 * u[:, 0] - 1) * (2 * u[:, 2] - 1) + rng.normal(0, 0.1, 100)
    found = st.pairs(u, y, (False, True, True), np.ones((100, 3), bool))
    assert [(p.first, p.second) for p in found] == [(0, 2)]
    assert found[0].step == 1


def test_a_parameter_used_by_some_is_zero_elsewhere():
    rng = np.random.default_rng(0)
    u, on = rng.random((200, 3)), np.ones((200, 3), bool)
    on[:100, 2] = False
    y = np.where(on[:, 2], 1 + (2 * u[:, 0] - 1) * (2 * u[:, 2] - 1), 0) + rng.normal(0, 0.1, 200)
    chosen = [(p.first, p.second) for p in st.pairs(u, y, (False,) * 3, on) if p.step]
    assert chosen == [(0, 2)]


# budgets


def test_the_tuning_curve_is_the_quantile_that_the_best_of_k_passes_half_of_the_time():
    x = np.random.default_rng(0).random(101)
    found = st.tuning_curve(x)
    assert found.median[0] == np.median(x)
    assert found.median[-1] == np.sort(x)[-1]
    assert (np.diff(found.median) >= 0).all()
    assert (found.lo <= found.median).all()
    assert (found.hi >= found.median).all()
    assert np.isinf(found.hi[11:]).all()


def test_lost_trials_pull_the_curve_down():
    x = np.random.default_rng(0).random(30)
    found = st.tuning_curve(x, lost=40)
    assert found.median[0] == -np.inf
    assert np.isfinite(found.median[-1])
    assert (found.median <= st.tuning_curve(x).median[-1]).all()


@pytest.mark.parametrize("n", [24, 100])
def test_the_band_holds_for_all_budgets_together(n):
    rng, sweeps, covered = np.random.default_rng(20_000 + n), 600, 0
    truth = 0.5 ** (1 / np.arange(1, n + 1))
    for _ in range(sweeps):
        found = st.tuning_curve(rng.random(n))
        covered += bool((found.lo <= truth).all() and (found.hi >= truth).all())
    assert 0.95 <= covered / sweeps <= 0.995


def test_limits_of_the_ranks_are_wider_than_pointwise_and_narrower_than_dkw():
    low, high = rank_limits(100)
    i = np.arange(1, 101)
    assert (low < stats.beta.ppf(0.025, i, 101 - i)).all()
    dkw = np.sqrt(np.log(2 / 0.05) / 200)
    assert (high - low)[75] < 2 * dkw


# variance


def test_one_way_components_equal_the_textbook():
    y = np.random.default_rng(0).normal(0, 1, (6, 1)) + np.random.default_rng(1).normal(0, 0.5, (6, 4))
    found = st.split(y, shared=False)
    ratio = stats.f_oneway(*y).statistic
    assert found.share.mean == pytest.approx((ratio - 1) / (ratio + 3))
    assert found.share.lo == pytest.approx(max(0, (ratio / stats.f.ppf(0.975, 5, 18) - 1) / (ratio / stats.f.ppf(0.975, 5, 18) + 3)))  # fmt: skip # noqa: E501
    assert found.seed_sd.mean == pytest.approx(np.sqrt(y.var(axis=1, ddof=1).mean()))


def test_agreement_equals_the_published_example():
    # Shrout and Fleiss (1979), six targets and four judges: ICC(2,1) = .29 [.02, .76]
    y = np.array([[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]], dtype=float)
    found = st.split(y, shared=True)
    assert found.share.mean == pytest.approx(0.2898, abs=1e-4)
    assert (found.share.lo, found.share.hi) == pytest.approx((0.0188, 0.7611), abs=1e-3)


def test_identical_runs_have_no_seed_variance():
    found = st.split(np.tile(np.arange(6.0)[:, None], (1, 3)), shared=True)
    assert (found.share.mean, found.seed_sd.mean, found.seed_share) == (1, 0, 0)


def test_the_clear_winner_comes_first_again_and_equals_share():
    rng = np.random.default_rng(0)
    y = np.array([[0.50] * 3, [0.30] * 3, [0.30] * 3])
    assert st.chance_of_first(y, 0.01, 6, 1, rng)[0] == 1
    assert st.chance_of_first(y, 0.01, 6, -1, rng) == pytest.approx([0, 0.5, 0.5], abs=0.03)


@pytest.mark.parametrize("correlation", [0.0, 0.5])
@pytest.mark.parametrize(("rows", "seeds"), [(6, 3), (10, 5)])
def test_share_and_seed_sd_cover_whether_or_not_seeds_act_alike(rows, seeds, correlation):
    rng, sweeps, hits, hits_sd = np.random.default_rng(30_000 + rows), 1000, 0, 0
    sds = 0.012 * np.linspace(0.8, 1.2, rows)  # noise that depends on the configuration
    sd, between = np.sqrt((sds**2).mean()), 0.018
    for _ in range(sweeps):
        noise = np.sqrt(correlation) * rng.standard_normal(seeds) + np.sqrt(1 - correlation) * rng.standard_normal(
            (rows, seeds)
        )
        found = st.split(rng.normal(0, between, (rows, 1)) + sds[:, None] * noise, shared=True)
        hits += found.share.lo <= between**2 / (between**2 + sd**2) <= found.share.hi
        hits_sd += found.seed_sd.lo <= sd <= found.seed_sd.hi
    assert 0.91 <= hits / sweeps <= 0.98
    assert 0.89 <= hits_sd / sweeps <= 0.985


# rank correlation


def test_the_rank_correlation_of_random_controls_covers():
    from simulator import Truth

    truth, rng = Truth(), np.random.default_rng(40_000)
    u = rng.random((60_000, 6))
    u = u[rng.random(len(u)) > truth.diverges(u)]
    rungs = truth.rungs(u, rng)
    true = stats.spearmanr(rungs[:, 0], rungs[:, 2]).statistic
    covered, kept = 0, []
    for _ in range(800):
        pick = rng.choice(len(u), 20, replace=False)
        found = st.rank_correlation(rungs[pick, 0], rungs[pick, 2])
        covered += found.lo <= true <= found.hi
        pick = rng.choice(len(u), 100, replace=False)
        survivors = pick[np.argsort(-rungs[pick, 0])[:33]]
        kept.append(st.rank_correlation(rungs[survivors, 0], rungs[survivors, 2]).mean)
    assert 0.92 <= covered / 800 <= 0.975
    assert np.mean(kept) < true - 0.1  # why survivors are not used
