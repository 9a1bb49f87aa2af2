"""A trial of several workers is the trial of one: losses, metrics, parameters, state, for every objective."""

import pytest
import torch
import train_workers
from processes import BACKENDS, measured
from train_workers import CASES, DTYPE

pytestmark = pytest.mark.timeout(400)
DEADLINE_S = 300
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-6}


@pytest.fixture(scope="module")
def alone():
    return {dtype: train_workers.measure(dtype) for dtype in TOLERANCE}


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request):
    return request.param


@pytest.fixture(scope="module", params=sorted(DTYPE), ids=lambda count: f"{count} workers")
def found(request, backend, tmp_path_factory):
    """What each worker has in the end."""
    folder = tmp_path_factory.mktemp("workers")
    return measured(train_workers.together, request.param, backend, folder, deadline_s=DEADLINE_S)


@pytest.mark.parametrize("case", CASES)
def test_losses_metrics_and_parameters_are_those_of_one_worker(found, alone, case):
    dtype = DTYPE[len(found)]
    expected, tolerance = alone[dtype][case], TOLERANCE[dtype]
    assert len(expected["metrics"]) == 3
    for mine in found:
        actual = mine["cases"][case]
        assert actual["steps"] == expected["steps"]
        for now, right in zip(actual["metrics"], expected["metrics"], strict=True):
            assert now == pytest.approx(right, rel=tolerance, abs=tolerance)
            assert {"train_loss", "val_i2t_r1"} <= set(now)
        for now, right in zip(actual["tensors"], expected["tensors"], strict=True):
            torch.testing.assert_close(now, right, rtol=100 * tolerance, atol=100 * tolerance)
    first, *others = (mine["cases"][case] for mine in found)
    for other in others:
        assert other["metrics"] == first["metrics"]
        assert all(torch.equal(a, b) for a, b in zip(other["tensors"], first["tensors"], strict=True))


def test_a_resumed_run_of_several_workers_equals_the_straight_one(found):
    for mine in found:
        for straight, resumed in mine["resumed"]:
            assert len(straight) == 2
            assert resumed == straight


def test_workers_that_come_to_differ_are_told_and_not_averaged_over(found):
    for mine in found:
        assert "workers disagree on " in mine["astray"]
