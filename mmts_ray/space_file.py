"""A search-space file, read and checked: what is fixed, what is searched, what is compared with, and how it is judged.

study: demo                         # name, also of the default folder studies/demo
objective: {val_i2t_r1: max}        # one metric, or several for nsga2
strategy: tpe                       # see STRATEGIES
trials: 32                          # sampled trials; baselines come on top and run first
seed: 0                             # of the sampler, and of every trial
fixed: {train: {epochs: 10}}        # nested or dotted paths
search:
  train.lr: {loguniform: [1.0e-4, 1.0e-2]}
baseline:                           # named points, run first; the first is the default that others must beat
  - {name: fixed temperature, schedule.name: constant, schedule.value: 0.05}
confirm: {top: 3, seeds: 5}         # fresh-seed reruns
resources: {workers: 1, cpus_per_worker: 1, gpus_per_worker: 0, concurrent: null}
checkpoint_seconds: 30              # a killed trial loses at most this much work (0: what follows an evaluation)
loggers: [tensorboard]              # also mlflow, wandb: see `loggers`
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmts_ray.config import ENCODING, NAMED, SECTIONS, SEED, legal, unknown_path, with_shifts
from mmts_ray.loggers import LOGGERS
from mmts_ray.metrics import METRICS
from mmts_ray.space import (
    Choice,
    Float,
    Int,
    Parameter,
    Searched,
    Text,
    declared,
    did_you_mean,
    parse_at,
    parse_distribution,
)
from mmts_ray.study import STRATEGIES, Resources, StudyConfig, grid

KEYS: dict[str, Any] = {
    "study": None,
    "objective": {"val_i2t_r1": "max"},
    "strategy": "tpe",
    "trials": 32,
    "seed": 0,
    "fixed": {},
    "search": {},
    "baseline": [],
    "confirm": {"top": 3, "seeds": 5},
    "resources": {"workers": 1, "cpus_per_worker": 1, "gpus_per_worker": 0, "concurrent": None},
    "checkpoint_seconds": 30,
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
    raw, rows = _read_yaml(text, path)
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
        if is_path and value is not None and (full := Path(value).expanduser().absolute()).exists():
            fixed[key] = str(full)
    return replace(study, fixed=tuple(fixed.items()))


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
    searched = _parse_search(search_spec, fixed)
    study = StudyConfig(
        study=_text("study", given["study"] or default_name),
        objective=_objective(given["objective"]),
        strategy=_one_of("strategy", given["strategy"], STRATEGIES),
        trials=parse_at("trials", Int(0, 1_000_000), given["trials"]),
        seed=parse_at("seed", Int(0, 2**31 - 1), given["seed"]),
        fixed=tuple(sorted(with_shifts(fixed).items())),
        searched=searched,
        baselines=_baselines(given["baseline"]),
        confirm_top=parse_at("confirm.top", Int(0, 1000), _part("confirm", given["confirm"]).get("top")),
        confirm_seeds=parse_at("confirm.seeds", Int(1, 1000), _part("confirm", given["confirm"]).get("seeds")),
        resources=_resources(_part("resources", given["resources"])),
        checkpoint_seconds=parse_at("checkpoint_seconds", Float(0, 86_400), given["checkpoint_seconds"]),
        grid_points=parse_at("grid_points", Int(1, 1000), given["grid_points"]),
        loggers=_loggers(given["loggers"]),
    )
    _check_study(study)
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


def flatten_search(tree: Any) -> dict[str, Any]:
    """`search:` may be nested by section, as in `train: {lr: {loguniform: [...]}}`."""
    if tree is None:
        return {}
    if not isinstance(tree, Mapping):
        raise ValueError(f"search: needs a mapping of paths to distributions, not {tree!r}")
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        nested = str(key) in SECTIONS and isinstance(value, Mapping)
        for path, spec in {f"{key}.{k}": v for k, v in value.items()}.items() if nested else [(str(key), value)]:
            if path in flat:
                raise ValueError(f"{path}: given twice under search")
            flat[path] = spec
    return flat


def _parse_search(search_spec: Mapping[str, Any], fixed: Mapping[str, Any]) -> tuple[Searched, ...]:
    """Check each searched path against the declaration it would have, then order parents before children."""
    names: dict[str, Searched] = {}
    for section in NAMED:
        path = f"{section}.name"
        if path in search_spec:
            names[path] = parse_distribution(path, search_spec[path], legal({})[path])
    searched: dict[str, Searched] = dict(names)
    for path, spec in search_spec.items():
        if path not in names:
            searched[path] = parse_distribution(path, spec, _declaration(path, spec, fixed, names))
    ordered: dict[str, Searched] = {}
    waiting = list(searched.values())
    while waiting:
        for entry in waiting:
            for parent, values in entry.when:
                _check_condition(entry.path, parent, values, searched, fixed)
            if all(parent in ordered or parent not in searched for parent, _ in entry.when):
                ordered[entry.path] = entry
                waiting.remove(entry)
                break
        else:
            raise ValueError(f"{waiting[0].path}: its `when` leads in a circle")
    return tuple(ordered.values())


def _declaration(path: str, spec: Any, fixed: Mapping[str, Any], names: Mapping[str, Searched]) -> Parameter:
    """The declaration a searched path is held against; it must be legal wherever the parameter is active."""
    section = path.partition(".")[0]
    chooser = f"{section}.name"
    when = spec.get("when") if isinstance(spec, Mapping) else None
    conditions = when if isinstance(when, Mapping) else {}
    if chooser in names:
        chosen = conditions.get(chooser, names[chooser].domain.values)  # type: ignore[union-attr]
        options = chosen if isinstance(chosen, (list, tuple)) else [chosen]
    else:
        options = [fixed.get(chooser, NAMED[section][1])] if section in NAMED else [None]
    found: Parameter | None = None
    for option in options:
        flat = {k: v for k, v in fixed.items() if k.endswith(".name")} | ({chooser: option} if option else {})
        known = legal(flat)
        if path not in known:
            message = unknown_path(path, flat, known)
            if len(options) > 1 and "not a parameter of" in message:
                owners = [o for o in options if path.partition(".")[2] in declared(NAMED[section][0][o])]
                message = f"{path}: not a parameter of {section} {option}; add when: {{{chooser}: {owners or '...'}}}"
            raise ValueError(message)
        found = known[path]
    assert found is not None
    return found


def _check_condition(
    path: str, parent: str, values: tuple[Any, ...], searched: Mapping[str, Searched], fixed: Mapping[str, Any]
) -> None:
    if parent in searched:
        domain = searched[parent].domain
        for value in values:
            try:
                domain.parse(value)
            except ValueError as problem:
                raise ValueError(f"{path}: when {parent}: {problem}") from None
        if not isinstance(domain, Choice):
            raise ValueError(f"{path}: when: {parent} is a range; legal is a condition on a choice")
    elif parent not in fixed:
        legal_parents = [*searched, *fixed]
        raise ValueError(
            f"{path}: when: {parent} is neither searched nor fixed{did_you_mean(parent, legal_parents)}; "
            f"legal are {', '.join(p for p in legal_parents if p != path)}"
        )


def _check_study(study: StudyConfig) -> None:
    for point in study.name_points():  # a fixed value that is illegal, or functions that do not go together
        try:
            study.trial_config(point)
        except ValueError as problem:
            where, _, rest = str(problem).partition(": ")
            chosen = ", ".join(f"{k}={v}" for k, v in point.items() if k.endswith(".name"))
            raise ValueError(f"{where}: {f'(with {chosen}; exclude it with when) ' if chosen else ''}{rest}") from None
    if study.searched and not study.trials and study.strategy != "grid":
        raise ValueError("trials: 0, but parameters are searched; legal is a whole number above 0")
    several = len(study.objective) > 1
    if several and study.strategy != "nsga2":
        raise ValueError(f"objective: {len(study.objective)} metrics need strategy nsga2, not {study.strategy}")
    if not several and study.strategy == "nsga2":
        raise ValueError(
            "objective: strategy nsga2 needs two or more metrics, as in {val_i2t_r1: max, val_modality_distance: min}"
        )
    names = [name for name, _ in study.baselines]
    if len(set(names)) < len(names):
        raise ValueError(f"baseline: a name is used twice among {', '.join(names)}")
    for name in names:
        try:
            config = study.baseline_config(name)
        except ValueError as problem:
            raise ValueError(
                f"{str(problem).partition(': ')[0]}: (baseline {name!r}) {str(problem).partition(': ')[2]}"
            ) from None
        changed = [k for k, v in config.items if k.startswith(ENCODING) and study.encoding[k] != v]
        if changed:
            raise ValueError(
                f"{changed[0]}: (baseline {name!r}) one study has one set of features; make a second study"
            )
    if study.strategy == "grid":
        grid(study)


def _objective(value: Any) -> tuple[tuple[str, str], ...]:
    if isinstance(value, str):
        value = {value: "max"}
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"objective: needs {{metric: max or min}}, not {value!r}")
    for metric, mode in value.items():
        if mode not in ("max", "min"):
            raise ValueError(f"objective: {metric} has mode {mode!r}; legal are max, min")
        if not str(metric).startswith("val_"):
            split = "the test split must not guide a search; " if str(metric).startswith("test_") else ""
            raise ValueError(f"objective: {metric!r}: {split}legal are validation metrics, val_...")
        if str(metric).removeprefix("val_") not in METRICS:
            legal_names = [f"val_{n}" for n in METRICS]
            hint = did_you_mean(metric, legal_names)
            raise ValueError(f"objective: {metric!r} is not a metric{hint}; legal are {', '.join(legal_names)}")
    return tuple((str(k), str(v)) for k, v in value.items())


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


def _read_yaml(text: str, path: Path) -> tuple[Any, dict[str, int]]:
    """The plain contents (safe loader) and the row of every key and dotted path; a key given twice is refused."""
    import yaml

    rows: dict[str, int] = {}

    def walk(node: Any, prefix: tuple[str, ...]) -> None:
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key_node, value_node in node.value:
                key = str(key_node.value)
                row = key_node.start_mark.line + 1
                if key in seen:
                    raise ValueError(f"{path}:{row}: {key}: given twice")
                seen.add(key)
                keys = (*prefix, key)
                for start in range(len(keys)):
                    rows.setdefault(".".join(keys[start:]), row)
                walk(value_node, keys)
        elif isinstance(node, yaml.SequenceNode):
            for item in node.value:  # a baseline's keys are found under its name
                pairs = item.value if isinstance(item, yaml.MappingNode) else []
                name = next((str(v.value) for k, v in pairs if k.value == "name"), "")
                walk(item, (*prefix, f"<{name}>"))

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            raise ValueError(f"{path}: the file is empty; legal keys are {', '.join(KEYS)}")
        walk(root, ())
        return yaml.safe_load(text), rows
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        raise ValueError(f"{path}{where}: not YAML: {getattr(problem, 'problem', None) or problem}") from None
