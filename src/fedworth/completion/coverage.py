"""Coverage: how much of the matrix was seen, by client, by coalition size, by column.

A coalition larger than the number of participants is seen in the everyone-heard round only, and there
h_S = w_1 U_{1,S}/(‖w_1‖² + λ): its estimates are that round rescaled. So a report shows how much of a value rests on
a single round.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedworth.games.matrix import UtilityMatrix


@dataclass(frozen=True)
class Coverage:
    """Counts of what was seen of the columns that the values rest on (the empty coalition left out)."""

    n_rounds: int
    n_rounds_heard: tuple[int, ...]  # by client
    n_columns: int
    n_columns_unseen: int
    n_columns_seen_once: int
    share_seen: float
    share_seen_by_size: tuple[float, ...]  # of coalitions of 1, 2, … clients; NaN-free: 0 where there are none
    n_columns_by_size: tuple[int, ...]

    def document(self) -> dict[str, Any]:
        """The counts as JSON."""
        return asdict(self)


def coverage(matrix: UtilityMatrix) -> Coverage:
    """What was seen of the cells that a completion must know or estimate.

    Args:
        matrix: The measured utilities.

    Returns:
        How many cells were seen, in all and by coalition size.

    Example:
        fedworth.coverage(utilities).share_seen
    """
    columns = matrix.needed_coalitions()
    columns = columns[columns.any(axis=1)]  # (n_columns, n_clients)
    seen = matrix.within(columns)
    n_seen = np.bincount(seen.coalition_indices, minlength=len(seen.coalitions))  # rounds that show each column
    sizes_seen, sizes = seen.coalitions.sum(axis=1), columns.sum(axis=1)
    n_by_size = np.bincount(sizes, minlength=matrix.n_clients + 1)[1:]
    cells_by_size = np.bincount(sizes_seen, weights=n_seen, minlength=matrix.n_clients + 1)[1:]
    possible = np.maximum(n_by_size * matrix.n_rounds, 1)
    return Coverage(
        n_rounds=matrix.n_rounds,
        n_rounds_heard=tuple(matrix.participants.sum(axis=0).tolist()),
        n_columns=len(columns),
        n_columns_unseen=len(columns) - int((n_seen > 0).sum()),
        n_columns_seen_once=int((n_seen == 1).sum()),
        share_seen=float(n_seen.sum() / max(len(columns) * matrix.n_rounds, 1)),
        share_seen_by_size=tuple((cells_by_size / possible).tolist()),
        n_columns_by_size=tuple(n_by_size.tolist()),
    )
