"""How the errors of predictions add up over the rounds: what each client's puts off the coalitions that hold it.

An absent client enters the total of a coalition in two ways, each with an error of its own, summed over the rounds:

    alone                     e_i, of the lone process
    with k − 1 others         κ_k f_i, of its predicted model; κ fades with k as the held-out errors do, Σ κ = 1

    Cov e = s_e² Σ_ts g_ti g_sj Cov_lone((i,t),(j,s))       s_e² = Σ_a g_a² ε_a² / Σ_a g_a² v_a   over held-out points
    Cov f = s_f² Σ_ts g_ti g_sj Cov_update((i,t),(j,s))     the same with the error of all sizes from 2 on
                  + τ² s_f² v̄_f Σ_t g_ti Σ_s g_sj           i and j of one kind; τ²: `agreement` of the left-out errors
    Cov(e_i, f_j) = c s_e s_f √(v̄_e v̄_f) Σ_t g_ti g_tj      i and j of one kind; c: their correlation over the points

Points weigh g², since rounds with large utilities decide the sums. Within a round the two errors are alike (a lucky
batch helps both); from round to round each process errs in its own way. What the predictions of a client miss may last
longer than the process expects, with convolutional models above all: the left-out errors of one client then agree more
than they should, and τ² is by how much. The scales come from n points, as many as weigh alike: everything is widened as
Student's t with n − 1 degrees of freedom widens a 90 % interval; and for steady clients, whose errors last from round
to round, by a number that goes with theirs (`update_process`).

With fixed weights the lone process has no say: a client alone errs as its predicted model does, so e is 0 and f counts
from size 1 on.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtrit

from fedworth.arrays import Floats
from fedworth.completion.models.holdouts import HoldOuts
from fedworth.completion.models.lone_process import Lone
from fedworth.completion.models.predicted import PredictedLedger

TAIL = 0.95
"""The upper end of a 90 % interval."""

FEWEST = 3.0
"""Degrees of freedom are at least so many: fewer points than these say next to nothing."""


@dataclass(frozen=True)
class MemberErrors:
    """The errors of the heard clients' predictions, alone and in company."""

    covariance: Floats  # (2 n_heard, 2 n_heard): of e, then of f
    size_shares: Floats  # (2, n_heard): what e and f count in a coalition of 1, 2, … clients


def member_errors(predicted: PredictedLedger, lone: Lone, held: HoldOuts) -> MemberErrors:
    """The errors, as the held-out points say; none where nothing was held out."""
    heard, shares = predicted.heard, held.size_shares
    if len(held.points) == 0:
        return MemberErrors(np.zeros((2 * len(heard), 2 * len(heard))), shares)
    scale = np.where(predicted.known, 0.0, lone.scale[:, None])[:, heard]  # g, (n_rounds, n_heard)
    processes = (lone.process, predicted.process)
    variances = [process.left_out_variances(held.points) for process in processes]  # v
    found = np.stack([held.alone, held.in_company])  # ε, (2, n_points)
    weights = held.scale**2 / (held.scale**2).sum()
    means = np.array([weights @ v for v in variances])  # v̄
    moments = (found * weights) @ found.T  # (2, 2)
    whole = np.zeros(predicted.known.shape)
    whole[:, heard] = scale
    summed = [process.summed_covariance(whole)[np.ix_(heard, heard)] for process in processes]
    same = predicted.likeness.same_kind[np.ix_(heard, heard)]
    alike = (scale.T @ scale) * same
    alone, company = (summed[k] * moments[k, k] / means[k] for k in range(2))
    sums = scale.sum(axis=0)
    company = company + predicted.agreement(held.points) * moments[1, 1] * np.outer(sums, sums) * same
    covariance = np.block([[alone, moments[0, 1] * alike], [moments[0, 1] * alike, company]])
    wider = _widening(weights) * predicted.process.numbers.lasting
    return MemberErrors(covariance * wider**2, shares)


def _widening(weights: Floats) -> float:
    """How much wider a 90 % interval is when its scale comes from points of these weights, which add up to 1."""
    freedom = max(1 / float((weights**2).sum()) - 1, FEWEST)
    return float(stdtrit(freedom, TAIL) / ndtri(TAIL))
