"""iSogCLR: the authors' class over several steps, its formula, what its state remembers and survives."""

import math

import pytest
import torch
from torch.nn.functional import normalize
from vectors import DTYPES, Vector, pair, rows

from mmts_ray.losses import advance, isogclr, isogclr_state

SIZE = 5
IDS_B = torch.tensor([0, 1, 2, 0, 3])


def fresh(images, texts, dtype=torch.float64):
    return {name: value.to(dtype) for name, value in isogclr_state(images, texts).items()}


@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_step_matches_the_published_code(number, dtype):
    vector = Vector(f"isogclr_{number}", dtype)
    samples = int(vector.arrays["samples"])
    state = fresh(samples, samples, dtype)
    tolerance = 1e-10 if dtype == torch.float64 else 2e-3  # float32 temperatures drift apart over the steps
    for step in range(len(vector.arrays["loss"])):
        image_B, text_B = (torch.tensor(vector.arrays[f"{side}_rows"][step]) for side in ("image", "text"))
        leaves = [vector.tensor(side)[step].requires_grad_() for side in ("image", "text")]
        options = {"temperature": vector.number("tau_init"), "rho": vector.number("rho")}
        before = {name: value.clone() for name, value in state.items()}
        out = isogclr(*leaves, state=state, image_B=image_B, text_B=text_B, **options)
        assert all(torch.equal(state[name], before[name]) for name in state)  # a function of state and batch
        advance(state, out.changes)
        actual = [
            out.loss,
            *torch.autograd.grad(out.loss, leaves),
            state["image_temperature"],
            state["text_temperature"],
        ]
        for value, name in zip(actual, ("loss", "grad_image", "grad_text", "tau_image", "tau_text")):
            expected = torch.tensor(vector.arrays[name][step], dtype=dtype)
            if name.startswith("tau"):  # the code has a start value where ours has not seen the sample
                seen = state[f"{name.removeprefix('tau_')}_log_mass"].isfinite()
                value, expected = value[seen], expected[seen]
            assert (value - expected).abs().max() <= tolerance * expected.abs().max(), (step, name)
    for side in ("image", "text"):
        for name in ("slope", "log_mass"):
            expected = torch.tensor(vector.arrays[f"{name}_{side}"], dtype=dtype)
            assert (state[f"{side}_{name}"] - expected).abs().max() <= 10 * tolerance * expected.abs().max()


@pytest.mark.parametrize("ids_B", [None, IDS_B], ids=["distinct", "duplicates"])
@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("mass_floor", ["code", "paper"])
def test_two_steps_are_the_formula(ids_B, per_sample, mass_floor):
    state = fresh(SIZE, SIZE)
    place_B = torch.arange(SIZE)
    rho, step_size, mass_rate, slope_rate, low, high = 3.0, 0.02, 0.7, 0.4, 0.005, 0.4
    start_B = (
        torch.linspace(0.01, 0.3, SIZE, dtype=torch.float64)
        if per_sample
        else torch.full((SIZE,), 0.2, dtype=torch.float64)
    )
    tau = {side: start_B.tolist() for side in ("image", "text")}
    mass, peak, slope = {}, {(side, i): 0.0 for side in tau for i in range(SIZE)}, {side: [0.0] * SIZE for side in tau}
    for step in range(2):
        image_BD, text_BD = pair(10 * step, SIZE, 3)
        out = isogclr(
            image_BD,
            text_BD,
            temperature=start_B if per_sample else 0.2,
            state=state,
            image_B=place_B,
            text_B=place_B,
            ids_B=ids_B,
            rho=rho,
            step_size=step_size,
            mass_rate=mass_rate,
            slope_rate=slope_rate,
            tau_low=low,
            tau_span=high / low,
            mass_floor=mass_floor,
        )
        expected, objective = 0.0, 0.0
        for side, (own, other) in {"image": (image_BD, text_BD), "text": (text_BD, image_BD)}.items():
            for i in range(SIZE):
                t = tau[side][i]
                gaps = [
                    torch.dot(own[i], other[j]) - torch.dot(own[i], other[i])
                    for j in range(SIZE)
                    if j != i and (ids_B is None or ids_B[i] != ids_B[j])
                ]
                now = sum(math.exp(gap.item() / t) for gap in gaps)
                mass[side, i] = now if step == 0 else (1 - mass_rate) * mass[side, i] + mass_rate * now
                peak[side, i] = max(peak[side, i], *(gap.item() / t for gap in gaps))
                held = mass[side, i] if mass_floor == "paper" else max(mass[side, i], 1e-14 * math.exp(peak[side, i]))
                weights = [math.exp(gap.item() / t) / held for gap in gaps]
                expected = expected + sum(w * gap for w, gap in zip(weights, gaps)) / SIZE
                level = math.log(held / len(gaps))
                gradient = level + rho - sum(w * gap.item() / t for w, gap in zip(weights, gaps))
                slope[side][i] += slope_rate * (min(5, max(-5, gradient)) - slope[side][i])
                objective += t * (level + rho) / (2 * SIZE)
                tau[side][i] = min(high, max(low, t - step_size * slope[side][i]))
        assert out.loss.item() == pytest.approx(expected.item(), rel=1e-12)
        assert out.stats["objective"].item() == pytest.approx(objective, rel=1e-12)
        leaves = [image_BD, text_BD]
        for actual, reference in zip(torch.autograd.grad(out.loss, leaves), torch.autograd.grad(expected, leaves)):
            torch.testing.assert_close(actual, reference, rtol=1e-10, atol=1e-12)
        advance(state, out.changes)
        for side in tau:
            assert state[f"{side}_temperature"].tolist() == pytest.approx(tau[side], rel=1e-12)


