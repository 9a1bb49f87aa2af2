"""Losses and gradients on 1, 2 and 4 workers under DDP are those of one process with the whole batch."""

import pytest
import torch
import workers
from processes import BACKENDS, measured
from workers import BATCH, CASES, SIZES, alone

DEADLINE_S = 240
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


@pytest.fixture(scope="module")
def whole():
    kept = {}

    def get(dtype, device):
        if (dtype, device) not in kept:
            kept[dtype, device] = alone(dtype, device)
        return kept[dtype, device]

    return get


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request):
    return request.param


@pytest.fixture(scope="module", params=sorted(SIZES), ids=lambda count: f"{count} workers")
def found(request, backend, tmp_path_factory):
    """What each worker measured."""
    folder = tmp_path_factory.mktemp("workers")
    return measured(workers.together, request.param, backend, folder, deadline_s=DEADLINE_S)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_loss_and_every_gradient_are_those_of_one_process(found, whole, backend, case, dtype):
    device = "cpu" if backend == "gloo" else "cuda:0"
    expected, tolerance = whole(dtype, device)[case], TOLERANCE[dtype]
    for mine in found:
        actual = mine[str(dtype), *case]
        assert actual["loss"] == pytest.approx(expected["loss"], rel=tolerance, abs=tolerance)
        for name, grad in expected["grads"].items():
            assert (actual["grads"][name] - grad).abs().max() <= tolerance * max(1.0, grad.abs().max()), name
        assert any(grad.abs().max() > 1e-3 for grad in expected["grads"].values())
        assert actual["stats"] == pytest.approx(expected["stats"], rel=1e-5, abs=1e-6)
    assert len({mine[str(dtype), *case]["loss"] for mine in found}) == 1


def test_the_positive_is_the_pair_that_fits_wherever_it_lies(found):
    for mine in found:
        for right, wrong in zip(mine["content"][::2], mine["content"][1::2]):
            assert right == pytest.approx(0, abs=1e-15)
            assert wrong == pytest.approx(1 / 0.02, rel=1e-12)


def test_a_subgroup_counts_its_own_ranks(found):
    for ours, whole in (mine["subgroup"] for mine in found if mine["subgroup"]):
        assert ours == pytest.approx(whole, rel=1e-14)


def test_workers_without_rows_hold_nobody_up(found):
    for ours, whole, shares, grads in (mine["idle"] for mine in found if mine["idle"]):
        assert ours == pytest.approx(whole, rel=1e-14)
        for share, grad in zip(shares, grads):
            torch.testing.assert_close(share, grad, rtol=1e-12, atol=1e-13)


def test_the_mean_over_all_rows_weighs_each_alike(found):
    for mine in found:
        mean, slopes = mine["mean"]
        assert mean == (BATCH - 1) / 2
        # before DDP's mean over workers
        assert slopes == [pytest.approx(len(found) / BATCH)]


@pytest.mark.gpu
def test_nccl_took_part():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: the cases above ran under gloo only")
    assert len(BACKENDS) == 2
