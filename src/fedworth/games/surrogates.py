"""Surrogates: games that are near a given one, and whose Shapley values have closed form.

Where a coalition's model is an average and the measure is smooth, utilities are interpolated between the mean model and
each client's model. With m the mean of all n clients' models, δ_i = w_i − m, and x_i(s) what client i counts in a
coalition of s:

    g(S) = U(all) + Σ_{i∈S} [U(m + x_i(s) δ_i) − U(all)] + k · [P_⅛, P_⅛/s, P_½, P_½/s, 1/s, 1/s²]
    P_x(S) = Σ_{i<j∈S} x_i(s) x_j(s) q_ij                  how two clients' models act on each other
    q_ij = ζ_iᵀ H ζ_j,   ζ_i = (outputs(m + x δ_i) − outputs(m)) / x

H is the second derivative of the measured quality in the outputs of the mean model. U(m + x δ_i) is measured at
x = 1/2, 1/4, 1/8 and known at 0 and 1, with a cubic spline between. The last two terms are the same for all coalitions
of a size, so they change no value; they take up what the others miss on the average over a size.

Other games (a server's rule, fixed weights, accuracy, utilities that a user brings) get a surrogate of the lone
clients' utilities.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeGuard

import numpy as np
import torch
from scipy.interpolate import CubicSpline

from fedworth.arrays import Floats, Memberships
from fedworth.games.game import Game, ModelGame
from fedworth.ledger.ledger import Model, Round
from fedworth.oracle.oracle import fitted, mix
from fedworth.oracle.server import RuleOracle
from fedworth.oracle.weighting import Mixtures
from fedworth.task.task import Task
from fedworth.threads import fitting_threads

POINTS = (0.5, 0.25, 0.125)
N_POINTS = len(POINTS)
"""Interpolation points of a client, beside the mean and the client itself."""

MOST_SAMPLES = 128
MOST_OUTPUTS = 1 << 24
"""Test samples, and numbers of all clients' outputs, that pairs are computed from: they only shape the surrogate."""


class Additive:
    """A game g(S) = Σ_{i∈S} r_i(s) on each block, given by r(s), (n, n_blocks)."""

    def __init__(self, of_clients: Callable[[int], Floats], n: int) -> None:
        self.of_clients, self.n = of_clients, n

    def utilities(self, coalitions: Memberships) -> Floats:
        """(n_coalitions, n_blocks): the utilities of coalitions minus the utility of everyone."""
        sizes = coalitions.sum(axis=1)
        whole = self.of_clients(self.n).sum(axis=0)
        found = np.empty((len(coalitions), len(whole)))
        for size in np.unique(sizes).tolist():
            found[sizes == size] = coalitions[sizes == size] @ self.of_clients(size) - whole
        return found

    def contrasts(self) -> Floats:
        """(n, n_blocks): Σ_{1<s<n} A_{s,i}."""
        return sum((contrasts_of_clients(self.of_clients(size)) for size in range(2, self.n)), np.zeros(()))


class Pairwise:
    """A game g(S) = f(s) Σ_{i<j∈S} x_i(s) x_j(s) q_ij with one block."""

    def __init__(self, pairs: Floats, shares: Callable[[int], Floats], factor: Callable[[float], float]) -> None:
        self.pairs, self.shares, self.factor = pairs, shares, factor  # q, (n, n) with diagonal 0; x(s), (n,); f(s)
        self.n = len(pairs)

    def utilities(self, coalitions: Memberships) -> Floats:
        """(n_coalitions, 1): the utilities of coalitions minus the utility of everyone."""
        sizes = coalitions.sum(axis=1)
        found = np.empty((len(coalitions), 1))
        everyone = self._of(np.ones((1, self.n), dtype=bool), self.n)
        for size in np.unique(sizes).tolist():
            found[sizes == size, 0] = self._of(coalitions[sizes == size], size) - everyone
        return found

    def contrasts(self) -> Floats:
        """(n, 1): Σ_{1<s<n} A_{s,i}; with B_i = Σ_j x_i x_j q_ij and B = Σ_i B_i / 2 a size has
        A_{s,i} = f(s) (s−1)/(n−1) (B_i − 2 (B − B_i)/(n−2))."""
        n, total = self.n, np.zeros(self.n)
        for size in range(2, n):
            share = self.shares(size)
            own = share * (self.pairs @ share)  # B_i, (n,)
            total += self.factor(size) * (size - 1) / (n - 1) * (own - 2 * (own.sum() / 2 - own) / (n - 2))
        return total[:, None]

    def _of(self, coalitions: Memberships, size: int) -> Floats:
        counted = coalitions * self.shares(size)  # (n_coalitions, n)
        return np.asarray(self.factor(size) * 0.5 * ((counted @ self.pairs) * counted).sum(axis=1))


@dataclass(frozen=True)
class Surrogate:
    """U(all) + a fixed additive game + k · some terms, on each block; k is fitted, `assumed` otherwise."""

    fixed: Additive
    terms: tuple[Additive | Pairwise, ...]
    assumed: Floats  # k, (n_terms,), for the sums over blocks


def contrasts_of_clients(of_clients: Floats) -> Floats:
    """(n, n_blocks): A_{s,i} of Σ_{i∈S} r_i, given r."""
    n = len(of_clients)
    return np.asarray(of_clients - (of_clients.sum(axis=0) - of_clients) / (n - 1))


def lone_surrogate(lone: Floats) -> Surrogate:
    """A surrogate by lone clients' utilities, (n, n_blocks): averages (divided by s) and sums of them."""
    n, centred = len(lone), lone.sum(axis=1, keepdims=True) - lone.sum(axis=1).mean()  # (n, 1)
    ones = np.ones((n, 1))
    terms = (
        Additive(lambda s: centred / s, n),
        Additive(lambda s: centred / s**2, n),
        Additive(lambda _: centred, n),
        Additive(lambda s: ones / s**2, n),
        Additive(lambda s: ones / s**3, n),
        Additive(lambda _: ones, n),
    )
    return Surrogate(Additive(lambda _: np.zeros_like(lone), n), terms, np.zeros(len(terms)))


