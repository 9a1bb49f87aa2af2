"""What a sentence student reads: captions, corpus and scored pairs as token numbers, and the frozen layers' states.

Shapes: S different sentences, L tokens of all of them one after the other, U unique captions, C corpus lines, P pairs,
E hidden size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mmts_ray.data import TRAIN
from mmts_ray.data.corpus import corpus, sample
from mmts_ray.data.dataset import digest
from mmts_ray.data.sts import scored_pairs
from mmts_ray.encoders import Encoder, Tower
from mmts_ray.features import Failed, Frozen, Kept, Progress, default_cache_dir
from mmts_ray.features.cache import entry

BATCH = 32
CUT_TOLERANCE = 1e-3  # states differ by about 1e-6 between the cut and the whole encoder; a wrong cut by far more


@dataclass(frozen=True)
class ScoredRows:
    """One part of one task of semantic similarity, as numbers of sentences."""

    task: str
    split: int
    left_P: np.ndarray  # int32
    right_P: np.ndarray  # int32
    gold_P: np.ndarray  # float64, 0 to 5


@dataclass(frozen=True)
class Sentences:
    """Plain arrays, never written to. Equal texts are one sentence."""

    token_L: np.ndarray  # int32
    start_S1: np.ndarray  # int64: sentence s is token_L[start_S1[s] : start_S1[s + 1]]
    caption_U: np.ndarray  # int32: sentence of each unique caption; -1 for those that are not trained on
    corpus_C: np.ndarray  # int32
    scored: tuple[ScoredRows, ...]
    states: Kept | None  # (L, E) float32: before the first trained layer, dropout off; None: everything is trained


def with_sentences(
    frozen: Frozen,
    model: Mapping[str, Any],
    *,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> Frozen:
    """The features with what a sentence student needs.

    The states before the first trained layer are computed once and kept in the cache, keyed by weights, tokens and
    "dropout off": what is frozen is then a fixed function, without the dropout that the whole encoder would have there.
    `model` holds the arguments of `models.sentence_student`. Raises ValueError, one line: see `corpus`, `scored_pairs`
    and `student`; data without captions.
    """
    from mmts_ray import student

    captions = frozen.captions_U
    if not captions:
        raise ValueError("data.name: these features come without captions, which a sentence student is trained on")
    version = student.version(model["student"])
    parts, notes = scored_pairs(model["sts"])
    if model["corpus"] is None:
        given = [s for p in parts if p.split == TRAIN for s in (*p.left, *p.right)]
        lines = sample(list(dict.fromkeys(given)), model["corpus_limit"])
        if len(lines) < 2:
            raise ValueError(
                f"model.corpus: null takes the training sentences of model.sts, and {model['sts']} has none; legal is "
                "a text file with one sentence a line, such as wiki1m_for_simcse.txt"
            )
    else:
        lines, more = corpus(model["corpus"], limit=model["corpus_limit"])
        notes += more
    trained_U = np.unique(frozen.text_M[frozen.split_N[frozen.image_M] == TRAIN])
    texts = dict.fromkeys(captions[u] for u in trained_U.tolist())
    texts |= dict.fromkeys(lines)
    texts |= dict.fromkeys(s for p in parts if p.split != TRAIN for s in (*p.left, *p.right))
    number = {text: index for index, text in enumerate(texts)}
    tokens = student.tokens(model["student"], list(texts), model["max_length"])
    start_S1 = np.concatenate([[0], np.cumsum([len(t) for t in tokens], dtype=np.int64)])
    token_L = np.concatenate([np.asarray(t, dtype=np.int32) for t in tokens])
    caption_U = np.full(len(captions), -1, dtype=np.int32)
    caption_U[trained_U] = [number[captions[u]] for u in trained_U.tolist()]

    def rows(sentences: list[str]) -> np.ndarray:
        return np.array([number[s] for s in sentences], dtype=np.int32)

    scored = tuple(
        ScoredRows(p.task, p.split, rows(p.left), rows(p.right), p.gold_P) for p in parts if p.split != TRAIN
    )
    key = digest(version, token_L, start_S1)
    layers, states = model["trained_layers"], None
    if layers is not None:
        kept = digest("states before the last layers, dropout off", str(layers), key)[:32]
        folder = (cache_dir or default_cache_dir()) / f"states-{kept}"
        encoder = Encoder(name=model["student"], version=version, load=partial(_tower, model["student"], layers))

        def fill(tower: Tower, pool: Any, out_LE: np.ndarray) -> Failed:
            _fill(tokens, start_S1, tower, pool, out_LE, progress)
            return {}

        state_LE, _ = entry(folder, encoder, len(token_L), fill, False)
        states = Kept(folder.name, state_LE.shape, str(state_LE.dtype))
    made = Sentences(token_L, start_S1, caption_U, rows(lines), scored, states)
    gold = [x for p in scored for x in (p.left_P, p.right_P, p.gold_P)]
    whole = digest(frozen.key, key, caption_U, made.corpus_C, str(layers), *gold)[:32]
    return replace(frozen, sentences=made, notes=frozen.notes + notes, key=whole)


def _tower(name: str, trained_layers: int) -> Tower:
    """The frozen layers as an encoder: from token numbers of sentences to the states of all of them, (tokens, E)."""
    import torch

    from mmts_ray import student

    states = student.prefix(name, trained_layers)

    def encode(batch: Sequence[list[int]]) -> np.ndarray:
        longest = max(map(len, batch))
        token_SL = torch.tensor([t + [0] * (longest - len(t)) for t in batch])
        mask_SL = torch.tensor([[1] * len(t) + [0] * (longest - len(t)) for t in batch])
        return states(token_SL, mask_SL)[mask_SL.bool()].numpy()

    off = student.cut_error(name, trained_layers)
    if not off < CUT_TOLERANCE:
        raise ValueError(
            f"model.trained_layers: {name} does not give the same when its last {trained_layers} layers are cut off "
            f"(off by {off:.2g}); legal is null (all trained, nothing cached)"
        )
    return Tower(dim=encode([[0]]).shape[1], batch_size=BATCH, prepare=list, encode=encode)


def _fill(
    tokens: list[list[int]],
    start_S1: np.ndarray,
    tower: Tower,
    pool: Any,
    out_LE: np.ndarray,
    progress: Progress | None,
) -> None:
    """Fill `out_LE`, sentences of like length together."""
    order = sorted(range(len(tokens)), key=lambda s: len(tokens[s]))
    batches = [order[at : at + tower.batch_size] for at in range(0, len(order), tower.batch_size)]
    done = 0
    for batch, rows in zip(batches, pool.map(lambda b: tower.encode([tokens[s] for s in b]), batches)):
        if not np.isfinite(rows).all():
            raise ValueError("model.student: its states are not finite")
        at = 0
        for s in batch:
            out_LE[start_S1[s] : start_S1[s + 1]] = rows[at : at + len(tokens[s])]
            at += len(tokens[s])
        done += len(batch)
        if progress is not None:
            progress(done, len(tokens), "sentences, frozen layers")
