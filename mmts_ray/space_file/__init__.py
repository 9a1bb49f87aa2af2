"""A search-space file, read and checked: what is fixed, what is searched, what is compared with, and how it is judged.

study: demo                         # name, also of the default folder studies/demo
objective: {val_i2t_r1: max}        # one metric, or several for a trade-off
constraints: {val_modality_distance: {max: 0.5}}  # what a configuration must keep to win; the strategy learns to
strategy: tpe                       # see STRATEGIES
trials: 32                          # configurations; baselines come on top and run first
budget: {hours: null, device_hours: null}  # spent by the ledger, kills included: then what runs ends, nothing starts
warm_start: []                      # folders of studies whose results are told and whose best run first
controls: null                      # so many of the trials are drawn at random and never stopped early: they say what
                                    # an early result is worth (null: 20 of 100 or more trials, if others are stopped)
seed: 0                             # of the sampler
seeds: null                         # each configuration runs on each of these and the mean counts (null: on the seed)
fixed: {train: {epochs: 10}}        # nested or dotted paths
search:
  train.lr: {loguniform: [1.0e-4, 1.0e-2]}
baseline:                           # named points, run first; the first is the default that others must beat
  - {name: fixed temperature, schedule.name: constant, schedule.value: 0.05}
confirm: {top: 3, seeds: 5}         # fresh-seed reruns
resources: {workers: 1, cpus_per_worker: 1, gpus_per_worker: 0, concurrent: null}   # workers: of one trial, whose
                                    # global batch they share; the numbers are those of one worker
checkpoint_seconds: 30              # a killed trial loses at most this much work (0: what follows an evaluation)
loggers: [tensorboard]              # also mlflow, wandb: see `loggers`
stall_minutes: 30                   # a running trial without an optimiser step for so long has failed
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmts_ray.config import ENCODING, SECTIONS, SEED, legal, with_shifts
from mmts_ray.loggers import LOGGERS
from mmts_ray.metrics import METRICS
from mmts_ray.results import FRESH_SEEDS
from mmts_ray.space import Float, Int, Text, did_you_mean, parse_at
from mmts_ray.space_file.checks import check
from mmts_ray.space_file.searched import flatten_search, parse_search
from mmts_ray.space_file.yaml_rows import read_yaml
from mmts_ray.study import STRATEGIES, Resources, StudyConfig

CONTROLS = 20  # enough for a rank correlation with an interval of about 0.25, as simulated
ENOUGH_FOR_CONTROLS = 100  # trials of which 20 can be spared

KEYS: dict[str, Any] = {
    "study": None,
    "objective": {"val_i2t_r1": "max"},
    "constraints": {},
    "strategy": "tpe",
    "warm_start": [],
    "trials": 32,
    "budget": {"hours": None, "device_hours": None},
    "controls": None,
    "seed": 0,
    "seeds": None,
    "fixed": {},
    "search": {},
    "baseline": [],
    "confirm": {"top": 3, "seeds": 5},
    "resources": {"workers": 1, "cpus_per_worker": 1, "gpus_per_worker": 0, "concurrent": None},
    "checkpoint_seconds": 30,
    "stall_minutes": 30,
    "grid_points": 5,
    "loggers": [],
}


def load(path: str | Path, overrides: Mapping[str, Any] | None = None) -> StudyConfig:
    """Read and check a file; ValueError in one line, headed by file and row, or by the override that is wrong."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as problem:
        raise ValueError(f"{path}: not UTF-8 text ({problem.reason} at byte {problem.start})") from None
    raw, rows = read_yaml(text, path, KEYS)
    try:
        return _with_full_paths(parse(raw, overrides=overrides, default_name=path.stem))
    except ValueError as problem:
        message = str(problem)
        where, _, rest = message.partition(": ")
        if where in (overrides or {}):
            raise
        named = re.match(r"\(baseline '(.*?)'\)", rest)
        row = rows.get(f"<{named[1]}>.{where}", rows.get(f"<{named[1]}>.name")) if named else rows.get(where)
        raise ValueError(f"{path}{f':{row}' if row else ''}: {message}") from None


def _with_full_paths(study: StudyConfig) -> StudyConfig:
    """Relative paths are those of the working directory now: the study is resumed, and its workers run, elsewhere."""
    known = legal(dict(study.fixed))
    fixed = dict(study.fixed)
    for key, value in fixed.items():
        is_path = isinstance(domain := known[key].domain, Text) and domain.path
        if is_path and value is not None:
            fixed[key] = _in_full(value)
    warm = tuple(str(Path(path).expanduser().absolute()) for path in study.warm_start)
    return replace(study, fixed=tuple(fixed.items()), warm_start=warm)


