"""Frames of video clips, as EPIC-KITCHENS keeps them: a folder per video, a numbered picture per frame."""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mmts_ray.data.picture import read_rgb

if TYPE_CHECKING:
    from PIL.Image import Image

ENDS = (".jpg", ".jpeg", ".png")


def frame_files(folder: Path, video: str, first: int, last: int, count: int) -> list[Path]:
    """At most `count` frames of a video, evenly from `first` to `last`; empty when it has none there.

    Frame numbers are those of the official frames (start_frame and stop_frame belong to them). Raises ValueError for a
    folder that is not there.
    """
    by_number = _of_video(folder, video)
    inside = [number for number in sorted(by_number) if first <= number <= last]
    if not inside:
        return []
    # the middles of `count` equal parts
    places = ((np.arange(count) + 0.5) * len(inside) / count).astype(int)
    return [by_number[inside[place]] for place in sorted(set(places.tolist()))]


@cache
def _of_video(folder: Path, video: str) -> dict[int, Path]:
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; data.frames is the folder with the frames")
    where = next((f for f in (folder / video[:3] / "rgb_frames" / video, folder / video) if f.is_dir()), None)
    files = where.iterdir() if where else ()
    return {int(f.stem[6:]): f for f in files if f.stem[:6] == "frame_" and f.stem[6:].isdigit() and f.suffix in ENDS}


def open_frames(clips: Sequence[Sequence[Path]], index: int) -> "list[Image]":
    """The frames of a clip as RGB pictures."""
    return [read_rgb(path) for path in clips[index]]


def stamps(clips: Iterable[Sequence[Path]]) -> list[str]:
    """Changes when a frame changes: name, size and time of change of each."""
    return [
        f"{file} {status.st_size} {status.st_mtime_ns}" for clip in clips for file in clip for status in (file.stat(),)
    ]
