"""Numbers that break loss code, in every form of every kernel: saturation, duplicates, masks, tiny temperatures."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from mmts_ray import kernels
from mmts_ray.kernels import tiles
from mmts_ray.kernels.angles import MIN_SINE
from mmts_ray.losses import info_nce, max_margin, regularized_info_nce, siglip

FORMS = ("dense", "cached", "stream")
pytestmark = pytest.mark.parametrize("form", FORMS)


@pytest.fixture(autouse=True)
def ragged(monkeypatch):
    monkeypatch.setattr(tiles, "CPU_TILE", (5, 8))


def rows(seed, *shape, dtype=torch.float64):
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).to(dtype)


def grads_of(loss, leaves):
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


def error(single, double):
    """The largest difference, relative to the largest entry; not finite where `single` is not."""
    return ((single - double).abs().max() / double.abs().max()).item()


ALL = {"r_mix": 0.3, "angular_margin": 0.15, "filter_threshold": 0.8}


def objectives(form, image_BD, text_BD, temperature_B, ids_B=None, teacher_BE=None):
    """Every kernel on one batch, by name."""
    teacher_BE = image_BD.detach() if teacher_BE is None else teacher_BE
    generator = torch.Generator().manual_seed(2)
    margin_B = torch.full_like(temperature_B, 0.2).detach()
    scaled = {"ids_B": ids_B, "impl": form}
    return {
        "plain": kernels.softmax_loss(image_BD, text_BD, temperature_B, **scaled)[0],
        "mixed": kernels.softmax_loss(image_BD, text_BD, temperature_B, r_mix=0.3, **scaled)[0],
        "all": kernels.softmax_loss(image_BD, text_BD, temperature_B, teacher_BE=teacher_BE, **ALL, **scaled)[0],
        "all drawn": kernels.softmax_loss(
            image_BD, text_BD, temperature_B, teacher_BE=teacher_BE, generator=generator, **ALL, **scaled
        )[0],
        "floor": kernels.softmax_loss(
            image_BD, text_BD, temperature_B, teacher_BE=teacher_BE, angular_margin=0.2, angle_edge="floor", **scaled
        )[0],
        "hinge": kernels.hinge_loss(image_BD, text_BD, margin_B, **scaled)[0],
        "sigmoid": kernels.sigmoid_loss(image_BD, text_BD, temperature_B, -10.0, **scaled),
        "potential": kernels.potential_loss(image_BD, **scaled),
        "cross potential": kernels.potential_loss(image_BD, text_BD, **scaled),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["identical views", "opposite views", "one point", "duplicates", "zero rows"])
def test_degenerate_embeddings_leave_everything_finite_and_bounded(form, kind, dtype):
    """A quarter of float32 self-products of unit rows exceed 1; arccos is NaN there and infinitely steep at 1."""
    image_BD = rows(0, 16, 24, dtype=dtype)
    text_BD = {
        "identical views": image_BD,
        "opposite views": -image_BD,
        "one point": image_BD[:1].expand(16, -1),
        "duplicates": image_BD[torch.arange(16) // 4 * 4],
        "zero rows": image_BD * (torch.arange(16) % 3 > 0)[:, None],
    }[kind]
    if kind == "one point":
        image_BD = text_BD
    own = [image_BD.clone().requires_grad_(), text_BD.clone().requires_grad_()]
    temperature_B = torch.full((16,), 0.05, dtype=dtype, requires_grad=True)
    # softmax: slope 1/t; a pair near -1 may be turned with slope sin d / MIN_SINE at most
    bound = (1 + math.sin(2 * 0.2) / MIN_SINE) / 0.05
    for name, loss in objectives(form, *own, temperature_B).items():
        assert torch.isfinite(loss), name
        for grad in torch.autograd.grad(loss, [*own, temperature_B], allow_unused=True):
            assert grad is None or torch.isfinite(grad).all(), name
            # the temperature's own slope is 1/t larger than that of a cosine, at most 2 apart
            assert grad is None or grad.abs().max() <= bound * 40, name


def test_a_saturated_positive_that_its_margin_violates_still_learns(form):
    """Identical views, so positives at 1, and a negative 0.2 rad away that a margin of 0.15 brings close to them.

    clamp(-1, 1) before arccos makes the saturated pair's gradient silently 0; arccos alone makes it NaN.
    """
    image_BD = rows(0, 6, 8)
    aside_D = normalize(image_BD[1] - (image_BD[1] @ image_BD[0]) * image_BD[0], dim=0)
    image_BD[1] = math.cos(0.2) * image_BD[0] + math.sin(0.2) * aside_D
    tangents = []
    for dtype in (torch.float32, torch.float64):
        own = [image_BD.to(dtype, copy=True).requires_grad_() for _ in range(2)]
        temperature_B = torch.full((6,), 0.05, dtype=dtype)
        teacher_BE = torch.eye(6, dtype=dtype)
        loss, _ = kernels.softmax_loss(*own, temperature_B, angular_margin=0.15, teacher_BE=teacher_BE, impl=form)
        for grad in torch.autograd.grad(loss, own):
            # what moves a unit row
            tangents.append((grad - (grad * own[0]).sum(1, keepdim=True) * own[0]).detach().double())
    for single, double in zip(tangents[:2], tangents[2:]):
        assert double[:2].norm(dim=1).min() > 0.05
        assert error(single, double) <= 1e-4


@pytest.mark.parametrize("temperature", [0.001, 0.005, 0.01])
def test_small_temperatures_keep_float32_close_to_float64(form, temperature):
    """A fixed shift by 1/t underflows here, no shift overflows: the shift is the running maximum of candidates."""
    image_BD, teacher_BE = rows(0, 32, 16), rows(5, 32, 4)
    text_BD = normalize(image_BD + 1.5 * rows(1, 32, 16), dim=1)
    results = []
    for dtype in (torch.float32, torch.float64):
        own = [x.to(dtype).requires_grad_() for x in (image_BD, text_BD)]
        own.append(torch.linspace(temperature, 2 * temperature, 32, dtype=torch.float64).to(dtype).requires_grad_())
        found = objectives(form, *own, teacher_BE=teacher_BE.to(dtype))
        results.append({name: grads_of(found[name], own) for name in ("plain", "mixed", "all", "floor")})
    for name, double in results[1].items():
        for single, reference, tolerance in zip(results[0][name], double, (1e-5, 1e-4, 1e-4, 1e-3)):
            assert error(single.double(), reference) <= tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("r_mix", "drawn"), [(0.0, False), (0.5, False), (0.5, True), (1.0, False)])
@pytest.mark.parametrize("reason", ["filter", "ids"])
def test_without_negatives_loss_and_gradients_are_exactly_zero(form, dtype, r_mix, drawn, reason):
    own = [rows(0, 9, 6, dtype=dtype).requires_grad_(), rows(1, 9, 6, dtype=dtype).requires_grad_()]
    own.append(torch.full((9,), 0.07, dtype=dtype, requires_grad=True))
    if reason == "filter":
        removed = {"teacher_BE": rows(3, 9, 3, dtype=dtype), "filter_threshold": -1.1}
    else:
        removed = {"ids_B": torch.zeros(9, dtype=torch.int64)}
    generator = torch.Generator().manual_seed(0) if drawn else None
    loss, stats = kernels.softmax_loss(*own, r_mix=r_mix, generator=generator, **removed, impl=form, with_stats=True)
    assert loss.item() == 0
    assert stats["filtered_share" if reason == "filter" else "same_id_share"].item() == 1
    for grad in torch.autograd.grad(loss, own):
        assert torch.count_nonzero(grad) == 0


def test_all_ids_alike_leave_no_hinge_and_no_potential(form):
    own = [rows(0, 9, 6).requires_grad_(), rows(1, 9, 6).requires_grad_()]
    ids_B = torch.zeros(9, dtype=torch.int64)
    hinge, active = kernels.hinge_loss(*own, torch.full((9,), 0.2), ids_B=ids_B, impl=form)
    potential = kernels.potential_loss(*own, ids_B=ids_B, impl=form)
    assert (hinge.item(), active.item(), potential.item()) == (0, 0, 0)
    for grad in torch.autograd.grad(hinge + potential, own):
        assert torch.count_nonzero(grad) == 0


def test_a_batch_of_one_has_no_negatives(form):
    own = [rows(0, 1, 6).requires_grad_(), rows(1, 1, 6).requires_grad_()]
    found = objectives(form, *own, torch.full((1,), 0.1, dtype=torch.float64))
    for name in set(found) - {"sigmoid"}:
        assert found[name].item() == 0, name
        for grad in torch.autograd.grad(found[name], own, allow_unused=True):
            assert grad is None or torch.count_nonzero(grad) == 0, name


@pytest.mark.parametrize("threshold", [-0.2, 0.1])
def test_filtered_pairs_leave_the_temperatures_gradient_as_if_they_were_not_there(form, threshold):
    """https://github.com/NVIDIA-NeMo/Automodel/issues/3850: -inf before a learned division made this gradient NaN."""
    batch = 8
    own = [rows(0, batch, 6).requires_grad_(), rows(1, batch, 6).requires_grad_()]
    own.append(torch.linspace(0.02, 0.2, batch, dtype=torch.float64).requires_grad_())
    teacher_BE = rows(3, batch, 3)
    drop_BB = (teacher_BE @ teacher_BE.T > threshold).fill_diagonal_(False)
    assert drop_BB.any()
    s_BB = own[0] @ own[1].T
    total = 0.0
    for i in range(batch):
        for row, dropped in ((s_BB[i], drop_BB[i]), (s_BB[:, i], drop_BB[:, i])):
            kept = torch.stack([row[j] / own[2][i] for j in range(batch) if not dropped[j]])
            total = total + torch.logsumexp(kept, 0) - s_BB[i, i] / own[2][i]
    expected = grads_of(total / (2 * batch), own)
    loss, _ = kernels.softmax_loss(*own, teacher_BE=teacher_BE, filter_threshold=threshold, impl=form)
    for actual, reference in zip(grads_of(loss, own), expected):
        torch.testing.assert_close(actual, reference, rtol=1e-11, atol=1e-13)


