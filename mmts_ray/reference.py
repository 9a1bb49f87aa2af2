"""What may be set, and what a study resolves to: the text behind `params` and `check`."""

from typing import Any

from mmts_ray.config import NAMED, SECTIONS, SINGLE
from mmts_ray.space import REQUIRED, Choice, Domain, declared, did_you_mean
from mmts_ray.study import REDUCTION, STRATEGIES, WORST, StudyConfig, constraints, grid

COLUMNS = ("parameter", "of", "domain", "default", "unit", "source", "meaning")


def parameters(name: str | None = None) -> list[dict[str, Any]]:
    """Every declared parameter, or those of a section (`loss`) or of one function (`info_nce`)."""
    functions = [(section, key, f) for section, (table, _) in NAMED.items() for key, f in table.items()]
    functions += [(section, "", f) for section, f in SINGLE.items()]
    legal_names = [*SECTIONS, *(key for _, key, _ in functions if key)]
    if name is not None and name not in legal_names:
        hint = did_you_mean(name, legal_names)
        raise ValueError(f"{name!r}: no such section or function{hint}; legal are {', '.join(legal_names)}")
    rows: list[dict[str, Any]] = []
    for section, (table, default) in NAMED.items():
        if name in (None, section):
            names = ", ".join(table)
            row = {"parameter": f"{section}.name", "of": "", "domain": f"one of {names}", "default": default}
            rows.append({**row, "unit": "", "source": "", "meaning": f"which function of {section} is used"})
        rows += _rows([f for f in functions if f[0] == section], name)
    return rows + _rows([f for f in functions if not f[1]], name)


def _rows(functions: list[tuple[str, str, Any]], name: str | None) -> list[dict[str, Any]]:
    rows = []
    for section, key, function in functions:
        if name not in (None, section, key):
            continue
        for p in declared(function).values():
            rows.append(
                {
                    "parameter": f"{section}.{p.name}",
                    "of": key,
                    "domain": _domain(p.domain),
                    "default": "required" if p.default is REQUIRED else p.default,
                    "unit": p.domain.unit,
                    "source": p.domain.source,
                    "meaning": p.domain.doc,
                }
            )
    return rows


def _domain(domain: Domain) -> str:
    return str(domain) + (", log scale" if getattr(domain, "log", False) else "")


def _shown(value: Any) -> str:
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def plain(rows: list[dict[str, Any]]) -> str:
    """Two or three lines a parameter: what it is set with, what it means."""
    lines = []
    for row in rows:
        of = f"  ({row['of']})" if row["of"] else ""
        unit = f" {row['unit']}" if row["unit"] else ""
        lines.append(f"{row['parameter']}{of} = {_shown(row['default'])}{unit}")
        lines.append(f"    {row['meaning']}; {row['domain']}")
        if row["source"]:
            lines.append(f"    source: {row['source']}")
    return "\n".join(lines)


