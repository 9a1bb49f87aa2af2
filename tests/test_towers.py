"""Whole open_clip towers: what they read, which parameters move, weights in, chunks, resume, workers."""

import csv
import json
import shutil
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pictures
import pytest
import torch
from processes import BACKENDS, measured
from tower_workers import together

from mmts_ray import prepare
from mmts_ray.config import ENCODING, from_flat
from mmts_ray.data.class_folders import class_folders
from mmts_ray.kernels import Shard
from mmts_ray.recipe import recipe
from mmts_ray.towers.clip import Clip
from mmts_ray.towers.crops import cropped
from mmts_ray.towers.locking import trained_names
from mmts_ray.towers.pack import inputs
from mmts_ray.towers.weights import build, find, read
from mmts_ray.train import VALIDATION, TrainData, train
from mmts_ray.train.towers import Towers

torch.set_num_threads(1)
pytest.importorskip("open_clip")
ALL = {"image_blocks": None, "text_blocks": None, "image_projection": True, "text_projection": True}


def frozen_of(flat, cache):
    config = from_flat(flat)
    encoding = {k: v for k, v in config.items if k.startswith(ENCODING)}
    return config, prepare.features(encoding, cache_dir=cache, quiet=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("towers")


@pytest.fixture(scope="module")
def drawn(place):
    """(flat configuration, its data)."""
    flat = pictures.flat(pictures.table(place / "drawn"), pictures.config(place))
    _, frozen = frozen_of(flat, place / "cache")
    return flat, TrainData(frozen, cache_dir=place / "cache")


# --- what the towers read ---------------------------------------------------------------------------------------------


def test_pixels_and_tokens_are_what_the_librarys_transform_and_tokenizer_give(drawn, place):
    import open_clip
    from PIL import Image

    _, data = drawn
    pixels, tokens = data.inputs()
    assert (pixels.array.dtype, pixels.shape) == (np.uint8, (96, 3 * 32 * 32))
    assert (tokens.array.dtype, tokens.shape) == (np.int32, (96, 16))
    open_clip.add_model_config(place / "tiny.json")
    _, _, transform = open_clip.create_model_and_transforms("tiny")
    model = Clip(find(str(place / "tiny.json")), 0, crop=1.0, batch_norm="batch", precision="float32", **ALL)
    seen = []
    model.network.encode_image = lambda x: seen.append(x) or x.flatten(1)
    model.image(pixels.take(torch.arange(3)))
    for number in range(3):
        theirs = transform(Image.open(place / "drawn" / f"{number:03}.png").convert("RGB"))
        assert torch.equal(seen[0][number], theirs)
    unique = sorted({f"a {list(pictures.COLOURS)[n % 4]} stripe at place {n // 4 % 8}, number {n}" for n in range(96)})
    assert torch.equal(tokens.take(torch.arange(96)).long(), open_clip.get_tokenizer("tiny")(unique))


def test_nothing_is_encoded_that_nobody_asked_for(drawn):
    _, data = drawn
    assert data.frozen.image_NI.shape == (96, 0)
    assert data.frozen.text_UT.shape == (96, 0)
    with pytest.raises(ValueError, match=r"clusters of captions need features, and model\.text_encoder is none"):
        data.groups("captions", {"k": 3, "seed": 0})
    with pytest.raises(ValueError, match=r"soft_labels: image needs features, and model\.image_encoder is none"):
        data.teacher("image")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"groups.name": "captions"}, r"groups\.name: captions needs text features, and model\.text_encoder is none"),
        ({"groups.name": "images"}, r"groups\.name: images needs image features"),
        ({"eval.source": "captions"}, r"eval\.source: captions needs text features"),
        ({"loss.angular_margin": 0.1}, r"loss\.soft_labels: text needs text features"),
        ({"loss.filter_threshold_image": 0.9, "loss.soft_labels": "image"}, r"soft_labels: image needs image features"),
    ],
)
def test_what_needs_features_that_nobody_makes_is_refused_before_anything_runs(given, message, drawn):
    with pytest.raises(ValueError, match=message):
        from_flat({**drawn[0], **given})
    assert from_flat({**drawn[0], "loss.soft_labels": "image"})  # no teacher: nothing reads them


def test_heads_need_features_of_both_sides():
    with pytest.raises(ValueError, match=r"model\.name: frozen_heads needs text features"):
        from_flat({"model.text_encoder": "none", "groups.name": "classes", "eval.source": "classes"})


