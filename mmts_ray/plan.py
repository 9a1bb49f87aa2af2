"""Which trials a study still has to run: pure functions of the study and its ledger."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mmts_ray import ranking, results
from mmts_ray.config import SEED, TrialConfig, from_flat
from mmts_ray.ranking import Metrics, Rows
from mmts_ray.space import sample
from mmts_ray.study import StudyConfig

CONTROLS = 0x5EED  # the stream of random numbers that controls are drawn from
MOST_REPEATS = 200  # draws in a row that have run already: then the space is taken as exhausted


@dataclass(frozen=True)
class Parent:
    """Whose checkpoint a trial goes on from, where that was, and which trial's place it takes."""

    trial: str
    config_hash: str
    epoch: int
    step: int
    replaces: str


class Evaluation(NamedTuple):
    """What a scheduler was told of a configuration: the mean metrics of its seeds at an epoch, and when (Unix)."""

    trial: str
    epoch: int
    metrics: Metrics
    time: float


@dataclass(frozen=True)
class Planned:
    """What runs as one: a configuration on its seeds, each of them a trial of the ledger.

    `trial` is the id of the first seed's trial, which is also the group's. `ended` holds the status of seeds that have
    ended already and `before` what seeds have reported, (seed, epoch, metrics): a group that was interrupted.
    """

    trial: str
    kind: str
    name: str | None
    config: TrialConfig
    seeds: tuple[int, ...] = ()  # its own, when it is alone
    ended: tuple[tuple[int, str], ...] = ()
    before: tuple[tuple[int, int, Metrics], ...] = ()
    parent: Parent | None = None

    @property
    def members(self) -> dict[int, str]:
        """The trial of each seed."""
        seeds = self.seeds or (self.config.seed,)
        return {seed: results.member_of(self.trial, seed, seeds[0]) for seed in seeds}


def grouped(study: StudyConfig, known: Rows) -> Rows:
    """One record per configuration that ran as one, see `ranking.grouped`."""
    return ranking.grouped(known, study.seeds)


def unfinished(study: StudyConfig, known: Rows, steps: list[dict[str, Any]], *kinds: str) -> list[Planned]:
    """What has begun, or waits, and has not ended, or lacks a seed; with what its seeds have done so far."""
    begun = {
        group: row
        for group, row in grouped(study, known).items()
        if row["kind"] in kinds and row["status"] not in results.FINISHED
    }
    rows: dict[str, list[tuple[int, int, Metrics]]] = {group: [] for group in begun}
    for trial, row in known.items():
        if (group := results.group_of(trial)) in begun and row["status"] == "done":
            rows[group].append((int(row["seed"]), int(row["epoch"]), _metrics(study, row)))
    for step in steps:
        if (group := results.group_of(step["trial"])) in begun and step["trial"] in known:
            rows[group].append((int(known[step["trial"]]["seed"]), int(step["epoch"]), _metrics(study, step)))
    found = []
    for group, row in begun.items():
        seeds = ranking.seeds_of(row, study.seeds)
        members = {seed: known.get(results.member_of(group, seed, seeds[0])) for seed in seeds}
        found.append(
            Planned(
                trial=group,
                kind=row["kind"],
                name=row.get("name"),
                config=config_of(row).with_seed(seeds[0]),
                seeds=seeds,
                ended=tuple((s, m["status"]) for s, m in members.items() if m and m["status"] in results.FINISHED),
                before=tuple(rows[group]),
                parent=_parent(row),
            )
        )
    return found


def _parent(row: dict[str, Any]) -> Parent | None:
    kept = {k.removeprefix("derived.parent_"): v for k, v in row.items() if k.startswith("derived.parent_")}
    if not kept:
        return None
    epoch, step = int(kept["epoch"]), int(kept["step"])
    return Parent(row["derived.parent"], kept["config_hash"], epoch, step, row["derived.replaces"])


def _metrics(study: StudyConfig, row: dict[str, Any]) -> Metrics:
    return {name: row[f"metric.{name}"] for name in study.watched if row.get(f"metric.{name}") is not None}


def evaluations(study: StudyConfig, known: Rows, steps: list[dict[str, Any]]) -> list[Evaluation]:
    """What a scheduler has seen: each epoch that all seeds of a searched group reached, in order of time."""
    members: dict[str, set[str]] = {}
    for trial, row in known.items():
        if row["kind"] == "search":
            members.setdefault(results.group_of(trial), set()).add(trial)
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for step in steps:
        if step["trial"] in known and known[step["trial"]]["kind"] == "search":
            found.setdefault((results.group_of(step["trial"]), int(step["epoch"])), []).append(step)
    whole = [
        Evaluation(
            group, epoch, results.mean([_metrics(study, row) for row in rows]), max(row["first_time"] for row in rows)
        )
        for (group, epoch), rows in found.items()
        if {row["trial"] for row in rows} == members[group]
    ]
    return sorted(whole, key=lambda e: (e.time, e.trial, e.epoch))


def missing_baselines(study: StudyConfig, known: Rows, first_id: int) -> list[Planned]:
    """The baselines that have never begun."""
    begun = {row.get("name") for row in known.values() if row["kind"] == "baseline"}
    configs = [(name, study.baseline_config(name)) for name, _ in study.baselines if name not in begun]
    return [
        Planned(trial=trial_id("t", first_id + i), kind="baseline", name=name, config=c, seeds=study.seeds_of(c))
        for i, (name, c) in enumerate(configs)
    ]


