"""Unfairness of FedSV (Observation 1 with its figure, and Example 1).

Observation 1 bounds the chance that two clients with the same data are set apart by sδ or more, by P_s. Example 1:
MNIST, non-IID, 50 runs, d > 0.5 between clients 0 and 9 in 65 % of them. As printed P_s is no probability: (1 − p)
stands for (1 − 2p). The trials are those of `fairness` on the same data.
"""

import math
from collections.abc import Sequence

import numpy as np

from fedworth.arrays import stream
from fedworth.studies.fairness import COPY, SOURCE, trials
from fedworth.studies.results.comparing import accuracy_of, at_setting, bound_claim, label, place_of
from fedworth.studies.results.outcome import Cell, Claim, Outcome, Panel, Series
from fedworth.studies.results.records import Record, csv_of, grouped, numbers, shortened, value_records
from fedworth.studies.results.statistics import Interval, chance_of
from fedworth.studies.results.study import Rows, Study
from fedworth.studies.trials.methods import FOUR, RIVAL
from fedworth.theory.observation1 import difference_chance, unfairness_bound, unfairness_chance

N_CLIENTS, N_ROUNDS, N_PARTICIPANTS, N_DRAWS = 10, 10, 3, 20_000
PAPERS_CHANCE, ABOUT = 0.65, 0.15
SHOWN = ("data, steps × rate", "accuracy", *(label(key) for key in FOUR), "FedSV, d as printed", "seeds")
ALL_SHOWN = ("s", "P_s as printed", "P_s corrected", "exact, σ = 0", "simulated")


