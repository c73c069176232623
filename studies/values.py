"""The trial that most studies share: one federation, valued by every method, and how good the values are.

    value_error        ‖centred values − centred truth‖ / ‖centred truth‖; 1 is as good as "all are worth the same"
    rank_correlation   Spearman's correlation with the truth
    matrix_error       ‖U − Û‖ / ‖U‖ of the completed utility matrix
    d                  |s_0 − s_9| / max(|s_0|, |s_9|), where client 9 is a copy of client 0
    printed_d          the same with max(s_0, s_9), as the paper prints it; none if both values are negative
    gap                |s_0 − s_9| / mean |truth|
    noise_correlation  Spearman's correlation with the order from clean to noisy clients
    jaccard            overlap of the noisy clients with the equally many clients of lowest value

The all-clients round stands for all rounds, so its values are multiplied by T.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedworth import Federation, FedworthError
from studies.bars import rank_correlation
from studies.federations import Floats, Truth, accuracies, comfedsv, federation, simulated
from studies.methods import METHODS, Method, label
from studies.study import Case, Row
from studies.tables import table


def trial(case: Case, scratch: Path, data: Path | None) -> list[Row]:
    """One row a method. Options: `n_permutations`, `without_models`, `only` (one method)."""
    options, settings = case.options, case.federation
    ledger, task = simulated(settings, scratch, data)
    permutations = options.get("n_permutations")
    of = federation(ledger, task, sampled=False, permutations=permutations, seed=settings.seed)  # few clients: exact
    truth = Truth(of) if settings.with_truth else None
    same: Row = {"accuracy": accuracies(ledger, task)[-1]}
    if truth is not None:
        same["second_singular"] = float(truth.singular_values[1] / truth.singular_values[0])
    rows = []
    for key, method in METHODS.items():
        is_asked = options.get("only", key) == key and not (method.reads_models and options.get("without_models"))
        if not is_asked or (key == "truth" and truth is None):
            continue
        try:
            values, completion = _valued(of, method, truth)
        except FedworthError:  # a method may refuse, for example without a round that has all clients
            continue
        times = settings.n_rounds if key == "all-clients-round" else 1
        found = measures(values * times, None if truth is None else truth.values, settings)
        if truth is not None and completion is not None:
            found["matrix_error"] = truth.error_of(completion)
        rows.append({**same, "method": key, **found})
    return rows


def _valued(of: Federation, method: Method, truth: Truth | None) -> tuple[Floats, Any]:
    """The values by a method, and its completion if it has one."""
    if method.factors is not None:
        return comfedsv(of.utility_matrix(), method.factors)
    if method.of == "truth" and truth is not None:
        return truth.values, None
    return of.value(method.of).values, of.by_models() if method.reads_models else None


def measures(values: Any, truth: Any, settings: Any) -> Row:
    """How good the values are, by all measures that the federation has."""
    found: Row = {}
    if truth is not None:
        found["value_error"] = value_error(values, truth)
        found["rank_correlation"] = rank_correlation(values, truth)
    if settings.copies:
        (copy, source), *_ = settings.copies
        found |= differences(float(values[source]), float(values[copy]))
        if truth is not None:
            found["gap"] = float(abs(values[source] - values[copy]) / np.abs(truth).mean())
    if settings.noise_shares:
        found["noise_correlation"] = rank_correlation(values, -np.arange(len(values)))
    if settings.flip_shares:
        found["jaccard"] = jaccard(values, np.flatnonzero(settings.flip_shares).tolist())
    return found


def value_error(values: Any, truth: Any) -> float:
    """The distance of the centred values from the centred true values, relative to the length of the latter."""
    centred = truth - truth.mean()
    return float(np.linalg.norm(values - values.mean() - centred) / np.linalg.norm(centred))


def differences(first: float, second: float) -> Row:
    """d, and d as the paper prints it."""
    apart, largest = abs(first - second), max(abs(first), abs(second))
    printed = max(first, second)
    return {"d": apart / largest if largest > 0 else 0.0, "printed_d": apart / printed if printed > 0 else None}


def jaccard(values: Any, noisy: Sequence[int]) -> float:
    """The overlap of the noisy clients with the equally many of lowest value. Ties count against noisy clients."""
    is_noisy = np.isin(np.arange(len(values)), noisy)
    lowest = np.lexsort((is_noisy, np.asarray(values)))[: len(noisy)].tolist()
    return len(set(noisy) & set(lowest)) / len(set(noisy) | set(lowest))


Column = Callable[[pd.DataFrame], str]


def by_method(
    frames: Iterable[pd.DataFrame], names: Mapping[str, Column], columns: Mapping[str, Column]
) -> pd.DataFrame:
    """A table with one line a method for each of the frames: names of the frame, then columns of the method's rows."""
    return table(
        {
            **{name: text(frame) for name, text in names.items()},
            "method": label(str(key)),
            **{name: text(mine) for name, text in columns.items()},
            "seeds": str(len(mine)),
        }
        for frame in frames
        for key, mine in frame.groupby("method", sort=False)
    )


def of_method(frame: pd.DataFrame, method: str) -> pd.DataFrame:
    """The rows of one method."""
    return frame[frame.method == method]
