"""Time (the paper's Section VII-D): what FedSV and ComFedSV cost by Monte Carlo, N = 10 … 100, 30 % a round.

The paper's figure has the ratio FedSV / ComFedSV settle at .25–.28, near the participation rate, from counts of O(T
K² ln K) and O(T N K ln N). Algorithm 1 as printed measures only prefixes inside I_t, expected M[N +
(T−1)K/(N−K+1)], which is another law. Counted for T = 10 and T = 100; timed in processor seconds on one thread at the
T of the scale, by the fast oracle and, up to 70 clients, by the plain loop, both from recorded models to values (the
completion included).
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedworth.simulation.settings import settings_from
from fedworth.simulation.simulate import participants_of as drawn
from fedworth.studies.results.comparing import accuracy_of, all_of, judged
from fedworth.studies.results.outcome import Claim, Outcome, Panel, Series
from fedworth.studies.results.records import Record, csv_of, federation_record, grouped, numbers, shortened
from fedworth.studies.results.statistics import mean_of
from fedworth.studies.results.study import Rows, Study
from fedworth.studies.trials.extents import Extent
from fedworth.studies.trials.readings import cost_plans
from fedworth.studies.trials.settings import Setup
from fedworth.studies.trials.trial import Row, Trial

RATE, NEAR, PAPERS_RATIO, COUNTED_ROUNDS = 0.3, 0.1, "0.25–0.28", (10, 100)
SHOWN = ("N", "measured as", "FedSV", "ComFedSV", "FedSV / ComFedSV", "paper", "accuracy", "seeds")


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


def records_of(rows: Rows) -> list[Record]:
    """Counts and seconds of both metrics, for every federation and way of measuring."""
    return [record for setup, found in rows.items() for row in found for record in _costs(setup, row)]


def _costs(setup: str, row: Row) -> list[Record]:
    same = federation_record(setup, row)
    costs: dict[str, tuple[float, float]] = {f"evaluations, T = {n}": counted(row, n) for n in COUNTED_ROUNDS}
    for oracle, seconds in row["reading"]["seconds"].items():
        costs[f"seconds, {oracle}, T = {same['n_rounds']}"] = seconds["fedsv"], seconds["comfedsv"]
    return [
        {**same, "how": how, "fedsv": fedsv, "comfedsv": comfedsv, "ratio": fedsv / comfedsv}
        for how, (fedsv, comfedsv) in costs.items()
    ]


def shown(records: Sequence[Record]) -> Outcome:
    """Counts, times and their ratios by the number of clients."""
    columns, rows = csv_of(records)
    ways = grouped(records, "how")
    cells = [found for mine in ways.values() for found in grouped(mine, "n_clients").values()]
    ends = {how: {min(numbers(mine, "n_clients")), max(numbers(mine, "n_clients"))} for (how,), mine in ways.items()}
    return Outcome(
        study="time",
        title="Time: what the two metrics cost",
        columns=columns,
        rows=rows,
        shown=SHOWN,
        lines=tuple(_line(found) for found in cells if found[0]["n_clients"] in ends[found[0]["how"]]),
        claims=tuple(settling_claim(str(how), found) for (how,), found in ways.items()),
        panels=_panels(records),
        all_shown=SHOWN,
        all_lines=tuple(_line(found) for found in cells),
    )


def _line(records: Sequence[Record]) -> tuple[str, ...]:
    first = records[0]
    form = ",.0f" if str(first["how"]).startswith("evaluations") else ".2f"
    costs = [f"{mean_of(numbers(records, metric)).value:{form}}" for metric in ("fedsv", "comfedsv")]
    paper = PAPERS_RATIO if first["n_clients"] == 100 else "–"
    ratio, accuracy = mean_of(numbers(records, "ratio")).text(), f"{accuracy_of(records):.2f}"
    return (str(first["n_clients"]), str(first["how"]), *costs, ratio, paper, accuracy, str(len(records)))


def settling_claim(how: str, records: Sequence[Record]) -> Claim:
    """Whether the ratio is near the participation rate at the two largest numbers of clients."""
    of = {int(n or 0): mean_of(numbers(found, "ratio")) for (n,), found in grouped(records, "n_clients").items()}
    last = [of[n] for n in sorted(of)[-2:]]
    why = " and ".join(f"{of[n].value:.2f} at N = {n}" for n in sorted(of)[-2:])
    settled = all_of([judged(ratio, least=RATE - NEAR, most=RATE + NEAR) for ratio in last]) if len(of) > 1 else None
    return Claim(f"by {how}: FedSV / ComFedSV settles near the participation rate of .3", settled, why)


def _panels(records: Sequence[Record]) -> tuple[Panel, ...]:
    ratios = []
    for (how,), found in grouped(records, "how").items():
        of = grouped(found, "n_clients")
        y = [mean_of(numbers(mine, "ratio")).value for mine in of.values()]
        ratios.append(Series(str(how), [float(n or 0) for (n,) in of], y))
    clients = sorted(set(numbers(records, "n_clients")))
    expected = [papers_count(int(n), round(RATE * n)) for n in clients]
    ratios.append(Series("the paper's count", clients, expected, is_papers=True))
    return (Panel("Ratio FedSV / ComFedSV", "clients", "ratio", tuple(ratios), logarithmic=True, limits=(0.05, 10)),)


STUDY = Study(
    "time",
    "The ratio between the computing times of FedSV and ComFedSV approaches a constant near the participation rate.",
    trials,
    lambda rows: shown(shortened(records_of(rows))),
    (
        "The paper takes every prefix of every permutation to be evaluated in every round. Algorithm 1 evaluates only "
        "those inside $I_t$, of which there are few: $M[N+(T-1)K/(N-K+1)]$ are expected "
        "([theory](theory.md#10-cost)), so the ratio tends to $T(K/N)^2$. Seconds are processor seconds on one thread, "
        "the completion included; by the plain loop up to 70 clients.",
    ),
    is_timed=True,
    shown=shown,
)
