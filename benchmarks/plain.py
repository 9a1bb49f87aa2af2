"""Two linear heads on frozen features with the MM-TS loss, as somebody writes them who has PyTorch and not MMTS-Ray.

Both competitors train with this. It reads arrays that `replay.export` wrote, so that nothing of `mmts_ray` is imported.

Shapes: M training pairs, V validation pairs, B batch, I and T feature dimensions, D embedding, P distinct captions.
"""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass(frozen=True)
class Inputs:
    """What is the same in every trial: features (images standardised), initial weights, order of each epoch."""

    train_image_MI: Tensor
    train_text_MT: Tensor
    val_image_VI: Tensor
    val_text_VT: Tensor
    initial: dict[str, Tensor]
    order_EM: list[list[int]]


def load(folder: str) -> Inputs:
    """Read the arrays and standardise the image features by those of training."""

    def read(name: str) -> Tensor:
        return torch.from_numpy(np.load(os.path.join(folder, f"{name}.npy")))

    train_image_MI, val_image_VI = read("train_image"), read("val_image")
    mean_I, deviation_I = train_image_MI.mean(0), train_image_MI.std(0, correction=0)
    deviation_I[deviation_I < 1e-6] = torch.inf
    return Inputs(
        train_image_MI=(train_image_MI - mean_I) / deviation_I,
        train_text_MT=read("train_text"),
        val_image_VI=(val_image_VI - mean_I) / deviation_I,
        val_text_VT=read("val_text"),
        initial={name: read(f"initial_{name.replace('.', '_')}") for name in WEIGHTS},
        order_EM=read("order").tolist(),
    )


WEIGHTS = ("image.weight", "image.bias", "text.weight", "text.bias")


def cluster_sizes(text_MT: Tensor, k: int) -> np.ndarray:
    """Training captions in the cluster of each training caption (M,): k-means on unit text features.

    Distinct and sorted points are what MMTS-Ray clusters; given them too, k-means finds the same clusters.
    """
    from sklearn.cluster import KMeans

    text_MT = text_MT.numpy()
    unit_MT = np.round(text_MT / np.linalg.norm(text_MT, axis=1, keepdims=True), 5)
    points_PT, point_M = np.unique(unit_MT, axis=0, return_inverse=True)
    label_M = KMeans(n_clusters=k, n_init=1, random_state=0).fit(points_PT).labels_[point_M]
    return np.bincount(label_M)[label_M]


class Heads(nn.Module):
    """Dropout and a linear layer per modality."""

    def __init__(self, *, image_dim: int, text_dim: int, dim: int, image_dropout: float, text_dropout: float) -> None:
        super().__init__()
        self.image_dropout, self.text_dropout = nn.Dropout(image_dropout), nn.Dropout(text_dropout)
        self.image, self.text = nn.Linear(image_dim, dim), nn.Linear(text_dim, dim)

    def forward(self, image_BI: Tensor, text_BT: Tensor) -> tuple[Tensor, Tensor]:
        image_BD = self.image(self.image_dropout(image_BI))
        text_BD = self.text(self.text_dropout(text_BT))
        return F.normalize(image_BD, dim=1), F.normalize(text_BD, dim=1)


def mmts_loss(image_BD: Tensor, text_BD: Tensor, temperature_B: Tensor) -> Tensor:
    """Cross-entropy in both directions, each anchor with its own temperature."""
    cosine_BB = image_BD @ text_BD.T
    target_B = torch.arange(len(cosine_BB))
    image_to_text = F.cross_entropy(cosine_BB / temperature_B[:, None], target_B)
    text_to_image = F.cross_entropy(cosine_BB.T / temperature_B[:, None], target_B)
    return 0.5 * (image_to_text + text_to_image)


def recalls(image_VD: Tensor, text_VD: Tensor) -> dict[str, float]:
    """Recall at 1, 5 and 10 both ways; caption i belongs to image i, and ties count against the model."""
    cosine_VV = image_VD @ text_VD.T
    right_V1 = cosine_VV.diagonal()[:, None]
    out = {}
    for name, scores_VV in (("i2t", cosine_VV), ("t2i", cosine_VV.T)):
        rank_V = (scores_VV >= right_V1).sum(1)
        out |= {f"{name}_r{k}": (rank_V <= k).float().mean().item() for k in (1, 5, 10)}
    return out


def train(config: dict[str, Any], inputs: Inputs, size_M: np.ndarray) -> Iterator[dict[str, float]]:
    """Train one configuration; yields the metrics after each epoch."""
    torch.manual_seed(config["train.seed"])
    model = Heads(
        image_dim=inputs.train_image_MI.shape[1],
        text_dim=inputs.train_text_MT.shape[1],
        dim=config["model.dim"],
        image_dropout=config["model.image_dropout"],
        text_dropout=config["model.text_dropout"],
    )
    model.load_state_dict(inputs.initial)
    decay = [p for name, p in model.named_parameters() if name.endswith("weight")]
    rest = [p for name, p in model.named_parameters() if name.endswith("bias")]
    optimiser = torch.optim.AdamW(
        [{"params": decay, "weight_decay": config["train.weight_decay"]}, {"params": rest, "weight_decay": 0.0}],
        lr=config["train.lr"],
    )
    # MM-TS: larger clusters are warmer, and everything oscillates
    share_M = (size_M - size_M.min()) / max(1, size_M.max() - size_M.min())
    lowest = config["schedule.tau_min"] + config["schedule.alpha"] / 2
    shift_M = torch.from_numpy(lowest + config["schedule.spread"] * share_M).float()
    dataset = TensorDataset(inputs.train_image_MI, inputs.train_text_MT, shift_M)
    batch_size, epochs = config["train.batch_size"], config["train.epochs"]
    total_steps = epochs * math.ceil(len(dataset) / batch_size)
    period = max(1, math.floor(total_steps / config["schedule.oscillations"]))
    step = 0
    for epoch in range(epochs):
        model.train()
        losses = []
        for image_BI, text_BT, shift_B in DataLoader(dataset, batch_size, sampler=inputs.order_EM[epoch]):
            base = config["schedule.alpha"] / 2 * math.cos(2 * math.pi * step / period)
            loss = mmts_loss(*model(image_BI, text_BT), base + shift_B)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
            step += 1
        model.eval()
        with torch.no_grad():
            metrics = recalls(*model(inputs.val_image_VI, inputs.val_text_VT))
        yield {"train_loss": torch.stack(losses).mean().item(), **metrics}


def read_task(path: str) -> dict[str, Any]:
    """`inputs` (a folder), `points` (searched values), `configurations` (complete), `space` (as in a space file)."""
    with open(path, encoding="utf8") as file:
        return json.load(file)
