"""The surrogate of one round's game, "rays and pairs": a game near the real one whose Shapley value has closed form.

With m the mean of all n members' models, δ_i = w_i − m, x_i(s) = 1/s (`RoundGame.shares` where weights differ):

    g(S) = c + Σ_{i∈S} r_i(s) + k · [P_a, P_a/s, P_b, P_b/s, 1/s, 1/s²],      s = |S|;  c so that g(all) = U(all)
    r_i(s) = U(m + x_i(s) δ_i) − U(all)                         along the ray towards client i
    P(S) = Σ_{i<j∈S} x_i(s) x_j(s) q_ij                         how rays bend each other
    q_ij = −mean over samples of ζ_iᵀ(diag p − p pᵀ) ζ_j,       p = softmax(logits(m))
    ζ_i = (logits(m + x δ_i) − logits(m)) / x

q is the second derivative of the cross-entropy in the logits; of another loss, its own in the outputs; and 0 where it
has none, as of accuracy or of a utility of one's own: the surrogate then knows the rays alone, and draws do the rest.
P_a takes ζ at x = 1/8, P_b at x = 1/2. Rays are measured at x = 1 (the lone client), 1/2, 1/4 and 1/8, with a cubic
spline between, whose slope at 0 is that of the loss if it has one. The coefficients k are (1, 0, …, 0) unless fitted.
The last two terms are the same for all coalitions of a size, so they change no value; they take up what the others miss
on the average over a size.

The Shapley value of any game is v_i = (U(all) + Σ_{s<n} A_{s,i}) / n, A_{s,i} the mean of U over coalitions of size s
with i minus that over those without. For g, with B_i = Σ_j x_i x_j q_ij and B = Σ_i B_i / 2,

    A_{s,i} = r_i − (Σr − r_i)/(n−1) + B_i (s−1)/(n−1) − (B − B_i) 2(s−1)/((n−1)(n−2))
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedworth.arrays import Floats, Indices, Memberships, Utilities
from fedworth.games.round_game import RAYS, RoundGame
from fedworth.task.losses import CROSS_ENTROPY

if TYPE_CHECKING:
    from scipy.interpolate import CubicSpline

BENDS = (0.125, 0.5)
"""Where pair terms are taken."""

PLAIN = np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
"""k if nothing is fitted: the second derivative at the mean."""

RIDGE = 1e-3
"""How firmly fitted coefficients are held to the plain ones, relative to what the draws say of each."""


@dataclass(frozen=True)
class Described:
    """Coalitions as a surrogate sees them: what it says of them for any coefficients. Made once, since the pairs of a
    thousand members take longer than the rest."""

    sizes: Indices  # (n_coalitions,)
    along: Utilities  # what the rays say, (n_coalitions,)
    terms: Floats  # what k weighs, (n_coalitions, 6)

    def __getitem__(self, some: NDArray[np.bool_]) -> "Described":
        return Described(self.sizes[some], self.along[some], self.terms[some])

    def at(self, coefficients: Floats = PLAIN) -> Utilities:
        """g of the coalitions."""
        return np.asarray(self.along + self.terms @ coefficients)

    def fitted(self, utilities: Utilities) -> Floats:
        """k by least squares, a coalition of s weighing s^1.5, since utilities spread less the larger it is."""
        scale = self.sizes**1.5
        rows = self.terms * scale[:, None]  # (n_coalitions, 6)
        missed = (utilities - self.along) * scale - rows @ PLAIN
        held = RIDGE * (rows**2).sum(axis=0)
        return np.asarray(PLAIN + np.linalg.lstsq(rows.T @ rows + np.diag(held), rows.T @ missed, rcond=None)[0])


@dataclass(frozen=True)
class Surrogate:
    """Rays and pairs of one round, n members."""

    everyone: float  # U(all)
    rays: Floats  # r, (n + 1, n); row s
    shares: Floats  # x, (n + 1, n); row s
    bends: tuple[Floats, Floats]  # q at the smaller and the larger x, (n, n), diagonal 0

    @property
    def n(self) -> int:
        return int(self.rays.shape[1])

    def described(self, coalitions: Memberships) -> "Described":
        """Coalitions, (n_coalitions, n), none of them empty, as it sees them."""
        return Described(coalitions.sum(axis=1), self._along(coalitions), self._terms(coalitions))

    def values(self, coefficients: Floats = PLAIN) -> Floats:
        """(n,): the Shapley value of g."""
        if self.n == 1:
            return np.array([self.everyone])
        rays = self.rays[1:-1]  # (n − 1, n)
        contrasts = rays - (rays.sum(axis=1, keepdims=True) - rays) / (self.n - 1)
        total = contrasts.sum(axis=0) + np.tensordot(coefficients[:4], self._pair_contrasts, axes=1)
        return np.asarray((self.everyone + total) / self.n)

    def _along(self, coalitions: Memberships) -> Utilities:
        """What the rays say, U(all) for everyone."""
        rays = (coalitions * self.rays[coalitions.sum(axis=1)]).sum(axis=1)
        return np.asarray(self.everyone + rays - self.rays[-1].sum())

    def _terms(self, coalitions: Memberships) -> Floats:
        """(n_coalitions, 6): the terms that k weighs, 0 for everyone."""
        everyone = np.ones((1, self.n), dtype=bool)
        return np.asarray(self._pairs(coalitions) - self._pairs(everyone))

    def _pairs(self, coalitions: Memberships) -> Floats:
        """(n_coalitions, 6): P_a, P_a/s, P_b, P_b/s, 1/s, 1/s²."""
        sizes = coalitions.sum(axis=1).astype(np.float64)
        counted = coalitions * self.shares[coalitions.sum(axis=1)]  # (n_coalitions, n)
        both = [0.5 * ((counted @ bend) * counted).sum(axis=1) for bend in self.bends]
        pairs = [column for pair in both for column in (pair, pair / sizes)]
        return np.stack([*pairs, 1 / sizes, sizes**-2.0], axis=1)

    @cached_property
    def _pair_contrasts(self) -> Floats:
        """(4, n): Σ_{1<s<n} A_{s,i} of each pair term; none with fewer than three members."""
        n, sums = self.n, []
        if n < 3:
            return np.zeros((4, n))
        sizes = np.arange(1, n)[:, None]  # s, (n − 1, 1)
        shares = self.shares[1:-1]
        for bend in self.bends:
            own = shares * (shares @ bend)  # B_i, (n − 1, n)
            whole = own.sum(axis=1, keepdims=True) / 2  # B
            found = (sizes - 1) / (n - 1) * (own - 2 * (whole - own) / (n - 2))
            sums += [found.sum(axis=0), (found / sizes).sum(axis=0)]
        return np.stack(sums)


def flat_surrogate(everyone: float, lone: Utilities) -> Surrogate:
    """A surrogate that knows the lone clients and the whole alone: for games of which all is measured."""
    n = len(lone)
    rays = np.zeros((n + 1, n))
    rays[1] = lone - everyone
    return Surrogate(everyone, rays, np.zeros((n + 1, n)), (np.zeros((n, n)), np.zeros((n, n))))


def measure_surrogate(game: RoundGame, everyone: float, lone: Utilities, rays: Utilities | None = None) -> Surrogate:
    """The surrogate of a round, given U(all), the lone clients' utilities and the rays'; `3 n` evaluations if the rays
    are not given, one backward pass and the logits of 2 n + 1 models."""
    rays = game.rays() if rays is None else rays
    heights = np.stack([np.full(game.n, everyone), *rays[::-1], lone]) - everyone  # (5, n)
    from scipy.interpolate import CubicSpline  # half a second, for those who draw

    slopes = game.slopes()
    start: Any = "not-a-knot" if slopes is None else (1, slopes)
    spline = CubicSpline([0.0, *RAYS[::-1], 1.0], heights, bc_type=(start, "not-a-knot"))
    shares = game.shares
    along = np.stack([_evaluated(spline, row) for row in shares])  # (n + 1, n)
    along[1] = lone - everyone
    first, second = (_bend(game, x) for x in BENDS)
    return Surrogate(everyone, along, shares, (first, second))


def _evaluated(spline: "CubicSpline", shares: Floats) -> Floats:
    """(n,): the i-th spline at the i-th share."""
    if np.ptp(shares) == 0:
        return np.asarray(spline(shares[0]))
    return np.asarray(np.diag(spline(shares)))


def _bend(game: RoundGame, x: float) -> Floats:
    """q, (n, n), its diagonal 0."""
    if not game.criterion.is_smooth:
        return np.zeros((game.n, game.n))
    bend = _bend_of_logits(game, x) if game.criterion is CROSS_ENTROPY else _bend_of_outputs(game, x)
    np.fill_diagonal(bend, 0.0)
    return bend


def _bend_of_outputs(game: RoundGame, x: float) -> Floats:
    """ζᵀ H ζ' with H the second derivative of the quality in the outputs, one product H ζ a ray."""
    outputs = game.outputs(x)
    mean = next(outputs).double().clone()
    zeta = torch.stack([(found.double() - mean) / x for found in outputs])  # (n, *outputs)
    with torch.enable_grad():
        at = mean.requires_grad_()
        (slope,) = torch.autograd.grad(game.criterion.quality(at, game.labels), at, create_graph=True)
        if not slope.requires_grad:  # nothing bends a straight line
            return np.zeros((game.n, game.n))
        bent = torch.stack([torch.autograd.grad(slope, at, ray, retain_graph=True)[0] for ray in zeta])
    return np.asarray((bent.flatten(1) @ zeta.flatten(1).T).cpu().numpy())


def _bend_of_logits(game: RoundGame, x: float) -> Floats:
    """ζᵀ(diag p − ppᵀ)ζ' = Σ_c p_c (ζ_c − p·ζ)(ζ'_c − p·ζ'), so each ray becomes one row."""
    logits = game.outputs(x)
    mean = next(logits).double()
    p = torch.softmax(mean, dim=1)
    rows = torch.empty((game.n, mean.numel()), dtype=torch.float32)
    for row, found in zip(rows, logits, strict=True):
        zeta = (found.double() - mean) / x
        row[:] = (p.sqrt() * (zeta - (p * zeta).sum(dim=1, keepdim=True))).reshape(-1)
    return np.array(-(rows @ rows.T).double().numpy() / len(mean))