def test_a_process_that_finds_no_inputs_makes_them_anew_and_one_with_other_data_refuses(place, drawn):
    flat, data = drawn
    here = shutil.copytree(place / "cache", place / "elsewhere")
    shutil.rmtree(here / data.frozen.inputs[0].entry)
    again = TrainData(data.frozen, cache_dir=here)
    assert np.array_equal(again.inputs()[0].array, data.inputs()[0].array)
    other = pictures.table(place / "other", count=90)
    frozen = frozen_of({**flat, "data.path": str(other)}, place / "cache")[1]
    moved = type(frozen)(**{**vars(frozen), "encoding": data.frozen.encoding})
    with pytest.raises(ValueError, match="here they are others"):
        TrainData(moved, cache_dir=place / "nothing").inputs()


def test_pictures_that_cannot_be_decoded_are_passed_over(place):
    flat = pictures.flat(pictures.table(place / "broken", broken=3), place / "tiny.json", **{"train.epochs": 1})
    config, frozen = frozen_of(flat, place / "cache")
    data = TrainData(frozen, cache_dir=place / "cache")
    pixels, _ = data.inputs()
    assert len(pixels) == len(frozen.split_N) == 93
    assert np.array_equal(pixels.take(torch.tensor([0])).numpy()[0], pixels.array[3])
    assert sum(frozen.names["dropped"].values()) == 3
    assert list(train(config, data))[-1].metrics["train_loss"] > 0


def test_inputs_are_one_for_a_study_and_prompts_need_a_place(place, drawn):
    flat, _ = drawn
    with pytest.raises(ValueError, match=r"model\.prompts: 'a picture' has no place for the class; legal is text with"):
        frozen_of({**flat, "model.prompts": "a {} | a picture"}, place / "cache")
    features = {k: v for k, v in flat.items() if not k.startswith("data.")}
    np.savez(place / "f.npz", image=np.eye(6, dtype=np.float32), text=np.eye(6, dtype=np.float32))
    with pytest.raises(ValueError, match=r"model\.name: this model reads pictures, and data f has features only"):
        frozen_of({**features, "data.name": "features", "data.path": str(place / "f.npz")}, place / "cache")


# --- crops ------------------------------------------------------------------------------------------------------------


def ramp(count=8, size=32):
    """Pictures whose red is the column and whose green is the row, in pixels times 8."""
    line = torch.arange(size, dtype=torch.float32) * 8
    one = torch.stack([line.expand(size, size), line[:, None].expand(size, size), torch.zeros(size, size)])
    return one.to(torch.uint8).expand(count, -1, -1, -1)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


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


# --- which parameters move --------------------------------------------------------------------------------------------


def source_of(kind, folder):
    content = {"resnet": pictures.RESNET, "timm": pictures.TIMM, "vit": pictures.TINY}.get(kind)
    return find(str(pictures.config(folder, content or pictures.bert(folder / "bert"))))


def moved(source, **lock):
    """Names of the parameters that one step moves."""
    model = Clip(source, 0, crop=1.0, batch_norm="stored", precision="float32", **{**ALL, **lock})
    for module in model.modules():  # some start at 0, so that nothing below them would move in the first step
        if isinstance(module, torch.nn.BatchNorm2d):
            module.weight.data.fill_(1.0)
    before = {name: p.detach().clone() for name, p in model.network.named_parameters()}
    trained = [p for p in model.parameters() if p.requires_grad]
    pixels = torch.randint(0, 256, (4, 3 * model.image_size**2), dtype=torch.uint8, generator=generator())
    tokens = torch.randint(1, 99, (4, 16), generator=generator())
    image, text = model.image(pixels), model.text(tokens)
    (image @ text.T * torch.randn(4, 4, generator=generator())).sum().backward()
    for parameter in trained:
        if parameter.grad is not None:  # a step by the sign: what has a gradient moves
            parameter.data.sub_(0.1 * parameter.grad.sign())
    return {name for name, p in model.network.named_parameters() if not torch.equal(p, before[name])}, set(before)


def starting(names, *prefixes):
    return {name for name in names if name.startswith(prefixes)}


