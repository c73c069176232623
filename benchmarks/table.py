"""Run a benchmark, show what it prints, and put its tables where docs/benchmarks.md has them.

    python benchmarks/table.py [--write docs/benchmarks.md] oracle.py --threads logistic MLP

Ends with the benchmark's own exit code. A page names a benchmark by `python benchmarks/…`; what follows, up to the next
name, is about it. Its tables are replaced by those printed, in their order; more than the page has follow the last one,
or the paragraph with the name, and those that were not printed again are taken out. A benchmark that the page does not
name, or that printed no table, changes nothing and is an error. So a page comes from one run:
`make bench TABLES=docs/benchmarks.md`.
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
    paragraphs = [list(lines) for is_blank, lines in groupby(page, lambda line: not line) if not is_blank]
    here = _places(paragraphs, name)
    if not here or not tables:
        raise SystemExit(f"{name}: {len(tables)} tables printed, named {len(here)} times in the page: nothing replaced")
    old = [place for place in here if paragraphs[place][0].startswith("|")]
    kept = dict(zip(old, [[table] for table in tables], strict=False))
    last = old[-1] if old else here[0]
    kept[last] = [*kept.get(last, [] if old else [paragraphs[last]]), *tables[len(old) :]]
    made = [kept.get(k, [] if k in old else [lines]) for k, lines in enumerate(paragraphs)]
    return "\n\n".join("\n".join(lines) for part in made for lines in part).split("\n")


def _places(paragraphs: list[Lines], name: str) -> list[int]:
    """The paragraphs about a benchmark: from the one that names it to the next name or heading."""
    found, is_here = [], False
    for place, lines in enumerate(paragraphs):
        names = NAMED.findall("\n".join(lines))
        is_here = names[-1] == name if names else is_here and not lines[0].startswith("#")
        found += [place] if is_here else []
    return found


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
