"""Whole towers in training: crops, resume, chunks, precision, several workers, real pictures."""

import csv
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pictures
import pytest
import torch
from processes import BACKENDS, measured
from tower_trials import ALL, frozen_of, generator, together

from mmts_ray.config import from_flat
from mmts_ray.kernels import Shard
from mmts_ray.recipe import recipe
from mmts_ray.towers.clip import Clip
from mmts_ray.towers.crops import cropped
from mmts_ray.towers.weights import find
from mmts_ray.train import VALIDATION, TrainData, train
from mmts_ray.train.towers import Towers

torch.set_num_threads(1)
pytest.importorskip("open_clip")


# --- crops ------------------------------------------------------------------------------------------------------------


def ramp(count=8, size=32):
    """Pictures whose red is the column and whose green is the row, in pixels times 8."""
    line = torch.arange(size, dtype=torch.float32) * 8
    one = torch.stack([line.expand(size, size), line[:, None].expand(size, size), torch.zeros(size, size)])
    return one.to(torch.uint8).expand(count, -1, -1, -1)


def test_crops_keep_at_least_the_share_and_stay_inside():
    found = cropped(ramp(512), 0.5, generator()).float() / 8
    width = (found[:, 0, 0, -1] - found[:, 0, 0, 0] + 1) / 32  # of the part, to a pixel
    height = (found[:, 1, -1, 0] - found[:, 1, 0, 0] + 1) / 32
    assert ((width * height > 0.45) & (width <= 1.01) & (height <= 1.01)).all()
    assert (width * height).min() < 0.6
    assert (width / height).max() < 4 / 3 + 0.12
    assert (width / height).min() < 0.85
    assert found[:, 0, 0, 0].max() > 5  # parts begin at different places
    assert torch.equal(cropped(ramp(), 1.0, generator()), ramp())


def test_workers_crop_their_share_as_one_process_crops_the_batch():
    whole = cropped(ramp(9), 0.5, generator())
    parts = []
    for rank in range(2):
        shard = Shard(None, rank, (5, 4))
        parts.append(cropped(ramp(9)[shard.own], 0.5, generator(), shard))
    assert torch.equal(torch.cat(parts), whole)


# --- training ---------------------------------------------------------------------------------------------------------


