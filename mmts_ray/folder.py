"""A study's folder: made once, read back by everything else.

    STUDY/study.yaml  meta.json  ledger/  results.parquet  optuna.journal  ray/  checkpoints/  report/

Everything in it is YAML (safe), JSON, JSONL, parquet, safetensors or a `weights_only` checkpoint: opening somebody
else's study executes nothing.
"""

import os
import platform
import shutil
import subprocess
import time
from dataclasses import fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from mmts_ray import __version__, results, storage
from mmts_ray.config import SEED, legal
from mmts_ray.features import Frozen
from mmts_ray.health import health
from mmts_ray.space import Choice, Float
from mmts_ray.space_file import load
from mmts_ray.study import StudyConfig, constraints, to_dict

STUDY = "study.yaml"
ADDS = ("trials", "seeds", "hours", "device_hours", "space")  # arguments of `extended`
GROWS = ("trials", "budget_hours", "budget_device_hours")  # what `extend` adds to


def refuse_existing(study_dir: Path) -> None:
    """A study folder is never overwritten, and other people's files are never mixed with ours."""
    if (study_dir / STUDY).exists():
        raise ValueError(
            f"{study_dir}: a study is there already; continue it with `mmts-ray resume {study_dir}`, "
            f"add trials with `mmts-ray extend {study_dir} --trials N`, or choose another --out"
        )
    # meta.json is written first: alone, or half, it is a start that was killed
    begun = ("meta.json", ".meta.json.", f".{STUDY}.")
    mine = study_dir.is_dir() and all(path.name.startswith(begun) for path in study_dir.iterdir())
    if study_dir.exists() and not mine:
        raise ValueError(f"{study_dir}: exists and is not a study; choose another --out")


def is_study(study_dir: Path) -> bool:
    """Whether there is a study to continue."""
    return (study_dir / STUDY).is_file()


def same_study(study: StudyConfig, study_dir: Path) -> StudyConfig:
    """The study of a folder, which must be this one; `extend` may have given it more trials or seeds since."""
    kept = open_study(study_dir)
    for key in (f.name for f in fields(StudyConfig)):
        mine, theirs = getattr(study, key), getattr(kept, key)
        more = key in GROWS and None not in (mine, theirs) and theirs > mine
        more = more or (key == "seeds" and theirs[: len(mine)] == mine)
        if mine != theirs and not more:
            what = key
            if key == "fixed":
                ours, kept_there = dict(mine), dict(theirs)
                paths = sorted(p for p in {*ours, *kept_there} if ours.get(p) != kept_there.get(p))
                what = " ".join([key, *paths[:1]])
            raise ValueError(
                f"{study_dir}: holds another study, its {what} differs; choose another --out, continue that one with "
                "`mmts-ray resume`, or change it with `mmts-ray extend`"
            )
    return kept


def create(study: StudyConfig, study_dir: Path, frozen: Frozen, *, command: str, cache_dir: Path | None = None) -> None:
    """Write meta.json and then study.yaml, whose presence makes the folder a study; groups are kept in `cache_dir`."""
    refuse_existing(study_dir)
    for other in study.warm_start:
        results.read_meta(other)
    meta = {**describe(study, frozen, command=command, cache_dir=cache_dir), **_address(study_dir)}
    try:
        study_dir.mkdir(parents=True, exist_ok=True)
        results.write_meta(study_dir, meta)
        save(study, study_dir)
    except OSError as problem:
        raise ValueError(f"{study_dir}: cannot be written ({problem.strerror}); choose another --out") from None
    storage.publish(study_dir, "meta.json", STUDY)


def withdraw(study_dir: Path) -> None:
    """Take back a new study that was refused before anything began, so that the same command can be given again."""
    if not storage.uri(study_dir) and not any((study_dir / "ledger").glob("*")):
        shutil.rmtree(study_dir, ignore_errors=True)


def _address(study_dir: Path) -> dict[str, str]:
    """What the commands in a report call a study whose folder only stands for it."""
    return {"address": storage.name(study_dir)} if storage.uri(study_dir) else {}


def save(study: StudyConfig, study_dir: Path) -> None:
    """Write study.yaml whole or not at all."""
    import yaml

    results.write_whole(study_dir / STUDY, yaml.safe_dump(to_dict(study), sort_keys=False, allow_unicode=True))


def open_study(study_dir: Path) -> StudyConfig:
    """The study of a folder; ValueError in one line when it is none."""
    if not (study_dir / STUDY).is_file():
        raise ValueError(f"{study_dir}: not a study folder ({STUDY} is missing); `mmts-ray search` makes one")
    return load(study_dir / STUDY)


