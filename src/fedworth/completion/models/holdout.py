"""How wrong the predictions are: held-out participants, and the covariance of the values' errors that follows.

Every answer of a round that somebody missed is predicted from all other answers, in closed form. Coalitions of that
round's participants with the client are measured once more, with the predicted model in place of the recorded one; a
client alone is predicted by the process of single clients, as an absent one would be. Only one answer is left out at a
time: with more, the bias changes its sign.

The error of a point at size k, ε_k, is the mean over its coalitions of size k of the measured minus the predicted
utility, divided by the round's scale g_t. Beyond the K participants of a round no coalition can be measured; one
member's error then fades with its share: ε_k = ε_K · K/k.

An absent client makes two errors in the total of a coalition, each summed over the rounds:

    alone                     e_i, of its predicted utility
    with k − 1 others         κ_k f_i, of its predicted model; κ fades with k as the held-out errors do, Σ κ = 1

    Cov e = s_e² Σ_ts g_ti g_sj Cov_singletons((i,t),(j,s))   s_e² = Σ_a g_a² ε_a² / Σ_a g_a² v_a   over held-out points
    Cov f = s_f² Σ_ts h_ti h_sj Cov_updates((i,t),(j,s))      s_f² = Σ_a g_a² ε_a² / Σ_a h_a² v_a,  ε of sizes from 2 on
                  + τ² s_f² v̄_f Σ_t h_ti Σ_s h_sj             for duplicates; τ²: excess correlation of left-out errors
    Cov(e_i, f_j) = Σ_a g_a² ε_ea ε_fa / √(Σ_a g_a² Σ_a h_a²) · Σ_t g_ti h_tj    for duplicates

    h_ti = g_t m_ti,   m_ti = Σ_k κ_k k n_i / (n_i + (k − 1) n̄)         n: weights in the average, n̄ the others' mean

Points weigh g², since rounds with large utilities decide the sums. m is how much a client counts in coalitions,
relative to an equal share: the error of a predicted model enters a coalition with the client's weight.

Within a round the two errors are correlated (a lucky batch helps both). The errors of one client may persist longer
than the process expects, above all with convolutional models; τ² is by how much. The scales are estimated from n points
(as many as weigh equally), so the covariance is widened as Student's t with n − 1 degrees of freedom widens a 90 %
interval; for clients that train on all of their samples, also by `Hyperparameters.error_factor`. A client whose own
held-out errors are larger than the scales say, as those of a client whose data change over time are, has both errors
widened (`own_widening`).

With fixed weights a client alone is a small step from the global model, as in any coalition, and its predicted model is
used: e is 0, and f counts from size 1 on.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from fedworth.arrays import Floats, Indices, Memberships, stream
from fedworth.coalitions import coalitions_of, distinct
from fedworth.completion.models.gaussian_process import thinned
from fedworth.completion.models.prediction import PredictedModels, Singletons
from fedworth.games.game import ModelGame
from fedworth.ledger.ledger import Round
from fedworth.names import Weighting

FEWEST_SAMPLED = 6
"""With fewer other participants all coalitions are tested; otherwise a few coalitions of a few sizes."""

N_SIZES, N_OF_A_SIZE = 6, 3
FEW_SIZES, FEW_OF_A_SIZE = 4, 1
"""Where evaluations are slow."""

MOST_POINTS, FEW_POINTS = 600, 100
"""Answers that are left out at most, and where evaluations are slow."""

LEAST_VARIANCE = 0.1
"""Errors are divided by √ρ, with ρ at least this: a nearly certain prediction says little about the others."""

EXPECTED = 2.0
"""Points with errors of the usual size that a client's own errors are averaged with."""

LEAST_COUNT = 1e-300
"""In place of 0 where nothing was missed, or no client weighs anything."""

TAIL = 0.95
"""The upper end of a 90 % interval."""

FEWEST_DEGREES = 3.0
"""The least number of degrees of freedom."""


