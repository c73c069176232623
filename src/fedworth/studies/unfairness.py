"""Unfairness of FedSV (Observation 1 with its figure, and Example 1).

Observation 1 bounds the chance that two clients with the same data are set apart by sδ or more, by P_s. Example 1:
MNIST, non-IID, 50 runs, d > 0.5 between clients 0 and 9 in 65 % of them. As printed P_s is no probability: (1 − p)
stands for (1 − 2p). The trials are those of `fairness` on the same data.
"""

import math
from collections.abc import Sequence

import numpy as np

from fedworth.arrays import stream
from fedworth.studies.fairness import COPY, SOURCE, differences, trials
from fedworth.studies.results.comparing import bound_claim, label, listed
from fedworth.studies.results.outcome import Cell, Claim, Outcome, Panel, Series
from fedworth.studies.results.statistics import Interval, chance_of
from fedworth.studies.results.study import Rows, Study
from fedworth.studies.trials.methods import RIVAL
from fedworth.studies.trials.trial import Row
from fedworth.theory.observation1 import difference_chance, unfairness_bound, unfairness_chance

N_CLIENTS, N_ROUNDS, N_PARTICIPANTS, N_DRAWS = 10, 10, 3, 20_000
PAPERS_CHANCE, ABOUT = 0.65, 0.15
COLUMNS = ("part", "what", "value", "low", "high", "n", "paper")
SHOWN = ("", "", "ours", "paper")


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


def findings(rows: Rows) -> Outcome:
    """P_s beside what it bounds, and the share of runs that set the two clients apart."""
    simulated = simulated_chances()
    cells = [*_bound_cells(simulated), *(row for name, found in rows.items() for row in _run_cells(name, found))]
    return Outcome(
        study="unfairness",
        title="Unfairness of FedSV: Observation 1 and Example 1",
        columns=COLUMNS,
        rows=tuple(cells),
        shown=SHOWN,
        lines=tuple(_line(row) for row in cells),
        claims=(*_bound_claims(simulated), *(_run_claim(name, found) for name, found in rows.items())),
        panels=(_bound_panel(simulated), *(_run_panel(name, found) for name, found in rows.items())),
    )


def _bound_cells(simulated: list[Interval]) -> list[tuple[Cell, ...]]:
    made: list[tuple[Cell, ...]] = []
    setting = (N_CLIENTS, N_PARTICIPANTS, N_ROUNDS)
    for s in (1, 2, 3, 5):
        printed, found = printed_bound(*setting, s), simulated[s]
        made.append((f"P_s, s = {s}", "bound, corrected", unfairness_bound(*setting, s), None, None, None, printed))
        made.append((f"P_s, s = {s}", "exact, σ = 0", unfairness_chance(*setting, s), None, None, None, None))
        made.append((f"P_s, s = {s}", "simulated", found.value, found.low, found.high, found.n, None))
    return made


def _run_cells(name: str, rows: Sequence[Row]) -> list[tuple[Cell, ...]]:
    made: list[tuple[Cell, ...]] = []
    for key, numbers in differences(rows).items():
        found = chance_of([d > 0.5 for d in listed(numbers)])
        paper = PAPERS_CHANCE if key == RIVAL else None
        made.append((f"P(d > 0.5), {name}", label(key), found.value, found.low, found.high, found.n, paper))
        if key == RIVAL:
            made.append(_printed_cell(name, rows))
    return made


def printed_difference(first: float, second: float) -> float | None:
    """d as the paper prints it, |s_i − s_j| / max{s_i, s_j}; none where neither value is positive."""
    return abs(first - second) / max(first, second) if max(first, second) > 0 else None


def _printed_chance(rows: Sequence[Row]) -> Interval:
    """How often FedSV's d as printed is above one half, of the runs where it is defined."""
    values = [row["reading"]["values"][RIVAL] for row in rows]
    found = [printed_difference(v[SOURCE], v[COPY]) for v in values]
    return chance_of([d > 0.5 for d in found if d is not None])