def test_a_masked_maximum_does_not_underflow_the_rest(form):
    """Rows whose best candidate, far above the others at this temperature, is masked."""
    image_BD = rows(0, 8, 64, dtype=torch.float32)
    text_BD = -image_BD
    text_BD[1::2] = image_BD[::2]  # the texts of odd pairs are the images of even ones
    ids_B = torch.arange(8) // 2
    losses = [
        kernels.softmax_loss(image_BD.to(t), text_BD.to(t), torch.full((8,), 0.004, dtype=t), ids_B=ids_B, impl=form)[0]
        for t in (torch.float32, torch.float64)
    ]
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-5)


def test_replaced_negatives_do_not_underflow_the_others(form):
    """Only intra-modal negatives, all at cosine 0, while another pair's text is the anchor's exact copy."""
    image_BD = torch.eye(8)
    text_BD = image_BD.roll(1, dims=0)
    temperature_B = torch.full((8,), 0.004)
    for generator in (None, torch.Generator().manual_seed(0)):
        loss, _ = kernels.softmax_loss(image_BD, text_BD, temperature_B, r_mix=1.0, generator=generator, impl=form)
        assert loss.item() == pytest.approx(math.log(8), rel=1e-6)


def test_identical_captions_are_not_pushed_apart_once_they_share_an_id(form):
    """Without ids a duplicated pair costs log 2 for ever; with them it is gone, gradient and all."""
    image_BD = torch.eye(6, dtype=torch.float64)[torch.arange(6) // 2].requires_grad_()
    temperature_B = torch.full((6,), 0.02, dtype=torch.float64)
    apart, _ = kernels.softmax_loss(image_BD, image_BD.detach(), temperature_B, impl=form)
    tied, _ = kernels.softmax_loss(image_BD, image_BD.detach(), temperature_B, ids_B=torch.arange(6) // 2, impl=form)
    assert apart.item() == pytest.approx(math.log(2), rel=1e-12)
    assert tied.item() == pytest.approx(0, abs=1e-15)
    assert torch.autograd.grad(tied, image_BD)[0].abs().max() < 1e-15


def test_the_teacher_gets_no_gradient(form):
    teacher_BE = rows(3, 9, 3).requires_grad_()
    own = [rows(0, 9, 6).requires_grad_(), rows(1, 9, 6)]
    temperature_B = torch.full((9,), 0.1, dtype=torch.float64)
    loss, _ = kernels.softmax_loss(*own, temperature_B, teacher_BE=teacher_BE, **ALL, impl=form)
    loss.backward()
    assert teacher_BE.grad is None
    assert own[0].grad is not None


def test_a_margin_of_zero_still_ranks(form):
    image_BD, text_BD = rows(0, 9, 6), rows(1, 9, 6)
    loss, active = kernels.hinge_loss(image_BD, text_BD, torch.zeros(9, dtype=torch.float64), impl=form)
    s_BB = image_BD @ text_BD.T
    worse = s_BB - s_BB.diagonal()[:, None], s_BB - s_BB.diagonal()[None, :]
    assert loss.item() == pytest.approx(sum(w.clamp(min=0).sum().item() for w in worse) / (2 * 9 * 8), rel=1e-12)
    assert active.item() == pytest.approx(sum((w > 0).sum().item() for w in worse) / (2 * 9 * 8), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_embeddings_get_float32_logits(form, dtype, autocast):
    """bf16 logits at temperature 0.01 are wrong in the gradient's second digit: 2e-2, against 1e-6 in float32."""
    image_BD, text_BD, teacher_BE = rows(0, 16, 12, dtype=dtype), rows(1, 16, 12, dtype=dtype), rows(2, 16, 4)
    ids_B = torch.arange(16) // 2
    calls = {
        "info_nce": lambda u, w: info_nce(u, w, temperature=0.01, teacher_BE=teacher_BE, **ALL, mix_mode="weighted"),
        "plain": lambda u, w: info_nce(u, w, temperature=0.01, ids_B=ids_B, impl=form),
        "max_margin": lambda u, w: max_margin(u, w, margin=0.2, ids_B=ids_B, impl=form),
        "siglip": lambda u, w: siglip(u, w, temperature=0.01, ids_B=ids_B, impl=form),
        "regularized": lambda u, w: regularized_info_nce(u, w, temperature=0.01, ids_B=ids_B, impl=form),
    }
    for name, call in calls.items():
        half = [image_BD.clone().requires_grad_(), text_BD.clone().requires_grad_()]
        wide = [image_BD.double().requires_grad_(), text_BD.double().requires_grad_()]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = call(*half).loss
        expected = grads_of(call(*wide).loss, wide)
        assert loss.dtype == torch.float32, name
        actual = grads_of(loss, half)
        assert error(actual[0].double(), expected[0]) <= 1e-5
        # gradients come back in the embeddings' type: half a unit in its last place
        for grad, reference in zip(actual[1:], expected[1:]):
            assert grad.dtype == dtype
            assert error(grad.double(), reference) <= torch.finfo(dtype).eps


def test_a_temperature_driven_hard_stays_finite_in_its_range(form):
    """An absurd learning rate throws the temperature from end to end of its range: nothing may leave float32."""
    low, high = math.log(0.005), math.log(1.0)
    log_temperature = torch.tensor(math.log(0.07), requires_grad=True)
    image_BD, text_BD = rows(0, 16, 12, dtype=torch.float32), rows(1, 16, 12, dtype=torch.float32)
    visited = set()
    for step in range(6):
        loss, _ = kernels.softmax_loss(image_BD, text_BD, log_temperature.exp().expand(16), r_mix=0.2, impl=form)
        (grad,) = torch.autograd.grad(loss, log_temperature)
        assert torch.isfinite(loss)
        assert torch.isfinite(grad)
        with torch.no_grad():
            log_temperature -= 1e4 * grad * (1 if step % 2 else -1)
            log_temperature.clamp_(low, high)
        visited.add(round(log_temperature.item(), 3))
    assert visited == {round(low, 3), round(high, 3)}


def test_sigmoid_far_out_neither_overflows_nor_vanishes(form):
    """Logits of +-1000: log(1 + e^z) is z there, e^-1000 here."""
    image_BD = torch.eye(4).requires_grad_()
    wrong = torch.eye(4).roll(1, dims=0)
    loss = kernels.sigmoid_loss(image_BD, wrong, torch.tensor(0.001), torch.tensor(0.0), impl=form)
    # per image one pair at logit 1000 that should not be, one at 0 that should, two at 0 that should not
    assert loss.item() == pytest.approx(1000 + 3 * math.log(2), rel=1e-6)
    (grad,) = torch.autograd.grad(loss, image_BD)
    assert torch.isfinite(grad).all()
    # and the sum of 12 terms of e^-20, which 1 + e^-20 would round away in float32
    small = kernels.sigmoid_loss(torch.eye(4), torch.eye(4), torch.tensor(0.01), torch.tensor(-20.0), impl=form)
    assert small.item() == pytest.approx(3 * math.exp(-20), rel=1e-5)


def test_nan_in_is_nan_out(form):
    image_BD = rows(0, 9, 6)
    image_BD[3, 2] = math.nan
    for name, loss in objectives(form, image_BD, rows(1, 9, 6), torch.full((9,), 0.1, dtype=torch.float64)).items():
        assert math.isnan(loss.item()), name
