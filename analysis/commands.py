"""The commands that a refusal or warning offers, with the study's own folder and sizes."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from .tables import Study

CONTROLS = 20  # random trials that are never stopped: rank correlations of rungs need that many
STEPPING = ("asha", "hyperband", "bohb", "pbt")  # in the name of a strategy that stops trials
TOP, SEEDS = 3, 5  # what a verdict wants: the best three, five fresh seeds each


def _ours(study: Study, command: str) -> str:
    """The command; a sweep of another program grows there, and is imported again."""
    return command if "imported" not in study.meta else "mmts-ray import SWEEP --out FOLDER"


def confirm(study: Study, top: int = TOP) -> str:
    """Fresh runs of the baselines and of the best trials."""
    return _ours(study, f"mmts-ray confirm {shlex.quote(study.folder)} --top {top} --seeds {SEEDS}")


def extend(study: Study) -> str:
    """As many trials again as the study was asked for."""
    asked = study.meta.get("trials")
    more = asked if isinstance(asked, int) and asked > 0 else 20
    return _ours(study, f"mmts-ray extend {shlex.quote(study.folder)} --trials {more}")


def widen(study: Study) -> str:
    """Trials of another space."""
    return _ours(study, f"mmts-ray extend {shlex.quote(study.folder)} --space WIDER.yaml --trials 20")


def resume(study: Study) -> str:
    return _ours(study, f"mmts-ray resume {shlex.quote(study.folder)}")


def report(study: Study) -> str:
    return f"mmts-ray report {shlex.quote(study.folder)}"


def plan(study: Study) -> str:
    """List the runs that are missing around the winner, and run them."""
    folder = shlex.quote(study.folder)
    return _ours(study, f"mmts-ray report {folder} --plan && mmts-ray extend {folder} --plan {folder}/plan.yaml")


def elsewhere(study: Study, data: Mapping[str, Any] | None = None) -> str:
    """The same study on other data: those of `data` (dotted paths), or a place for their name."""
    folder = study.folder.rstrip("/")
    given = [f"{path}={json.dumps(value)}" for path, value in sorted((data or {}).items()) if value is not None]
    words = [
        "mmts-ray",
        "search",
        f"{folder}/study.yaml",
        "--out",
        f"{folder}-elsewhere",
        *(given or ["data.name=OTHER"]),
    ]
    return _ours(study, " ".join(map(shlex.quote, words)))


def fresh_runs(study: Study) -> int:
    """How many runs `confirm` makes."""
    return (TOP + len(study.meta.get("baselines") or [])) * SEEDS


def stops(study: Study) -> bool:
    """Whether its trials are stopped early: by its strategy, or as the ledger shows."""
    strategy = str(study.meta.get("strategy") or "")
    return any(word in strategy for word in STEPPING) or bool((study.trials["state"] == "stopped").any())


def controls(study: Study, wanted: int = CONTROLS) -> tuple[str, str]:
    """(words, command) for so many random trials: more of a random study, controls of a plan where trials are stopped
    early, else a random study of the same space beside this one.
    """
    if not study.space:
        return "This fills it:", widen(study)
    if str(study.meta.get("strategy") or "").startswith("random") and not stops(study):
        return "This fills it:", extend(study)
    if stops(study) and wanted <= CONTROLS:
        return "This fills it:", plan(study)
    folder = study.folder.rstrip("/")
    words = ["mmts-ray", "search", f"{folder}/study.yaml", "--out", f"{folder}-random", "strategy=random",
             f"trials={wanted}"]  # fmt: skip
    return "A random study of the same space, beside this one, has them:", _ours(
        study, " ".join(map(shlex.quote, words))
    )
