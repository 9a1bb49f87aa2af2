"""Study folders that panels are tested on: a ramp to a bound, rings around a winner, choices, rungs."""

import json

import numpy as np
from ledger_maker import OBJECTIVE, SPACE, Maker, meta_of, native, synthetic, write_study
from mmts_ray.analysis import tables
from mmts_ray.analysis.choice import choose
from mmts_ray.analysis.model import model_of
from mmts_ray.analysis.wording import plain
from simulator import Truth

VAL, TEST = f"val_{OBJECTIVE}", f"test_{OBJECTIVE}"


BASE = [0.300, 0.310, 0.305, 0.300, 0.310]


def shifted(by, values=BASE):
    return [v + by + 0.002 * (-1) ** i for i, v in enumerate(values)]


def problems(finding):
    return [plain(check.problem) for check in finding.checks if check.problem is not None]


def write_more(folder, rows):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "ledger" / "writer-2.jsonl").write_text(text)


def ramp(folder, *, n=40, cliff=None, best_at=1.0, fresh=5, probes=(), noise=0.003, **changes):
    """One logarithmic parameter; the score falls with the distance from `best_at` on the scale; runs beyond fail.

    The trial nearest to the best, and a probe at each position of `probes`, run on `fresh` shared seeds.
    """
    maker, rng, grid = Maker(folder.name), np.random.default_rng(0), np.linspace(0, 1, n)

    def metrics(u):
        score = 0.4 - 0.2 * abs(u - best_at) + noise * rng.standard_normal()
        return {VAL: score, TEST: score}

    for number, u in enumerate(grid):
        lost = cliff is not None and u > cliff
        status = {"status": "infeasible", "error": "nan"} if lost else {}
        params = {"train.lr": float(1e-4 * 1000**u)}
        maker.run(f"t{number:04d}", "search", params, {} if lost else metrics(u), seed=number, **status)
    best = int(np.argmin(np.abs(grid - best_at)))
    for place, u in enumerate([grid[best], *probes]):
        for seed in range(fresh):
            kind, name = ("confirm", f"t{best:04d}") if place == 0 else ("probe", f"ring train.lr {place}")
            params = {"train.lr": float(1e-4 * 1000**u)}
            maker.run(f"c{place}{seed}", kind, params, metrics(u), seed=1000 + seed, name=name)
    return write_study(folder, maker.rows, meta_of(folder.name, **{"space": SPACE[:1], "baselines": [], **changes}))


def mixed_space(folder, n=80):
    """A choice of three, a range that only one of them uses, and a number."""
    space = [
        SPACE[0],
        {"path": "loss.mode", "kind": "choice", "values": ["a", "b", "c"], "default": "a"},
        {"path": "loss.mix", "kind": "float", "low": 0.0, "high": 1.0, "log": False, "default": 0.5,
         "when": {"loss.mode": ["b"]}},
    ]  # fmt: skip
    maker, rng = Maker(folder.name), np.random.default_rng(1)

    def score(p, u):
        used = 0.2 * (1 - abs(p["loss.mix"] - 0.5)) if p["loss.mode"] == "b" else 0.0
        return 0.2 + 0.1 * u + {"a": 0.0, "b": 0.0, "c": 0.05}[p["loss.mode"]] + used + 0.005 * rng.standard_normal()

    best = (-1.0, None, None, None)
    for number in range(n):
        u = rng.random()
        p = {"train.lr": float(1e-4 * 1000**u), "loss.mode": ["a", "b", "c"][number % 3]}
        if p["loss.mode"] == "b":
            p["loss.mix"] = float(rng.random())
        value = score(p, u)
        maker.run(f"t{number:04d}", "search", p, {VAL: value, TEST: value}, seed=number)
        best = max(best, (value, f"t{number:04d}", p, u), key=lambda b: b[0])
    for seed in range(5):
        value = score(best[2], best[3])
        maker.run(f"c{seed}", "confirm", best[2], {VAL: value, TEST: value}, seed=1000 + seed, name=best[1])
    return write_study(folder, maker.rows, meta_of(folder.name, space=space, baselines=[]))


def with_rings(folder, steps=(-0.25, -0.10, 0.10, 0.25), two=False, **options):
    """A synthetic sweep with rings of five seeds around its winner; `two` moves a second parameter along."""
    synthetic(folder, **options)
    study = tables.load(folder)
    model, winner = model_of(study), str(choose(study).winner.runs["trial"].iloc[0])
    maker, truth, rng = Maker(folder.name), Truth(), np.random.default_rng(9)
    for j in range(6):
        for step in steps:
            u = model.winner.copy()
            u[j] += step
            if two:
                u[(j + 1) % 6] += 0.05
            if not ((u >= 0) & (u <= 1)).all():
                continue
            own = dict(study.configs[winner])
            moved = native(u)
            changed = [p for i, p in enumerate(moved) if abs(u[i] - model.winner[i]) > 1e-9]
            params = {k: moved[k] if k in changed else own[k] for k in moved}
            for seed in range(5):
                score = float(truth.score(u)[0] + truth.seed_sd(u)[0] * rng.standard_normal())
                maker.run(
                    f"p{j}{step}{seed}", "probe", params, {VAL: score}, seed=1000 + seed, name=f"ring {changed[0]}"
                )
    write_more(folder, maker.rows)
    return tables.load(folder)


def halving(folder, controls, survivors=30):
    """An adaptive study of nine epochs with stopped trials, survivors and never-stopped random controls."""
    maker, truth, rng = Maker(folder.name), Truth(), np.random.default_rng(5)
    u = rng.random((400, 6)) * [0.8, 1, 1, 1, 1, 1]
    rungs = truth.rungs(u, rng)

    def write(trial, kind, row, **end):
        early = {epoch: {VAL: float(rungs[row, 0 if epoch < 3 else 1])} for epoch in range(1, 9)}
        epochs = end.pop("epochs", 9)
        last = rungs[row, 2] if epochs == 9 else rungs[row, 0]
        maker.run(trial, kind, native(u[row]), {VAL: float(last)}, seed=row, epochs=epochs, early=early, **end)

    order = np.argsort(-rungs[100:300, 0])
    for place, row in enumerate(order):
        kept = place < survivors
        write(f"t{row:04d}", "search", 100 + int(row), **({} if kept else {"status": "stopped", "epochs": 1}))
    for number in range(controls):
        write(f"r{number:04d}", "control", number)
    return write_study(folder, maker.rows, meta_of(folder.name, strategy="tpe_asha", baselines=[])), rungs[:controls]
