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

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from studies import api
from studies.bars import rank_correlation
from studies.methods import METHODS
from studies.study import Case, Row


def trial(case: Case, scratch: Path, data: Path | None) -> list[Row]:
    """One row a method. Options: `sampled`, `n_permutations`, `without_models`, `only` (one method)."""
    options, settings = case.options, case.federation
    if options.get("sampled"):
        federation: api.Valued = api.Sampled(settings, scratch, data, options.get("n_permutations"))
    else:
        federation = api.Valued(settings, scratch, data)
    same: Row = {"accuracy": federation.accuracies()[-1]}
    if settings.with_truth:
        singular = federation.singular_values()
        same["second_singular"] = float(singular[1] / singular[0])
    truth = federation.values("truth")[0] if settings.with_truth else None
    rows = []
    for key, method in METHODS.items():
        is_asked = options.get("only", key) == key and not (method.reads_models and options.get("without_models"))
        if not is_asked or (key == "truth" and truth is None):
            continue
        try:
            values, error = federation.values(method.of, method.factors)
        except api.Refused:
            continue
        times = settings.n_rounds if key == "all-clients-round" else 1
        found = measures(values * times, truth, settings)
        rows.append({**same, "method": key, **found, "matrix_error": None if np.isnan(error) else error})
    return rows


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


def of_method(frame: pd.DataFrame, method: str) -> pd.DataFrame:
    """The rows of one method."""
    return frame[frame.method == method]
