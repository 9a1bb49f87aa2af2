"""The forms of the kernels: whole, kept tiles and streamed tiles agree with a double loop, and hold what they say."""

import itertools
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn.functional import normalize

from mmts_ray import kernels
from mmts_ray.kernels import choice, tiles

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "kernels.py"
FORMS = ("dense", "cached", "stream")
BATCH = 7


@pytest.fixture(params=[(256, 1024), (3, 4)], ids=["one tile", "ragged tiles"])
def tile(request, monkeypatch):
    """Tiles that hold the batch, or that do not divide it and cross the diagonal off their corners."""
    monkeypatch.setattr(tiles, "CPU_TILE", request.param)
    return request.param


@pytest.fixture
def ragged(monkeypatch):
    monkeypatch.setattr(tiles, "CPU_TILE", (3, 4))


def rows(seed, *shape, dtype=torch.float64):
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype), dim=-1)


def leaves(batch=BATCH, width=4, seed=0):
    image_BD = rows(seed, batch, width)
    text_BD = normalize(image_BD + 0.8 * rows(seed + 1, batch, width), dim=1)
    temperature_B = torch.linspace(0.1, 0.6, batch, dtype=torch.float64)
    return [x.clone().requires_grad_() for x in (image_BD, text_BD, temperature_B)]


DIRECTIONS = ("both", "image_to_text", "text_to_image")
MIXES = ((0.0, False), (0.4, False), (0.4, True), (1.0, False))
TURNS = ((0.0, "gate"), (0.6, "gate"), (0.6, "floor"))
TEACHERS = ("one", "two")
LATTICE = list(itertools.product(DIRECTIONS, MIXES, TURNS, (None, 0.2), (False, True), TEACHERS))


def options(directions, mix, turn, threshold, ids, teachers, batch=BATCH):
    r_mix, drawn = mix
    margin, edge = turn
    teacher_BE = rows(9, batch, 3)
    return {
        "directions": directions,
        "r_mix": r_mix,
        "generator": torch.Generator().manual_seed(5) if drawn else None,
        "angular_margin": margin,
        "angle_edge": edge,
        "teacher_BE": teacher_BE if teachers == "one" else (teacher_BE, rows(10, batch, 3)),
        "filter_threshold": threshold,
        "ids_B": torch.arange(batch) % (batch - 2) if ids else None,
    }


def double_loop(image_BD, text_BD, temperature_B, given):
    """The objective written out, candidate by candidate, with arccos."""
    batch, r_mix, margin = len(image_BD), given["r_mix"], given["angular_margin"]
    teacher = given["teacher_BE"]
    rows_BE, columns_BE = teacher if isinstance(teacher, tuple) else (teacher, teacher)
    q_BB = rows_BE @ columns_BE.T
    ids_B, threshold = given["ids_B"], given["filter_threshold"]
    picks_2BB = None
    if given["generator"] is not None:
        picks_2BB = kernels.mix_masks(batch, r_mix, torch.Generator().manual_seed(5))

    def turned(cosine, delta):
        angle = torch.acos(cosine)
        if given["angle_edge"] == "floor":
            return torch.cos((angle - delta).clamp(min=0))
        return torch.cos(angle - delta) if angle > margin else cosine

    total, count = 0.0, 0
    for direction, own_BD, other_BD in (("image_to_text", image_BD, text_BD), ("text_to_image", text_BD, image_BD)):
        if given["directions"] not in ("both", direction):
            continue
        for i in range(batch):
            positive = (own_BD[i] * other_BD[i]).sum()
            mass = (positive / temperature_B[i]).exp()
            for j in range(batch):
                place = (i, j) if direction == "image_to_text" else (j, i)
                if i == j or (ids_B is not None and ids_B[i] == ids_B[j]):
                    continue
                if threshold is not None and q_BB[place] > threshold:
                    continue
                if picks_2BB is not None:
                    within = picks_2BB[int(direction == "text_to_image")][place].item()
                else:
                    within = r_mix
                for weight, cosine in ((1 - within, own_BD[i] @ other_BD[j]), (within, own_BD[i] @ own_BD[j])):
                    if weight > 0:
                        moved = turned(cosine, margin * (1 - q_BB[place]).abs()) if margin else cosine
                        mass = mass + weight * (moved / temperature_B[i]).exp()
            total = total + mass.log() - positive / temperature_B[i]
            count += 1
    return total / count


