"""Verdict: winner, runner-up and default on fresh seeds."""

import math
import shlex
from typing import Any

import pandas as pd
from markupsafe import Markup

from ..finding import Alt, Check, Finding, Refusal
from ..page import Axis, bar
from ..statistics import Difference, Interval, chance_of_better, difference, generator, seeds_to_resolve, t_interval
from ..tables import FRESH_NEEDED, Candidate, Chosen, Metric, Study, best_of_search, candidates, choose
from ..wording import (
    change,
    count,
    decimals,
    digits_of,
    duration,
    fixed,
    in_words,
    limits,
    number,
    points,
    scaled,
    score,
    significant,
    unit,
)

WIDE = 5  # with fewer seeds the interval is honest but wide
TOP, SEEDS = 3, 5  # what the confirm command asks for


def confirm_command(study: Study) -> str:
    """The command that makes fresh runs of the baselines and the best trials."""
    return f"mmts-ray confirm {shlex.quote(study.folder)} --top {TOP} --seeds {SEEDS}"


def extend_command(study: Study) -> str:
    """The command that adds as many trials as the study was asked for."""
    asked = study.meta.get("trials")
    return f"mmts-ray extend {shlex.quote(study.folder)} --trials {asked if isinstance(asked, int) and asked > 0 else 20}"


def verdict(study: Study) -> Finding:
    """Mean, interval and n of each on the reported metric, the paired difference, and one sentence."""
    chosen, metric = choose(study), study.reported
    rows = _rows(study, chosen, metric)
    scores = pd.DataFrame(rows, columns=["role", "label", "mean", "lo", "hi", "n", "diff", "diff_lo", "diff_hi"])
    winner, default = chosen.winner, chosen.default
    w = winner.values(metric.column) if winner else pd.Series(dtype=float)
    d = default.values(metric.column) if default else pd.Series(dtype=float)
    gain = difference(w, d) if len(w) >= FRESH_NEEDED and len(d) >= FRESH_NEEDED else None
    level = t_interval(w)
    case = _case(study, level.n, len(d), gain, metric)
    better = chance_of_better(gain, metric.better, generator(_seed(study), "verdict")) if gain else None
    sentence, more = _sentences(study, chosen, metric, case, level, gain, better)
    numbers: dict[str, Any] = {
        "case": case,
        "metric": metric.key,
        "direction": "min" if metric.better < 0 else "max",
        "winner": winner.label if winner else None,
        "default": default.label if default else study.default,
        "runner_up": chosen.runner_up.label if chosen.runner_up else None,
        "difference": _as_dict(gain),
        "chance_of_better": _as_dict(better),
        "seed_correlation": gain.correlation if gain else None,
        **_extra(chosen, metric, gain, level),
    }
    needs = None
    if case == "refused":
        needs = Refusal(_needs(study, chosen, metric), confirm_command(study))
    return Finding(
        title=sentence,
        used=_used(gain, level, metric),
        frames={"scores": scores},
        numbers=numbers,
        sentences=tuple(more),
        alts={"scores": Alt("Scores on fresh seeds", _alt(scores, metric))} if len(scores) else {},
        refusal=needs,
        checks=tuple(_checks(study, chosen, metric, gain)),
    )


def draw(study: Study, finding: Finding) -> Markup:
    """Interval rows on one shared axis, the default's mean dashed in each."""
    scores = finding.frames["scores"]
    drawn = scores[scores["n"] > 0]
    if drawn.empty:
        return Markup("")
    metric = study.reported
    ends = pd.concat([drawn["mean"], drawn["lo"], drawn["hi"]]).dropna() * scaled(metric)
    pad = max((ends.max() - ends.min()) * 0.05, 10.0 ** -finding.numbers["axis_digits"])
    axis = Axis(ends.min() - pad, ends.max() + pad)
    reference = drawn.loc[drawn["role"] == "default", "mean"]
    dashed = axis(float(reference.iloc[0]) * scaled(metric)) if len(reference) else None
    rows = [
        {
            "name": _row_name(row.role, row.label),
            "value": _row_value(row, metric),
            "role": row.role,
            "lo": axis(row.lo * scaled(metric)) if row.n > 1 else None,
            "hi": axis(row.hi * scaled(metric)) if row.n > 1 else None,
            "mean": axis(row.mean * scaled(metric)),
        }
        for row in drawn.itertuples()
    ]
    digits = finding.numbers["axis_digits"]
    label = f"{metric.label}{', %' if metric.share else ''}" + ("; dashed: default" if dashed is not None else "")
    alt = finding.alts["scores"]
    return bar(
        "verdict", rows=rows, dashed=dashed, label=label, low=fixed(axis.low, digits), high=fixed(axis.high, digits),
        title=alt.title, desc=alt.desc,
    )  # fmt: skip


