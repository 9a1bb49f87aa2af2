"""Error rates of the model-based statistics on sweeps with a known truth: what docs/statistics.md reports.

    python tests/rates.py importance --sampler tpe --n 100 --sweeps 100
    python tests/rates.py plateau --sampler random --n 200 --rings 5 --sweeps 100
    python tests/rates.py bounds | interactions | variance
    python tests/rates.py profiles --sets 5 --seeds 3
    python tests/rates.py flat --n 100 --shape ramp --lost 1.25

Sweep r of a run uses seed `--first` + r; the pipeline is the product's: `confirm` reruns the best three and the default
on five fresh seeds, the best fresh mean wins, rings are +-10 % and +-25 % of the range around the winner.
"""

import argparse
import time
from functools import lru_cache

import numpy as np
import pandas as pd
from mmts_ray.analysis import statistics as st
from scipy.stats import norm
from simulator import NAMES, Truth, random_sweep, tpe_sweep

FIRST = 770_000
NUMBERS = (False,) * len(NAMES)
DEFAULT = np.array([1 / 3, 0.5, 1 / 3, 0.5, 0.0, 0.5])


def sweep(truth, sampler, n, seed):
    if sampler == "tpe":
        return tpe_sweep(truth, n, seed)
    return random_sweep(truth, n, np.random.default_rng(seed))


def fitted(u, y, k, smooth=True):
    return st.fit(st.Points(u, y, k, NUMBERS), smooth=smooth)


def importance(truth, sampler, n, seed, only=tuple(range(6))):
    """One row per parameter: p of the main effect, of both, of Holm over all six."""
    u, y = sweep(truth, sampler, n, seed)
    ok = np.isfinite(y)
    full = fitted(u[ok], y[ok], np.ones(ok.sum()))
    rng = np.random.default_rng([seed, 1])
    found = [st.randomisation_test(full, j, np.ones(ok.sum(), dtype=bool), rng) for j in only]
    adjusted = st.holm(np.array([e.p for e in found]))
    return [
        {"seed": seed, "parameter": NAMES[j], "p_main": e.p_main, "p": e.p, "holm": h, "fit": st.fit_quality(full)}
        for j, e, h in zip(only, found, adjusted)
    ]


def confirmed(truth, u, y, rng, rings=0):
    """(coordinates, means, seeds, winner, seed sd) after `confirm` and, if asked, rings of so many seeds."""
    ok = np.isfinite(y)
    points, means, counts, blocks = list(u[ok]), list(y[ok]), [1.0] * int(ok.sum()), []
    best = np.argsort(-y[ok], kind="stable")[:3]
    for place in [*best, None]:
        at = DEFAULT if place is None else points[place]
        runs = truth.run(np.tile(at, (5, 1)), rng)
        runs = runs[np.isfinite(runs)]
        if place is not None and len(runs):
            means[place] = (means[place] + runs.sum()) / (1 + len(runs))
            counts[place] = 1.0 + len(runs)
        elif len(runs):
            points.append(at), means.append(runs.mean()), counts.append(float(len(runs)))
        blocks.append(runs)
    fresh = [b.mean() if len(b) else -1 for b in blocks[:3]]
    winner = points[best[int(np.argmax(fresh))]]
    for j in range(len(NAMES)) if rings else ():
        for step in (-0.25, -0.10, 0.10, 0.25):
            moved = winner.copy()
            moved[j] += step
            runs = truth.run(np.tile(moved, (rings, 1)), rng) if 0 <= moved[j] <= 1 else np.array([])
            runs = runs[np.isfinite(runs)]
            if len(runs):
                points.append(moved), means.append(runs.mean()), counts.append(float(len(runs)))
                blocks.append(runs)
    sd, _ = st.pooled_sd(blocks)
    se = sd / np.sqrt(5)
    return np.array(points), np.array(means), np.array(counts), winner, sd, max(se, 0.01 * max(fresh))


