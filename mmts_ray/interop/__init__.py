"""Sweeps of other programs read into a study folder, and studies and weights written for them.

An imported folder holds meta.json and a ledger, so that `status` and `report` open it; it has no study.yaml and cannot
be searched further. Nothing that is read is unpickled.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

from mmts_ray import storage


def add_verbs(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """`mmts-ray export` and `mmts-ray import`."""
    out = verb("export", _export, "write a trial's weights, or a whole study, as other programs read them")
    out.add_argument("study", metavar="STUDY", type=storage.argument)
    out.add_argument("out", metavar="OUT", type=Path, help="a new folder, or for optuna FILE.journal or FILE.db")
    out.add_argument(
        "--to",
        default="weights",
        choices=("weights", "deepcave", "optuna"),
        help="weights (default): of one trial, as open_clip and sentence-transformers load them, with its config.yaml; "
        "deepcave, optuna: the study's trials",
    )
    out.add_argument("--trial", metavar="ID", help="whose weights (default: the best trial's)")
    into = verb("import", _import, "read a sweep made elsewhere: Ray Tune results, an Optuna storage, a CSV table")
    into.add_argument("source", metavar="SOURCE", type=Path, help="a Ray Tune folder, FILE.journal, FILE.db, FILE.csv")
    into.add_argument("--out", metavar="STUDY", type=Path, required=True, help="the new study folder")
    into.add_argument("--map", metavar="MAP.yaml", type=Path, help="what the columns mean: see docs/interop.md")
    into.add_argument("--study", metavar="NAME", help="which study of an Optuna storage")


def _export(args: argparse.Namespace) -> int:
    from mmts_ray.interop import exports, weights

    if args.trial is not None and args.to != "weights":
        raise ValueError(f"--trial: {args.to} takes the whole study; legal with --to weights")
    write: dict[str, Callable[[Path, Path], list[str]]] = {
        "weights": partial(weights.to_weights, trial=args.trial),
        "deepcave": exports.to_deepcave,
        "optuna": exports.to_optuna,
    }
    for note in write[args.to](args.study, args.out):
        print(note)
    return 0


def _import(args: argparse.Namespace) -> int:
    from mmts_ray import status
    from mmts_ray.interop import imports

    sweep = imports.read(args.source, mapping=args.map, study=args.study)
    notes = imports.write(sweep, args.out)
    print(status.text(status.read(args.out)))
    for note in notes:
        print(note)
    return 0


def finite(value: Any) -> TypeGuard[float]:
    """Whether it is a number that can be compared."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < float("inf")