def printed_bound(n_clients: int, n_participants: int, n_rounds: int, s: int) -> float:
    """P_s as the paper prints it, reading n as T."""
    p = difference_chance(n_clients, n_participants)
    total = 0.0
    for a in range(s, n_rounds + 1):
        for b in range((n_rounds - a) // 2 + 1):
            ways = math.comb(n_rounds, b) * math.comb(n_rounds - b, a + b)
            total += ways * p ** (2 * b + a) * (1 - p) ** (n_rounds - 2 * b - a)
    return total


def simulated_chances(n_draws: int = N_DRAWS) -> list[Interval]:
    """How often uniform draws of participants set two clients apart by s rounds or more, s from 0 to T."""
    rng = stream(0, "observation 1")
    order = rng.permuted(np.tile(np.arange(N_CLIENTS), (n_draws * N_ROUNDS, 1)), axis=1)[:, :N_PARTICIPANTS]
    lead = (order == 0).any(axis=1).astype(int) - (order == 1).any(axis=1)  # (n_draws · T,)
    apart = np.abs(lead.reshape(n_draws, N_ROUNDS).sum(axis=1))  # (n_draws,)
    return [chance_of((apart >= s).tolist()) for s in range(N_ROUNDS + 1)]


def records_of(rows: Rows) -> list[Record]:
    """d of every method, and FedSV's as the paper prints it."""
    printed: dict[tuple[Cell, ...], float | None] = {
        (setup, row["seed"]): printed_difference(
            row["reading"]["values"][RIVAL][SOURCE], row["reading"]["values"][RIVAL][COPY]
        )
        for setup, found in rows.items()
        for row in found
    }
    return [
        {**record, "printed_d": printed[record["setup"], record["seed"]] if record["method"] == RIVAL else None}
        for record in value_records(rows, ("d",))
    ]


def shown(records: Sequence[Record]) -> Outcome:
    """P_s beside what it bounds, and the share of runs that set the two clients apart."""
    simulated = simulated_chances()
    places = grouped(records, "setup")
    columns, rows = csv_of(records)
    return Outcome(
        study="unfairness",
        title="Unfairness of FedSV: Observation 1 and Example 1",
        columns=columns,
        rows=rows,
        shown=SHOWN,
        lines=tuple(_line(found) for found in places.values()),
        claims=(*_bound_claims(simulated), *(at_setting(_run_claim(found), found) for found in places.values())),
        panels=(_bound_panel(simulated), _run_panel(list(places.values()))),
        all_shown=ALL_SHOWN,
        all_lines=tuple(_bound_line(s, simulated[s]) for s in (1, 2, 3, 5)),
    )


def _bound_line(s: int, simulated: Interval) -> tuple[str, ...]:
    setting = (N_CLIENTS, N_PARTICIPANTS, N_ROUNDS, s)
    found = (printed_bound(*setting), unfairness_bound(*setting), unfairness_chance(*setting))
    return (str(s), *(f"{number:.3f}" for number in found), simulated.text())


def _apart(records: Sequence[Record], key: str) -> Interval:
    return chance_of([d > 0.5 for d in numbers(grouped(records, "method").get((key,), []), "d")])


def _line(records: Sequence[Record]) -> tuple[str, ...]:
    printed = chance_of([d > 0.5 for d in numbers(records, "printed_d")])
    shares = [_apart(records, key) for key in FOUR]
    texts = [found.text() if key == RIVAL else f"{found.value:.2f}" for key, found in zip(FOUR, shares, strict=True)]
    as_printed = f"{printed.value:.2f} of the {printed.n} where it is defined" if printed.n else "nowhere defined"
    return (place_of(records[0]), f"{accuracy_of(records):.2f}", *texts, as_printed, str(shares[0].n))


def printed_difference(first: float, second: float) -> float | None:
    """d as the paper prints it, |s_i − s_j| / max{s_i, s_j}; none where neither value is positive."""
    return abs(first - second) / max(first, second) if max(first, second) > 0 else None


def _bound_claims(simulated: list[Interval]) -> list[Claim]:
    setting = (N_CLIENTS, N_PARTICIPANTS, N_ROUNDS)
    printed = printed_bound(*setting, 1)
    bounded = all(unfairness_bound(*setting, s) <= simulated[s].high for s in range(1, N_ROUNDS + 1))
    return [
        Claim("P_s as printed is a probability", printed <= 1, f"P_1 = {printed:.2f} for N = 10, m = 3, T = 10"),
        Claim("P_s corrected bounds the chance from below", bounded, "against 20,000 simulated runs, s = 1…10"),
    ]


def _run_claim(records: Sequence[Record]) -> Claim:
    found = _apart(records, RIVAL)
    data = place_of(records[0]).partition(",")[0]
    bounds = {"least": PAPERS_CHANCE - ABOUT, "most": PAPERS_CHANCE + ABOUT}
    return bound_claim(f"{data}: FedSV has d > .5 in about 65 % of runs (50 to 80 %)", found, found.text(), **bounds)


def _bound_panel(simulated: list[Interval]) -> Panel:
    steps = list(range(1, N_ROUNDS + 1))
    series = [Series("simulated, m = 3", steps, [simulated[s].value for s in steps])]
    for m in (1, 3, 5):
        bounds = [unfairness_bound(N_CLIENTS, m, N_ROUNDS, s) for s in steps]
        series.append(Series(f"P_s corrected, m = {m}", steps, bounds))
    printed = [printed_bound(N_CLIENTS, N_PARTICIPANTS, N_ROUNDS, s) for s in steps]
    series.append(Series("P_s as printed, m = 3", steps, printed))
    return Panel("Observation 1 (N = 10, T = 10)", "s", "chance of |s_i − s_j| ≥ sδ", tuple(series), limits=(0, 1.6))


def _run_panel(places: Sequence[Sequence[Record]]) -> Panel:
    series = []
    for key in FOUR:
        found = [_apart(records, key) for records in places]
        bounds = [one.low for one in found], [one.high for one in found]
        series.append(Series(key, list(range(len(places))), [one.value for one in found], *bounds))
    return Panel(
        "Example 1", "", "share of runs with d > .5", tuple(series), "bars",
        ticks=tuple(place_of(records[0]) for records in places), levels=(("FedSV, paper", PAPERS_CHANCE),),
    )  # fmt: skip


STUDY = Study(
    "unfairness",
    "FedSV sets clients with the same data apart with probability P_s; on MNIST d₀₉ > 0.5 in 65 % of 50 runs.",
    trials,
    lambda rows: shown(shortened(records_of(rows))),
    (
        "A cell has the share of runs with *d* > .5. $P_s$ as printed has $(1-p)$ where $(1-2p)$ belongs "
        "([theory](theory.md#6-observation-1-fedsv-is-unfair)), and *d* as printed divides by $\\max(s_0,s_9)$, which "
        "fails where neither value is positive.",
    ),
    shown=shown,
)
