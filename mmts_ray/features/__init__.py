"""Frozen features: encode every picture and caption once, keep them for ever in a content-addressed cache.

An entry is a folder with `features.npy` and `manifest.json`; it appears whole, by one rename, or not at all. Its key
covers what went in (pictures or captions) and the encoder's weights, so that nothing is ever out of date.

Shapes: N images, M caption rows (pairs), U unique captions, I and T feature dimensions.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mmts_ray.cache import default_cache_dir
from mmts_ray.data.dataset import Dataset, digest
from mmts_ray.data.relevance import Relevance
from mmts_ray.encoders import NONE, find_encoder
from mmts_ray.features.cache import Failed, Kept, entry
from mmts_ray.features.pool import BATCHES_AT_ONCE

if TYPE_CHECKING:
    from mmts_ray.encoders import Encoder, Inputs, Tower

__all__ = ["Failed", "Frozen", "Kept", "Progress", "default_cache_dir", "encode"]

STAND_IN_ENCODER = "minilm-l6"  # text encoder that stand-in image features are made with
UNDECODABLE = "image cannot be decoded"

Progress = Callable[[int, int, str], None]  # done, total, what


@dataclass(frozen=True)
class Frozen:
    """Features of a data set and how they pair; plain arrays, never written to (Ray shares them between processes)."""

    image_NI: np.ndarray  # float32
    text_UT: np.ndarray  # float32
    text_M: np.ndarray  # int32: unique caption of each row
    image_M: np.ndarray  # int32: image of each row
    split_N: np.ndarray  # int8: 0 train, 1 validation, 2 test
    id_N: np.ndarray  # int32: images with equal ids are never each other's negatives
    class_N: np.ndarray | None  # int32
    key: str
    notes: tuple[str, ...] = ()
    names: dict[str, Any] = field(default_factory=dict)  # data, image_encoder, text_encoder, classes, dropped
    relevance: Relevance | None = None  # of images and listed captions, where captions are right by degrees
    text_C: np.ndarray | None = None  # int32: unique caption of each listed caption
    inputs: tuple[Kept, Kept] | None = None  # of a model that reads pictures and captions: (N, ...) and (U, ...)
    zeroshot: "Zeroshot | None" = None
    encoding: dict[str, Any] = field(default_factory=dict)  # what `prepare.features` made this from
    captions_U: tuple[str, ...] = ()  # the unique captions; empty for features without
    sentences: Any = None  # of a sentence student: sentences.Sentences


@dataclass(frozen=True)
class Zeroshot:
    """What zero-shot classification needs: class names in templates, and pictures if they are not the data's own."""

    prompts_CPL: np.ndarray  # int32 token ids
    pixels: Kept | None = None
    class_N: np.ndarray | None = None  # int32, of these pictures


