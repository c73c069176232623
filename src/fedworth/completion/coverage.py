"""Coverage: how much of the utility matrix was seen, by client, by column and by coalition size.

A coalition larger than the number of participants is seen in all-clients rounds only. If there is one such round, then
h_S = w_1 U_{1,S}/(‖w_1‖² + λ): its estimates are that round rescaled. So a report shows how much of a value rests on a
single round.
"""

from typing import Any

import numpy as np

from fedworth.games.matrix import UtilityMatrix


def coverage(matrix: UtilityMatrix) -> dict[str, Any]:
    """Counts of the seen cells of the columns that values rest on (without the empty coalition), as JSON."""
    columns = matrix.needed_coalitions()
    columns = columns[columns.any(axis=1)]  # (n_columns, n_clients)
    seen = matrix.within(columns)
    n_seen = np.bincount(seen.coalition_indices, minlength=len(seen.coalitions))  # rounds that show each column
    n_by_size = np.bincount(columns.sum(axis=1), minlength=matrix.n_clients + 1)[1:]
    cells_by_size = np.bincount(seen.coalitions.sum(axis=1), weights=n_seen, minlength=matrix.n_clients + 1)[1:]
    return {
        "n_rounds": matrix.n_rounds,
        "n_rounds_heard": matrix.participants.sum(axis=0).tolist(),
        "n_columns": len(columns),
        "n_columns_unseen": len(columns) - int((n_seen > 0).sum()),
        "n_columns_seen_once": int((n_seen == 1).sum()),
        "share_seen": float(n_seen.sum() / max(len(columns) * matrix.n_rounds, 1)),
        "share_seen_by_size": (cells_by_size / np.maximum(n_by_size * matrix.n_rounds, 1)).tolist(),
        "n_columns_by_size": n_by_size.tolist(),
    }
