"""Synthetic study folders with a known truth, written as the platform writes them.

The truth is `simulator.Truth`; `write_study` writes any list of records.
"""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from simulator import Truth

START = 1_790_000_000.0
OBJECTIVE = "i2t_r1"
SPACE = [
    {"path": "train.lr", "kind": "float", "low": 1e-4, "high": 1e-1, "log": True, "default": 1e-3,
     "declared": {"low": 1e-6, "high": 1.0}, "doc": "learning rate"},
    {"path": "schedule.tau", "kind": "float", "low": 0.005, "high": 0.5, "log": True, "default": 0.05,
     "declared": {"low": 0.001, "high": 1.0}, "doc": "temperature"},
    {"path": "train.wd", "kind": "float", "low": 1e-3, "high": 1.0, "log": True, "default": 0.01,
     "declared": {"low": 0.0, "high": 1.0}, "doc": "weight decay"},
    {"path": "loss.margin", "kind": "float", "low": 0.0, "high": 0.4, "log": False, "default": 0.2,
     "declared": {"low": 0.0, "high": 1.0}, "doc": "margin"},
    {"path": "loss.mix", "kind": "float", "low": 0.0, "high": 1.0, "log": False, "default": 0.0,
     "declared": {"low": 0.0, "high": 1.0}, "doc": "mix"},
    {"path": "loss.dead", "kind": "float", "low": 0.0, "high": 1.0, "log": False, "default": 0.5,
     "declared": {"low": 0.0, "high": 1.0}, "doc": "does nothing"},
]  # fmt: skip
DEFAULT = {
    "train.lr": 1e-3,
    "schedule.tau": 0.05,
    "train.wd": 0.01,
    "loss.margin": 0.2,
    "loss.mix": 0.0,
    "loss.dead": 0.5,
}


def score_of(u: np.ndarray, **truth: Any) -> float:
    """True score at unit coordinates (lr, tau, wd, margin, mix, dead); `truth` as for `simulator.Truth`."""
    return float(Truth(**truth).score(u)[0])


def seed_sd(u: np.ndarray) -> float:
    """Standard deviation over seeds at a point."""
    return float(Truth().seed_sd(u)[0])


def diverges(u: np.ndarray) -> float:
    """Probability that a run at this point ends in NaN."""
    return float(Truth().diverges(u)[0])


def native(u: np.ndarray) -> dict[str, float]:
    """Parameter values at unit coordinates."""
    values = {}
    for entry, x in zip(SPACE, u):
        low, high = entry["low"], entry["high"]
        values[entry["path"]] = low * (high / low) ** x if entry["log"] else low + (high - low) * x
    return {path: float(value) for path, value in values.items()}


def unit(values: dict[str, float]) -> np.ndarray:
    coordinates = []
    for entry in SPACE:
        low, high, x = entry["low"], entry["high"], values[entry["path"]]
        coordinates.append(math.log(x / low) / math.log(high / low) if entry["log"] else (x - low) / (high - low))
    return np.array(coordinates)


class Maker:
    """Collects the records of a study; every run advances the clock."""

    def __init__(self, name: str = "study") -> None:
        self.name, self.clock, self.rows = name, START, []

    def run(
        self,
        trial: str,
        kind: str,
        params: dict[str, Any],
        metrics: dict[str, float | None],
        *,
        seed: int = 0,
        name: str | None = None,
        config_hash: str | None = None,
        status: str = "done",
        error: str | None = None,
        epochs: int = 1,
        early: dict[int, dict[str, float]] | None = None,
        **extra: Any,
    ) -> None:
        """A start record, `epochs` evaluations, and an end unless the status is "running".

        `early` holds the metrics at epochs where they differ from those at the end.
        """
        head = {"study": self.name, "trial": trial, "kind": kind}
        identity = {"config_hash": config_hash or hash_of(params), "seed": seed, "global_batch": 256}
        named = {"name": name} if name else {}
        config = {f"param.{path}": value for path, value in {**params, "train.seed": seed}.items()}
        self.rows.append({**head, **identity, **named, **config, **extra, "status": "running", "time": self.clock})
        values = {f"metric.{key}": value for key, value in metrics.items()}
        for epoch in range(1, epochs + 1):
            self.clock += 2.0
            step = {"step": 10 * epoch, "epoch": epoch, "seconds": 2.0 * epoch, "device_seconds": 2.0 * epoch}
            then = {f"metric.{key}": value for key, value in (early or {}).get(epoch, {}).items()}
            self.rows.append({**head, **step, **values, **then, "status": "running", "time": self.clock})
        if status == "running":
            return
        self.clock += 1.0
        end = {"step": 10 * epochs, "epoch": epochs, "seconds": 2.0 * epochs + 1, "device_seconds": 2.0 * epochs + 1}
        failed = {"error": error} if error else {}
        self.rows.append({**head, **end, **values, **failed, "status": status, "time": self.clock})


