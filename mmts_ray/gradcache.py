"""Batches whose encoder activations do not fit: the exact step of the whole batch from one chunk at a time (GradCache).

A contrastive loss needs all embeddings of the batch but only one chunk's activations at a time: embed every chunk
without a graph, take the loss and its gradient at the embeddings, then embed each chunk again, with a graph, and send
its rows of that gradient back. The price is a second forward pass.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from mmts_ray.losses import LossOut


def chunked_step(
    encode: Callable[[Any], Tensor | tuple[Tensor, ...]],
    batch: Any,
    objective: "Callable[..., LossOut]",
    *,
    chunk: int,
    generators: Sequence[torch.Generator] = (),
    scale: Callable[[Tensor], Tensor] | None = None,
    no_sync: Callable[[], AbstractContextManager[Any]] | None = None,
) -> "LossOut":
    """Forward and backward of `objective(*encode(batch))` with the activations of `chunk` samples in memory.

    The batch is a tensor, a list, or tuples and dicts of these, with a row per sample (B in all; tuples are structure,
    lists are rows). `encode` turns such a batch, of any size, into one or more tensors with a row per sample, such as
    (image_BD, text_BD), or into 0-d tensors, such as a learnable temperature that a model returns beside them: their
    gradient goes back with the last chunk. `objective` takes them all and returns a LossOut; it sees the whole batch,
    so that ids, teachers and `group` need no care. Gradients are added to `.grad`, as by `backward`; the LossOut comes
    back with its loss detached.

    Exact. The gradient is that of the forward pass by chunks, to rounding: with an encoder that treats samples
    independently, that of the whole batch. Dropout is replayed: the state of torch's generators (CPU and all CUDA
    devices), and of the `generators` that `encode` draws from, is kept per chunk and restored for its second pass, and
    afterwards they stand where one forward pass would have left them. A batch normalisation in training mode is refused
    when there is more than one chunk, for its statistics would be those of a chunk.

    Mixed precision: an autocast around the call acts on both passes as on one, and `scale` (a GradScaler's `scale`) is
    applied to the loss before its backward. On several workers `encode` may be a DistributedDataParallel module: its
    gradients are reduced once, with the last chunk. For several such modules give `no_sync`, a context that holds all
    of them back. A parameter that only the objective uses stays outside of such a module, or is returned by `encode`.
    The number of chunks may differ between workers as long as the module broadcasts no buffers.

    Memory: activations of one chunk, the embeddings and their gradient. Raises ValueError on a chunk below 1, rows that
    do not fit each other, and a batch normalisation in training mode. Reference: arXiv:2101.06983.
    """
    rows = _rows(batch)
    if chunk < 1:
        raise ValueError(f"chunk: {chunk} is not a number of samples; legal is at least 1")
    if chunk >= rows:
        out = objective(*_tuple(encode(batch)))
        _backward(out.loss, scale)
        return replace(out, loss=out.loss.detach())
    held_back: Any = getattr(encode, "no_sync", nullcontext) if no_sync is None else no_sync
    pieces = [slice(start, start + chunk) for start in range(0, rows, chunk)]

    states, parts = [], []
    with torch.no_grad(), held_back(), _no_batch_statistics():
        for piece in pieces:
            states.append(_random_state(generators))
            # copies: a view, such as the first token's, would keep the chunk's whole output alive
            parts.append([column.clone() for column in _tuple(encode(_part(batch, piece)))])
    embeddings = [
        (torch.cat(column) if column[0].ndim else column[0]).detach().requires_grad_()
        for column in zip(*parts, strict=True)
    ]
    del parts
    out = objective(*embeddings)
    _backward(out.loss, scale)
    after = _random_state(generators)

    for number, (piece, state) in enumerate(zip(pieces, states, strict=True)):
        last = number == len(pieces) - 1
        _restore(state, generators)
        # before torch PR 165068, weights that were cast without a graph took no gradient in the second pass
        torch.clear_autocast_cache()
        with nullcontext() if last else held_back():
            heads, gradients = [], []
            for again, embedding in zip(_tuple(encode(_part(batch, piece))), embeddings, strict=True):
                if again.requires_grad and embedding.grad is not None and (again.ndim or last):
                    heads.append(again)
                    gradients.append(embedding.grad[piece] if again.ndim else embedding.grad)
            torch.autograd.backward(heads, gradients)
    _restore(after, generators)
    return replace(out, loss=out.loss.detach())


def _backward(loss: Tensor, scale: Callable[[Tensor], Tensor] | None) -> None:
    (loss if scale is None else scale(loss)).backward()


def _tuple(embeddings: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (embeddings,) if isinstance(embeddings, Tensor) else tuple(embeddings)


def _leaves(batch: Any) -> Iterator[Any]:
    if isinstance(batch, (Tensor, list)):
        yield batch
    elif isinstance(batch, tuple) or hasattr(batch, "items"):
        for value in batch if isinstance(batch, tuple) else batch.values():
            yield from _leaves(value)
    else:
        raise ValueError(
            f"batch: {type(batch).__name__} has no rows; legal are tensors, lists, tuples and dicts of them"
        )


def _rows(batch: Any) -> int:
    counts = {len(leaf) for leaf in _leaves(batch)}
    if len(counts) != 1:
        raise ValueError(f"batch: parts with {sorted(counts)} rows do not fit; legal is one number of rows")
    return counts.pop()


def _part(batch: Any, piece: slice) -> Any:
    if isinstance(batch, (Tensor, list)):
        return batch[piece]
    if isinstance(batch, tuple):
        return tuple(_part(value, piece) for value in batch)
    return {key: _part(value, piece) for key, value in batch.items()}


def _random_state(generators: Sequence[torch.Generator]) -> tuple[Any, ...]:
    on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return torch.get_rng_state(), on_devices, [generator.get_state() for generator in generators]


def _restore(state: tuple[Any, ...], generators: Sequence[torch.Generator]) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])
    for generator, own in zip(generators, state[2], strict=True):
        generator.set_state(own)


@contextmanager
def _no_batch_statistics() -> Iterator[None]:
    """Any module that normalises by the statistics of its batch raises while this is open, wherever it is called."""

    def refuse(module: torch.nn.Module, inputs: Any) -> None:
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.training:
            raise ValueError(
                f"encoder chunks: {type(module).__name__} in training mode takes its statistics over a chunk, not over "
                "the batch; put it in evaluation mode, or use a chunk of the whole batch"
            )

    handle = torch.nn.modules.module.register_module_forward_pre_hook(refuse)
    try:
        yield
    finally:
        handle.remove()
