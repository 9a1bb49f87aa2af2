"""A file of planned runs, as `mmts-ray report STUDY --plan` writes it and people edit it.

study: demo
runs:
  - name: ring train.lr +0.10      # says what the run is for
    kind: probe                    # confirm, probe or control
    from: t0009                    # the trial or baseline whose configuration is changed; absent: the fixed values
    set: {train.lr: 0.0081}        # another function (schedule.name) drops the parameters of the one before
    seeds: [1000, 1001, 1002]
    reason: ...                    # for people, as device_hours and estimate
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmts_ray.config import ENCODING, SEED, TrialConfig, legal
from mmts_ray.plan import Planned, config_of, next_number, trial_id
from mmts_ray.ranking import Rows
from mmts_ray.space import did_you_mean
from mmts_ray.study import StudyConfig

LETTERS = {"confirm": "c", "probe": "p", "control": "r"}  # trial ids by kind
KEYS = ("name", "kind", "from", "set", "seeds", "reason", "device_hours", "estimate")


def load(path: str | Path, study: StudyConfig, known: Rows) -> list[Planned]:
    """The runs of a plan that the ledger does not hold yet; ValueError in one line, headed by file and row."""
    path = Path(path)
    ran = {
        (row["kind"] == "control", row["config_hash"], int(row["seed"]))
        for row in known.values()
        if row["kind"] in LETTERS and row["status"] != "failed"
    }
    numbers = {letter: next_number(known, letter) for letter in LETTERS.values()}
    found = []
    for name, kind, config, seeds in _read(path, study, known):
        for seed in seeds:
            key = (kind == "control", config.hash, seed)
            if key not in ran:
                ran.add(key)
                letter = LETTERS[kind]
                trial = trial_id(letter, numbers[letter])
                numbers[letter] += 1
                found.append(Planned(trial=trial, kind=kind, name=name, config=config.with_seed(seed)))
    return found


def _read(path: Path, study: StudyConfig, known: Rows) -> list[tuple[str, str, TrialConfig, list[int]]]:
    raw, row = _parsed(path)
    if raw.get("study") != study.study:
        raise ValueError(f"{path}: made for the study {raw.get('study')!r}; this one is {study.study!r}")
    unknown = next((key for key in raw if key not in ("study", "runs")), None)
    if unknown is not None or not isinstance(raw.get("runs"), list):
        raise ValueError(f"{path}: {unknown or 'runs'}: {'unknown' if unknown else 'missing'}; legal are study, runs")
    entries = []
    for place, item in enumerate(raw["runs"]):
        try:
            entries.append(_entry(item, study, known))
        except ValueError as problem:
            where = str(problem).partition(": ")[0]
            at = next((row[k] for k in ((place, "set", where), (place, where), (place,)) if k in row), None)
            raise ValueError(f"{path}{f':{at}' if at else ''}: {problem}") from None
    return entries


def _entry(item: Any, study: StudyConfig, known: Rows) -> tuple[str, str, TrialConfig, list[int]]:
    if not isinstance(item, Mapping):
        raise ValueError(f"{item!r} is no run; legal is a mapping with {', '.join(KEYS)}")
    for key in item:
        if key not in KEYS:
            raise ValueError(f"{key}: unknown{did_you_mean(key, KEYS)}; legal are {', '.join(KEYS)}")
    name, kind, changes, seeds = (item.get(key) for key in ("name", "kind", "set", "seeds"))
    if not isinstance(name, str) or not name:
        raise ValueError(f"name: {name!r} is not text; legal is what the run is for")
    if kind not in LETTERS:
        raise ValueError(f"kind: {kind!r}{did_you_mean(kind, LETTERS)}; legal are {', '.join(LETTERS)}")
    if changes is not None and not isinstance(changes, Mapping):
        raise ValueError(f"set: {changes!r} is no mapping of paths to values")
    if not isinstance(seeds, list) or not seeds:
        raise ValueError(f"seeds: {seeds!r}; legal is a list of whole numbers, as in [1000, 1001]")
    domain = legal({})[SEED].domain
    for seed in seeds:
        try:
            domain.parse(seed)
        except ValueError as problem:
            raise ValueError(f"seeds: {problem}") from None
    base = _start(item.get("from"), study, known)
    config = replace(study, fixed=tuple(base.items())).trial_config(dict(changes or {}))
    flat = config.flat()
    moved = next((k for k in flat if k.startswith(ENCODING) and flat[k] != study.encoding.get(k)), None)
    if moved is not None:
        raise ValueError(f"{moved}: one study has one set of features; make a second study")
    return name, kind, config, [int(seed) for seed in seeds]


def _start(start: Any, study: StudyConfig, known: Rows) -> dict[str, Any]:
    """The flat configuration that an entry starts from."""
    baselines = [name for name, _ in study.baselines]
    if start is None:
        return dict(study.fixed)
    if start in known:
        return config_of(known[start]).flat()
    if start in baselines:
        return study.baseline_config(start).flat()
    hint = did_you_mean(start, [*baselines, *known])
    raise ValueError(
        f"from: {start!r} is neither a trial nor a baseline of the study{hint}; legal are "
        f"{', '.join([*baselines, 'a trial id as in t0001'])}"
    )


def _parsed(path: Path) -> tuple[dict[str, Any], dict[tuple[Any, ...], int]]:
    """The plain contents (safe loader), and the row of each run and of the keys in it."""
    import yaml

    if not path.is_file():
        raise ValueError(f"{path}: no such file; `mmts-ray report STUDY --plan` writes one")
    rows: dict[tuple[Any, ...], int] = {}

    def walk(node: Any, keys: tuple[Any, ...]) -> None:
        rows[keys] = node.start_mark.line + 1
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                if key.value in seen:
                    raise ValueError(f"{path}:{key.start_mark.line + 1}: {key.value}: given twice")
                seen.add(key.value)
                walk(value, (*keys, key.value))
                rows[(*keys, key.value)] = key.start_mark.line + 1
        elif isinstance(node, yaml.SequenceNode):
            for place, value in enumerate(node.value):
                walk(value, (*keys, place))

    try:
        text = path.read_text(encoding="utf-8-sig")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is not None:
            walk(root, ())
        raw = yaml.safe_load(text)
    except UnicodeDecodeError as problem:
        raise ValueError(f"{path}: not UTF-8 text ({problem.reason} at byte {problem.start})") from None
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        raise ValueError(f"{path}{where}: not YAML: {getattr(problem, 'problem', None) or problem}") from None
    if not isinstance(raw, dict):
        raise ValueError(f"{path}: a plan is a mapping with the keys study and runs; this is {type(raw).__name__}")
    return raw, {keys[1:]: row for keys, row in rows.items() if keys[:1] == ("runs",)}
