"""Time (Section VII-D): what FedSV and ComFedSV cost by Monte Carlo, N = 10 … 100, 30 % of the clients a round.

In the paper's figure the ratio FedSV / ComFedSV settles at .25–.28, near the participation rate, as O(T K² ln K) and
O(T N K ln N) suggest. Algorithm 1 as printed only measures prefixes inside I_t, M[N + (T−1)K/(N−K+1)] in expectation,
which is another law. We count evaluations for T = 10 and T = 100, and measure processor seconds on one thread, from
recorded models to the completed matrix: by the fast oracle and, up to 70 clients, by the plain loop.
"""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

import fedworth
from fedworth import Federation
from studies import figures
from studies.bars import Claim, all_of, judged, mean_of
from studies.federations import Flags, accuracies, federation, prefixes, random_permutations, simulated
from studies.setups import Extent, Setup
from studies.study import Case, Row, Section, Study
from studies.tables import accuracy_of, mean, number, table

RATE, NEAR, PAPERS_RATIO, COUNTED_ROUNDS = 0.3, 0.1, "0.25–0.28", (10, 100)
MOST_LOOPED = 70  # with a hundred clients the plain loop takes a minute


def cases(name: str, setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Case]:
    """Federations of 10, 20, … clients, 30 % of them a round."""
    return [
        Case(
            name,
            setup.iid().federation(
                seed,
                n_clients=n,
                n_participants=round(RATE * n),
                n_rounds=extent.n_rounds,
                test_limit=setup.test_limit or 500,
                with_truth=False,
            ),
            {"n_permutations": extent.n_permutations},
        )
        for n in range(10, extent.n_clients + 1, extent.step)
        for seed in seeds
    ]


def trial(case: Case, scratch: Path, data: Path | None) -> list[Row]:
    """Evaluations and seconds of both methods."""
    settings, rng = case.federation, np.random.default_rng(case.federation.seed)
    n, k = settings.n_clients, settings.n_participants
    ledger, task = simulated(settings, scratch, data)
    permutations = case.options["n_permutations"] or _default_permutations(n)
    columns = prefixes(random_permutations(n, permutations, rng))[1:]  # without the empty coalition
    costs: dict[str, dict[str, float]] = {}
    for n_rounds in COUNTED_ROUNDS:
        schedule = rng.permuted(np.tile(np.arange(n) < k, (n_rounds, 1)), axis=1)
        schedule[0] = True
        inside = [int((~(columns & ~row).any(axis=1)).sum()) for row in schedule]
        fedsv = sum(len(_orders(k, rng)) for _ in schedule)
        costs[f"evaluations, T = {n_rounds}"] = {"fedsv": fedsv, "comfedsv": sum(inside)}
    oracles: dict[str, Any] = {"fast": fedworth.FastOracle(task, n_threads=1)}
    if n <= MOST_LOOPED:
        oracles["loop"] = fedworth.LoopOracle(task)
    _fedsv_seconds(federation(ledger, task, oracle=oracles["fast"]), k, rng)  # compiles what it needs
    for name, oracle in oracles.items():
        seconds = {"fedsv": _fedsv_seconds(federation(ledger, task, oracle=oracle), k, rng)}
        seconds["comfedsv"] = _comfedsv_seconds(federation(ledger, task, oracle=oracle, permutations=permutations))
        costs[f"seconds, {name}, T = {settings.n_rounds}"] = seconds
    accuracy = accuracies(ledger, task)[-1]
    return [
        {"accuracy": accuracy, "how": how, **found, "ratio": found["fedsv"] / found["comfedsv"]}
        for how, found in costs.items()
    ]


def _default_permutations(n: int) -> int:
    return n * math.ceil(math.log(n))


def _orders(k: int, rng: np.random.Generator) -> Flags:
    """The coalitions that FedSV measures in a round of k participants, without the empty one."""
    return prefixes(random_permutations(k, _default_permutations(k), rng))[1:]