def _seed(study: Study) -> int:
    seed = study.meta.get("seed")
    return seed if isinstance(seed, int) and seed >= 0 else 0


def _rows(study: Study, chosen: Chosen, metric: Metric) -> list[tuple[Any, ...]]:
    rows = []
    base = chosen.default.values(metric.column) if chosen.default else pd.Series(dtype=float)
    order = [("winner", chosen.winner), ("runner-up", chosen.runner_up), ("default", chosen.default)]
    for role, candidate in [*order, *(("baseline", other) for other in chosen.others[:4])]:
        if candidate is None:
            continue
        values = candidate.values(metric.column)
        level = t_interval(values)
        d = difference(values, base) if role != "default" and len(values) > 1 and len(base) > 1 else None
        ends = (d.mean, d.lo, d.hi) if d else (math.nan, math.nan, math.nan)
        rows.append((role, candidate.label, level.mean, level.lo, level.hi, level.n, *ends))
    return rows


def _case(study: Study, n: int, n_default: int, gain: Difference | None, metric: Metric) -> str:
    if n < FRESH_NEEDED or (study.default is not None and n_default < FRESH_NEEDED):
        return "refused"
    if study.default is None or gain is None:
        return "alone"
    if not gain.established:
        return "not established"
    return "established" if metric.better * gain.mean > 0 else "worse"


def _sentences(
    study: Study,
    chosen: Chosen,
    metric: Metric,
    case: str,
    level: Interval,
    gain: Difference | None,
    better: Interval | None,
) -> tuple[Markup, list[Markup]]:
    winner = chosen.winner
    if case == "refused" or winner is None:
        return _refused_title(study, chosen, metric), []
    who = _subject(winner)
    reaches = Markup("{} reaches {} {}").format(
        who,
        number(level.mean, f"{fixed(level.mean * scaled(metric), digits_of(level, metric))}{unit(metric)} {metric.label}", "b"),
        limits(level, metric, digits_of(level, metric)),
    )
    if gain is None:
        return Markup("{} on {}; the study has no default to compare with.").format(
            reaches, count(level.n, "fresh seed")
        ), []
    each = f"{gain.n} fresh seeds each"
    digits = digits_of(gain, metric)
    amount = number(gain.mean, f"{fixed(abs(gain.mean) * scaled(metric), digits)}{points(metric)}", "b")
    span = limits(gain, metric, digits, flip=gain.mean < 0)
    side = "above" if gain.mean > 0 else "below"
    more = []
    if case == "established":
        title = Markup("{}, {} {} {} the default, on {}.").format(reaches, amount, span, side, each)
    elif case == "worse":
        title = Markup("The default is better: tuning chose a setting {} {} {} it, on {}.").format(
            amount, span, side, each
        )
    else:
        title = Markup("No setting beats the default by more than noise: {} is {}{} from it, on {}.").format(
            winner.label, change(gain, metric), points(metric), each
        )
        wanted = gain.half / 2
        seeds = seeds_to_resolve(gain.sd, wanted) if gain.sd > 0 else None
        if seeds:
            more.append(
                Markup("{} seeds resolve differences of {}{}; to resolve half of that, {} seeds each are needed.").format(
                    in_words(gain.n),
                    number(gain.half, significant(gain.half * scaled(metric))),
                    points(metric),
                    number(seeds, seeds),
                )
            )
    if better is not None:
        more.append(
            Markup("It would beat the default in {} of 100 {} [{}, {}].").format(
                number(better.mean, fixed(100 * better.mean, 0)),
                "paired reruns" if gain.paired else "reruns",
                fixed(100 * better.lo, 0),
                fixed(100 * better.hi, 0),
            )
        )
    if chosen.runner_up is not None:
        lead = difference(winner.values(metric.column), chosen.runner_up.values(metric.column))
        if lead is not None:
            shown = Markup("{}{}").format(change(lead, metric), points(metric))
            template = "The gain over the runner-up, {}, is {}." if lead.established else (
                "The difference to the runner-up, {}, is not established: {}."
            )  # fmt: skip
            more.append(Markup(template).format(chosen.runner_up.label, shown))
    queries = _queries(winner, metric)
    if queries:
        error = _query_error(winner, level, metric)
        more.append(
            Markup("Intervals speak about these {} test images: others would add a standard error of {}{}.").format(
                number(queries, queries), number(error, significant(100 * error)), points(metric)
            )
        )
    return title, more


