"""Every attack, counted: `python -m tools.torture [NAME …] [--share 1.0] [--seed 0]`.

Prints one JSON object, an attack a key; ends with an error if anything went wrong. `--share` makes all of them smaller.
docs/reliability.md has the table.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tools.torture.corruption import corruptions
from tools.torture.full_device import full_device
from tools.torture.hostile import hostile
from tools.torture.kills import kills
from tools.torture.options import option_fuzz
from tools.torture.power import artefact_cuts, power_cuts
from tools.torture.recorders import readers, recorders
from tools.torture.reports import edited_reports
from tools.torture.stock import clear
from tools.torture.tasks import changed_tasks

Outcome = tuple[dict[str, Any], list[str]]


def kill(place: Path, share: float, seed: int) -> Outcome:
    """Kills at random instants."""
    done, n_trials, wrong = kills(place, round(200 * share), seed)
    return {"kills": dict(done), "n_kills": done.total(), "trials_with_equal_bytes": n_trials - len(wrong)}, wrong


def corrupt(_: Path, share: float, seed: int) -> Outcome:
    """Corrupted ledgers."""
    jobs = [(seed + k, round(10_000 * share) // 20) for k in range(20)]
    found, missed = Counter[str](), list[str]()
    with multiprocessing.Pool(2) as pool:
        for counts, problems in pool.imap_unordered(corruptions, jobs):
            found += counts
            missed += problems
    return {"kinds": dict(sorted(found.items())), "n_corrupted": found.total()}, missed


def fill(place: Path, share: float, _: int) -> Outcome:
    """Devices that are full."""
    n_refused, wrong = full_device(place, max(3, round(50 * share)))
    return {"n_refused": n_refused}, wrong


def power(place: Path, share: float, seed: int) -> Outcome:
    """Power cuts."""
    n_random, n_again = max(1, round(12 * share)), max(1, round(20 * share))
    n_cuts, wrong = power_cuts(place / "ledger", n_rounds=4, n_random=n_random, n_again=n_again, seed=seed)
    n_artefacts, odd = artefact_cuts(place / "artefact", n_random=n_random, seed=seed)
    return {"n_cuts": n_cuts, "n_cuts_of_an_artefact": n_artefacts}, wrong + odd


def crowd(place: Path, share: float, seed: int) -> Outcome:
    """Several recorders at one ledger."""
    n_trials = max(1, round(200 * share))
    n_rounds, wrong = recorders(place, n_trials, seed)
    return {"n_trials": n_trials, "n_rounds": n_rounds, "n_lost": len(wrong)}, wrong


def look(place: Path, share: float, seed: int) -> Outcome:
    """Readers beside a recorder."""
    n_trials = max(1, round(20 * share))
    return {"n_trials": n_trials}, readers(place, n_trials, seed)


def lie(place: Path, share: float, seed: int) -> Outcome:
    """Hostile models and counts."""
    ends, wrong = hostile(place, seed, share)
    return {"ends": dict(sorted(ends.items())), "n_tried": ends.total()}, wrong


def change(place: Path, _: float, seed: int) -> Outcome:
    """Changes of a task, answered from its cache or not."""
    ends, wrong = changed_tasks(place, seed)
    return {"ends": dict(sorted(ends.items())), "n_tried": ends.total()}, wrong


def edit(place: Path, share: float, seed: int) -> Outcome:
    """Edited reports and artefacts."""
    done, wrong = edited_reports(place, share, seed)
    return {"edits": dict(sorted(done.items())), "n_edits": done.total()}, wrong


def fuzz(place: Path, share: float, seed: int) -> Outcome:
    """Odd options."""
    ends, wrong = option_fuzz(round(1400 * share), seed, place)
    return {"ends": dict(sorted(ends.items())), "n_calls": ends.total()}, wrong


ATTACKS: dict[str, Callable[[Path, float, int], Outcome]] = {
    each.__name__: each for each in (kill, crowd, look, power, fill, corrupt, lie, change, edit, fuzz)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(ATTACKS)} (default: all)")
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    outcomes, wrong = {}, list[str]()
    for name in args.names or ATTACKS:
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="fedworth-torture-") as folder:
            os.environ["FEDWORTH_CACHE"] = str(Path(folder) / "cache")
            counted, problems = ATTACKS[name](Path(folder) / "place", args.share, args.seed)
            clear(Path(folder))
        outcomes[name] = {**counted, "n_wrong": len(problems), "seconds": round(time.monotonic() - start)}
        sys.stderr.write(f"{name}: {json.dumps(outcomes[name])}\n" + "".join(f"{text}\n" for text in problems[:20]))
        wrong += problems
    sys.stdout.write(json.dumps(outcomes, indent=2) + "\n")
    if wrong:
        raise SystemExit(f"{len(wrong)} attacks went through")


if __name__ == "__main__":
    main()
