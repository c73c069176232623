"""Measures: all methods of `fedworth compare` on the same ledgers, compared with the truth. Not one of the paper's."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

import fedworth
from studies import figures
from studies.federations import simulated
from studies.setups import Extent, Setup
from studies.study import Case, Row, Section, Study
from studies.tables import NONE, number, table
from studies.values import jaccard

FLIPPED, NOISY_OF_TEN = 0.3, 2
NAMES = (
    "comfedsv-models", "comfedsv", "fedsv", "all-clients-round", "leave-one-out", "banzhaf", "beta-shapley",
    "least-core", "tmc", "gtg", "mr", "or", "influence", "cosine",
)  # fmt: skip
SLOW, MOST_FOR_SLOW = ("tmc", "gtg", "mr", "or"), 12
"""Methods that evaluate permutations of all clients until the values settle; too slow for a hundred clients."""


def cases(name: str, setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Case]:
    """Federations in which the last client copies the first, or two of ten clients have noisy labels."""
    n = extent.n_clients
    changes: dict[str, Any] = {"n_clients": n, "n_rounds": extent.n_rounds, "with_truth": True}
    changes["n_participants"] = 3 if n == 10 else n // 10
    if extent.special:
        n_noisy = NOISY_OF_TEN * n // 10
        changes["flip_shares"] = (FLIPPED,) * n_noisy + (0.0,) * (n - n_noisy)
    else:
        changes["copies"] = ((n - 1, 0),)
    return [Case(name, setup.federation(seed, **changes)) for seed in seeds]


def trial(case: Case, scratch: Path, data: Path | None) -> list[Row]:
    """One row a method."""
    settings = case.federation
    ledger, task = simulated(settings, scratch, data)
    noisy = np.flatnonzero(settings.flip_shares).tolist()
    setting = f"{settings.dataset}, {'noisy labels' if noisy else 'two classes each'}, N = {settings.n_clients}"
    names = [name for name in NAMES if settings.n_clients <= MOST_FOR_SLOW or name not in SLOW]
    copies = [(ledger.clients[copy], ledger.clients[source]) for copy, source in settings.copies]
    rows = []
    for found in fedworth.compare(ledger, task, names=names, copies=copies, work=fedworth.WorkSettings(n_threads=1)):
        document, made = found.document(), found.valuation
        document.pop("values")
        document["seconds"] = document.pop("cpu_seconds")  # the method's; a trial has processor seconds of its own
        overlap = jaccard(made.values, noisy) if noisy and made is not None else None
        named = {"setting": setting, "label": found.method if made is None else made.label}
        rows.append({**named, **document, "jaccard": overlap})
    return rows


def section(frame: pd.DataFrame) -> Section:
    """Medians over seeds, one line a setting and method."""
    groups = [found for _, found in frame.groupby(["setting", "method"], sort=False)]
    refused = frame[frame.refusal.notna()]
    return Section(
        table(_line(found) for found in groups),
        panels=[lambda axes: _draw(frame, axes)],
        notes=[f"{row.method}: {row.refusal}" for row in refused.drop_duplicates("method").itertuples()],
        n_names=2,
    )


def _line(frame: pd.DataFrame) -> dict[str, str]:
    middle = frame.median(numeric_only=True).reindex(
        ["error", "rank_correlation", "copies_gap", "jaccard", "evaluations", "seconds"]
    )
    return {
        "setting": str(frame.setting.iloc[0]),
        "method": str(frame.label.iloc[0]),
        "error": number(middle.error),
        "rank correlation": number(middle.rank_correlation),
        "gap": number(middle.copies_gap),
        "Jaccard": number(middle.jaccard),
        "evaluations": NONE if frame.refusal.notna().any() else number(middle.evaluations, ",.0f"),
        "s": number(middle.seconds, ".1f"),
        "seeds": str(frame.seed.nunique()),
    }


def _draw(frame: pd.DataFrame, axes: Axes) -> None:
    names = list(frame.method.unique())
    for position, (setting, found) in enumerate(frame.groupby("setting", sort=False)):
        ranked = found.groupby("method").rank_correlation.median().reindex(names)
        figures.line(axes, str(setting), range(len(names)), ranked, position, ls="")
    axes.set_xticks(range(len(names)), [str(place + 1) for place in range(len(names))])
    axes.set(title="rank correlation", xlabel="method, in the order of the table", ylabel="with the truth")


STUDY = Study(
    "measures",
    "Methods side by side",
    "All methods of `fedworth compare LEDGER --methods all`, on the same ledgers and the same oracle. Each starts "
    "from nothing, so its cost is its own. Three of ten clients a round, or ten of a hundred; ten rounds, the first "
    "with all clients. *Error* is the distance between centred values and centred true values, relative to the length "
    "of the latter. Methods with another scale, or of one round only (cosine, the all-clients round, Banzhaf, "
    "Beta-Shapley), are better judged by their *rank correlation* with the truth. *Gap* is the difference between the "
    "first client and its copy, relative to the spread of the method's own values. *Jaccard* is the overlap of the "
    "clients with 30 % flipped labels and the equally many of lowest value. Medians over seeds. Retraining is left "
    "out because it trains a federation for each coalition. For a hundred clients TMC, GTG, MR and OR are left out: "
    "they evaluate permutations of all clients until the values settle, which takes too long.",
    section,
    scales={
        "page": {
            "digits": Extent(5),
            "mnist-10": Extent(5),
            "flips-10": Extent(5, special="noisy labels"),
            "digits-100": Extent(5, n_clients=100),
            "mnist-100": Extent(5, n_clients=100),
            "flips-100": Extent(5, n_clients=100, special="noisy labels"),
        },
        "tiny": {"digits": Extent(1, 2)},
    },
    cases=cases,
    trial=trial,
    is_timed=True,
    page="fidelity.md",
)
