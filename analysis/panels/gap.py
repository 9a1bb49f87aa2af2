"""Does closing the modality gap cost retrieval? Modality distance against the objective, over trials and settings."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pandas as pd
from markupsafe import Markup

from .. import commands, plots
from ..choice import Candidate, candidates, choose
from ..finding import Alt, Finding, Refusal
from ..page import Column, beside, figure, table
from ..statistics import Interval, difference, rank_correlation, t_interval, worst_shown
from ..tables import Metric, Study, column
from ..wording import change, count, fixed, listing, number, points, score, significant

NAME = "Modality gap"
DISTANCE = "val_modality_distance"
MOST_CROSSES = 9  # more of them hide each other, and the trials
MOST_LISTED = 40  # rows; the JSON twin has all
NEEDED = 10  # trials below which a rank correlation has no interval
SETTINGS, SEEDS = 2, 2  # settings with as many fresh seeds: what there is to compare without searched trials
ROLES = {"win": "winner", "second": "runner-up", "default": "default"}  # colour -> name in the picture


def gap(study: Study) -> Finding:
    """Finished trials as dots, settings with fresh seeds as crosses, all on validation; either is enough."""
    metric, distance = study.objective, study.metric(DISTANCE)
    x = pd.to_numeric(column(study.searched, distance.column), errors="coerce")
    trials = study.searched.assign(x=x)[x.notna()]
    settings = _settings(study, distance)
    compared = settings[settings["n"] >= SEEDS]
    enough = len(trials) >= NEEDED
    used = [count(len(trials), "finished trial")] if len(trials) or settings.empty else []
    used += [f"{count(len(settings), 'setting')} with fresh seeds"] if len(settings) else []
    if not enough and len(compared) < SETTINGS:
        return Finding(NAME, ", ".join(used), refusal=_refusal(study, len(trials), len(compared)))
    r = rank_correlation(trials["x"].to_numpy(), trials["score"].to_numpy()) if enough else None
    end = worst_shown(trials["score"].to_numpy(), metric.better) if len(trials) else math.nan
    outside = int((trials["score"] * metric.better < end * metric.better).sum())
    moved = _moved(study, distance)
    said: list[Markup | str] = []
    if enough:
        said.append(
            f"Over {count(len(trials), 'finished trial')}: {_in_words(r)}. "
            "The trials were not drawn to test this, so it is a description."
        )
    else:
        said.append(f"A link over trials is not told: it takes {NEEDED} searched trials, {_there(len(trials))}.")
    if moved is not None:
        said.append(Markup("Winner minus default: {} in modality distance.").format(change(moved, distance)))
    if outside:
        said.append(f"{count(outside, 'trial')} beyond the axis.")
    said += _about_settings(settings, compared, metric)
    return Finding(
        title=_title(r, metric) if enough else _of_settings(compared, metric, distance),
        used=", ".join(used),
        frames={
            "trials": trials[["trial", "x", "score"]],
            "confirmed": settings,
            "listed": settings.head(MOST_LISTED),
        },
        numbers={
            "rank_correlation": asdict(r) if r else None,
            "difference": asdict(moved) if moved else None,
            "worst_shown": end,
            "outside": outside,
        },
        sentences=tuple(said),
        alts={"gap": Alt("Modality distance against score", _alt(trials, settings, r, metric, enough))},
    )


def draw(study: Study, finding: Finding) -> Markup:
    metric, distance = study.objective, study.metric(DISTANCE)
    trials, settings = finding.frames["trials"], finding.frames["confirmed"]
    trials = trials[trials["score"] * metric.better >= finding.numbers["worst_shown"] * metric.better]
    crosses = _crosses(settings)
    drawing = plots.trade_off(
        trials.assign(shown=trials["score"] * metric.scale),
        crosses.assign(
            label=[ROLES.get(role, label) for role, label in zip(crosses["role"], crosses["label"])],
            shown=crosses["score"] * metric.scale,
            lo=crosses["lo"] * metric.scale,
            hi=crosses["hi"] * metric.scale,
        ),
        x_label="modality distance",
        metric=metric.axis,
        note=f"better: {'up' if metric.better > 0 else 'down'} and left",
    )
    drawn = beside(figure(drawing, "gap-0", finding.alts["gap"]), finding.sentences)
    if settings.empty:
        return drawn

    def level(key: str, of: Metric) -> Any:
        ends = {"x": ("x_lo", "x_hi"), "score": ("lo", "hi")}[key]

        def show(row: Mapping[str, Any]) -> Markup:
            return score(_interval(row, (key, *ends)), of, with_unit=False)

        return show

    def moved(key: str, of: Metric) -> Any:
        def show(row: Mapping[str, Any]) -> Markup | str:
            if row[key] is None:
                return "the default" if row["role"] == "default" else "not compared"
            text = change(_interval(row, (key, f"{key}_lo", f"{key}_hi")), of)
            return Markup("<b>{}</b>").format(text) if row[f"{key}_lo"] > 0 or row[f"{key}_hi"] < 0 else text

        return show

    unit = f"{',' if metric.share else ''}{points(metric)}"
    columns = [
        Column("label", "Setting", lambda row: row["label"], False),
        Column("x", "Modality distance", level("x", distance)),
        Column("x_diff", "Minus the default's", moved("x_diff", distance)),
        Column("score", metric.axis, level("score", metric)),
        Column("diff", f"Minus the default's{unit}", moved("diff", metric)),
        Column("n", "Seeds", lambda row: str(row["n"])),
    ]
    return drawn + table("gap.listed", finding.frames["listed"], columns, label="Settings with fresh seeds")


def _settings(study: Study, distance: Metric) -> pd.DataFrame:
    """Settings with fresh seeds, the winner, runner-up and default first: both scores, and both against the default."""
    chosen, metric = choose(study), study.objective
    keys = {c.key: role for role, c in zip(ROLES, (chosen.winner, chosen.runner_up, chosen.default)) if c is not None}
    found = [c for c in candidates(study) if len(c.values(distance.column)) and len(c.values(metric.column))]
    rows = []
    for candidate in found:
        x, y = t_interval(candidate.values(distance.column)), t_interval(candidate.values(metric.column))
        row = {"label": candidate.label, "role": keys.get(candidate.key, "dots"), "n": min(x.n, y.n)}
        row |= {"x": x.mean, "x_lo": x.lo, "x_hi": x.hi, "score": y.mean, "lo": y.lo, "hi": y.hi}
        for key, of in (("x_diff", distance), ("diff", metric)):
            row |= _against(candidate, chosen.default, of, key, max(1, len(found) - 1))
        rows.append(row)
    names = ["label", "role", "n", "x", "x_lo", "x_hi", "score", "lo", "hi"]
    names += [f"{key}{end}" for key in ("x_diff", "diff") for end in ("", "_lo", "_hi")]
    order = {role: place for place, role in enumerate((*ROLES, "dots"))}
    frame = pd.DataFrame(rows, columns=names)
    return frame.sort_values(["role", "x"], key=lambda s: s.map(order) if s.name == "role" else s, ignore_index=True)


def _against(candidate: Candidate, default: Candidate | None, of: Metric, key: str, looks: int) -> dict[str, float]:
    d = None
    if default is not None and candidate.key != default.key:
        d = difference(candidate.values(of.column), default.values(of.column), comparisons=looks)
    ends = (d.mean, d.lo, d.hi) if d is not None else (math.nan,) * 3
    return dict(zip((key, f"{key}_lo", f"{key}_hi"), ends))


def _refusal(study: Study, trials: int, settings: int) -> Refusal:
    """What there is to compare is missing: fresh seeds, or searched trials where the study searches."""
    needs = (
        f"Needs {SETTINGS} settings with {SEEDS} fresh seeds each that report {DISTANCE}, {_there(settings)}; or "
        f"{NEEDED} searched trials that do, {_there(trials)}."
    )
    fills = study.trials["kind"].isin(["baseline", "confirm"]).any()
    return Refusal(f"{needs} This fills it:", commands.confirm(study) if fills else commands.extend(study))


def _there(n: int) -> str:
    return "none is there" if n == 0 else f"{n} {'is' if n == 1 else 'are'} there"


def _moved(study: Study, distance: Metric) -> Interval | None:
    chosen = choose(study)
    if chosen.winner is None or chosen.default is None:
        return None
    return difference(chosen.winner.values(distance.column), chosen.default.values(distance.column))


def _crosses(settings: pd.DataFrame) -> pd.DataFrame:
    """The named settings, which come first, and others up to what a picture holds."""
    return settings.head(MOST_CROSSES)


def _about_settings(settings: pd.DataFrame, compared: pd.DataFrame, metric: Metric) -> list[str]:
    if settings.empty:
        return []
    hidden, further = len(settings) - len(_crosses(settings)), max(0, len(settings) - MOST_LISTED)
    rest = f" {count(hidden, 'setting')} not drawn." if hidden else ""
    rest += f" {count(further, 'setting')} only in the JSON file." if further else ""
    said = [f"Crosses: 95 % intervals over fresh seeds, validation split.{rest}"]
    looks = len(settings) - 1
    if compared["x_diff"].notna().any():
        said.append(
            f"Differences to the default are paired by seed and widened for {count(looks, 'look')} (Bonferroni); bold: "
            "the interval excludes 0."
        )
    return said


def _in_words(r: Interval | None) -> str:
    if r is None:
        return "one of the two does not vary"
    return f"rank correlation {fixed(r.mean, 2)} [{fixed(r.lo, 2)}, {fixed(r.hi, 2)}]"


def _title(r: Interval | None, metric: Metric) -> str:
    if r is None or r.lo <= 0 <= r.hi:
        return f"No established link between modality distance and {metric.label}"
    direction = ("larger" if r.mean > 0 else "smaller", "higher")
    return f"A {direction[0]} modality distance goes with {direction[1]} {metric.label} among the trials"


def _of_settings(settings: pd.DataFrame, metric: Metric, distance: Metric) -> Markup:
    """What settings with fresh seeds show: which close the gap against the default, and what that costs."""
    others = settings[settings["x_diff"].notna()]
    if others.empty:
        low, high = settings.loc[settings["x"].idxmin()], settings.loc[settings["x"].idxmax()]
        shown = [number(row["x"], significant(row["x"], 3)) for row in (low, high)]
        text = "Modality distances run from {} ({}) to {} ({})"
        return Markup(text).format(shown[0], low["label"], shown[1], high["label"])
    closer, wider = others[others["x_diff_hi"] < 0], others[others["x_diff_lo"] > 0]
    if closer.empty:
        if wider.empty:
            return Markup("No setting changes the modality distance of the default beyond noise")
        return Markup("No setting closes the modality gap of the default; {} of {} {}").format(
            len(wider), len(others), "widens it" if len(wider) == 1 else "widen it"
        )
    ends = metric.better * closer[["diff_lo", "diff_hi"]].to_numpy()
    worse, better = int((ends.max(1) < 0).sum()), int((ends.min(1) > 0).sum())
    sizes = [
        number(-v, significant(-v)) for v in sorted({closer["x_diff"].max(), closer["x_diff"].min()}, reverse=True)
    ]
    if len(closer) == 1:
        costs = [f"it {'loses' if worse else 'gains'} {metric.label}"] if worse or better else []
    else:
        costs = [f"{n} of them {verb if n > 1 else verb + 's'} {metric.label}"
                 for n, verb in ((worse, "lose"), (better, "gain")) if n]  # fmt: skip
    return Markup("{} of {} {} the modality gap of the default by {}; {}").format(
        len(closer),
        count(len(others), "setting"),
        "closes" if len(closer) == 1 else "close",
        Markup(" to ").join(sizes),
        listing(costs) if costs else f"no change of {metric.label} is established",
    )


def _interval(row: Mapping[str, Any], keys: tuple[str, str, str]) -> Interval:
    mean, lo, hi = (math.nan if row[key] is None else row[key] for key in keys)
    return Interval(mean, lo, hi, int(row["n"]))


def _alt(trials: pd.DataFrame, settings: pd.DataFrame, r: Interval | None, metric: Metric, enough: bool) -> str:
    parts = [f"x: modality distance on validation, linear; y: {metric.axis}."]
    if len(trials):
        parts.append(f"{count(len(trials), 'finished trial')}{f', {_in_words(r)}' if enough else ''}.")
    if len(settings):
        parts.append(f"{count(len(_crosses(settings)), 'setting')} with 95 % intervals over fresh seeds.")
    for row in settings.itertuples():
        if row.role in ROLES and math.isfinite(row.x):
            name = ROLES[row.role].capitalize()
            parts.append(f"{name}: distance {significant(row.x, 3)}, {significant(row.score * metric.scale, 3)}.")
    return " ".join(parts)
