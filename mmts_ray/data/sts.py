"""Semantic textual similarity: pairs of sentences that people scored from 0 to 5, as SentEval keeps them or as a table.

Shapes: P pairs.
"""

import gzip
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mmts_ray.data.dataset import SPLITS, TEST, TRAIN, VALIDATION

TASKS = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr")  # the seven of the papers, in their order
# as SentEval evaluates them: STS13 without SMT, whose licence keeps it out
SUBSETS = {
    "12": "MSRpar MSRvid SMTeuroparl surprise.OnWN surprise.SMTnews",
    "13": "FNWN headlines OnWN",
    "14": "deft-forum deft-news headlines images OnWN tweet-news",
    "15": "answers-forums answers-students belief headlines images",
    "16": "answer-answer headlines plagiarism postediting question-question",
}
HEADER = ("dataset", "subset", "split", "score", "sentence1", "sentence2")
SPLIT_NAMES = {"train": TRAIN, "dev": VALIDATION, "test": TEST}
UNSCORED, EMPTY = "unscored", "empty sentence"
HIGHEST = 5.0


@dataclass(frozen=True)
class ScoredPairs:
    """One part of one task, all its subsets together; `gold_P` is what people said, 0 (unrelated) to 5 (the same)."""

    task: str
    split: int  # 0 train, 1 validation, 2 test
    left: list[str]  # (P,)
    right: list[str]
    gold_P: np.ndarray  # float64


def scored_pairs(path: str | Path) -> tuple[tuple[ScoredPairs, ...], tuple[str, ...]]:
    """(the parts that are there, notes on what is not) of STS12-16, STS-B and SICK-R.

    `path` is a folder in SentEval's layout (that of the repository, its data/downstream or its STS), or a table
    with columns dataset, subset, split, score, sentence1, sentence2 (.tsv, .tsv.gz), read without quoting. A pair
    without score (a blank line in a .gs file) or without a sentence is left out and counted. Raises ValueError, one
    line, for a file that cannot be read, a score that is none, and without STS-B development pairs, by which trials
    are compared.
    """
    where = Path(path).expanduser()
    found: dict[tuple[str, int], list[tuple[str, str, float]]] = {}
    dropped: dict[str, int] = {}
    if not where.exists():
        raise ValueError(
            f"model.sts: {where} is not there; legal is a folder in SentEval's layout (holding STS/STSBenchmark) or a "
            f"table {', '.join(HEADER)} (.tsv, .tsv.gz)"
        )
    rows = _folder(where) if where.is_dir() else _table(where)
    for task, split, at, score, left, right in rows:
        left, right = left.strip(), right.strip()
        reason = UNSCORED if not score.strip() else EMPTY if not left or not right else ""
        if reason:
            dropped[reason] = dropped.get(reason, 0) + 1
        else:
            found.setdefault((task, split), []).append((left, right, _score(score, at)))
    parts = tuple(
        ScoredPairs(task, split, [p[0] for p in pairs], [p[1] for p in pairs], np.array([p[2] for p in pairs]))
        for task in TASKS
        for split in range(len(SPLITS))
        if len(pairs := found.get((task, split), [])) > 1
    )
    if not any(part.task == "stsb" and part.split == VALIDATION for part in parts):
        raise ValueError(f"model.sts: {where} has no STS-B development pairs, by which trials are compared")
    notes = [f"{where.name}: {count} sentence pairs left out: {reason}" for reason, count in dropped.items()]
    missing = [task for task in TASKS if not any(p.task == task and p.split == TEST for p in parts)]
    if missing:
        notes.append(f"{where.name}: no test pairs of {', '.join(missing)}; sts_avg is over the others")
    return parts, tuple(notes)


Scored = tuple[str, int, str, str, str, str]  # task, split, where it stands, score, first and second sentence


