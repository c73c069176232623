"""Noisy data (the paper's Section VII-C): do values fall as noise rises?

N = 10, K = 3, T = 10, IID; Gaussian noise on 5i % of client i's samples. Number: Spearman's correlation between the
values and the true order (client 0 is cleanest). The paper shows one run and does not give its noise
strength. Here are means over seeds; `trials/settings.py` says how the strength was chosen.
"""

from collections.abc import Sequence
from dataclasses import replace

from fedworth.studies.results.comparing import Numbers, banded, bound_claim, by_method, label, listed, more_claim, pairs
from fedworth.studies.results.outcome import Cell, Claim, Outcome, Panel
from fedworth.studies.results.statistics import CORRELATIONS, Interval, chance_of_less, mean_of, rounded_correlation
from fedworth.studies.results.study import Rows, Study
from fedworth.studies.trials.extents import Extent
from fedworth.studies.trials.methods import PAPERS, RIVAL
from fedworth.studies.trials.settings import Setup
from fedworth.studies.trials.trial import Row, Trial

STEP = 0.05
PAPERS_CORRELATIONS = {
    "synthetic-iid": {"truth": 1.0, RIVAL: 0.75, PAPERS: 1.0},
    "synthetic-0-0": {"truth": 1.0, RIVAL: 0.75, PAPERS: 1.0},
    "mnist": {"truth": 1.0, RIVAL: 0.96, PAPERS: 1.0},
    "fashion-mnist": {"truth": 1.0, RIVAL: 0.85, PAPERS: 0.98},
    "cifar10": {"truth": 0.92, RIVAL: 0.81, PAPERS: 0.84},
}
ALMOST = 0.1
"""ComFedSV "almost matches" the truth if its correlation is on average no more than this below the truth's."""

RANKS_NOISE, SEES_NOISE = 0.8, 0.5
"""The truth ranks the clients by their noise from the first on; below the second nothing follows from matching it."""

COLUMNS = ("data_set", "method", "n_seeds", "correlation", "low", "high", "p_more_than_fedsv", "paper")
SHOWN = ("data", "method", "Spearman", "paper", "p (more than FedSV)", "seeds")


def noisy(setup: Setup, seed: int, n_rounds: int, *, with_truth: bool = True, strength: float | None = None) -> Trial:
    """Ten clients with the same kind of data, the i-th of which has noise on 5i % of its samples."""
    # a client's own source stays its own where the paper calls that IID
    kind = setup if setup.partition == "natural" else setup.iid()
    federation = kind.federation(seed)
    shares = tuple(round(STEP * client, 2) for client in range(federation.n_clients))
    return Trial(
        replace(
            federation,
            noise_shares=shares,
            noise_strength=setup.noise_strength if strength is None else strength,
            n_rounds=n_rounds,
            with_truth=with_truth,
        )
    )


def trials(setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Trial]:
    """One federation a seed, with the truth where it can be afforded."""
    return [
        noisy(setup, seed, extent.n_rounds, with_truth=extent.has_truth(position))
        for position, seed in enumerate(seeds)
    ]


def correlations(rows: Sequence[Row]) -> Numbers:
    """How well each method's values rank the clients from clean to noisy."""
    return by_method(rows, lambda values: rounded_correlation(values, [-client for client in range(len(values))]))


def findings(rows: Rows) -> Outcome:
    """Spearman's correlation on every data set."""
    numbers = {name: correlations(found) for name, found in rows.items()}
    cells = [row for name, found in numbers.items() for row in _cells(name, found)]
    return Outcome(
        study="noisy-data",
        title="Noisy data: do values fall as noise rises?",
        columns=COLUMNS,
        rows=tuple(cells),
        shown=SHOWN,
        lines=tuple(_line(row) for row in cells),
        claims=tuple(claim for name, found in numbers.items() for claim in _claims(name, found)),
        panels=(_panel(numbers),),
        notes=tuple(note for name, found in numbers.items() for note in _notes(name, found)),
    )


