"""Values and errors of permutations by client; goes with the old pipeline."""

import numpy as np

from fedworth.arrays import Floats, Permutations, Utilities
from fedworth.games.permutations import permutation_estimate
from fedworth.valuation.heard import spread


def permutation_values(
    prefix_utilities: Utilities, permutations: Permutations, n_clients: int
) -> tuple[Floats, Floats]:
    """Values and standard errors (n_clients,) from the utilities of all prefixes, (n_permutations, n + 1)."""
    members = np.sort(permutations[0])
    values, covariance = permutation_estimate(prefix_utilities[:, :, None], np.searchsorted(members, permutations))
    errors = np.sqrt(np.diag(covariance))
    return spread(values[:, 0], members, n_clients), spread(errors, members, n_clients)


def permutation_covariance(prefix_utilities: Utilities, permutations: Permutations) -> Floats:
    """(n, n): how the values of `permutation_values` vary together, the clients of the permutations in order."""
    positions = np.searchsorted(np.sort(permutations[0]), permutations)
    return permutation_estimate(prefix_utilities[:, :, None], positions)[1]
