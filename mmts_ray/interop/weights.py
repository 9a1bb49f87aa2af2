"""The weights of a trial in the form that other programs load, with preprocessing, tokenizer and configuration."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmts_ray import folder, plan, results, storage
from mmts_ray.config import TrialConfig
from mmts_ray.interop.exports import _refuse_existing, _whole_folder
from mmts_ray.losses import SCHEDULED

CONFIG = "config.yaml"
KEPT = "weights.safetensors"  # of a trial, in the study's folder
HEADS = "heads.safetensors"
State = dict[str, Any]  # parameter -> tensor


def to_weights(study_dir: Path, out: Path, trial: str | None = None) -> list[str]:
    """Write a trial's weights into the new folder OUT, by default those of the best trial that has kept them.

    What the folder holds depends on `model.name` (`WRITERS`); `config.yaml` beside it trains the same again. Returns
    what a reader should know. ValueError when there are no such weights.
    """
    from safetensors.torch import load_file

    study = folder.open_study(study_dir)
    _refuse_existing(out)
    rows = results.trials_of(study_dir)
    row = _chosen(study, study_dir, rows, trial)
    config = plan.config_of(row)
    name = config.name("model")
    if name not in WRITERS:
        raise ValueError(f"model.name: {name} has no form to be exported in; legal are {', '.join(WRITERS)}")
    state = load_file(_file(study_dir, row["trial"]))
    with _whole_folder(out) as made:
        notes = WRITERS[name](config, state, row, made, out.absolute())
        _write_config(made / CONFIG, study.study, row["trial"], config)
        for path in made.rglob("*"):  # some writers make files for their owner only
            path.chmod(0o755 if path.is_dir() else 0o644)
    return [f"{row['trial']} of {study.study} -> {out}", *notes]


def _file(study_dir: Path, trial: str) -> Path:
    path = Path(study_dir) / "checkpoints" / trial / KEPT
    storage.fetch(study_dir, path)
    return path


def _chosen(study: Any, study_dir: Path, rows: dict[str, dict[str, Any]], trial: str | None) -> dict[str, Any]:
    if trial is not None:
        if trial not in rows:
            raise ValueError(f"--trial: {study_dir} has no trial {trial!r}; legal is one of its {len(rows)} trials")
        if not _file(study_dir, trial).is_file():
            raise ValueError(
                f"--trial: no weights of {trial} ({rows[trial]['status']}); kept are those of baselines, of confirmed "
                "runs and of the five best trials"
            )
        return rows[trial]
    judged = {key: row for key, row in rows.items() if row["kind"] in ("baseline", "control", "search")}
    for row in plan.ranked(study, list(plan.grouped(study, judged).values())):
        if _file(study_dir, row["trial"]).is_file():
            return rows[row["trial"]]
    raise ValueError(f"{study_dir}: no finished trial has weights yet")


def _write_config(path: Path, study: str, trial: str, config: TrialConfig) -> None:
    """What `mmts-ray train` reads."""
    import yaml

    content = {"study": f"{study}-{trial}", "fixed": config.flat()}
    path.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), encoding="utf8")


def _mean_temperature(config: TrialConfig, row: dict[str, Any]) -> float | None:
    """Of the last batch; None when the schedule moves something else."""
    value = row.get("metric.train_temperature_mean")
    return float(value) if value and SCHEDULED[config.name("loss")] == "temperature" else None


def _open_clip(config: TrialConfig, state: State, row: dict[str, Any], made: Path, out: Path) -> list[str]:
    """A folder for open_clip's `local-dir:`, whose file of weights also loads by `pretrained=PATH`."""
    import torch
    from safetensors.torch import save_file

    from mmts_ray.encoders import OPEN_CLIP_CONFIG
    from mmts_ray.towers.weights import WEIGHT_FILES, find, save_text_tower

    source = find(config.kwargs("model")["weights"])
    own = {k.removeprefix("network."): v for k, v in state.items() if k.startswith("network.")}
    notes = []
    tau = _mean_temperature(config, row)
    if tau is not None:
        own["logit_scale"] = torch.tensor(math.log(1 / tau), dtype=own["logit_scale"].dtype)
        notes.append(f"logit_scale is that of the mean temperature at the end, {tau:.4g}")
    model_cfg = json.loads(json.dumps(source.model_cfg))
    size = f"context of {source.context_length} tokens"
    if save_text_tower(source, made):
        for key in ("hf_model_name", "hf_tokenizer_name"):
            if key in model_cfg["text_cfg"]:
                model_cfg["text_cfg"][key] = str(out)
        notes.append(f"tokenizer: in the folder, {size}; open_clip_config.json names the folder where it lies now")
    else:
        notes.append(f"tokenizer: open_clip's own byte-pair encoding, {size}")
    preprocess = {k: v for k, v in source.preprocess_cfg.items() if k not in ("size", "mode")}
    content = {"model_cfg": model_cfg, "preprocess_cfg": preprocess}
    (made / OPEN_CLIP_CONFIG).write_text(json.dumps(content, indent=2), encoding="utf8")
    # the model alone, under a name that open_clip does not have, for `pretrained=PATH`
    (made / f"{out.name}.json").write_text(json.dumps(model_cfg, indent=2), encoding="utf8")
    save_file(own, made / WEIGHT_FILES[0], metadata={"format": "pt", "trial": row["trial"]})
    notes.append(f"open_clip.create_model_and_transforms('local-dir:{out}'); again here: model.weights: {out}")
    return notes


