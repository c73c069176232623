"""Run a benchmark, show what it prints, and put its tables where docs/benchmarks.md has them.

    python benchmarks/table.py [--write docs/benchmarks.md] oracle.py --threads logistic MLP

Ends with the benchmark's own exit code. A page names a benchmark by `python benchmarks/…`; the tables that follow, up
to the next name, are the benchmark's, and are replaced by those printed, in their order. So a page comes from one
run: `make bench TABLES=docs/benchmarks.md`.
"""

import argparse
import re
import subprocess
import sys
from itertools import groupby
from pathlib import Path

HERE = Path(__file__).parent
NAMED = re.compile(r"`python benchmarks/([^`]+?)(?: --data \w+)?`")

Lines = list[str]


def tables_of(lines: Lines) -> list[Lines]:
    """The Markdown tables among lines."""
    return [list(rows) for is_table, rows in groupby(lines, lambda line: line.startswith("|")) if is_table]


def shown(benchmark: list[str]) -> tuple[Lines, int]:
    """What a benchmark prints, printed here as well, and its exit code."""
    lines = []
    command = [sys.executable, str(HERE / benchmark[0]), *benchmark[1:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line.rstrip("\n"))
    return lines, process.returncode


def replaced(page: Lines, name: str, tables: list[Lines]) -> Lines:
    """The page with a benchmark's tables in place of those it has."""
    waiting, is_here, made = list(tables), False, Lines()
    for is_table, group in groupby(page, lambda line: line.startswith("|")):
        lines = list(group)
        names = NAMED.findall("\n".join(lines))
        is_here = names[-1] == name if names else is_here
        made += waiting.pop(0) if is_table and is_here and waiting else lines
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables into this page")
    parser.add_argument("benchmark", nargs=argparse.REMAINDER, help="the script, and what it is given")
    args = parser.parse_args()
    lines, code = shown(args.benchmark)
    if args.write:
        page = args.write.read_text().splitlines()
        args.write.write_text("\n".join(replaced(page, " ".join(args.benchmark), tables_of(lines))) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
