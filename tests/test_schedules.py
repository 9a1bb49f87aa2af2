"""Schedules against the published code's numbers and against brute force over a whole run."""

import math
from pathlib import Path

import numpy as np
import pytest

from mmts_ray.schedules import SCHEDULES, constant, cosine, cosine_base, from_shifts, group_shift, learnable
from mmts_ray.space import declared

REFERENCE = Path(__file__).parent / "reference"
SIZES_G = np.array([1, 2, 2, 5, 40])


@pytest.mark.parametrize("number", range(5))
def test_base_and_shift_match_the_published_code(number):
    with np.load(REFERENCE / f"mmts_{number}.npz") as vector:
        base = cosine_base(int(vector["step"]), int(vector["period_steps"]), float(vector["alpha"]))
        shift_B = group_shift(
            vector["sample_group_size"],
            vector["group_sizes"],
            shift_min=float(vector["shift_min"]),
            shift_max=float(vector["shift_max"]),
        )
        # The published code takes its cosine in float32.
        np.testing.assert_allclose(base + shift_B, vector["tau"], rtol=0, atol=5e-8)


@pytest.mark.parametrize("number", range(4))
def test_cosine_is_base_plus_shift_in_the_papers_names(number):
    with np.load(REFERENCE / f"mmts_{number}.npz") as vector:
        alpha, period_steps = float(vector["alpha"]), int(vector["period_steps"])
        schedule = cosine(
            5 * period_steps + 4,  # floored to the period
            vector["sample_group_size"],
            vector["group_sizes"],
            alpha=alpha,
            oscillations=5.0,
            **from_shifts(float(vector["shift_min"]), float(vector["shift_max"]), alpha),
        )
        rows_B = np.arange(len(vector["tau"]))
        np.testing.assert_allclose(schedule.at(int(vector["step"]), rows_B), vector["tau"], rtol=0, atol=5e-8)
        assert schedule.derived["period_steps"] == period_steps
        assert schedule.derived["shift_min"] == pytest.approx(float(vector["shift_min"]))
        assert schedule.derived["shift_max"] == pytest.approx(float(vector["shift_max"]))
        assert schedule.derived["tau_max"] == pytest.approx(float(vector["shift_max"]) + alpha / 2)


def test_base_starts_high_and_is_lowest_half_a_period_later():
    assert cosine_base(0, 100, 0.08) == pytest.approx(0.04)
    assert cosine_base(25, 100, 0.08) == pytest.approx(0.0, abs=1e-15)
    assert cosine_base(50, 100, 0.08) == pytest.approx(-0.04)
    assert cosine_base(100, 100, 0.08) == pytest.approx(0.04)


def test_defaults_are_the_published_codes_and_the_epic_recipe_is_reachable():
    size_M = np.array([1, 40])
    schedule = cosine(100, size_M, SIZES_G)
    assert schedule.derived["shift_min"] == pytest.approx(0.05)
    assert schedule.derived["shift_max"] == pytest.approx(0.20)
    assert declared(cosine)["alpha"].default == 0.08
    epic = from_shifts(0.17, 0.30, 0.2)
    assert epic == {"tau_min": pytest.approx(0.07), "spread": pytest.approx(0.13)}
    margins = cosine(100, size_M, SIZES_G, alpha=0.2, **epic)
    assert (margins.low, margins.high) == (pytest.approx(0.07), pytest.approx(0.40))


@pytest.mark.parametrize("shift_map", ["linear", "log", "rank"])
@pytest.mark.parametrize("oscillations", [0.5, 1.0, 5.0, 7.3, 100.0])
def test_low_and_high_are_the_extremes_of_the_whole_run(shift_map, oscillations):
    size_M = np.array([0, 1, 2, 5, 40, 40])
    schedule = cosine(
        37, size_M, SIZES_G, tau_min=0.02, alpha=0.3, spread=0.2, oscillations=oscillations, shift_map=shift_map
    )
    every = np.array([schedule.at(step, np.arange(6)) for step in range(37)])
    assert schedule.low == pytest.approx(every.min(), abs=1e-15)
    assert schedule.high == pytest.approx(every.max(), abs=1e-15)
    assert every.min() >= 0.02 - 1e-12
    assert every.max() <= schedule.derived["tau_max"] + 1e-12


@pytest.mark.parametrize("shift_map", ["linear", "log", "rank"])
def test_shift_rises_with_size_from_end_to_end(shift_map):
    sizes = np.array([1, 2, 5, 40])
    shift = group_shift(sizes, SIZES_G, shift_min=0.05, shift_max=0.2, shift_map=shift_map)
    assert shift[0] == pytest.approx(0.05, abs=1e-15)
    assert shift[-1] == pytest.approx(0.2)
    assert np.all(np.diff(shift) > 0)


