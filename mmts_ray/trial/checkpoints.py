"""Tune's idea of a checkpoint against ours: a trial keeps its own, in the study's folder or bucket."""

from ray import tune
from ray.train._internal.session import _TrainingResult


class OwnCheckpoints(tune.Trainable):
    """A class trainable that gives Tune no checkpoint and writes its own, with `keep`, when Tune wants one.

    Tune would copy each to its own folder, which a machine that shares nothing but a bucket cannot see: there every
    pause, and every end, would be an error.
    """

    def keep(self) -> None:
        """Write the trial's own checkpoint, from which it continues, here or elsewhere."""
        raise NotImplementedError

    def save(self, checkpoint_dir: str | None = None) -> _TrainingResult:
        self.keep()
        return _TrainingResult(checkpoint=None, metrics=dict(self._last_result or {}))
