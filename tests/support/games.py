"""Games and federations that several tests share, and the definitions they are held against."""

import math
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from fedworth.coalitions import coalitions_of, distinct, prefixes
from fedworth.completion.factors import FactorCompletion
from fedworth.completion.solver import Problem, Status, problem_of_cells
from fedworth.games.matrix import UtilityMatrix, matrix_from_rounds
from fedworth.games.permutations import draw_permutations
from fedworth.names import PenaltyKind

Array = NDArray[np.float64]


def shapley_by_definition(utilities: Array) -> Array:
    """v_i = (1/n) Σ_{S∌i} [U(S∪i) − U(S)] / C(n−1, |S|), term by term."""
    n = len(utilities).bit_length() - 1
    values = np.zeros(n)
    for i in range(n):
        for coalition in range(len(utilities)):
            if not coalition >> i & 1:
                weight = 1 / (n * math.comb(n - 1, coalition.bit_count()))
                values[i] += weight * (utilities[coalition | 1 << i] - utilities[coalition])
    return values


class ArrayGame:
    """A game given by the utilities of all 2^n coalitions, (2^n,) or (2^n, n_blocks)."""

    def __init__(self, utilities: Array, clients: NDArray[np.int64] | None = None) -> None:
        self.all = utilities.reshape(len(utilities), -1)
        self.clients = np.arange(len(utilities).bit_length() - 1) if clients is None else clients
        self.n_blocks = self.all.shape[1]

    def utilities(self, coalitions: NDArray[np.bool_]) -> Array:
        return self.all[coalitions @ (1 << np.arange(len(self.clients)))]


def game(n: int, utility) -> Array:
    """The utilities of all 2^n coalitions, in the order of their integers."""
    return np.array([utility({i for i in range(n) if c >> i & 1}) for c in range(2**n)], dtype=float)


def matrix_of(utilities: Array, participants, permutations=None) -> UtilityMatrix:
    """A utility matrix of the coalitions of each round's participants, from the full matrix, (…, n_blocks) or not."""
    participants = np.asarray(participants, dtype=bool)
    n_clients = participants.shape[1]
    everything = coalitions_of(np.arange(n_clients), n_clients)
    rounds = []
    for row, present in zip(utilities, participants, strict=True):
        seen = ~(everything & ~present).any(axis=1)
        rounds.append((everything[seen], row[seen].reshape(int(seen.sum()), -1)))
    names = tuple("abcdefghijklmnopqrst"[:n_clients])
    return matrix_from_rounds(names, participants, rounds, permutations)


