"""YouCook2: a recipe video in segments, each with a sentence; text-to-video retrieval of segments.

Shapes: N clips (segments with features); each is a caption row.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from mmts_ray.data.clip_features import KINDS, NO_FEATURES, STAND_IN, clip_features, stand_in
from mmts_ray.data.dataset import TEST, TRAIN, VALIDATION, Dataset, digest, number_classes, split_by_id
from mmts_ray.data.drops import Drops
from mmts_ray.space import Choice, Float, Int, Text

SUBSETS = {"training": TRAIN, "validation": TEST}  # the sentences of the official test are not public
NO_SEGMENT = "segment is not [start, end] in seconds"
NO_SENTENCE = "empty sentence"
NO_ID = "id is not a whole number"
ID_TWICE = "id occurs twice in its video"
CREDIT = "YouCook2 annotations, Zhou et al. (AAAI 2018)"


@dataclass(frozen=True)
class Segment:
    """One annotation; `row` counts the annotations of the file from 1."""

    row: int
    video: str
    number: int
    start: float
    end: float
    sentence: str
    subset: int
    recipe: str

    @property
    def key(self) -> str:
        """The clip's name: ids count from 0 inside each video."""
        return f"{self.video}_{self.number}"


def youcook2(
    *,
    path: Annotated[str, Text(path=True, doc="the official annotations, youcookii_annotations_trainval.json")],
    features: Annotated[
        str,
        Text(
            path=True,
            doc=f"of clips named VIDEO_ID, or rows in the order of the annotations: {KINDS}, or one VIDEO.npy with a "
            f"row per second; {STAND_IN}: made from sentences",
        ),
    ] = STAND_IN,
    sigma: Annotated[
        float, Float(0.0, 100.0, doc="length of the noise in stand-in features, beside a signal of length 1")
    ] = 3.0,
    validation_share: Annotated[float, Float(0.001, 0.5, doc="share of training videos held out")] = 0.1,
    seed: Annotated[int, Int(0, 2**31 - 1, doc="of the draw of validation videos")] = 0,
    strict: Annotated[bool, Choice((True, False), doc="refuse the file when one segment cannot be used")] = False,
    max_dropped: Annotated[
        float, Float(0.0, 1.0, doc="refuse it when more segments than this share are dropped; videos vanish")
    ] = 0.2,
) -> Dataset:
    """YouCook2 segments and their sentences; classes are the recipe types.

    The official validation videos are the test here, as in the papers; validation videos are held out of training. A
    segment without features (its video has vanished) is dropped and counted, and the note says how many are left: the
    figures of papers rest on 3,300 to 3,350 of 3,492. Equal sentences are one caption with several right clips, which
    the usual protocol counts as wrong. Raises ValueError, one line.
    Source: arXiv:1703.09788, youcook2.eecs.umich.edu.
    """
    where = Path(path).expanduser()
    drops = Drops(source=where.name, strict=strict, max_dropped=max_dropped)
    segments, order, notes = _segments(where, drops)
    clips, image_NI, place_N = segments, None, np.arange(len(segments))
    source = f"{STAND_IN} (sentence, noise of length {sigma:g}, no video)"
    if features != STAND_IN:
        source = Path(features).name
        spans = [(s.video, s.start, s.end) for s in segments]
        found_NI, problems = clip_features(
            Path(features).expanduser(), [s.key for s in segments], ordered=order, segments=spans
        )
        for place, reason in problems.items():
            drops.add(segments[place].row, reason, segments[place].key)
        place_N = np.array([place for place in place_N.tolist() if place not in problems], dtype=np.int64)
        clips, image_NI = [segments[place] for place in place_N.tolist()], found_NI[place_N]
        gone = {segments[place].video for place, reason in problems.items() if reason == NO_FEATURES}
        gone -= {clip.video for clip in clips}
        if gone:
            notes += (f"{where.name}: {len(gone)} videos have no features at all",)
    drops.check()
    videos = sorted({clip.video for clip in clips if clip.subset == TRAIN})
    shares = {"validation_share": validation_share, "test_share": 0.0}
    drawn = split_by_id(videos, seed=seed, source=f"{where.name}, training", **shares)
    split_N = np.array([drawn.get(clip.video, TEST) if clip.subset == TRAIN else TEST for clip in clips], dtype=np.int8)
    class_N, class_names = number_classes([clip.recipe for clip in clips])
    what = [f"{clip.key} {clip.start:g} {clip.end:g} {clip.sentence}" for clip in clips]
    return Dataset(
        name="youcook2" if image_NI is not None else f"youcook2, {STAND_IN} clip features",
        captions=[clip.sentence for clip in clips],
        image_M=np.arange(len(clips), dtype=np.int32),
        split_N=split_N,
        id_N=number_classes([clip.key for clip in clips])[0],
        image_ids=[clip.key for clip in clips],
        row_M=np.array([clip.row for clip in clips], dtype=np.int64),
        drops=drops,
        images_fingerprint=digest(source, what, image_NI),
        class_N=class_N,
        class_names=class_names,
        notes=(*notes, *_notes(where.name, segments, clips, split_N, source)),
        credits=(CREDIT,),
        image_features_NI=image_NI,
        image_source=source,
        stand_in=partial(stand_in, sigma=sigma, parts=(len(segments),), place_N=place_N),
    )