def markdown(rows: list[dict[str, Any]]) -> str:
    """One Markdown table."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    for row in rows:
        lines.append("| " + " | ".join(_shown(row[c]).replace("|", "\\|") for c in COLUMNS) + " |")
    return "\n".join(lines)


def resolved(study: StudyConfig) -> dict[str, Any]:
    """The whole study as it will run: every fixed value, the space, the baselines, the cost, the resources."""
    example = study.trial_config(study.example())
    searched = {entry.path for entry in study.searched}
    sampled = len(grid(study)) if study.strategy == "grid" else (study.trials if study.searched else 0)
    confirmed = (min(study.confirm_top, sampled) + len(study.baselines)) * study.confirm_seeds
    epochs = example.kwargs("train")["epochs"]
    seeds = len(study.seeds)
    runs = (sampled + len(study.baselines)) * seeds + confirmed
    return {
        "study": study.study,
        "objective": dict(study.objective),
        "strategy": study.strategy,
        "strategy_meaning": STRATEGIES[study.strategy].meaning + _scheduler(study),
        "seed": study.seed,
        "seeds": list(study.seeds),
        "controls": study.controls if study.searched else 0,
        "controls_meaning": _controls(study),
        "constraints": {name: sides for name, sides in constraints(study).items()},
        "budget": {"hours": study.budget_hours, "device_hours": study.budget_device_hours},
        "warm_start": list(study.warm_start),
        "fixed": {k: v for k, v in example.items if k not in searched},
        "search": {e.path: _searched(e) for e in study.searched},
        "baseline": {name: dict(items) for name, items in study.baselines},
        "cost": {
            "sampled_trials": sampled * seeds,
            "baseline_trials": len(study.baselines) * seeds,
            "confirm_trials": confirmed,
            "epochs_at_most": runs * epochs,
        },
        "resources_per_trial": {
            "workers": study.resources.workers,
            "cpus_per_worker": study.resources.cpus_per_worker,
            "gpus_per_worker": study.resources.gpus_per_worker,
            "concurrent": study.resources.concurrent or "as many as fit",
        },
    }


def _scheduler(study: StudyConfig) -> str:
    """What the strategy's scheduler does in this study, in its epochs."""
    scheduler = STRATEGIES[study.strategy].scheduler
    if not scheduler or not study.searched:
        return ""
    if scheduler == "asha":
        at = ", ".join(map(str, study.rungs))
        return f"; ASHA: at epochs {at}, or the next evaluation, only the best 1 in {REDUCTION} of those so far go on"
    if scheduler == "hyperband":
        brackets = ", ".join(
            f"{size} trials ({f'cut at {_epochs(rungs)}' if rungs else 'no cut'})" for size, rungs in study.brackets
        )
        return f"; HyperBand: brackets of {brackets}; from each cut the best 1 in {REDUCTION} go on"
    return (
        f"; PBT: every {study.round_epochs} epochs the worst {WORST:.0%} of the population are replaced by moved "
        f"copies of the best {WORST:.0%}"
    )


def _epochs(at: list[int]) -> str:
    return f"epoch{'s' if len(at) > 1 else ''} {', '.join(map(str, at))}"


def _controls(study: StudyConfig) -> str:
    few = "too few to say how well early results agree with the end; the report wants 20"
    if not STRATEGIES[study.strategy].scheduler:
        return "drawn at random; nothing is stopped early"
    return f"drawn at random and never stopped{'' if study.controls >= 20 else ': ' + few}"


def _searched(entry: Any) -> str:
    domain = entry.domain
    text = str(domain) if isinstance(domain, Choice) else _domain(domain)
    return text + "".join(f", when {path} is {' or '.join(map(str, values))}" for path, values in entry.when)


def describe(resolved: dict[str, Any]) -> str:
    """`resolved` for people."""
    lines = [
        f"study       {resolved['study']}",
        "objective   " + ", ".join(f"{mode} {name}" for name, mode in resolved["objective"].items()),
        f"strategy    {resolved['strategy']}: {resolved['strategy_meaning']}",
        f"seed        {resolved['seed']}; each configuration runs on {', '.join(map(str, resolved['seeds']))}",
        f"controls    {resolved['controls']} of the trials, {resolved['controls_meaning']}",
        *(
            f"constraint  {name} {side} {b:g}"
            for name, ends in resolved["constraints"].items()
            for side, b in ends.items()
        ),
        *(f"budget      {limit:g} {name.replace('_', '-')}" for name, limit in resolved["budget"].items() if limit),
        *(f"warm start  {path}" for path in resolved["warm_start"]),
        "search",
        *(f"  {path:28} {text}" for path, text in resolved["search"].items()),
        "baselines, run first; the first is the default",
        *(
            f"  {name:28} " + ", ".join(f"{k}={_shown(v)}" for k, v in point.items())
            for name, point in resolved["baseline"].items()
        ),
        "fixed",
        *(f"  {path:28} {_shown(value)}" for path, value in resolved["fixed"].items()),
    ]
    cost = resolved["cost"]
    lines.append(
        f"cost        {cost['sampled_trials']} sampled + {cost['baseline_trials']} baseline + "
        f"{cost['confirm_trials']} confirming trials, at most {cost['epochs_at_most']} epochs"
    )
    need = resolved["resources_per_trial"]
    of_one = f"{need['cpus_per_worker']:g} CPU, {need['gpus_per_worker']:g} GPU"
    each = f"{need['workers']} workers x ({of_one})" if need["workers"] > 1 else of_one
    lines.append(f"resources   {each} per trial; trials at once: {need['concurrent']}")
    return "\n".join(lines)
