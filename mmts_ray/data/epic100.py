"""EPIC-KITCHENS-100 multi-instance retrieval: clips and captions that are right by degrees, from verb and noun classes.

Shapes: N clips (and caption rows: each clip has its own narration), C listed captions.
"""

import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from mmts_ray.data.clip_features import KINDS, STAND_IN, clip_features, stand_in
from mmts_ray.data.clip_frames import frame_files, open_frames, stamps
from mmts_ray.data.dataset import TEST, TRAIN, VALIDATION, Dataset, digest, number_classes, split_by_id
from mmts_ray.data.drops import Drops
from mmts_ray.data.relevance import Relevance, numbered
from mmts_ray.data.rows import Format, read_rows
from mmts_ray.space import Choice, Float, Int, Text

CLIP_COLUMNS = ("narration_id", "narration", "verb_class", "noun_class", "all_noun_classes")
FRAME_COLUMNS = ("start_frame", "stop_frame")
CLASS_LIST = re.compile(r"\[\s*(\d+\s*(,\s*\d+\s*)*)?\]")
NO_NAME, NAME_TWICE = "no narration_id", "narration_id occurs twice"
NO_TEXT = "empty narration"
NO_CLASS = "a class is not a whole number"
IS_TEST = "is a test clip"
NO_SPAN = "start_frame or stop_frame is not a whole number"
NO_FRAMES = "no frames of this clip"
NO_CLIP = "its clip is not in the test file"
CREDIT = "EPIC-KITCHENS-100 annotations, Damen et al. (IJCV 2022), CC BY-NC 4.0"

Key = tuple[int, Set[int]]  # verb class, noun classes


@dataclass(frozen=True)
class Clip:
    """One row of a clip file."""

    row: int
    name: str
    narration: str
    key: Key
    noun: int
    span: tuple[int, int]  # first and last frame, where frames are read

    @property
    def video(self) -> str:
        return self.name.rpartition("_")[0]


@dataclass(frozen=True)
class Caption:
    """One row of a sentence file."""

    text: str
    key: Key


