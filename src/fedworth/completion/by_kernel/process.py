"""The utility process: a Gaussian process over rounds and coalitions, conditioned on some seen cells.

    k((t,S),(s,Q)) = Σ_{p=0..3} q^p m_p(t,s) + ν 1(same cell),      q = ā_S C ā_Qᵀ

U_t(S) is a function of the mean of S's models. ā_S are the members' shares in that mean, C says how alike two clients
are, so q says how alike two means are; its powers let the utility bend. m_p is in `over_time`. All numbers are fixed.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.linalg.lapack import dpstrf

from fedworth.arrays import Floats, Indices, Memberships, Utilities
from fedworth.completion.over_time import over_time
from fedworth.errors import CompletionError

NOISE = 0.001  # ν


@dataclass(frozen=True)
class UtilityProcess:
    """The process given some cells, in units of their rounds' scale."""

    likeness: Floats  # C, (n_clients, n_clients)
    weights: Floats  # (n_clients,): what each counts in a mean
    n_rounds: int
    rounds: Indices  # (n_points,)
    coalitions: Memberships  # (n_points, n_clients)
    utilities: Utilities  # (n_points,), each over its round's scale

    @cached_property
    def times(self) -> list[Floats]:
        """m_p, (n_rounds, n_rounds)."""
        return over_time(self.n_rounds)

    @cached_property
    def inverse(self) -> Floats:
        """K⁻¹, (n_points, n_points)."""
        near, here = self.alike(self.coalitions), np.ix_(self.rounds, self.rounds)
        covariance = sum(near**p * m[here] for p, m in enumerate(self.times)) + NOISE * np.eye(len(near))
        return np.asarray(cho_solve(cho_factor(covariance), np.eye(len(near))))

    @cached_property
    def _pull(self) -> Floats:
        """K⁻¹u, (n_points,)."""
        return np.asarray(self.inverse @ self.utilities)

    def alike(self, coalitions: Memberships, others: Memberships | None = None) -> Floats:
        """q, (n_coalitions, n_others): of these with others, or with the points."""
        others = self.coalitions if others is None else others
        return np.asarray(self._shares(coalitions) @ self.likeness @ self._shares(others).T)

    def _shares(self, coalitions: Memberships) -> Floats:
        counted = coalitions * self.weights
        total = counted.sum(axis=1, keepdims=True)
        return np.asarray(counted / np.where(total > 0, total, 1.0))

    def mean(self, coalitions: Memberships) -> Utilities:
        """(n_rounds, n_coalitions): what the points say of these cells."""
        near = self.alike(coalitions)
        return np.asarray(sum((m[:, self.rounds] * self._pull) @ (near**p).T for p, m in enumerate(self.times)))

    def variances(self, coalitions: Memberships) -> Floats:
        """(n_rounds, n_coalitions): how sure that is, cell by cell."""
        near, own = self.alike(coalitions), np.diag(self.alike(coalitions, coalitions))
        found = np.empty((self.n_rounds, len(coalitions)))
        for t, row in enumerate(found):
            covariance = np.asarray(sum(near**p * m[t, self.rounds] for p, m in enumerate(self.times)))
            prior = np.asarray(sum(own**p * m[t, t] for p, m in enumerate(self.times))) + NOISE
            row[:] = prior - ((covariance @ self.inverse) * covariance).sum(axis=1)
        return np.maximum(found, 0)

    def summed_covariance(self, coalitions: Memberships, weights: Floats) -> Floats:
        """(n_coalitions, n_coalitions): the covariance of the sums Σ_t g_tS u_t(S), given the points; `weights` are g,
        (n_rounds, n_coalitions)."""
        near, among = self.alike(coalitions), self.alike(coalitions, coalitions)
        prior, cross = NOISE * np.diag((weights**2).sum(axis=0)), np.zeros(near.shape)
        for p, m in enumerate(self.times):
            over_rounds = m @ weights  # (n_rounds, n_coalitions)
            prior += among**p * (weights.T @ over_rounds)
            cross += near**p * over_rounds[self.rounds].T
        return np.asarray(prior - cross @ self.inverse @ cross.T)

    def left_out(self, points: Indices) -> tuple[Floats, Floats]:
        """(n,), (n,): how far these points are from what the others say of them, all left out at once; and the
        variance of that."""
        among = np.linalg.inv(self.inverse[np.ix_(points, points)])
        return np.asarray(among @ self._pull[points]), np.diag(among)


def semidefinite_root(covariance: Floats) -> Floats:
    """(n, rank): R, with R Rᵀ the covariance. Cholesky's, taken in the order of what is left of the variances, so that
    a covariance without an inverse has one too; a tenth of the time of its axes."""
    if not np.isfinite(covariance).all():
        raise CompletionError("a covariance of errors is not finite; report this, with the utilities")
    factor, order, rank, _ = dpstrf(covariance, lower=1)
    root = np.empty((len(covariance), rank))
    root[order - 1] = np.tril(factor)[:, :rank]
    return root
