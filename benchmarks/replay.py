"""The same work for every arm: one list of points, one set of arrays, one study whose queue holds the points."""

from pathlib import Path
from typing import Any

import numpy as np

from mmts_ray import folder, prepare, results, space_file
from mmts_ray.cache import default_cache_dir
from mmts_ray.features import Frozen
from mmts_ray.recipe import stream
from mmts_ray.space import sample
from mmts_ray.study import StudyConfig, to_dict

DEMO = Path(__file__).parents[1] / "search_spaces" / "demo.yaml"
TRAIN, VALIDATION = 0, 1


def study_of(*, configurations: int, epochs: int, dropout: bool) -> StudyConfig:
    """The demo's search space: MM-TS InfoNCE, five searched parameters; no baselines, all trials are sampled."""
    overrides: list[tuple[str, Any]] = [("trials", configurations), ("baseline", []), ("train.epochs", epochs)]
    if not dropout:
        overrides += [("model.image_dropout", 0.0), ("model.text_dropout", 0.0)]
    return space_file.load(DEMO, overrides)


def draw(study: StudyConfig, *, seed: int) -> list[dict[str, Any]]:
    """Points of the study's space, independent of the sampler that a search would use."""
    rng = np.random.default_rng(seed)
    return [sample(study.searched, rng) for _ in range(study.trials)]


def features(study: StudyConfig) -> Frozen:
    return prepare.features(study.encoding, cache_dir=default_cache_dir())


def export(study: StudyConfig, frozen: Frozen, to: Path) -> None:
    """What the competitors read: arrays of training and validation pairs, initial weights, order of each epoch."""
    config = study.trial_config(study.example())
    arrays: dict[str, np.ndarray] = {}
    for name, split in (("train", TRAIN), ("val", VALIDATION)):
        rows = np.flatnonzero(frozen.split_N[frozen.image_M] == split)
        for column_m in (frozen.image_M[rows], frozen.text_M[rows], frozen.id_N[frozen.image_M[rows]]):
            # the plain loss and recall take every other row for a wrong one
            assert len(np.unique(column_m)) == len(rows), f"the {name} split has an image, a caption or an id twice"
        arrays[f"{name}_image"] = frozen.image_NI[frozen.image_M[rows]]
        arrays[f"{name}_text"] = frozen.text_UT[frozen.text_M[rows]]
    epochs, pairs = config.kwargs("train")["epochs"], len(arrays["train_image"])
    arrays["order"] = np.stack([stream(config.seed, "order", epoch).permutation(pairs) for epoch in range(epochs)])
    dims = (frozen.image_NI.shape[1], frozen.text_UT.shape[1])
    heads = config.function("model")(*dims, config.seed, **config.kwargs("model"))
    arrays |= {f"initial_{name}": weight.detach().numpy() for name, weight in heads.named_parameters()}
    to.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(to / f"{name}.npy", array)


def task(study: StudyConfig, points: list[dict[str, Any]], *, inputs: Path) -> dict[str, Any]:
    """What the competitors' scripts read besides the arrays."""
    fixed = {k: v for k, v in study.trial_config(points[0]).items if k not in points[0]}
    space = to_dict(study)["search"]
    return {"fixed": fixed, "points": points, "space": space, "inputs": str(inputs)}


def queue(study: StudyConfig, frozen: Frozen, points: list[dict[str, Any]], study_dir: Path) -> None:
    """A study that nothing has run in, whose sampler will hand out exactly these points."""
    from mmts_ray.sampler import Sampler

    folder.create(study, study_dir, frozen, command="benchmarks/sweeps.py")
    sampler = Sampler(study, study_dir)
    for point in points:
        sampler.study.enqueue_trial(point)


def finals(study_dir: Path, points: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Final metrics of a queued study, in the order of the points; RuntimeError when a trial is missing."""
    found: dict[str, dict[str, float]] = {}
    for row in results.trials_of(study_dir).values():
        if row["status"] == "done":
            metrics = {k.removeprefix("metric.val_"): v for k, v in row.items() if k.startswith("metric.val_")}
            found[_key({path: row[f"param.{path}"] for path in points[0]})] = metrics
    missing = [index for index, point in enumerate(points) if _key(point) not in found]
    if missing:
        raise RuntimeError(f"{study_dir}: configurations {missing} have no result")
    return [found[_key(point)] for point in points]


def _key(point: dict[str, Any]) -> str:
    return repr(sorted(point.items()))
