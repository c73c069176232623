"""Complete by a kernel. In: a partly seen utility matrix, and how alike clients are if that is known. Out: an estimate
of every cell.

How alike two clients are is best told by their models (`completion.models`). From utilities alone, rounds that heard
everyone say it: two clients are far apart if it matters which of them joins a small coalition. Without such a round all
clients are taken for equally far from each other.

Of a round with many participants the process takes coalitions of up to three clients and that of all. The intervals'
scale comes from held-out clients: every cell of a round that holds a participant is left out at once and predicted.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from fedworth.arrays import Floats, Indices, Memberships
from fedworth.coalitions import MOST_ENUMERATED, coalitions_of
from fedworth.completion.by_kernel.completion import KernelCompletion
from fedworth.completion.over_time import smoothed
from fedworth.errors import CompletionError
from fedworth.games.matrix import UtilityMatrix
from fedworth.threads import one_blas_thread
from fedworth.trail import fingerprint

WIDTH = 0.6
FEW = 6
"""Participants up to which all cells of a round are taken."""

SMALL = 3
"""Of more participants, coalitions up to this size."""

MOST_POINTS = 2500
MOST_HELD_OUT = 600
FEWEST = 3.0


@one_blas_thread()
def complete_by_kernel(
    matrix: UtilityMatrix,
    *,
    likeness: Floats | None = None,
    weights: Floats | None = None,
    compared_by: str = "test logits",
) -> KernelCompletion:
    """Every coalition of the heard clients in every round, from the seen utilities alone.

    Args:
        matrix: The measured utilities.
        likeness: (n_clients, n_clients): how alike clients are; the utilities say so if it is not given.
        weights: What clients count in a mean; all count alike if they are not given.
        compared_by: What found the likeness, to be said in the report.

    Returns:
        An estimate of every cell, with its variance.

    Example:
        completion = fedworth.complete_by_kernel(utilities)
    """
    if matrix.is_truth:
        raise CompletionError("the matrix holds the truth; complete its seen part, or value the truth itself")
    heard = np.flatnonzero(matrix.heard)
    if matrix.heard_permutations is None and len(heard) > MOST_ENUMERATED:
        raise CompletionError(
            f"completion by a kernel: {len(heard)} clients are too many to list coalitions, and these utilities have "
            "no permutations; observe some with --permutations, or complete by models"
        )
    points = points_of(matrix)
    if len(points) == 0:
        raise CompletionError("completion by a kernel: no utility of anyone was seen; observe some rounds first")
    if likeness is None:
        likeness, compared_by = utility_likeness(matrix)
    made = KernelCompletion(
        clients=matrix.clients,
        coalitions=matrix.coalitions,
        round_indices=matrix.round_indices,
        coalition_indices=matrix.coalition_indices,
        utilities=matrix.utilities,
        points=points,
        likeness=likeness,
        weights=np.ones(matrix.n_clients) if weights is None else weights,
        scale=_scale(matrix, points),
        heard=heard,
        n_rounds_heard=matrix.participants[:, heard].sum(axis=0),
        widening=1.0,
        n_held_out=0,
        compared_by=compared_by,
        trail=None if matrix.trail is None else replace(matrix.trail, utilities=fingerprint(matrix)),
    )
    widening, n_held_out = _held_out(made, matrix.participants)
    return replace(made, widening=widening, n_held_out=n_held_out)


def points_of(matrix: UtilityMatrix) -> Indices:
    """The cells that the process rests on; beyond `MOST_POINTS`, lone clients and some of the others, evenly taken."""
    sizes = matrix.coalitions.sum(axis=1)[matrix.coalition_indices]
    present = matrix.participants.sum(axis=1)[matrix.round_indices]
    taken = (sizes > 0) & ((present <= FEW) | (sizes <= SMALL) | (sizes == present))
    points, lone = np.flatnonzero(taken), np.flatnonzero(taken & (sizes == 1))
    if len(points) <= MOST_POINTS:
        return points
    others = np.setdiff1d(points, lone)
    most = MOST_POINTS // 2
    n_lone = max(most, MOST_POINTS - len(others))
    lone = _thinned(lone, n_lone)
    return np.sort(np.concatenate([lone, _thinned(others, MOST_POINTS - len(lone))]))


def _thinned(cells: Indices, most: int) -> Indices:
    if len(cells) <= most:
        return cells
    return cells[np.linspace(0, len(cells) - 1, most).astype(np.int64)]


def _scale(matrix: UtilityMatrix, points: Indices) -> Floats:
    """g, (n_rounds,): the root mean square of each round's utilities, every small size counting alike, smoothed; 0 of a
    round that nobody answered, which adds nothing."""
    sizes = matrix.coalitions.sum(axis=1)[matrix.coalition_indices[points]]
    rounds, squares = matrix.round_indices[points], matrix.utilities[points] ** 2
    small = sizes <= SMALL if (sizes <= SMALL).any() else np.ones(len(points), dtype=bool)
    found = np.full(matrix.n_rounds, np.nan)
    for t in np.unique(rounds[small]).tolist():
        here = small & (rounds == t)
        means = [squares[here & (sizes == size)].mean() for size in np.unique(sizes[here])]
        found[t] = np.sqrt(np.mean(means))
    return np.where(matrix.participants.any(axis=1), smoothed(found), 0.0)


def utility_likeness(matrix: UtilityMatrix) -> tuple[Floats, str]:
    """How alike clients are, by the utilities of the rounds that heard everyone; and what was compared.

    d_ij² is the mean over small coalitions S without i and j of (U(S∪i) − U(S∪j))².
    """
    heard = np.flatnonzero(matrix.heard)
    everyone = np.flatnonzero(matrix.participants[:, heard].all(axis=1))
    apart = [d for t in everyone.tolist() if (d := _apart(matrix, t, heard)) is not None]
    n_clients, found = matrix.n_clients, np.eye(matrix.n_clients)
    if not apart:
        equal = np.exp(-(1 - np.eye(n_clients)) / (2 * WIDTH**2))
        return equal, "nothing: no round that heard everyone has shown it"
    among = np.exp(-sum(apart) / len(apart) / (2 * WIDTH**2))
    found[np.ix_(heard, heard)] = _nearest_covariance(among)
    return found, "utilities of the rounds that heard everyone"


def _apart(matrix: UtilityMatrix, round_index: int, heard: Indices) -> Floats | None:
    """d², (n_heard, n_heard), over its median; None where a pair of clients cannot be compared."""
    base = _small(matrix, heard)
    joined = np.repeat(base[None], len(heard), axis=0)  # (n_heard, n_base, n_clients)
    joined[np.arange(len(heard)), :, heard] = True
    told = matrix.row(round_index, joined.reshape(-1, matrix.n_clients)).reshape(len(heard), len(base))
    outside = np.asarray(~base[:, heard].T)  # (n_heard, n_base): whether the client is not yet in it
    apart = np.zeros((len(heard), len(heard)))
    for i in range(len(heard)):
        both = outside[i] & outside & ~np.isnan(told[i]) & ~np.isnan(told)
        if not both.any(axis=1).all():
            return None
        squares = np.where(both, (told[i] - told) ** 2, 0.0)
        apart[i] = squares.sum(axis=1) / both.sum(axis=1)
    pairs = apart[np.triu_indices(len(heard), 1)]
    median = float(np.median(pairs[pairs > 0])) if (pairs > 0).any() else 1.0
    return apart / median


def _small(matrix: UtilityMatrix, heard: Indices) -> Memberships:
    """Coalitions of up to two clients, the empty one first; of many clients only that one."""
    if len(heard) > MOST_ENUMERATED:
        return np.zeros((1, matrix.n_clients), dtype=bool)
    every = coalitions_of(heard, matrix.n_clients)
    return np.asarray(every[every.sum(axis=1) < SMALL])


def _nearest_covariance(among: Floats) -> Floats:
    """The matrix without negative eigenvalues, ones on its diagonal."""
    variances, axes = np.linalg.eigh((among + among.T) / 2)
    made = (axes * np.maximum(variances, 0)) @ axes.T
    sizes = np.sqrt(np.diag(made))
    return np.asarray(made / np.outer(sizes, sizes))


def _held_out(made: KernelCompletion, participants: NDArray[np.bool_]) -> tuple[float, int]:
    """How many times the squared error of held-out cells is what the process says, widened as Student's t widens a
    90 % interval; and how many clients were held out, one in one round at a time."""
    absent = np.asarray(~participants[:, made.heard].all(axis=1))
    rounds, clients = np.nonzero(participants & absent[:, None])
    if len(rounds) == 0:
        return 1.0, 0
    some = _thinned(np.arange(len(rounds)), MOST_HELD_OUT)
    process, squares, variances = made.process, [], []
    for t, client in zip(rounds[some].tolist(), clients[some].tolist(), strict=True):
        held = np.flatnonzero((process.rounds == t) & process.coalitions[:, client])
        if len(held):
            errors, expected = process.left_out(held)
            squares.append(float((errors**2).mean()))
            variances.append(float(expected.mean()))
    if not squares:
        return 1.0, 0
    wider = stdtrit(max(len(squares) - 1, FEWEST), 0.95) / ndtri(0.95)
    return float(sum(squares) / sum(variances) * wider**2), len(squares)
