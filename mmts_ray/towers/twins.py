"""Two encoders that start as one: what contrast alone does to two modalities that are alike.

Shapes: B batch, I = C S S flattened pixels of a picture, S side, C channels, D embedding dim.
"""

import copy
import math

import torch
from torch import Tensor
from torch.nn import functional

from mmts_ray.kernels import Shard
from mmts_ray.recipe import torch_stream
from mmts_ray.towers.heads import linear


class Twins(torch.nn.Module):
    """Two independent encoders with identical initial weights, drawn from the seed alone."""

    def __init__(self, *, inputs: int, net: str, width: int, dim: int, seed: int) -> None:
        super().__init__()
        generator = torch_stream(seed, "init")
        if net == "mlp":
            layers: list[torch.nn.Module] = [
                Dense(inputs, width, generator),
                torch.nn.ReLU(),
                Dense(width, width, generator),
                torch.nn.ReLU(),
                Dense(width, dim, generator),
            ]
        else:
            channels, side = picture_shape(inputs)
            layers = [torch.nn.Unflatten(1, (channels, side, side))]
            for wide in (width // 8, width // 4, width // 4):
                layers += [Halving(channels, wide, generator), torch.nn.ReLU()]
                channels, side = wide, -(-side // 2)
            layers += [torch.nn.Flatten(), Dense(channels * side * side, dim, generator)]
        self.image_net = torch.nn.Sequential(*layers)
        self.text_net = copy.deepcopy(self.image_net)

    def image(self, x_BI: Tensor, generator: torch.Generator | None = None, shard: Shard | None = None) -> Tensor:
        """Unit embeddings (B, D) of the first side; there is no dropout, so `generator` draws nothing."""
        return functional.normalize(self.image_net(x_BI), dim=1)

    def text(self, x_BI: Tensor, generator: torch.Generator | None = None, shard: Shard | None = None) -> Tensor:
        """Unit embeddings (B, D) of the second side."""
        return functional.normalize(self.text_net(x_BI), dim=1)


def picture_shape(inputs: int) -> tuple[int, int]:
    """(channels, side) of flattened square pictures: grey S S or colour 3 S S, which no number is both of."""
    for channels in (1, 3):
        side = math.isqrt(inputs // channels)
        if channels * side * side == inputs:
            return channels, side
    raise ValueError(
        f"model.net: conv needs square pictures, and {inputs} numbers are neither S S nor 3 S S; legal is mlp"
    )


class Dense(torch.nn.Module):
    """x W^T + b, initialised as torch.nn.Linear does it, from a generator of our own."""

    def __init__(self, inputs: int, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = _uniform((outputs, inputs), inputs, generator)
        self.bias = _uniform((outputs,), inputs, generator)

    def forward(self, x_BI: Tensor) -> Tensor:
        return linear(x_BI, self.weight, self.bias)


class Halving(torch.nn.Module):
    """A 3 x 3 convolution with stride 2 and a border of 1, initialised as torch.nn.Conv2d does it."""

    def __init__(self, inputs: int, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = _uniform((outputs, inputs, 3, 3), 9 * inputs, generator)
        self.bias = _uniform((outputs,), 9 * inputs, generator)

    def forward(self, x_BCSS: Tensor) -> Tensor:
        return functional.conv2d(x_BCSS, self.weight, self.bias, stride=2, padding=1)


def _uniform(shape: tuple[int, ...], fan_in: int, generator: torch.Generator) -> torch.nn.Parameter:
    bound = 1 / math.sqrt(fan_in)
    return torch.nn.Parameter(torch.empty(shape).uniform_(-bound, bound, generator=generator))
