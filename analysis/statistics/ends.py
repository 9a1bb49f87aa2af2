"""Where an axis may end, and where a range does: ends at which every run failed."""

import numpy as np


def worst_shown(scores: np.ndarray, better: int) -> float:
    """Where an axis of scores may end on the worse side: 1.5 interquartile ranges beyond the quartile (Tukey)."""
    q1, q3 = np.quantile(scores, [0.25, 0.75])
    reach = 1.5 * (q3 - q1)
    return float(max(scores.min(), q1 - reach) if better > 0 else min(scores.max(), q3 + reach))


def failing_end(position: np.ndarray, failed: np.ndarray, parameters: int) -> tuple[float | None, float | None]:
    """Positions beyond which every run failed, at the low and the high end; None where there is no such end.

    An end counts when at least five runs in a row failed there and chance would fail them all, at the overall rate
    and over every end of every parameter, less than once in a hundred studies.
    """
    order = np.argsort(position, kind="stable")
    rate = float(failed.mean()) if len(failed) else 0.0

    def run(indices: np.ndarray) -> float | None:
        ok = np.flatnonzero(~failed[indices])
        count = int(ok[0]) if len(ok) else 0  # everything failed: no end to speak of
        if count < 5 or 2 * parameters * rate**count > 0.01:
            return None
        return float(position[indices[count]])

    return run(order), run(order[::-1])
