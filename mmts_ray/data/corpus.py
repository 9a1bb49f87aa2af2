"""A text corpus: one sentence a line, as SimCSE's wiki1m_for_simcse.txt."""

import gzip
import zlib
from pathlib import Path

import numpy as np

from mmts_ray.data.drops import Drops

NOT_TEXT, EMPTY = "not UTF-8", "empty line"


def corpus(path: str | Path, *, limit: int | None = None) -> tuple[list[str], tuple[str, ...]]:
    """(the sentences in their order, notes) of a text file, .gz or not.

    Read as text: quotes, tabs and commas mean nothing, headings and repeats stay. Empty lines and lines that are not
    UTF-8 are left out and counted. With `limit`, so many of them, drawn once and for all. Raises ValueError, one line,
    for a file that cannot be read or holds fewer than two sentences.
    """
    where = Path(path).expanduser()
    drops = Drops(source=where.name)
    found = []
    try:
        with gzip.open(where) if where.suffix == ".gz" else where.open("rb") as file:
            for number, raw in enumerate(file, 1):
                drops.total = number
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                except UnicodeDecodeError as problem:
                    drops.add(number, NOT_TEXT, f"{problem.reason} at byte {problem.start}")
                    continue
                if line:
                    found.append(line)
                else:
                    drops.add(number, EMPTY)
    except (OSError, EOFError, zlib.error) as problem:
        raise ValueError(
            f"model.corpus: {where} cannot be read ({getattr(problem, 'strerror', None) or problem}); legal is a text "
            "file with one sentence a line (.txt, .gz), such as wiki1m_for_simcse.txt, or null"
        ) from None
    if len(found) < 2:
        raise ValueError(f"model.corpus: {where} has {len(found)} sentences; legal are 2 or more, one a line")
    return sample(found, limit), drops.notes()


def sample(sentences: list[str], limit: int | None) -> list[str]:
    """So many of the sentences, in their order, drawn with one fixed seed: all trials read the same."""
    if limit is None or limit >= len(sentences):
        return sentences
    chosen = np.sort(np.random.default_rng(0).permutation(len(sentences))[:limit])
    return [sentences[index] for index in chosen.tolist()]
