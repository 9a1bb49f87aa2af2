"""How common is each sample: caption clusters, image clusters, classes. Rare groups get other temperatures (MM-TS).

Shapes: N images, M caption rows (pairs), U unique captions, G groups with training pairs, R rows of features (N or U),
P distinct training points, C centres, E dimension.
"""

import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from mmts_ray.cache import locked, sync
from mmts_ray.data.dataset import TRAIN, digest
from mmts_ray.features import Frozen
from mmts_ray.space import Int

MOST_FITTED = 50_000  # points that k-means is fitted on, unless that is fewer than this many a cluster:
POINTS_PER_CLUSTER = 64
CHUNK = 4096  # points compared with all centres at once
TAIL, MIDDLE, HEAD = range(3)


@dataclass(frozen=True)
class Groups:
    """The group of each caption row and its size in training pairs.

    Labels 0 .. G-1 are groups with training pairs, largest first; labels from G on are classes never seen in training,
    of size 0. `tercile_M`: the list of groups, sorted by size, cut in three equal parts: 0 tail, 1 middle, 2 head.
    """

    label_M: np.ndarray  # int32
    size_M: np.ndarray  # int64
    sizes_G: np.ndarray  # int64, >= 1, descending
    tercile_M: np.ndarray  # int8
    notes: tuple[str, ...] = ()


def captions(
    frozen: Frozen,
    *,
    k: Annotated[int, Int(1, 100_000, log=True, doc="clusters", source="not known for arXiv:2603.08202")] = 50,
    seed: Annotated[int, Int(0, 2**31 - 1, doc="of the k-means initialisation")] = 0,
) -> Groups:
    """Clusters of captions: k-means on the unit text features of the distinct training captions.

    Captions of the other splits go to the nearest centre. With fewer distinct captions than k, each is a cluster.
    The order of the rows does not matter. Reference: arXiv:2603.08202 (MM-TS, clusters of Sentence-BERT embeddings).
    """
    return _clustered(frozen, frozen.text_UT, frozen.text_M, k=k, seed=seed, what="captions")


def images(
    frozen: Frozen,
    *,
    k: Annotated[int, Int(1, 100_000, log=True, doc="clusters")] = 50,
    seed: Annotated[int, Int(0, 2**31 - 1, doc="of the k-means initialisation")] = 0,
) -> Groups:
    """Clusters of images: k-means on the unit image features of the training images, otherwise as for captions."""
    return _clustered(frozen, frozen.image_NI, frozen.image_M, k=k, seed=seed, what="images")


def classes(frozen: Frozen) -> Groups:
    """The classes that the data names (MM-TS on EPIC-KITCHENS-100 takes the noun classes).

    A class without a training pair has size 0 and is in the tail. Raises ValueError when the data has no classes.
    """
    if frozen.class_N is None:
        data = frozen.names.get("data", "the data")
        raise ValueError(f"groups.name: classes needs classes, which {data} lacks; legal are captions, images, none")
    return _groups(frozen, frozen.class_N[frozen.image_M], what="classes")


def none(frozen: Frozen) -> Groups:
    """One group of everything: no sample is rarer than another."""
    return _groups(frozen, np.zeros(len(frozen.image_M), dtype=np.int32), what="groups")


def _groups(frozen: Frozen, label_M: np.ndarray, what: str) -> Groups:
    train_M = _training(frozen)
    found, label_M = np.unique(label_M, return_inverse=True)
    sizes = np.bincount(label_M[train_M], minlength=len(found))
    order = np.argsort(-sizes, kind="stable")
    rank = np.empty(len(found), dtype=np.int32)
    rank[order] = np.arange(len(found))
    label_M, sizes = rank[label_M], sizes[order]
    sizes_G = sizes[sizes > 0].astype(np.int64)
    unseen = len(sizes) - len(sizes_G)
    notes: tuple[str, ...] = ()
    if unseen:
        rows = int((label_M >= len(sizes_G)).sum())
        notes = (f"{unseen} {what} ({rows} pairs) do not occur in training and count as of size 0",)
    return Groups(
        label_M=label_M,
        size_M=sizes[label_M].astype(np.int64),
        sizes_G=sizes_G,
        tercile_M=terciles(len(sizes_G), len(sizes))[label_M],
        notes=notes,
    )


def terciles(groups: int, labels: int) -> np.ndarray:
    """The third (0 tail, 1 middle, 2 head) of each label, when labels are in descending order of size.

    The `groups` first labels are cut in equal parts; a remainder goes to the tail first. Further labels are tail.
    """
    third = np.full(labels, TAIL, dtype=np.int8)
    for part, positions in zip((TAIL, MIDDLE, HEAD), np.array_split(np.arange(groups)[::-1], 3)):
        third[positions] = part
    return third


def _training(frozen: Frozen) -> np.ndarray:
    train_M = frozen.split_N[frozen.image_M] == TRAIN
    if not train_M.any():
        raise ValueError("the training split has no pairs, so nothing can be grouped")
    return train_M


