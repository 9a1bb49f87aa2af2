"""Sweeps of other programs read into a study folder, and studies written for them.

An imported folder holds meta.json and a ledger, so that `status` and `report` open it; it has no study.yaml and cannot
be searched further. Nothing that is read is unpickled.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard


def add_verbs(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """`mmts-ray export` and `mmts-ray import`."""
    out = verb("export", _export, "write a study for another program: DeepCAVE, or an Optuna storage")
    out.add_argument("study", metavar="STUDY", type=Path)
    out.add_argument("out", metavar="OUT", type=Path, help="a new folder (deepcave), or FILE.journal, FILE.db (optuna)")
    out.add_argument("--to", required=True, choices=("deepcave", "optuna"))
    into = verb("import", _import, "read a sweep made elsewhere: Ray Tune results, an Optuna storage, a CSV table")
    into.add_argument("source", metavar="SOURCE", type=Path, help="a Ray Tune folder, FILE.journal, FILE.db, FILE.csv")
    into.add_argument("--out", metavar="STUDY", type=Path, required=True, help="the new study folder")
    into.add_argument("--map", metavar="MAP.yaml", type=Path, help="what the columns mean: see docs/interop.md")
    into.add_argument("--study", metavar="NAME", help="which study of an Optuna storage")


def _export(args: argparse.Namespace) -> int:
    from mmts_ray.interop import exports

    write: dict[str, Callable[[Path, Path], list[str]]] = {
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
