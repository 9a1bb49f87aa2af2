"""Kernels: gradients by finite differences, hazards of float32 and of masks, against closed forms in float64."""

import itertools
import math

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn.functional import normalize

from mmts_ray import kernels
from mmts_ray.kernels.angles import MIN_SINE, AngularShift, turn_

BATCH, WIDTH = 5, 4


def rows(seed, *shape, dtype=torch.float64):
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype), dim=-1)


def batch(seed=0, size=BATCH, width=WIDTH):
    """Image rows, text rows near them, and a temperature per pair, all asking for gradients."""
    image_BD = rows(seed, size, width)
    text_BD = normalize(image_BD + 0.8 * rows(seed + 1, size, width), dim=1)
    temperature_B = torch.linspace(0.2, 0.6, size, dtype=torch.float64)
    return [x.clone().requires_grad_() for x in (image_BD, text_BD, temperature_B)]


@pytest.mark.parametrize("directions", ["both", "image_to_text", "text_to_image"])
@pytest.mark.parametrize(
    ("r_mix", "mode"), [(0.0, "weighted"), (0.4, "weighted"), (0.4, "replace"), (1.0, "weighted"), (1.0, "replace")]
)
@pytest.mark.parametrize(("margin", "edge"), [(0.0, "gate"), (0.7, "gate"), (0.7, "floor")])
@pytest.mark.parametrize("masked", [False, True])
def test_softmax_gradients_are_exact(directions, r_mix, mode, margin, edge, masked):
    def loss(image_BD, text_BD, temperature_B):
        return kernels.softmax_loss(
            image_BD,
            text_BD,
            temperature_B,
            directions=directions,
            r_mix=r_mix,
            generator=torch.Generator().manual_seed(5) if mode == "replace" else None,
            angular_margin=margin,
            angle_edge=edge,
            teacher_BE=rows(9, BATCH, 3),
            filter_threshold=0.6 if masked else None,
            ids_B=torch.tensor([0, 1, 2, 0, 3]) if masked else None,
        )[0]

    assert gradcheck(loss, batch())


def test_symmetric_cross_entropy_is_the_plain_softmax_loss():
    image_BD, text_BD, temperature_B = batch()
    drop_BB = kernels.same_id(torch.tensor([0, 1, 0, 2, 3]))
    ours = kernels.symmetric_cross_entropy(image_BD @ text_BD.T, temperature_B, drop_BB=drop_BB)
    whole, _ = kernels.softmax_loss(image_BD, text_BD, temperature_B, ids_B=torch.tensor([0, 1, 0, 2, 3]))
    assert ours.item() == whole.item()


def test_gram_has_the_gradient_of_the_product():
    x_BD = batch()[0]
    assert gradcheck(kernels.gram, [x_BD])
    torch.testing.assert_close(kernels.gram(x_BD), x_BD @ x_BD.T, rtol=0, atol=0)


def turned(s_BB, d_BB, gate):
    return AngularShift.apply(s_BB, d_BB.cos(), d_BB.sin(), gate)


