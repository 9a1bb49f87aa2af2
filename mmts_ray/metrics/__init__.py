"""How good an embedding is.

`paired` where a caption is right or wrong, `graded` where it is right by degrees, `similarity` of scored sentences.
"""

from typing import Annotated, Any

from mmts_ray.metrics.graded import MEASURES, THIRDS, multi_instance, thirds
from mmts_ray.metrics.paired import (
    CUTOFFS,
    TERCILES,
    alignment,
    by_tercile,
    evaluate,
    modality_accuracy,
    modality_distance,
    probe_accuracy,
    ranks,
    retrieval,
    uniformity,
    zeroshot_top1,
)
from mmts_ray.metrics.similarity import STS_TASKS, spearman, sts_scores
from mmts_ray.space import Choice, Int

__all__ = [
    "CUTOFFS",
    "MEASURES",
    "METRICS",
    "STS_TASKS",
    "TERCILES",
    "THIRDS",
    "alignment",
    "by_tercile",
    "evaluate",
    "head_tail",
    "modality_accuracy",
    "modality_distance",
    "multi_instance",
    "probe_accuracy",
    "ranks",
    "retrieval",
    "spearman",
    "sts_scores",
    "thirds",
    "uniformity",
    "zeroshot_top1",
]


def head_tail(
    *,
    source: Annotated[
        str,
        Choice(
            ("captions", "classes", "images"),
            doc="what head, middle and tail are told apart by: clusters of captions or images, or the data's classes",
            source="arXiv:2603.08202",
        ),
    ] = "captions",
    k: Annotated[
        int, Int(2, 10000, log=True, doc="number of clusters, when the source is clustered", unit="clusters")
    ] = 50,
    probe: Annotated[
        bool,
        Choice(
            (True, False),
            doc="at the end, a linear probe: class of an image from its embedding (seconds, with many classes)",
        ),
    ] = False,
) -> tuple[str, dict[str, Any]]:
    """The fixed grouping behind head, middle and tail: the name of a group source and its arguments.

    It is not that of `groups.*`, so that trials which search over their own groups stay comparable. Whether to `probe`
    is for whoever evaluates; it groups nothing.
    """
    return source, {} if source == "classes" else {"k": k, "seed": 0}


# What `evaluate` may return, each with its better direction ("" = neither); an objective is val_ and one of these.
METRICS: dict[str, str] = {
    **{f"{way}r{k}": "max" for way in ("", "i2t_", "t2i_") for k in CUTOFFS},
    "i2t_median_rank": "min",
    "t2i_median_rank": "min",
    "modality_distance": "min",
    "modality_accuracy": "min",
    "probe_accuracy": "max",
    "zeroshot_top1": "max",
    "alignment": "min",
    "uniformity": "min",
    **{f"{tercile}_r{k}": "max" for tercile in TERCILES for k in CUTOFFS},
    **{f"{way}{name}": "max" for way in ("", "i2t_", "t2i_") for name in MEASURES},
    **{f"{part}_map": "max" for part in (*TERCILES, *THIRDS)},
    **{task: "max" for task in (*STS_TASKS, "sts_avg")},
    **{f"n_{part}": "" for part in (*TERCILES, *THIRDS)},
}