def _cells(name: str, numbers: Numbers) -> list[tuple[Cell, ...]]:
    made: list[tuple[Cell, ...]] = []
    for key, found in numbers.items():
        mean = mean_of(listed(found), CORRELATIONS)
        ours, theirs = pairs(numbers, key, RIVAL)
        p = None if key == RIVAL else chance_of_less(theirs, ours)
        paper = PAPERS_CORRELATIONS.get(name, {}).get(key)
        made.append((name, key, mean.n, mean.value, mean.low, mean.high, p, paper))
    return made


def _line(row: tuple[Cell, ...]) -> tuple[str, ...]:
    name, key, n, value, low, high, p, paper = row
    ours = Interval(value, low, high, n).text()  # type: ignore[arg-type]
    texts = ["–" if number is None else f"{number:{form}}" for number, form in ((paper, ".2f"), (p, ".1g"))]
    return str(name), label(str(key)), ours, *texts, str(n)


def _claims(name: str, numbers: Numbers) -> list[Claim]:
    claims = [more_claim(f"{name}: ComFedSV above FedSV", numbers)]
    if "truth" in numbers:
        claims += [_truth_claim(name, numbers), _match_claim(name, numbers)]
    return claims


def _truth_claim(name: str, numbers: Numbers) -> Claim:
    found, paper = mean_of(listed(numbers["truth"]), CORRELATIONS), PAPERS_CORRELATIONS.get(name, {}).get("truth")
    why = f"{found.text()}, {found.n} seeds" + ("" if paper is None else f", paper {paper:.2f}")
    what = f"{name}: the truth ranks the clients by their noise (Spearman at least {RANKS_NOISE})"
    return bound_claim(what, found, why, least=RANKS_NOISE)


def _match_claim(name: str, numbers: Numbers) -> Claim:
    ours, truth = pairs(numbers, PAPERS, "truth")
    what = f"{name}: ComFedSV almost matches the truth (no more than {ALMOST} below it)"
    of_truth, below = mean_of(truth).value, mean_of([t - o for t, o in zip(truth, ours, strict=True)])
    why = f"truth {of_truth:.3f}, truth − ComFedSV {below.text()} on the same {below.n} seeds"
    if of_truth < SEES_NOISE:
        return Claim(what, None, f"{why}; where the truth itself is below {SEES_NOISE}, matching it says nothing")
    return bound_claim(what, below, why, most=ALMOST)


def _notes(name: str, numbers: Numbers) -> list[str]:
    ours, alone = pairs(numbers, PAPERS, "heard-round")
    if not ours:
        return []
    ahead = sum(a > b for a, b in zip(ours, alone, strict=True))
    behind = sum(a < b for a, b in zip(ours, alone, strict=True))
    tests = f"p = {chance_of_less(alone, ours):.2g} for better, {chance_of_less(ours, alone):.2g} for worse"
    means = f"mean {mean_of(ours).value:.2f} against {mean_of(alone).value:.2f}"
    said = f"ComFedSV ranks better than the heard round alone on {ahead} seeds, worse on {behind}"
    return [f"{name}: {said}; {means}, {tests}."]


def _panel(numbers: dict[str, Numbers]) -> Panel:
    names = tuple(numbers)
    keys = list(dict.fromkeys(key for found in numbers.values() for key in found))
    series = []
    for key in keys:
        places = [place for place, name in enumerate(names) if key in numbers[name]]
        series.append(banded(key, places, [mean_of(listed(numbers[names[p]][key]), CORRELATIONS) for p in places]))
    return Panel(
        "Noisy data", "", "Spearman with the true order", tuple(series), "bars", ticks=names, limits=(-1, 1.05)
    )


STUDY = Study(
    "noisy-data",
    "ComFedSV outperforms FedSV and almost matches the ground truth on all four data sets.",
    trials,
    findings,
    (
        "The paper calls α = β = 0 IID; every client then still has a source of its own (*synthetic-0-0*). "
        "*synthetic-iid* has one source for all. The paper shows one run and does not give the noise's strength; "
        "ours is 10 standard deviations of the features (see *sensitivity*). The truth of the convolutional models "
        "costs ten times the rest, so it is measured on as many seeds as stated below, or not at all.",
    ),
)