IMAGE_LAST = {
    "vit": ("visual.transformer.resblocks.2.", "visual.ln_post."),
    "resnet": ("visual.layer4.0.",),
    "timm": ("visual.trunk.blocks.6.0.", "visual.trunk.conv_head.", "visual.trunk.bn2."),
    "bert": ("visual.transformer.resblocks.2.", "visual.ln_post."),
}
IMAGE_PROJECTION = {"vit": "visual.proj", "resnet": "visual.attnpool.", "timm": "visual.head.", "bert": "visual.proj"}
TEXT_LAST = {"bert": ("text.transformer.encoder.layer.2.",)}
PLAIN_LAST = ("transformer.resblocks.2.", "ln_final.")
IDLE = {"bert": {"text.transformer.pooler.dense.weight", "text.transformer.pooler.dense.bias"}}  # mean pooling


@pytest.mark.parametrize("kind", ["vit", "resnet", "timm", "bert"])
def test_exactly_the_chosen_parameters_move(kind, tmp_path):
    source = source_of(kind, tmp_path)
    image, text = IMAGE_PROJECTION[kind], "text.proj." if kind == "bert" else "text_projection"
    full, names = moved(source)
    still = {"logit_scale"} | IDLE.get(kind, set())
    flat = {n for n in names - full - still if "k_proj.bias" in n or "key.bias" in n}  # softmax ignores a shift of keys
    assert full == names - still - flat
    projections, _ = moved(source, image_blocks=0, text_blocks=0)
    assert projections == starting(names, image, text) - flat
    last, _ = moved(source, image_blocks=1, text_blocks=1)
    expected = starting(names, image, text, *IMAGE_LAST[kind], *TEXT_LAST.get(kind, PLAIN_LAST))
    assert last == expected - flat
    locked, _ = moved(source, image_blocks=0, image_projection=False)  # a locked image tower, as LiT has it
    assert locked == {name for name in full if not name.startswith("visual.")}
    with pytest.raises(ValueError, match=r"model\.image_blocks: 99; the tower has \d+ blocks; legal is at most that"):
        moved(source, image_blocks=99)
    with pytest.raises(ValueError, match=r"model\.image_blocks: nothing is trained"):
        moved(source, image_blocks=0, text_blocks=0, image_projection=False, text_projection=False)


def test_blocks_of_other_towers_are_counted_through_their_stages():
    names = [
        "visual.trunk.stem.0.weight",
        *(
            f"visual.trunk.stages.{s}.{part}.weight"
            for s in (0, 1)
            for part in ("downsample.0", "blocks.0.conv", "blocks.1.conv")
        ),
        "visual.trunk.norm.weight",
        "text.proj.0.weight",
    ]
    chosen = trained_names(names, image_blocks=2, text_blocks=0, image_projection=True, text_projection=False)
    assert chosen == {
        "visual.trunk.stages.1.downsample.0.weight",
        "visual.trunk.stages.1.blocks.0.conv.weight",
        "visual.trunk.stages.1.blocks.1.conv.weight",
        "visual.trunk.norm.weight",
    }


def test_the_same_seed_starts_equal_whatever_was_drawn_before(tmp_path):
    source = source_of("vit", tmp_path)
    first = build(source, 3).state_dict()
    torch.rand(7)
    state = torch.get_rng_state()
    again = build(source, 3).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert not torch.equal(build(source, 4).state_dict()["visual.proj"], first["visual.proj"])


# --- weights in -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(place):
    """The state of a model, with a temperature that is not the initial one."""
    state = build(find(str(pictures.config(place / "in"))), 5).state_dict()
    return {**state, "logit_scale": state["logit_scale"] + 0.5}


def save_safely(state, path):
    from safetensors.torch import save_file

    save_file(state, path)


FORMS = {
    "bare": lambda s, p: torch.save(s, p),
    "state_dict": lambda s, p: torch.save({"state_dict": s, "epoch": 3, "metric": 0.5}, p),
    "model": lambda s, p: torch.save({"model": s}, p),
    "model_state_dict": lambda s, p: torch.save({"model_state_dict": s}, p),
    "DistributedDataParallel": lambda s, p: torch.save({"module." + k: v for k, v in s.items()}, p),
    "torch.compile": lambda s, p: torch.save({"_orig_mod." + k: v for k, v in s.items()}, p),
    "both": lambda s, p: torch.save({"module._orig_mod." + k: v for k, v in s.items()}, p),
    "safetensors": save_safely,
}


@pytest.mark.parametrize("form", FORMS)
def test_weights_come_in_from_every_form_that_training_programs_write(form, trained, place, tmp_path):
    path = tmp_path / ("w.safetensors" if form == "safetensors" else "w.pt")
    FORMS[form](trained, path)
    found = build(find(f"{place / 'in' / 'tiny.json'}/{path}"), 0).state_dict()
    assert all(torch.equal(found[name], value) for name, value in trained.items())