def _subject(candidate: Candidate) -> Markup:
    template = "The tuned setting {}" if candidate.source == "search" else "The baseline “{}”"
    return Markup(template).format(candidate.label)


def _refused_title(study: Study, chosen: Chosen, metric: Metric) -> Markup:
    if study.finished.empty:
        return Markup("No verdict: no feasible trial.")
    if chosen.winner is None:
        who, n = "no tuned setting", 0
        have = "has a fresh seed"
    else:
        n = len(chosen.winner.values(metric.column))
        who, have = "the winner", f"has {count(n, 'fresh seed')}"
        if n >= FRESH_NEEDED:
            n = len(chosen.default.values(metric.column)) if chosen.default else 0
            who, have = "the default", f"has {count(n, 'fresh seed') if n else 'no fresh seed'}"
    return Markup("No verdict yet: {} {}, {} are needed.").format(who, have, FRESH_NEEDED)


def _needs(study: Study, chosen: Chosen, metric: Metric) -> Markup:
    runs = (TOP + len(study.meta.get("baselines") or [])) * SEEDS
    done = study.finished["device_seconds"].dropna()
    cost = f", about {duration(float(done.median()) * runs)} of device time" if len(done) else ""
    if study.finished.empty:
        return Markup("Needs a run that ends with a finite score; none of {} did. After that, fresh seeds:").format(
            len(study.trials)
        )
    best = best_of_search(study)
    found = ""
    if best is not None:
        value = significant(float(best["score"]) * scaled(study.objective), 3)
        found = Markup(" The best of the search, {}, scored {}{} on {} in one run; that number is a maximum of noise.").format(
            best["trial"], number(best["score"], value), unit(study.objective), study.objective.split or "its metric"
        )
    return Markup("Needs at least {} fresh seeds of the default and of the best settings.{} {} runs{} would fill it:").format(
        FRESH_NEEDED, found, runs, cost
    )


def _used(gain: Difference | None, level: Interval, metric: Metric) -> str:
    if gain is None:
        return f"{count(level.n, 'fresh run')}, {metric.split or 'reported'} split"
    how = "paired by seed" if gain.paired else "seeds not shared, unpaired"
    return f"fresh seeds only, {metric.split or 'reported'} split, {how}"


def _extra(chosen: Chosen, metric: Metric, gain: Difference | None, level: Interval) -> dict[str, Any]:
    lead = None
    if chosen.winner and chosen.runner_up:
        lead = difference(chosen.winner.values(metric.column), chosen.runner_up.values(metric.column))
    se = level.half * scaled(metric) / 1.96
    return {
        "share": metric.share,
        "axis_digits": decimals(se) if math.isfinite(se) else 1,
        "resolvable": gain.half if gain else None,
        "seeds_for_half": seeds_to_resolve(gain.sd, gain.half / 2) if gain and gain.sd > 0 else None,
        "lead": _as_dict(lead),
        "queries": _queries(chosen.winner, metric) or None,
        "query_error": _query_error(chosen.winner, level, metric),
    }


def _as_dict(interval: Interval | None) -> dict[str, Any] | None:
    if interval is None:
        return None
    known = {"mean": interval.mean, "lo": interval.lo, "hi": interval.hi, "n": interval.n}
    if isinstance(interval, Difference):
        known |= {"sd": interval.sd, "paired": interval.paired, "established": interval.established}
    return known


def _row_name(role: str, label: str) -> str:
    return {"winner": "Winner", "runner-up": "Runner-up", "default": "Default"}.get(role, "Baseline") + f", {label}"


def _row_value(row: Any, metric: Metric) -> Markup:
    level = Interval(row.mean, row.lo, row.hi, int(row.n))
    return Markup("{} <span class=ci>n = {}</span>").format(score(level, metric, with_unit=False), row.n)


