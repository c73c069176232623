"""How much to measure: precision, budgets."""

import numpy as np

from fedworth.arrays import Floats, Indices


def test_covariance(by_batch: Floats, batch_sizes: Indices, sampling: Floats) -> Floats:
    """(n, n): the covariance that another test set would cause in values, from the spread of batches.

    Batches spread by their samples and by the draws; the draws' covariance is taken off, as far as variances stay
    positive.
    """
    n_batches = len(batch_sizes)
    apart = by_batch - by_batch.sum(axis=1, keepdims=True) * batch_sizes / batch_sizes.sum()
    both = apart @ apart.T * n_batches / (n_batches - 1)
    variances = np.diag(both)
    part = max(1 - float(np.trace(sampling)) / max(float(variances.sum()), 1e-300), 0.05)
    return np.asarray(both * part)