def longer(state):
    return {**state, "positional_embedding": torch.zeros(77, 32)}


WRONG = {
    "missing": (lambda s: {k: v for k, v in s.items() if k != "logit_scale"}, r"1 missing \(logit_scale\)"),
    "extra": (lambda s: {**s, "logit_bias": torch.zeros(())}, r"1 extra \(logit_bias\)"),
    "both": (lambda s: {f"x.{k}": v for k, v in s.items()}, r"\d+ missing \(.*\) and \d+ extra \(x\."),
    "context": (longer, r"positional_embedding has shape \(77, 32\) and the model's \(16, 32\).*interpolated"),
    "shape": (lambda s: {**s, "visual.proj": torch.zeros(32, 8)}, r"visual\.proj has shape \(32, 8\)"),
    "not finite": (lambda s: {**s, "visual.proj": s["visual.proj"] * torch.nan}, r"visual\.proj is not finite"),
    "objects": (lambda s: {"state_dict": s, "metric": np.float64(0.5)}, "holds Python objects"),
    "no tensors": (lambda s: {"epoch": 3}, "has no weights"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_weights_that_would_load_wrong_are_refused_in_one_line(kind, trained, place, tmp_path):
    change, message = WRONG[kind]
    torch.save(change(trained), tmp_path / "w.pt")
    with pytest.raises(ValueError, match=message) as refused:
        build(find(f"{place / 'in' / 'tiny.json'}/{tmp_path / 'w.pt'}"), 0)
    assert "\n" not in str(refused.value)
    assert "w.pt" in str(refused.value)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("ViT-B-32", "is not there and not a known form; legal are efficientnet-lite0"),
        ("open_clip:ViT-B32", r"no model 'ViT-B32' \(did you mean ViT-B-32"),
        (
            "open_clip:ViT-B-32/openia",
            r"no file and no tag 'openia' \(did you mean openai\?\); legal for ViT-B-32: openai,",
        ),
        ("open_clip:ViT-B-32/openai", r"another activation.*legal is open_clip:ViT-B-32-quickgelu/openai"),
        ("open_clip:hf-hub:someone/model", "download the repository and name its folder"),
        ("nowhere/tiny.json", r"nowhere/tiny\.json: No such file or directory"),
        ("open_clip:coca_ViT-B-32", "a model with a text decoder"),
    ],
)
def test_names_that_mean_nothing_are_refused_with_the_legal_forms(weights, message):
    with pytest.raises(ValueError, match=message) as refused:
        find(weights)
    assert "\n" not in str(refused.value)


def test_a_hub_that_does_not_answer_is_told_with_what_works_without_it(monkeypatch):
    def offline(tag):
        raise OSError("We couldn't connect\nto the hub")

    monkeypatch.setattr("open_clip.pretrained.download_pretrained", offline)
    with pytest.raises(ValueError, match=r"couldn't connect to the hub\); without a network.*open_clip:ViT-B-32/PATH"):
        find("open_clip:ViT-B-32/laion2b_s34b_b79k")


def test_a_configuration_that_lacks_a_part_or_is_none_is_refused(tmp_path):
    path = tmp_path / "m.json"
    path.write_text(json.dumps({"embed_dim": 8, "vision_cfg": {}}))
    with pytest.raises(
        ValueError, match=r"m\.json: a model needs embed_dim, vision_cfg and text_cfg; text_cfg is missing"
    ):
        find(str(path))
    path.write_text("{")
    with pytest.raises(ValueError, match=r"m\.json: not JSON"):
        find(str(path))
    path.write_text(json.dumps({**pictures.TINY, "vision_cfg": {"image_size": [32, 48]}}))
    with pytest.raises(ValueError, match=r"image_size \[32, 48\] is not square"):
        find(str(path))
    path.write_text(json.dumps({**pictures.TINY, "vision_cfg": {"image_size": 32, "patch": 8}}))
    with pytest.raises(ValueError, match=r"open_clip cannot build .*patch"):
        build(find(str(path)), 0)


