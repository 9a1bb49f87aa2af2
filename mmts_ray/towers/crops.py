"""Random resized crops of a batch of pictures, drawn from the trial's own generator."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from mmts_ray.kernels import Shard

RATIO = 4 / 3  # a crop's sides differ by at most this factor


def cropped(pixels_BCSS: Tensor, smallest: float, generator: torch.Generator, shard: Shard | None = None) -> Tensor:
    """A random part of each square picture, enlarged to its size: uint8 in, uint8 out, (B, C, S, S).

    The part has a share of the area between `smallest` and 1, an aspect between 3/4 and 4/3 and any place; it is
    enlarged bilinearly. With a shard, every worker draws for the whole batch and takes its own, as `heads.drop` does.
    Reference: the training transform of open_clip (share 0.9 to 1).
    """
    if smallest >= 1:
        return pixels_BCSS
    first, whole = (0, len(pixels_BCSS)) if shard is None else (shard.start, shard.batch)
    drawn_B4 = torch.rand((whole, 4), generator=generator, device=pixels_BCSS.device)
    area, ratio, left, top = drawn_B4[first : first + len(pixels_BCSS)].unbind(1)
    area = smallest + (1 - smallest) * area
    ratio = torch.exp((2 * ratio - 1) * math.log(RATIO))
    width, height = ((area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1))
    zero = torch.zeros_like(area)
    # in coordinates from -1 to 1: the centre of a part of width w lies between w - 1 and 1 - w
    rows = (width, zero, (2 * left - 1) * (1 - width)), (zero, height, (2 * top - 1) * (1 - height))
    theta_B23 = torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)
    grid = functional.affine_grid(theta_B23, list(pixels_BCSS.shape), align_corners=False)
    found = functional.grid_sample(pixels_BCSS.float(), grid, padding_mode="border", align_corners=False)
    return found.round().to(torch.uint8)