def encode(
    dataset: Dataset,
    *,
    image_encoder: str,
    text_encoder: str,
    inputs: "Inputs | None" = None,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
    verify: bool = False,
) -> Frozen:
    """Features of a data set, from the cache if they are there; `verify` also checks their SHA-256.

    A picture that cannot be decoded is dropped with its captions, counted by row, and held against the data set's
    `strict` and `max_dropped`. A data set of ready features needs no encoder. `inputs`, of a model that is trained on
    pictures and captions themselves, are made rows in the same way. Of processes that want the same entry at once, one
    makes it and the others wait. Raises ValueError, one line: unknown encoder, no network for its weights, cache not
    writable, too many drops, inputs of a data set without pictures.
    """
    if inputs is not None and (dataset.image is None or dataset.of_frames):
        has = "frames" if dataset.of_frames else "features"
        raise ValueError(f"model.name: this model reads pictures, and data {dataset.name} has {has} only")
    cache = Path(cache_dir) if cache_dir is not None else default_cache_dir()
    if dataset.text_features_UT is not None:
        return _ready(dataset)
    if dataset.image is None:
        return _with_texts(dataset, text_encoder, cache, progress, verify)
    images, texts = (
        None if name == NONE else find_encoder(kind, name)
        for kind, name in (("image", image_encoder), ("text", text_encoder))
    )
    if images is not None and dataset.of_frames:
        images = _averaged(images)

    def report(done: int, total: int, what: str) -> None:
        if progress is not None:
            progress(done, total, what)

    def of_images(images: "Encoder | None", of: Dataset) -> tuple[str, np.ndarray, Failed]:
        if images is None:
            return NONE, np.zeros((len(of.split_N), 0), dtype=np.float32), {}
        key = digest("image", of.images_fingerprint, images.version)[:32]

        def fill(tower: "Tower", pool: ThreadPoolExecutor, out_NI: np.ndarray) -> Failed:
            return _encode_images(of, tower, pool, out_NI, partial(report, what=f"images, {images.name}"))

        return key, *entry(cache / f"image-{key}", images, len(of.split_N), fill, verify)

    image_key, image_NI, failed = of_images(images, dataset)
    if inputs is not None:
        pixel_key, pixel_NI, undecodable = of_images(inputs.images, dataset)
        failed = undecodable | failed
    kept, keep_N = _without(dataset, failed)
    if failed:
        image_NI = image_NI[keep_N]
    unique = sorted({*kept.captions, *kept.listed})

    def of_texts(texts: "Encoder | None") -> tuple[str, np.ndarray]:
        if texts is None:
            return NONE, np.zeros((len(unique), 0), dtype=np.float32)
        key = digest("text", unique, texts.version)[:32]

        def fill(tower: "Tower", pool: ThreadPoolExecutor, out_UT: np.ndarray) -> Failed:
            return _encode_texts(unique, tower, pool, out_UT, partial(report, what=f"captions, {texts.name}"))

        return key, entry(cache / f"text-{key}", texts, len(unique), fill, verify)[0]

    text_key, text_UT = of_texts(texts)
    position = {caption: index for index, caption in enumerate(unique)}
    text_M = np.array([position[caption] for caption in kept.captions], dtype=np.int32)
    used = (images, texts, *((inputs.images, inputs.texts) if inputs is not None else ()))
    credits = tuple(dict.fromkeys([*kept.credits, *(e.credit for e in used if e is not None and e.credit)]))
    encoders = {"image_encoder": image_encoder, "text_encoder": text_encoder, "credits": credits}
    if inputs is None:
        frozen = _frozen(kept, image_NI, text_UT, text_M, f"{image_key} {text_key}", encoders)
        return _graded(frozen, kept, np.array([position[caption] for caption in kept.listed], dtype=np.int32))
    token_key, token_UL = of_texts(inputs.texts)
    keys = f"{image_key} {text_key} {pixel_key} {token_key} {inputs.version}"
    pixels = Kept.of(f"image-{pixel_key}", pixel_NI, keep_N)
    tokens = Kept.of(f"text-{token_key}", token_UL)
    zeroshot = Zeroshot(inputs.prompts(kept.class_names)) if kept.class_names else None
    if inputs.zeroshot is not None:
        shown_key, shown_NI, failed = of_images(inputs.images, inputs.zeroshot)
        shown, keep_N = _without(inputs.zeroshot, failed)
        own = Kept.of(f"image-{shown_key}", shown_NI, keep_N)
        zeroshot = Zeroshot(inputs.prompts(shown.class_names), own, shown.class_N)
        keys = f"{keys} {shown_key}"
    frozen = _frozen(kept, image_NI, text_UT, text_M, keys, encoders)
    return replace(frozen, inputs=(pixels, tokens), zeroshot=zeroshot)


def _ready(dataset: Dataset) -> Frozen:
    assert dataset.image_features_NI is not None
    assert dataset.text_features_UT is not None
    assert dataset.text_M is not None
    given = {"image_encoder": "given", "text_encoder": "given"}
    key = dataset.images_fingerprint
    return _frozen(dataset, dataset.image_features_NI, dataset.text_features_UT, dataset.text_M, key, given)