def _folder(root: Path) -> Iterator[Scored]:
    """Every pair of a folder in SentEval's layout."""
    places = (root, root / "STS", root / "downstream" / "STS", root / "data" / "downstream" / "STS")
    home = next((place for place in places if (place / "STSBenchmark").is_dir()), None)
    if home is None:
        raise ValueError(
            f"model.sts: {root} is not in SentEval's layout (no STSBenchmark in it, nor in STS, downstream/STS or "
            "data/downstream/STS)"
        )
    for year, subsets in SUBSETS.items():
        folder = home / f"STS{year}-en-test"
        if not folder.is_dir():
            continue
        for subset in subsets.split():
            inputs, gold = folder / f"STS.input.{subset}.txt", folder / f"STS.gs.{subset}.txt"
            pairs, scores = _lines(inputs), _lines(gold)
            if len(pairs) != len(scores):
                raise ValueError(f"{inputs}: {len(pairs)} pairs, but {gold.name} has {len(scores)} scores")
            for number, (line, score) in enumerate(zip(pairs, scores), 1):
                cells = [*line.split("\t"), ""]
                yield f"sts{year}", TEST, f"{gold} line {number}", score, cells[0], cells[1]
    for name, split in SPLIT_NAMES.items():
        path = home / "STSBenchmark" / f"sts-{name}.csv"
        if path.is_file():
            for number, line in enumerate(_lines(path), 1):
                cells = line.split("\t")
                if len(cells) < 7:
                    raise ValueError(f"{path}: row {number} has {len(cells)} cells; legal are 7 or more, tab between")
                yield "stsb", split, f"{path} row {number}", cells[4], cells[5], cells[6]
    for name, split in (("train", TRAIN), ("trial", VALIDATION), ("test_annotated", TEST)):
        for path in (home.parent / "SICK" / f"SICK_{name}.txt", home / "SICK" / f"SICK_{name}.txt"):
            if path.is_file():
                for number, line in enumerate(_lines(path)[1:], 2):
                    cells = line.split("\t")
                    if len(cells) < 4:
                        raise ValueError(f"{path}: row {number} has {len(cells)} cells; legal are 5, tab between")
                    yield "sickr", split, f"{path} row {number}", cells[3], cells[1], cells[2]
                break


def _table(path: Path) -> Iterator[Scored]:
    """Every pair of a table of all tasks."""
    lines = _lines(path)
    header = tuple(lines[0].split("\t")) if lines else ()
    if header != HEADER:
        raise ValueError(f"{path}: its header is {', '.join(header)!r}; legal is {', '.join(HEADER)}, tab between")
    for number, line in enumerate(lines[1:], 2):
        cells = line.split("\t")
        task, split = cells[0].lower().replace("-", ""), cells[2] if len(cells) > 2 else ""
        if len(cells) != len(HEADER) or task not in TASKS or split not in SPLIT_NAMES:
            raise ValueError(
                f"{path}: row {number} is {line[:60]!r}; legal are {len(HEADER)} cells, a data set of "
                f"{', '.join(TASKS)} and a split of {', '.join(SPLIT_NAMES)}"
            )
        yield task, SPLIT_NAMES[split], f"{path} row {number}", cells[3], cells[4], cells[5]


def _score(text: str, at: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not 0 <= score <= HIGHEST:
        raise ValueError(f"{at}: {text.strip()!r} is no score; legal is a number from 0 to {HIGHEST:g}, or blank")
    return score


def _lines(path: Path) -> list[str]:
    """The lines of a text file; only line feeds end one, for sentences hold other signs that Python splits at."""
    return text_of(path).removesuffix("\n").split("\n")


def text_of(path: Path) -> str:
    """A UTF-8 text file, .gz or not, with line feeds only; ValueError, one line, when it is none."""
    try:
        raw = path.read_bytes()
        if path.suffix == ".gz":
            raw = gzip.decompress(raw)
        return raw.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as problem:
        raise ValueError(f"{path}: not UTF-8 text ({problem.reason} at byte {problem.start})") from None
    except (OSError, EOFError, zlib.error) as problem:
        raise ValueError(f"{path}: cannot be read ({getattr(problem, 'strerror', None) or problem})") from None
