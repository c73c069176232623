"""Fairness (the paper's Section VII-B): do clients 0 and 9, who have the same data, receive the same value?

d = |s_0 − s_9| / max(|s_0|, |s_9|) over seeds, non-IID, N = 10, K = 3, T = 10. The paper shows its distribution for
FedSV and ComFedSV and says that ComFedSV's lies to the left everywhere. A value may be fair and wrong (the heard
round alone has d = 0 by construction), so the rank correlation with the truth stands beside it.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedworth.studies.results.comparing import (
    Numbers,
    by_method,
    label,
    less_claim,
    listed,
    pairs,
    truth_correlations,
)
from fedworth.studies.results.outcome import Cell, Claim, Outcome, Panel, Series
from fedworth.studies.results.statistics import (
    CORRELATIONS,
    chance_of,
    chance_of_less,
    dominance,
    mean_of,
    rounded_correlation,
)
from fedworth.studies.results.study import Rows, Study
from fedworth.studies.trials.extents import Extent
from fedworth.studies.trials.methods import PAPERS, RIVAL
from fedworth.studies.trials.settings import Setup
from fedworth.studies.trials.trial import Row, Trial
from fedworth.theory.fairness import relative_difference

COPY, SOURCE = 9, 0
PAPERS_MEDIANS = {"synthetic": 0.35, "mnist": 0.85, "fashion-mnist": 0.53, "cifar10": 0.63, "cifar10-full": 0.63}
"""Of FedSV, read off the paper's figure."""

PAPERS_MOST = {"synthetic": 0.05, "mnist": 0.09, "fashion-mnist": 0.09, "cifar10": 0.09, "cifar10-full": 0.09}
"""The largest d of ComFedSV in the paper's figure, about."""

FEWEST_TO_CROSS = 20
"""Two distributions of fewer numbers cross, or do not, by chance."""

COLUMNS = (
    "data_set", "method", "n_seeds", "median_d", "mean_d", "share_above_half", "share_low", "share_high", "largest_d",
    "dominates_fedsv", "p_less_than_fedsv", "truth_correlation", "correlation_low", "correlation_high", "n_truth",
)  # fmt: skip
SHOWN = (
    "data", "method", "median d", "paper", "P(d > 0.5)", "largest d", "left of FedSV at", "p", "ρ with truth", "seeds",
)  # fmt: skip


def trials(setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Trial]:
    """Clients 0 to 8 with data of their own, client 9 with that of client 0."""
    return [
        Trial(
            replace(
                setup.federation(seed),
                copies=((COPY, SOURCE),),
                n_rounds=extent.n_rounds,
                with_truth=extent.has_truth(position),
            )
        )
        for position, seed in enumerate(seeds)
    ]


def differences(rows: Sequence[Row]) -> Numbers:
    """d of clients 0 and 9, by method and seed."""
    return by_method(rows, lambda values: relative_difference(values[SOURCE], values[COPY]))


def findings(rows: Rows) -> Outcome:
    """The distribution of d on every data set."""
    numbers = {name: differences(found) for name, found in rows.items()}
    cells = [row for name, found in rows.items() for row in _cells(name, found, numbers[name])]
    return Outcome(
        study="fairness",
        title="Fairness: clients with the same data",
        columns=COLUMNS,
        rows=tuple(cells),
        shown=SHOWN,
        lines=tuple(_line(row) for row in cells),
        claims=tuple(claim for name, found in numbers.items() for claim in _claims(name, found)),
        panels=tuple(_panel(name, found) for name, found in numbers.items()),
        notes=tuple(note for name, found in numbers.items() for note in _notes(name, found)),
    )


def _cells(name: str, rows: Sequence[Row], numbers: Numbers) -> list[tuple[Cell, ...]]:
    correlations = truth_correlations(rows, rounded_correlation)
    made: list[tuple[Cell, ...]] = []
    for key, found in numbers.items():
        d = listed(found)
        above, rho = chance_of([x > 0.5 for x in d]), mean_of(listed(correlations.get(key, {})), CORRELATIONS)
        ours, theirs = pairs(numbers, key, RIVAL)
        against = (None, None) if key == RIVAL else (dominance(ours, theirs), chance_of_less(ours, theirs))
        share = (above.value, above.low, above.high, max(d))
        agreement = (rho.value, rho.low, rho.high, rho.n)
        made.append((name, key, len(d), float(np.median(d)), float(np.mean(d)), *share, *against, *agreement))
    return made


