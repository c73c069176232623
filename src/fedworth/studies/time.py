"""Time (the paper's Section VII-D): what FedSV and ComFedSV cost by Monte Carlo, N = 10 … 100, 30 % a round.

The paper's figure has the ratio FedSV / ComFedSV settle at .25–.28, near the participation rate, from counts of O(T
K² ln K) and O(T N K ln N). Algorithm 1 as printed measures only prefixes inside I_t, expected M[N +
(T−1)K/(N−K+1)], which is another law. Counted for T = 10 and T = 100; timed in processor seconds on one thread at the
T of the scale, by the plain loop and by the fast oracle, both from recorded models to values (the completion included).
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedworth.federation.simulation.settings import settings_from
from fedworth.federation.simulation.simulate import participants_of as drawn
from fedworth.studies.results.outcome import Cell, Claim, Outcome, Panel, Series, claim_of
from fedworth.studies.results.statistics import mean_of
from fedworth.studies.results.study import Rows, Study
from fedworth.studies.trials.extents import Extent
from fedworth.studies.trials.readings import cost_plans
from fedworth.studies.trials.settings import Setup
from fedworth.studies.trials.trial import Row, Trial

RATE, NEAR, PAPERS_RATIO, COUNTED_ROUNDS = 0.3, 0.1, "0.25–0.28", (10, 100)
COLUMNS = (
    "n_clients", "n_rounds", "how", "fedsv", "comfedsv", "ratio", "n_seeds",
)  # fmt: skip
SHOWN = ("N", "T", "measured as", "FedSV", "ComFedSV", "FedSV / ComFedSV", "paper")


def trials(setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Trial]:
    """Federations of 10, 20, … clients, 30 % of them a round."""
    return [
        Trial(
            replace(
                setup.iid().federation(seed),
                n_clients=n,
                n_participants=round(RATE * n),
                n_rounds=extent.n_rounds,
                test_limit=setup.test_limit or 500,
                with_truth=False,
            ),
            reading="cost",
            monte_carlo=True,
            n_permutations=extent.n_permutations,
        )
        for n in range(10, extent.n_clients + 1, extent.client_step)
        for seed in seeds
    ]


def papers_count(n_clients: int, n_participants: int) -> float:
    """The ratio of the paper's own counts: K² ln K for FedSV, N K ln N for ComFedSV."""
    return n_participants * math.log(n_participants) / (n_clients * math.log(n_clients))


def counted(row: Row, n_rounds: int) -> tuple[int, int]:
    """How many utilities FedSV and ComFedSV measure in a federation of so many rounds; nothing is trained for it."""
    federation = replace(settings_from(row["federation"]), n_rounds=n_rounds)
    participants = np.zeros((n_rounds, federation.n_clients), dtype=bool)
    for round_index, chosen in enumerate(drawn(federation)):
        participants[round_index, chosen] = True
    plans = cost_plans(participants, Trial(federation, n_permutations=row["n_permutations"]))
    return plans["fedsv"].n_evaluations, plans["comfedsv"].n_evaluations


def findings(rows: Rows) -> Outcome:
    """Counts, times and their ratios by the number of clients."""
    cells = [cell for found in rows.values() for of_n in _by_clients(found) for cell in _cells(of_n)]
    return Outcome(
        study="time",
        title="Time: what the two metrics cost",
        columns=COLUMNS,
        rows=tuple(cells),
        shown=SHOWN,
        lines=tuple(_line(row) for row in cells),
        claims=tuple(settling_claim(how, n_rounds, cells) for how, n_rounds in _ways(cells)),
        panels=_panels(cells),
    )


def _by_clients(rows: Sequence[Row]) -> list[list[Row]]:
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row["federation"]["n_clients"], []).append(row)
    return list(found.values())


def _cells(rows: list[Row]) -> list[tuple[Cell, ...]]:
    """All ways of measuring, for one number of clients."""
    federation = rows[0]["federation"]
    n, k, n_rounds = federation["n_clients"], federation["n_participants"], federation["n_rounds"]
    made: list[tuple[Cell, ...]] = []
    for rounds in COUNTED_ROUNDS:
        counts = [counted(row, rounds) for row in rows]
        made.append(_cell(n, rounds, "evaluations", counts))
        made.append((n, rounds, "the paper's count", None, None, papers_count(n, k), len(rows)))
    for oracle in ("loop", "fast"):
        seconds = [row["reading"]["seconds"][oracle] for row in rows]
        made.append(_cell(n, n_rounds, f"seconds, {oracle}", [(s["fedsv"], s["comfedsv"]) for s in seconds]))
    return made


