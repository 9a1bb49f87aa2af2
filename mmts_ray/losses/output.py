"""What a loss returns."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LossOut:
    """A loss (0-d, differentiable) and its statistics, 0-d detached tensors or numbers, so that none costs a sync.

    `changes` is empty but for losses in STATE, which remember something per training sample: by name, the rows of the
    caller's state that move and their new values, for `advance`.
    """

    loss: "Tensor"
    stats: "dict[str, Tensor | float]" = field(default_factory=dict)
    changes: "dict[str, tuple[Tensor, Tensor]]" = field(default_factory=dict)


def advance(state: "dict[str, Tensor]", changes: "dict[str, tuple[Tensor, Tensor]]") -> None:
    """Write the changes of one step into the caller's state, in place.

    A row that stands in a batch more than once takes the value of its last place, on every device.
    """
    import torch

    for name, (rows_B, values_B) in changes.items():
        unique_U, place_B = torch.unique(rows_B, return_inverse=True)
        last_U = torch.zeros_like(unique_U).scatter_reduce(
            0, place_B, torch.arange(len(rows_B), device=rows_B.device), "amax"
        )
        state[name][unique_U] = values_B[last_U].to(state[name].dtype)
