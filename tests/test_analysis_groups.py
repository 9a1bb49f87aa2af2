"""Head, middle and tail: what a group gains or loses, over seeds and over queries."""

import numpy as np
import pytest
from ledger_maker import arms
from mmts_ray.analysis import tables
from mmts_ray.analysis.panels import groups
from mmts_ray.analysis.statistics import crossed_difference
from mmts_ray.analysis.wording import plain
from sweeps import BASE, problems, shifted

from mmts_ray import results


def three(head, mid, tail, n=116.0):
    return {f"test_{g}_r1": v for g, v in (("head", head), ("mid", mid), ("tail", tail))} | {
        f"test_n_{g}": [n] * 5 for g in ("head", "mid", "tail")
    }


def test_a_tail_that_pays_is_a_warning_that_changes_the_answer(tmp_path):
    folder = arms(
        tmp_path / "s", {"paper": BASE, "t0001": shifted(0.05)},
        extra={"paper": three(BASE, BASE, BASE), "t0001": three(shifted(0.06), shifted(0.05), shifted(-0.04))},
    )  # fmt: skip
    found = groups.groups(tables.load(folder))
    tail = found.frames["groups"].set_index("group").loc["tail"]
    delta = np.array(shifted(-0.04)) - np.array(BASE)
    assert tail["diff"] == pytest.approx(delta.mean())
    assert tail["worse"]
    (check,) = [c for c in found.checks if c.problem is not None]
    assert check.severity == "changes"
    assert plain(check.problem).startswith("The tail loses 3.96 points [3.57, 4.35].")
    assert plain(found.title).startswith("The tail loses 3.96 points, the head gains 6.04 points")


def with_ranks(folder, *, drop=None, other_queries=False, queries=120, seeds=5):
    """Two arms whose fresh runs kept ranks: the tuned one ranks the tail worse and the head better."""
    rng = np.random.default_rng(7)
    group = np.arange(queries) % 3
    hard = rng.normal(size=queries)
    frames = {}
    for name, shift in (("paper", (0.0, 0.0, 0.0)), ("t0001", (-0.9, 0.0, 0.9))):
        frames[name] = []
        for _ in range(seeds):
            logit = hard + np.array(shift)[group] + 0.15 * rng.normal() + 0.8 * rng.normal(size=queries)
            ranks = np.where(logit > 0, 0, 1 + rng.integers(0, 9, queries)).astype(np.int32)
            members = {g: group == place for place, g in enumerate(("tail", "mid", "head"))}
            frames[name].append({"image": np.arange(queries, dtype=np.int32), "i2t": ranks, **members})
    extra = {}
    for name, runs in frames.items():
        extra[name] = {f"test_{g}_r1": [float((r["i2t"][r[g]] < 1).mean()) for r in runs] for g in groups.GROUPS}
        extra[name] |= {f"test_n_{g}": [queries / 3] * seeds for g in groups.GROUPS}
    scores = {name: [float((r["i2t"] < 1).mean()) for r in runs] for name, runs in frames.items()}
    arms(folder, scores, extra=extra)
    number = 0
    for name in scores:
        for run in frames[name]:
            trial = f"c{number:04d}"
            if trial != drop:
                moved = {"image": run["image"] + 1} if other_queries and name == "paper" else {}
                results.write_ranks(folder, trial, {**run, **moved})
            number += 1
    return folder, frames


def test_changes_of_groups_are_over_queries_and_seeds_when_the_runs_kept_their_ranks(tmp_path):
    folder, frames = with_ranks(tmp_path / "s")
    found = groups.groups(tables.load(folder))
    rows = found.frames["groups"].set_index("group")
    for group in groups.GROUPS:
        hits = [np.array([r["i2t"][r[group]] < 1 for r in frames[name]]) for name in ("t0001", "paper")]
        wanted = crossed_difference(*hits, paired=True, comparisons=3)
        got = tuple(rows.loc[group, ["diff", "diff_lo", "diff_hi"]])
        assert got == pytest.approx((wanted.mean, wanted.lo, wanted.hi))
        assert rows.loc[group, "diff"] == pytest.approx(rows.loc[group, "tuned"] - rows.loc[group, "default"])
    assert rows.loc["tail", "worse"]
    assert rows.loc["head", "established"]
    assert not rows.loc["mid", "established"]
    assert found.numbers["over"] == "queries and seeds"
    assert "over queries and seeds together" in plain(found.sentences[0])
    assert plain(found.sentences[1]).startswith("A change below ")


@pytest.mark.parametrize("what", [{"drop": "c0003"}, {"other_queries": True}])
def test_without_the_same_queries_in_every_run_the_intervals_are_over_seeds(tmp_path, what):
    folder, _ = with_ranks(tmp_path / "s", **what)
    found = groups.groups(tables.load(folder))
    assert found.numbers["over"] == "seeds"
    assert "for these queries only" in plain(found.sentences[0])
    assert found.frames["groups"]["se_queries"].isna().all()


def test_few_queries_claim_nothing(tmp_path):
    folder = arms(
        tmp_path / "s", {"paper": BASE, "t0001": shifted(0.05)},
        extra={"paper": three(BASE, BASE, BASE, 12.0), "t0001": three(shifted(0.1), BASE, shifted(-0.1), 12.0)},
    )  # fmt: skip
    found = groups.groups(tables.load(folder))
    assert not found.frames["groups"]["established"].any()
    assert problems(found) == ["Few queries in head, middle and tail."]


def test_groups_without_scores_are_refused(tmp_path):
    found = groups.groups(tables.load(arms(tmp_path / "s", {"paper": BASE, "t0001": shifted(0.05)})))
    assert found.refusal.command.startswith("mmts-ray confirm")