def _segments(path: Path, drops: Drops) -> tuple[list[Segment], list[str], tuple[str, ...]]:
    """(usable segments, the key of every annotation of the file, empty where it cannot be used, notes)."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file; data.path is youcookii_annotations_trainval.json")
    try:
        database = json.loads(path.read_text(encoding="utf-8"))["database"]
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError, RecursionError):
        database = None
    if not isinstance(database, dict) or not database:
        raise ValueError(f'{path}: not a JSON object with videos under "database"')
    found: list[Segment] = []
    order: list[str] = []
    bare = other = 0
    for video, entry in database.items():
        entry = entry if isinstance(entry, dict) else {}
        annotations = entry.get("annotations")
        if entry.get("subset") not in SUBSETS:
            other += 1
            continue
        if not isinstance(annotations, list) or not annotations:
            bare += 1
            continue
        seen: set[int] = set()
        for annotation in annotations:
            drops.total += 1
            segment = _segment(video, entry, annotation if isinstance(annotation, dict) else {}, drops, seen)
            order.append(segment.key if segment else "")
            if segment:
                found.append(segment)
    if not drops.total:
        raise ValueError(f"{path}: no annotated video of the subsets {' and '.join(SUBSETS)}")
    notes = ((f"{path.name}: {bare} videos without annotations",) if bare else ()) + (
        (f"{path.name}: {other} videos of another subset left out",) if other else ()
    )
    return found, order, notes


def _segment(
    video: str, entry: Mapping[str, Any], annotation: Mapping[str, Any], drops: Drops, seen: set[int]
) -> Segment | None:
    number, span, sentence = (annotation.get(name) for name in ("id", "segment", "sentence"))
    text = " ".join(sentence.split()) if isinstance(sentence, str) else ""  # double spaces, trailing blanks
    reason = ""
    if isinstance(number, bool) or not isinstance(number, int):
        reason = NO_ID
    elif number in seen:
        reason = ID_TWICE
    elif not _is_span(span):
        reason = NO_SEGMENT
    elif not text:
        reason = NO_SENTENCE
    if reason or not isinstance(number, int) or not isinstance(span, list):
        drops.add(drops.total, reason, f"{video} {number}")
        return None
    seen.add(number)
    recipe = f"recipe {entry.get('recipe_type', '(none)')}"
    return Segment(drops.total, video, number, float(span[0]), float(span[1]), text, SUBSETS[entry["subset"]], recipe)


def _is_span(span: Any) -> bool:
    numbers = isinstance(span, list) and len(span) == 2
    numbers = numbers and all(isinstance(t, (int, float)) and not isinstance(t, bool) for t in span)
    return bool(numbers) and 0 <= span[0] < span[1] < float("inf")


def _notes(
    name: str, segments: list[Segment], clips: list[Segment], split_N: np.ndarray, source: str
) -> tuple[str, ...]:
    total = sum(segment.subset == TEST for segment in segments)
    tests = [clip.sentence for clip, part in zip(clips, split_N.tolist()) if part == TEST]
    held = int((split_N == VALIDATION).sum())
    return (
        f"{name}: clip features: {source}",
        f"{name}: test on {len(tests):,} of {total:,} official validation segments, {len(set(tests)):,} different "
        f"sentences; validation {held:,} segments of videos held out of training",
    )