def test_without_memory_the_gradient_is_that_of_the_robust_objective():
    """mass_rate 1: the surrogate's gradient is that of tau log mean exp(gap / tau), by finite differences too."""
    image_BD, text_BD = pair(0, SIZE, 4)
    place_B = torch.arange(SIZE)
    out = isogclr(
        image_BD,
        text_BD,
        temperature=0.05,
        state=fresh(SIZE, SIZE),
        image_B=place_B,
        text_B=place_B,
        mass_rate=1.0,
    )
    s_BB = image_BD @ text_BD.T
    objective = 0.0
    for own_BB in (s_BB, s_BB.T):
        gap_BB = (own_BB - own_BB.diagonal()[:, None]) / 0.05
        masked_BB = gap_BB.masked_fill(torch.eye(SIZE, dtype=torch.bool), -math.inf)
        objective = objective + 0.05 * masked_BB.logsumexp(1).mean()
    leaves = [image_BD, text_BD]
    for actual, reference in zip(torch.autograd.grad(out.loss, leaves), torch.autograd.grad(objective, leaves)):
        torch.testing.assert_close(actual, reference, rtol=1e-10, atol=1e-12)


def test_temperatures_part_and_stay_in_their_range():
    """An image with one close negative gets another temperature than one whose negatives are all alike."""
    generator = torch.Generator().manual_seed(0)
    image_BD = normalize(torch.eye(8, 16) + 0.01 * torch.randn(8, 16, generator=generator), dim=1)
    text_BD = image_BD.clone()
    text_BD[1] = normalize(image_BD[0] + 0.5 * image_BD[1], dim=0)
    state, place_B = isogclr_state(8, 8), torch.arange(8)
    for _ in range(50):
        out = isogclr(
            image_BD, text_BD, temperature=0.02, state=state, image_B=place_B, text_B=place_B, rho=1.0, step_size=1e-3
        )
        advance(state, out.changes)
    tau_N = state["image_temperature"]
    assert tau_N.min() >= 0.005
    assert tau_N.max() <= 0.05
    assert abs(tau_N[0] - tau_N[2:].mean()) > 0.005
    assert tau_N[2:].std() < 0.002
    assert out.stats["temperature_min"] < out.stats["temperature_max"]


