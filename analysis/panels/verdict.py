"""Verdict: winner, runner-up, default and other baselines on fresh seeds."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
from markupsafe import Markup

from .. import commands
from ..choice import FRESH_NEEDED, Candidate, Chosen, best_of_search, bounds, broken, candidates, choose
from ..finding import Alt, Check, Finding, Refusal, check
from ..model import model_of
from ..page import Axis, bar
from ..statistics import Difference, Interval, chance_of_better, difference, generator, seeds_to_resolve, t_interval
from ..tables import COPY, Metric, Study, why_failed
from ..wording import count, decimals, fixed, listing, score
from . import flat, importance, plateau, sentence

WIDE = 5  # with fewer seeds the interval is honest but wide
MOST_BASELINES = 4
NO_VALUES = pd.Series(dtype=float)


@dataclass(frozen=True)
class Facts:
    """What the verdict rests on; `gain` is winner minus default, `lead` winner minus runner-up."""

    study: Study
    chosen: Chosen
    metric: Metric
    case: str  # established, not established, worse, alone (no default), any setting, refused
    level: Interval
    gain: Difference | None
    lead: Difference | None
    better: Interval | None  # probability that a rerun of the winner beats one of the default
    any_setting: bool  # whether the study shows that any searched setting will do
    queries: int  # behind an image-to-text recall; 0 when unknown

    @property
    def query_error(self) -> float:
        """Binomial standard error of the winner's recall over its queries."""
        return math.sqrt(self.level.mean * (1 - self.level.mean) / self.queries) if self.queries else math.nan


def verdict(study: Study) -> Finding:
    """Mean, interval and n of each on the reported metric, the paired difference, and one sentence."""
    facts = gather(study)
    metric, gain, chosen = facts.metric, facts.gain, facts.chosen
    scores = _scores(chosen, metric)
    se = facts.level.half * metric.scale / 1.96
    numbers: dict[str, Any] = {
        "case": facts.case,
        "metric": metric.key,
        "direction": "min" if metric.better < 0 else "max",
        "winner": chosen.winner.label if chosen.winner else None,
        "default": study.default,
        "runner_up": chosen.runner_up.label if chosen.runner_up else None,
        "difference": _as_dict(gain),
        "lead": _as_dict(facts.lead),
        "chance_of_better": _as_dict(facts.better),
        "resolvable": gain.half if gain else None,
        "seeds_for_half": seeds_to_resolve(gain.sd, gain.half / 2) if gain and gain.sd > 0 else None,
        "any_setting": facts.any_setting,
        "queries": facts.queries or None,
        "query_error": facts.query_error,
        "axis_digits": decimals(se) if math.isfinite(se) else 1,
    }
    return Finding(
        title=sentence.title(facts),
        used=_used(facts),
        frames={"scores": scores},
        numbers=numbers,
        sentences=(*sentence.more(facts), *_sensitivity(facts)),
        alts={"scores": Alt("Scores on fresh seeds", _alt(scores, metric))} if len(scores) else {},
        refusal=Refusal(sentence.needs(facts), _next(study)) if facts.case == "refused" else None,
        checks=tuple(_checks(facts)),
    )


def draw(study: Study, finding: Finding) -> Markup:
    """Interval rows on one shared axis, the default's mean dashed in each."""
    scores = finding.frames["scores"]
    drawn = scores[scores["n"] > 0]
    if drawn.empty:
        return Markup("")
    metric, digits = study.reported, finding.numbers["axis_digits"]
    ends = pd.concat([drawn["mean"], drawn["lo"], drawn["hi"]]).dropna() * metric.scale
    pad = max((ends.max() - ends.min()) * 0.05, 10.0**-digits)
    axis = Axis(ends.min() - pad, ends.max() + pad)
    reference = drawn.loc[drawn["role"] == "default", "mean"]
    rows = [
        {
            "name": _row_name(row.role, row.label),
            "value": _row_value(row, metric),
            "role": row.role,
            "lo": axis(row.lo * metric.scale) if row.n > 1 else None,
            "hi": axis(row.hi * metric.scale) if row.n > 1 else None,
            "mean": axis(row.mean * metric.scale),
        }
        for row in drawn.itertuples()
    ]
    return bar(
        "verdict",
        rows=rows,
        dashed=axis(float(reference.iloc[0]) * metric.scale) if len(reference) else None,
        label=metric.axis + ("; dashed: default" if len(reference) else ""),
        low=fixed(axis.low, digits),
        high=fixed(axis.high, digits),
        title=finding.alts["scores"].title,
        desc=finding.alts["scores"].desc,
    )