def _printed_cell(name: str, rows: Sequence[Row]) -> tuple[Cell, ...]:
    found = _printed_chance(rows)
    what = f"{label(RIVAL)}, d as printed, undefined in {len(rows) - found.n} of {len(rows)}"
    return f"P(d > 0.5), {name}", what, found.value, found.low, found.high, found.n, PAPERS_CHANCE


def _line(row: tuple[Cell, ...]) -> tuple[str, ...]:
    part, what, value, low, high, n, paper = row
    found = Interval(value, low, high, n)  # type: ignore[arg-type]
    ours = f"{value:.3f}" if low is None else f"{found.text()} ({n:,})"
    return str(part), str(what), ours, "–" if paper is None else f"{paper:.2f}"


def _bound_claims(simulated: list[Interval]) -> list[Claim]:
    setting = (N_CLIENTS, N_PARTICIPANTS, N_ROUNDS)
    printed = printed_bound(*setting, 1)
    bounded = all(unfairness_bound(*setting, s) <= simulated[s].high for s in range(1, N_ROUNDS + 1))
    return [
        Claim("P_s as printed is a probability", printed <= 1, f"P_1 = {printed:.2f} for N = 10, m = 3, T = 10"),
        Claim(
            "P_s corrected bounds the chance from below",
            bounded,
            "against 20,000 simulated runs, s = 1…10",
        ),
    ]


def _run_claim(name: str, rows: Sequence[Row]) -> Claim:
    found = chance_of([d > 0.5 for d in listed(differences(rows)[RIVAL])])
    what = f"{name}: FedSV has d > 0.5 in about 65 % of runs (50 to 80 %)"
    bounds = {"least": PAPERS_CHANCE - ABOUT, "most": PAPERS_CHANCE + ABOUT}
    printed = _printed_chance(rows)
    as_printed = f"with d as printed {printed.text()} of the {printed.n} runs where it is defined"
    return bound_claim(what, found, f"{found.text()}, {found.n} seeds; {as_printed}", **bounds)


def _bound_panel(simulated: list[Interval]) -> Panel:
    steps = list(range(1, N_ROUNDS + 1))
    series = [Series("simulated, m = 3", steps, [simulated[s].value for s in steps])]
    for m in (1, 3, 5):
        bounds = [unfairness_bound(N_CLIENTS, m, N_ROUNDS, s) for s in steps]
        series.append(Series(f"P_s corrected, m = {m}", steps, bounds))
    printed = [printed_bound(N_CLIENTS, N_PARTICIPANTS, N_ROUNDS, s) for s in steps]
    series.append(Series("P_s as printed, m = 3", steps, printed))
    return Panel("Observation 1 (N = 10, T = 10)", "s", "chance of |s_i − s_j| ≥ sδ", tuple(series), limits=(0, 1.6))


def _run_panel(name: str, rows: Sequence[Row]) -> Panel:
    series = []
    for key, numbers in differences(rows).items():
        found = chance_of([d > 0.5 for d in listed(numbers)])
        series.append(Series(key, [0], [found.value], [found.low], [found.high]))
    return Panel(
        f"Example 1: {name}", "", "share of runs with d > 0.5", tuple(series), "bars", ticks=("",),
        levels=(("FedSV, paper", PAPERS_CHANCE),),
    )  # fmt: skip


STUDY = Study(
    "unfairness",
    "FedSV sets clients with the same data apart with probability P_s; on MNIST d₀₉ > 0.5 in 65 % of 50 runs.",
    trials,
    findings,
    (
        "The paper's column shows $P_s$ as printed; it has $(1-p)$ where $(1-2p)$ belongs "
        "([theory](theory.md#6-observation-1-fedsv-is-unfair)). *d* is $|s_0-s_9|/\\max(|s_0|,|s_9|)$, from 0 to 2: "
        "the printed denominator $\\max(s_0,s_9)$ fails where neither value is positive; the row *d as printed* is of "
        "the runs where it does not.",
    ),
)
