"""What a study has spent, by its ledger, and whether that leaves something for another trial."""

import contextlib
from pathlib import Path

from mmts_ray import results, storage
from mmts_ray.study import StudyConfig

SILENT_SECONDS = 60.0  # a running trial writes more often: over a longer gap nothing ran


class Budget:
    """Follows a study's ledger; confirming and planned reruns are asked for one by one and count nothing."""

    def __init__(self, study: StudyConfig, study_dir: Path) -> None:
        self.study, self.study_dir = study, study_dir
        self.follow = results.Follow(study_dir, steps=False)
        self.reached: dict[str, float] = {}  # device-seconds of each trial's present state
        self.lost = 0.0
        self.seconds = 0.0
        self.last: float | None = None

    def spent(self) -> tuple[float, float]:
        """(hours in which trials ran, device-hours, what kills have cost included)."""
        with contextlib.suppress(ValueError):  # a storage that does not answer now: what is here counts
            storage.refresh(self.study_dir)
        rows = [row for row in self.follow.new() if row["trial"].startswith("t")]
        for row in sorted(rows, key=lambda row: row.get("time", 0.0)):
            if (spent := row.get("device_seconds")) is not None:
                self.lost += max(self.reached.get(row["trial"], 0.0) - spent, 0.0)
                self.reached[row["trial"]] = spent
            now = row.get("time", 0.0)
            if self.last is not None and 0 < now - self.last <= SILENT_SECONDS:
                self.seconds += now - self.last
            self.last = max(now, self.last or now)
        return self.seconds / 3600, (sum(self.reached.values()) + self.lost) / 3600

    def exhausted(self) -> str:
        """Why nothing new may start; "" while something is left."""
        limits = (self.study.budget_hours, self.study.budget_device_hours)
        if limits == (None, None):
            return ""
        for name, limit, spent in zip(("hours", "device_hours"), limits, self.spent(), strict=True):
            if limit is not None and spent >= limit:
                option = name.replace("_", "-")
                return (
                    f"budget.{name}: {spent:.3g} of {limit:g} are spent; what runs will end, nothing new starts; "
                    f"raise it with `mmts-ray extend {storage.name(self.study_dir)} --{option} N`"
                )
        return ""
