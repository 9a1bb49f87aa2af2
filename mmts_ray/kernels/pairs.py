"""Objectives whose pairs are independent, in tiles: hinge, sigmoid and the potential of uniformity.

With no normaliser to wait for, a tile's gradient is formed while the tile is there: one walk, three products, nothing
to keep, whether `cached` or `stream` was asked for.

Shapes: B batch of all workers, b rows of this worker, D embedding, R and C a tile's rows and columns, slices of the
whole batch.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from mmts_ray.kernels.angles import pair_cosines
from mmts_ray.kernels.masks import FLOOR, LOG2E
from mmts_ray.kernels.tiles import Workspace, diagonal, rectangle, triangle
from mmts_ray.kernels.workers import Shard

Needs = Sequence[bool]
Walk = Callable[..., tuple[tuple[Tensor, ...], list[Tensor | None]]]


class _Sweep:
    """One walk over the cosines of own rows against all columns, and the gradients that it gathers.

    `folded`: x against itself, alone; half of the matrix is walked, and what is gathered counts half.
    """

    def __init__(self, shard: Shard, x_bD: Tensor, y_bD: Tensor | None, ids_B: Tensor | None, needs: Needs) -> None:
        self.shard, self.ids_B, self.rows_bD = shard, ids_B, x_bD
        self.within = y_bD is None
        self.folded = self.within and shard.group is None
        self.columns_BD = shard.gather(x_bD if y_bD is None else y_bD)
        self.work = Workspace(x_bD)
        self.grad_columns = torch.zeros_like(self.columns_BD) if needs[1] else None
        self.grad_rows = torch.zeros_like(x_bD) if needs[0] else None
        if self.within and self.grad_columns is not None:
            self.grad_rows = self.grad_columns[shard.own]

    def __iter__(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Cosines (R, C), FLOOR on the diagonal and where two ids agree."""
        shard, device = self.shard, self.rows_bD.device
        for R, C in triangle(shard.batch, device) if self.folded else rectangle(shard.own, shard.batch, device):
            size = (R.stop - R.start, C.stop - C.start)
            s_RC = torch.mm(self._own(self.rows_bD, R), self.columns_BD[C].T, out=self.work("s", *size))
            if self.ids_B is not None:
                same_RC = torch.eq(self.ids_B[R, None], self.ids_B[None, C], out=self.work("e", *size))
                s_RC.add_(same_RC, alpha=FLOOR)
            itself_A = diagonal(s_RC, R, C)
            if itself_A is not None:
                itself_A.fill_(FLOOR)
            yield R, C, s_RC

    def pull(self, R: slice, C: slice, g_RC: Tensor) -> None:
        """Add what the cosines' gradient g means for rows and columns."""
        if self.grad_rows is not None:
            self._own(self.grad_rows, R).addmm_(g_RC, self.columns_BD[C])
        if self.grad_columns is not None and not (self.folded and R == C):
            self.grad_columns[C].addmm_(g_RC.T, self._own(self.rows_bD, R))

    def home(self) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of this worker's rows: of x and y, or of x alone when it was both."""
        columns = None if self.grad_columns is None else self.shard.scatter_sum(self.grad_columns)
        return (columns, None) if self.within else (self.grad_rows, columns)

    def _own(self, x_bD: Tensor, R: slice) -> Tensor:
        return x_bD[R.start - self.shard.start : R.stop - self.shard.start]


