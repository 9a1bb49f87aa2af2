"""What each verb does with its arguments; an exit status comes back, None for 0."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmts_ray import storage

SHOWN = (
    "train_loss",
    *(
        f"{split}_{name}"
        for split in ("val", "test")
        for name in (
            *("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "i2t_map", "t2i_map", "ndcg", "modality_distance"),
            *("zeroshot_top1", "stsb", "sts_avg"),
        )
    ),
)


def params(args: argparse.Namespace) -> int:
    from mmts_ray import reference

    rows = reference.parameters(args.name)
    if args.json:
        print(json.dumps(rows, indent=2))
    else:
        print(reference.markdown(rows) if args.markdown else reference.plain(rows))
    return 0


def _overrides(args: argparse.Namespace) -> dict[str, Any]:
    from mmts_ray.config import set_path

    return dict(set_path(text) for text in args.overrides)


def _load(args: argparse.Namespace) -> Any:
    from mmts_ray import space_file

    return space_file.load(args.space, _overrides(args))


def check(args: argparse.Namespace) -> int:
    from mmts_ray import reference

    resolved = reference.resolved(_load(args))
    print(json.dumps(resolved, indent=2) if args.json else reference.describe(resolved))
    return 0


def _features(study: Any, *, quiet: bool = False) -> Any:
    from mmts_ray import loggers, prepare
    from mmts_ray.cache import default_cache_dir

    loggers.missing(study.loggers)  # refused before the long part
    return prepare.features(study.encoding, cache_dir=default_cache_dir(), quiet=quiet)


def prepare(args: argparse.Namespace) -> int:
    frozen = _features(_load(args))
    images, captions = len(frozen.image_NI), len(frozen.text_M)
    print(f"{images} images, {captions} captions ({len(frozen.text_UT)} different), key {frozen.key}")
    return 0


def train(args: argparse.Namespace) -> int:
    study = _load(args)
    if args.baseline is not None:
        names = [name for name, _ in study.baselines]
        if args.baseline not in names:
            raise ValueError(
                f"--baseline: {args.baseline!r} is not in the file; legal are {', '.join(names) or 'none'}"
            )
        given = {k: v for k, v in _overrides(args).items() if k in dict(study.fixed)}
        config = study.trial_config({**dict(dict(study.baselines)[args.baseline]), **given})
    elif study.searched:
        paths = ", ".join(entry.path for entry in study.searched)
        raise ValueError(
            f"{args.space}: searches {paths}; fix them with path=value, or take one of its points with --baseline"
        )
    else:
        config = study.trial_config({})
    frozen = _features(study)
    import torch

    from mmts_ray.cache import default_cache_dir
    from mmts_ray.train import TrainData, train

    torch.set_num_threads(args.threads)
    device = "cuda" if study.resources.gpus and torch.cuda.is_available() else "cpu"
    for row in train(config, TrainData(frozen, device=device, cache_dir=default_cache_dir()), test=args.test):
        line = {"epoch": row.epoch, "step": row.step, **row.metrics}
        if args.json:
            print(json.dumps(line), flush=True)
        else:
            print("  ".join(f"{k} {line[k]:.4g}" for k in ("epoch", *SHOWN) if k in line), flush=True)
        if row.infeasible:
            print(f"mmts-ray: infeasible: {row.infeasible}", file=sys.stderr)
            return 1
    return 0


def search(args: argparse.Namespace) -> int:
    from mmts_ray import folder
    from mmts_ray.cache import default_cache_dir

    study = _load(args)
    args.out = args.out or Path("studies") / study.study
    if args.resume_if_exists and folder.is_study(args.out):
        study = folder.same_study(study, args.out)
        return _run_search(args, study, args.out, _features(study, quiet=args.quiet))
    folder.refuse_existing(args.out)
    frozen = _features(study, quiet=args.quiet)
    command = " ".join(["mmts-ray", *sys.argv[1:]])
    folder.create(study, args.out, frozen, command=command, cache_dir=default_cache_dir())
    try:
        return _run_search(args, study, args.out, frozen)
    except ValueError:
        folder.withdraw(args.out)
        raise


def submit(args: argparse.Namespace) -> int:
    from mmts_ray import submit

    return submit.submit(
        _load(args), args.out, address=args.address, allow_failures=args.allow_failures, wait=not args.no_wait
    )


def resume(args: argparse.Namespace) -> int:
    from mmts_ray import folder

    study = folder.open_study(args.study)
    return _run_search(args, study, args.study, _features(study, quiet=args.quiet))


def extend(args: argparse.Namespace) -> int:
    from mmts_ray import folder
    from mmts_ray.cache import default_cache_dir

    if args.plan is not None:
        return _run_plan(args)
    study = folder.extended(folder.open_study(args.study), **{key: getattr(args, key) for key in folder.ADDS})
    frozen = _features(study, quiet=args.quiet)
    folder.update(study, args.study, frozen, cache_dir=default_cache_dir())
    return _run_search(args, study, args.study, frozen)


def _run_plan(args: argparse.Namespace) -> int:
    from mmts_ray import folder, plan_file, results, search

    if any(getattr(args, key) for key in folder.ADDS):
        raise ValueError("--plan: goes without the other options; it runs what the file lists and nothing else")
    study = folder.open_study(args.study)
    plan_file.load(args.plan, study, results.trials_of(args.study))  # refused before anything is encoded
    frozen = _features(study, quiet=args.quiet)
    return _run_trials(args, search.planned, study, args.study, frozen, path=args.plan)


def _run_search(args: argparse.Namespace, study: Any, study_dir: Path, frozen: Any) -> int:
    from mmts_ray import search

    return _run_trials(args, search.search, study, study_dir, frozen)


def confirm(args: argparse.Namespace) -> int:
    from mmts_ray import folder, search

    study = folder.open_study(args.study)
    frozen = _features(study, quiet=args.quiet)
    top = study.confirm_top if args.top is None else args.top
    seeds = study.confirm_seeds if args.seeds is None else args.seeds
    return _run_trials(args, search.confirm, study, args.study, frozen, top=top, seeds=seeds)


def _run_trials(
    args: argparse.Namespace, run: Callable[..., None], study: Any, study_dir: Path, frozen: Any, **what: Any
) -> int:
    """What every verb that trains does around one function of `search`."""
    from mmts_ray import progress
    from mmts_ray.cache import default_cache_dir

    with progress.Trials(study, study_dir, quiet=args.quiet) as shown:
        run(study, study_dir, frozen, **what, cache_dir=default_cache_dir(), progress=shown, address=args.address)
    return _closing(args, study_dir)


def _closing(args: argparse.Namespace, study_dir: Path) -> int:
    """Status on stdout; exit 1 when more trials failed than allowed, or none is feasible."""
    from mmts_ray import results, status

    storage.keep(study_dir, results.collect(study_dir))
    now = status.read(study_dir)
    print(status.text(now))
    failed = now["counts"].get("failed", 0)
    if failed > args.allow_failures:
        print(
            f"mmts-ray: {failed} trials failed, {args.allow_failures} allowed; first: {now['first_error']}",
            file=sys.stderr,
        )
        return 1
    return 0 if now["counts"].get("done", 0) else 1


def status(args: argparse.Namespace) -> None:
    from mmts_ray import status

    if args.watch:
        return status.watch(args.study, as_json=args.json)
    storage.refresh(args.study)
    now = status.read(args.study)
    print(json.dumps(now, indent=2) if args.json else status.text(now))


def report(args: argparse.Namespace) -> int:
    if args.plan is not None:
        from mmts_ray.analysis import plan_text, tables

        if len(args.study) > 1:
            raise ValueError(f"--plan: {len(args.study)} studies; legal is one")
        (study,) = args.study
        path = Path(args.plan) if args.plan else study / "plan.yaml"
        print(plan_text.text(plan_text.write(tables.load(study), path), study, path))
        if not args.plan:
            storage.keep(study, path)
        return 0
    if len(args.study) > 1:
        from mmts_ray.analysis.several import write as several

        made = several.make(args.study)
        path, summary, shown = several.write(made), several.summary(made), several.text
    else:
        from mmts_ray.analysis import report

        path, summary = report.write_and_summarise(args.study[0])
        shown = report.text
    storage.keep(args.study[0], path.parent)
    print(json.dumps(summary, indent=2) if args.json else shown(summary))
    print(f"report: {path}", file=sys.stderr if args.json else sys.stdout)
    return 0 if summary["feasible"] else 1


def collect(args: argparse.Namespace) -> int:
    from mmts_ray import folder, results

    folder.open_study(args.study)
    path = results.collect(args.study)
    storage.keep(args.study, path)
    print(path)
    return 0
