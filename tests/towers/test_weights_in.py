"""Weights in: every form that training programs write; what would load wrong is refused."""

import json

import numpy as np
import pictures
import pytest
import torch

from mmts_ray.towers.pack import inputs
from mmts_ray.towers.weights import build, find, read

torch.set_num_threads(1)
pytest.importorskip("open_clip")


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
