"""The study's memory in Optuna: what was tried, what came of it, what to try next.

One Optuna study per search space and number of seeds, in a journal that `optuna-dashboard` reads. The journal can be
lost: `adopt` rebuilds it from the ledger. Nothing is ever left RUNNING, a stopped trial is PRUNED and not COMPLETE,
another direction is refused, and each proposal comes from a generator seeded by (seed, number of trials so far):
re-attaching repeats none.
"""

import hashlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import optuna.storages.journal
from optuna.samplers.nsgaii import BLXAlphaCrossover
from optuna.trial import TrialState

from mmts_ray.config import TrialConfig
from mmts_ray.space import Choice, Domain, Float, Int
from mmts_ray.study import STRATEGIES, StudyConfig, grid
from mmts_ray.tpe import BoundedTPE

JOURNAL = "optuna.journal"
MOST = 1e9  # by how much an infeasible trial breaks every constraint


class _OneWriter:
    """In place of Optuna's lock file: the study's lease has no second driver, and a reader needs no lock.

    Optuna's own lock, interrupted while it is let go, hides Ctrl-C behind a missing file.
    """

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        return None


class Sampler:
    """Asks Optuna for points and tells it results; single writer (the driver holds the study's lock)."""

    def __init__(self, study: StudyConfig, study_dir: str | Path) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        self.config = study
        self.path = Path(study_dir) / JOURNAL
        _repair(self.path)
        storage = optuna.storages.JournalStorage(
            optuna.storages.journal.JournalFileBackend(str(self.path), lock_obj=_OneWriter())  # type: ignore[arg-type]
        )
        directions = [mode + "imize" for _, mode in study.objective]
        name = f"{study.study}-{space_hash(study)}" + (f"-{len(study.seeds)}-seeds" if len(study.seeds) > 1 else "")
        if name in {s.study_name for s in optuna.get_all_study_summaries(storage)}:
            self.study = optuna.load_study(study_name=name, storage=storage)
            kept = [d.name.lower() for d in self.study.directions]
            if kept != directions:
                raise ValueError(
                    f"{self.path}: the stored study wants {kept}, study.yaml {directions}; they must agree"
                )
        else:
            self.study = optuna.create_study(study_name=name, storage=storage, directions=directions)  # type: ignore[arg-type]
            self.study.set_user_attr("objective", dict(study.objective))
        self.grid = grid(study) if study.strategy == "grid" else []
        self._live: dict[int, optuna.Trial] = {}  # asked here and not told
        self.number_of: dict[str, int] = {}
        trials = self.study.get_trials(deepcopy=False)
        self._count = len(trials)  # in the journal; to count them there costs more with every trial
        for trial in trials:
            if "trial" in trial.user_attrs:
                self.number_of[trial.user_attrs["trial"]] = trial.number
            elif trial.state == TrialState.RUNNING:  # killed between ask and the ledger: it never started
                self.study.tell(trial.number, state=TrialState.FAIL)

    def ask(self, trial: str, index: int) -> tuple[int, dict[str, Any]]:
        """The next point, for our trial id; `index` counts sampled trials from 0 (a grid walks by it)."""
        if self.grid and not self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            self.study.enqueue_trial(self.grid[index])  # one that waits already was left by a kill: the same point
            self._count += 1
        self.study.sampler = self._sampler(self._count)
        asked = self.study.ask()
        self._count = max(self._count, asked.number + 1)
        point: dict[str, Any] = {}
        for entry in self.config.searched:
            if self.config.active(point, entry):
                point[entry.path] = _suggest(asked, entry.path, entry.domain)
        asked.set_user_attr("trial", trial)
        self._live[asked.number] = asked
        self.number_of[trial] = asked.number
        return asked.number, point

    def running(self, number: int) -> bool:
        return number in self._live or self.study.get_trials(deepcopy=False)[number].state == TrialState.RUNNING

    def tell(
        self,
        number: int,
        *,
        status: str,
        values: list[float] | None,
        epoch: int = 0,
        excess: Mapping[str, float] | None = None,
    ) -> None:
        """Report the end of an asked trial, `excess` by how much it breaks which constraint (above 0).

        Telling twice is harmless: the first word stands.
        """
        if not self.running(number):
            return
        trial = self._live.pop(number, None) or optuna.Trial(self.study, self._trial_id(number))
        if status != "done":
            trial.set_user_attr("status", status)
        state, values, seen = self._end(status, values, epoch)
        for step, value in seen.items():
            trial.report(value, step=step)
        for name, beyond in self._excess(status, excess).items():
            trial.set_constraint(name, beyond)
        self.study.tell(trial, values, state=state)

    def adopt(
        self,
        trial: str,
        config: TrialConfig,
        *,
        status: str,
        values: list[float] | None,
        epoch: int = 0,
        excess: Mapping[str, float] | None = None,
    ) -> bool:
        """Make a trial known that was not asked here (a baseline, a control, a lost journal, another space).

        False when it is no point of the space (also when something that is not searched differs), or says nothing: the
        ledger keeps it, the sampler must not learn from it.
        """
        state, values, seen = self._end(status, values, epoch)
        if trial in self.number_of or state == TrialState.FAIL:
            return False
        params = self.point_of(config)
        if params is None or self.config.trial_config(params).hash != config.hash:
            return False
        by_path = {entry.path: entry.domain for entry in self.config.searched}
        self.study.add_trial(
            optuna.trial.create_trial(
                state=state,
                params=params,
                distributions={path: _distribution(by_path[path]) for path in params},
                values=values,
                intermediate_values=seen,
                constraints=self._excess(status, excess),
                user_attrs={"trial": trial, **({"status": status} if status != "done" else {})},
            )
        )
        self.number_of[trial] = self._count
        self._count += 1
        return True

    def point_of(self, config: TrialConfig) -> dict[str, Any] | None:
        """The searched values of a configuration; None when it is no point of the space."""
        flat = config.flat()
        point: dict[str, Any] = {}
        for entry in self.config.searched:
            if self.config.active(flat, entry):
                try:
                    point[entry.path] = entry.domain.parse(flat.get(entry.path))
                except ValueError:
                    return None
        return point

    def enqueue(self, point: dict[str, Any]) -> bool:
        """Propose a point before what the strategy chooses; False when it waits already."""
        waiting = self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        if any(trial.system_attrs.get("fixed_params") == point for trial in waiting):
            return False
        self.study.enqueue_trial(point)
        self._count += 1
        return True

    def _end(
        self, status: str, values: list[float] | None, epoch: int
    ) -> tuple[TrialState, list[float] | None, dict[int, float]]:
        """What an end is to Optuna: (state, values, intermediate values).

        A stopped trial is PRUNED at its epoch, below every complete one. PRUNED without a value ranks below every other
        trial: TPE then avoids the region of an infeasible one, which FAIL would not do. So is what was stopped under
        several metrics, because Optuna has no intermediate values there.
        """
        if status == "done" and values:
            return TrialState.COMPLETE, values, {}
        if status == "stopped" and values:
            several = len(self.study.directions) > 1
            return TrialState.PRUNED, None, {} if several else {epoch: values[0]}
        return (TrialState.PRUNED if status in ("stopped", "infeasible") else TrialState.FAIL), None, {}

    def _excess(self, status: str, excess: Mapping[str, float] | None) -> dict[str, float]:
        """Finite constraint values; without any an infeasible trial would rank above one that breaks a constraint."""
        names = [f"{name} {side} {bound:g}" for name, side, bound in self.config.constraints]
        found = {**dict.fromkeys(names, MOST)} if status == "infeasible" else dict(excess or {})
        return {name: min(value, MOST) for name, value in found.items()}

    def _trial_id(self, number: int) -> int:
        return self.study.get_trials(deepcopy=False)[number]._trial_id

    def _sampler(self, count: int) -> optuna.samplers.BaseSampler:
        seed = int(np.random.SeedSequence([self.config.seed, count]).generate_state(1)[0])
        strategy = STRATEGIES[self.config.strategy].sampler
        if strategy == "nsga2":
            population = int(np.clip(self.config.trials // 4, 8, 50))
            # by default a child gets one of its parameters anew: of one alone it would keep nothing of its parents
            alone = len(self.config.inherited) == 1
            between = {"crossover": BLXAlphaCrossover(), "crossover_prob": 1.0, "mutation_prob": 0.1} if alone else {}
            return optuna.samplers.NSGAIISampler(population_size=population, seed=seed, **between)  # type: ignore[arg-type]
        if strategy in ("random", "grid"):
            return optuna.samplers.RandomSampler(seed=seed)
        # groups are for parameters that only some trials have; without them they cost and change nothing
        conditional = any(entry.when for entry in self.config.searched)
        return BoundedTPE(multivariate=True, group=conditional, constant_liar=True, seed=seed)


def space_hash(study: StudyConfig) -> str:
    """Identity of what is searched: Optuna cannot change the choices of a study that has begun."""
    text = json.dumps([repr(entry) for entry in study.searched])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _suggest(trial: optuna.Trial, path: str, domain: Domain) -> Any:
    if isinstance(domain, Choice):
        return trial.suggest_categorical(path, list(domain.values))
    if isinstance(domain, Int):
        return trial.suggest_int(path, domain.low, domain.high, log=domain.log)
    assert isinstance(domain, Float)
    return domain.parse(trial.suggest_float(path, domain.low, domain.high, log=domain.log))


def _distribution(domain: Domain) -> optuna.distributions.BaseDistribution:
    if isinstance(domain, Choice):
        return optuna.distributions.CategoricalDistribution(list(domain.values))
    if isinstance(domain, Int):
        return optuna.distributions.IntDistribution(domain.low, domain.high, log=domain.log)
    assert isinstance(domain, Float)
    return optuna.distributions.FloatDistribution(domain.low, domain.high, log=domain.log)


def _repair(path: Path) -> None:
    """Cut a line torn by a kill, which would make every later line unreadable."""
    if path.is_file():
        raw = path.read_bytes()
        whole = raw.rfind(b"\n") + 1
        if whole < len(raw):
            with path.open("r+b") as journal:
                journal.truncate(whole)
