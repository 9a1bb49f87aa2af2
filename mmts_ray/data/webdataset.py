"""Tar shards of pictures and captions, as img2dataset and webdataset write them, read at random.

No streaming library is used. Such a reader hands out samples in the order of the shards, shuffled within a buffer, and
each rank ends when its own shards are used up: ranks then stop at different steps and a collective waits for ever, a
resumed run sees other samples, and the number of steps is not known before. Here every shard is indexed once (where
each member begins); after that a sample is one read at a known place, so that shuffling is exact, every rank takes its
share of the same global batch, and a resumed run goes on with the very next one.
"""

import hashlib
import json
import re
import tarfile
from collections.abc import Iterator, Sequence
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

from mmts_ray.data import picture
from mmts_ray.data.dataset import TEST, TRAIN, VALIDATION, Dataset
from mmts_ray.data.drops import Drops
from mmts_ray.data.index import indexed
from mmts_ray.data.pairs import CAPTION_NOT_TEXT, EMPTY_CAPTION, Caption, Picture, assemble, caption_texts
from mmts_ray.space import Choice, Float, Int, Text

if TYPE_CHECKING:
    from PIL.Image import Image

KIND = "tar 1"  # changes with what an index holds
BLOCK = 512
TRUNCATED = "the shard ends inside it"
NOT_TAR = "shard cannot be read"
NO_PICTURE = "no picture beside the caption"
NO_CAPTION = "no caption beside the picture"
EMPTY = "image is empty (0 bytes)"
NOT_PICTURE = "not an image"
DOT = "dot in the key (a key ends at the first dot)"
TWICE = "key occurs twice in its shard"
REPEATED = "sample is in an earlier shard"

Members = dict[str, tuple[int, int]]  # extension -> (offset, size)


def webdataset(
    *,
    path: Annotated[
        str, Text(path=True, doc="the shards: a folder of .tar, or a pattern as train-{0000..0575}.tar or train-*.tar")
    ],
    validation_path: Annotated[
        str | None, Text(path=True, doc="shards for validation", none="a share of those of path")
    ] = None,
    test_path: Annotated[
        str | None, Text(path=True, doc="shards for the test", none="a share of those of path")
    ] = None,
    caption_field: Annotated[str, Text(doc="field of the .json member with the caption, where there is no .txt")] = (
        "caption"
    ),
    validation_share: Annotated[float, Float(0.0001, 0.9, doc="share for validation, without validation_path")] = 0.05,
    test_share: Annotated[float, Float(0.0, 0.9, doc="share for the test, without test_path")] = 0.05,
    seed: Annotated[int, Int(0, 2**31 - 1, doc="of the split")] = 0,
    strict: Annotated[bool, Choice((True, False), doc="refuse the shards when one sample cannot be used")] = False,
    max_dropped: Annotated[float, Float(0.0, 1.0, doc="refuse them when more than this share is dropped")] = 0.1,
) -> Dataset:
    """Tar shards: members with one stem are a sample, `.jpg` (or png, webp, ...) its picture, `.txt` its caption.

    A row is a sample, counted through the shards in order. Skipped and counted by reason: what a shard that was cut off
    ends in, empty pictures, web pages saved as pictures, a picture without caption or the reverse, a dot in the key, a
    key twice in a shard, a sample that an earlier shard has too (same key, size and caption). Pictures that turn out
    broken when they are decoded are dropped then. Equal keys of different samples in different shards are different.
    The index of a shard (kept in the cache, found again by the shard's name, size and time of change) reads headers
    and captions only. Raises ValueError, one line, for a missing or compressed shard or too many drops.
    """
    parts = [(TRAIN, _shards(path, "path"))]
    for part, given, key in ((VALIDATION, validation_path, "validation_path"), (TEST, test_path, "test_path")):
        parts += [(part, _shards(given, key))] if given is not None else []
    drops = Drops(source=Path(path).name, strict=strict, max_dropped=max_dropped)
    pictures: dict[str, Picture] = {}
    captions: list[Caption] = []
    seen: set[bytes] = set()
    shared = {shard.parent for _, shards in parts for shard in shards}
    row = 0
    for part, shards in parts:
        for shard in shards:
            found = indexed(shard, f"{KIND} {caption_field}", lambda p: index_shard(p, caption_field))
            inside = shard.name if len(shared) == 1 else f"{shard.parent.name}/{shard.name}"
            for key, extension, offset, size, texts, reason in found["samples"]:
                row += 1
                name = f"{inside}/{key}.{extension}"
                same = hashlib.blake2b(f"{key} {size} {texts}".encode(), digest_size=12).digest()
                if not reason and same in seen:
                    reason = REPEATED
                if reason:
                    drops.add(row, reason, f"{inside}/{key}")
                    continue
                seen.add(same)
                split = part if len(parts) > 1 else None
                stamp = f"{found['contents']} {offset}"
                pictures[name] = Picture(source=(str(shard), offset, size), stamp=stamp, split=split)
                captions += [Caption(row, name, text) for text in texts]
    drops.total = row
    return assemble(
        pictures,
        captions,
        name=re.split(r"[-_.{*]", Path(path).name)[0] or "webdataset",
        drops=drops,
        opener=_open,
        seed=seed,
        validation_share=validation_share,
        test_share=test_share,
    )


def _open(place: tuple[str, int, int]) -> "Image":
    shard, offset, size = place
    with open(shard, "rb") as file:  # opened anew: processes and threads must not share a position
        file.seek(offset)
        return picture.read_rgb(file.read(size))


