"""A small data set of drawn pictures with captions and classes, and the smallest open_clip models: files on disk."""

import csv
import json
from pathlib import Path

import numpy as np

COLOURS = {"red": (220, 30, 30), "green": (30, 180, 60), "blue": (40, 60, 220), "yellow": (230, 210, 40)}
TINY = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "patch_size": 8, "layers": 3, "width": 32, "head_width": 16},
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 3},
}
RESNET = {**TINY, "vision_cfg": {"layers": [1, 1, 1, 1], "width": 16, "image_size": 64, "patch_size": None}}
TIMM = {
    **TINY,
    "vision_cfg": {
        "timm_model_name": "tf_efficientnet_lite0",
        "timm_model_pretrained": False,
        "timm_pool": "",
        "timm_proj": "linear",
        "image_size": 64,
    },
}


def table(folder: Path, *, count: int = 96, broken: int = 0) -> Path:
    """`count` pictures of one stripe each, named by colour and place; the first `broken` of them are cut short."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    lines = []
    for number in range(count):
        colour = list(COLOURS)[number % 4]
        place = number // 4 % 8
        pixels = np.full((40, 44, 3), 255, dtype=np.uint8)
        pixels[:, 2 + 5 * place : 7 + 5 * place] = COLOURS[colour]
        pixels ^= rng.integers(0, 8, pixels.shape, dtype=np.uint8)
        path = folder / f"{number:03}.png"
        Image.fromarray(pixels).save(path)
        if number < broken:
            path.write_bytes(path.read_bytes()[:200])
        split = "test" if number % 6 == 5 else "val" if number % 6 == 4 else "train"
        lines.append((path.name, f"a {colour} stripe at place {place}, number {number}", colour, split))
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("image", "caption", "colour", "split"))
        writer.writerows(lines)
    return folder / "table.csv"


def config(folder: Path, content: dict = TINY, name: str = "tiny.json") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(json.dumps(content))
    return path


def bert(folder: Path) -> dict:
    """A model configuration whose text tower is a small BERT, saved in the folder with random weights."""
    import torch
    from transformers import BertConfig, BertModel

    with torch.random.fork_rng():
        torch.manual_seed(0)
        small = BertConfig(
            vocab_size=100, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=64
        )
        BertModel(small).save_pretrained(folder)
    text = {"hf_model_name": str(folder), "hf_pooler_type": "mean_pooler", "hf_proj_type": "linear"}
    return {**TINY, "text_cfg": {**text, "context_length": 16}}


def flat(table: Path, weights: Path | str, **more: object) -> dict[str, object]:
    """A configuration that trains in a moment."""
    return {
        "data.name": "table",
        "data.path": str(table),
        "data.class_column": "colour",
        "data.split_column": "split",
        "model.name": "open_clip",
        "model.weights": str(weights),
        "model.text_encoder": "none",
        "model.crop": 0.6,
        "groups.name": "classes",
        "eval.source": "classes",
        "schedule.name": "cosine",
        "train.epochs": 2,
        "train.batch_size": 24,
        "train.lr": 1e-3,
        **more,
    }
