"""The arrays that trained towers read, made once: pictures as bytes, captions as token ids."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mmts_ray.data.class_folders import class_folders
from mmts_ray.encoders import LITE0_CREDIT, MINILM_CREDIT, Encoder, Inputs, Tower
from mmts_ray.towers.weights import PACKAGED, Source, find, tokenizer, tokenizer_files

if TYPE_CHECKING:
    from PIL.Image import Image

SLOT = "{}"  # where the class name stands in a template


def inputs(weights: str, prompts: str, zeroshot: str | None = None) -> Inputs:
    """Pictures at the size of the model as bytes, and captions as its tokens.

    `prompts` are templates divided by |, `zeroshot` is a folder of class folders, see `data.class_folders`.
    """
    templates = [part.strip() for part in prompts.split("|")]
    for template in templates:
        if template.count(SLOT) != 1:
            raise ValueError(
                f"model.prompts: {template!r} has no place for the class; legal is text with one {SLOT}, templates "
                "divided by |"
            )
    source, packaged = find(weights), weights == PACKAGED
    p = source.preprocess_cfg
    pixels = f"pixels {p['size']} {p['interpolation']} {p['resize_mode']} {p['fill_color']}"
    text = source.model_cfg["text_cfg"]
    told = [*sorted((k, v) for k, v in text.items() if "token" in k or k == "context_length"), *tokenizer_files(source)]
    return Inputs(
        images=Encoder(
            name=f"pixels {p['size']}", version=pixels, load=partial(_pixels, source), credit=LITE0_CREDIT * packaged
        ),
        texts=Encoder(
            name="tokens", version=f"tokens {told}", load=partial(_tokens, source), credit=MINILM_CREDIT * packaged
        ),
        version=source.version,
        prompts=partial(_prompts, source, templates),
        zeroshot=None if zeroshot is None else class_folders(zeroshot),
    )


def _pixels(source: Source) -> Tower:
    """Bytes of a picture, (3 S S,): what the library's evaluation transform gives before it divides by 255."""
    from open_clip.transform import PreprocessCfg, image_transform_v2

    # its last two steps, to a tensor and normalisation, are done on the device, a batch at a time
    steps = image_transform_v2(PreprocessCfg(**source.preprocess_cfg), is_train=False).transforms[:-2]

    def prepare(picture: "Image") -> np.ndarray:
        value: Any = picture
        for step in steps:
            value = step(value)
        return np.asarray(value).transpose(2, 0, 1).reshape(-1)

    return Tower(dim=3 * source.image_size**2, batch_size=64, prepare=prepare, encode=np.stack, dtype="uint8")


def _tokens(source: Source) -> Tower:
    """Token ids of a caption, (L,); longer ones are cut, with the end token in the last place."""
    tokenise = tokenizer(source)
    words = source.model_cfg["text_cfg"].get("vocab_size", 49408)
    own = "hf_model_name" not in source.model_cfg["text_cfg"]

    def encode(texts: Sequence[str]) -> np.ndarray:
        ids_BL = tokenise(list(texts)).numpy().astype(np.int32)
        if own and int(ids_BL.max()) >= words:
            raise ValueError(f"model.weights: token {ids_BL.max()} is beyond the model's vocab_size {words}")
        return ids_BL

    return Tower(dim=source.context_length, batch_size=256, prepare=str, encode=encode, dtype="int32")


def _prompts(source: Source, templates: Sequence[str], classes: Sequence[str]) -> np.ndarray:
    """Token ids of every class in every template, int32 (C, P, L)."""
    texts = [template.replace(SLOT, name) for name in classes for template in templates]
    return _tokens(source).encode(texts).reshape(len(classes), len(templates), -1)