def can_interpolate(game: Game) -> TypeGuard[ModelGame]:
    """Whether coalitions are averages of models, and what is measured is smooth."""
    if not isinstance(game, ModelGame) or game.weighting == "fixed":
        return False
    oracle = game.oracle
    if isinstance(oracle, RuleOracle):
        return False
    return oracle.task.criterion(oracle.measure).is_smooth


def interpolate(game: ModelGame, everyone: Floats) -> Surrogate:
    """The surrogate of a game that `can_interpolate`, given U(all), (n_blocks,): 3 evaluations a client."""
    n, task = len(game.clients), game.oracle.task
    round_ = fitted(game.round_, task)
    models = {k: {**round_.client_models, **round_.apart_models}[k] for k in game.clients.tolist()}
    own = game.weights[game.clients]
    coefficients = np.zeros(len(game.weights))
    coefficients[game.clients] = own / own.sum()
    mean = mix(round_.global_model, models, coefficients, 0.0)
    lone = game.model_utilities(np.eye(n, dtype=bool))
    points = _points(game, round_, models, mean)[::-1]  # (3, n, n_blocks), x = 1/8, 1/4, 1/2
    heights = np.concatenate([np.zeros_like(lone)[None], points - everyone, lone[None] - everyone])
    spline = CubicSpline([0.0, *POINTS[::-1], 1.0], heights)

    def shares(size: int) -> Floats:
        """(n,): x_i(s) = a_i / (a_i + (s − 1) · mean of the others' a); 1/s where all weigh the same."""
        return np.asarray(own / (own + (size - 1) * (own.sum() - own) / (n - 1)))

    def of_clients(size: int) -> Floats:
        """(n, n_blocks): client i's spline at x_i(s)."""
        at = shares(size)
        piece = np.searchsorted(spline.x[1:-1], at)
        c = spline.c[:, piece, np.arange(n)]  # (4, n, n_blocks)
        dx = (at - spline.x[piece])[:, None]
        return np.asarray(((c[0] * dx + c[1]) * dx + c[2]) * dx + c[3])

    ones = np.ones((n, 1))
    near, far = (_pairs(task, game.oracle.measure, models, mean, x) for x in (POINTS[-1], POINTS[0]))
    terms = (
        Pairwise(near, shares, lambda _: 1.0),
        Pairwise(near, shares, lambda s: 1 / s),
        Pairwise(far, shares, lambda _: 1.0),
        Pairwise(far, shares, lambda s: 1 / s),
        Additive(lambda s: ones / s**2, n),
        Additive(lambda s: ones / s**3, n),
    )
    return Surrogate(Additive(of_clients, n), terms, np.array([1.0, 0, 0, 0, 0, 0]))


def _points(game: ModelGame, round_: Round, models: dict[int, Model], mean: Model) -> Floats:
    """(3, n, n_blocks): the utility of m + x δ_i at x = 1/2, 1/4, 1/8.

    The mean comes in as three clients that count 1, 2 and 4 where a client counts 1: with the first of them the client
    has 1/2 of the average, with two 1/4, with three 1/8. So the oracle measures these points as any coalition.
    """
    n_clients, n = len(game.weights), len(game.clients)
    rows = np.zeros((N_POINTS, n, n_clients + N_POINTS), dtype=bool)
    rows[:, np.arange(n), game.clients] = True
    for place in range(N_POINTS):
        rows[place:, :, n_clients + place] = True
    weights = np.concatenate([np.ones(n_clients), 2.0 ** np.arange(N_POINTS)])
    means = {n_clients + place: mean for place in range(N_POINTS)}
    with_means = replace(round_, client_models={**models, **means}, apart_models={})
    found = game.oracle.utilities(with_means, Mixtures(rows.reshape(N_POINTS * n, -1), weights, from_global=False))
    return np.asarray(found[:, : game.n_blocks]).reshape(N_POINTS, n, game.n_blocks)


def _pairs(task: Task, measure: str, models: dict[int, Model], mean: Model, x: float) -> Floats:
    """q, (n, n) with diagonal 0, from the outputs of some test samples."""
    criterion = task.criterion(measure)
    with fitting_threads(task.module), torch.inference_mode():
        n_outputs = task.outputs(mean, slice(0, 1)).numel()
        most = max(1, min(MOST_SAMPLES, MOST_OUTPUTS // (len(models) * n_outputs)))
        some = slice(None, None, -(-len(task.labels) // most))
        centre = task.outputs(mean, some).double()
        zeta = torch.stack([(task.outputs(_between(mean, model, x), some) - centre) / x for model in models.values()])
    with torch.enable_grad():
        at = centre.clone().requires_grad_()
        (slope,) = torch.autograd.grad(criterion.quality(at, task.labels[some]), at, create_graph=True)
        if not slope.requires_grad:  # a quality that is linear in the outputs
            return np.zeros((len(models), len(models)))
        bent = torch.stack([torch.autograd.grad(slope, at, one, retain_graph=True)[0] for one in zeta])
    pairs = (bent.flatten(1) @ zeta.flatten(1).T).cpu().numpy()
    np.fill_diagonal(pairs, 0.0)
    return np.asarray(pairs)


def _between(mean: Model, other: Model, x: float) -> Model:
    """mean + x (other − mean); integer tensors stay the mean's."""
    return {name: torch.lerp(t, other[name], x) if t.is_floating_point() else t for name, t in mean.items()}
