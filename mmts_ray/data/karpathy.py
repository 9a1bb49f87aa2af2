"""Karpathy's JSON files (dataset_coco.json, dataset_flickr30k.json, dataset_flickr8k.json): captions and splits."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mmts_ray.data.drops import Drops
from mmts_ray.data.pairs import (
    CAPTION_NOT_TEXT,
    EMPTY_CAPTION,
    SPLIT_WORDS,
    UNKNOWN_SPLIT,
    Caption,
    Picture,
    caption_texts,
    file_stamp,
)

NO_NAME = "no file name"
REPEATED = "picture is listed twice"


def read_json(path: Path, key: str, what: str) -> dict[str, Any]:
    """The object of a JSON file that has a list under `key`; ValueError, one line, for any other file."""
    try:
        found = json.loads(path.read_bytes())
    except OSError as problem:
        raise ValueError(f"{path}: cannot be read ({problem.strerror})") from None
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"{path}: not a JSON file ({str(problem).splitlines()[0][:100]})") from None
    if not isinstance(found, dict) or not isinstance(found.get(key), list):
        has = ", ".join(map(str, list(found)[:10])) if isinstance(found, dict) else type(found).__name__
        raise ValueError(f"{path}: no list {key!r}; it has {has}; legal is {what}")
    return found


def read_karpathy(
    path: Path, drops: Drops, places: Callable[[dict[str, Any], str], tuple[str, Sequence[Path]]]
) -> tuple[dict[str, Picture], list[Caption], tuple[str, ...]]:
    """(pictures, captions, notes) of a Karpathy file; a row is a picture, counted from 1.

    `places` gives, for an entry and its file name, the picture's name and where it may lie, best first.
    """
    pictures: dict[str, Picture] = {}
    captions: list[Caption] = []
    blanks = 0
    for row, entry in enumerate(read_json(path, "images", "Karpathy's JSON, as dataset_coco.json")["images"], start=1):
        drops.total += 1
        entry = entry if isinstance(entry, dict) else {}
        name = entry.get("filename")
        if not isinstance(name, str) or not name:
            drops.add(row, NO_NAME)
            continue
        texts, blank = caption_texts([_text(s) for s in entry.get("sentences") or []])
        split = SPLIT_WORDS.get(str(entry.get("split")).lower())
        found, files = places(entry, name)
        looks = [(file, *file_stamp(file)) for file in files]
        file, flaw, stamp = next((look for look in looks if not look[1]), looks[0])
        if split is None:
            drops.add(row, UNKNOWN_SPLIT, f"{name}: {entry.get('split')!r}")
        elif texts is None:
            drops.add(row, CAPTION_NOT_TEXT, name)
        elif not texts:
            drops.add(row, EMPTY_CAPTION, name)
        elif flaw:
            drops.add(row, flaw, found)
        elif found in pictures:
            drops.add(row, REPEATED, found)
        else:
            blanks += blank
            pictures[found] = Picture(source=file, stamp=f"{found} {stamp}", split=split)
            captions += [Caption(row, found, text) for text in texts]
    return pictures, captions, blank_notes(path, blanks)


def blank_notes(path: Path, blanks: int) -> tuple[str, ...]:
    """One line on blank captions, or nothing."""
    return (f"{path.name}: {blanks} blank captions skipped of pictures that have others",) if blanks else ()


def _text(sentence: Any) -> Any:
    """The caption of a sentence: `raw`, else its tokens."""
    if not isinstance(sentence, dict):
        return sentence
    tokens = sentence.get("tokens")
    return sentence["raw"] if "raw" in sentence else " ".join(map(str, tokens)) if isinstance(tokens, list) else None