@dataclass(frozen=True)
class HeldOut:
    """The errors of left-out answers by size of the coalition, and the errors of values that follow."""

    models: PredictedModels
    singletons: Singletons
    points: Indices  # (n_points,)
    variances: Floats  # (n_points,): of the points' left-out updates
    singleton_variances: Floats  # (n_points,): of their left-out utilities alone
    errors: Floats  # (n_points, n_heard): column k−1 is ε_k
    block_errors: Floats  # (n_points, n_blocks): Σ_k ε_k of each block of test samples
    n_evaluations: int

    @property
    def first(self) -> int:
        """How many sizes have a process of their own: 1 if a client alone is predicted by that of single clients."""
        return int(uses_singletons(self.models.federation.weighting))

    @cached_property
    def size_shares(self) -> Floats:
        """(2, n_heard): how e and f are spread over coalitions of 1, 2, … clients; each row adds up to 1, or is 0."""
        first, n = self.first, self.errors.shape[1]
        shares = np.zeros((2, n))
        shares[0, :first] = 1.0
        shares[1, first:] = 1 / max(n - first, 1)
        if len(self.points):
            relative = np.maximum(self.variances / self.variances.mean(), LEAST_VARIANCE)  # ρ
            by_size = np.sqrt((self.errors[:, first:] ** 2 / relative[:, None]).mean(axis=0))
            shares[1, first:] = by_size / by_size.sum() if by_size.sum() > 0 else shares[1, first:]
        return shares

    @property
    def point_weights(self) -> Floats:
        """(n_points,): what each point counts in a mean of squared errors, ∝ g²; they add up to 1."""
        squares = self.singletons.scale[self.models.process.rounds[self.points]] ** 2
        return np.asarray(squares / squares.sum())

    def error_ratios(self, parts: Floats) -> Floats:
        """(n_parts,): rms held-out error of each part, relative to the rms error of all blocks; 0 without points.

        `parts`, (n_blocks, n_parts), says what each block counts in a part.
        """
        missed = np.column_stack([self.block_errors @ parts, self.block_errors.sum(axis=1)])  # (n_points, n_parts + 1)
        sizes = np.sqrt(self.point_weights @ missed**2)
        return np.asarray(sizes[:-1] / (sizes[-1] or 1.0))

    def value_covariance(self) -> Floats:
        """(n_heard, n_heard): the covariance of the errors of the Shapley values summed over rounds.

        The game κ_|S| Σ_{i∈S} f_i has the Shapley value v_i = f_i/n + Σ_{j≠i} f_j (κ_n − 1/n)/(n − 1); that of e is the
        same with all of κ at size 1.
        """
        n = len(self.models.federation.heard)
        if len(self.points) == 0:
            return np.zeros((n, n))
        enters = np.empty((n, 2, n))
        enters[:] = ((self.size_shares[:, -1] - 1 / n) / max(n - 1, 1))[:, None]
        enters[np.arange(n), :, np.arange(n)] = 1 / n
        variances, axes = np.linalg.eigh(self.member_covariance())
        moved = enters.reshape(n, 2 * n) @ (
            axes * np.sqrt(np.maximum(variances, 0))
        )  # rounding may leave negative ones
        return np.asarray(moved @ moved.T)

    def member_covariance(self) -> Floats:
        """(2 n_heard, 2 n_heard): the covariance of e, then of f, of the heard clients."""
        models, singletons, points = self.models, self.singletons, self.points
        heard, n_rounds, rounds = models.federation.heard, len(models.known), models.process.rounds[points]
        pairs = np.ix_(heard, heard)
        playing = np.asarray(models.participants.any(axis=0))
        shown = np.stack([self._in_coalitions(t, playing) for t in range(n_rounds)])  # m
        alone = np.where(models.known, 0.0, singletons.scale[:, None])  # g, (n_rounds, n_clients)
        scales = (alone, alone * shown)  # g and h
        among_present = np.stack([self._in_coalitions(t, models.participants[t]) for t in range(n_rounds)])
        of_points = among_present[rounds, models.process.clients[points]]
        in_coalition = np.stack([np.ones(len(points)), of_points])  # (2, n_points): 1, and m
        counts = self.point_weights * in_coalition**2  # (2, n_points)
        counts = counts / np.maximum(counts.sum(axis=1, keepdims=True), LEAST_COUNT)
        parts = self.errors[:, : self.first], self.errors[:, self.first :]
        missed = np.stack([part.sum(axis=1) for part in parts])  # ε, (2, n_points)
        relative = np.divide(missed, in_coalition, out=np.zeros(missed.shape), where=in_coalition > 0)
        moments = np.einsum("ka,la,ka,la->kl", relative, relative, np.sqrt(counts), np.sqrt(counts))  # (2, 2)
        variances = np.stack([self.singleton_variances, self.variances])  # v, (2, n_points)
        means = (counts * variances).sum(axis=1)  # v̄
        own = self._own_widening(relative**2 / np.maximum(variances, LEAST_VARIANCE * means[:, None]), counts)
        of_e, of_f = (
            process.summed_covariance(scales[k])[pairs] * moments[k, k] / means[k]
            for k, process in enumerate((singletons.process, models.process))
        )
        duplicates, sums = models.similarity.duplicates[pairs], scales[1][:, heard].sum(axis=0)
        of_f += models.excess_correlation(points) * moments[1, 1] * np.outer(sums, sums) * duplicates
        across = moments[0, 1] * (scales[0][:, heard].T @ scales[1][:, heard]) * duplicates
        wider = np.concatenate(own) * max(map(_widening, counts)) * models.hyperparameters.error_factor
        return np.asarray(np.block([[of_e, across], [across.T, of_f]]) * np.outer(wider, wider))

    def _in_coalitions(self, round_index: int, playing: NDArray[np.bool_]) -> Floats:
        """m, (n_clients,): how much each client counts in coalitions of those who play, 1 for an equal share."""
        federation, shares = self.models.federation, self.size_shares[1]
        if federation.weighting == "uniform":
            return np.ones(len(playing))
        weights = federation.weights(round_index)
        if federation.weighting == "fixed":
            return np.asarray(weights * len(federation.heard))  # they add up to 1
        weights, n = np.where(playing, weights, 0.0), int(playing.sum())
        sizes = np.clip(np.arange(1, len(shares) + 1), 1, max(n, 1))  # larger coalitions count as one of all
        others = (weights.sum() - weights) / max(n - 1, 1)
        totals = weights[:, None] + (sizes - 1) * others[:, None]  # (n_clients, n_heard)
        parts = np.divide(sizes * weights[:, None], totals, out=np.zeros(totals.shape), where=totals > 0)
        return np.asarray(parts @ shares)

    def _own_widening(self, squares: Floats, counts: Floats) -> Floats:
        """(2, n_heard): by how much each client's own held-out errors exceed those of all, 1 or more.

        It is the root of the mean of the client's `squares` (ε²/v, over their mean), (2, n_points), taken together with
        `EXPECTED` points that are as the mean. Points weigh as in the mean, so those of quiet rounds say little.
        """
        models, relative = self.models, squares / np.maximum((counts * squares).sum(axis=1, keepdims=True), LEAST_COUNT)
        weights = counts / np.maximum(counts.max(axis=1, keepdims=True), LEAST_COUNT)
        mine = models.similarity.duplicates[np.ix_(models.federation.heard, models.process.clients[self.points])]
        shown = ((relative * weights) @ mine.T + EXPECTED) / (weights @ mine.T + EXPECTED)  # (2, n_heard)
        return np.asarray(np.sqrt(np.maximum(shown, 1.0)))


