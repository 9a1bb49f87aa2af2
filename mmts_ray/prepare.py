"""From the data and encoder part of a configuration to features: load, encode once, say how it goes."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmts_ray.data import DATASETS
from mmts_ray.features import Frozen, encode, progress_on


def features(encoding: Mapping[str, Any], *, cache_dir: Path, quiet: bool = False) -> Frozen:
    """The frozen features of a study, from the cache when they are there; progress with rate and ETA on stderr."""
    name = encoding["data.name"]
    kwargs = {k.removeprefix("data."): v for k, v in encoding.items() if k.startswith("data.") and k != "data.name"}
    encoders = {k: encoding[f"model.{k}"] for k in ("image_encoder", "text_encoder")}
    dataset = DATASETS[name](**kwargs)
    if quiet:
        return encode(dataset, **encoders, cache_dir=cache_dir)
    with progress_on(sys.stderr) as progress:
        frozen = encode(dataset, **encoders, cache_dir=cache_dir, progress=progress)
    for reason, count in frozen.names["dropped"].items():
        print(f"dropped {count} rows: {reason}", file=sys.stderr)
    return frozen