def plateau(truth, sampler, n, seed, rings=0, smooth=False, delta=None):
    """One row per parameter: the width at delta, its limits and gate, and the truth at the same delta and winner."""
    u, y = sweep(truth, sampler, n, seed)
    rng = np.random.default_rng([seed, 2])
    points, means, counts, winner, sd, strict = confirmed(truth, u, y, rng, rings)
    process = fitted(points, means, counts, smooth)
    used = delta or max(strict, 1.25 * sd)
    cuts = st.slices(process, winner, 1, st.feasibility(u, ~np.isfinite(y)), rng)
    rows = []
    for j, cut in enumerate(cuts):
        w = st.plateau(cut, used)
        rows.append(
            {"seed": seed, "parameter": NAMES[j], "delta": used, "truth": truth.width(winner, j, used),
             "width": w.width, "lo": w.lo, "hi": w.hi, "gate": w.gate}
        )  # fmt: skip
    return rows


def bounds(truth, sampler, n, seed):
    """One row per parameter: chance that the slice's best lies at each end, and p of the test."""
    u, y = sweep(truth, sampler, n, seed)
    rng = np.random.default_rng([seed, 3])
    points, means, counts, winner, _, _ = confirmed(truth, u, y, rng)
    process = fitted(points, means, counts)
    cuts = st.slices(process, winner, 1, st.feasibility(u, ~np.isfinite(y)), rng)
    rows = []
    for j, cut in enumerate(cuts):
        low, high = st.chance_at_ends(cut)
        test = (
            st.randomisation_test(process, j, np.ones(len(points), dtype=bool), rng) if max(low, high) > 0.5 else None
        )
        touches = test is not None and test.p <= 0.05
        rows.append({"seed": seed, "parameter": NAMES[j], "low": low, "high": high, "touches": touches,
                     "winner_at_end": winner[j] <= 0.05 or winner[j] >= 0.95})  # fmt: skip
    return rows


def interactions(truth, sampler, n, seed):
    """One row: whether (lr, wd) was selected, and whether any other pair was."""
    u, y = sweep(truth, sampler, n, seed)
    ok = np.isfinite(y)
    found = st.pairs(u[ok], y[ok], NUMBERS, np.ones((ok.sum(), len(NAMES)), dtype=bool))
    chosen = {(p.first, p.second) for p in found if p.step}
    return [{"seed": seed, "found": (0, 2) in chosen, "false": bool(chosen - {(0, 2)})}]


def variance(rows, seeds, correlation, sweep, between=0.012, sd=0.012):
    """One row: do the share of the configuration and the seeds' sd cover, with seeds taken as shared and as own?"""
    rng = np.random.default_rng([sweep, rows, seeds, round(100 * correlation)])
    sds = sd * np.linspace(0.65, 1.35, rows)
    true_sd = np.sqrt((sds**2).mean())
    share = between**2 / (between**2 + true_sd**2)
    noise = np.sqrt(correlation) * rng.standard_normal(seeds)
    noise = noise + np.sqrt(1 - correlation) * rng.standard_normal((rows, seeds))
    y = between * rng.standard_normal((rows, 1)) + sds[:, None] * noise
    found = {}
    for name, shared in (("two-way", True), ("one-way", False)):
        f = st.split(y, shared)
        found |= {
            f"{name} share": f.share.lo <= share <= f.share.hi,
            f"{name} sd": f.seed_sd.lo <= true_sd <= f.seed_sd.hi,
        }
    return [{"rows": rows, "seeds": seeds, "correlation": correlation, **found}]


SHAPES = {
    "nothing": lambda u: np.zeros(len(u)),
    "ramp": lambda u: u[:, 0],
    "peak": lambda u: np.exp(-(((u[:, 0] - 0.6) / 0.3) ** 2)),
    "product": lambda u: (u[:, 0] - 0.5) * (u[:, 1] - 0.5),
    "two ramps": lambda u: u[:, 0] + u[:, 1],
    "six ramps": lambda u: u.sum(1),
    "one in ten": lambda u: -(u[:, 0] > 0.9).astype(float),
}


