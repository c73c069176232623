"""An estimate: values of one game's members, and how sure they are."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Estimate:
    """Values of one game's members, how they vary together, and what they cost."""

    values: NDArray[np.float64]  # (n,)
    covariance: NDArray[np.float64]  # (n, n)
    n_evaluations: int

    @property
    def standard_errors(self) -> NDArray[np.float64]:
        """(n,): 0 where nothing was left to chance."""
        return np.sqrt(np.maximum(np.diag(self.covariance), 0))
