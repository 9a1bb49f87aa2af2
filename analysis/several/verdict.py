"""What several studies say together: whose winner leads on one data set, or what tuning gains over many."""

from typing import Any

import pandas as pd
from markupsafe import Markup

from .. import commands
from ..choice import FRESH_NEEDED, choose
from ..finding import Alt, Check, Finding, Refusal, check
from ..page import Axis, bar
from ..statistics import Difference, Interval, difference, mean_over_given, mean_over_new, t_interval
from ..tables import Study
from ..wording import change, count, fixed, listing, named, score
from .studies import Several, ranked_winners, scores, winner_of


def verdict(several: Several) -> Finding:
    """Winner and default of each study on fresh seeds; the two best apart, or the mean gain over the data sets."""
    frame = pd.DataFrame([row for label, study in several.each() for row in _rows(several, label, study)])
    poor = [
        (label, study)
        for label, study in several.each()
        if len(scores(winner_of(study), several.metric)) < FRESH_NEEDED
    ]
    finding = _one_data_set if several.same_data else _data_sets
    title, sentences, numbers = finding(several, frame)
    refusal = None
    if poor:
        needs = Markup("{} {} fewer than {} fresh seeds of a winner:").format(
            listing([label for label, _ in poor]), "has" if len(poor) == 1 else "have", FRESH_NEEDED
        )
        title = Markup("No verdict yet: {}").format(str(needs).rstrip(":"))
        refusal = Refusal(needs, "\n".join(commands.confirm(study) for _, study in poor))
    where = "the same data" if several.same_data else count(several.data_sets, "data set")
    return Finding(
        title=title,
        used=f"{count(len(several.studies), 'study', 'studies')}, {where}, fresh seeds only",
        frames={"scores": frame},
        numbers={**numbers, "case": "refused" if poor else numbers["case"], "same_data": several.same_data},
        sentences=() if poor else tuple(sentences),
        alts={"scores": Alt("Winners of the studies", _alt(several, frame))},
        refusal=refusal,
        checks=tuple(_checks(several)),
    )


def draw(several: Several, finding: Finding) -> Markup:
    """Interval rows on one shared axis."""
    frame, metric = finding.frames["scores"], several.metric
    drawn = frame[frame["n"] > 0]
    if drawn.empty:
        return Markup("")
    ends = pd.concat([drawn["mean"], drawn["lo"], drawn["hi"]]).dropna() * metric.scale
    pad = max((ends.max() - ends.min()) * 0.05, 0.05)
    axis = Axis(ends.min() - pad, ends.max() + pad)
    best = (drawn["mean"] * metric.better).where(drawn["role"] == "winner").idxmax()
    rows = []
    for place, row in enumerate(drawn.itertuples()):
        level = Interval(row.mean, row.lo, row.hi, int(row.n))
        text = Markup('{} <span class="ci">n = {}</span>').format(score(level, metric, with_unit=False), row.n)
        role = "default" if row.role == "default" else "winner" if drawn.index[place] == best else "runner-up"
        several_n = row.n > 1
        rows.append(
            {
                "name": f"{row.study}, {row.role} {row.label}",
                "value": text,
                "role": role,
                "lo": axis(row.lo * metric.scale) if several_n else None,
                "hi": axis(row.hi * metric.scale) if several_n else None,
                "mean": axis(row.mean * metric.scale),
            }
        )
    alt, digits = finding.alts["scores"], 1 if metric.share else 3
    return bar("verdict", rows=rows, dashed=None, label=metric.axis, low=fixed(axis.low, digits),
               high=fixed(axis.high, digits), title=alt.title, desc=alt.desc)  # fmt: skip


def gains(several: Several) -> dict[str, Difference]:
    """Winner minus default of each study that has both, paired by seed."""
    found = {}
    for label, study in several.each():
        chosen = choose(study)
        d = difference(scores(chosen.winner, several.metric), scores(chosen.default, several.metric))
        if d is not None:
            found[label] = d
    return found


def _rows(several: Several, label: str, study: Study) -> list[dict[str, Any]]:
    chosen, rows = choose(study), []
    for role, candidate in (("winner", chosen.winner), ("default", chosen.default)):
        level = t_interval(scores(candidate, several.metric))
        who = candidate.label if candidate is not None else "none"
        rows.append(
            {
                "study": label,
                "role": role,
                "label": who,
                "mean": level.mean,
                "lo": level.lo,
                "hi": level.hi,
                "n": level.n,
            }
        )
    return rows


