"""The command line: verbs and how they are told; the work is done elsewhere.

Progress goes to stderr, results to stdout. Exit 0: the work is done; 1: trials failed, or nothing feasible was found;
2: refused input, one line; 3: the storage failed, and 130: interrupted: the study is whole and can be resumed.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from mmts_ray import __version__, interop, storage
from mmts_ray.cli import verbs
from mmts_ray.results import Unwritable

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
        with storage.opened(writes=args.run is not verbs.status) as late:
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
    words = parser.add_subparsers(metavar="VERB", required=True)

    def verb(name: str, run: Callable[[argparse.Namespace], int | None], help: str) -> argparse.ArgumentParser:
        added = words.add_parser(name, help=help, description=help)
        added.set_defaults(run=run)
        return added

    def space_arguments(added: argparse.ArgumentParser) -> None:
        added.add_argument("space", metavar="SPACE.yaml", type=Path)
        added.add_argument("overrides", metavar="path=value", nargs="*", help="as in train.epochs=5 or trials=8")

    params = verb("params", verbs.params, "what may be set: domain, default, unit, source")
    params.add_argument("name", nargs="?", help="a section (loss), or one function of it (info_nce)")
    params.add_argument("--markdown", action="store_true", help="as a Markdown table")
    params.add_argument("--json", action="store_true")

    check = verb("check", verbs.check, "validate a search-space file; print the resolved study and what it will cost")
    space_arguments(check)
    check.add_argument("--json", action="store_true")

    prepare = verb("prepare", verbs.prepare, "encode the features now (otherwise done on first use)")
    space_arguments(prepare)

    train = verb("train", verbs.train, "one run of one configuration, without Ray")
    space_arguments(train)
    train.add_argument("--baseline", metavar="NAME", help="the named baseline of a search-space file")
    train.add_argument("--test", action="store_true", help="evaluate the test split after the last epoch")
    train.add_argument(
        "--threads", type=int, default=1, help="CPU threads (default 1: the same numbers as in a search)"
    )
    train.add_argument("--json", action="store_true", help="one JSON line per evaluation")

    search = verb("search", verbs.search, "run a study: baselines first, then trials chosen by the strategy")
    space_arguments(search)
    search.add_argument(
        "--out",
        metavar="STUDY",
        type=storage.argument,
        help="its folder (default studies/NAME), s3://bucket/path or gs://...",
    )
    search.add_argument("--resume-if-exists", action="store_true", help="continue the study that --out already holds")
    _ray_arguments(search)

    submit = verb("submit", verbs.submit, "run a study on a cluster as a Ray Job; safe to run again, it resumes")
    space_arguments(submit)
    submit.add_argument("--out", metavar="STUDY", required=True, help="the study's folder, as the cluster sees it")
    submit.add_argument("--address", default="http://127.0.0.1:8265", help="the dashboard (default %(default)s)")
    submit.add_argument("--allow-failures", type=int, default=0, metavar="N", help="failed trials that still exit 0")
    submit.add_argument("--no-wait", action="store_true", help="do not follow the job")

    for name, run, help in (
        ("resume", verbs.resume, "continue a study: nothing finished is lost or run twice"),
        ("extend", verbs.extend, "more trials or seeds, a wider space, or planned runs, for a study"),
        (
            "confirm",
            verbs.confirm,
            "rerun the baselines and the best configurations on fresh seeds, test split included",
        ),
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

    status = verb("status", verbs.status, "what is finished, running and best so far")
    status.add_argument("study", metavar="STUDY", type=storage.argument)
    status.add_argument("--json", action="store_true")
    status.add_argument("--watch", action="store_true", help="live, until Ctrl-C")

    report = verb("report", verbs.report, "write the robustness report: one offline HTML file and its JSON twin")
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

    collect = verb("collect", verbs.collect, "rebuild results.parquet, one row per trial, from the ledger")
    collect.add_argument("study", metavar="STUDY", type=storage.argument)
    return parser


def _ray_arguments(added: argparse.ArgumentParser) -> None:
    added.add_argument("--address", default="local", help="'local' (default), or the address of a running Ray cluster")
    added.add_argument("--allow-failures", type=int, default=0, metavar="N", help="failed trials that still exit 0")
    added.add_argument("--quiet", action="store_true", help="no progress")
