"""How long, how fast and in which order a trial trains.

Every random draw of a trial comes from (seed, purpose, epoch), never from a running generator: the same seed means the
same initialisation, data order and dropout in every arm of a study, and a resumed run needs no random state.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from mmts_ray.space import Choice, Float, Int

if TYPE_CHECKING:
    import torch

PURPOSES = ("init", "order", "captions", "dropout", "mix", "probe")


def stream(seed: int, purpose: str, epoch: int = 0) -> np.random.Generator:
    """A generator for one purpose in one epoch of one seed; streams of different purposes are independent."""
    return np.random.default_rng([seed, PURPOSES.index(purpose), epoch])


def torch_stream(seed: int, purpose: str, epoch: int = 0, device: str = "cpu") -> "torch.Generator":
    """The same as a torch generator."""
    import torch

    return torch.Generator(device).manual_seed(int(stream(seed, purpose, epoch).integers(2**62)))


@dataclass(frozen=True)
class Recipe:
    """Resolved training recipe; see `recipe` for the meaning and units of each field."""

    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    lr_schedule: str
    warmup: float
    captions: str
    relevancy_above: float
    eval_every: int
    seed: int
    clip: float | None = None
    beta2: float = 0.999

    def steps_per_epoch(self, samples: int) -> int:
        """Batches in an epoch; a last batch of one sample has no negatives and is left out."""
        full, rest = divmod(samples, self.batch_size)
        return full + (rest > 1)

    def lr_at(self, step: int, total_steps: int) -> float:
        """Learning rate at a 0-based optimiser step: linear warm-up, then constant, a line or half a cosine to 0."""
        warmup_steps = self.warmup * total_steps
        if step < warmup_steps:
            return self.lr * (step + 1) / (warmup_steps + 1)
        if self.lr_schedule == "constant":
            return self.lr
        progress = (step - warmup_steps) / max(total_steps - warmup_steps, 1)
        if self.lr_schedule == "linear":
            return self.lr * (1 - progress)
        return self.lr * 0.5 * (1 + math.cos(math.pi * progress))

    def optimiser(self, parameters: list[Any]) -> "torch.optim.Optimizer":
        """AdamW; one-dimensional parameters (biases, temperature) are not decayed."""
        import torch

        matrices = [p for p in parameters if p.ndim > 1]
        rest = [p for p in parameters if p.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": self.weight_decay}, {"params": rest, "weight_decay": 0.0}]
        return torch.optim.AdamW([g for g in groups if g["params"]], lr=self.lr, betas=(0.9, self.beta2), fused=True)


def recipe(
    *,
    epochs: Annotated[int, Int(1, 10_000, doc="passes over the training images", unit="epochs")] = 10,
    batch_size: Annotated[
        int, Int(2, 65_536, log=True, doc="global batch; the number of negatives is batch_size - 1", unit="samples")
    ] = 256,
    lr: Annotated[float, Float(1e-7, 1.0, log=True, doc="peak learning rate of AdamW")] = 1e-3,
    weight_decay: Annotated[float, Float(0.0, 10.0, doc="decoupled weight decay of matrices")] = 0.1,
    lr_schedule: Annotated[
        str,
        Choice(("constant", "linear", "cosine"), doc="rate after warm-up: constant, or a line or half a cosine to 0"),
    ] = "constant",
    warmup: Annotated[float, Float(0.0, 0.9, doc="share of all steps with a linear warm-up")] = 0.0,
    captions: Annotated[
        str,
        Choice(
            ("one", "all", "relevant"),
            doc="one: of an image's own captions, drawn anew each epoch; all: every pair is a sample; relevant: any "
            "caption of the data whose relevancy is above relevancy_above, drawn anew each epoch",
            source="with 'all', pairs of one image in a batch are never each other's negatives; 'relevant' needs data "
            "with graded relevancy and is the recipe of AVION and MM-TS on EPIC-KITCHENS-100",
        ),
    ] = "one",
    relevancy_above: Annotated[
        float, Float(0.0, 0.99, doc="captions: relevant draws among captions of higher relevancy", source="AVION: 0.1")
    ] = 0.1,
    eval_every: Annotated[int, Int(1, 10_000, doc="validation after every so many epochs", unit="epochs")] = 1,
    clip: Annotated[
        float | None,
        Float(1e-6, 1e6, log=True, doc="a longer gradient, of all parameters as one, is cut to this", none="never"),
    ] = None,
    beta2: Annotated[
        float, Float(0.8, 0.9999, doc="AdamW's decay of squared gradients", source="open_clip: 0.98 for a ViT")
    ] = 0.999,
    seed: Annotated[int, Int(0, 2**31 - 1, doc="initialisation, data order, dropout, mixing")] = 0,
) -> Recipe:
    """The training recipe from its declared parameters."""
    return Recipe(
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        weight_decay=weight_decay,
        lr_schedule=lr_schedule,
        warmup=warmup,
        captions=captions,
        relevancy_above=relevancy_above,
        eval_every=eval_every,
        clip=clip,
        beta2=beta2,
        seed=seed,
    )
