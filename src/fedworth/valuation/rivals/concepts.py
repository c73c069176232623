"""Other ways to share out one game: the Shapley value's siblings, exactly from the utilities of all 2^n coalitions.

    semivalue     v_i = Σ_{S∌i} p(|S|) [U(S∪i) − U(S)]
      banzhaf       p(s) = 2^{−(n−1)}                                  every coalition alike; not efficient
      beta-shapley  p(s) = B(s + β, n − 1 − s + α) / B(α, β)           α = 16, β = 1: small coalitions count most
    least core    min e  with  Σ_{i∈S} v_i ≥ U(S) − e for all S,  Σ_i v_i = U(all)

Kwon and Zou (2022) have Beta-Shapley, with α = β = 1 the Shapley value itself; Wang and Jia (2023) the Banzhaf value
for data. Of all payments in the least core the one nearest to equal shares is taken, so that it is one number a client
(Yan and Procaccia, 2021). They are taken of everyone's completed game, the sum over the rounds, as ComFedSV is; of
more than twelve clients from drawn coalitions (`drawn`).
"""

from collections.abc import Callable

import numpy as np
from scipy.optimize import linprog, nnls
from scipy.special import betaln

from fedworth.arrays import Floats, Utilities
from fedworth.coalitions import coalitions_of
from fedworth.completion.completion import Completion
from fedworth.errors import ValuationError
from fedworth.games.matrix import UtilityMatrix
from fedworth.names import ConceptName, checked_name
from fedworth.valuation.heard import heard_clients, spread
from fedworth.valuation.shapley import n_members, semivalues
from fedworth.valuation.valuation import Valuation

ALPHA, BETA = 16.0, 1.0

SLACK = 1e-6
"""What a coalition may object beyond e, as a part of the largest utility."""


def value_by_concept(
    matrix: UtilityMatrix, completion: Completion, name: ConceptName, *, strict: bool = False
) -> Valuation:
    """What each client is worth in everyone's completed game, by another way to share it out."""
    checked_name("way to share out a game", name)
    heard, warnings = heard_clients(matrix, strict=strict)
    coalitions = coalitions_of(heard, matrix.n_clients)
    totals = np.zeros(len(coalitions))
    totals[1:] = completion.totals(coalitions[1:])  # of nobody it is 0
    values = spread(CONCEPTS[name](totals), heard, matrix.n_clients)
    return Valuation(name, matrix.clients, values, None, completion.summary(), warnings)


def banzhaf_values(utilities: Utilities) -> Floats:
    """(n,): what a client adds to a coalition of the others, each of which is as likely as any other."""
    n = n_members(utilities)
    return semivalues(utilities, np.full(n, 2.0 ** (1 - n)))


def beta_shapley_values(utilities: Utilities, alpha: float = ALPHA, beta: float = BETA) -> Floats:
    """(n,): Beta(α, β)-Shapley values."""
    n = n_members(utilities)
    sizes = np.arange(n)
    return semivalues(utilities, np.exp(betaln(sizes + beta, n - 1 - sizes + alpha) - betaln(alpha, beta)))


def least_core_values(utilities: Utilities) -> Floats:
    """(n,): of the payments that no coalition can object to by more than must be, the one nearest to equal shares."""
    members = _some_but_not_all(n_members(utilities))
    return least_core_of(members, utilities[1:-1], float(utilities[-1]))[0]


def least_core_of(members: Floats, utilities: Utilities, whole: float) -> tuple[Floats, float]:
    """The payment (n,) of U(all) = `whole` for these coalitions' constraints, (n_coalitions, n), and their e."""
    n, scale = members.shape[1], float(np.abs(np.append(utilities, whole)).max())
    equal = whole / n
    if n == 1 or scale == 0:
        return np.full(n, equal), 0.0
    objection = _objection(members, utilities / scale, whole / scale)  # the solver's tolerance is absolute
    wanted = (utilities - members.sum(axis=1) * equal) / scale - objection  # beyond equal shares
    return np.asarray(equal + scale * _nearest_to_zero(members, wanted)), scale * objection


def _objection(members: Floats, utilities: Utilities, whole: float) -> float:
    n = members.shape[1]
    found = linprog(
        c=np.append(np.zeros(n), 1.0),  # the payments and e
        A_ub=-np.column_stack([members, np.ones(len(members))]),
        b_ub=-utilities,
        A_eq=np.append(np.ones(n), 0.0)[None],
        b_eq=[whole],
        bounds=[(None, None)] * (n + 1),
        method="highs",
    )
    if found.x is None:
        raise ValuationError(f"least core: the linear programme was not solved ({found.message})")
    return float(found.x[-1])


def _some_but_not_all(n: int) -> Floats:
    """(2^n − 2, n): every coalition that is neither empty nor everyone, as numbers."""
    return coalitions_of(np.arange(n), n)[1:-1].astype(np.float64)


def _nearest_to_zero(members: Floats, wanted: Floats) -> Floats:
    """The smallest d with Σ d = 0 and members @ d ≥ wanted: Lawson and Hanson's least distance, by one non-negative
    least squares problem. It is given a hair's breadth, since e is known to the solver's tolerance only."""
    n = members.shape[1]
    basis = np.linalg.qr(np.column_stack([np.ones(n), np.eye(n)[:, : n - 1]]))[0][:, 1:]  # of all d that sum to 0
    rows, right = members @ basis, wanted - SLACK
    weights, _ = nnls(np.vstack([rows.T, right]), np.append(np.zeros(n - 1), 1.0), maxiter=50 * len(rows))
    residual = np.append(rows.T @ weights, right @ weights - 1.0)
    if abs(residual[-1]) < 1e-14:
        raise ValuationError("least core: no payment was found; the utilities are too large or too uneven for it")
    return np.asarray(basis @ (-residual[:-1] / residual[-1]))


CONCEPTS: dict[ConceptName, Callable[[Utilities], Floats]] = {
    "banzhaf": banzhaf_values,
    "beta-shapley": beta_shapley_values,
    "least-core": least_core_values,
}