def missing_controls(study: StudyConfig, known: Rows, first_id: int) -> list[Planned]:
    """The controls that have never begun: points drawn at random, before anything has been seen, by their own stream.

    Whether a control runs never depends on a result, so that they are an honest sample of the space.
    """
    begun = {row["config_hash"] for row in known.values() if row["kind"] == "control"}
    taken = {row["config_hash"] for row in known.values() if row["kind"] != "control"}
    rng = np.random.default_rng([study.seed, CONTROLS])
    found: list[Planned] = []
    repeats = 0
    seen: set[str] = set()
    while len(begun) + len(found) < study.controls and repeats < MOST_REPEATS:
        try:
            config = study.trial_config(sample(study.searched, rng, dict(study.fixed)))
        except ValueError:  # parameters that are legal alone and not together
            repeats += 1
            continue
        if config.hash in seen or config.hash in taken:
            repeats += 1
            continue
        seen.add(config.hash)
        if config.hash in begun:
            continue
        repeats = 0
        trial = trial_id("t", first_id + len(found))
        found.append(Planned(trial=trial, kind="control", name=None, config=config, seeds=study.seeds_of(config)))
    return found


def confirmations(study: StudyConfig, known: Rows, *, top: int, seeds: int) -> list[Planned]:
    """The reruns that are missing in the ledger: baselines and the best `top` configurations, on shared fresh seeds."""
    done = {(row["config_hash"], int(row["seed"])) for row in known.values() if row["kind"] == "confirm"}
    wanted = [
        (name, config.with_seed(seed))
        for seed in range(results.FRESH_SEEDS, results.FRESH_SEEDS + seeds)
        for name, config in candidates(study, known, top)
        if (config.hash, seed) not in done
    ]
    first_id = next_number(known, "c")
    return [
        Planned(trial=trial_id("c", first_id + i), kind="confirm", name=name, config=config)
        for i, (name, config) in enumerate(wanted)
    ]


def start_records(study: StudyConfig, planned: Planned, *, status: str, data_key: str) -> list[dict[str, Any]]:
    """The records that open a group's trials, those that have ended left out; they alone carry the parameters."""
    config = planned.config
    ones = np.ones(1, dtype=np.int64)
    schedule = config.function("schedule")(1, ones, ones, **config.kwargs("schedule"))
    shared = {
        "study": study.study,
        "kind": planned.kind,
        "name": planned.name,
        "config_hash": config.hash,
        "rung": 0,
        "step": 0,
        "epoch": 0,
        "global_batch": config.kwargs("train")["batch_size"],
        "status": status,
        **{f"param.{k}": v for k, v in config.items},
        "derived.data.key": data_key,
        **{f"derived.schedule.{k}": v for k, v in schedule.derived.items()},
    }
    if planned.parent is not None:
        shared |= {
            "derived.parent": planned.parent.trial,
            "derived.parent_config_hash": planned.parent.config_hash,
            "derived.parent_epoch": planned.parent.epoch,
            "derived.parent_step": planned.parent.step,
            "derived.replaces": planned.parent.replaces,
        }
    ended = dict(planned.ended)
    return [
        {**shared, "trial": trial, "seed": seed, f"param.{SEED}": seed}
        for seed, trial in planned.members.items()
        if seed not in ended
    ]


def ranked(study: StudyConfig, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Finished configurations, best first, see `ranking.ranked`."""
    return ranking.ranked(study.objective, study.constraints, rows)


def config_of(row: dict[str, Any]) -> TrialConfig:
    """The configuration that a ledger record describes."""
    return from_flat({k.removeprefix("param."): v for k, v in row.items() if k.startswith("param.")})


def candidates(study: StudyConfig, known: Rows, top: int) -> list[tuple[str, TrialConfig]]:
    """Baselines under their names, then the best distinct searched configurations under their trial ids."""
    found: dict[str, tuple[str, TrialConfig]] = {}
    for name, _ in study.baselines:
        config = study.baseline_config(name)
        found.setdefault(config.hash, (name, config))
    limit = len(found) + top
    searched = ranked(study, [row for row in grouped(study, known).values() if row["kind"] in ("search", "control")])
    kept = [row for row in searched if not ranking.broken(study.constraints, ranking.metrics_of(row))]
    if top and searched and not kept:
        beyond = ranking.excess(study.constraints, ranking.metrics_of(searched[0]))
        worst = max(beyond, key=lambda name: beyond[name])
        raise ValueError(
            f"constraints: none of {len(searched)} finished configurations keeps them; the nearest, "
            f"{searched[0]['trial']}, breaks {worst} by {100 * beyond[worst]:.3g} %; widen it in a new study, or extend"
        )
    for row in kept:
        if len(found) >= limit:
            break
        found.setdefault(row["config_hash"], (row["trial"], config_of(row)))
    return list(found.values())


def next_number(known: Rows, letter: str) -> int:
    return 1 + max((int(results.group_of(t)[1:]) for t in known if t.startswith(letter)), default=-1)


def trial_id(letter: str, number: int) -> str:
    return f"{letter}{number:04d}"