@pytest.mark.parametrize("margin", [0.05, 0.125, 1.5])
@pytest.mark.parametrize("gated", [True, False])
def test_angular_shift_is_the_cosine_of_the_smaller_angle(margin, gated):
    s_BB = torch.linspace(-0.999, 0.999, 49, dtype=torch.float64).reshape(7, 7).requires_grad_()
    d_BB = margin * torch.rand(7, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2
    theta_BB = torch.acos(s_BB)
    if gated:
        expected_BB = torch.where(theta_BB > margin, torch.cos(theta_BB - d_BB), s_BB)
    else:
        expected_BB = torch.cos((theta_BB - d_BB).clamp(min=0))
    eye_BB = torch.eye(7, dtype=torch.bool)
    expected_BB = torch.where(eye_BB, s_BB, expected_BB)
    actual_BB = turned(s_BB, d_BB, math.cos(margin) if gated else None)
    torch.testing.assert_close(actual_BB, expected_BB, rtol=0, atol=1e-12)
    weight_BB = torch.randn(7, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (expected_grad,) = torch.autograd.grad((expected_BB * weight_BB).sum(), s_BB)
    (actual_grad,) = torch.autograd.grad((actual_BB * weight_BB).sum(), s_BB)
    torch.testing.assert_close(actual_grad, expected_grad, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gated", [True, False])
def test_angular_shift_is_finite_and_bounded_at_saturated_cosines(dtype, gated):
    edges = torch.tensor([1.0, -1.0, 1 + 1e-7, -1 - 1e-7, 1 - 1e-7, -1 + 1e-7, 0.0, 0.5, -0.5], dtype=dtype)
    s_BB = edges.repeat(9, 1).requires_grad_()
    d_BB = torch.full((9, 9), 0.15, dtype=dtype)
    out_BB = turned(s_BB, d_BB, math.cos(0.15) if gated else None)
    (grad_BB,) = torch.autograd.grad(out_BB.sum(), s_BB)
    assert torch.isfinite(out_BB).all()
    assert torch.isfinite(grad_BB).all()
    assert out_BB.abs().max() <= 1 + 1e-6
    assert grad_BB.abs().max() <= math.sin(0.15) / MIN_SINE + 1
    assert torch.equal(grad_BB.diagonal(), torch.ones(9, dtype=dtype))
    # at -1 the sine stands at its lower bound, a constant: what is left of the slope is cos d
    torch.testing.assert_close(grad_BB[2:, 1], torch.full((7,), math.cos(0.15), dtype=dtype))


def test_two_edge_rules_differ_only_within_the_margin():
    s_BB = torch.linspace(-1, 1, 100, dtype=torch.float64).reshape(10, 10)
    d_BB = torch.full((10, 10), 0.3, dtype=torch.float64)
    gate_BB, floor_BB = turned(s_BB, d_BB, math.cos(0.3)), turned(s_BB, d_BB, None)
    near_BB = s_BB > math.cos(0.3)
    assert torch.equal(gate_BB[~near_BB], floor_BB[~near_BB])
    off_BB = near_BB & ~torch.eye(10, dtype=torch.bool)
    assert torch.equal(gate_BB[off_BB], s_BB[off_BB])
    assert (floor_BB[off_BB] == 1).all()


def test_mix_masks_spare_the_diagonal_and_come_from_the_generator():
    def draw(seed):
        return kernels.mix_masks(64, 0.3, torch.Generator().manual_seed(seed))

    picks_2BB = draw(0)
    assert picks_2BB.shape == (2, 64, 64)
    assert set(picks_2BB.unique().tolist()) == {0.0, 1.0}
    assert picks_2BB.diagonal(dim1=1, dim2=2).sum() == 0
    # 8064 draws of chance 0.3 have a standard deviation of 41
    assert abs(picks_2BB.sum().item() - 0.3 * 2 * 64 * 63) < 5 * 41
    assert torch.equal(picks_2BB, draw(0))
    assert not torch.equal(picks_2BB, draw(1))
    assert not torch.equal(picks_2BB[0], picks_2BB[1])
    everything_2BB = kernels.mix_masks(8, 1.0, torch.Generator().manual_seed(0))
    assert everything_2BB.sum() == 2 * 8 * 7


def removed_by_hand(image_BD, text_BD, temperature_B, drop_BB):
    """The softmax loss from candidate lists in which dropped pairs do not appear at all."""
    s_BB = image_BD @ text_BD.T
    total = 0.0
    for i in range(len(s_BB)):
        for row, dropped in ((s_BB[i], drop_BB[i]), (s_BB[:, i], drop_BB[:, i])):
            kept = [row[j] / temperature_B[i] for j in range(len(s_BB)) if not dropped[j]]
            total = total + torch.logsumexp(torch.stack(kept), 0) - s_BB[i, i] / temperature_B[i]
    return total / (2 * len(s_BB))


def test_masked_pairs_leave_every_gradient_as_if_they_were_not_there():
    # https://github.com/NVIDIA-NeMo/Automodel/issues/3850: -inf before the division made the temperature's gradient NaN
    leaves = batch(size=6)
    teacher_BE = rows(3, 6, 3)
    drop_BB = (teacher_BE @ teacher_BE.T > 0.1).fill_diagonal_(False)
    assert drop_BB.any()
    expected = torch.autograd.grad(removed_by_hand(*leaves, drop_BB), leaves)
    loss, _ = kernels.softmax_loss(*leaves, teacher_BE=teacher_BE, filter_threshold=0.1)
    for actual, reference in zip(torch.autograd.grad(loss, leaves), expected):
        torch.testing.assert_close(actual, reference, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("r_mix", "mode"), [(0.0, "weighted"), (0.5, "weighted"), (0.5, "replace")])
def test_without_negatives_loss_and_gradients_are_exactly_zero(dtype, r_mix, mode):
    leaves = [x.detach().to(dtype).requires_grad_() for x in batch()]
    loss, stats = kernels.softmax_loss(
        *leaves,
        r_mix=r_mix,
        generator=torch.Generator().manual_seed(0) if mode == "replace" else None,
        teacher_BE=rows(3, BATCH, 3, dtype=dtype),
        filter_threshold=-1.1,
        with_stats=True,
    )
    assert loss.item() == 0
    assert stats["filtered_share"].item() == 1
    for grad in torch.autograd.grad(loss, leaves):
        assert torch.count_nonzero(grad) == 0


def test_small_temperatures_neither_overflow_nor_underflow_in_float32():
    image_BD = rows(0, 32, 16)
    leaves = [image_BD, -image_BD + 0.1 * rows(1, 32, 16), torch.linspace(0.001, 0.02, 32, dtype=torch.float64)]
    results = {}
    for dtype in (torch.float32, torch.float64):
        own = [x.to(dtype).requires_grad_() for x in leaves]
        loss, _ = kernels.softmax_loss(*own)
        results[dtype] = (loss, *torch.autograd.grad(loss, own))
    # the positives are the worst candidates here, so losses are of the order of 1/temperature
    assert results[torch.float64][0] > 100
    for single, double, tolerance in zip(results[torch.float32], results[torch.float64], (1e-5, 1e-5, 1e-5, 1e-4)):
        assert torch.isfinite(single).all()
        assert (single - double).abs().max() <= tolerance * double.abs().max()


def test_a_masked_maximum_does_not_underflow_the_rest():
    """Rows whose best candidate, far above the others at this temperature, is masked."""
    image_BD = rows(0, 8, 64, dtype=torch.float32)
    text_BD = -image_BD
    text_BD[1::2] = image_BD[::2]  # the texts of odd pairs are the images of even ones
    ids_B = torch.arange(8) // 2
    temperature_B = torch.full((8,), 0.004)
    loss, _ = kernels.softmax_loss(image_BD, text_BD, temperature_B, ids_B=ids_B)
    double, _ = kernels.softmax_loss(image_BD.double(), text_BD.double(), temperature_B.double(), ids_B=ids_B)
    assert torch.isfinite(loss)
    assert loss.item() == pytest.approx(double.item(), rel=1e-5)


def test_an_own_cosine_is_no_intra_modal_negative():
    """With r_mix -> 1 and orthogonal images the only candidates have cosine 0: an own cosine of 1 would dominate."""
    image_BD = torch.eye(4, dtype=torch.float64)
    temperature_B = torch.full((4,), 0.01, dtype=torch.float64)
    for r_mix in (0.999999, 1.0):
        loss, _ = kernels.softmax_loss(image_BD, image_BD, temperature_B, r_mix=r_mix)
        assert loss.item() == pytest.approx(math.log1p(3 * math.exp(-100)), abs=1e-12)


def test_negatives_of_weight_zero_do_not_underflow_the_others():
    """Only intra-modal negatives, all at cosine 0, while the text of another pair is the anchor's exact copy."""
    image_BD = torch.eye(8)
    text_BD = image_BD.roll(1, dims=0)
    loss, _ = kernels.softmax_loss(image_BD, text_BD, torch.full((8,), 0.004), r_mix=1.0)
    assert loss.item() == pytest.approx(math.log(8), rel=1e-6)


def test_a_pair_exactly_at_the_threshold_is_kept():
    image_BD, text_BD, temperature_B = batch()
    teacher_BE = torch.eye(BATCH, dtype=torch.float64)
    for threshold, share in ((0.0, 0.0), (-1e-9, 1.0)):
        _, stats = kernels.softmax_loss(
            image_BD, text_BD, temperature_B, teacher_BE=teacher_BE, filter_threshold=threshold, with_stats=True
        )
        assert stats["filtered_share"].item() == share


@pytest.mark.parametrize("widest", [0.5, 2.5])
def test_hinge_gradients_are_exact_and_its_share_counts_active_terms(widest):
    image_BD, text_BD, _ = batch()
    margin_B = torch.linspace(0.2 * widest, widest, BATCH, dtype=torch.float64)
    for drop_BB in (None, kernels.same_id(torch.tensor([0, 1, 0, 2, 3]))):
        assert gradcheck(lambda u, w, d=drop_BB: kernels.hinge_loss(u, w, margin_B, drop_BB=d)[0], [image_BD, text_BD])
        loss, active = kernels.hinge_loss(image_BD, text_BD, margin_B, drop_BB=drop_BB)
        s_BB = image_BD @ text_BD.T
        terms = [
            margin_B[i] - s_BB[i, i] + cosine
            for i, j in itertools.permutations(range(BATCH), 2)
            if drop_BB is None or not drop_BB[i, j]
            for cosine in (s_BB[i, j], s_BB[j, i])
        ]
        assert loss.item() == pytest.approx(sum(max(0.0, t.item()) for t in terms) / len(terms), abs=1e-15)
        assert active.item() == pytest.approx(sum(t.item() > 0 for t in terms) / len(terms), abs=1e-15)


def test_sigmoid_gradients_are_exact_with_learnable_temperature_and_bias():
    image_BD, text_BD, temperature_B = batch()
    bias = torch.tensor(-2.0, dtype=torch.float64, requires_grad=True)
    one = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    drop_BB = kernels.same_id(torch.tensor([0, 1, 0, 2, 3]))
    for temperature in (one, temperature_B):
        for dropped in (None, drop_BB):
            assert gradcheck(
                lambda u, w, t, b, d=dropped: kernels.sigmoid_loss(u, w, t, b, drop_BB=d),
                [image_BD, text_BD, temperature, bias],
            )


def test_log_potential_is_the_log_mean_over_kept_pairs():
    image_BD, text_BD, _ = batch()
    drop_BB = kernels.same_id(torch.tensor([0, 1, 0, 2, 3]))
    for dropped in (torch.zeros_like(drop_BB), drop_BB):
        kept = [
            math.exp(-2 * (image_BD[i] - text_BD[j]).square().sum().item())
            for i, j in itertools.permutations(range(BATCH), 2)
            if not dropped[i, j]
        ]
        actual = kernels.log_potential(image_BD @ text_BD.T, drop_BB=dropped)
        assert actual.item() == pytest.approx(math.log(sum(kept) / len(kept)), abs=1e-14)
        assert gradcheck(
            lambda s, d=dropped: kernels.log_potential(s, drop_BB=d), [(image_BD @ text_BD.T).detach().requires_grad_()]
        )
    alone = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
    value = kernels.log_potential(alone)
    (grad,) = torch.autograd.grad(value, alone)
    assert (value.item(), grad.item()) == (0, 0)


def test_widening_keeps_the_common_type():
    half, single, double = (torch.ones(2, 2, dtype=t) for t in (torch.float16, torch.float32, torch.float64))
    brain = torch.ones(2, 2, dtype=torch.bfloat16)
    assert [x.dtype for x in kernels.at_least_float32(half, brain)] == [torch.float32] * 2
    assert [x.dtype for x in kernels.at_least_float32(half, double)] == [torch.float64] * 2
    assert kernels.at_least_float32(single)[0] is single


def test_a_second_backward_gives_the_same_gradients():
    image_BD, text_BD, temperature_B = batch()
    leaves = [image_BD, text_BD, temperature_B]
    loss, _ = kernels.softmax_loss(*leaves, r_mix=0.3, angular_margin=0.2, teacher_BE=rows(2, BATCH, 3))
    hinge, _ = kernels.hinge_loss(image_BD, text_BD, torch.full((BATCH,), 0.2, dtype=torch.float64))
    for value, inputs in ((loss, leaves), (hinge, leaves[:2])):
        first = torch.autograd.grad(value, inputs, retain_graph=True)
        again = torch.autograd.grad(value * 2, inputs)
        for a, b in zip(first, again):
            assert torch.equal(2 * a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gate", [math.cos(0.3), None], ids=["gate", "floor"])
def test_a_tile_is_turned_as_a_whole_matrix_is_saturated_cosines_included(dtype, gate):
    edges = torch.tensor([1.0, -1.0, 1 + 1e-7, -1 - 1e-7, 1 - 1e-7, -1 + 1e-7, 1 - 1e-8], dtype=dtype)
    s_RC = torch.cat([edges, torch.linspace(-1, 1, 33, dtype=dtype)]).repeat(9, 1)
    d_RC = torch.linspace(0, 0.6, 9, dtype=dtype)[:, None].expand_as(s_RC).contiguous()
    # off the diagonal of a larger matrix, which is spared there and unknown to a tile
    whole_BB, angle_BB = torch.zeros(2, 49, 49, dtype=dtype)
    whole_BB[:9, 9:], angle_BB[:9, 9:] = s_RC, d_RC
    whole_BB.requires_grad_()
    turned_BB = turned(whole_BB, angle_BB, gate)
    (slope_BB,) = torch.autograd.grad(turned_BB.sum(), whole_BB)
    tile_RC, slope_RC = s_RC.clone(), torch.empty_like(s_RC)
    spare = torch.empty_like(s_RC), torch.empty_like(s_RC)
    turn_(tile_RC, d_RC.cos(), d_RC.sin(), gate, slope_RC, spare)
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(tile_RC, turned_BB[:9, 9:].detach(), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(slope_RC, slope_BB[:9, 9:], rtol=tolerance, atol=tolerance)
    again_RC = s_RC.clone()
    turn_(again_RC, d_RC.cos(), d_RC.sin(), gate, None, spare)
    assert torch.equal(again_RC, tile_RC)