@pytest.mark.parametrize("lattice", LATTICE, ids=str)
def test_every_combination_is_the_double_loop_in_every_form(lattice, ragged):
    given = options(*lattice)
    expected = double_loop(*(own := leaves()), given)
    expected_grads = torch.autograd.grad(expected, own)
    for form in FORMS:
        loss, _ = kernels.softmax_loss(*(own := leaves()), **options(*lattice), impl=form)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-13)
        for actual, reference in zip(torch.autograd.grad(loss, own), expected_grads):
            torch.testing.assert_close(actual, reference, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("lattice", LATTICE[:: len(LATTICE) // 47], ids=str)
@pytest.mark.parametrize("form", ["cached", "stream"])
def test_gradients_are_exact_by_finite_differences(lattice, form, ragged):
    assert gradcheck(lambda *own: kernels.softmax_loss(*own, **options(*lattice), impl=form)[0], leaves())


@pytest.mark.parametrize("teachers", TEACHERS)
@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_statistics_do_not_depend_on_the_form(teachers, mix, tile):
    found = []
    for form in FORMS:
        given = options("both", mix, (0.3, "gate"), 0.2, True, teachers)
        _, stats = kernels.softmax_loss(*leaves(), **given, impl=form, with_stats=True)
        found.append({name: float(value) for name, value in stats.items()})
    assert found[1] == pytest.approx(found[0], rel=1e-6)
    assert found[2] == pytest.approx(found[0], rel=1e-6)
    assert set(found[0]) >= {"filtered_share", "same_id_share"}


@pytest.mark.parametrize("ids", [None, [0, 1, 0, 2, 3, 1, 4], [0] * BATCH], ids=["no ids", "repeats", "one id"])
def test_objectives_of_independent_pairs_agree_in_every_form(ids, tile):
    ids_B = None if ids is None else torch.tensor(ids)
    bias = torch.tensor(-2.0, dtype=torch.float64)
    one = torch.tensor(0.2, dtype=torch.float64)
    margin_B = torch.linspace(0.1, 0.9, BATCH, dtype=torch.float64)
    image_BD, text_BD, temperature_B = (x.detach() for x in leaves())
    cases = [
        (lambda form, u, w: kernels.hinge_loss(u, w, margin_B, ids_B=ids_B, impl=form)[0], (image_BD, text_BD)),
        (
            lambda form, u, w, t, b: kernels.sigmoid_loss(u, w, t, b, ids_B=ids_B, impl=form),
            (image_BD, text_BD, temperature_B, bias),
        ),
        (
            lambda form, u, w, t, b: kernels.sigmoid_loss(u, w, t, b, ids_B=ids_B, impl=form),
            (image_BD, text_BD, one, bias),
        ),
        (lambda form, u: kernels.potential_loss(u, ids_B=ids_B, impl=form), (image_BD,)),
        (lambda form, u, w: kernels.potential_loss(u, w, ids_B=ids_B, impl=form), (image_BD, text_BD)),
    ]
    for function, arguments in cases:
        results = []
        for form in FORMS:
            own = [x.clone().requires_grad_() for x in arguments]
            loss = function(form, *own)
            results.append((loss.detach(), *torch.autograd.grad(1.7 * loss, own)))
        for other in results[1:]:
            for actual, expected in zip(other, results[0]):
                torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-14)


def test_hinge_share_does_not_depend_on_the_form(tile):
    image_BD, text_BD, _ = leaves()
    margin_B = torch.linspace(0.1, 0.9, BATCH, dtype=torch.float64)
    shares = {kernels.hinge_loss(image_BD, text_BD, margin_B, impl=form)[1].item() for form in FORMS}
    assert len(shares) == 1
    assert 0 < shares.pop() < 1


@pytest.mark.parametrize("form", ["cached", "stream"])
@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_only_what_asks_for_a_gradient_gets_one(form, mix, ragged):
    given = ("both", mix, (0.4, "gate"), 0.2, True, "one")
    whole = torch.autograd.grad(kernels.softmax_loss(*(own := leaves()), **options(*given), impl=form)[0], own)
    for wanted in range(3):
        own = [x.detach().requires_grad_(number == wanted) for number, x in enumerate(leaves())]
        loss, _ = kernels.softmax_loss(*own, **options(*given), impl=form)
        loss.backward()
        torch.testing.assert_close(own[wanted].grad, whole[wanted], rtol=0, atol=0)
        assert [x.grad is None for x in own].count(True) == 2
    with torch.no_grad():
        loss, _ = kernels.softmax_loss(*leaves(), **options(*given), impl=form)
    assert not loss.requires_grad


@pytest.mark.parametrize("form", ["cached", "stream"])
def test_a_second_backward_gives_the_same_gradients(form, ragged):
    loss, _ = kernels.softmax_loss(
        *(own := leaves()), **options("both", (0.4, True), (0.4, "gate"), 0.2, True, "one"), impl=form
    )
    first = torch.autograd.grad(loss, own, retain_graph=True)
    for a, b in zip(first, torch.autograd.grad(-3 * loss, own)):
        torch.testing.assert_close(b, -3 * a, rtol=1e-14, atol=0)


def test_gradients_handed_out_once_are_formed_again_when_asked_for(ragged):
    image_BD, text_BD, temperature_B = leaves()
    margin_B = temperature_B.detach()
    for loss in (
        kernels.hinge_loss(image_BD, text_BD, margin_B, impl="stream")[0],
        kernels.sigmoid_loss(image_BD, text_BD, margin_B, -2.0, impl="stream"),
        kernels.potential_loss(image_BD, text_BD, impl="stream"),
        kernels.potential_loss(image_BD, impl="stream") + 0 * text_BD.sum(),
    ):
        first = torch.autograd.grad(loss, (image_BD, text_BD), retain_graph=True)
        kept = [grad.clone() for grad in first]
        for a, b, c in zip(first, torch.autograd.grad(-3 * loss, (image_BD, text_BD)), kept):
            torch.testing.assert_close(b, -3 * a, rtol=1e-14, atol=0)
            assert torch.equal(a, c)


def saved_numbers(function, *arguments):
    """How many numbers autograd keeps beside the inputs themselves."""
    inputs = {x.data_ptr() for x in arguments if isinstance(x, torch.Tensor)}
    kept = {}

    def pack(tensor):
        if tensor.data_ptr() not in inputs:
            kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = function(*arguments)
    assert loss.requires_grad
    return sum(kept.values())


def test_streaming_keeps_vectors_where_whole_matrices_are_kept():
    batch, width = 600, 8
    own = leaves(batch, width)
    kept = {}
    for form in FORMS:
        kept[form] = saved_numbers(
            lambda *x, form=form: kernels.softmax_loss(
                *x, **options("both", (0.4, True), (0.4, "gate"), 0.2, True, "one", batch), impl=form
            )[0],
            *own,
        )
    assert kept["dense"] > 8 * batch**2
    # two similarities and two halves, each with the slope of its move
    assert batch**2 < kept["cached"] < 5 * batch**2
    assert kept["stream"] <= 12 * batch
    margin_B = own[2].detach()
    pairs = saved_numbers(lambda u, w, m: kernels.hinge_loss(u, w, m, impl="stream")[0], *own[:2], margin_B)
    assert pairs <= batch


def test_picks_of_a_rectangle_are_those_of_the_whole():
    batch, r_mix = 50, 0.3
    key_2 = kernels.masks.mix_key(torch.Generator().manual_seed(1), torch.device("cpu"))
    whole_2BB = kernels.mix_masks(batch, r_mix, torch.Generator().manual_seed(1))
    anchor_B, candidate_B = kernels.masks.mix_codes(key_2, batch)[0]
    part_RC = kernels.masks.picks(anchor_B[10:30], candidate_B[5:45], r_mix, torch.empty(20, 40), torch.empty(20, 40))
    expected_RC = whole_2BB[0, 10:30, 5:45].clone()
    own = torch.arange(10, 30)
    part_RC[own - 10, own - 5] = 0
    assert torch.equal(part_RC, expected_RC)


def test_picks_look_independent():
    """Rows, columns, directions, neighbours and rectangles of four: none says anything about another."""
    batch, r_mix = 1024, 0.3
    picks_2BB = kernels.mix_masks(batch, r_mix, torch.Generator().manual_seed(0)).double()
    variance = r_mix * (1 - r_mix)
    for over in (1, 2):
        spread = picks_2BB.sum(over).var().item() / ((batch - 1) * variance)
        assert 0.85 < spread < 1.15
    centred_2BB = picks_2BB - r_mix
    image_BB, text_BB = centred_2BB
    pairs = [(image_BB, text_BB), (image_BB, image_BB.T), (image_BB[:, 1:], image_BB[:, :-1])]
    for a, b in [*pairs, (image_BB[1:], image_BB[:-1])]:
        assert abs((a * b).sum().item()) < 5 * variance * math.sqrt(a.numel())
    corners = image_BB[::2, ::2] * image_BB[::2, 1::2] * image_BB[1::2, ::2] * image_BB[1::2, 1::2]
    assert abs(corners.sum().item()) < 5 * variance**2 * math.sqrt(corners.numel())


def test_every_call_draws_its_own_picks():
    generator = torch.Generator().manual_seed(0)
    losses = {
        kernels.softmax_loss(*leaves(), r_mix=0.5, generator=generator, impl=form)[0].item()
        for form in FORMS
        for _ in range(2)
    }
    assert len(losses) == 6


def test_auto_takes_whole_matrices_for_small_batches_and_streams_what_does_not_fit(monkeypatch):
    seen = []
    for module, name in ((choice.dense, "softmax_loss"), (choice.Softmax, "apply")):
        original = getattr(module, name)

        def spy(*arguments, original=original, name=name, **given):
            seen.append("dense" if name == "softmax_loss" else "cached" if arguments[3].cached else "stream")
            return original(*arguments, **given)

        monkeypatch.setattr(module, name, spy)
    for batch in (choice.DENSE["softmax"], choice.DENSE["softmax"] + 1):
        kernels.softmax_loss(*leaves(batch))
    monkeypatch.setattr(choice, "CACHED_BYTES", 1 << 20)
    kernels.softmax_loss(*leaves(400))
    assert seen == ["dense", "cached", "stream"]


def test_an_unknown_form_is_refused():
    image_BD, text_BD, temperature_B = leaves()
    for call in (
        lambda: kernels.softmax_loss(image_BD, text_BD, temperature_B, impl="triton"),
        lambda: kernels.hinge_loss(image_BD, text_BD, temperature_B, impl="triton"),
        lambda: kernels.sigmoid_loss(image_BD, text_BD, temperature_B, 0.0, impl="triton"),
        lambda: kernels.potential_loss(image_BD, impl="triton"),
    ):
        with pytest.raises(ValueError, match=r"loss.impl: 'triton' is not legal; legal is one of auto, dense"):
            call()
    drop_BB = kernels.same_id(torch.zeros(BATCH))
    with pytest.raises(ValueError, match="pass ids_B instead"):
        kernels.hinge_loss(image_BD, text_BD, temperature_B, drop_BB=drop_BB, impl="stream")


@pytest.mark.slow
def test_the_benchmark_prints_its_tables():
    pytest.importorskip("open_clip")
    sizes = ["--sizes", "64", "--width", "16", "--memory", "128", "--batch", "64", "--repeats", "1"]
    command = [sys.executable, str(BENCHMARK), "--objectives", "MM-TS", "max-margin", *sizes]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=BENCHMARK.parents[1])
    assert done.returncode == 0, done.stderr
    lines = [line.split("|")[1].strip() for line in done.stdout.splitlines() if line.startswith("|")]
    assert lines.count("open_clip ClipLoss") == lines.count("MM-TS") == lines.count("max-margin") == 2
    assert "open_clip, local loss, gradient gather" in lines
    assert "ours, MM-TS, stream" in lines