@lru_cache
def ends_of(shape):
    """(mean, best, all but the worst twentieth) of a shape over the cube."""
    values = SHAPES[shape](np.random.default_rng(0).random((200_000, len(NAMES))))
    return values.mean(), values.max(), np.quantile(values, 0.05)


def flat(shape, lost, n, seed, seeds=5, correlation=0.5, uneven=0.0, sd=0.012, evidence=True):
    """One row: is it said that any setting will do, and do 19 of 20 settings lose more than 1.25 seed sd?

    `lost` seed sd lie between the best of the space and all but the worst twentieth. Search runs share a seed, the
    default and the best three have `seeds` others; `correlation` is that of two settings on one seed, `uneven` how
    far the noise changes along the last parameter.
    """
    rng = np.random.default_rng([seed, n])
    _, best, most = ends_of(shape)
    height = (lambda u: lost * sd * SHAPES[shape](u) / (best - most)) if shape != "nothing" else SHAPES[shape]
    noise = lambda u: sd * (1 + uneven * (2 * u[:, -1] - 1))  # noqa: E731

    def run(u, common):
        own = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * rng.standard_normal(len(u))
        return np.round(347 * (0.4 + height(u) + noise(u) * own)) / 347

    u = rng.random((n, len(NAMES)))
    y = run(u, rng.standard_normal())
    arms = np.vstack([DEFAULT, u[np.argsort(-y, kind="stable")[:3]]])
    block = np.stack([run(arms, rng.standard_normal()) for _ in range(seeds)], axis=1)
    spread, _ = st.pooled_sd(list(block))
    used = np.ones((n, len(NAMES)), dtype=bool)
    found = st.flatness(u, y, NUMBERS, used, st.residual(block), np.random.default_rng([seed, 5]))
    told, level = height(u), max(block[1:].mean(1))
    delta = max(1.25 * spread, 0.01 * level, spread / np.sqrt(seeds))
    row = {"seed": seed, "said": found.within(delta), "holm": 1.0}
    true = told.max() - np.quantile(told, 0.05)
    row |= {"wrong": true > 1.25 * sd, "most": found.most.hi / sd, "true": true / sd, "covered": true <= found.most.hi}
    if evidence and row["said"]:
        full, stream = fitted(u, y, np.ones(n)), np.random.default_rng([seed, 1])
        tests = [st.randomisation_test(full, j, used[:, j], stream).p for j in range(len(NAMES))]
        row["holm"] = st.holm(np.array(tests)).min()
    return [{**row, "said": bool(row["said"] and row["holm"] > 0.05)}]


def profiles(sets, seeds, seed, correlation=0.3, sd=0.012):
    """One row per arm and threshold: does the band of a profile over so many data sets hold the true share?"""
    rng, thresholds = np.random.default_rng([seed, 6]), np.linspace(0.85, 1.1, 26)
    tuned = np.linspace(0.3, 0.6, sets)
    means = {"tuned": tuned, "default": tuned - np.linspace(0, 0.05, sets)}
    blocks = []
    for m in range(sets):
        common = np.sqrt(correlation) * rng.standard_normal(seeds)
        blocks.append({arm: mean[m] + sd * (common + np.sqrt(1 - correlation) * rng.standard_normal(seeds))
                       for arm, mean in means.items()})  # fmt: skip
    found = st.profiles(blocks, "tuned", thresholds, rng)
    rows = []
    for arm, mean in means.items():
        truth = np.mean(1 - norm.cdf((thresholds[:, None] * tuned - mean) / sd), axis=1)
        own = found[arm]
        rows += [{"arm": arm, "middle": 0.1 < t < 0.9, "covered": lo <= t <= hi}
                 for t, lo, hi in zip(truth, own.lo, own.hi)]  # fmt: skip
    return rows


