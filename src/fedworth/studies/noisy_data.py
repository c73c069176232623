"""Noisy data (the paper's Section VII-C): do values fall as noise rises?

N = 10, K = 3, T = 10, IID; Gaussian noise on 5i % of client i's samples. Number: Spearman's correlation between the
values and the true order (client 0 is cleanest). The paper shows one run and does not give its noise
strength. Here are means over seeds; `trials/settings.py` says how the strength was chosen.
"""

from collections.abc import Sequence
from dataclasses import replace

from fedworth.studies.results.comparing import (
    accuracy_of,
    at_setting,
    banded,
    bound_claim,
    by_method,
    label,
    listed,
    more_claim,
    pairs,
    place_of,
    text_of,
)
from fedworth.studies.results.outcome import Claim, Outcome, Panel
from fedworth.studies.results.records import Record, csv_of, grouped, numbers, shortened, value_records
from fedworth.studies.results.statistics import CORRELATIONS, mean_of
from fedworth.studies.results.study import Rows, Study
from fedworth.studies.trials.extents import Extent
from fedworth.studies.trials.methods import FOUR, PAPERS, RIVAL
from fedworth.studies.trials.settings import PAPER_SETUPS, SMALL, Setup
from fedworth.studies.trials.trial import Trial

STEP = 0.05
MEASURES = ("noise_correlation", "rank_correlation", "value_error")
PAPERS_CORRELATIONS = {
    "synthetic-iid": {"truth": 1.0, RIVAL: 0.75, PAPERS: 1.0},
    "mnist": {"truth": 1.0, RIVAL: 0.96, PAPERS: 1.0},
    "fashion-mnist": {"truth": 1.0, RIVAL: 0.85, PAPERS: 0.98},
}
ALMOST = 0.1
"""ComFedSV "almost matches" the truth if its correlation is on average no more than this below the truth's."""

SEES_NOISE = 0.5
"""Below this correlation of the truth's nothing follows from matching it."""

SHOWN = ("data, steps × rate", "accuracy", "truth", *(label(key) for key in FOUR), "paper", "seeds")
ALL_SHOWN = ("data, steps × rate", "method", "Spearman with noise", "ρ with truth", "error", "seeds")


def noisy(setup: Setup, seed: int, n_rounds: int, *, with_truth: bool = True, strength: float | None = None) -> Trial:
    """Ten clients with the same kind of data, the i-th of which has noise on 5i % of its samples."""
    federation = setup.iid().federation(seed)
    shares = tuple(round(STEP * client, 2) for client in range(federation.n_clients))
    return Trial(
        replace(
            federation,
            noise_shares=shares,
            noise_strength=setup.noise_strength if strength is None else strength,
            n_rounds=n_rounds,
            with_truth=with_truth,
        ),
        without_models=setup.is_convolutional,
    )


def trials(setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Trial]:
    """One federation a seed, with the truth where it can be afforded."""
    return [
        noisy(setup, seed, extent.n_rounds, with_truth=extent.has_truth(position))
        for position, seed in enumerate(seeds)
    ]


def records_of(rows: Rows) -> list[Record]:
    """How well each method's values rank the clients from clean to noisy, and by the truth."""
    return value_records(rows, MEASURES)


def shown(records: Sequence[Record]) -> Outcome:
    """Spearman's correlation on every data set."""
    places = grouped(records, "setup")
    columns, rows = csv_of(records)
    return Outcome(
        study="noisy-data",
        title="Noisy data: do values fall as noise rises?",
        columns=columns,
        rows=rows,
        shown=SHOWN,
        lines=tuple(_line(found) for found in places.values()),
        claims=tuple(at_setting(claim, found) for found in places.values() for claim in _claims(found)),
        panels=(_panel(list(places.values())),),
        all_shown=ALL_SHOWN,
        all_lines=tuple(line for found in places.values() for line in _all(found)),
    )


def _line(records: Sequence[Record]) -> tuple[str, ...]:
    of = by_method(records, "noise_correlation")
    texts = [text_of(listed(of.get(key, {}))) for key in ("truth", *FOUR)]
    paper = PAPERS_CORRELATIONS.get(str(records[0]["data_set"]), {})
    known = " / ".join(f"{paper[key]:.2f}" for key in (RIVAL, PAPERS)) if paper else "–"
    n_seeds = len({record["seed"] for record in records})
    return (place_of(records[0]), f"{accuracy_of(records):.2f}", *texts, known, str(n_seeds))


def _all(records: Sequence[Record]) -> list[tuple[str, ...]]:
    made = []
    for (key,), mine in grouped(records, "method").items():
        noise = mean_of(numbers(mine, "noise_correlation"), CORRELATIONS)
        means = [text_of(numbers(mine, name)) for name in ("rank_correlation", "value_error")]
        made.append((place_of(records[0]), label(str(key)), noise.text(), *means, str(noise.n)))
    return made


def _claims(records: Sequence[Record]) -> list[Claim]:
    data, found = place_of(records[0]).partition(",")[0], by_method(records, "noise_correlation")
    claims = [more_claim(f"{data}: ComFedSV ranks by noise better than FedSV", found)]
    what = f"{data}: ComFedSV almost matches the truth (no more than {ALMOST} below)"
    return [*claims, _match_claim(what, found)] if "truth" in found else claims


def _match_claim(what: str, found: dict[str, dict[int, float]]) -> Claim:
    ours, truth = pairs(found, PAPERS, "truth")
    of_truth, below = mean_of(truth).value, mean_of([t - o for t, o in zip(truth, ours, strict=True)])
    why = f"truth {of_truth:.2f}, {below.text()} below it"
    if of_truth < SEES_NOISE:
        return Claim(what, None, f"{why}; a truth below {SEES_NOISE} says nothing")
    return bound_claim(what, below, why, most=ALMOST)


def _panel(places: Sequence[Sequence[Record]]) -> Panel:
    series = []
    for key in ("truth", *FOUR):
        found = [listed(by_method(records, "noise_correlation").get(key, {})) for records in places]
        at = [place for place, numbers in enumerate(found) if numbers]
        series.append(banded(key, at, [mean_of(found[place], CORRELATIONS) for place in at]))
    ticks = tuple(place_of(records[0]).replace(", ", "\n") for records in places)
    return Panel("", "", "Spearman with the true order", tuple(series), "bars", ticks=ticks, limits=(-0.3, 1.05))


def _strengths() -> str:
    return ", ".join(
        f"{PAPER_SETUPS[f'{name}{SMALL}'].noise_strength:g} / {PAPER_SETUPS[name].noise_strength:g}"
        for name in ("mnist-noise", "synthetic-noise")
    )


STUDY = Study(
    "noisy-data",
    "ComFedSV outperforms FedSV and almost matches the ground truth on all four data sets.",
    trials,
    lambda rows: shown(shortened(records_of(rows))),
    (
        "A cell has Spearman's correlation with the order from clean to noisy, mean over seeds; *paper*: FedSV / "
        f"ComFedSV. The noise has {_strengths()} standard deviations of the features (MNIST, synthetic, each "
        "paper-like / practical; Fashion-MNIST as MNIST); the paper does not give its strength. "
        "*Synthetic* has one source for all clients (*v* = 0), which the paper's α = β = 0 has not.",
    ),
    shown=shown,
)