def _fedsv_seconds(of: Federation, k: int, rng: np.random.Generator) -> float:
    """FedSV needs no round with all clients, so k of them stand for that round."""
    start = time.process_time()
    for t in range(len(of.participants)):
        game, coalitions = of.game(t), _orders(k, rng)
        padded = np.zeros((len(coalitions), len(game.clients)), dtype=bool)
        padded[:, :k] = coalitions
        game.utilities(padded)
    return time.process_time() - start


def _comfedsv_seconds(of: Federation) -> float:
    start = time.process_time()
    fedworth.complete(of.utility_matrix())
    return time.process_time() - start


def section(frame: pd.DataFrame) -> Section:
    """Counts, seconds and their ratios by the number of clients."""
    cells = [found for _, found in frame.groupby(["how", "n_clients"], sort=False)]
    cells.sort(key=lambda found: list(frame.how.unique()).index(found.how.iloc[0]))
    ends = frame.groupby("how").n_clients.agg(["min", "max"])
    shown = [found for found in cells if found.n_clients.iloc[0] in set(ends.loc[found.how.iloc[0]])]
    return Section(
        table(_line(found) for found in shown),
        claims=[settling_claim(str(how), found) for how, found in frame.groupby("how", sort=False)],
        panels=[lambda axes: _draw(frame, axes)],
        appendix=table(_line(found) for found in cells),
        n_names=2,
    )


def _line(frame: pd.DataFrame) -> dict[str, str]:
    how, n = str(frame.how.iloc[0]), frame.n_clients.iloc[0]
    form = ",.0f" if how.startswith("evaluations") else ".2f"
    return {
        "N": str(n),
        "measured as": how,
        "FedSV": mean(frame.fedsv, form),
        "ComFedSV": mean(frame.comfedsv, form),
        "FedSV / ComFedSV": mean_of(frame.ratio).text(),
        "paper": PAPERS_RATIO if n == 100 else "–",
        "accuracy": number(accuracy_of(frame)),
        "seeds": str(len(frame)),
    }


def settling_claim(how: str, frame: pd.DataFrame) -> Claim:
    """Whether the ratio is near the participation rate at the two largest numbers of clients."""
    ratios = {n: mean_of(found.ratio) for n, found in frame.groupby("n_clients")}
    last = list(ratios.items())[-2:]
    settled = [judged(ratio, least=RATE - NEAR, most=RATE + NEAR) for _, ratio in last]
    why = " and ".join(f"{ratio.value:.2f} at N = {n}" for n, ratio in last)
    what = f"by {how}: FedSV / ComFedSV settles near the participation rate of .3"
    return Claim(what, all_of(settled) if len(ratios) > 1 else None, why)


def papers_count(n: int) -> float:
    """The ratio of the paper's own counts, K² ln K for FedSV and N K ln N for ComFedSV."""
    k = round(RATE * n)
    return k * math.log(k) / (n * math.log(n))


def _draw(frame: pd.DataFrame, axes: Axes) -> None:
    for position, (how, found) in enumerate(frame.groupby("how", sort=False)):
        ratios = found.groupby("n_clients").ratio.mean()
        figures.line(axes, str(how), list(ratios.index), ratios, position)
    clients = sorted(frame.n_clients.unique())
    figures.line(axes, "the paper's count", clients, [papers_count(int(n)) for n in clients], **figures.PAPER)
    axes.set(title="Ratio FedSV / ComFedSV", xlabel="clients", ylabel="ratio")
    figures.logarithmic(axes, 0.05, 10)


STUDY = Study(
    "time",
    "Time: what the two methods cost",
    "The paper assumes that every prefix of every permutation is evaluated in every round. Algorithm 1 only evaluates "
    "those inside $I_t$, which are few: $M[N+(T-1)K/(N-K+1)]$ in expectation ([theory](theory.md#10-cost)), so the "
    "ratio tends to $T(K/N)^2$. Seconds are processor seconds on one thread, including the completion; the plain loop "
    "was timed for up to 70 clients.",
    section,
    claim="The ratio between the computing times of FedSV and ComFedSV approaches a constant near the participation "
    "rate.",
    scales={
        "page": {"synthetic": Extent(5, 10, n_clients=100, step=30)},
        "tiny": {"synthetic": Extent(1, 3, n_permutations=6)},
    },
    cases=cases,
    trial=trial,
    is_timed=True,
)
