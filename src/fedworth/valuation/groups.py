"""Values by group of test samples: whom does a client help?

A value is linear in the losses of the test samples, so the parts of the groups add up to it. The parts are often much
larger than the value, since a client that helps one class hurts another.

    test set      as for the whole value, with the samples of all other groups counted as 0
    estimates     the error of the whole value, times how large held-out errors of the group are beside those of all
    sampling      the error of the whole value, times how large the group's parts are beside the values
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from fedworth.arrays import Floats, Indices
from fedworth.task.cells import Cells
from fedworth.valuation.uncertainty import TAIL, freedom


@dataclass(frozen=True, eq=False)
class GroupValues:
    """Each client's value on each group of test samples; NaN for clients without a value."""

    names: tuple[str, ...]  # of the groups
    shares: Floats  # (n_groups,): of the test set
    values: Floats  # (n_clients, n_groups), adds up to the values
    standard_deviations: Floats  # (n_clients, n_groups), NaN where the errors are not known
    half_widths: Floats  # (n_clients, n_groups), of the 90 % intervals, NaN where the errors are not known
    by: str = ""  # what the groups are: class, site, …
    population: Floats | None = None  # (n_groups,): shares of the population that values are for, if not the test set's

    @property
    def signs(self) -> Indices:
        """(n_clients, n_groups): 1 where a client clearly helps, −1 where it clearly harms, 0 if neither is clear."""
        return np.where(np.abs(self.values) > self.half_widths, np.sign(self.values), 0).astype(np.int64)

    @property
    def decimals(self) -> int:
        """Decimals that show two digits of the largest value; at least two."""
        largest = float(np.nanmax(np.abs(self.values), initial=0.0)) or 1.0
        return max(2, 1 - math.floor(math.log10(largest)))


def group_values(
    block_values: Floats, cells: Cells, estimates: Floats, sampling: Floats, *, with_test_set: bool
) -> GroupValues:
    """Values by group from values by cell, (n_clients, n_cells).

    `estimates`, (n_clients, n_groups), and `sampling`, (n_clients,), are variances; the latter of whole values.
    """
    values = cells.by_group(block_values)
    of_test_set = np.zeros_like(values)
    for group in range(len(cells.groups)):
        of_test_set[:, group] = (cells.residuals(block_values * (cells.group_of == group)) ** 2).sum(axis=1)
    sizes = np.sqrt(np.nanmean(values**2, axis=0) / max(float(np.nanmean(values.sum(axis=1) ** 2)), 1e-300))
    others = estimates + sampling[:, None] * sizes**2
    variances = others + of_test_set if with_test_set else others
    degrees = freedom(variances, of_test_set if with_test_set else None, cells.n_blocks - 1)
    deviations = np.sqrt(variances)
    widths = deviations * stdtrit(degrees, TAIL)
    return GroupValues(cells.groups, cells.group_shares, values, deviations, widths, cells.by, cells.population)
