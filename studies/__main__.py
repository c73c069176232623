"""python -m studies NAME: run a study and write its page. See `python -m studies --help`."""

import argparse
import os
from pathlib import Path

from fedworth import FedworthError
from studies import NAMES, pages
from studies.setups import SCALES
from studies.study import all_studies, cases_of, study_named
from studies.trials import is_done, rows_of, run


def main(arguments: list[str] | None = None) -> None:
    """Run studies and write their pages."""
    parser = argparse.ArgumentParser("python -m studies", description="Run the paper's studies and write their pages.")
    parser.add_argument("study", help=f"{', '.join(NAMES)}, or all")
    parser.add_argument("--scale", choices=SCALES, default="page", help="how much is run (default: page)")
    parser.add_argument("--out", type=Path, default=Path("runs/studies"), metavar="FOLDER", help="resumed if it exists")
    parser.add_argument("--setup", action="append", default=[], metavar="NAME", help="only this setup (repeatable)")
    parser.add_argument("--seeds", type=seeds_from, default=(), metavar="0-9|3,5,8", help="only these seeds")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="trials side by side")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="data sets (default: $FEDWORTH_DATA)")
    parser.add_argument("--pages-only", action="store_true", help="run nothing; write pages from the rows in FOLDER")
    args = parser.parse_args(arguments)
    if args.jobs < 1:
        parser.error(f"--jobs {args.jobs}: expected 1 or more")
    asked = all_studies() if args.study == "all" else [study_named(args.study)]
    for study in dict.fromkeys(study.rows_of.name for study in asked):
        run_study(study, args)
    pages.write(args.out)


def run_study(name: str, args: argparse.Namespace) -> None:
    """Run one study's trials, and keep its rows for the pages."""
    study = study_named(name)
    cases = cases_of(study, args.scale, args.setup, args.seeds)
    if args.pages_only:
        cases = [case for case in cases if is_done(study, case, args.out)]
        if not cases:
            return
    else:
        try:
            run(study, cases, args.out, data=args.data, n_jobs=args.jobs)
        except FedworthError as error:
            raise SystemExit(str(error)) from error
    options = "".join(f" --setup {setup}" for setup in args.setup)
    options += f" --seeds {','.join(map(str, args.seeds))}" if args.seeds else ""
    command = f"python -m studies {name}{options} --scale {args.scale}"
    pages.keep(study, args.scale, command, cases, rows_of(study, cases, args.out), args.out)


def seeds_from(text: str) -> tuple[int, ...]:
    """Seeds as text: a range such as 0-9, or numbers separated by commas."""
    try:
        parts = [part.partition("-") for part in text.split(",")]
        seeds = [seed for first, _, last in parts for seed in range(int(first), int(last or first) + 1)]
    except ValueError:
        seeds = []
    if not seeds or len(set(seeds)) != len(seeds):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a range such as 0-9, or different numbers such as 3,5,8")
    return tuple(seeds)


if __name__ == "__main__":
    main()
