"""The `search:` of a study file, each path held against the declaration that it would have."""

from collections.abc import Mapping
from typing import Any

from mmts_ray.config import NAMED, SECTIONS, legal, unknown_path
from mmts_ray.space import Choice, Parameter, Searched, declared, did_you_mean, parse_distribution


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


def parse_search(search_spec: Mapping[str, Any], fixed: Mapping[str, Any]) -> tuple[Searched, ...]:
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
