"""Rectangles of a (B, B) matrix: their order, and the memory that they share.

A tile of 1 MB stays in a core's second-level cache while its dozen elementwise passes run over it, and is large enough
for the product's full rate.

Shapes: R rows and C columns of one rectangle.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

# Numbers of rows and columns of a tile on a CPU; an accelerator gets fewer, larger tiles, as each pass is a launch.
CPU_TILE = (256, 1024)
DEVICE_TILE = (2048, 4096)


def tile_shape(device: torch.device) -> tuple[int, int]:
    return CPU_TILE if device.type == "cpu" else DEVICE_TILE


def _steps(start: int, end: int, step: int) -> Iterator[slice]:
    for first in range(start, end, step):
        yield slice(first, min(first + step, end))


def rectangle(rows: slice, columns: int, device: torch.device) -> Iterator[tuple[slice, slice]]:
    """All tiles of some rows of the matrix, row by row."""
    height, width = tile_shape(device)
    for R in _steps(rows.start, rows.stop, height):
        for C in _steps(0, columns, width):
            yield R, C


def triangle(batch: int, device: torch.device) -> Iterator[tuple[slice, slice]]:
    """Tiles that hold each pair of a symmetric matrix once, or, on the diagonal, in both orders (there R is C)."""
    height, width = tile_shape(device)
    for R in _steps(0, batch, height):
        yield R, R
        for C in _steps(R.stop, batch, width):
            yield R, C


def diagonal(tile_RC: Tensor, R: slice, C: slice) -> Tensor | None:
    """The elements of a tile that lie on the matrix's diagonal, a view; None if there are none."""
    first, last = max(R.start, C.start), min(R.stop, C.stop)
    if first >= last:
        return None
    return tile_RC[first - R.start : last - R.start, first - C.start : last - C.start].diagonal()


class Workspace:
    """Named buffers of one tile's size, reused from tile to tile: fresh ones cost a page fault per 4 kB."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._flat: dict[str, Tensor] = {}

    def __call__(self, name: str, rows: int, columns: int, *, keep: bool = False) -> Tensor:
        """An uninitialised buffer; `keep`: one that no later call hands out again."""
        if keep:
            return self._like.new_empty(rows, columns)
        flat = self._flat.get(name)
        if flat is None or len(flat) < rows * columns:
            flat = self._flat[name] = self._like.new_empty(rows * columns)
        return flat[: rows * columns].view(rows, columns)