def gather(study: Study) -> Facts:
    """The numbers of the verdict, and which of its cases holds."""
    chosen, metric = choose(study), study.reported
    values, base = _values(chosen.winner, metric), _values(chosen.default, metric)
    enough = min(len(values), len(base)) >= FRESH_NEEDED
    gain = difference(values, base) if enough else None
    if len(values) < FRESH_NEEDED or (study.default is not None and len(base) < FRESH_NEEDED):
        case = "refused"
    elif gain is None:
        case = "alone"
    elif not gain.established:
        case = "not established"
    else:
        case = "established" if metric.better * gain.mean > 0 else "worse"
    any_setting = case != "refused" and bool(flat.flat(study).numbers.get("any"))
    if any_setting and case in ("not established", "alone"):
        case = "any setting"
    seed = study.meta.get("seed")
    rng = generator(seed if isinstance(seed, int) and seed >= 0 else 0, "verdict")
    return Facts(
        study=study,
        chosen=chosen,
        metric=metric,
        case=case,
        level=t_interval(values),
        gain=gain,
        lead=difference(values, _values(chosen.runner_up, metric)),
        better=chance_of_better(gain, metric.better, rng) if gain else None,
        any_setting=any_setting,
        queries=_queries(chosen.winner, metric),
    )


def _values(candidate: Candidate | None, metric: Metric) -> pd.Series:
    return candidate.values(metric.column) if candidate else NO_VALUES


def _queries(candidate: Candidate | None, metric: Metric) -> int:
    """Queries behind an image-to-text recall, when the runs recorded them."""
    if candidate is None or not metric.share or not metric.name.startswith("i2t_"):
        return 0
    split = metric.key.partition("_")[0]
    sizes = [candidate.values(f"metric.{split}_n_{group}") for group in ("head", "mid", "tail")]
    return int(sum(float(s.iloc[0]) for s in sizes)) if all(len(s) for s in sizes) else 0


def _scores(chosen: Chosen, metric: Metric) -> pd.DataFrame:
    rows, base = [], _values(chosen.default, metric)
    roles = [("winner", chosen.winner), ("runner-up", chosen.runner_up), ("default", chosen.default)]
    for role, candidate in [*roles, *(("baseline", other) for other in chosen.others[:MOST_BASELINES])]:
        if candidate is None:
            continue
        values = _values(candidate, metric)
        level = t_interval(values)
        d = difference(values, base) if role != "default" else None
        ends = (d.mean, d.lo, d.hi) if d else (math.nan, math.nan, math.nan)
        rows.append((role, candidate.label, level.mean, level.lo, level.hi, level.n, *ends))
    return pd.DataFrame(rows, columns=["role", "label", "mean", "lo", "hi", "n", "diff", "diff_lo", "diff_hi"])


def _used(facts: Facts) -> str:
    split = f"{facts.metric.split or 'reported'} split"
    if facts.gain is None:
        return f"{count(facts.level.n, 'fresh run')}, {split}"
    return f"fresh seeds only, {split}, {'paired by seed' if facts.gain.paired else 'seeds not shared, unpaired'}"


def _sensitivity(facts: Facts) -> list[Markup]:
    """How many parameters matter, and the widest range that one may drift in; nothing where no model is to be had."""
    model = model_of(facts.study)
    if facts.case in ("refused", "any setting") or importance.lacking(facts.study, model) is not None:
        return []
    grades = [adjusted <= importance.LEVEL_OF_TEST for _, adjusted in model.evidence]
    proven = {facts.study.named(p.path) for p, grade in zip(model.parameters, grades) if grade}
    text = Markup("Of {}, {} {} evidence of an effect.").format(
        count(len(grades), "searched parameter"), sum(grades), "shows" if sum(grades) == 1 else "show"
    )
    ranges = [found for found in plateau.safe_ranges(facts.study) if found[0] in proven]
    if ranges:
        name, _, words, size = ranges[0]
        text += Markup(" Widest safe range among them: {} {} ({}), by a model.").format(name, words, size)
    return [text]


def _as_dict(interval: Interval | None) -> dict[str, Any] | None:
    if interval is None:
        return None
    known = asdict(interval)
    return {**known, "established": interval.established} if isinstance(interval, Difference) else known


def _row_name(role: str, label: str) -> str:
    return {"winner": "Winner", "runner-up": "Runner-up", "default": "Default"}.get(role, "Baseline") + f", {label}"


def _row_value(row: Any, metric: Metric) -> Markup:
    level = Interval(row.mean, row.lo, row.hi, int(row.n))
    return Markup('{} <span class="ci">n = {}</span>').format(score(level, metric, with_unit=False), row.n)


def _alt(scores: pd.DataFrame, metric: Metric) -> str:
    parts = [f"{metric.axis} on the {metric.split or 'reported'} split, linear axis."]
    for row in scores.itertuples():
        parts.append(f"{_row_name(row.role, row.label)}: {_row_value(row, metric).striptags()}.")
    return " ".join(parts)