def _line(row: tuple[Cell, ...]) -> tuple[str, ...]:
    cell = dict(zip(COLUMNS, row, strict=True))
    name, key = str(cell["data_set"]), str(cell["method"])
    paper = PAPERS_MEDIANS.get(name) if key == RIVAL else None
    most = PAPERS_MOST.get(name) if key == PAPERS else None
    left = "–" if cell["dominates_fedsv"] is None else f"{cell['dominates_fedsv']:.0%} of t"
    p = "–" if cell["p_less_than_fedsv"] is None else f"{cell['p_less_than_fedsv']:.1g}"
    share = f"{cell['share_above_half']:.2f} [{cell['share_low']:.2f}, {cell['share_high']:.2f}]"
    fewer = "" if cell["n_truth"] == cell["n_seeds"] else f" ({cell['n_truth']})"
    rho = "–" if not cell["n_truth"] else f"{cell['truth_correlation']:.2f}{fewer}"
    known = f"{paper}" if paper else f"≤ {most}" if most else "–"
    seen = (f"{cell['median_d']:.2f}", known, share, f"{cell['largest_d']:.2f}", left, p, rho, str(cell["n_seeds"]))
    return (name, label(key), *seen)


def _claims(name: str, numbers: Numbers) -> list[Claim]:
    ours, theirs = pairs(numbers, PAPERS, RIVAL)
    return [
        less_claim(f"{name}: d smaller than FedSV's", numbers),
        _dominance_claim(f"{name}: P(d ≤ t) at least FedSV's for all t", ours, theirs),
        _largest_claim(f"{name}: d stays below about 0.1", ours),
    ]


def _dominance_claim(what: str, ours: list[float], theirs: list[float]) -> Claim:
    left = dominance(ours, theirs)
    why = f"at {left:.0%} of the thresholds, {len(ours)} seeds"
    if len(ours) < FEWEST_TO_CROSS:
        return Claim(what, None, f"{why}; fewer than {FEWEST_TO_CROSS} decide nothing")
    return Claim(what, left == 1, why)


def _largest_claim(what: str, ours: list[float]) -> Claim:
    """One seed can refute it; a few cannot show it."""
    most = max(ours)
    why = f"largest {most:.2f}, median {np.median(ours):.2f}, {len(ours)} seeds"
    return Claim(what, None if most <= 0.1 and len(ours) < FEWEST_TO_CROSS else most <= 0.1, why)


def _notes(name: str, numbers: Numbers) -> list[str]:
    uniform = "comfedsv-uniform"
    if uniform not in numbers:
        return []
    printed, kinds = less_claim("", numbers, ours=uniform), less_claim("", numbers, theirs=uniform)
    return [
        f"{name}: d with the penalty as printed (uniform) against FedSV: {printed.why}.",
        f"{name}: d with the solver's penalty (counts) against the printed one (uniform): {kinds.why}.",
    ]


def _panel(name: str, numbers: Numbers) -> Panel:
    series = []
    for key, found in numbers.items():
        if key == "truth":
            continue
        d = np.sort(listed(found))
        series.append(Series(key, [0.0, *d.tolist(), 2.0], [0.0, *np.arange(1, len(d) + 1) / len(d), 1.0]))
    return Panel(name, "t", "share of runs with d ≤ t", tuple(series), kind="steps", limits=(0, 1.02))


STUDY = Study(
    "fairness",
    "On all data sets P(d₀₉ ≤ t) is at least as large for ComFedSV as for FedSV, for every t.",
    trials,
    findings,
    (
        "Nothing makes ComFedSV's *d* zero: a coalition of more than three clients is seen in the first round only, "
        "where clients 0 and 9 agree, but smaller ones are seen with one of the two and not with the other. And fair "
        "is not right: the heard round alone has *d* = 0 by construction. So *ρ with truth* (Spearman, mean over "
        "seeds; in brackets how many seeds have a truth, where not all do) stands beside *d*.",
    ),
)