def _frozen_heads(config: TrialConfig, state: State, row: dict[str, Any], made: Path, out: Path) -> list[str]:
    """Two linear maps on the features of the frozen encoders; standardisation is folded into the image map."""
    from safetensors.torch import save_file

    from mmts_ray import prepare
    from mmts_ray.config import ENCODING
    from mmts_ray.features import default_cache_dir
    from mmts_ray.train import TrainData

    model = config.kwargs("model")
    heads = {k: state[k] for k in ("image_weight", "image_bias", "text_weight", "text_bias")}
    if model["standardise"]:
        encoding = {k: v for k, v in config.items if k.startswith(ENCODING)}
        frozen = prepare.features(encoding, cache_dir=default_cache_dir(), quiet=True)
        mean_I, deviation_I = TrainData(frozen).standard()
        heads["image_weight"] = heads["image_weight"] / deviation_I
        heads["image_bias"] = heads["image_bias"] - heads["image_weight"] @ mean_I
    metadata = {key: str(model[key]) for key in ("image_encoder", "text_encoder")}
    tau = _mean_temperature(config, row)
    save_file(heads, made / HEADS, metadata={**metadata, **({"temperature": f"{tau:.6g}"} if tau else {})})
    return [f"{out / HEADS}: u = normalise(image_weight x + image_bias) on features of {model['image_encoder']}"]


def _sentence_student(config: TrialConfig, state: State, row: dict[str, Any], made: Path, out: Path) -> list[str]:
    """A folder for sentence-transformers; the heads, which only training needs, stay behind."""
    from mmts_ray.student import export_sentence

    model = config.kwargs("model")
    export_sentence(model, state, made)
    said = f"pooling: {model['pooling']}; tokenizer: in the folder, at most {model['max_length']} tokens"
    return [said, f"SentenceTransformer('{out}'); again here: model.student or model.text_encoder: {out}"]


# by model.name: (configuration, its kept tensors, its ledger record, the new folder, where it will lie) -> notes
Writer = Callable[[TrialConfig, State, dict[str, Any], Path, Path], list[str]]
WRITERS: dict[str, Writer] = {
    "open_clip": _open_clip,
    "frozen_heads": _frozen_heads,
    "sentence_student": _sentence_student,
}
