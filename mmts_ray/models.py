"""Two-tower models, declared here and built in `towers` (which imports torch)."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from mmts_ray.space import Choice, Float, Int, Text

if TYPE_CHECKING:
    from mmts_ray.encoders import Inputs
    from mmts_ray.student import Student
    from mmts_ray.towers import Heads
    from mmts_ray.towers.clip import Clip
    from mmts_ray.towers.twins import Twins


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


def open_clip(
    pixels: int,
    context_length: int,
    seed: int,
    *,
    weights: Annotated[
        str,
        Text(
            path=True,
            doc="what training starts from: open_clip:MODEL (random), open_clip:MODEL/TAG or /FILE, a CONFIG.json "
            "(random), CONFIG.json/FILE, a folder that export wrote, efficientnet-lite0+minilm-l6 (packaged)",
        ),
    ] = "efficientnet-lite0+minilm-l6",
    image_blocks: Annotated[
        int | None,
        Int(
            0,
            1000,
            doc="how many of the image tower's last blocks are trained, with the final norm; 0 locks it",
            none="all of the tower",
        ),
    ] = None,
    text_blocks: Annotated[
        int | None,
        Int(
            0,
            1000,
            doc="how many of the text tower's last blocks are trained, with the final norm; 0 locks it",
            none="all of the tower",
        ),
    ] = None,
    image_projection: Annotated[
        bool, Choice((True, False), doc="train the image tower's projection into the joint space, whatever its blocks")
    ] = True,
    text_projection: Annotated[
        bool, Choice((True, False), doc="train the text tower's projection into the joint space, whatever its blocks")
    ] = True,
    batch_norm: Annotated[
        str,
        Choice(
            ("batch", "stored"),
            doc="statistics of a trained BatchNorm: of the batch (one worker, no chunks), or those it was loaded with",
        ),
    ] = "batch",
    crop: Annotated[
        float,
        Float(
            0.05, 1.0, doc="smallest share of a training picture's area that a random crop keeps", source="open_clip"
        ),
    ] = 0.9,
    precision: Annotated[
        str,
        Choice(
            ("bfloat16", "float32"),
            doc="of the towers' products on a GPU; parameters and the loss are float32, and so is all on a CPU",
        ),
    ] = "bfloat16",
    chunk: Annotated[
        int | None,
        Int(
            1,
            65_536,
            log=True,
            doc="pairs whose activations are held at once; the loss stays that of the whole batch",
            unit="pairs",
            source="arXiv:2101.06983",
            none="the whole batch",
        ),
    ] = None,
    prompts: Annotated[
        str, Text(doc="templates of the zero-shot classification, divided by |, {} is the class")
    ] = "a picture of {}",
    zeroshot: Annotated[
        str | None,
        Text(
            path=True,
            doc="pictures for the zero-shot classification: a folder with a folder for each class",
            none="the data's own pictures, if they have classes",
        ),
    ] = None,
    image_encoder: Annotated[
        str, Text(path=True, doc="frozen image encoder for image clusters and teachers, as in frozen_heads; or none")
    ] = "none",
    text_encoder: Annotated[
        str, Text(path=True, doc="frozen text encoder for caption clusters and teachers, as in frozen_heads; or none")
    ] = "minilm-l6",
) -> "Clip":
    """The two towers of an open_clip model, trained on pictures and captions, in full or in part.

    u = normalise(image tower(x)), w = normalise(text tower(y)); x (B, 3 S S) bytes, y (B, L) token ids -> unit rows
    (B, D). Temperatures are the schedule's: `logit_scale` is not trained. Dropout inside the towers is off. ValueError
    when the weights do not fit the model exactly.
    """
    from mmts_ray.towers.clip import Clip
    from mmts_ray.towers.weights import find

    return Clip(
        find(weights),
        seed,
        crop=crop,
        batch_norm=batch_norm,
        precision=precision,
        image_blocks=image_blocks,
        text_blocks=text_blocks,
        image_projection=image_projection,
        text_projection=text_projection,
    )


def open_clip_inputs(*, weights: str, prompts: str, zeroshot: str | None, **rest: object) -> "Inputs":
    """What `open_clip` reads, from the `model.*` part of what decides inputs."""
    from mmts_ray.towers.pack import inputs

    return inputs(weights, prompts, zeroshot)


def sentence_student(
    image_dim: int,
    text_dim: int,
    seed: int,
    *,
    student: Annotated[
        str,
        Text(
            path=True, doc="encoder to train: minilm-l6, or a folder that Hugging Face or sentence-transformers saved"
        ),
    ] = "minilm-l6",
    pooling: Annotated[
        str, Choice(("cls", "mean"), doc="a sentence is its first token's state, or their mean")
    ] = "cls",
    trained_layers: Annotated[
        int | None,
        Int(
            1,
            1000,
            doc="train the last layers; the states before them are cached, dropout off",
            none="all, embeddings too",
        ),
    ] = 1,
    reinit_layers: Annotated[int, Int(0, 1000, doc="of these, so many of the last start untaught, from the seed")] = 0,
    max_length: Annotated[
        int, Int(2, 8192, log=True, doc="longer sentences are cut", unit="tokens", source="arXiv:2104.08821")
    ] = 32,
    grounding_dim: Annotated[int, Int(2, 8192, log=True, doc="space shared with image and caption")] = 256,
    corpus: Annotated[
        str | None,
        Text(path=True, doc="text file, one sentence a line (.txt, .gz)", none="the training sentences of sts"),
    ] = None,
    corpus_limit: Annotated[int | None, Int(2, 10**9, log=True, doc="sentences drawn from it", none="all")] = None,
    sts: Annotated[
        str, Text(path=True, doc="similarity tasks: a folder in SentEval's layout, or a table (.tsv, .tsv.gz)")
    ],
    caption_every: Annotated[
        int | None,
        Int(1, 10**6, doc="every so many steps a batch of captions, else of the corpus", none="never: corpus only"),
    ] = 2,
    precision: Annotated[
        str,
        Choice(
            ("bfloat16", "float32"),
            doc="of the student's products in training on a GPU; parameters, loss and evaluation are float32",
        ),
    ] = "bfloat16",
    epoch_steps: Annotated[
        int, Int(1, 10**7, log=True, doc="what an epoch is here", unit="steps", source="arXiv:2104.08821")
    ] = 125,
    centre_images: Annotated[
        bool,
        Choice(
            (True, False),
            doc="teacher image features minus their training mean: cosines fall to around 0, so the margin weighs more",
        ),
    ] = False,
    image_encoder: Annotated[
        str, Text(path=True, doc="image teacher: efficientnet-lite0, open_clip:MODEL[/WEIGHTS or path]; or none")
    ] = "efficientnet-lite0",
    text_encoder: Annotated[
        str, Text(path=True, doc="text teacher: minilm-l6, sentence-transformers/NAME, open_clip:MODEL[/...], a folder")
    ] = "minilm-l6",
) -> "Student":
    """A sentence encoder under training, with the heads of SimCSE, MCSE and KDMCSE (each Linear and Tanh).

    h = pooled states of the student; z = H1(h) for the text loss, s = H2(h), v = H3(teacher image), w = H4(teacher
    caption) in the grounding space; unit rows all. Two dropout passes give z, z' and s, s'. The teachers are frozen and
    encoded once. With `caption_every` n, step n, 2n, ... reads captions whatever the loss is and whatever its weights
    are, so that a baseline sees the same batches. An epoch is `epoch_steps` steps: after `train.eval_every` of them
    comes STS-B dev. With `trained_layers` the frozen layers have no dropout (their states are cached): the two passes
    then have a cosine of about .88 instead of .84 in MiniLM.
    Reference: arXiv:2104.08821, arXiv:2204.10931, arXiv:2403.17486.
    """
    from mmts_ray.student import Student

    return Student(
        student=student,
        pooling=pooling,
        trained_layers=trained_layers,
        reinit_layers=reinit_layers,
        grounding_dim=grounding_dim,
        image_dim=image_dim,
        text_dim=text_dim,
        seed=seed,
    )


def twins(
    image_dim: int,
    text_dim: int,
    seed: int,
    *,
    net: Annotated[
        str, Choice(("mlp", "conv"), doc="two hidden layers, or three convolutions of stride 2, then a linear layer")
    ] = "mlp",
    width: Annotated[
        int, Int(8, 4096, log=True, doc="hidden units of mlp; conv has 1/8, 1/4, 1/4 as many channels")
    ] = 256,
    dim: Annotated[int, Int(2, 8192, log=True, doc="dimension of the joint embedding")] = 64,
) -> "Twins":
    """Two independent encoders of one form with identical initial weights, for data whose both sides are pictures.

    u = normalise(f(x)), w = normalise(g(y)), f = g at the start; x, y (B, I) pixels -> unit rows (B, D). With mlp, f is
    Linear(I, width), ReLU, Linear(width, width), ReLU, Linear(width, D). Any gap between the two sides is then made by
    training. ValueError when the two sides differ in size, or when conv gets what is no square picture.
    """
    from mmts_ray.towers.twins import Twins

    if image_dim != text_dim:
        raise ValueError(
            f"model.name: twins start with equal weights, and the two sides have {image_dim} and {text_dim} numbers; "
            "legal is data whose sides are alike"
        )
    return Twins(inputs=image_dim, net=net, width=width, dim=dim, seed=seed)


MODELS: dict[str, Callable[..., Any]] = {
    "frozen_heads": frozen_heads,
    "open_clip": open_clip,
    "sentence_student": sentence_student,
    "twins": twins,
}
INPUTS: dict[str, Callable[..., Any]] = {"open_clip": open_clip_inputs}  # models that read more than features