def epic100(
    *,
    path: Annotated[
        str, Text(path=True, doc="folder with the official retrieval CSVs (EPIC_100_retrieval_test.csv, ...; .gz too)")
    ],
    train: Annotated[
        str | None,
        Text(path=True, doc="the CSV of training clips, also in the folder", none="EPIC_100_retrieval_train.csv"),
    ] = None,
    features: Annotated[
        str, Text(path=True, doc=f"of the training clips, or of all: {KINDS}; {STAND_IN}: made from narrations")
    ] = STAND_IN,
    test_features: Annotated[
        str | None, Text(path=True, doc="features of the test clips", none="those of data.features has them too")
    ] = None,
    frames: Annotated[
        str | None,
        Text(
            path=True,
            doc="folder of the official frames, PXX/rgb_frames/PXX_YY/frame_0000000001.jpg or PXX_YY/frame_..., which "
            "the image encoder encodes and which are averaged over a clip",
            none="data.features says what clips are",
        ),
    ] = None,
    frames_per_clip: Annotated[int, Int(1, 64, doc="of data.frames, evenly over a clip", unit="frames")] = 4,
    sigma: Annotated[
        float, Float(0.0, 100.0, doc="length of the noise in stand-in features, beside a signal of length 1")
    ] = 3.0,
    classes: Annotated[
        str,
        Choice(("noun", "verb", "verb_noun"), doc="what `classes` groups clips by", source="arXiv:2603.08202: noun"),
    ] = "noun",
    validation: Annotated[
        str,
        Choice(
            ("train", "test"),
            doc="where validation clips come from: videos held out of training, or a fixed part of the test clips, "
            "which a search then sees",
        ),
    ] = "train",
    validation_share: Annotated[
        float, Float(0.001, 0.5, doc="share of training videos held out, with validation: train")
    ] = 0.05,
    validation_clips: Annotated[int, Int(2, 9668, doc="test clips used, with validation: test", unit="clips")] = 2000,
    seed: Annotated[int, Int(0, 2**31 - 1, doc="of the draw of validation clips")] = 0,
    strict: Annotated[bool, Choice((True, False), doc="refuse the files when one row cannot be used")] = False,
    max_dropped: Annotated[float, Float(0.0, 1.0, doc="refuse a file when more of its rows are dropped")] = 0.1,
) -> Dataset:
    """EPIC-KITCHENS-100: clips with their narrations, official captions, relevancy from verb and noun classes.

    The test is the official one: all clips of the test file against all captions of its sentence file. Captions of
    training and validation are those of the training sentence file, or, without it, the distinct narrations of the
    clips. A validation caption counts when a validation clip has its classes. Equal texts with other classes stay two
    captions. Rows that cannot be used are dropped and counted by file. Raises ValueError, one line.
    Source: arXiv:2006.13256, github epic-kitchens/epic-kitchens-100-annotations.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; data.path is the folder with the retrieval CSVs")
    counted = partial(Drops, strict=strict, max_dropped=max_dropped)
    where = [_find(folder, "retrieval_test"), _training_file(folder, train)]
    drops = [counted(source=file.name) for file in where]
    test, test_order = _clips(where[0], drops[0], spans=frames is not None)
    names = {clip.name for clip in test}
    trained, train_order = _clips(where[1], drops[1], spans=frames is not None, not_these=names)
    drops.append(counted(source="test captions"))
    test_captions = _test_captions(_find(folder, "retrieval_test_sentence"), drops[2], test)
    sentences = _optional(folder, "retrieval_train_sentence")
    train_captions = _own(trained)
    if sentences is not None:
        drops.append(counted(source="training captions"))
        train_captions = _train_captions(sentences, drops[3])

    source, given_NI = f"{STAND_IN} (narration, noise of length {sigma:g}, no video)", None
    usable = [np.arange(len(trained)), np.arange(len(test))]
    shown: list[list[Path]] = []
    if frames is not None:
        if features != STAND_IN or test_features is not None:
            raise ValueError("data.frames: clips are frames or features, not both; leave data.features out")
        source = f"{frames_per_clip} frames a clip"
        for number, clips in enumerate((trained, test)):
            found = [frame_files(Path(frames).expanduser(), clip.video, *clip.span, frames_per_clip) for clip in clips]
            usable[number] = _with(found, clips, drops[1 - number])
            shown += found
    elif features != STAND_IN:
        source = Path(features).name
        files = [Path(features).expanduser(), Path(test_features or features).expanduser()]
        train_NI, usable[0] = _features(files[0], trained, train_order, drops[1])
        test_NI, usable[1] = _features(files[1], test, test_order, drops[0])
        if train_NI.shape[1] != test_NI.shape[1]:
            raise ValueError(f"{files[0]}: {train_NI.shape[1]} features a clip, {files[1]}: {test_NI.shape[1]}")
        given_NI = np.concatenate([train_NI, test_NI])
    elif test_features is not None:
        raise ValueError(f"data.test_features: {test_features!r} needs data.features of the training clips")
    for part in drops:
        part.check()

    split_train = np.full(len(usable[0]), TRAIN)
    seen_test = np.zeros(0, dtype=np.int64)
    if validation == "train":
        videos = [trained[place].video for place in usable[0]]
        shares = {"validation_share": validation_share, "test_share": 0.0}
        drawn = split_by_id(videos, seed=seed, source=where[1].name, **shares)
        split_train = np.array([drawn[video] for video in videos])
    else:
        seen_test = np.sort(np.random.default_rng(seed).permutation(usable[1])[:validation_clips])
    # clips of the test that are validation too are there twice, with one id
    place_N = np.concatenate([usable[0], len(trained) + seen_test, len(trained) + usable[1]])
    split_N = np.concatenate([split_train, np.full(len(seen_test), VALIDATION), np.full(len(usable[1]), TEST)])
    both = [*trained, *test]
    clips = [both[place] for place in place_N.tolist()]
    validation_captions = train_captions if validation == "train" else test_captions
    listed = [*train_captions, *validation_captions, *test_captions]
    sizes = (len(train_captions), len(validation_captions), len(test_captions))
    split_C = np.repeat(np.array([TRAIN, VALIDATION, TEST], dtype=np.int8), sizes)
    verb_K, noun_KV, key = numbered([clip.key for clip in clips] + [caption.key for caption in listed])
    relevance = Relevance(verb_K, noun_KV, key[: len(clips)], key[len(clips) :], split_C)
    class_N, class_names = number_classes([CLASSES[classes](clip) for clip in clips])
    what = [f"{clip.name} {clip.narration}" for clip in clips]
    return Dataset(
        name="epic100" if given_NI is not None or shown else f"epic100, {STAND_IN} clip features",
        captions=[clip.narration for clip in clips],
        image_M=np.arange(len(clips), dtype=np.int32),
        split_N=split_N.astype(np.int8),
        id_N=number_classes([clip.name for clip in clips])[0],
        image_ids=[clip.name for clip in clips],
        row_M=np.array([clip.row for clip in clips], dtype=np.int64),
        drops=Drops.joined(folder.name, drops),
        images_fingerprint=digest(source, place_N, what, given_NI, stamps(shown[place] for place in place_N.tolist()))
        if shown
        else digest(source, place_N, what, given_NI),
        image=partial(open_frames, [shown[place] for place in place_N.tolist()]) if shown else None,
        of_frames=bool(shown),
        class_N=class_N,
        class_names=class_names,
        notes=_notes(relevance, split_N, validation, source, given=sentences is not None),
        credits=(CREDIT,),
        image_features_NI=None if given_NI is None else given_NI[place_N],
        image_source=source,
        stand_in=partial(stand_in, sigma=sigma, parts=(len(trained), len(test)), place_N=place_N),
        relevance=relevance,
        listed=[caption.text for caption in listed],
    )


CLASSES: dict[str, Callable[[Clip], str]] = {
    "noun": lambda clip: f"noun {clip.noun}",
    "verb": lambda clip: f"verb {clip.key[0]}",
    "verb_noun": lambda clip: f"verb {clip.key[0]}, noun {clip.noun}",
}


def _optional(folder: Path, stem: str) -> Path | None:
    """The file of that official name, with or without the prefix and .gz."""
    names = [f"{prefix}{stem}.csv{end}" for prefix in ("EPIC_100_", "") for end in ("", ".gz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _find(folder: Path, stem: str) -> Path:
    found = _optional(folder, stem)
    if found is None:
        raise ValueError(f"{folder}: no EPIC_100_{stem}.csv (or .csv.gz) in it")
    return found


def _training_file(folder: Path, train: str | None) -> Path:
    if train is None:
        return _find(folder, "retrieval_train")
    inside = folder / train
    return inside if inside.is_file() else Path(train).expanduser()


def _clips(path: Path, drops: Drops, *, spans: bool, not_these: Set[str] = frozenset()) -> tuple[list[Clip], list[str]]:
    """(usable clips, the name of every row of the file, empty where it cannot be used)."""
    columns = (*CLIP_COLUMNS, *FRAME_COLUMNS) if spans else CLIP_COLUMNS
    rows, _ = read_rows(path, columns, "narration_id", Format(), drops)
    by_number: dict[int, str] = {number: "" for number, _, _ in drops.rows}
    clips: list[Clip] = []
    seen: set[str] = set()
    for number, cells in rows:
        name, text, key = _word(cells["narration_id"]), _word(cells["narration"]), _key(cells, "all_noun_classes")
        noun = _whole(cells["noun_class"])
        first, last = (_whole(cells[column]) for column in FRAME_COLUMNS) if spans else (0, 0)
        by_number[number] = name
        if not name:
            drops.add(number, NO_NAME)
        elif name in seen:
            drops.add(number, NAME_TWICE, name)
            by_number[number] = ""
        elif name in not_these:
            drops.add(number, IS_TEST, name)
        elif not text:
            drops.add(number, NO_TEXT, name)
        elif key is None or noun is None:
            drops.add(number, NO_CLASS, name)
        elif first is None or last is None:
            drops.add(number, NO_SPAN, name)
        else:
            clips.append(Clip(number, name, text, key, noun, (first, last)))
        seen.add(name)
    if not clips:
        drops.check()
        raise ValueError(f"{path}: the file has no clips")
    return clips, [by_number[number] for number in sorted(by_number)]


def _train_captions(path: Path, drops: Drops) -> list[Caption]:
    columns = ("narration", "verb_class", "noun_classes")
    captions: list[Caption] = []
    for number, cells in read_rows(path, columns, "narration", Format(), drops)[0]:
        text, key = _word(cells["narration"]), _key(cells, "noun_classes")
        if not text or key is None:
            drops.add(number, NO_TEXT if not text else NO_CLASS)
        else:
            captions.append(Caption(text, key))
    return captions


def _test_captions(path: Path, drops: Drops, clips: Sequence[Clip]) -> list[Caption]:
    """The captions of the test; their file has no classes, and points at clips that have."""
    keys = {clip.name: clip.key for clip in clips}
    captions: list[Caption] = []
    for number, cells in read_rows(path, ("narration_id", "narration"), "narration_id", Format(), drops)[0]:
        name, text = _word(cells["narration_id"]), _word(cells["narration"])
        if not text or name not in keys:
            drops.add(number, NO_TEXT if not text else NO_CLIP, name)
        else:
            captions.append(Caption(text, keys[name]))
    return captions


def _own(clips: Sequence[Clip]) -> list[Caption]:
    """The distinct narrations of the clips, with their classes."""
    return list(dict.fromkeys(Caption(clip.narration, clip.key) for clip in clips))


def _features(where: Path, clips: Sequence[Clip], order: Sequence[str], drops: Drops) -> tuple[np.ndarray, np.ndarray]:
    """(features of the clips, which clips have them); the others are dropped."""
    found_NI, problems = clip_features(where, [clip.name for clip in clips], ordered=order)
    for place, reason in problems.items():
        drops.add(clips[place].row, reason, clips[place].name)
    return found_NI, np.array([place for place in range(len(clips)) if place not in problems], dtype=np.int64)


def _with(found: Sequence[list[Path]], clips: Sequence[Clip], drops: Drops) -> np.ndarray:
    """Which clips have frames; the others are dropped."""
    for clip, files in zip(clips, found):
        if not files:
            drops.add(clip.row, NO_FRAMES, clip.name)
    return np.array([place for place, files in enumerate(found) if files], dtype=np.int64)


def _key(cells: dict[str, Any], nouns: str) -> Key | None:
    """(verb class, set of noun classes); a noun that is listed twice counts once. None when it is no such thing."""
    verb, text = _whole(cells["verb_class"]), _word(cells[nouns])
    if verb is None or not CLASS_LIST.fullmatch(text):
        return None
    return verb, frozenset(int(noun) for noun in re.findall(r"\d+", text))


def _whole(cell: Any) -> int | None:
    text = _word(cell)
    return int(text) if re.fullmatch(r"\d{1,6}", text) else None


def _word(cell: Any) -> str:
    return "" if cell is None else str(cell).strip()


def _notes(relevance: Relevance, split_N: np.ndarray, validation: str, source: str, *, given: bool) -> tuple[str, ...]:
    """What the figures are about: how many clips against how many captions."""

    def size(part: int) -> str:
        clips_N = split_N == part
        answered = np.isin(relevance.key_C[relevance.split_C == part], relevance.key_N[clips_N])
        return f"{int(clips_N.sum()):,} clips against {int(answered.sum()):,} captions"

    of = "videos held out of training" if validation == "train" else "part of the official test, which a search so sees"
    listed = "the training sentence file" if given else "the clips' own distinct narrations: no training sentence file"
    return (
        f"epic100: clip features: {source}",
        f"epic100: validation ({of}): {size(VALIDATION)}; official test: {size(TEST)}; a larger gallery is harder",
        f"epic100: training captions are {listed}",
    )