def _in_full(value: str) -> str:
    """What exists, named in full: PATH, or both parts of CONFIG.json/PATH, or the second of LIBRARY:MODEL/PATH."""
    full = Path(value).expanduser().absolute()
    if full.exists() or (set("{*?") & set(full.name) and full.parent.is_dir()):  # a pattern, as shards-{00..15}.tar
        return str(full)
    for cut in (".json/", "/"):
        head, found, tail = value.partition(cut)
        file = Path(tail).expanduser().absolute()
        if found and tail and (cut == ".json/" or ":" in head) and file.is_file():
            return f"{_in_full(head + cut[:-1])}/{file}"
    return value


def parse(raw: Any, *, overrides: Mapping[str, Any] | None = None, default_name: str = "study") -> StudyConfig:
    """Check the contents of a space file, overrides applied last: they turn a searched parameter into a fixed one."""
    if not isinstance(raw, Mapping):
        raise ValueError(f"a study is a mapping with the keys {', '.join(KEYS)}; this is {type(raw).__name__}")
    for key in raw:
        if key not in KEYS:
            hint = f"; under fixed: write {key} there" if str(key).partition(".")[0] in SECTIONS else ""
            raise ValueError(f"{key}: unknown key{did_you_mean(key, KEYS)}{hint}; legal are {', '.join(KEYS)}")
    given = {**KEYS, **raw}
    overridden = dict(overrides or {})
    for path in [p for p in overridden if p.partition(".")[0] in KEYS]:
        key, _, inner = path.partition(".")
        value = overridden.pop(path)
        given[key] = {**_part(key, given[key]), inner: value} if inner and isinstance(KEYS[key], Mapping) else value
    fixed = {**flatten("fixed", given["fixed"]), **overridden}
    search_spec = {k: v for k, v in flatten_search(given["search"]).items() if k not in overridden}
    for path in search_spec:
        if path in fixed:
            raise ValueError(f"{path}: both fixed and searched; keep one")
        if path == SEED:
            raise ValueError(
                f"{path}: a searched seed is noise in the objective; confirm reruns the best on fresh seeds"
            )
        if path.startswith(ENCODING):
            raise ValueError(
                f"{path}: one study has one set of features; make one study per value and report them together"
            )
    searched = parse_search(search_spec, fixed)
    study = StudyConfig(
        study=_text("study", given["study"] or default_name),
        objective=_objective(given["objective"]),
        constraints=_constraints(given["constraints"]),
        strategy=_one_of("strategy", given["strategy"], STRATEGIES),
        warm_start=_warm_start(given["warm_start"]),
        trials=parse_at("trials", Int(0, 1_000_000), given["trials"]),
        budget_hours=_budget(given["budget"], "hours"),
        budget_device_hours=_budget(given["budget"], "device_hours"),
        controls=_controls(given),
        seed=parse_at("seed", Int(0, 2**31 - 1), given["seed"]),
        seeds=_seeds(given),
        fixed=tuple(sorted(with_shifts(fixed).items())),
        searched=searched,
        baselines=_baselines(given["baseline"]),
        confirm_top=parse_at("confirm.top", Int(0, 1000), _part("confirm", given["confirm"]).get("top")),
        confirm_seeds=parse_at("confirm.seeds", Int(1, 1000), _part("confirm", given["confirm"]).get("seeds")),
        resources=_resources(_part("resources", given["resources"])),
        checkpoint_seconds=parse_at("checkpoint_seconds", Float(0, 86_400), given["checkpoint_seconds"]),
        stall_minutes=parse_at("stall_minutes", Float(0.1, 100_000), given["stall_minutes"]),
        grid_points=parse_at("grid_points", Int(1, 1000), given["grid_points"]),
        loggers=_loggers(given["loggers"]),
    )
    check(study)
    return study


def flatten(where: str, tree: Any) -> dict[str, Any]:
    """Nested or dotted keys to dotted paths; a path given twice is refused."""
    if tree is None:
        return {}
    if not isinstance(tree, Mapping):
        raise ValueError(f"{where}: needs a mapping of paths to values, not {tree!r}")
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            inner = {f"{key}.{k}": v for k, v in flatten(f"{where}.{key}", value).items()}
        else:
            inner = {str(key): value}
        for path, leaf in inner.items():
            if path in flat:
                raise ValueError(f"{path}: given twice under {where}")
            flat[path] = leaf
    return flat


def _controls(given: Mapping[str, Any]) -> int:
    """How many trials are drawn at random and never stopped: 20 or more measure what an early result is worth."""
    trials, wanted = given["trials"], given["controls"]
    if wanted is not None:
        return parse_at("controls", Int(0, 1_000_000), wanted)
    return CONTROLS if STRATEGIES[given["strategy"]].scheduler and trials >= ENOUGH_FOR_CONTROLS else 0


def _budget(value: Any, key: str) -> float | None:
    limit = _part("budget", value)[key]
    return None if limit is None else float(parse_at(f"budget.{key}", Float(1e-6, 1e9), limit))


def _warm_start(value: Any) -> tuple[str, ...]:
    paths = [value] if isinstance(value, str) else value
    if not isinstance(paths, list) or not all(isinstance(path, str) and path for path in paths):
        raise ValueError(f"warm_start: needs the folder of a study, or a list of them, not {value!r}")
    return tuple(paths)


