"""A trial that trains whole encoders on pictures and captions: the same run on pairs, with bytes and token ids as rows.

Shapes: N images, U unique captions, B batch, D embedding dim, C classes, P prompts of a class, L tokens.
"""

from collections.abc import Callable
from typing import Any

import torch

from mmts_ray.features import Zeroshot
from mmts_ray.gradcache import chunked_step
from mmts_ray.kernels import Shard
from mmts_ray.losses import LossOut
from mmts_ray.metrics import zeroshot_top1
from mmts_ray.train.data import Rows, Split
from mmts_ray.train.pairs import Pairs

ROWS = 256  # embedded at once in an evaluation


class Towers(Pairs):
    """Pairs whose model reads pixels (N, 3 S S) and token ids (U, L) that are fetched batch by batch."""

    def _inputs(self) -> tuple[Any, Any]:
        pixels, tokens, *_ = self.data.inputs()
        return pixels, tokens

    def _backward(
        self,
        image_B: torch.Tensor,
        text_B: torch.Tensor,
        dropout: torch.Generator,
        shard: Shard,
        objective: Callable[..., LossOut],
    ) -> LossOut:
        # crops are drawn for the whole batch before it is cut: they do not depend on the chunks
        batch = (
            self.model.augmented(self.image_NI.take(image_B), dropout, shard),
            self.text_UT.take(text_B),
        )

        def encode(part: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
            return self.model.image(part[0]), self.model.text(part[1])

        return chunked_step(encode, batch, objective, chunk=self.chunk or len(image_B))

    @property
    def chunk(self) -> int | None:
        """Rows whose activations are held at once."""
        return self.config.kwargs("model")["chunk"]

    def _embedded(self, split: Split) -> tuple[torch.Tensor, torch.Tensor]:
        self.model.eval()
        return self._images(split.images), self._embed(self.model.text, self.text_UT, split.texts)

    def _images(self, images: torch.Tensor) -> torch.Tensor:
        return self._embed(self.model.image, self.image_NI, images)

    @torch.no_grad()
    def _embed(self, tower: Any, rows: Rows, index: torch.Tensor) -> torch.Tensor:
        return torch.cat([tower(rows.take(part)) for part in index.split(ROWS)])

    def evaluate(self, which: int, *, final: bool) -> dict[str, float]:
        """As for pairs; at the end also `zeroshot_top1`, when the data has classes."""
        out = super().evaluate(which, final=final)
        if out and final and self.data.frozen.zeroshot is not None:
            out["zeroshot_top1"] = self._zeroshot(self.data.frozen.zeroshot, self.data.split(which))
        return out

    def _zeroshot(self, zeroshot: Zeroshot, split: Split) -> float:
        """Of the pictures of a split, or of those that are there for it."""
        prompts_CPL, class_N = zeroshot.prompts_CPL, zeroshot.class_N
        if class_N is not None:
            pixels = self.data.inputs()[2]
            shown_ND = self._embed(self.model.image, pixels, torch.arange(len(pixels), device=self.data.device))
        else:
            assert self.data.frozen.class_N is not None
            class_N = self.data.frozen.class_N[split.images.cpu().numpy()]
            shown_ND = self._images(split.images)
        flat = Rows(prompts_CPL.reshape(-1, prompts_CPL.shape[2]))
        prompts_QD = self._embed(self.model.text, flat, torch.arange(len(flat), device=self.data.device))
        return zeroshot_top1(shown_ND, prompts_QD.view(*prompts_CPL.shape[:2], -1), class_N)