@pytest.mark.parametrize(("rho", "all_fall"), [(2.2, True), (0.5, False)])
def test_a_rho_above_the_log_of_the_negatives_lets_every_temperature_fall(rho, all_fall):
    assert (rho > math.log(8)) == all_fall
    image_BD, text_BD = (x.detach() for x in pair(0, 9, 4))
    state, place_B = fresh(9, 9), torch.arange(9)
    for _ in range(100):
        out = isogclr(
            image_BD,
            text_BD,
            temperature=0.05,
            state=state,
            image_B=place_B,
            text_B=place_B,
            rho=rho,
            mass_rate=1.0,
            mass_floor="paper",
        )
        advance(state, out.changes)
    tau = torch.cat([state["image_temperature"], state["text_temperature"]])
    assert bool((tau == 0.005).all()) == all_fall


@pytest.mark.parametrize("mass_floor", ["code", "paper"])
def test_a_sample_whose_cosines_fall_far_fades_with_the_floor_of_the_code_only(mass_floor):
    place_B = torch.arange(8)
    state = fresh(8, 8, torch.float32)
    options = {"temperature": 0.005, "image_B": place_B, "text_B": place_B, "step_size": 0, "mass_floor": mass_floor}
    hard_BD = rows(0, 8, 64, dtype=torch.float32)
    advance(state, isogclr(hard_BD, -hard_BD, state=state, **options).changes)
    assert state["image_log_mass"].min() > 100
    for _ in range(400):
        easy_BD = hard_BD.clone().requires_grad_()
        out = isogclr(easy_BD, hard_BD, state=state, **options)
        advance(state, out.changes)
    (gradient,) = torch.autograd.grad(out.loss, easy_BD)
    assert torch.isfinite(gradient).all()
    assert state["image_log_mass"].max() < -50  # the sum has no floor of its own and follows the cosines
    assert (gradient.abs().max() > 0.01) == (mass_floor == "paper")
    assert (gradient.abs().max() < 1e-20) == (mass_floor == "code")


def test_samples_that_stand_twice_in_a_batch_take_their_last_place():
    image_BD, text_BD = (x.detach() for x in pair(0, SIZE, 4))
    image_B, text_B = torch.tensor([3, 1, 3, 0, 1]), torch.tensor([0, 1, 2, 0, 3])
    state = fresh(4, 4)
    out = isogclr(image_BD, text_BD, temperature=0.02, state=state, image_B=image_B, text_B=text_B, ids_B=image_B)
    advance(state, out.changes)
    tau_B = out.changes["image_temperature"][1].tolist()
    assert state["image_temperature"].tolist() == pytest.approx([tau_B[3], tau_B[4], 0.0, tau_B[2]])
    assert state["image_log_mass"][2].item() == -math.inf
    assert state["text_temperature"][0] == out.changes["text_temperature"][1][3]


def test_a_sample_without_negatives_keeps_its_state():
    image_BD, text_BD = pair(0, SIZE, 4)
    place_B = torch.arange(SIZE)
    state = fresh(SIZE, SIZE)
    for ids_B in (None, torch.zeros(SIZE, dtype=torch.int64)):
        before = {name: value.clone() for name, value in state.items()}
        out = isogclr(image_BD, text_BD, temperature=0.02, state=state, image_B=place_B, text_B=place_B, ids_B=ids_B)
        advance(state, out.changes)
        if ids_B is not None:
            assert out.loss.item() == 0
            assert all(torch.equal(state[name], before[name]) for name in state)
        gradients = torch.autograd.grad(out.loss, [image_BD, text_BD])
        assert all(torch.isfinite(g).all() for g in gradients)


def test_refusals():
    image_BD, text_BD = pair(0, SIZE, 4)
    options = {"state": fresh(SIZE, SIZE), "image_B": torch.arange(SIZE), "text_B": torch.arange(SIZE)}
    for extra, message in (
        ({"temperature": torch.tensor(0.1, requires_grad=True)}, "learns its temperatures itself"),
        ({"temperature": 0.0}, "legal is above 0"),
        ({"temperature": 0.1, "mass_floor": "none"}, "legal is one of code, paper"),
    ):
        with pytest.raises(ValueError, match=message):
            isogclr(image_BD, text_BD, **options, **extra)
