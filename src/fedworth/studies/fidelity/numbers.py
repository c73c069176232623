"""How near one method's values are to the truth in one federation, and whether they know it.

error         ‖centred values − centred truth‖ / ‖centred truth‖; 1 is as good as "all are worth the same"
coverage      how many of the clients' 90 % intervals hold the truth
r             rms(sd) / sd(values): the error that a method predicts for itself
gap           |s_0 − s_9| / sd(truth), 9 a copy of 0;  d is |s_0 − s_9| / max(|s_0|, |s_9|)
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedworth.studies.fidelity.settings import setting_of
from fedworth.studies.results.statistics import jaccard, rounded_correlation
from fedworth.studies.results.study import Rows
from fedworth.studies.trials.fidelity import LABELS, document_of
from fedworth.studies.trials.trial import Row
from fedworth.theory.fairness import relative_difference


@dataclass(frozen=True)
class Found:
    """What one method's values of one federation are like, beside the truth."""

    error: float
    correlation: float
    coverage: float | None
    ratio: float | None
    d: float | None
    gap: float | None
    jaccard: float | None
    truth_jaccard: float | None
    evaluations: int
    seconds: float
    truth_error: float


def found_in(row: Row, key: str) -> Found | None:
    """The numbers of one method in one row; none where it was refused."""
    said = document_of(row, key)
    if not said:
        return None
    values, truth = np.array(said["values"]), np.array(row["reading"]["values"]["truth"])
    if key == "heard-round":  # one round stands for all
        values *= row["federation"]["n_rounds"]
    off, spread = (values - values.mean()) - (truth - truth.mean()), float(truth.std())
    ends = None if said["intervals"] is None else np.array(said["intervals"])
    pair = dict(row["federation"]["copies"]).get(9)
    apart = None if pair is None else float(abs(values[9] - values[pair]))
    noisy = np.flatnonzero(row["federation"]["flip_shares"])
    return Found(
        error=float(np.linalg.norm(off) / np.linalg.norm(truth - truth.mean())),
        correlation=rounded_correlation(values.tolist(), truth.tolist()),
        coverage=None if ends is None else float(np.mean((ends[:, 0] <= truth) & (truth <= ends[:, 1]))),
        ratio=said["ratio"],
        d=None if pair is None else relative_difference(float(values[pair]), float(values[9])),
        gap=None if apart is None else apart / spread,
        jaccard=_jaccard(values, noisy.tolist()) if len(noisy) else None,
        truth_jaccard=_jaccard(truth, noisy.tolist()) if len(noisy) else None,
        evaluations=said["evaluations"],
        seconds=said["seconds"],
        truth_error=float(np.sqrt(np.mean(np.square(row["reading"]["truth_deviations"])))) / spread,
    )


def _jaccard(values: NDArray[np.float64], noisy: list[int]) -> float:
    return jaccard(set(noisy), set(np.argsort(values, kind="stable")[: len(noisy)].tolist()))


Table = dict[str, dict[str, list[Found]]]
"""By setting and method, one for each seed."""


def grouped(rows: Rows) -> Table:
    """What was found, by setting and method."""
    table: Table = {}
    for row in (row for found in rows.values() for row in found):
        of_setting = table.setdefault(setting_of(row["federation"]), {})
        for key in LABELS:
            found = found_in(row, key)
            if found is not None:
                of_setting.setdefault(key, []).append(found)
    return table
