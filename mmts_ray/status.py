"""Where a study stands, from its ledger alone."""

from pathlib import Path
from typing import Any

from mmts_ray import results, storage


def read(study_dir: Path) -> dict[str, Any]:
    """Trials by status and kind, the best so far with what it changed, device-hours; ValueError when it is no study."""
    meta = results.read_meta(study_dir)
    trials = list(results.trials_of(study_dir).values())
    (metric, mode), *_ = meta["objective"].items()
    sign = 1 if mode == "max" else -1
    done = [t for t in trials if t["status"] == "done" and t.get(f"metric.{metric}") is not None]
    searched = [t for t in done if t["kind"] in ("search", "baseline")]
    best = max(searched, key=lambda t: sign * t[f"metric.{metric}"], default=None)
    counts: dict[str, int] = {}
    for trial in trials:
        counts[trial["status"]] = counts.get(trial["status"], 0) + 1
    return {
        "study": meta["study"],
        "folder": storage.name(study_dir),
        "metric": metric,
        "mode": mode,
        "counts": counts,
        "kinds": {kind: sum(t["kind"] == kind for t in trials) for kind in results.KINDS},
        "wanted": meta["trials"],
        "device_hours": sum(t.get("device_seconds") or 0 for t in trials) / 3600,
        "lost_device_hours": sum(t.get("lost_device_seconds") or 0 for t in trials) / 3600,
        "first_error": next((f"{t['trial']}: {t.get('error')}" for t in trials if t["status"] == "failed"), None),
        "best": best
        and {
            "trial": best["trial"],
            "name": best.get("name"),
            metric: best[f"metric.{metric}"],
            "parameters": {p["path"]: best.get(f"param.{p['path']}") for p in meta["space"]},
        },
    }


def text(now: dict[str, Any]) -> str:
    """`read` in a few lines."""
    counts = ", ".join(f"{n} {status}" for status, n in sorted(now["counts"].items())) or "none yet"
    kinds = ", ".join(f"{n} {kind}" for kind, n in now["kinds"].items() if n)
    lost = now["lost_device_hours"]
    lines = [
        f"{now['study']} ({now['folder']}): {counts}" + (f" ({kinds})" if kinds else ""),
        f"device-hours {now['device_hours']:.3g}"
        + (f", {lost:.2g} of them trained again after a kill" if lost else ""),
    ]
    best = now["best"]
    if best:
        name = f" ({best['name']})" if best["name"] else ""
        values = ", ".join(
            f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}"
            for k, v in best["parameters"].items()
            if v is not None
        )
        lines.append(f"best so far: {best['trial']}{name} {now['metric']} {best[now['metric']]:.4f}  {values}")
    return "\n".join(lines)
