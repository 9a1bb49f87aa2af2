"""Two trained towers of open_clip: pixels and token ids in, unit embeddings out."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from mmts_ray.kernels import Shard
from mmts_ray.towers.crops import cropped
from mmts_ray.towers.locking import trained_names
from mmts_ray.towers.weights import Source, build


class Clip(torch.nn.Module):
    """An open_clip network of which the chosen parameters are trained.

    The network stays in evaluation mode, so that nothing in it draws random numbers (dropout of a text tower, dropped
    patches): losses and gradients do not depend on chunks or workers. Only a trained BatchNorm takes the statistics of
    its batch when `batch_norm` is "batch".
    """

    mean_C11: Tensor
    std_C11: Tensor

    def __init__(
        self,
        source: Source,
        seed: int,
        *,
        crop: float,
        batch_norm: str,
        precision: str,
        image_blocks: int | None,
        text_blocks: int | None,
        image_projection: bool,
        text_projection: bool,
    ) -> None:
        super().__init__()
        self.network: Any = build(source, seed)
        self.crop, self.batch_norm, self.precision = crop, batch_norm, precision
        self.image_size = source.image_size
        mean, std = (
            torch.tensor(source.preprocess_cfg[k], dtype=torch.float32)[:, None, None] for k in ("mean", "std")
        )
        self.register_buffer("mean_C11", mean, persistent=False)
        self.register_buffer("std_C11", std, persistent=False)
        chosen = trained_names(
            [name for name, _ in self.network.named_parameters()],
            image_blocks=image_blocks,
            text_blocks=text_blocks,
            image_projection=image_projection,
            text_projection=text_projection,
        )
        for name, parameter in self.network.named_parameters():
            parameter.requires_grad_(name in chosen)
        self.norms = [
            module
            for module in self.network.modules()
            if isinstance(module, _BatchNorm) and any(p.requires_grad for p in module.parameters())
        ]
        self.train()

    def train(self, mode: bool = True) -> "Clip":
        super().train(False)
        for norm in self.norms:
            norm.train(mode and self.batch_norm == "batch")
        return self

    def augmented(self, pixels_BI: Tensor, generator: torch.Generator, shard: Shard | None = None) -> Tensor:
        """Random crops of a batch of flat pictures, uint8 in and out, (B, 3 S S)."""
        if shard is not None and shard.group is not None and any(norm.training for norm in self.norms):
            raise ValueError("model.batch_norm: batch takes the statistics of one worker's share; legal is stored")
        return cropped(self._square(pixels_BI), self.crop, generator, shard).flatten(1)

    def image(self, pixels_BI: Tensor, generator: torch.Generator | None = None, shard: Shard | None = None) -> Tensor:
        """Unit image embeddings (B, D) of bytes (B, 3 S S); cropped at random only when a generator is given."""
        if generator is not None:
            pixels_BI = self.augmented(pixels_BI, generator, shard)
        x_BCSS = self._square(pixels_BI).float().div_(255).sub_(self.mean_C11).div_(self.std_C11)
        with self._autocast(x_BCSS):
            features_BD = self.network.encode_image(x_BCSS)
        return functional.normalize(features_BD.float(), dim=-1)

    def text(self, tokens_BL: Tensor, generator: torch.Generator | None = None, shard: Shard | None = None) -> Tensor:
        """Unit text embeddings (B, D) of token ids (B, L)."""
        with self._autocast(tokens_BL):
            features_BD = self.network.encode_text(tokens_BL.long())
        return functional.normalize(features_BD.float(), dim=-1)

    def _square(self, pixels_BI: Tensor) -> Tensor:
        return pixels_BI.view(len(pixels_BI), 3, self.image_size, self.image_size)

    def _autocast(self, like: Tensor) -> AbstractContextManager[Any]:
        on = self.precision == "bfloat16" and like.device.type == "cuda"
        return torch.autocast(like.device.type, dtype=torch.bfloat16, enabled=on)
