"""From the data and encoder part of a configuration to features: load, encode once, say how it goes."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from mmts_ray.data import DATASETS
from mmts_ray.encoders import NONE
from mmts_ray.features import Frozen, Progress, encode
from mmts_ray.models import INPUTS
from mmts_ray.sentences import with_sentences


def features(encoding: Mapping[str, Any], *, cache_dir: Path, quiet: bool = False) -> Frozen:
    """The frozen features of a study, from the cache when they are there; progress with rate and ETA on stderr."""
    name = encoding["data.name"]
    kwargs = {k.removeprefix("data."): v for k, v in encoding.items() if k.startswith("data.") and k != "data.name"}
    model = {k.removeprefix("model."): v for k, v in encoding.items() if k.startswith("model.")}
    given = {k: model.get(k, NONE) for k in ("image_encoder", "text_encoder")}  # twins read ready features only
    inputs = INPUTS[model["name"]](**model) if model["name"] in INPUTS else None
    dataset = DATASETS[name](**kwargs)
    with nullcontext() if quiet else progress_on(sys.stderr) as progress:
        frozen = encode(dataset, **given, inputs=inputs, cache_dir=cache_dir, progress=progress)
        if model["name"] == "sentence_student":
            frozen = with_sentences(frozen, model, cache_dir=cache_dir, progress=progress)
    # captions are not handed to trials, which read numbers
    frozen = replace(frozen, encoding=dict(encoding), captions_U=())
    if quiet:
        return frozen
    for reason, count in frozen.names["dropped"].items():
        print(f"dropped {count} rows: {reason}", file=sys.stderr)
    return frozen


@contextmanager
def progress_on(stream: TextIO) -> Iterator[Progress]:
    """A progress callback that shows rate and time left: a bar on a terminal, else a line every few seconds."""
    if not stream.isatty():
        yield _lines_on(stream)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    with Bars(*columns, TimeRemainingColumn(), console=Console(file=stream)) as bars:
        tasks: dict[str, Any] = {}

        def show(done: int, total: int, what: str) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total, rate="")
            speed = bars.tasks[bars.task_ids.index(tasks[what])].speed
            bars.update(tasks[what], completed=done, rate=f"{speed:,.0f}/s" if speed else "")

        yield show


def _lines_on(stream: TextIO, every: float = 5.0) -> Progress:
    started: dict[str, float] = {}
    said: dict[str, float] = {}

    def show(done: int, total: int, what: str) -> None:
        now = time.monotonic()
        first = started.setdefault(what, now)
        if done < total and now - said.get(what, first) < every:
            return
        said[what] = now
        rate = done / (now - first) if now > first else 0.0
        end = f"in {now - first:.1f} s" if done >= total else f"{(total - done) / rate:.0f} s left" if rate else ""
        print(f"{what}: {done:,}/{total:,} ({done / total:.0%}), {rate:,.0f}/s, {end}", file=stream, flush=True)

    return show
