"""MAP.yaml: what the columns of a sweep from elsewhere mean."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmts_ray.interop import finite
from mmts_ray.space import did_you_mean

KEYS = ("study", "objective", "search", "seed", "status", "name", "baseline")
KINDS = {"uniform": ("float", False), "loguniform": ("float", True), "int": ("int", False), "logint": ("int", True)}
STATUS = ("done", "stopped", "infeasible", "failed")


def load(path: Path | None) -> dict[str, Any]:
    import yaml

    if path is None:
        return {}
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise ValueError(f"{path}: not YAML: {str(problem).splitlines()[0]}") from None
    if not isinstance(given, dict):
        raise ValueError(f"{path}: needs a mapping with {', '.join(KEYS)}")
    for key in given:
        if key not in KEYS:
            raise ValueError(f"{path}: {key}: unknown key{did_you_mean(key, KEYS)}; legal are {', '.join(KEYS)}")
    if not isinstance(given.get("search"), dict) or not given["search"]:
        raise ValueError(f"{path}: search: needs the searched parameters, as in {{lr: {{loguniform: [1.0e-4, 0.1]}}}}")
    status = given.get("status")
    if status is not None and (
        not isinstance(status, dict) or "column" not in status or not set(status) <= {"column", *STATUS}
    ):
        raise ValueError(f"{path}: status: needs column, and the words for {', '.join(STATUS)}")
    return given


def objective_of(given: Mapping[str, Any], source: Path) -> dict[str, str]:
    objective = given.get("objective")
    if not isinstance(objective, dict) or not objective or not set(objective.values()) <= {"max", "min"}:
        wanted = "objective: {metric: max or min}"
        raise ValueError(f"{source}: --map MAP.yaml must say {wanted}, not {objective!r}; see docs/interop.md")
    return {str(k): v for k, v in objective.items()}


def entry(path: str, spec: Any) -> dict[str, Any]:
    """meta.json's entry of a parameter, from the words of a search-space file."""
    blank: dict[str, Any] = {"path": path, "when": {}, "doc": "", "unit": "", "source": "", "default": None}
    kind, value = next(iter(spec.items())) if isinstance(spec, dict) and len(spec) == 1 else ("", None)
    if kind == "choice" and isinstance(value, list) and value:
        return {**blank, "kind": "choice", "values": value}
    number, log = KINDS.get(kind, ("", False))
    pair = value if isinstance(value, list) and len(value) == 2 and all(finite(v) for v in value) else None
    if not number or pair is None or pair[0] >= pair[1] or (log and pair[0] <= 0):
        ranges = ", ".join(f"{{{name}: [low, high]}}" for name in KINDS)
        raise ValueError(f"search: {path}: {spec!r}; legal are {ranges}, {{choice: [...]}}")
    low, high = (int(v) if number == "int" else float(v) for v in pair)
    return {**blank, "kind": number, "low": low, "high": high, "log": log, "declared": {"low": None, "high": None}}
