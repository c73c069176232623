"""A game that measures each coalition once, and counts what it measured.

In: the number of members and a function that measures coalitions of them. Out: utilities, U(∅) = 0, and the number of
utilities that had to be measured: the cost of whatever was computed from them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from fedworth.arrays import Memberships, Utilities
from fedworth.coalitions import coalitions_of, distinct


@dataclass(frozen=True)
class CountedGame:
    """A game among n members."""

    n: int
    measure: Callable[[Memberships], Utilities]
    _known: dict[bytes, float] = field(default_factory=dict)

    def __call__(self, coalitions: Memberships) -> Utilities:
        """One utility a coalition, (n_coalitions, n); those that are not known yet are measured together."""
        keys = [row.tobytes() for row in np.packbits(coalitions, axis=1)]
        is_new = np.array([key not in self._known for key in keys], dtype=bool) & coalitions.any(axis=1)
        wanted, _ = distinct(coalitions[is_new])
        if len(wanted):
            found = self.measure(wanted).tolist()
            self._known.update(zip((row.tobytes() for row in np.packbits(wanted, axis=1)), found, strict=True))
        return np.array([self._known.get(key, 0.0) for key in keys])

    @property
    def n_evaluations(self) -> int:
        """How many utilities were measured."""
        return len(self._known)

    @property
    def whole(self) -> float:
        """U of all members."""
        return float(self(np.ones((1, self.n), dtype=bool))[0])

    def all(self) -> Utilities:
        """(2^n,): the utilities of all coalitions, in the order of their integers."""
        return self(coalitions_of(np.arange(self.n), self.n))
