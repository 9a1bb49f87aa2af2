"""Rows spread over the workers of a process group: gathered, summed and sent home, with exact gradients.

Every collective here is linear, and gradients follow DistributedDataParallel's convention: each worker returns W times
its share of the whole batch's gradient, so that DDP's mean over W workers is the gradient of one process with all rows.
Shards may be uneven, as in the last batch of an epoch.

Shapes: b rows of this worker, B rows of all, D columns, W workers.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class Shard:
    """Which rows of the whole batch are this worker's: `start` to `start + sizes[rank]`. Without a group, all."""

    group: ProcessGroup | None
    rank: int
    sizes: tuple[int, ...]

    @property
    def workers(self) -> int:
        return len(self.sizes)

    @property
    def batch(self) -> int:
        return sum(self.sizes)

    @property
    def start(self) -> int:
        return sum(self.sizes[: self.rank])

    @property
    def own(self) -> slice:
        return slice(self.start, self.start + self.sizes[self.rank])

    def gather(self, x_bD: Tensor) -> Tensor:
        """The rows of all workers in rank order, (B, D); no gradient."""
        if self.group is None:
            return x_bD
        longest = max(self.sizes)
        if len(x_bD) < longest:
            x_bD = torch.cat([x_bD, x_bD.new_zeros(longest - len(x_bD), *x_bD.shape[1:])])
        padded_XD = x_bD.new_empty(longest * self.workers, *x_bD.shape[1:])
        dist.all_gather(list(padded_XD.split(longest)), x_bD.contiguous(), group=self.group)
        if min(self.sizes) == longest:
            return padded_XD
        return torch.cat([rows[:size] for rows, size in zip(padded_XD.split(longest), self.sizes)])

    def scatter_sum(self, x_BD: Tensor) -> Tensor:
        """This worker's rows of the sum of all workers' x_BD, (b, D): each sends every owner its part, once."""
        if self.group is None:
            return x_BD
        own = self.sizes[self.rank]
        parts_WbD = x_BD.new_empty(self.workers * own, *x_BD.shape[1:])
        dist.all_to_all_single(parts_WbD, x_BD.contiguous(), [own] * self.workers, list(self.sizes), group=self.group)
        return parts_WbD.view(self.workers, own, *x_BD.shape[1:]).sum(0)

    def sum(self, x: Tensor) -> Tensor:
        """The sum over workers, in place."""
        if self.group is not None:
            dist.all_reduce(x, group=self.group)
        return x

    def largest(self, x: Tensor) -> Tensor:
        """The largest over workers, in place."""
        if self.group is not None:
            dist.all_reduce(x, dist.ReduceOp.MAX, group=self.group)
        return x

    def first(self, x: Tensor) -> Tensor:
        """The first worker's value, in place."""
        return self.sum(x if self.rank == 0 else x.zero_())


def shard_of(rows: int, group: ProcessGroup | None, device: torch.device) -> Shard:
    """Where `rows` rows of this worker lie among those of the group: one exchange of a number."""
    if group is None:
        return Shard(None, 0, (rows,))
    rank = dist.get_rank(group)
    sizes_W = torch.zeros(dist.get_world_size(group), dtype=torch.int64, device=device)
    sizes_W[rank] = rows
    dist.all_reduce(sizes_W, group=group)
    return Shard(group, rank, tuple(sizes_W.tolist()))


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, x_bD: Tensor, shard: Shard) -> Tensor:
        ctx.shard = shard
        return shard.gather(x_bD)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BD: Tensor) -> tuple[Tensor, None]:
        return ctx.shard.scatter_sum(grad_BD), None


def gather_rows(x_bD: Tensor, group: ProcessGroup | None) -> Tensor:
    """The rows of all workers in rank order, (B, ...); gradients of all workers are summed at the row's owner.

    A whole-batch loss of gathered rows, formed alike on every worker, has exact gradients after DDP's mean.
    """
    if group is None:
        return x_bD
    shard = shard_of(len(x_bD), group, x_bD.device)
    return _Gather.apply(x_bD, shard) if x_bD.requires_grad else shard.gather(x_bD)


class _Sum(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shard: Shard) -> Tensor:
        ctx.workers = shard.workers
        return shard.sum(x.clone())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.workers * grad, None


def mean_rows(value_b: Tensor, group: ProcessGroup | None) -> Tensor:
    """The mean over the rows of all workers, 0-d, the same on each; exact after DDP's mean, uneven shards included."""
    if group is None:
        return value_b.mean()
    shard = shard_of(len(value_b), group, value_b.device)
    return _Sum.apply(value_b.sum(), shard) / shard.batch