def _with_texts(dataset: Dataset, text_encoder: str, cache: Path, progress: Progress | None, verify: bool) -> Frozen:
    """Image features that are given, or made from the images' own captions; captions are encoded."""

    def encoded(texts: Sequence[str], encoder: "Encoder") -> tuple[np.ndarray, np.ndarray, str]:
        """(features of the distinct texts, which of them each text is, the key of the entry)."""
        distinct, place = np.unique(np.array(texts, dtype=object), return_inverse=True)
        key = digest("text", distinct.tolist(), encoder.version)[:32]

        def report(done: int, total: int) -> None:
            if progress is not None:
                progress(done, total, f"captions, {encoder.name}")

        def fill(tower: "Tower", pool: ThreadPoolExecutor, out_UT: np.ndarray) -> Failed:
            return _encode_texts(distinct.tolist(), tower, pool, out_UT, report)

        return entry(cache / f"text-{key}", encoder, len(distinct), fill, verify)[0], place.astype(np.int32), key

    encoder = find_encoder("text", text_encoder)
    rows = len(dataset.captions)
    text_UT, place, text_key = encoded([*dataset.captions, *dataset.listed], encoder)
    credits, key = [*dataset.credits, encoder.credit], dataset.images_fingerprint
    if dataset.image_features_NI is not None:
        image_NI = dataset.image_features_NI
    else:
        assert dataset.stand_in is not None
        maker = find_encoder("text", STAND_IN_ENCODER)
        own_UE, own_M = text_UT, place[:rows]
        if maker.version != encoder.version:
            own_UE, own_M, made = encoded(dataset.captions, maker)
            credits, key = [*credits, maker.credit], f"{key} {made}"
        image_NI = dataset.stand_in(own_UE[own_M[np.unique(dataset.image_M, return_index=True)[1]]])
    names: dict[str, Any] = {"image_encoder": dataset.image_source, "text_encoder": encoder.name}
    names["credits"] = tuple(dict.fromkeys(filter(None, credits)))
    frozen = _frozen(dataset, image_NI, text_UT, place[:rows], f"{key} {text_key}", names)
    return _graded(frozen, dataset, place[rows:])


def _graded(frozen: Frozen, dataset: Dataset, text_C: np.ndarray) -> Frozen:
    """The features with the relevancy of the data set's listed captions, if it has any."""
    if dataset.relevance is None:
        return frozen
    key = digest(frozen.key, dataset.relevance.fingerprint, text_C)[:32]
    return replace(frozen, key=key, relevance=dataset.relevance, text_C=text_C)


