"""Two-tower models, declared here and built in `towers` (which imports torch)."""

from typing import TYPE_CHECKING, Annotated

from mmts_ray.space import Choice, Float, Int, Text

if TYPE_CHECKING:
    from mmts_ray.towers import Heads


def frozen_heads(
    image_dim: int,
    text_dim: int,
    seed: int,
    *,
    image_encoder: Annotated[
        str, Text(path=True, doc="frozen image encoder: efficientnet-lite0, open_clip:MODEL[/WEIGHTS or path]")
    ] = "efficientnet-lite0",
    text_encoder: Annotated[
        str,
        Text(
            path=True, doc="frozen text encoder: minilm-l6, sentence-transformers/NAME, open_clip:MODEL[/...], a folder"
        ),
    ] = "minilm-l6",
    dim: Annotated[int, Int(2, 8192, log=True, doc="dimension of the joint embedding")] = 256,
    image_dropout: Annotated[float, Float(0.0, 0.95, doc="dropout on the image features")] = 0.3,
    text_dropout: Annotated[float, Float(0.0, 0.95, doc="dropout on the text features")] = 0.1,
    standardise: Annotated[
        bool, Choice((True, False), doc="image features to zero mean and unit variance (of the training images)")
    ] = True,
) -> "Heads":
    """One linear head per modality on frozen features.

    u = normalise(W_image drop(x) + b), w = normalise(W_text drop(y) + b); x (B, I), y (B, T) -> unit rows (B, D).
    The encoders and `standardise` act before the heads: the features come in encoded once and for all.
    """
    from mmts_ray.towers import Heads

    return Heads(
        image_dim=image_dim,
        text_dim=text_dim,
        dim=dim,
        image_dropout=image_dropout,
        text_dropout=text_dropout,
        seed=seed,
    )


MODELS = {"frozen_heads": frozen_heads}