def _seeds(given: Mapping[str, Any]) -> tuple[int, ...]:
    seeds = given["seeds"]
    if seeds is None:
        return (given["seed"],)
    if not isinstance(seeds, list) or not seeds:
        raise ValueError(f"seeds: needs a list of whole numbers, as in [0, 1, 2], not {seeds!r}")
    legal_seed = Int(0, FRESH_SEEDS - 1) if len(seeds) > 1 else Int(0, 2**31 - 1)
    found = tuple(parse_at("seeds", legal_seed, seed) for seed in seeds)
    if len(set(found)) < len(found):
        raise ValueError(f"seeds: {seeds} names one twice")
    return found


def _objective(value: Any) -> tuple[tuple[str, str], ...]:
    if isinstance(value, str):
        value = {value: "max"}
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"objective: needs {{metric: max or min}}, not {value!r}")
    for metric, mode in value.items():
        if mode not in ("max", "min"):
            raise ValueError(f"objective: {metric} has mode {mode!r}; legal are max, min")
        _check_metric("objective", metric)
    return tuple((str(k), str(v)) for k, v in value.items())


def _constraints(value: Any) -> tuple[tuple[str, str, float], ...]:
    if not isinstance(value or {}, Mapping):
        raise ValueError(f"constraints: needs {{metric: {{max: bound}}}}, not {value!r}")
    found = []
    for metric, sides in (value or {}).items():
        _check_metric("constraints", metric)
        if not isinstance(sides, Mapping) or not sides or not {*sides} <= {"min", "max"}:
            raise ValueError(f"constraints: {metric}: {sides!r}; legal is {{max: bound}}, {{min: bound}} or both")
        ends = {side: parse_at(f"constraints.{metric}.{side}", Float(-1e12, 1e12), b) for side, b in sides.items()}
        if len(ends) > 1 and ends["min"] > ends["max"]:
            raise ValueError(f"constraints: {metric}: min {ends['min']:g} is above max {ends['max']:g}")
        found += [(str(metric), side, float(ends[side])) for side in sorted(ends)]
    return tuple(found)


def _check_metric(where: str, metric: Any) -> None:
    if not str(metric).startswith("val_"):
        split = "the test split must not guide a search; " if str(metric).startswith("test_") else ""
        raise ValueError(f"{where}: {metric!r}: {split}legal are validation metrics, val_...")
    if str(metric).removeprefix("val_") not in METRICS:
        legal_names = [f"val_{n}" for n in METRICS]
        hint = did_you_mean(metric, legal_names)
        raise ValueError(f"{where}: {metric!r} is not a metric{hint}; legal are {', '.join(legal_names)}")


def _baselines(value: Any) -> tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ValueError(f"baseline: needs a list of named points, not {value!r}")
    found = []
    for entry in value:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            raise ValueError(
                f"baseline: {entry!r} needs a name, as in {{name: fixed temperature, schedule.name: constant}}"
            )
        point = flatten("baseline", {k: v for k, v in entry.items() if k != "name"})
        found.append((entry["name"], tuple(sorted(with_shifts(point).items()))))
    return tuple(found)


def _resources(value: Mapping[str, Any]) -> Resources:
    defaults = KEYS["resources"]
    merged = {**defaults, **value}
    concurrent = merged["concurrent"]
    cpus = parse_at("resources.cpus_per_worker", Float(0.01, 10_000), merged["cpus_per_worker"])
    return Resources(
        workers=parse_at("resources.workers", Int(1, 10_000), merged["workers"]),
        cpus_per_worker=int(cpus) if float(cpus).is_integer() else cpus,
        gpus_per_worker=parse_at("resources.gpus_per_worker", Float(0, 1000), merged["gpus_per_worker"]),
        concurrent=None if concurrent is None else parse_at("resources.concurrent", Int(1, 100_000), concurrent),
    )


def _loggers(value: Any) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)):
        raise ValueError(f"loggers: needs a list of {', '.join(LOGGERS)}, not {value!r}")
    return tuple(dict.fromkeys(_one_of("loggers", name, LOGGERS) for name in names))


def _part(key: str, value: Any) -> dict[str, Any]:
    legal_keys = KEYS[key]
    if not isinstance(value, Mapping):
        raise ValueError(f"{key}: needs a mapping with {', '.join(legal_keys)}, not {value!r}")
    for inner in value:
        if inner not in legal_keys:
            hint = did_you_mean(inner, legal_keys)
            raise ValueError(f"{key}.{inner}: unknown{hint}; legal are {', '.join(f'{key}.{k}' for k in legal_keys)}")
    return {**legal_keys, **value}


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: {value!r} is not text")
    return value


def _one_of(where: str, value: Any, table: Mapping[str, Any]) -> str:
    if value not in table:
        raise ValueError(f"{where}: {value!r} is unknown{did_you_mean(value, table)}; legal are {', '.join(table)}")
    return str(value)