def _alt(scores: pd.DataFrame, metric: Metric) -> str:
    parts = [f"{metric.label} on the {metric.split or 'reported'} split, linear axis{', percent' if metric.share else ''}."]
    for row in scores.itertuples():
        level = Interval(row.mean, row.lo, row.hi, int(row.n))
        parts.append(f"{_row_name(row.role, row.label)}: {score(level, metric, with_unit=False).striptags()}, n = {row.n}.")
    return " ".join(parts)


def _checks(study: Study, chosen: Chosen, metric: Metric, gain: Difference | None) -> list[Check]:
    winner, default, objective = chosen.winner, chosen.default, study.objective
    counts = [len(c.values(metric.column)) if c else 0 for c in (winner, default if study.default else winner)]
    checks = []
    few = min(counts) < FRESH_NEEDED
    problem = None
    if few:
        which = "winner" if counts[0] < FRESH_NEEDED else "default"
        problem = Markup("The {} has {} with a score.").format(which, count(min(counts), "fresh seed"))
    checks.append(Check("winner and default have 3 fresh seeds or more", "changes", problem,
                        Markup("Search scores are a maximum of noise: run <code>{}</code>.").format(confirm_command(study))))  # fmt: skip
    wide = not few and min(counts) < WIDE
    checks.append(Check("winner and default have 5 fresh seeds or more", "limits",
                        Markup("Only {} fresh seeds: the intervals are honest but wide.").format(min(counts)) if wide else None,
                        Markup("Run <code>{}</code>.").format(confirm_command(study))))  # fmt: skip
    same_split = winner is not None and metric.key == objective.key and metric.split == "validation"
    checks.append(Check("the verdict uses the test split", "changes",
                        "The verdict uses the split that chose the winner." if same_split else None,
                        f"No fresh run has a finite test_{objective.name}, so the winner's score is flattered."))  # fmt: skip
    for role, candidate in (("winner", winner), ("default", default)):
        if candidate is None:
            continue
        lost = candidate.runs[candidate.runs["state"].isin(["infeasible", "failed"])]
        problem = None
        if len(lost):
            problem = Markup("The {} failed on {} of {} fresh seeds.").format(role, len(lost), len(candidate.runs))
        checks.append(Check(f"no fresh run of the {role} failed", "changes", problem,
                            "Its mean is over the runs that survived.", len(lost)))  # fmt: skip
    if gain is not None:
        checks.append(Check("winner and default share their seeds", "limits",
                            None if gain.paired else "Winner and default do not share seeds.",
                            "The difference is unpaired, with a wider interval."))  # fmt: skip
        still = winner is not None and winner.values(metric.column).nunique() == 1
        checks.append(Check("fresh seeds give different scores", "limits",
                            "All fresh seeds of the winner gave the same score." if still else None,
                            "Either the seed does not reach the run or the metric is too coarse; the interval says nothing."))  # fmt: skip
    best = best_of_search(study)
    if winner is not None and best is not None and best["kind"] == "search":
        confirmed = any(best["config_hash"] == c.key or best["trial"] == c.label for c in candidates(study))
        checks.append(Check("the best trial of the search has fresh runs", "limits",
                            None if confirmed else Markup("The best trial of the search, {}, has no fresh run.").format(best["trial"]),
                            Markup("The winner is the best of those that have: run <code>{}</code>.").format(confirm_command(study))))  # fmt: skip
    if len(study.objectives) > 1:
        checks.append(Check("one objective", "record",
                            Markup("The study has {} objectives.").format(len(study.objectives)),
                            Markup("The winner is chosen by the first, {}.").format(objective.key)))  # fmt: skip
    return checks


def _queries(candidate: Candidate | None, metric: Metric) -> int:
    """Queries behind an image-to-text recall, when the run recorded them."""
    if candidate is None or not metric.share or not metric.name.startswith("i2t_"):
        return 0
    split = metric.key.partition("_")[0]
    sizes = [candidate.values(f"metric.{split}_n_{group}") for group in ("head", "mid", "tail")]
    return int(sum(float(s.iloc[0]) for s in sizes)) if all(len(s) for s in sizes) else 0


def _query_error(candidate: Candidate | None, level: Interval, metric: Metric) -> float:
    """Binomial standard error of a recall over its queries; NaN when their number is unknown."""
    queries = _queries(candidate, metric)
    return math.sqrt(level.mean * (1 - level.mean) / queries) if queries else math.nan
