"""How alike the frozen encoders find two training samples, what a threshold removes, where the true caption ranks."""

import math

import numpy as np
import pandas as pd
from markupsafe import Markup

from mmts_ray import results

from .. import commands, sweep_plots
from ..choice import candidates, choose
from ..finding import Alt, Finding, Refusal
from ..page import Column, beside, figure, table
from ..statistics import Interval, t_interval
from ..tables import Study
from ..wording import count, number, percent, significant

NAME = "Similarities"
THRESHOLD = "loss.filter_threshold"
ABOVE = 0.8  # what the KDMCSE paper looks at when no threshold is searched
RANKS = (1, 10, 100, 200)
MOST_ARMS = 10


def similarities(study: Study) -> Finding:
    """Histogram of teacher cosines from meta.json; share of pairs above each threshold; ranks of confirmed runs."""
    kept = ((study.meta.get("data") or {}).get("health") or {}).get("similarities")
    if not kept:
        needs = (
            "Needs the cosines of the training data, which meta.json of an older study lacks; more trials write them:"
        )
        return Finding(NAME, "no cosines", refusal=Refusal(needs, commands.extend(study)))
    bars = _bars(kept)
    thresholds = _thresholds(study)
    removed = pd.DataFrame(
        [(series, t, _above(bars, series, t)) for t in thresholds for series in dict.fromkeys(bars["series"])],
        columns=["series", "threshold", "share"],
    )
    ranks = _ranks(study)
    captions = removed[removed["series"] == "captions"].iloc[0]
    sentences: list[Markup | str] = [
        Markup("Two random training samples without a common id; cosines of the frozen encoders, {}.").format(
            count(int(kept["images_compared"]), "image")
        ),
        Markup("Removed as false negatives by a threshold on captions: {}.").format(
            Markup(", ").join(
                Markup("{} of the pairs at {}").format(
                    number(row.share, _share(row.share)), significant(row.threshold, 3)
                )
                for row in removed[removed["series"] == "captions"].itertuples()
            )
        ),
    ]
    if len(ranks):
        top = ranks.iloc[0]
        said = "{}: the true caption of a test image is among the first {} for {} % of the images, beyond {} for {} %."
        sentences.append(
            Markup(said).format(
                top["arm"], RANKS[2], _percent(top, "within_100"), RANKS[3], _percent(top, "beyond_200")
            )
        )
    return Finding(
        title=Markup("A threshold of {} on captions removes {} of the negatives").format(
            significant(float(captions["threshold"]), 3), number(captions["share"], _share(float(captions["share"])))
        ),
        used=f"meta.json, {count(len(ranks), 'setting')} with kept ranks",
        frames={"cosines": bars, "removed": removed, "ranks": ranks},
        numbers={"images_compared": kept["images_compared"], "thresholds": thresholds},
        sentences=tuple(sentences),
        alts={"cosines": _alt(bars, thresholds)},
    )


def draw(study: Study, finding: Finding) -> Markup:
    drawing = sweep_plots.histogram(
        finding.frames["cosines"],
        x_label="cosine of two training samples",
        y_label="share of pairs (log)",
        marks=finding.numbers["thresholds"],
    )
    drawn = beside(figure(drawing, "similarities-0", finding.alts["cosines"]), finding.sentences)
    ranks = finding.frames["ranks"]
    if ranks.empty:
        return drawn
    columns = [Column("arm", "Setting", lambda row: row["arm"], False)]
    columns += [
        Column(f"within_{k}", f"Among the first {k}, %", lambda row, k=k: _percent(row, f"within_{k}"))  # type: ignore[misc]
        for k in RANKS[:3]
    ]
    columns.append(Column("beyond_200", "Beyond 200, %", lambda row: _percent(row, "beyond_200")))
    columns.append(Column("n", "Runs", lambda row: str(int(row["n"]))))
    return drawn + table("similarities.ranks", ranks, columns, label="Rank of the true caption")


def _bars(kept: dict) -> pd.DataFrame:
    rows = []
    for series in ("captions", "images"):
        shares = kept.get(series) or []
        edges = np.linspace(-1, 1, len(shares) + 1)
        rows += [(series, *pair, share) for *pair, share in zip(edges[:-1], edges[1:], shares)]
    frame = pd.DataFrame(rows, columns=["series", "low", "high", "share"]).round({"low": 6, "high": 6})
    inside = frame.groupby("low")["share"].transform("max") > 0  # bins that nobody reaches are left out
    return frame[inside].reset_index(drop=True)


def _thresholds(study: Study) -> list[float]:
    """Thresholds of the settings with fresh seeds, highest first; what the paper looks at when there is none."""
    configs = [study.configs.get(str(c.runs["trial"].iloc[0]), {}) for c in candidates(study)]
    found = {float(c[THRESHOLD]) for c in configs if isinstance(c.get(THRESHOLD), (int, float))}
    return sorted(found, reverse=True) or [ABOVE]


def _above(bars: pd.DataFrame, series: str, threshold: float) -> float:
    """Share of pairs above a threshold; inside a bin, in proportion."""
    own = bars[bars["series"] == series]
    part = ((own["high"] - threshold) / (own["high"] - own["low"])).clip(0, 1)
    return float((part * own["share"]).sum())


def _ranks(study: Study) -> pd.DataFrame:
    """Per setting, the share of test images whose true caption is among the first k: mean and interval over seeds."""
    chosen = choose(study)
    order = [c for c in (chosen.default, chosen.winner, chosen.runner_up, *chosen.others) if c is not None]
    rows = []
    for candidate in order[:MOST_ARMS]:
        shares = [s for s in (_shares(study, str(t)) for t in candidate.done["trial"]) if s is not None]
        if not shares:
            continue
        row: dict[str, object] = {"arm": candidate.label, "n": len(shares)}
        for key in shares[0]:
            level = t_interval(np.array([s[key] for s in shares]))
            row |= {key: level.mean, f"{key}_lo": level.lo, f"{key}_hi": level.hi}
        rows.append(row)
    return pd.DataFrame(rows)


def _shares(study: Study, trial: str) -> dict[str, float] | None:
    kept = results.read_ranks(study.path, trial)
    if kept is None or "i2t" not in kept:
        return None
    asked = kept.loc[kept["i2t"] >= 0, "i2t"].to_numpy()
    if not len(asked):
        return None
    return {
        **{f"within_{k}": float((asked < k).mean()) for k in RANKS[:3]},
        "beyond_200": float((asked >= RANKS[3]).mean()),
    }


def _percent(row, key: str) -> Markup:
    level = Interval(row[key], row[f"{key}_lo"], row[f"{key}_hi"], int(row["n"]))
    ends = f" [{100 * level.lo:.1f}, {100 * level.hi:.1f}]" if math.isfinite(level.lo) else ""
    return Markup("{}{}").format(number(level.mean, f"{100 * level.mean:.1f}"), ends)


def _share(share: float) -> str:
    return percent(share) if share >= 0.1 or share == 0 else f"{significant(100 * share)}\u00a0%"


def _alt(bars: pd.DataFrame, thresholds: list[float]) -> Alt:
    parts = ["x: cosine, linear; y: share of pairs, logarithmic."]
    for series, own in bars.groupby("series", sort=False):
        reach = own[own["share"] > 0]
        ends = significant(float(reach["low"].min()), 3), significant(float(reach["high"].max()), 3)
        parts.append(f"{series}: from {ends[0]} to {ends[1]}.")
    parts.append(f"Dashed: {', '.join(significant(t, 3) for t in thresholds)}.")
    return Alt("Cosines of two training samples", " ".join(parts))
