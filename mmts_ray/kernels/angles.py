"""Cosines: their common type, those within one modality, and those of a smaller angle.

Shapes: B batch, D embedding.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

# sqrt(1 - s^2) is kept above this: its slope diverges at s = -1, where float32 rounding decides what is left of it.
MIN_SINE = 1e-4


def at_least_float32(*tensors_BD: Tensor) -> tuple[Tensor, ...]:
    """The tensors in their common type, widened to float32 where it is narrower; gradients flow back."""
    dtype = torch.float32
    for tensor in tensors_BD:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return tuple(tensor.to(dtype) for tensor in tensors_BD)


def pair_cosines(x_BD: Tensor, y_BD: Tensor) -> Tensor:
    """x_i.y_i (B,), without the (B, D) products in memory."""
    return torch.bmm(x_BD[:, None], y_BD[:, :, None]).view(-1)


class _Gram(Function):
    """x x^T, whose gradient (G + G^T) x is one product where autograd would take two."""

    @staticmethod
    def forward(ctx: Any, x_BD: Tensor) -> Tensor:
        ctx.save_for_backward(x_BD)
        return x_BD @ x_BD.T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BB: Tensor) -> Tensor:
        (x_BD,) = ctx.saved_tensors
        return (grad_BB + grad_BB.T) @ x_BD


def gram(x_BD: Tensor) -> Tensor:
    """The cosines (B, B) within one modality."""
    return _Gram.apply(x_BD)


class AngularShift(Function):
    """cos(theta - d) of the cosines s = cos(theta) off the diagonal, without acos.

    s cos d + sqrt(1 - s^2) sin d where the angle moves; elsewhere s (`gate` = cosine of the widest angle that stays) or
    1 (`gate` None: an angle below d stops at 0). acos has an infinite slope at +-1, where saturated and duplicate pairs
    lie.
    """

    @staticmethod
    def forward(ctx: Any, s_BB: Tensor, cos_BB: Tensor, sin_BB: Tensor, gate: float | None) -> Tensor:
        squared_BB = (1 - s_BB).mul_(1 + s_BB)
        inside_BB = (squared_BB - MIN_SINE**2).sign_().clamp_(min=0)
        sine_BB = squared_BB.clamp_(min=MIN_SINE**2).sqrt_()
        moves_BB = ((cos_BB if gate is None else gate) - s_BB).sign_().clamp_(min=0).fill_diagonal_(0)
        slope_BB = cos_BB - inside_BB.mul_(s_BB).div_(sine_BB).mul_(sin_BB)
        moved_BB = sine_BB.mul_(sin_BB).addcmul_(s_BB, cos_BB)
        if gate is None:
            stays_BB, stays_slope_BB = torch.ones_like(s_BB), torch.zeros_like(s_BB).fill_diagonal_(1)
            stays_BB.diagonal().copy_(s_BB.diagonal())
        else:
            stays_BB, stays_slope_BB = s_BB, torch.ones_like(s_BB)
        ctx.save_for_backward(stays_slope_BB.lerp_(slope_BB, moves_BB))
        return torch.lerp(stays_BB, moved_BB, moves_BB)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BB: Tensor) -> tuple[Tensor, None, None, None]:
        (slope_BB,) = ctx.saved_tensors
        return grad_BB * slope_BB, None, None, None


def turn_(
    s_RC: Tensor,
    cos_RC: Tensor,
    sin_RC: Tensor,
    gate: float | None,
    slope_RC: Tensor | None,
    spare: tuple[Tensor, Tensor],
) -> None:
    """`AngularShift` in place on a tile, with no diagonal to spare; its slope goes into `slope_RC`, if given."""
    squared_RC = torch.add(s_RC, 1, out=spare[0]).mul_(torch.sub(1, s_RC, out=spare[1]))
    if slope_RC is not None:
        torch.gt(squared_RC, MIN_SINE**2, out=slope_RC).mul_(s_RC).mul_(sin_RC)
    sine_RC = squared_RC.clamp_(min=MIN_SINE**2).sqrt_()
    moves_RC = torch.lt(s_RC, cos_RC if gate is None else gate, out=spare[1])
    stays = 0.0 if gate is None else 1.0
    if slope_RC is not None:
        torch.sub(cos_RC, slope_RC.div_(sine_RC), out=slope_RC).sub_(stays).mul_(moves_RC).add_(stays)
    turned_RC = sine_RC.mul_(sin_RC).addcmul_(s_RC, cos_RC)
    if gate is None:
        torch.sub(turned_RC, 1, out=s_RC).mul_(moves_RC).add_(1)
    else:
        s_RC.addcmul_(turned_RC.sub_(s_RC), moves_RC)
