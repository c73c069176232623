"""Who can be valued: clients that some round has heard. The others are named, and have no value."""

import numpy as np
from numpy.typing import NDArray

from fedworth.errors import NeverHeardError, ValuationError
from fedworth.games.matrix import UtilityMatrix


def heard_clients(matrix: UtilityMatrix, *, strict: bool) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The clients to value, and warnings: the matrix's own notes, and who was never heard (`strict`: an error)."""
    heard = np.flatnonzero(matrix.heard)
    silent = [name for name, is_heard in zip(matrix.clients, matrix.heard, strict=True) if not is_heard]
    missing = [name for name in silent if name not in matrix.left_out]
    if len(heard) == 0:
        raise ValuationError("no client took part in any round, so nobody can be valued")
    if not missing:
        return heard, matrix.notes
    found = f"never heard in {matrix.n_rounds} rounds: client{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
    if strict:
        raise NeverHeardError(f"{found}; let a round hear everyone, or leave out --strict to value the others")
    return heard, (*matrix.notes, f"{found}; no value can be given, and the others are valued without them")


def spread(values: NDArray[np.float64], heard: NDArray[np.int64], n_clients: int) -> NDArray[np.float64]:
    """(…, n_clients): values of some clients as values of all clients, NaN for the rest."""
    everyone = np.full((*values.shape[:-1], n_clients), np.nan)
    everyone[..., heard] = values
    return everyone