def _widening(weights: Floats) -> float:
    """How much wider a 90 % interval is if its scale is estimated from points with these weights, which add up to 1."""
    degrees = max(1 / float((weights**2).sum()) - 1, FEWEST_DEGREES)
    return float(stdtrit(degrees, TAIL) / ndtri(TAIL))


def hold_out(models: PredictedModels, singletons: Singletons, *, few: bool = False) -> HeldOut:
    """Predict recorded answers, and compare; `few`: fewer answers, on fewer coalitions."""
    federation, process = models.federation, models.process
    missed_rounds = np.asarray(~models.known[:, federation.heard].all(axis=1))
    points = np.flatnonzero(missed_rounds[process.rounds])
    points = points[thinned(len(points), FEW_POINTS if few else MOST_POINTS)]
    errors, n_evaluations = np.zeros((len(points), len(federation.heard))), 0
    block_errors = np.zeros((len(points), federation.oracle.n_blocks))
    weights, variances = process.leave_out(points)
    alone, singleton_variances = singletons.leave_out(points)
    for t in np.unique(process.rounds[points]).tolist():
        rows = np.flatnonzero(process.rounds[points] == t)
        clients = process.clients[points[rows]]
        tested = [_coalitions(models, t, client, few) for client in clients.tolist()]
        coalitions = np.concatenate(tested)  # (n, n_clients)
        replaced = np.repeat(np.arange(len(rows)), [len(some) for some in tested])  # (n,): whose model is predicted
        sizes, recorded = coalitions.sum(axis=1), federation.game(t)
        measured = sizes > int(uses_singletons(federation.weighting))
        guesses = alone[rows][replaced]
        guesses[measured] = _with_predicted(models, t, clients, weights[rows], coalitions[measured], replaced[measured])
        missed = (recorded.utilities(coalitions[:, recorded.clients]) - guesses) / singletons.scale[t]  # (n, n_blocks)
        for place, row in enumerate(rows.tolist()):
            mine = replaced == place
            by_size = _by_size(sizes[mine], errors.shape[1])  # (n_heard, n_mine)
            errors[row], block_errors[row] = by_size @ missed[mine].sum(axis=1), by_size.sum(axis=0) @ missed[mine]
        n_evaluations += int(measured.sum())
    return HeldOut(models, singletons, points, variances, singleton_variances, errors, block_errors, n_evaluations)