def summary(name, frame):
    if name == "profiles":
        return frame.groupby(["arm", "middle"])["covered"].mean().round(3)
    if name == "flat":
        return frame.assign(falsely=frame["said"] & frame["wrong"])[
            ["said", "wrong", "falsely", "covered", "most", "true"]
        ].mean()
    if name == "variance":
        return frame.groupby(["rows", "seeds", "correlation"]).mean().round(3)
    if name == "importance":
        return frame.groupby("parameter", sort=False).agg(
            main=("p_main", lambda p: (p <= 0.05).mean()), both=("p", lambda p: (p <= 0.05).mean()),
            holm=("holm", lambda p: (p <= 0.05).mean()), sweeps=("p", "size"))  # fmt: skip
    if name == "plateau":
        live = frame[frame["parameter"] != "dead"].copy()
        live["close"] = (live["width"] / live["truth"] - 1).abs() <= 0.15
        live["covered"] = live["truth"].between(live["lo"] - 1e-9, live["hi"] + 1e-9)
        by = live.groupby("parameter", sort=False)[["close", "covered", "delta"]].mean()
        gates = live.groupby("gate").agg(close=("close", "mean"), covered=("covered", "mean"), n=("close", "size"))
        return f"{by.round(3)}\n{gates.round(3)}"
    if name == "bounds":
        return frame.groupby("parameter", sort=False).agg(
            low=("low", lambda p: (p > 0.5).mean()), high=("high", lambda p: (p > 0.5).mean()),
            touches=("touches", "mean"), winner_at_end=("winner_at_end", "mean"), sweeps=("low", "size"))  # fmt: skip
    return frame[["found", "false"]].mean()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what", choices=("importance", "plateau", "bounds", "interactions", "variance", "flat", "profiles")
    )
    parser.add_argument("--sampler", choices=("random", "tpe"), default="random")
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--sweeps", type=int, default=50)
    parser.add_argument("--first", type=int, default=FIRST)
    parser.add_argument("--rings", type=int, default=0, help="seeds per ring setting")
    parser.add_argument("--delta", type=float, help="a known delta; without it 1.25 estimated seed sd")
    parser.add_argument("--shape", choices=SHAPES, default="nothing")
    parser.add_argument("--lost", type=float, default=1.25, help="seed sd from the best to all but the worst twentieth")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sets", type=int, default=5, help="data sets of a profile")
    parser.add_argument("--correlation", type=float, default=0.5)
    parser.add_argument("--uneven", type=float, default=0.0)
    parser.add_argument("--smooth", action="store_true", help="Matern-5/2 for the plateau")
    for key, value in Truth().__dict__.items():
        parser.add_argument(f"--{key}", type=type(value), default=value)
    given = parser.parse_args()
    truth = Truth(**{key: getattr(given, key) for key in Truth().__dict__})
    extra = {"rings": given.rings, "delta": given.delta, "smooth": given.smooth} if given.what == "plateau" else {}
    began, rows = time.process_time(), []
    for r in range(given.sweeps):
        if given.what == "variance":
            for block in ((5, 3), (10, 5), (20, 5)):
                rows += [row for rho in (0.0, 0.5) for row in variance(*block, rho, given.first + r)]
        elif given.what == "profiles":
            rows += profiles(given.sets, given.seeds, given.first + r)
        elif given.what == "flat":
            how = {"seeds": given.seeds, "correlation": given.correlation, "uneven": given.uneven}
            rows += flat(given.shape, given.lost, given.n, given.first + r, **how)
        else:
            rows += globals()[given.what](truth, given.sampler, given.n, given.first + r, **extra)
    print(vars(given))
    print(summary(given.what, pd.DataFrame(rows)))
    print(f"{(time.process_time() - began) / given.sweeps:.2f} CPU s a sweep")
