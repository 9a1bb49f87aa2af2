"""Does closing the modality gap cost retrieval? Modality distance against the objective."""

import math
from dataclasses import asdict

import pandas as pd
from markupsafe import Markup

from .. import commands, plots
from ..choice import candidates, choose
from ..finding import Alt, Finding, Refusal
from ..page import beside, figure
from ..statistics import Interval, difference, rank_correlation, t_interval, worst_shown
from ..tables import Metric, Study, column
from ..wording import change, count, fixed, significant

DISTANCE = "val_modality_distance"
MOST_OTHERS = 6
NEEDED = 10  # trials below which a rank correlation has no interval
ROLES = {"win": "winner", "second": "runner-up", "default": "default"}  # colour -> name in the picture


def gap(study: Study) -> Finding:
    """Finished trials as dots, configurations with fresh seeds as crosses, all on validation."""
    metric, distance = study.objective, study.metric(DISTANCE)
    x = pd.to_numeric(column(study.searched, distance.column), errors="coerce")
    trials = study.searched.assign(x=x)[x.notna()]
    if len(trials) < NEEDED:
        needs = f"Needs {NEEDED} finished trials that report {DISTANCE}; {len(trials)} do. More trials fill it:"
        refused = Refusal(needs, commands.extend(study))
        return Finding("Modality gap", count(len(trials), "finished trial"), refusal=refused)
    confirmed = _confirmed(study, distance)
    r = rank_correlation(trials["x"].to_numpy(), trials["score"].to_numpy())
    sentences: list[Markup | str] = [
        f"Over {count(len(trials), 'finished trial')}: {_in_words(r)}. "
        "The trials were not drawn to test this, so it is a description."
    ]
    chosen, moved = choose(study), None
    if chosen.winner and chosen.default:
        moved = difference(chosen.winner.values(distance.column), chosen.default.values(distance.column))
    if moved is not None:
        sentences.append(Markup("Winner minus default: {} in modality distance.").format(change(moved, distance)))
    end = worst_shown(trials["score"].to_numpy(), metric.better)
    outside = int((trials["score"] * metric.better < end * metric.better).sum())
    if outside:
        sentences.append(f"{count(outside, 'trial')} beyond the axis.")
    if len(confirmed):
        hidden = len(confirmed) - len(_crosses(confirmed))
        rest = f" {count(hidden, 'setting')} with fresh seeds not drawn." if hidden else ""
        sentences.append(f"Crosses: 95 % intervals over fresh seeds, validation split.{rest}")
    return Finding(
        title=_title(r, metric),
        used=count(len(trials), "finished trial"),
        frames={"trials": trials[["trial", "x", "score"]], "confirmed": confirmed},
        numbers={
            "rank_correlation": asdict(r) if r else None,
            "difference": asdict(moved) if moved else None,
            "worst_shown": end,
            "outside": outside,
        },
        sentences=tuple(sentences),
        alts={"gap": Alt("Modality distance against score", _alt(trials, confirmed, r, metric))},
    )


def draw(study: Study, finding: Finding) -> Markup:
    metric, trials, confirmed = study.objective, finding.frames["trials"], _crosses(finding.frames["confirmed"])
    trials = trials[trials["score"] * metric.better >= finding.numbers["worst_shown"] * metric.better]
    drawing = plots.trade_off(
        trials.assign(shown=trials["score"] * metric.scale),
        confirmed.assign(
            label=[ROLES.get(role, label) for role, label in zip(confirmed["role"], confirmed["label"])],
            shown=confirmed["score"] * metric.scale,
            lo=confirmed["lo"] * metric.scale,
            hi=confirmed["hi"] * metric.scale,
        ),
        x_label="modality distance",
        metric=metric.axis,
        note=f"better: {'up' if metric.better > 0 else 'down'} and left",
    )
    return beside(figure(drawing, "gap-0", finding.alts["gap"]), finding.sentences)


def _confirmed(study: Study, distance: Metric) -> pd.DataFrame:
    chosen = choose(study)
    keys = {c.key: role for role, c in zip(ROLES, (chosen.winner, chosen.runner_up, chosen.default)) if c is not None}
    rows = []
    for candidate in candidates(study):
        x, y = t_interval(candidate.values(distance.column)), t_interval(candidate.values(study.objective.column))
        if x.n and y.n:
            role = keys.get(candidate.key, "dots")
            rows.append((candidate.label, role, min(x.n, y.n), x.mean, x.lo, x.hi, y.mean, y.lo, y.hi))
    return pd.DataFrame(rows, columns=["label", "role", "n", "x", "x_lo", "x_hi", "score", "lo", "hi"])


def _crosses(confirmed: pd.DataFrame) -> pd.DataFrame:
    """The named configurations and a few others: more crosses than that hide each other."""
    named = confirmed["role"] != "dots"
    return confirmed[named | ((~named).cumsum() <= MOST_OTHERS)]


def _in_words(r: Interval | None) -> str:
    if r is None:
        return "one of the two does not vary"
    return f"rank correlation {fixed(r.mean, 2)} [{fixed(r.lo, 2)}, {fixed(r.hi, 2)}]"


def _title(r: Interval | None, metric: Metric) -> str:
    if r is None or r.lo <= 0 <= r.hi:
        return f"No established link between modality distance and {metric.label}"
    direction = ("larger" if r.mean > 0 else "smaller", "higher")
    return f"A {direction[0]} modality distance goes with {direction[1]} {metric.label} among the trials"


def _alt(trials: pd.DataFrame, confirmed: pd.DataFrame, r: Interval | None, metric: Metric) -> str:
    parts = [
        f"x: modality distance on validation, linear; y: {metric.axis}.",
        f"{count(len(trials), 'finished trial')}, {_in_words(r)}.",
    ]
    for row in confirmed.itertuples():
        if row.role in ROLES and math.isfinite(row.x):
            name = ROLES[row.role].capitalize()
            parts.append(f"{name}: distance {significant(row.x, 3)}, {significant(row.score * metric.scale, 3)}.")
    return " ".join(parts)
