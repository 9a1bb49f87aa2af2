"""One trial on several workers: their shares of a batch, their common gradient, what they must agree on."""

import torch
import torch.distributed as dist

from mmts_ray.kernels import Shard


def share_of(rows: int, group: dist.ProcessGroup | None) -> Shard:
    """This worker's share of a batch: an even, contiguous part, in rank order."""
    if group is None:
        return Shard(None, 0, (rows,))
    workers = dist.get_world_size(group)
    sizes = tuple(rows // workers + (rank < rows % workers) for rank in range(workers))
    return Shard(group, dist.get_rank(group), sizes)


def agreed(metrics: dict[str, float], group: dist.ProcessGroup, device: str) -> dict[str, float]:
    """The first worker's metrics, on all; RuntimeError when a worker has others."""
    mine = torch.tensor([len(metrics), *metrics.values()], dtype=torch.float64, device=device)
    count = torch.tensor([len(mine), -len(mine)], device=device)
    dist.all_reduce(count, dist.ReduceOp.MAX, group=group)
    if int(count.sum()):
        raise RuntimeError(f"workers disagree on which metrics there are: {sorted(metrics)} on one of them")
    both = torch.stack([mine, -mine])
    dist.all_reduce(both, dist.ReduceOp.MAX, group=group)
    first = mine if dist.get_rank(group) == 0 else torch.zeros_like(mine)
    dist.all_reduce(first, group=group)
    for name, value, difference in zip(metrics, first[1:].tolist(), both.sum(0)[1:].tolist(), strict=True):
        if difference > 1e-6 * max(1.0, abs(value)):
            raise RuntimeError(f"workers disagree on {name}: {value:g} on the first, {difference:g} apart")
    return dict(zip(metrics, first[1:].tolist(), strict=True))


def mean_gradients(parameters: list[torch.nn.Parameter], group: dist.ProcessGroup) -> None:
    """Replace every gradient by its mean over the workers.

    One sum of all of them, laid out alike in every step: DistributedDataParallel orders its buckets anew after the
    first step, so that with three workers or more a resumed run would round differently from the straight one.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)
    for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))
