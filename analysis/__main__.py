"""`python -m analysis STUDY`: write STUDY/report/report.html and report.json, print the path."""

import sys

from .report import summary, write

USAGE = "usage: python -m analysis STUDY"


def main(arguments: list[str]) -> int:
    """Exit 0 when the report has something to compare, 1 when no trial was feasible, 2 for a wrong folder."""
    if arguments in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    if len(arguments) != 1:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        path = write(arguments[0])
        found = summary(arguments[0])
    except (ValueError, OSError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    print(path)
    if not found["feasible"]:
        print(f"warning: {found['reason']}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