class Pairs(Function):
    """A sum over pairs whose gradients its own walk forms: `walk(needs, *inputs)` gives outputs and gradients.

    Only the first output has a gradient. Gradients are handed out once, without a copy; a second backward walks again.
    """

    @staticmethod
    def forward(ctx: Any, walk: Walk, workers: int, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        outputs, ctx.grads = walk(ctx.needs_input_grad[2:], *inputs)
        ctx.walk, ctx.workers = walk, workers
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(*outputs[1:])
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        grads = ctx.grads or ctx.walk(ctx.needs_input_grad[2:], *ctx.saved_tensors)[1]
        ctx.grads = None
        scale = grad * ctx.workers
        return None, None, *(None if one is None else one.mul_(scale) for one in grads)


def hinge(
    needs: Needs,
    image_bD: Tensor,
    text_bD: Tensor,
    margin_b: Tensor,
    *,
    shard: Shard,
    ids_B: Tensor | None,
) -> tuple[tuple[Tensor, Tensor], list[Tensor | None]]:
    """Sum of [m_i - s_ii + s_ij]_+ and [m_i - s_ii + s_ji]_+ over i != j, and the number of these terms above 0."""
    edge_B = shard.gather(pair_cosines(image_bD, text_bD) - margin_b)
    active_2B = edge_B.new_zeros(2, shard.batch)
    total = edge_B.new_zeros(())
    sweep = _Sweep(shard, image_bD, text_bD, ids_B, needs)
    for R, C, s_RC in sweep:
        over_RC = torch.sub(s_RC, edge_B[R, None], out=sweep.work("g", *s_RC.shape)).clamp_(min=0)
        total += over_RC.sum()
        g_RC = over_RC.sign_()
        active_2B[1, R] += g_RC.sum(1)
        over_RC = s_RC.sub_(edge_B[None, C]).clamp_(min=0)
        total += over_RC.sum()
        active_RC = over_RC.sign_()
        active_2B[0, C] += active_RC.sum(0)
        sweep.pull(R, C, g_RC.add_(active_RC))
    outputs = shard.sum(total), shard.sum(active_2B.sum())
    if not any(needs):
        return outputs, []
    grads = sweep.home()
    count_b1 = (active_2B[1, shard.own] + shard.scatter_sum(active_2B[0])).unsqueeze(1)
    for grad, other_bD in zip(grads, (text_bD, image_bD)):
        if grad is not None:
            grad.addcmul_(count_b1, other_bD, value=-1)
    return outputs, [*grads, None]


def sigmoid(
    needs: Needs,
    image_bD: Tensor,
    text_bD: Tensor,
    temperature: Tensor,
    bias: Tensor,
    *,
    shard: Shard,
    ids_B: Tensor | None,
) -> tuple[tuple[Tensor], list[Tensor | None]]:
    """Sum over all pairs of -log sigmoid(y (s / t + bias)), y = 1 on the diagonal and else -1; same ids left out.

    A temperature per pair is its anchor's: the mean of both directions.
    """
    per_pair = temperature.ndim == 1
    scale_B = shard.gather(temperature.reciprocal()) if per_pair else temperature.reciprocal().expand(shard.batch)
    # d/d(1/t) of each anchor; without anchors, all of it is the rows'
    slope_B = torch.zeros_like(scale_B)
    bias_slope, total = scale_B.new_zeros(()), scale_B.new_zeros(())
    overs, share = ((1, 0), 0.5) if per_pair else ((1,), 1.0)
    sweep = _Sweep(shard, image_bD, text_bD, ids_B, needs)
    for R, C, s_RC in sweep:
        size = s_RC.shape
        g_RC: Tensor | None = None
        for over in overs:
            A = R if over else C
            scale = scale_B[A].unsqueeze(over)
            z_RC = torch.mul(s_RC, scale, out=sweep.work("z", *size)).add_(bias)
            total += share * _softplus_sum(z_RC, sweep.work("e", *size), sweep.work("w", *size))
            one_RC = z_RC.sigmoid_().mul_(share)
            bias_slope += one_RC.sum()
            slope_B[A] += torch.mul(one_RC, s_RC, out=sweep.work("e", *size)).sum(over)
            one_RC.mul_(scale)
            g_RC = sweep.work("g", *size).copy_(one_RC) if g_RC is None else g_RC.add_(one_RC)
        assert g_RC is not None
        sweep.pull(R, C, g_RC)
    positive_b = pair_cosines(image_bD, text_bD)
    own_scale_b = scale_B[shard.own]
    z_b = positive_b * own_scale_b + bias
    total -= torch.nn.functional.logsigmoid(z_b).sum()
    if not any(needs):
        return (shard.sum(total),), []
    away_b = -torch.sigmoid(-z_b)
    slope_B[shard.own] += away_b * positive_b
    bias_slope += away_b.sum()
    grads = sweep.home()
    for grad, other_bD in zip(grads, (text_bD, image_bD)):
        if grad is not None:
            grad.addcmul_((away_b * own_scale_b).unsqueeze(1), other_bD)
    slope = shard.scatter_sum(slope_B) * -(own_scale_b**2) if per_pair else -slope_B.sum() * scale_B[0] ** 2
    return (shard.sum(total),), [*grads, slope, bias_slope]


def _softplus_sum(z_RC: Tensor, spare_RC: Tensor, other_RC: Tensor) -> Tensor:
    """Sum of log(1 + e^z); torch's softplus and log1p are fifty times a multiplication on a CPU."""
    # u = e^-|z|, and log(1 + u) = log w + (u - (w - 1)) / w with w = 1 + u as rounded
    u_RC = torch.abs(z_RC, out=spare_RC).mul_(-LOG2E).exp2_()
    w_RC = torch.add(u_RC, 1, out=other_RC)
    u_RC.sub_(w_RC - 1).div_(w_RC)
    return u_RC.add_(w_RC.log_()).sum() + torch.clamp(z_RC, min=0, out=other_RC).sum()


def potential(
    needs: Needs, x_bD: Tensor, y_bD: Tensor | None, *, shard: Shard, ids_B: Tensor | None
) -> tuple[tuple[Tensor], list[Tensor | None]]:
    """Sum over i != j of exp(-2 |x_i - y_j|^2) = exp(4 x_i.y_j - 4); same ids left out, y = x when absent."""
    sweep = _Sweep(shard, x_bD, y_bD, ids_B, (needs[0], needs[0 if y_bD is None else 1]))
    total = x_bD.new_zeros(())
    for R, C, s_RC in sweep:
        e_RC = s_RC.sub_(1).mul_(4 * LOG2E).exp2_()
        total += e_RC.sum() if R == C or not sweep.folded else 2 * e_RC.sum()
        sweep.pull(R, C, e_RC)
    if not any(needs):
        return (shard.sum(total),), []
    slope = 8 if sweep.folded else 4
    return (shard.sum(total),), [None if grad is None else grad.mul_(slope) for grad in sweep.home()]
