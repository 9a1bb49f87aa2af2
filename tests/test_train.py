"""Training: exact resume, pairing by seed, schedules as computed, infeasible ends."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from toy import frozen

from mmts_ray.config import from_flat
from mmts_ray.metrics import evaluate
from mmts_ray.recipe import Recipe, recipe, stream
from mmts_ray.towers import Heads, drop
from mmts_ray.train import TRAIN, TrainData, train
from mmts_ray.train.pairs import Pairs

torch.set_num_threads(1)
SMALL = {
    "data.name": "features",
    "data.path": "unused",
    "model.dim": 6,
    "groups.k": 4,
    "eval.k": 3,
    "train.epochs": 4,
    "train.batch_size": 16,
    "train.lr": 0.01,
}
KINDS = {
    "constant": {"schedule.name": "constant"},
    "learnable": {"schedule.name": "learnable"},
    "mm-ts": {"schedule.name": "cosine"},
    "xnce": {"loss.r_mix": 0.3},
    "adapacse": {"loss.angular_margin": 0.1, "loss.filter_threshold": 0.9},
    "all three": {
        "schedule.name": "cosine",
        "loss.r_mix": 0.3,
        "loss.angular_margin": 0.1,
        "loss.filter_threshold": 0.9,
    },
    "image teacher": {"loss.angular_margin": 0.1, "loss.soft_labels": "image"},
    "max margin": {"loss.name": "max_margin", "schedule.name": "cosine"},
    "siglip": {"loss.name": "siglip", "schedule.name": "learnable"},
    "regularized": {"loss.name": "regularized_info_nce"},
    "teachers by branch": {
        "loss.angular_margin": 0.1,
        "loss.soft_labels": "code",
        "loss.filter_threshold_image": 0.9,
    },
    "arccon": {"loss.name": "arccon"},
    "isogclr": {"loss.name": "isogclr", "schedule.value": 0.01},
    "isogclr, all captions": {"loss.name": "isogclr", "schedule.name": "cosine", "train.captions": "all"},
    "sms": {"loss.name": "sms", "schedule.value": 0.6},
    "triplet": {"loss.name": "triplet", "schedule.name": "cosine"},
    "all captions": {"train.captions": "all"},
    "cosine rate": {"train.lr_schedule": "cosine", "train.warmup": 0.3},
    "clipped": {"train.lr_schedule": "linear", "train.clip": 0.01},
    "classes": {"schedule.name": "cosine", "groups.name": "classes"},
    "image clusters": {"schedule.name": "cosine", "groups.name": "images"},
    "one group": {"schedule.name": "cosine", "groups.name": "none"},
}


def config_of(kind: str, **more: object):
    flat = {**SMALL, **KINDS[kind], **more}
    if flat.get("groups.name") in ("classes", "none"):
        del flat["groups.k"]
    return from_flat(flat)


@pytest.fixture(scope="module")
def data() -> TrainData:
    return TrainData(frozen(captions_each=2))


def tensors(tree: object) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    values = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else []
    return [t for value in values for t in tensors(value)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_equals_the_straight_one_bit_for_bit(kind, data, tmp_path):
    config = config_of(kind)
    straight = list(train(config, data, test=True))
    assert [row.epoch for row in straight] == [1, 2, 3, 4]
    if not kind.startswith("isogclr"):  # its value is not its objective
        assert straight[-1].metrics["train_loss"] < straight[0].metrics["train_loss"]
    assert {"val_i2t_r1", "test_i2t_r1", "val_modality_accuracy", "train_loss"} <= set(straight[-1].metrics)
    for cut in (1, 3):
        first = train(config, data, test=True)
        for _ in range(cut):
            row = next(first)
        torch.save(row.state(), tmp_path / "state.pt")
        next(first)  # a live run that goes on must not touch the checkpoint
        state = torch.load(tmp_path / "state.pt", weights_only=True)
        resumed = list(train(config, data, state, test=True))
        assert [row.epoch for row in resumed] == list(range(cut + 1, 5))
        for mine, theirs in zip(resumed, straight[cut:], strict=True):
            assert mine.metrics == theirs.metrics
            assert mine.step == theirs.step
        ends = [tensors(rows[-1].state()) for rows in (resumed, straight)]
        assert len(ends[0]) > 4
        assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_any_step_continues_bit_for_bit(kind, data, tmp_path):
    """Epochs can be long: a lost node costs the seconds since the last checkpoint, wherever in an epoch that was."""
    config = config_of(kind, **{"train.eval_every": 2})
    kept = {}

    def keep(step, epoch, state):
        path = tmp_path / f"{step}.pt"
        torch.save(state(), path)
        kept[step] = (epoch, path)

    straight = list(train(config, data, test=True, pulse=keep))
    per_epoch = straight[-1].step // 4
    assert [row.epoch for row in straight] == [2, 4]
    # a pulse after every step but those that a row follows: the row has its own checkpoint
    assert sorted(kept) == [s for s in range(1, straight[-1].step) if s != straight[0].step]
    assert {step: epoch for step, (epoch, _) in kept.items()} == {step: step // per_epoch for step in kept}
    for step in (1, per_epoch - 1, per_epoch, per_epoch + 2, straight[-1].step - 1):
        resumed = list(train(config, data, torch.load(kept[step][1], weights_only=True), test=True))
        assert [row.metrics for row in resumed] == [r.metrics for r in straight if r.step > step], step
        ends = [tensors(rows[-1].state()) for rows in (resumed, straight)]
        assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True)), step


def test_an_evaluation_keeps_no_gradients(data, monkeypatch):
    seen = []

    def watched(image_ND, text_UD, *args, **kwargs):
        seen.append(image_ND.requires_grad or text_UD.requires_grad or torch.is_grad_enabled())
        return evaluate(image_ND, text_UD, *args, **kwargs)

    monkeypatch.setattr("mmts_ray.train.pairs.evaluate", watched)
    list(train(config_of("constant"), data, test=True))
    assert len(seen) > 1
    assert not any(seen)


def test_temperatures_of_isogclr_are_in_the_checkpoint_and_only_of_training_samples(data):
    row = list(train(config_of("isogclr", **{"loss.rho": 1.0}), data))[-1]
    remembered = row.state()["memory"]
    train_images = set(data.split(TRAIN).images.tolist())
    seen = set(torch.nonzero(remembered["image_log_mass"].isfinite())[:, 0].tolist())
    assert seen
    assert seen <= train_images
    tau = remembered["image_temperature"][sorted(seen)]
    assert tau.min() >= 0.005
    assert tau.max() <= 0.05
    assert tau.std() > 0
    assert row.metrics["train_temperature_min"] < row.metrics["train_temperature_max"]


def test_teachers_of_two_spaces_cannot_be_compared(data):
    with pytest.raises(ValueError, match="compares captions with images, whose features have 12 and 10 dimensions"):
        list(train(config_of("adapacse", **{"loss.soft_labels": "paper"}), data))
    with pytest.raises(ValueError, match="share no space"):
        from_flat({"loss.soft_labels": "paper"})
    shared = {f"model.{side}_encoder": "open_clip:ViT-B-32/openai" for side in ("image", "text")}
    assert from_flat({"loss.soft_labels": "paper", **shared}).kwargs("loss")["soft_labels"] == "paper"


@pytest.mark.parametrize(
    ("flat", "words"),
    [
        ({"loss.name": "isogclr", "schedule.name": "learnable"}, "learns a temperature per sample itself"),
        ({"loss.name": "sms", "schedule.name": "learnable"}, "a learned margin shrinks to nothing"),
    ],
)
def test_objectives_that_do_not_fit_their_schedule_are_refused(flat, words):
    with pytest.raises(ValueError, match=words):
        from_flat(flat)


def test_a_checkpoint_of_another_configuration_seed_or_budget_is_refused(data):
    state = next(train(config_of("constant"), data)).state()
    for more in ({"train.seed": 1}, {"train.lr": 0.02}, {"train.epochs": 8}):
        with pytest.raises(ValueError, match="checkpoint of another trial"):
            next(train(config_of("constant", **more), data, state))
    with pytest.raises(ValueError, match="its data is"):
        next(train(config_of("constant"), TrainData(frozen(captions_each=2, seed=1)), state))


def pairs(config, data):
    return Pairs(config=config, data=data, recipe=config.function("train")(**config.kwargs("train")))


def test_the_same_seed_is_the_same_start_and_order_in_every_arm(data):
    starts = []
    orders = []
    for kind in ("constant", "mm-ts", "max margin", "siglip"):
        config = config_of(kind)
        made = config.function("model")(12, 10, config.seed, **config.kwargs("model"))
        starts.append(torch.cat([p.flatten() for p in made.parameters()]))
        orders.append(torch.cat([batch.rows_B for batch in pairs(config, data).batches(2)]))
    assert all(torch.equal(s, starts[0]) for s in starts)
    assert all(torch.equal(o, orders[0]) for o in orders)
    other = config_of("constant", **{"train.seed": 1})
    made = other.function("model")(12, 10, other.seed, **other.kwargs("model"))
    assert not torch.equal(torch.cat([p.flatten() for p in made.parameters()]), starts[0])


def test_an_epoch_shows_each_image_once_with_a_caption_drawn_anew(data):
    split = data.split(TRAIN)
    one = pairs(config_of("constant", **{"train.batch_size": 16}), data)
    seen = [torch.cat([batch.rows_B for batch in one.batches(epoch)]).numpy() for epoch in (0, 1)]
    for rows in seen:
        images = data.frozen.image_M[rows]
        assert sorted(images) == split.images.tolist()
    assert set(seen[0]) != set(seen[1])
    every = pairs(config_of("constant", **{"train.batch_size": 16, "train.captions": "all"}), data)
    every_M = torch.cat([batch.rows_B for batch in every.batches(0)])
    assert sorted(every_M) == sorted(split.rows)


def test_traces_follow_the_schedule_through_the_run(data):
    config = config_of("mm-ts", **{"schedule.oscillations": 1, "train.epochs": 4})
    rows = list(train(config, data))
    total = rows[-1].step
    kwargs = config.kwargs("schedule")
    for row in rows:
        base = 0.5 * kwargs["alpha"] * math.cos(2 * math.pi * (row.step - 1) / total)
        low = kwargs["tau_min"] + kwargs["alpha"] / 2 + base
        assert low - 1e-6 <= row.metrics["train_temperature_min"]
        assert row.metrics["train_temperature_max"] <= low + kwargs["spread"] + 1e-6
        assert row.metrics["train_temperature_min"] < row.metrics["train_temperature_max"]


def test_a_learned_temperature_stays_inside_its_clamp_however_hard_it_is_driven(data):
    config = config_of("learnable", **{"train.lr": 1.0, "schedule.low": 0.02, "schedule.high": 0.5})
    for row in train(config, data):
        assert 0.02 - 1e-6 <= math.exp(row.state()["learned"]["log_temperature"]) <= 0.5 + 1e-6
        assert not row.infeasible


def test_a_run_that_breaks_says_at_which_step_and_ends(data):
    # a feature that no float32 product can hold: the first step is already non-finite
    broken = frozen(captions_each=2)
    image_NI = broken.image_NI.copy()
    image_NI[5, 0] = np.float32(3e38)
    broken = TrainData(type(broken)(**{**vars(broken), "image_NI": image_NI}))
    rows = list(train(config_of("constant", **{"model.standardise": False, "train.lr": 1.0}), broken))
    assert len(rows) == 1
    assert rows[0].infeasible.startswith("non-finite")
    assert "step" in rows[0].infeasible
    assert not [k for k in rows[0].metrics if k.startswith("val_")]


def test_head_and_tail_groups_are_the_same_whatever_groups_the_trial_searches(data):
    shares = [
        {k: v for k, v in list(train(config_of("mm-ts", **{"groups.k": k}), data))[-1].metrics.items() if "_n_" in k}
        for k in (2, 8)
    ]
    assert shares[0] == shares[1]
    assert sum(shares[0].values()) >= 15


def test_standardising_uses_training_images_only_and_survives_a_constant_feature():
    made = frozen()
    made.image_NI[:, 3] = 7.0
    data = TrainData(made)
    image_NI = data.images(standardise=True)
    train_NI = image_NI[torch.from_numpy(made.split_N == TRAIN)]
    assert torch.isfinite(image_NI).all()
    assert torch.allclose(train_NI.mean(0), torch.zeros(12), atol=1e-5)
    assert image_NI[:, 3].abs().max() == 0
    assert not torch.allclose(image_NI.mean(0), torch.zeros(12), atol=1e-3)


def test_dropout_has_its_rate_keeps_the_mean_and_follows_its_generator():
    ones = torch.ones(1000, 1003)
    for p in (0.1, 0.3, 0.9):
        dropped = drop(ones, p, torch.Generator().manual_seed(0))
        assert (dropped == 0).float().mean().item() == pytest.approx(p, abs=3e-3)
        assert dropped.mean().item() == pytest.approx(1, abs=1e-2)
        assert torch.equal(dropped, drop(ones, p, torch.Generator().manual_seed(0)))
        assert not torch.equal(dropped, drop(ones, p, torch.Generator().manual_seed(1)))
        columns = (dropped == 0).float().mean(0)
        assert columns.std().item() == pytest.approx(math.sqrt(p * (1 - p) / 1000), rel=0.15)
    assert drop(ones, 0.0, torch.Generator()) is ones


def test_heads_start_as_linear_layers_do_and_give_unit_rows():
    made = Heads(image_dim=400, text_dim=100, dim=64, image_dropout=0.5, text_dropout=0.0, seed=0)
    assert made.image_weight.abs().max().item() == pytest.approx(1 / 20, rel=0.01)
    assert made.text_weight.std().item() == pytest.approx(0.1 / math.sqrt(3), rel=0.05)
    x = torch.randn(7, 400)
    assert torch.allclose(made.image(x).norm(dim=1), torch.ones(7))
    assert torch.equal(made.image(x), made.image(x))
    assert not torch.equal(made.image(x), made.image(x, torch.Generator().manual_seed(0)))


def test_streams_of_different_purposes_and_epochs_differ():
    draws = {stream(s, p, e).integers(2**60) for s in (0, 1) for p in ("init", "order", "dropout") for e in (0, 1)}
    assert len(draws) == 12


@pytest.mark.parametrize(("samples", "batch", "steps"), [(2973, 256, 12), (512, 256, 2), (513, 256, 2), (514, 256, 3)])
def test_a_last_batch_of_one_is_left_out(samples, batch, steps):
    assert recipe(batch_size=batch).steps_per_epoch(samples) == steps


def test_the_learning_rate_warms_up_and_follows_its_schedule():
    of: Recipe = recipe(lr=1.0, warmup=0.1, lr_schedule="cosine")
    rates = [of.lr_at(step, 100) for step in range(100)]
    assert rates[:10] == pytest.approx([(i + 1) / 11 for i in range(10)])
    assert rates[10] == pytest.approx(1.0)
    assert rates[55] == pytest.approx(0.5)
    assert rates[-1] < 0.01
    assert recipe(lr=0.3).lr_at(99, 100) == 0.3
    line = recipe(lr=1.0, lr_schedule="linear")
    assert [line.lr_at(step, 4) for step in range(4)] == [1.0, 0.75, 0.5, 0.25]


@pytest.mark.parametrize("onednn", [True, False])
def test_linear_and_its_gradients_are_those_of_torch_whichever_library_multiplies(onednn, monkeypatch):
    from mmts_ray.towers import heads as towers

    if onednn and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no oneDNN product")
    monkeypatch.setattr(towers, "_onednn", lambda: onednn)
    generator = torch.Generator().manual_seed(0)
    for rows, wide in ((1, 7), (40, 33), (256, 128)):
        x, w, b = (torch.randn(s, generator=generator) for s in ((rows, wide), (19, wide), (19,)))
        out_grad = torch.randn(rows, 19, generator=generator)
        grads = []
        for function, dtype in ((towers.linear, torch.float32), (torch.nn.functional.linear, torch.float64)):
            leaves = [t.to(dtype).requires_grad_() for t in (x, w, b)]
            out = function(*leaves)
            grads.append([out, *torch.autograd.grad(out, leaves, out_grad.to(dtype))])
        for mine, right in zip(*grads, strict=True):
            assert torch.allclose(mine.double(), right, rtol=1e-4, atol=1e-4)
    assert towers.linear(torch.empty(0, 7), torch.randn(19, 7), torch.randn(19)).shape == (0, 19)
    assert towers.linear(x.double(), w.double(), b.double()).dtype == torch.float64


def test_the_ranks_of_the_test_queries_give_back_its_recalls(data):
    config = config_of("mm-ts")
    rows = list(train(config, data, test=True))
    assert [row.ranks is None for row in rows] == [True, True, True, False]
    found, metrics = rows[-1].ranks(), rows[-1].metrics
    assert set(found["image"]) == set(data.split(2).images.tolist())
    assert (found["i2t"] < 5).mean() == pytest.approx(metrics["test_i2t_r5"])
    for group in ("head", "mid", "tail"):
        assert found[group].sum() == metrics[f"test_n_{group}"]
        assert (found["i2t"][found[group]] < 1).mean() == pytest.approx(metrics[f"test_{group}_r1"])
    assert list(train(config, data))[-1].ranks is None


def test_the_gradient_norm_is_that_of_the_last_batch(data):
    row = list(train(config_of("constant", **{"train.epochs": 1, "train.lr": 1e-7}), data))[-1]
    grown = list(train(config_of("constant", **{"train.epochs": 1, "train.lr": 1e-7, "schedule.value": 0.5}), data))[-1]
    assert 0 < grown.metrics["train_gradient_norm"] < row.metrics["train_gradient_norm"]


def test_the_probe_runs_at_the_end_when_it_is_asked_for_and_needs_classes(data):
    rows = list(train(config_of("constant", **{"eval.probe": True}), data, test=True))
    assert [sorted(k for k in row.metrics if "probe" in k) for row in rows] == [
        [],
        [],
        [],
        ["test_probe_accuracy", "val_probe_accuracy"],
    ]
    assert rows[-1].metrics["val_probe_accuracy"] > 0.4  # six classes that the features separate well
    assert not any("probe" in k for row in train(config_of("constant"), data) for k in row.metrics)
    bare = TrainData(replace(data.frozen, class_N=None, names={"data": "toy"}))
    with pytest.raises(ValueError, match=r"eval\.probe: needs classes, which toy lacks"):
        list(train(config_of("constant", **{"eval.probe": True}), bare))


def test_the_optimiser_decays_matrices_only_and_takes_its_betas_from_the_recipe():
    parameters = [torch.nn.Parameter(torch.ones(shape)) for shape in ((2, 3), (3,), ())]
    optimiser = recipe(weight_decay=0.2, beta2=0.98).optimiser(parameters)
    decayed, rest = optimiser.param_groups
    assert (decayed["weight_decay"], [p.ndim for p in decayed["params"]]) == (0.2, [2])
    assert (rest["weight_decay"], [p.ndim for p in rest["params"]]) == (0.0, [1, 0])
    assert decayed["betas"] == (0.9, 0.98)
    assert recipe().optimiser(parameters).param_groups[0]["betas"] == (0.9, 0.999)
