"""The torch side of `models`: towers that turn a batch into unit embeddings.

Shapes: B batch, I image feature dim, T text feature dim, D embedding dim.
"""

import math
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mmts_ray.kernels import Shard
from mmts_ray.recipe import torch_stream


class Heads(torch.nn.Module):
    """One linear head per modality; initialised from the seed alone, so that every arm of a study starts equal."""

    def __init__(
        self, *, image_dim: int, text_dim: int, dim: int, image_dropout: float, text_dropout: float, seed: int
    ) -> None:
        super().__init__()
        generator = torch_stream(seed, "init")
        self.image_weight = uniform((dim, image_dim), fan_in=image_dim, generator=generator)
        self.image_bias = uniform((dim,), fan_in=image_dim, generator=generator)
        self.text_weight = uniform((dim, text_dim), fan_in=text_dim, generator=generator)
        self.text_bias = uniform((dim,), fan_in=text_dim, generator=generator)
        self.image_dropout = image_dropout
        self.text_dropout = text_dropout

    def image(
        self, features_BI: Tensor, generator: torch.Generator | None = None, shard: Shard | None = None
    ) -> Tensor:
        """Unit image embeddings (B, D); dropout only when a generator is given, as `drop` does it."""
        if generator is not None:
            features_BI = drop(features_BI, self.image_dropout, generator, shard)
        return functional.normalize(linear(features_BI, self.image_weight, self.image_bias), dim=1)

    def text(self, features_BT: Tensor, generator: torch.Generator | None = None, shard: Shard | None = None) -> Tensor:
        """Unit text embeddings (B, D); dropout only when a generator is given, as `drop` does it."""
        if generator is not None:
            features_BT = drop(features_BT, self.text_dropout, generator, shard)
        return functional.normalize(linear(features_BT, self.text_weight, self.text_bias), dim=1)


@cache
def _onednn() -> bool:
    """Whether float32 products go to oneDNN: MKL, torch's default, uses half of an AMD processor's vector width.

    Decided by what the machine is, never by a timing, so that a run repeats itself.
    """
    cpuinfo = Path("/proc/cpuinfo")
    amd = cpuinfo.is_file() and "AuthenticAMD" in cpuinfo.read_text(errors="replace")
    return amd and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _product(a_NK: Tensor, b_MK: Tensor, bias_M: Tensor | None = None) -> Tensor:
    """a b^T + bias by oneDNN, (N, M)."""
    return torch.ops.mkldnn._linear_pointwise(a_NK, b_MK, bias_M, "none", [], "")


class _Linear(torch.autograd.Function):
    """x W^T + b and its gradients, every product by oneDNN."""

    @staticmethod
    def forward(ctx: Any, x_BI: Tensor, weight_DI: Tensor, bias_D: Tensor) -> Tensor:
        ctx.save_for_backward(x_BI, weight_DI)
        return _product(x_BI, weight_DI, bias_D)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x_BI, weight_DI = ctx.saved_tensors
        (grad_BD,) = grads
        grad_BI = _product(grad_BD, weight_DI.T) if ctx.needs_input_grad[0] else None
        return grad_BI, _product(grad_BD.T, x_BI.T), grad_BD.sum(0)


def linear(x_BI: Tensor, weight_DI: Tensor, bias_D: Tensor) -> Tensor:
    """x W^T + b, (B, D), by the faster of torch's two libraries; any device and precision."""
    if x_BI.device.type == "cpu" and x_BI.dtype == weight_DI.dtype == torch.float32 and len(x_BI) and _onednn():
        return _Linear.apply(x_BI, weight_DI, bias_D)
    return functional.linear(x_BI, weight_DI, bias_D)


def uniform(shape: tuple[int, ...], *, fan_in: int, generator: torch.Generator) -> torch.nn.Parameter:
    """A parameter drawn evenly from +-1 / sqrt(fan_in)."""
    bound = 1 / math.sqrt(fan_in)  # what torch.nn.Linear does, from our own generator
    return torch.nn.Parameter(torch.empty(shape).uniform_(-bound, bound, generator=generator))


def drop(x: Tensor, p: float, generator: torch.Generator, shard: Shard | None = None) -> Tensor:
    """Dropout with an explicit generator: zero with probability p, scale the rest by 1 / (1 - p).

    With a shard, x is this worker's rows of a batch and loses what the whole batch would lose in these rows: every
    worker draws for all of it, so that their generators stay in step.

    p is rounded to 1/65536. Sixteen random bits an element, taken four at a time from 64-bit draws: on a CPU this
    is five times as fast as a Bernoulli draw per element, which is a quarter of a training step here.
    """
    if p == 0:
        return x
    lowest, levels = -(2**15), 2**16
    cut = min(levels - 1, round(p * levels))
    if cut == 0:
        return x
    width = x.shape[1:].numel()
    first, whole = (0, len(x)) if shard is None else (shard.start, shard.batch)
    count = -(-whole * width // 4)
    words = torch.empty(count, dtype=torch.int64, device=x.device).random_(-(2**63), None, generator=generator)
    bits = words.view(torch.int16)[first * width : first * width + x.numel()].view(x.shape)
    keep = (bits >= lowest + cut).view(torch.int8)  # a float times an int8 is faster than times a bool
    return (x * keep).mul_(levels / (levels - cut))