def participation(n_rounds: int, n_clients: int, n_participants: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Everyone in the first round, then this many, uniformly."""
    participants = np.zeros((n_rounds, n_clients), dtype=bool)
    participants[0] = True
    for row in participants[1:]:
        row[rng.choice(n_clients, n_participants, replace=False)] = True
    return participants


def low_rank(n_rounds: int, n_clients: int, rank: int, rng: np.random.Generator) -> Array:
    """A full matrix of this rank, with U(∅) = 0."""
    factors = rng.normal(size=(2**n_clients, rank))
    factors[0] = 0
    return np.asarray(rng.normal(size=(n_rounds, rank)) @ factors.T)


def federation(seed: int, n_rounds: int = 6, n_clients: int = 5, n_participants: int = 2, rank: int = 2):
    """A low-rank full matrix with a little noise, and what is seen of it: (utilities, seen matrix)."""
    rng = np.random.default_rng(seed)
    utilities = low_rank(n_rounds, n_clients, rank, rng) + 0.05 * rng.normal(size=(n_rounds, 2**n_clients))
    utilities[:, 0] = 0
    return utilities, matrix_of(utilities, participation(n_rounds, n_clients, n_participants, rng))


def large_federation(n_clients: int, n_participants: int, n_rounds: int, n_permutations: int) -> UtilityMatrix:
    """What Algorithm 1 sees of a large federation whose utilities are three smooth games, fading over the rounds."""
    rng = np.random.default_rng(n_clients)
    permutations = draw_permutations(np.arange(n_clients), n_permutations, rng=rng)
    participants = participation(n_rounds, n_clients, n_participants, rng)
    columns, _ = distinct(prefixes(permutations, n_clients))
    games = np.tanh(columns @ rng.normal(size=(n_clients, 3)) / np.sqrt(n_clients))  # (n_columns, 3)
    fading = np.exp(-np.arange(n_rounds) / n_rounds)[:, None] * (1 + 0.3 * rng.normal(size=(n_rounds, 3)))
    rows = []
    for t, present in enumerate(participants):
        seen = ~(columns & ~present).any(axis=1)
        found = games[seen] @ fading[t] + 0.01 * rng.normal(size=seen.sum())
        rows.append((columns[seen], found[:, None]))
    names = tuple(str(k) for k in range(n_clients))
    return matrix_from_rounds(names, participants, rows, permutations)


def random_problem(seed: int) -> tuple[Problem, float]:
    """A small completion problem with its troubles (ties, zeros, equal rows, any scale), and a relative penalty."""
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 9)), int(rng.integers(1, 33)))
    seen = rng.random(shape) < rng.uniform(0.1, 1)
    seen[0, 0] = True
    if rng.random() < 0.5:
        seen[0] = True
    rank = int(rng.integers(1, 4))
    cells = rng.normal(size=(shape[0], rank)) @ rng.normal(size=(rank, shape[1]))
    cells += rng.choice([0, 0.01, 1]) * rng.normal(size=shape)
    trouble = rng.integers(4)
    if trouble == 0:
        cells = np.round(cells)
    elif trouble == 1:
        cells *= rng.random(shape) < 0.3
    elif trouble == 2:
        cells = np.repeat(cells[:1], shape[0], axis=0)
    cells[0, 0] = 1.0
    cells *= 10.0 ** rng.uniform(-6, 6)
    kind: PenaltyKind = rng.choice(get_args(PenaltyKind))
    rows, columns = np.nonzero(seen)
    return problem_of_cells(shape, rows, columns, cells[seen], kind), float(10 ** rng.uniform(-4, -0.02))


def convex_optimum(problem: Problem, penalty: float) -> Array:
    """X of min Σ_seen (U − X)² + 2λ‖X̃‖_* by FISTA in the scaled variables X̃ = √(a bᵀ) ∘ X: slow, and no factors.

    In them the data term is Σ_seen (U − X̃/√(a_t b_S))²: the cells' residuals over √(a_t b_S) are its half-gradient.
    """
    rows, columns = problem.rows, problem.columns
    root = np.sqrt(np.outer(problem.row_weights, problem.column_weights))  # √(a_t b_S); 0 where nothing is seen
    scale = np.zeros(problem.shape)
    scale[rows, columns] = 1 / root[rows, columns]
    cells = np.zeros(problem.shape)
    cells[rows, columns] = problem.values
    step = 1 / (scale**2).max()
    previous = ahead = np.zeros(problem.shape)
    momentum = 1.0
    for _ in range(200_000):
        gradient = (scale * ahead - cells) * scale
        left, sigma, right = np.linalg.svd(ahead - step * gradient, full_matrices=False)
        current = (left * np.maximum(sigma - step * penalty, 0)) @ right
        if (current - previous).ravel() @ (ahead - current).ravel() > 0:
            momentum = 1.0  # restart when the momentum points uphill
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead = current + (momentum - 1) / following * (current - previous)
        if np.abs(current - previous).max() <= 1e-14 * np.abs(current).max():
            return np.asarray(np.divide(current, root, out=np.zeros(problem.shape), where=root > 0))
        previous, momentum = current, following
    raise AssertionError("FISTA did not converge")


def convex_objective(problem: Problem, X: Array, penalty: float) -> float:
    """Σ_seen (U − X)² + 2λ‖X̃‖_*."""
    missed = problem.values - X[problem.rows, problem.columns]
    root = np.sqrt(np.outer(problem.row_weights, problem.column_weights))
    return float((missed**2).sum() + 2 * penalty * np.linalg.svd(root * X, compute_uv=False).sum())


def factors_completion(clients, coalitions, W: Array, H: Array) -> FactorCompletion:
    """A completion from given, not fitted, factors."""
    return FactorCompletion(
        clients=clients,
        coalitions=coalitions,
        round_factors=W,
        coalition_factors=H,
        rank=W.shape[1],
        penalty=1.0,
        relative_penalty=0.5,
        penalty_kind="uniform",
        objective=0.0,
        residual=0.0,
        status=Status.CONVERGED,
        stationarity=0.0,
        spectral_ratio=2.0,
        n_sweeps=0,
        heard=np.arange(len(clients)),
    )