def tensors(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    values = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else []
    return [t for value in values for t in tensors(value)]


CASES = {
    "full": {},
    "last blocks": {"model.image_blocks": 1, "model.text_blocks": 2},
    "learnable, xnce": {"schedule.name": "learnable", "loss.r_mix": 0.3},
    "chunks": {"model.chunk": 7},
}


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_equals_the_straight_one_bit_for_bit(case, drawn, tmp_path):
    flat, data = drawn
    config = from_flat({**flat, **CASES[case]})
    kept = {}

    def keep(step, epoch, state):
        torch.save(state(), tmp_path / f"{step}.pt")
        kept[step] = epoch

    straight = list(train(config, data, test=True, pulse=keep))
    middle = sorted(kept)[len(kept) // 2]
    state = torch.load(tmp_path / f"{middle}.pt", weights_only=True)
    resumed = list(train(config, data, state, test=True))
    assert [row.metrics for row in resumed] == [row.metrics for row in straight[kept[middle] :]]
    ends = [tensors(rows[-1].state()) for rows in (resumed, straight)]
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    assert {"test_zeroshot_top1", "val_zeroshot_top1", "val_r10"} <= set(straight[-1].metrics)


def test_chunks_change_memory_and_nothing_else(drawn):
    flat, data = drawn
    whole, chunked = (list(train(from_flat({**flat, "model.chunk": chunk}), data)) for chunk in (None, 5))
    for one, other in zip(whole, chunked, strict=True):
        assert other.metrics["train_loss"] == pytest.approx(one.metrics["train_loss"], rel=1e-5)
        assert other.metrics["train_gradient_norm"] == pytest.approx(one.metrics["train_gradient_norm"], rel=1e-3)


def test_the_temperature_of_the_network_does_not_move_and_no_dropout_is_drawn(place, drawn):
    flat, data = drawn
    rows = list(train(from_flat(flat), data))
    assert rows[-1].state()["model"]["network.logit_scale"] == pytest.approx(np.log(1 / 0.07))
    content = {**pictures.TINY, "vision_cfg": {**pictures.TINY["vision_cfg"], "patch_dropout": 0.5}}
    source = find(str(pictures.config(place, content, "dropping.json")))
    model = Clip(source, 0, crop=1.0, batch_norm="batch", precision="float32", **ALL).train()
    pixels = data.inputs()[0].take(torch.arange(4))
    assert torch.equal(model.image(pixels), model.image(pixels))


def test_a_batch_normalisation_takes_the_batch_or_what_is_stored(place, drawn):
    flat, _ = drawn
    path = pictures.config(place, pictures.RESNET, "resnet.json")
    given = {**flat, "model.weights": str(path), "train.epochs": 1}
    _, frozen = frozen_of(given, place / "cache")
    data = TrainData(frozen, cache_dir=place / "cache")
    moved, stored = (
        list(train(from_flat({**given, "model.batch_norm": how}), data))[-1].state()["model"]
        for how in ("batch", "stored")
    )
    name = "network.visual.layer1.0.bn1.running_mean"
    assert moved[name].abs().max() > 0
    assert stored[name].abs().max() == 0
    locked = from_flat({**given, "model.image_blocks": 1})
    state = list(train(locked, data))[-1].state()["model"]
    assert state[name].abs().max() == 0
    assert state["network.visual.layer4.0.bn1.running_mean"].abs().max() > 0
    with pytest.raises(ValueError, match="encoder chunks: BatchNorm2d in training mode"):
        list(train(from_flat({**given, "model.chunk": 8}), data))


def test_products_in_bfloat16_leave_parameters_and_gradients_in_float32(place, monkeypatch):
    source = find(str(pictures.config(place)))
    exact, rough = (Clip(source, 0, crop=1.0, batch_norm="batch", precision=p, **ALL) for p in ("float32", "bfloat16"))
    # autocast does on a CPU what it does on a GPU; the model itself asks for it on a GPU only
    monkeypatch.setattr(rough, "_autocast", lambda like: torch.autocast("cpu", dtype=torch.bfloat16))
    pixels = torch.randint(0, 256, (4, 3 * 32 * 32), dtype=torch.uint8, generator=generator())
    found = rough.image(pixels)
    assert found.dtype == torch.float32
    assert 0 < (found - exact.image(pixels)).abs().max() < 0.05
    found.sum().backward()
    assert {p.grad.dtype for p in rough.parameters() if p.grad is not None} == {torch.float32}


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_two_workers_give_the_numbers_of_one(backend, drawn, tmp_path, place):
    flat, data = drawn
    resnet = {**flat, "model.weights": str(pictures.config(place, pictures.RESNET, "resnet.json"))}
    measure = partial(together, {"flat": flat, "resnet": resnet}, str(place / "cache"))
    found = measured(measure, 2, backend, tmp_path, deadline_s=240)
    alone = list(train(from_flat(flat), data, test=True))
    ours = alone[-1].state()["model"]
    for one in found:
        for mine, theirs in zip(one["flat"]["metrics"], alone, strict=True):
            assert mine.keys() == theirs.metrics.keys()
            for name in ("train_loss", "val_modality_distance", "val_alignment"):
                assert mine[name] == pytest.approx(theirs.metrics[name], rel=1e-3)
        for name, value in ours.items():
            if not name.endswith("attn.in_proj_bias"):  # a shift of all keys changes nothing: Adam follows rounding
                assert torch.allclose(one["flat"]["model"][name], value, atol=1e-3), name
        assert one["resnet"].startswith("model.batch_norm: batch takes the statistics of one worker's share")


# --- real pictures ----------------------------------------------------------------------------------------------------


EMOJI = Path(__file__).parents[3] / "shared" / "data" / "emoji"
NOTO = "noto"


def emoji_table(folder):
    """The Noto drawings with their names; validation and test as one gallery of 612."""
    with zipfile.ZipFile(EMOJI / "images.zip") as archive:
        archive.extractall(folder)
    with (EMOJI / "captions.csv").open(encoding="utf8", newline="") as source:
        rows = [row for row in csv.DictReader(source) if row["style"] == NOTO]
    path = next(folder.rglob("em00000.webp")).with_name("noto.csv")
    with path.open("w", encoding="utf8", newline="") as target:
        writer = csv.writer(target)
        writer.writerow(("image", "caption", "split", "group"))
        for row in rows:
            split = "train" if row["split"] == "train" else "val"
            writer.writerow((f"{row['id']}.webp", row["caption"], split, row["group"]))
    return path


@pytest.mark.slow
@pytest.mark.skipif(not EMOJI.is_dir(), reason="needs ../shared/data/emoji")
def test_a_tiny_clip_learns_emoji_from_random_weights(tmp_path):
    weights = Path(__file__).parents[2] / "search_spaces" / "models" / "tiny_clip.json"
    flat = pictures.flat(emoji_table(tmp_path), weights, **{"data.class_column": "group", "schedule.name": "constant"})
    flat |= {"schedule.value": 0.07, "train.epochs": 5, "train.batch_size": 128, "model.crop": 0.9}
    config, frozen = frozen_of(flat, tmp_path / "cache")
    data = TrainData(frozen, cache_dir=tmp_path / "cache")
    untrained = Towers(config=config, data=data, recipe=recipe(batch_size=128)).evaluate(VALIDATION, final=False)
    assert data.split(VALIDATION).images.shape == (612,)
    assert untrained["r10"] < 0.03
    rows = list(train(config, data))
    assert rows[-1].metrics["train_loss"] < rows[0].metrics["train_loss"] / 2
    assert rows[-1].metrics["val_r10"] > 0.25
    assert rows[-1].metrics["val_zeroshot_top1"] > 1.5 / 9  # of nine groups, from names that no caption holds