def extended(
    study: StudyConfig,
    *,
    trials: int = 0,
    seeds: int = 0,
    hours: float = 0,
    device_hours: float = 0,
    space: Path | None = None,
) -> StudyConfig:
    """The study with more trials, seeds or budget, and the search and baselines of another file when one is given."""
    added = {"--trials": trials, "--seeds": seeds, "--hours": hours, "--device-hours": device_hours}
    for option, number in added.items():
        if number < 0:
            raise ValueError(f"{option}: {number}; legal is a number above 0")
    if not any(added.values()) and space is None:
        raise ValueError("--trials: 0; legal is a whole number above 0 (or --seeds, --hours, --device-hours, --space)")
    for key, more in (("budget_hours", hours), ("budget_device_hours", device_hours)):
        if more:
            limit = getattr(study, key)
            if limit is None:
                raise ValueError(f"{key.replace('_', '.', 1)}: the study has no such budget; it ends by its trials")
            study = replace(study, **{key: limit + more})
    if study.strategy == "grid" and trials:
        raise ValueError("--trials: a grid has no further points; give --space with more of them")
    if seeds:
        if SEED in dict(study.fixed) or any(SEED in dict(point) for _, point in study.baselines):
            raise ValueError(f"--seeds: the study sets {SEED} itself")
        free = [seed for seed in range(results.FRESH_SEEDS) if seed not in study.seeds]
        if seeds > len(free) or max(study.seeds) >= results.FRESH_SEEDS:
            raise ValueError(
                f"--seeds: {seeds}; legal are seeds below {results.FRESH_SEEDS}, where those of confirm begin"
            )
        study = replace(study, seeds=(*study.seeds, *free[:seeds]))
    if space is not None:
        other = load(space)
        for key in ("objective", "constraints", "fixed", "strategy"):
            if getattr(other, key) != getattr(study, key):
                raise ValueError(f"{space}: its {key} differs from the study's; only search: and baseline: may change")
        study = replace(study, searched=other.searched, baselines=other.baselines)
    return replace(study, trials=study.trials + trials)


def update(study: StudyConfig, study_dir: Path, frozen: Frozen, *, cache_dir: Path | None = None) -> None:
    """Write a changed study; meta.json keeps the command and date of the first run."""
    before = results.read_meta(study_dir)
    meta = describe(study, frozen, command=before["command"], cache_dir=cache_dir)
    results.write_meta(study_dir, {**meta, "created": before["created"], **_address(study_dir)})
    save(study, study_dir)
    storage.publish(study_dir, "meta.json", STUDY)


def describe(study: StudyConfig, frozen: Frozen, *, command: str, cache_dir: Path | None = None) -> dict[str, Any]:
    """What the analysis needs to know beside the ledger."""
    config = study.trial_config(study.example())
    source, kwargs = config.function("eval")(**config.kwargs("eval"))
    return {
        "study": study.study,
        "objective": dict(study.objective),
        "constraints": constraints(study),
        "strategy": study.strategy,
        "seed": study.seed,
        "seeds": list(study.seeds),
        "trials": study.trials,
        "budget": {"hours": study.budget_hours, "device_hours": study.budget_device_hours},
        "controls": study.controls,
        "baselines": [name for name, _ in study.baselines],
        "space": [_described(study, index) for index in range(len(study.searched))],
        "confirm": {"top": study.confirm_top, "seeds": study.confirm_seeds},
        "command": command,
        "versions": {
            "mmts_ray": __version__,
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("ray", "torch", "optuna", "scikit-learn", "numpy")},
        },
        "git": _git(),
        "hardware": _hardware(),
        "data": {
            "key": frozen.key,
            "train": int((frozen.split_N == 0).sum()),
            "validation": int((frozen.split_N == 1).sum()),
            "test": int((frozen.split_N == 2).sum()),
            "notes": list(frozen.notes),
            **frozen.names,
            "health": health(frozen, source=source, kwargs=kwargs, cache_dir=cache_dir),
        },
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _described(study: StudyConfig, index: int) -> dict[str, Any]:
    entry = study.searched[index]
    domain = entry.domain
    names = {k: v for k, v in (*study.fixed, *study.example().items(), *((p, v[0]) for p, v in entry.when))}
    parameter = legal({k: v for k, v in names.items() if k.endswith(".name")})[entry.path]
    outer = parameter.domain
    out: dict[str, Any] = {
        "path": entry.path,
        "when": {path: list(values) for path, values in entry.when},
        "doc": outer.doc,
        "unit": outer.unit,
        "source": outer.source,
        "default": parameter.default,
    }
    if isinstance(domain, Choice):
        return {**out, "kind": "choice", "values": list(domain.values)}
    kind = "float" if isinstance(domain, Float) else "int"
    declared = {"low": getattr(outer, "low", None), "high": getattr(outer, "high", None)}
    ends = {"low": domain.low, "high": domain.high, "log": domain.log}  # type: ignore[union-attr]
    return {**out, "kind": kind, **ends, "declared": declared}


def _git() -> dict[str, Any] | None:
    """Commit of the code that runs, when it runs from a checkout."""
    here = Path(__file__).resolve().parent
    try:
        run = [
            subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, timeout=10, check=True)
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": run[0].stdout.strip(), "dirty": bool(run[1].stdout.strip())}


def _hardware() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cpu = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = [x for x in cpuinfo.read_text().splitlines() if x.startswith("model name")]
        cpu = lines[0].partition(":")[2].strip() if lines else ""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "cpus": os.cpu_count(),
        "cpu": cpu,
        "memory_gib": round(memory, 1),
        "gpus": gpus,
        "platform": platform.platform(),
    }