def test_a_tokenizer_is_the_models_own_or_refused_never_a_default(tmp_path):
    text = {**pictures.TINY["text_cfg"], "hf_tokenizer_name": str(tmp_path)}
    path = pictures.config(tmp_path, {**pictures.TINY, "text_cfg": text}, "other.json")
    with pytest.raises(
        ValueError, match=r"model\.weights: the tokenizer .* cannot be loaded .* without a network"
    ) as no:
        inputs(str(path), "a {}").texts.load()
    assert "\n" not in str(no.value)
    before = inputs(str(path), "a {}").texts.version
    (tmp_path / "tokenizer.json").write_text("{}")
    assert inputs(str(path), "a {}").texts.version != before  # a changed tokenizer is not taken for the old one
    few = {**pictures.TINY["text_cfg"], "vocab_size": 1000}
    path = pictures.config(tmp_path, {**pictures.TINY, "text_cfg": few}, "few.json")
    with pytest.raises(ValueError, match=r"token 49407 is beyond the model's vocab_size 1000"):
        inputs(str(path), "a {}").texts.load().encode(["a red stripe"])


def test_a_damaged_file_is_refused(tmp_path):
    for name in ("w.pt", "w.safetensors"):
        (tmp_path / name).write_bytes(b"x" * 100)
        with pytest.raises(ValueError, match=name):
            read(tmp_path / name)


def classes_of(folder):
    """Two class folders of twelve pictures each, one of them cut short, and a file that is none."""
    from PIL import Image

    for name, colour in (("red_stripe", (220, 30, 30)), ("n02", (40, 60, 220))):
        (folder / name / "inner").mkdir(parents=True)
        for number in range(12):
            Image.new("RGB", (40, 40), colour).save(folder / name / "inner" / f"{number}.png")
        (folder / name / "notes.md").write_text("no picture")
    cut = folder / "n02" / "inner" / "3.png"
    cut.write_bytes(cut.read_bytes()[:-40])
    return folder


def test_class_folders_are_classified_by_their_names(drawn, place, tmp_path):
    flat, _ = drawn
    folder = classes_of(tmp_path / "classes")
    given = {**flat, "model.zeroshot": str(folder), "model.prompts": "a {} | one {}", "train.epochs": 1}
    config, frozen = frozen_of(given, place / "cache")
    assert frozen.zeroshot.prompts_CPL.shape == (2, 2, 16)
    assert frozen.zeroshot.class_N.tolist() == [0] * 11 + [1] * 12
    assert frozen.key != frozen_of(flat, place / "cache")[1].key
    data = TrainData(frozen, cache_dir=place / "cache")
    rows = list(train(config, data, test=True))
    assert rows[-1].metrics["val_zeroshot_top1"] == rows[-1].metrics["test_zeroshot_top1"]
    model = Clip(find(flat["model.weights"]), 0, crop=1.0, batch_norm="batch", precision="float32", **ALL)
    model.load_state_dict(rows[-1].state()["model"])
    import open_clip

    tokenise = open_clip.SimpleTokenizer(context_length=16)
    right = 0
    with torch.no_grad():
        pixels = data.inputs()[2]
        for number in range(23):
            image = model.image(pixels.take(torch.tensor([number])))[0]
            scores = []
            for name in ("n02", "red stripe"):
                both = model.text(tokenise([f"a {name}", f"one {name}"]))
                mean = (both[0] + both[1]) / 2
                scores.append(float(image @ mean / mean.norm()))
            own = int(number >= 11)
            right += scores[own] > scores[1 - own]
    assert rows[-1].metrics["val_zeroshot_top1"] == pytest.approx(right / 23)
    (folder / "classes.txt").write_text("n02\ta blue square\nred_stripe\ta red square\n")
    assert frozen_of(given, place / "cache")[1].zeroshot.prompts_CPL.tolist() != frozen.zeroshot.prompts_CPL.tolist()


def test_class_folders_that_are_none_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"model\.zeroshot: .*nowhere: no such folder"):
        class_folders(tmp_path / "nowhere")
    folder = classes_of(tmp_path / "classes")
    (folder / "classes.txt").write_text("n02\tblue\n")
    with pytest.raises(ValueError, match=r"classes\.txt: no name for 'red_stripe'; legal is a line"):
        class_folders(folder)
    (folder / "classes.txt").write_text("n02 blue\n")
    with pytest.raises(ValueError, match=r"classes\.txt: line 1 is not FOLDER<tab>name"):
        class_folders(folder)
    (folder / "classes.txt").unlink()
    shutil.rmtree(folder / "n02")
    with pytest.raises(ValueError, match="pictures of 1 classes; legal is at least two"):
        class_folders(folder)


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

EMOJI = Path(__file__).parents[2] / "shared" / "data" / "emoji"
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
    weights = Path(__file__).parents[1] / "search_spaces" / "models" / "tiny_clip.json"
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
