"""The command line: verbs and how they are told; the work is done elsewhere.

Progress goes to stderr, results to stdout. Exit 0: the work is done; 1: trials failed, or nothing feasible was found;
2: refused input, one line; 3: the storage failed, and 130: interrupted: the study is whole and can be resumed.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from mmts_ray import __version__, interop, storage
from mmts_ray.results import Unwritable

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
EPILOG = """\
a first study:
  mmts-ray check search_spaces/demo.yaml
  mmts-ray search search_spaces/demo.yaml --out studies/demo
  mmts-ray confirm studies/demo
  mmts-ray report studies/demo
"""


def main(argv: list[str] | None = None) -> int:
    """Run one verb; returns the exit status."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    if rest:  # argparse gives up on path=value words that follow an option
        if any(word.startswith("-") or "=" not in word for word in rest) or "overrides" not in args:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        args.overrides += rest
    try:
        with storage.opened(writes=args.run is not _status) as late:
            exit_status = int(args.run(args) or 0)
        return exit_status or (1 if late else 0)
    except ValueError as problem:
        print(f"mmts-ray: {storage.told(str(problem))}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has left, as `| head` does
        return 0
    except (KeyboardInterrupt, Unwritable) as stop:
        storage_failed = isinstance(stop, Unwritable)
        study = getattr(args, "study", None) or getattr(args, "out", None)
        hint = f"; continue with `mmts-ray resume {storage.name(study)}`" if study else ""
        print(f"\nmmts-ray: {stop if storage_failed else 'interrupted'}{hint}", file=sys.stderr)
        return 3 if storage_failed else 130


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, like every other refusal; the usage is one --help away."""
        self.exit(2, f"mmts-ray: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="mmts-ray",
        description="Search, and trust, the hyperparameters of multi-modal contrastive learning.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mmts-ray {__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    def verb(name: str, run: Callable[[argparse.Namespace], int | None], help: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=help, description=help)
        added.set_defaults(run=run)
        return added

    def space_arguments(added: argparse.ArgumentParser) -> None:
        added.add_argument("space", metavar="SPACE.yaml", type=Path)
        added.add_argument("overrides", metavar="path=value", nargs="*", help="as in train.epochs=5 or trials=8")

    params = verb("params", _params, "what may be set: domain, default, unit, source")
    params.add_argument("name", nargs="?", help="a section (loss), or one function of it (info_nce)")
    params.add_argument("--markdown", action="store_true", help="as a Markdown table")
    params.add_argument("--json", action="store_true")

    check = verb("check", _check, "validate a search-space file; print the resolved study and what it will cost")
    space_arguments(check)
    check.add_argument("--json", action="store_true")

    prepare = verb("prepare", _prepare, "encode the features now (otherwise done on first use)")
    space_arguments(prepare)

    train = verb("train", _train, "one run of one configuration, without Ray")
    space_arguments(train)
    train.add_argument("--baseline", metavar="NAME", help="the named baseline of a search-space file")
    train.add_argument("--test", action="store_true", help="evaluate the test split after the last epoch")
    train.add_argument(
        "--threads", type=int, default=1, help="CPU threads (default 1: the same numbers as in a search)"
    )
    train.add_argument("--json", action="store_true", help="one JSON line per evaluation")

    search = verb("search", _search, "run a study: baselines first, then trials chosen by the strategy")
    space_arguments(search)
    search.add_argument(
        "--out",
        metavar="STUDY",
        type=storage.argument,
        help="its folder (default studies/NAME), s3://bucket/path or gs://...",
    )
    search.add_argument("--resume-if-exists", action="store_true", help="continue the study that --out already holds")
    _ray_arguments(search)

    submit = verb("submit", _submit, "run a study on a cluster as a Ray Job; safe to run again, it resumes")
    space_arguments(submit)
    submit.add_argument("--out", metavar="STUDY", required=True, help="the study's folder, as the cluster sees it")
    submit.add_argument("--address", default="http://127.0.0.1:8265", help="the dashboard (default %(default)s)")
    submit.add_argument("--allow-failures", type=int, default=0, metavar="N", help="failed trials that still exit 0")
    submit.add_argument("--no-wait", action="store_true", help="do not follow the job")

    for name, run, help in (
        ("resume", _resume, "continue a study: nothing finished is lost or run twice"),
        ("extend", _extend, "more trials or seeds, a wider space, or planned runs, for a study"),
        ("confirm", _confirm, "rerun the baselines and the best configurations on fresh seeds, test split included"),
    ):
        added = verb(name, run, help)
        added.add_argument("study", metavar="STUDY", type=storage.argument)
        _ray_arguments(added)
        if name == "extend":
            for what, kind in (("trials", int), ("seeds", int), ("hours", float), ("device-hours", float)):
                added.add_argument(f"--{what}", type=kind, default=0, metavar="N", help=f"how many {what} to add")
            added.add_argument(
                "--space", type=Path, metavar="SPACE.yaml", help="take `search:` and `baseline:` from this file"
            )
            added.add_argument(
                "--plan", type=Path, metavar="PLAN.yaml", help="instead: run what `report --plan` found missing"
            )
        if name == "confirm":
            added.add_argument(
                "--top", type=int, metavar="K", help="configurations besides the baselines (default: the study's)"
            )
            added.add_argument("--seeds", type=int, metavar="N", help="fresh seeds (default: the study's)")

    status = verb("status", _status, "what is finished, running and best so far")
    status.add_argument("study", metavar="STUDY", type=storage.argument)
    status.add_argument("--json", action="store_true")
    status.add_argument("--watch", action="store_true", help="live, until Ctrl-C")

    report = verb("report", _report, "write the robustness report: one offline HTML file and its JSON twin")
    report.add_argument(
        "study", metavar="STUDY", type=storage.argument, nargs="+",
        help="several: one page that compares them, several.html in the first one's report folder",
    )  # fmt: skip
    report.add_argument("--json", action="store_true", help="print the summary as JSON")
    report.add_argument(
        "--plan", nargs="?", const="", metavar="FILE",
        help="instead: which runs are missing, why and at what cost, for `extend --plan` (default STUDY/plan.yaml)",
    )  # fmt: skip

    interop.add_verbs(verb)

    collect = verb("collect", _collect, "rebuild results.parquet, one row per trial, from the ledger")
    collect.add_argument("study", metavar="STUDY", type=storage.argument)
    return parser


def _ray_arguments(added: argparse.ArgumentParser) -> None:
    added.add_argument("--address", default="local", help="'local' (default), or the address of a running Ray cluster")
    added.add_argument("--allow-failures", type=int, default=0, metavar="N", help="failed trials that still exit 0")
    added.add_argument("--quiet", action="store_true", help="no progress")


def _params(args: argparse.Namespace) -> int:
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


def _check(args: argparse.Namespace) -> int:
    from mmts_ray import reference

    resolved = reference.resolved(_load(args))
    print(json.dumps(resolved, indent=2) if args.json else reference.describe(resolved))
    return 0


def _features(study: Any, *, quiet: bool = False) -> Any:
    from mmts_ray import loggers, prepare
    from mmts_ray.cache import default_cache_dir

    loggers.missing(study.loggers)  # refused before the long part
    return prepare.features(study.encoding, cache_dir=default_cache_dir(), quiet=quiet)


def _prepare(args: argparse.Namespace) -> int:
    frozen = _features(_load(args))
    images, captions = len(frozen.image_NI), len(frozen.text_M)
    print(f"{images} images, {captions} captions ({len(frozen.text_UT)} different), key {frozen.key}")
    return 0


def _train(args: argparse.Namespace) -> int:
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


def _search(args: argparse.Namespace) -> int:
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


def _submit(args: argparse.Namespace) -> int:
    from mmts_ray import submit

    return submit.submit(
        _load(args), args.out, address=args.address, allow_failures=args.allow_failures, wait=not args.no_wait
    )


def _resume(args: argparse.Namespace) -> int:
    from mmts_ray import folder

    study = folder.open_study(args.study)
    return _run_search(args, study, args.study, _features(study, quiet=args.quiet))


def _extend(args: argparse.Namespace) -> int:
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


def _confirm(args: argparse.Namespace) -> int:
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


def _status(args: argparse.Namespace) -> None:
    from mmts_ray import status

    if args.watch:
        return status.watch(args.study, as_json=args.json)
    storage.refresh(args.study)
    now = status.read(args.study)
    print(json.dumps(now, indent=2) if args.json else status.text(now))


def _report(args: argparse.Namespace) -> int:
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


def _collect(args: argparse.Namespace) -> int:
    from mmts_ray import folder, results

    folder.open_study(args.study)
    path = results.collect(args.study)
    storage.keep(args.study, path)
    print(path)
    return 0