def _search_seeds(study: Study, candidate: Candidate) -> set[float]:
    """Seeds at which the search ran this very configuration."""
    ran = study.trials["kind"].isin(["baseline", "search", COPY]) & (study.trials["config_hash"] == candidate.key)
    return set(study.trials.loc[ran, "seed"].dropna())


def _next(study: Study) -> str:
    if study.trials.empty:
        return commands.resume(study)
    return commands.extend(study) if study.finished.empty else commands.confirm(study)


def _checks(facts: Facts) -> list[Check]:
    study, chosen, metric, gain = facts.study, facts.chosen, facts.metric, facts.gain
    winner, default, objective, confirm = chosen.winner, chosen.default, study.objective, commands.confirm(study)
    if study.trials.empty:
        return [check("the ledger holds runs", "changes", True, "The ledger holds no run.")]
    if study.finished.empty:
        return [check("a trial is feasible", "changes", True, "No trial is feasible.", "{why}", why=why_failed(study))]
    n_winner = facts.level.n
    n_default = len(_values(default, metric)) if study.default is not None else n_winner
    fewest, few = min(n_winner, n_default), min(n_winner, n_default) < FRESH_NEEDED
    checks = [
        check(
            f"winner and default have {FRESH_NEEDED} fresh seeds or more", "changes", few,
            "No tuned setting has a fresh seed." if winner is None else "The {who} has {seeds} with a score.",
            "Search scores are a maximum of noise: run <code>{confirm}</code>.",
            who="winner" if n_winner < FRESH_NEEDED else "default", seeds=count(fewest, "fresh seed"), confirm=confirm,
        ),
        check(
            f"winner and default have {WIDE} fresh seeds or more", "limits", not few and fewest < WIDE,
            "Only {n} fresh seeds: the intervals are honest but wide.", "Run <code>{confirm}</code>.",
            n=fewest, confirm=confirm,
        ),
        check(
            "the verdict uses the test split", "changes",
            winner is not None and metric.key == objective.key and metric.split == "validation",
            "The verdict uses the split that chose the winner.",
            "No fresh run has a finite test_{name}, so the winner's score is flattered.", name=objective.name,
        ),
        check(
            "one objective", "record", len(study.objectives) > 1, "The study has {n} objectives.",
            "The winner is chosen by the first, {first}.", n=len(study.objectives), first=objective.key,
        ),
    ]  # fmt: skip
    stale = [c.label for c in candidates(study) if _search_seeds(study, c) & set(c.runs["seed"])]
    checks.append(
        check(
            "no fresh seed was seen by the search", "changes", stale, "Fresh runs of {who} reuse a seed of the search.",
            "The luck that chose them counts again: confirm with other seeds.", who=listing(stale), size=len(stale),
        )
    )  # fmt: skip
    for role, candidate in (("winner", winner), ("default", default)):
        lost = candidate.runs["state"].isin(["infeasible", "failed"]).sum() if candidate else 0
        checks.append(
            check(
                f"no fresh run of the {role} failed", "changes", lost,
                "The {role} failed on {lost} of {n}.",
                "Its mean is over the runs that survived.", role=role, lost=lost,
                n=count(len(candidate.runs) if candidate else 0, "fresh seed"),
            )
        )  # fmt: skip
    if gain is not None and winner is not None:
        checks += [
            check(
                "winner and default share their seeds", "limits", not gain.paired,
                "Winner and default do not share seeds.", "The difference is unpaired, with a wider interval.",
            ),
            check(
                "fresh seeds give different scores", "limits", _values(winner, metric).nunique() == 1,
                "All fresh seeds of the winner gave the same score.",
                "Either the seed does not reach the run or the metric is too coarse; the interval says nothing.",
            ),
        ]  # fmt: skip
    if winner is not None and bounds(study):
        lacking = "; ".join(broken(study, winner))
        checks.append(
            check(
                "the winner keeps the constraints", "changes", bool(lacking),
                "No configuration with fresh runs keeps the constraints.",
                "The best of them breaks {lacking}: widen the bound, or search further.",
                lacking=lacking,
            )
        )  # fmt: skip
    best = best_of_search(study)
    if winner is not None and best is not None and best["kind"] in ("search", "control"):
        known = any(best["config_hash"] == c.key or best["trial"] == c.label for c in candidates(study))
        checks.append(
            check(
                "the best trial of the search has fresh runs", "limits", not known,
                "The best trial of the search, {trial}, has no fresh run.",
                "The winner is the best of those that have: run <code>{confirm}</code>.",
                trial=best["trial"], confirm=confirm,
            )
        )  # fmt: skip
    return checks