def _one_data_set(several: Several, frame: pd.DataFrame) -> tuple[Markup, list[Markup], dict[str, Any]]:
    """The winner with the best validation score against the best of the other studies."""
    metric, ranked = several.metric, ranked_winners(several)
    if len(ranked) < 2:
        return Markup("Fewer than two studies have a winner"), [], {"case": "refused", "difference": None}
    (first, best), (second, other) = ranked[:2]
    level, lead = t_interval(scores(best, metric)), difference(scores(best, metric), scores(other, metric))
    numbers: dict[str, Any] = {"case": "not established", "first": first, "second": second, "difference": None}
    if lead is None:
        return Markup("The winners of {} and {} cannot be compared").format(first, second), [], numbers
    numbers["difference"] = {"mean": lead.mean, "lo": lead.lo, "hi": lead.hi, "n": lead.n, "paired": lead.paired}
    seeds = f"{count(lead.n, 'fresh seed')} each"
    if lead.established:
        numbers["case"] = "established" if metric.better * lead.mean > 0 else "worse"
        digits = 1 if metric.share else 3
        shown = Markup("{} reaches {}, {} against {}, on {}.")
        title = shown.format(first, named(level.mean, metric, digits, "b"),
                             change(lead, metric, with_unit=True), second, seeds)  # fmt: skip
        if numbers["case"] == "worse":
            title = Markup("{} led on validation and is behind: {} against {}, on {}.").format(
                first, change(lead, metric, with_unit=True), second, seeds
            )
    else:
        title = Markup("No study leads by more than noise: {} differs from {} by {}, on {}.").format(
            first, second, change(lead, metric, with_unit=True), seeds
        )
    paired = "paired by seed" if lead.paired else "seeds not shared, unpaired"
    note = f"The two best by validation are compared on the {metric.split or 'reported'} split, {paired}."
    return title, [Markup("{}").format(note)], numbers


def _data_sets(several: Several, frame: pd.DataFrame) -> tuple[Markup, list[Markup], dict[str, Any]]:
    """What tuning gains on average over the data sets at hand, and on others like them when there are three."""
    metric, found = several.metric, gains(several)
    given, new = mean_over_given(list(found.values())), mean_over_new(list(found.values()))
    numbers: dict[str, Any] = {"case": "not established", "given": _dict(given), "new": _dict(new), "n": len(found)}
    if given is None:
        nobody = Markup("No study has both a winner and a default with fresh seeds")
        return nobody, [], {**numbers, "case": "refused"}
    if given.lo > 0 or given.hi < 0:
        numbers["case"] = "established" if metric.better * given.mean > 0 else "worse"
    where = f"on average over these {count(len(found), 'data set')}"
    established = numbers["case"] != "not established"
    verb = "Tuning changes" if established else "Tuning does not change"
    beyond = "" if established else " beyond noise"
    title = Markup("{} {} {}{}: {}.").format(verb, metric.label, where, beyond, change(given, metric, with_unit=True))
    said = []
    if new is None:
        text = "It says nothing about other data: {} at hand, 3 are needed for that."
        said.append(Markup(text).format(count(len(found), "data set")))
    else:
        text = "On another data set like these: {}, from {}."
        said.append(Markup(text).format(change(new, metric, with_unit=True), count(new.n, "data set")))
    return title, said, numbers


def _dict(interval: Interval | None) -> dict[str, float] | None:
    if interval is None:
        return None
    return {"mean": interval.mean, "lo": interval.lo, "hi": interval.hi, "n": interval.n}


def _alt(several: Several, frame: pd.DataFrame) -> str:
    parts = [f"{several.metric.axis} on fresh seeds, linear axis."]
    for row in frame[frame["n"] > 0].itertuples():
        level = Interval(row.mean, row.lo, row.hi, int(row.n))
        parts.append(f"{row.study}, {row.role}: {score(level, several.metric, with_unit=False).striptags()}.")
    return " ".join(parts)


def _checks(several: Several) -> list[Check]:
    studies = several.studies
    batches = {float(b) for s in studies for b in s.trials.loc[s.trials["state"] == "done", "global_batch"].dropna()}
    versions = {str((s.meta.get("versions") or {}).get("mmts_ray")) for s in studies}
    commits = {str((s.meta.get("git") or {}).get("commit")) for s in studies}
    sizes = {label: int((s.trials["kind"] == "search").sum()) for label, s in several.each()}
    splits = {s.reported.key for s in studies}
    return [
        check(
            "all studies trained with one global batch", "changes", several.same_data and len(batches) > 1,
            "The studies differ in global batch: {batches}.",
            "A contrastive loss depends on the batch: what is compared is loss and batch together.",
            batches=listing([f"{b:g}" for b in sorted(batches)]), size=len(batches),
        ),
        check(
            "all studies report on one split", "changes", len(splits) > 1, "Some studies lack test scores.",
            "Their validation scores are compared, which chose the winners.", size=len(splits),
        ),
        check(
            "all studies had the same number of trials", "limits", several.same_data and len(set(sizes.values())) > 1,
            "The studies had different budgets: {sizes}.", "See equal budget for what the same number would give.",
            sizes=listing([f"{label} {count(n, 'trial')}" for label, n in sizes.items()]),
            size=len(set(sizes.values())),
        ),
        check(
            "all studies ran the same code", "record", len(commits) > 1 or len(versions) > 1,
            "The studies ran different versions of the code.", "Their own reports name them under Reproduce.",
            size=len(commits),
        ),
    ]  # fmt: skip