def uses_singletons(weighting: Weighting) -> bool:
    """Whether a client alone is predicted by the process of single clients, and not by its predicted model."""
    return weighting != "fixed"


def n_checks(participants: NDArray[np.bool_], *, few: bool) -> int:
    """About how many evaluations hold-outs take in rounds with these participants, (n_rounds, n_clients)."""
    sizes = participants.sum(axis=1)
    sizes = sizes[sizes < participants.any(axis=0).sum()]
    all_of_them = 2.0 ** np.minimum(sizes - 1, 30)
    tested = np.minimum(sizes, FEW_SIZES * FEW_OF_A_SIZE) if few else np.minimum(all_of_them, N_SIZES * N_OF_A_SIZE)
    tested = 1.5 * (tested - 1)  # with the predicted model, and half as many recorded coalitions that are not known yet
    thin = min(1.0, (FEW_POINTS if few else MOST_POINTS) / max(int(sizes.sum()), 1))
    return round(float((sizes * tested).sum()) * thin)


def _coalitions(models: PredictedModels, round_index: int, client: int, few: bool) -> Memberships:
    """(n, n_clients): coalitions of a round's participants with this client, and without its duplicates."""
    present = models.participants[round_index]
    others = np.flatnonzero(present & ~models.similarity.duplicates[client])
    if not few and len(others) < FEWEST_SAMPLED:
        rows = coalitions_of(others, len(present))
    else:  # none of the others, all of them, and a few coalitions of sizes between, which are denser where small
        rng = stream(0, "hold-outs", round_index, client)
        n_sizes, n_each = (FEW_SIZES, FEW_OF_A_SIZE) if few else (N_SIZES, N_OF_A_SIZE)
        sizes = np.unique(np.geomspace(1, len(others) + 1, n_sizes).round().astype(np.int64)) - 1
        drawn = np.zeros((len(sizes), n_each, len(present)), dtype=bool)
        for row, size in zip(drawn, sizes.tolist(), strict=True):
            for draw in row:
                draw[rng.choice(others, size, replace=False)] = True
        rows = distinct(drawn.reshape(-1, len(present)))[0]
    rows[:, client] = True
    return rows


def _with_predicted(
    models: PredictedModels,
    round_index: int,
    clients: Indices,
    weights: Floats,
    coalitions: Memberships,
    which: Indices,
) -> Floats:
    """(n, n_blocks): utilities of coalitions with a predicted model of client `clients[which]` for the recorded one.

    Predicted models join the round as clients of their own, after all others; `weights` are left-out ones.
    """
    federation = models.federation
    recorded, own = federation.round(round_index), federation.weights(round_index)
    n, order = len(own), np.arange(len(coalitions))
    predicted = dict(enumerate(models.combine(round_index, weights), start=n))
    round_ = Round(recorded.entry, recorded.global_model, {**recorded.client_models, **predicted}, {})
    rows = np.zeros((len(coalitions), n + len(clients)), dtype=bool)
    rows[:, :n] = coalitions
    rows[order, clients[which]], rows[order, n + which] = False, True
    both = np.concatenate([own, own[clients]])
    game = ModelGame(federation.oracle, round_, np.arange(len(both)), both, federation.weighting)
    return game.utilities(rows)


def _by_size(sizes: Indices, n_sizes: int) -> Floats:
    """(n_sizes, n): the map from errors of coalitions with these sizes, (n,), to the mean error at each size.

    Errors are interpolated between measured sizes, and fade beyond them.
    """
    shown, places, counts = np.unique(sizes, return_inverse=True, return_counts=True)
    every = np.arange(1, n_sizes + 1)
    between = np.stack([np.interp(every, shown, unit) for unit in np.eye(len(shown))], axis=1)  # (n_sizes, n_shown)
    return np.asarray((between / counts)[:, places] * np.minimum(1.0, shown[-1] / every)[:, None])