def hash_of(params: dict[str, Any]) -> str:
    kept = {key: value for key, value in params.items() if key != "train.seed"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def meta_of(name: str, **changes: Any) -> dict[str, Any]:
    meta = {
        "schema": 1,
        "study": name,
        "objective": {f"val_{OBJECTIVE}": "max"},
        "strategy": "random",
        "seed": 0,
        "trials": 40,
        "baselines": ["paper"],
        "space": SPACE,
        "confirm": {"top": 3, "seeds": 5},
        "command": "mmts-ray search search_spaces/synthetic.yaml",
        "versions": {"python": "3.11.9", "torch": "2.8.0", "ray": "2.60.0", "optuna": "5.0.0", "mmts_ray": "0.1.0"},
        "git": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False},
        "hardware": {"cpus": 4, "cpu": "test", "memory_gib": 16, "gpus": [], "platform": "Linux"},
        "data": {"key": "abcdef0123456789", "train": 3200, "validation": 347, "test": 347, "dropped": {},
                 "notes": [], "image_encoder": "lite0", "text_encoder": "minilm",
                 "credits": ["OpenMoji, CC BY-SA 4.0"]},
        "created": START,
    }  # fmt: skip
    return {**meta, **changes}


def write_study(folder: Path, rows: list[dict[str, Any]], meta: dict[str, Any]) -> Path:
    (folder / "ledger").mkdir(parents=True, exist_ok=True)
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf8")
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "ledger" / "writer-1.jsonl").write_text(lines, encoding="utf8")
    return folder


def metrics_of(u: np.ndarray, rng: np.random.Generator, *, test: bool, queries: int = 347) -> dict[str, float]:
    """Noisy scores of one run on validation and, for baselines and fresh runs, on test."""
    truth = score_of(u)
    seed_effect = rng.normal()
    values = {}
    for split in ("val", "test") if test else ("val",):
        noise = seed_sd(u) * (0.7 * seed_effect + 0.714 * rng.normal())
        score = float(np.clip(round(queries * (truth + noise)) / queries, 0, 1))
        spread = {"head": 0.08, "mid": 0.0, "tail": -0.10 - 0.05 * u[4]}
        values |= {
            f"{split}_i2t_r1": score,
            f"{split}_t2i_r1": float(np.clip(score - 0.02 + 0.005 * rng.normal(), 0, 1)),
            f"{split}_r1": float(np.clip(score - 0.01, 0, 1)),
            f"{split}_i2t_median_rank": float(round(6 - 8 * score)),
            f"{split}_modality_distance": float(0.9 - 0.5 * u[4] + 0.02 * rng.normal()),
        }
        for group, shift in spread.items():
            values[f"{split}_{group}_r1"] = float(np.clip(score + shift + 0.008 * rng.normal(), 0, 1))
            values[f"{split}_n_{group}"] = {"head": 116, "mid": 116, "tail": 115}[group]
        values[f"{split}_modality_accuracy"] = float(np.clip(0.99 - 0.1 * u[4], 0, 1))
    return values


def synthetic(
    folder: Path, *, trials: int = 40, confirm: int = 5, top: int = 3, seed: int = 0, epochs: int = 1, **changes: Any
) -> Path:
    """A random search on the simulator: one baseline, `trials` trials, fresh runs of the default and the best."""
    rng = np.random.default_rng(seed)
    maker = Maker(folder.name)
    default_u = unit(DEFAULT)
    maker.run("t0000", "baseline", DEFAULT, metrics_of(default_u, rng, test=True), name="paper", epochs=epochs)
    found = []
    for number in range(1, trials + 1):
        u = rng.random(6)
        lost = rng.random() < diverges(u)
        metrics = {} if lost else metrics_of(u, rng, test=False)
        status = {"status": "infeasible", "error": "loss is not finite at step 7"} if lost else {}
        maker.run(f"t{number:04d}", "search", native(u), metrics, seed=number, epochs=epochs, **status)
        if not lost:
            found.append((metrics[f"val_{OBJECTIVE}"], f"t{number:04d}", u))
    best = sorted(found, key=lambda f: (-f[0], f[1]))[:top]
    number = 0
    for label, u, params in [("paper", default_u, DEFAULT), *((t, u, native(u)) for _, t, u in best)]:
        for repeat in range(confirm):
            number += 1
            metrics, name = metrics_of(u, rng, test=True), f"c{number:04d}"
            maker.run(name, "confirm", params, metrics, seed=1000 + repeat, name=label, epochs=epochs)
    return write_study(folder, maker.rows, meta_of(folder.name, trials=trials, **changes))


def arms(folder: Path, scores: dict[str, list[float]], *, extra: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A study with one search trial per name (the baseline "paper" apart) and exactly these fresh scores.

    The same value is written for validation and test; seeds are 1000, 1001, ...; `extra` adds metrics to fresh runs:
    {name: {metric: [one per seed]}}.
    """
    maker = Maker(folder.name)
    params = {name: {"train.lr": 1e-3 * (1 + place)} for place, name in enumerate(scores)}
    for name, values in scores.items():
        kind, label = ("baseline", name) if name == "paper" else ("search", None)
        trial = "t0000" if name == "paper" else name
        maker.run(trial, kind, params[name], {f"val_{OBJECTIVE}": values[0] if values else 0.1}, name=label)
    number = 0
    for name, values in scores.items():
        for place, value in enumerate(values):
            more = {key: column[place] for key, column in (extra or {}).get(name, {}).items()}
            metrics = {f"val_{OBJECTIVE}": value, f"test_{OBJECTIVE}": value, **more}
            maker.run(f"c{number:04d}", "confirm", params[name], metrics, seed=1000 + place, name=name)
            number += 1
    return write_study(folder, maker.rows, meta_of(folder.name, space=SPACE[:1], **changes))
