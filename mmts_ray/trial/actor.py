"""A warm actor for trials of one worker: torch, the features and the groups stay loaded between trials."""

import fcntl
from pathlib import Path
from typing import Any

from mmts_ray import results, storage
from mmts_ray.trial import shared
from mmts_ray.trial.checkpoints import OwnCheckpoints
from mmts_ray.trial.group import group_run, interrupted
from mmts_ray.trial.pulse import Pulse


class TrialActor(OwnCheckpoints):
    """Tune's class trainable; `reuse_actors=True` sends it one trial after another."""

    def setup(  # type: ignore[override]
        self, config: dict[str, Any], *, frozen: Any, study_dir: str, options: dict[str, Any]
    ) -> None:
        import torch

        from mmts_ray.train import TrainData

        torch.set_num_threads(max(1, int(options["cpus"])))
        self.study_dir = storage.attach(study_dir, options["storage"])
        self.options = options
        self.refusal = shared.refused_here(study_dir, options["token"])
        if self.refusal:
            return  # nothing is written on a machine where nobody would find it
        self.ledger = results.Ledger(study_dir)
        # held while this process lives: a resumed driver waits until the trials of the killed one have ended
        self.alive = (self.study_dir / "actors.lock").open("a")
        fcntl.flock(self.alive, fcntl.LOCK_SH)
        device = "cuda" if options["gpus"] > 0 and torch.cuda.is_available() else "cpu"
        self.data = TrainData(frozen, device=device, cache_dir=Path(options["cache_dir"]))
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._begin(new_config)
        return True

    def _begin(self, config: dict[str, Any]) -> None:
        if self.refusal:
            return
        if self.data.device == "cuda":
            import torch

            torch.cuda.empty_cache()
        pulse = Pulse(self.options["run"], config["trial"], every=self.options["pulse_seconds"])
        self.run = group_run(
            config, self.data, ledger=self.ledger, study_dir=self.study_dir, options=self.options, beat=pulse.beat
        )

    def step(self) -> dict[str, Any]:
        if self.refusal:
            return interrupted(results.Unwritable(self.refusal))
        try:
            return self.run.step()
        except results.Unwritable as problem:
            return interrupted(problem)

    def keep(self) -> None:
        if not self.refusal:
            self.run.save()

    def cleanup(self) -> None:
        if self.refusal:
            return
        self.ledger.close()
        storage.settle(self.study_dir)
        self.alive.close()