def _averaged(encoder: "Encoder") -> "Encoder":
    """The encoder on lists of pictures: the mean of the features of each list."""
    from mmts_ray.encoders import Tower

    def load() -> "Tower":
        tower = encoder.load()

        def encode(clips: Sequence[list[Any]]) -> np.ndarray:
            features_FI = tower.encode([frame for clip in clips for frame in clip])
            starts = np.cumsum([0, *(len(clip) for clip in clips)])[:-1]
            counts = np.array([[len(clip)] for clip in clips])
            return (np.add.reduceat(features_FI, starts, axis=0) / counts).astype(np.float32)

        def prepare(clip: Sequence[Any]) -> list[Any]:
            return [tower.prepare(frame) for frame in clip]

        return Tower(dim=tower.dim, batch_size=max(1, tower.batch_size // 4), prepare=prepare, encode=encode)

    return replace(encoder, name=f"{encoder.name}, mean of frames", version=f"{encoder.version} frames", load=load)


def _frozen(
    dataset: Dataset, image_NI: np.ndarray, text_UT: np.ndarray, text_M: np.ndarray, key: str, encoders: dict[str, Any]
) -> Frozen:
    captions_U = [""] * len(text_UT)
    for u, caption in zip(text_M.tolist(), dataset.captions):
        captions_U[u] = caption
    return Frozen(
        image_NI=image_NI,
        text_UT=text_UT,
        text_M=text_M,
        image_M=dataset.image_M,
        split_N=dataset.split_N,
        id_N=dataset.id_N,
        class_N=dataset.class_N,
        key=digest(key, text_M, dataset.image_M, dataset.split_N, dataset.id_N, dataset.class_N)[:32],
        notes=dataset.notes + dataset.drops.notes(),
        names={"data": dataset.name, **encoders, "classes": dataset.class_names, "dropped": dataset.dropped},
        captions_U=tuple(captions_U) if dataset.captions else (),
    )


def _without(dataset: Dataset, failed: Failed) -> tuple[Dataset, np.ndarray]:
    """(the data set without the pictures that failed, which images stay)."""
    keep_N = np.ones(len(dataset.split_N), dtype=bool)
    if not failed:
        return dataset, keep_N
    keep_N[list(failed)] = False
    drops = replace(dataset.drops, rows=list(dataset.drops.rows))
    keep_M = keep_N[dataset.image_M]
    stay_M, stay_N = np.flatnonzero(keep_M).tolist(), np.flatnonzero(keep_N).tolist()
    bad = {(int(dataset.row_M[m]), int(dataset.image_M[m])) for m in np.flatnonzero(~keep_M)}
    for row, image in sorted(bad):
        drops.add(row, UNDECODABLE, f"{dataset.image_ids[image]}: {failed[image]}")
    drops.check()
    renumbered_N = np.cumsum(keep_N, dtype=np.int32) - 1
    kept = replace(
        dataset,
        captions=[dataset.captions[m] for m in stay_M],
        image_M=renumbered_N[dataset.image_M[keep_M]],
        row_M=dataset.row_M[keep_M],
        split_N=dataset.split_N[keep_N],
        id_N=dataset.id_N[keep_N],
        class_N=None if dataset.class_N is None else dataset.class_N[keep_N],
        image_ids=[dataset.image_ids[n] for n in stay_N],
        relevance=dataset.relevance and replace(dataset.relevance, key_N=dataset.relevance.key_N[keep_N]),
        drops=drops,
    )
    return kept, keep_N


def _encode_images(
    dataset: Dataset,
    tower: "Tower",
    pool: ThreadPoolExecutor,
    out_NI: np.ndarray,
    report: Callable[[int, int], None],
) -> Failed:
    """Fill `out_NI`; returns the pictures that failed."""
    assert dataset.image is not None
    open_image, total = dataset.image, len(out_NI)

    def prepare(index: int) -> Any:
        try:
            return tower.prepare(open_image(index))
        except MemoryError:
            raise
        except Exception as problem:  # decoders raise anything on hostile bytes
            if isinstance(problem, OSError) and problem.errno is not None:
                # the file system failed, not the picture: that must not be remembered as a bad picture
                raise ValueError(f"{dataset.image_ids[index]}: cannot be read ({problem.strerror})") from problem
            return " ".join(str(problem).split())[:100] or type(problem).__name__

    failed: Failed = {}
    done = 0
    report(done, total)
    # first some batches are opened, then they are encoded: where opening holds the interpreter lock (resvg does), doing
    # both at once delays every one of the network's operations and takes half as long again
    stride = tower.batch_size * BATCHES_AT_ONCE
    for start in range(0, total, stride):
        chosen = range(start, min(start + stride, total))
        inputs = dict(zip(chosen, pool.map(prepare, chosen)))
        failed.update({index: value for index, value in inputs.items() if isinstance(value, str)})
        good = [index for index in chosen if index not in failed]

        def encode_batch(batch: list[int], inputs: dict[int, Any] = inputs) -> np.ndarray:
            return tower.encode([inputs[index] for index in batch])

        batches = [good[at : at + tower.batch_size] for at in range(0, len(good), tower.batch_size)]
        for batch, rows in zip(batches, pool.map(encode_batch, batches)):
            for index, row in zip(batch, rows):
                if np.isfinite(row).all():
                    out_NI[index] = row
                else:
                    failed[index] = "its features are not finite"
            done = batch[-1] + 1
            report(done, total)
    if done < total:  # the last pictures failed
        report(total, total)
    return failed


def _encode_texts(
    texts: Sequence[str],
    tower: "Tower",
    pool: ThreadPoolExecutor,
    out_UT: np.ndarray,
    report: Callable[[int, int], None],
) -> Failed:
    """Fill `out_UT`, texts of like length together: padding to the longest of a mixed batch is wasted work."""
    by_length = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    batches = [by_length[start : start + tower.batch_size] for start in range(0, len(texts), tower.batch_size)]

    def encode_batch(batch: list[int]) -> np.ndarray:
        return tower.encode([tower.prepare(texts[index]) for index in batch])

    done = 0
    report(done, len(texts))
    for batch, rows in zip(batches, pool.map(encode_batch, batches)):
        if not np.isfinite(rows).all():
            raise ValueError(f"text features are not finite among the captions around {texts[batch[0]]!r}")
        out_UT[batch] = rows
        done += len(batch)
        report(done, len(texts))
    return {}