def test_shift_maps_in_closed_form():
    shift = {m: group_shift(5, SIZES_G, shift_min=0, shift_max=1, shift_map=m) for m in ("linear", "log", "rank")}
    assert shift["linear"] == pytest.approx(4 / 39)
    assert shift["log"] == pytest.approx(math.log(5) / math.log(40))
    assert shift["rank"] == pytest.approx(3 / 4)  # three groups are smaller than 5, four smaller than 40


def test_equal_sizes_all_get_the_smallest_shift():
    for shift_map in ("linear", "log", "rank"):
        shift = group_shift(np.array([7, 7]), np.array([7, 7, 7]), shift_min=0.1, shift_max=0.3, shift_map=shift_map)
        np.testing.assert_array_equal(shift, [0.1, 0.1])


def test_unseen_and_empty_groups_count_as_the_smallest():
    for shift_map in ("linear", "log", "rank"):
        shift = group_shift(np.array([0, 3]), np.array([0, 3, 9]), shift_min=0.05, shift_max=0.2, shift_map=shift_map)
        np.testing.assert_allclose(shift, 0.05, rtol=0, atol=1e-15)


def test_shift_refuses_what_it_cannot_place():
    with pytest.raises(ValueError, match="no group has a training sample"):
        group_shift(np.array([1]), np.array([0]), shift_min=0.1, shift_max=0.2)
    with pytest.raises(ValueError, match="legal is one of linear, log, rank"):
        group_shift(np.array([1]), SIZES_G, shift_min=0.1, shift_max=0.2, shift_map="sqrt")


def test_from_shifts_names_the_three_numbers_when_the_temperature_would_turn_negative():
    with pytest.raises(ValueError, match=r"shift_min 0\.05, shift_max 0\.2, alpha 0\.2: .*= -0\.05, must be above 0"):
        from_shifts(0.05, 0.20, 0.2)
    with pytest.raises(ValueError, match="must be above 0"):
        from_shifts(0.1, 0.20, 0.2)
    with pytest.raises(ValueError, match="shift_max must be at least shift_min"):
        from_shifts(0.2, 0.1, 0.0)


def test_ablations_are_reachable():
    size_M = np.array([1, 40])
    plain = cosine(10, size_M, SIZES_G, tau_min=0.05, alpha=0, spread=0)
    assert [plain.at(step, np.array([0, 1])).tolist() for step in (0, 7)] == [[0.05, 0.05]] * 2
    assert plain.low == plain.high == 0.05
    shift_only = cosine(10, size_M, SIZES_G, tau_min=0.05, alpha=0, spread=0.1)
    np.testing.assert_allclose(shift_only.at(3, np.array([0, 1])), [0.05, 0.15])
    one_temperature = cosine(10, size_M, SIZES_G, tau_min=0.05, alpha=0.1, spread=0, oscillations=1.0)
    np.testing.assert_allclose(one_temperature.at(0, np.array([0, 1])), [0.15, 0.15])
    np.testing.assert_allclose(one_temperature.at(5, np.array([0, 1])), [0.05, 0.05])


def test_a_run_shorter_than_its_oscillations_still_has_a_schedule():
    schedule = cosine(3, np.array([1, 40]), SIZES_G, oscillations=5.0)
    assert schedule.derived["period_steps"] == 1
    assert np.isfinite(schedule.at(2, np.array([0, 1]))).all()
    with pytest.raises(ValueError, match="legal is at least 1"):
        cosine(0, np.array([1]), SIZES_G)


def test_constant_and_learnable():
    fixed = constant(10, np.array([1]), SIZES_G, value=0.07)
    assert fixed.at(9, np.array([0])) == fixed.low == fixed.high == 0.07
    assert not fixed.learnable
    learned = learnable(10, np.array([1]), SIZES_G)
    assert learned.learnable
    assert (learned.at(0, np.array([0])), learned.low, learned.high) == (0.07, 0.01, 1.0)
    with pytest.raises(ValueError, match=r"init 2 is outside \[low, high\] = \[0\.01, 1\]"):
        learnable(10, np.array([1]), SIZES_G, init=2.0)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_default_is_legal_and_described(name):
    parameters = declared(SCHEDULES[name])
    assert parameters
    for parameter in parameters.values():
        assert parameter.domain.parse(parameter.default) == parameter.default
        assert parameter.domain.doc