def _clustered(frozen: Frozen, features_RE: np.ndarray, row_M: np.ndarray, *, k: int, seed: int, what: str) -> Groups:
    if not features_RE.shape[1]:
        encoder = "text_encoder" if what == "captions" else "image_encoder"
        raise ValueError(
            f"groups.name: clusters of {what} need features, and model.{encoder} is none; legal is classes"
        )
    norm_R1 = np.linalg.norm(features_RE, axis=1, keepdims=True)
    # rounded: an encoder's last digits depend on what else was in the batch, and equal texts must stay equal points
    unit_RE = np.round(features_RE / np.where(norm_R1 > 0, norm_R1, 1), 5)
    train_M = _training(frozen)
    # distinct and in lexical order: neither duplicates nor the order of the data can touch the result
    points_PE = np.unique(unit_RE[np.unique(row_M[train_M])], axis=0)
    notes: tuple[str, ...] = ()
    if k >= len(points_PE):
        centres_CE = points_PE
        if k > len(points_PE):
            notes = (f"{k} clusters asked, {len(points_PE)} distinct training {what}: {len(points_PE)} clusters used",)
    else:
        centres_CE = _fit(points_PE, k=k, seed=seed)
    label_M = _nearest(unit_RE, centres_CE)[row_M]
    filled = np.unique(label_M[train_M])
    if len(filled) < len(centres_CE):  # k-means on a part of the points may leave a centre without a training pair
        label_M = _nearest(unit_RE, centres_CE[filled])[row_M]
    groups = _groups(frozen, label_M, what=what)
    return replace(groups, notes=notes + groups.notes)


def _fit(points_PE: np.ndarray, *, k: int, seed: int) -> np.ndarray:
    """Centres (k, E) of the points, which are distinct and more than k."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    most = max(MOST_FITTED, POINTS_PER_CLUSTER * k)
    if len(points_PE) > most:
        chosen = np.random.default_rng(seed).choice(len(points_PE), size=most, replace=False)
        points_PE = points_PE[np.sort(chosen)]
    # on 3k points of 384 dimensions: 0.1 s at k = 50, 0.6 s at k = 500; Elkan's algorithm takes 10 % longer
    with threadpool_limits(limits=1):  # more threads gain little, and sum in another order on another machine
        fitted = KMeans(n_clusters=k, init="k-means++", n_init=1, algorithm="lloyd", random_state=seed).fit(points_PE)
    return fitted.cluster_centers_


def _nearest(points_PE: np.ndarray, centres_CE: np.ndarray) -> np.ndarray:
    """The nearest centre of each point; the first of equals."""
    half_square_C = 0.5 * np.einsum("ce,ce->c", centres_CE, centres_CE)
    nearest_P = np.empty(len(points_PE), dtype=np.int32)
    for start in range(0, len(points_PE), CHUNK):
        part = slice(start, start + CHUNK)
        nearest_P[part] = np.argmax(points_PE[part] @ centres_CE.T - half_square_C, axis=1)
    return nearest_P


def cached(frozen: Frozen, name: str, kwargs: Mapping[str, Any], cache_dir: str | Path | None) -> Groups:
    """`GROUPS[name](frozen, **kwargs)`, kept in `cache_dir` under a key of features and parameters; None keeps nothing.

    A file that is damaged is made anew. Processes that want the same groups at once wait for the first.
    """
    if cache_dir is None:
        return GROUPS[name](frozen, **kwargs)
    key = digest("groups", frozen.key, name, json.dumps(dict(kwargs), sort_keys=True))[:32]
    path = Path(cache_dir) / f"groups-{key}.npz"
    found = _read(path, len(frozen.image_M))
    if found is None:
        try:
            with locked(path.with_suffix(".lock")):
                found = _read(path, len(frozen.image_M))
                if found is None:
                    found = GROUPS[name](frozen, **kwargs)
                    _write(path, found)
        except OSError as problem:
            raise ValueError(f"{path.parent}: cannot keep groups there ({problem.strerror or problem})") from problem
    return found


def _arrays(groups: Groups) -> dict[str, np.ndarray]:
    arrays = {name: getattr(groups, name) for name in ("label_M", "size_M", "sizes_G", "tercile_M")}
    return {**arrays, "notes": np.array(groups.notes, dtype=np.str_)}


def _write(path: Path, groups: Groups) -> None:
    arrays = _arrays(groups)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, sha256=np.array(digest(*arrays.values())), **arrays)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(buffer.getbuffer())
    sync(temporary)
    os.replace(temporary, path)


def _read(path: Path, rows: int) -> Groups | None:
    """The groups in a file; None when it is not there, not whole, or of other data."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            stored = {name: archive[name] for name in archive.files}
        expected = str(stored.pop("sha256"))
        groups = Groups(**{**stored, "notes": tuple(stored["notes"].tolist())})
        intact = len(groups.label_M) == rows and digest(*_arrays(groups).values()) == expected
    except Exception:  # a damaged zip raises anything, from BadZipFile to zlib.error
        return None
    return groups if intact else None


GROUPS = {"captions": captions, "images": images, "classes": classes, "none": none}
