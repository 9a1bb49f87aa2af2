"""`python -m analysis STUDY`: write STUDY/report/report.html and report.json, print the path.

With several studies it writes several.html and several.json, which compare them, into the first one's report folder.
"""

import sys

from .report import write_and_summarise
from .several import write as several

USAGE = "usage: python -m analysis STUDY [STUDY ...]"


def main(arguments: list[str]) -> int:
    """Exit 0 when the report has something to compare, 1 when no trial was feasible, 2 for a wrong folder."""
    if arguments in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    if not arguments:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        if len(arguments) == 1:
            path, found = write_and_summarise(arguments[0])
        else:
            made = several.make(arguments)
            path, found = several.write(made), several.summary(made)
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