def _shards(pattern: str, key: str) -> list[Path]:
    """The shards that a folder or pattern names, in order of their names within each alternative."""
    found: list[Path] = []
    for text in [part for word in pattern.split("::") for part in braces(str(Path(word).expanduser().absolute()))]:
        if Path(text).is_dir():
            found += sorted(Path(text).glob("*.tar"))
        elif has_magic(text) and not Path(text).exists():
            found += [Path(name) for name in sorted(glob(text))]
        else:
            found.append(Path(text))
    missing = [shard for shard in found if not shard.is_file()]
    if not found or missing:
        which = (
            f"{len(missing)} of {len(found)} are not there, the first {missing[0].name}" if found else "no shard there"
        )
        legal = "legal is a folder of .tar shards, or a pattern as x-{000..015}.tar or x-*.tar"
        raise ValueError(f"data.{key}: {pattern}: {which}; {legal}")
    return list(dict.fromkeys(found))


def braces(pattern: str) -> Iterator[str]:
    """A pattern with its first {a..b} (zero-padded as written) or {a,b,c} replaced by each value, and so on."""
    match = re.search(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}", pattern)
    if match is None:
        yield pattern
        return
    first, last, listed = match.groups()
    values = listed.split(",") if listed else [f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1)]
    for value in values:
        yield from braces(pattern[: match.start()] + value + pattern[match.end() :])


def index_shard(path: Path, caption_field: str = "caption") -> dict[str, Any]:
    """What is in a shard: `samples`, a list of [key, extension, offset, size, captions, reason], and `contents`.

    The reason is empty for a sample that can be used. `contents` is a SHA-256 of all headers and captions, so that a
    copied or touched shard keeps its features.
    """
    total = hashlib.sha256()
    samples: dict[str, Members] = {}
    refused: list[list[Any]] = []  # samples
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(2) in (b"\x1f\x8b", b"BZ", b"\xfd7"):
            raise ValueError(f"{path}: a compressed shard cannot be read at random; legal is .tar, so unpack it once")
        file.seek(0)
        last, whole = "", False
        try:
            with tarfile.open(fileobj=file, mode="r:") as archive:
                while (member := archive.next()) is not None:
                    total.update(f"{member.name} {member.size} {member.mtime} {member.offset_data}\n".encode())
                    archive.members.clear()  # type: ignore[attr-defined]  # a list of all members, needed by none here
                    folder, slash, base = member.name.rpartition("/")
                    if not member.isreg() or base.startswith("."):
                        continue
                    stem, _, extension = base.partition(".")
                    last = f"{folder}{slash}{stem}"
                    members = samples.setdefault(last, {})
                    extension = extension.lower()
                    if extension in members:
                        refused.append([last, extension, 0, 0, [], TWICE])
                    else:
                        members[extension] = (member.offset_data, member.size)
                file.seek(archive.offset)
                whole = not any(file.read(BLOCK)) and archive.offset < size
        except (tarfile.TarError, OSError, ValueError) as problem:
            if not samples:
                refused.append([f"({str(problem)[:60] if size else '0 bytes'})", "", 0, 0, [], NOT_TAR])
        found = [
            sample
            for key, members in samples.items()
            for sample in _samples(file, key, members, size, caption_field, key == last and not whole)
        ]
    total.update(json.dumps([sample[4] for sample in found]).encode())
    return {"contents": total.hexdigest()[:32], "samples": [*found, *refused]}


def _samples(
    file: BinaryIO, key: str, members: Members, size: int, caption_field: str, cut: bool
) -> Iterator[list[Any]]:
    """The sample of a key, or samples that a dot in the key has run together, each refused."""
    pictures = [extension for extension in members if extension in picture.SUFFIXES]
    if not pictures:
        dotted = [e for e in members if e.rpartition(".")[2] in picture.SUFFIXES]
        if dotted:
            yield from ([key, extension, 0, 0, [], DOT] for extension in dotted)
            return
        yield [key, "", 0, 0, [], TRUNCATED if cut else NO_PICTURE]
        return
    extension = pictures[0]
    offset, length = members[extension]
    texts, reason = _texts(file, members, size, caption_field)
    if cut and (reason == NO_CAPTION or any(o + s > size for o, s in members.values())):
        reason = TRUNCATED
    elif length == 0:
        reason = EMPTY
    elif not reason:
        file.seek(offset)
        reason = "" if picture.begins_as_picture(file.read(16)) else NOT_PICTURE
    yield [key, extension, offset, length, [] if reason else texts, reason]


def _texts(file: BinaryIO, members: Members, size: int, caption_field: str) -> tuple[Sequence[str], str]:
    """(captions, why there are none): those of .txt, else those in .json."""
    reason = NO_CAPTION
    for extension in ("txt", "json"):
        if extension not in members or sum(members[extension]) > size:
            continue
        offset, length = members[extension]
        file.seek(offset)
        try:
            text: Any = file.read(length).decode("utf-8")
            if extension == "json":
                entry = json.loads(text)
                text = entry.get(caption_field) if isinstance(entry, dict) else None
        except (ValueError, RecursionError):
            reason = CAPTION_NOT_TEXT
            continue
        texts, _ = caption_texts(text)
        if texts:
            return texts, ""
        reason = CAPTION_NOT_TEXT if texts is None else EMPTY_CAPTION
    return [], reason