def _cell(n: int, n_rounds: int, how: str, costs: Sequence[tuple[float, float]]) -> tuple[Cell, ...]:
    fedsv, comfedsv = (mean_of([pair[side] for pair in costs]).value for side in (0, 1))
    return n, n_rounds, how, fedsv, comfedsv, fedsv / comfedsv, len(costs)


def _line(row: tuple[Cell, ...]) -> tuple[str, ...]:
    n, n_rounds, how, fedsv, comfedsv, ratio, _ = row
    form = ",.0f" if how == "evaluations" else ".2f"
    costs = ["–" if cost is None else f"{cost:{form}}" for cost in (fedsv, comfedsv)]
    return str(n), str(n_rounds), str(how), *costs, f"{ratio:.2f}", PAPERS_RATIO if n == 100 else "–"


def _ways(cells: Sequence[tuple[Cell, ...]]) -> list[tuple[str, int]]:
    return list(dict.fromkeys((str(row[2]), int(row[1] or 0)) for row in cells if row[2] != "the paper's count"))


def settling_claim(how: str, n_rounds: int, cells: Sequence[tuple[Cell, ...]]) -> Claim:
    """Whether the ratio is near the participation rate at the two largest numbers of clients."""
    mine = [row for row in cells if row[2] == how and row[1] == n_rounds]
    ratios = [float(row[5] or 0) for row in mine]
    why = f"{ratios[0]:.2f} at the fewest clients, " + " and ".join(f"{r:.2f}" for r in ratios[-2:]) + " at the most"
    what = f"by {how}, T = {n_rounds}: the ratio settles near the participation rate of .3"
    settled = all(abs(ratio - RATE) <= NEAR for ratio in ratios[-2:]) if len(ratios) > 1 else None
    return claim_of(what, settled, why, n_seeds=int(mine[-1][6] or 0))


def _panels(cells: Sequence[tuple[Cell, ...]]) -> tuple[Panel, ...]:
    ratios = []
    for how, n_rounds in [*_ways(cells), ("the paper's count", COUNTED_ROUNDS[0])]:
        mine = [row for row in cells if row[2] == how and row[1] == n_rounds]
        name = how if how.startswith("the paper") else f"{how}, T = {n_rounds}"
        ratios.append(Series(name, [float(row[0] or 0) for row in mine], [float(row[5] or 0) for row in mine]))
    timed = [row for row in cells if row[2] == "seconds, loop"]
    n = [float(row[0] or 0) for row in timed]
    curves = (
        Series("fedsv", n, [float(r[3] or 0) for r in timed]),
        Series("comfedsv-counts", n, [float(r[4] or 0) for r in timed]),
    )
    return (
        Panel("Ratio FedSV / ComFedSV", "clients", "ratio", tuple(ratios), logarithmic=True, limits=(0.1, 10)),
        Panel(f"Plain loop, T = {timed[0][1]}", "clients", "processor seconds", curves, logarithmic=True),
    )


STUDY = Study(
    "time",
    "The ratio between the computing times of FedSV and ComFedSV approaches a constant near the participation rate.",
    trials,
    findings,
    (
        "The paper takes every prefix of every permutation to be evaluated in every round, $\\mathcal O(TNK\\log "
        "N)$. Algorithm 1 evaluates only those inside $I_t$, of which uniform permutations give few: "
        "$M[N+(T-1)K/(N-K+1)]$ are expected with $M=N\\ln N$, against at most $TK\\cdot K\\ln K$ of FedSV "
        "([theory](theory.md#10-cost)). Their ratio grows in proportion to $T$ as long as the first round dominates, "
        "and tends to $T(K/N)^2$ as $N$ grows: .9 at $T=10$ and 9 at $T=100$ for $K=.3N$, and $K/N$ only where "
        "$T=N/K$. FedSV is counted without a round that hears everyone, which it does not need. Seconds are "
        "processor seconds on one thread; they are not in proportion to the counts: in the plain loop averaging a "
        "coalition costs in proportion to its size, and the first round's reach all clients; the fast oracle shares "
        "work among coalitions; and ComFedSV's include the completion.",
    ),
    is_timed=True,
)
