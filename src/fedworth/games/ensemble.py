"""The Shapley value of a round from few forward passes: the ensemble of the clients' outputs, corrected by draws.

A game of models is a sum over test samples x, U(S) = Σ_x u_x(S), and with the contrasts c_i(S) = ([i ∈ S] − s/n) /
(s/n (1 − s/n)) its Shapley value is

    v_i = (U(all) + Σ_{s<n} A_{s,i}(U)) / n,        A_{s,i}(U) = mean over the coalitions of size s of c_i(S) U(S)

The global model, each client alone and all together are evaluated on all samples: n + 2 passes, which give U(all) and
A_1. Their outputs z_0, z_i and z_all make an estimate of every sample's game, the ensemble:

    g_x(S) = score_x( (1 − Σ_S r_i) z_0 + Σ_S r_i z_i + h_S (z_all − ensemble of all) ) − score_x(z_0)
    r_i = c_{S,i} / c_{i,i}     the weight of a model in the coalition over its weight alone
    h_S = q_S / q_all,          q_S = (Σ_S c)² − Σ_S c²: exact for one client and for all

A_s(g) takes no forward pass: all coalitions are enumerated up to `MOST_COALITIONS`, beyond that every few batches draw
their own. What g misses is measured on small batches of samples with coalitions of their own. One pass gives every
batch one coalition: of size s with probability q_s, and dealt without replacement from a shuffled deck of its size.
With B batches, K_s draws of size s, and e = (u(S) − u(all)) − β (g(S) − u(all)),

    Σ_x A_s(u_x) ≈ Σ_x β A_s(g_x) + (B / K_s) Σ_draws c(S) Σ_{x in the batch} e_x

This is unbiased whatever g is: β for one half of the batches is fitted on the other half.

    covariance = n⁻² Σ_s (B/K_s)² Σ_draws c cᵀ ē² [1 − f_s + f_s r_s (D_s − r_s) / (D_s K_s)]  + that of sampled A_s(g)

with ē a batch's sum of e, D_s = C(n, s), r_s = K_s mod D_s, and f_s the part of ē² that is due to coalitions, which
vanishes when decks are complete; the rest is due to the samples of a batch.

The same draws say what a client adds to large coalitions, those of at least half of the others: with h = ⌈(n − 1)/2⌉,
the mean of its marginal contributions over the sizes from h to n − 1 is

    l_i = (U(all) − mean over the coalitions of size h of (1 − (h/n) c_i(S)) U(S) + Σ_{h<s<n} A_{s,i}(U)) / (n − h)
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

import numpy as np
import torch
from scipy.sparse import csr_array

from fedworth.arrays import Floats, Indices, Memberships, stream
from fedworth.coalitions import from_members, of_size
from fedworth.games.game import Game, ModelGame, Sampled, Shares
from fedworth.games.sampled import contrasts_of_clients, draw
from fedworth.oracle.oracle import OutputOracle, also_of, block_totals, criteria_of, in_columns, n_counted

BATCH_SAMPLES, FEWEST_BATCHES, USUAL_BATCHES = 10, 16, 100
"""Samples of a batch. Smaller test sets have smaller batches; beyond the usual number of batches these grow as the root
of the number of samples, and so does their number: making a model for each takes time, too."""

MOST_COALITIONS = 1 << 12
"""Coalitions up to which the ensemble is enumerated, and a deck is shuffled whole."""

N_DRAWN, DRAWN_BATCHES = 512, 6
"""Coalitions of the ensemble that some batches together draw in each pass, where they are not enumerated."""

KEPT_NUMBERS = 1 << 27
"""Numbers of outputs that are kept; with more, the samples are valued part by part."""

PIECE = 1 << 19
"""Numbers of the ensemble's outputs that are computed at a time: they stay in the processor's cache."""

N_BINS = 12
"""Groups of sizes, each with its own β; with few clients every size is a group."""

HELD = 3.0
"""How firmly β of a size is held to that of all sizes, in draws."""

FEWEST_PASSES, MOST_PASSES = 2, 400

N_COMPARED, ROUNDING = 512, 1e-5
"""Outputs by which equal clients are found, and how far they may be apart, as a part of the largest change."""


@dataclass(frozen=True)
class Estimate:
    """The values that the passes so far give, by batch of test samples; batches are the same in all rounds."""

    by_batch: Floats  # (n, n_batches); of the first batches, if the samples are valued part by part
    covariance: Floats  # (n, n) of the errors that the draws cause in the values, if all samples had as many
    batch_sizes: Indices  # (n_batches,)
    n_passes: int


class DependentSamplesError(Exception):
    """A module whose outputs depend on the other samples of a batch, so that samples cannot be measured apart."""


Enough = Callable[[Estimate], bool]
"""Whether an estimate is precise enough."""


def has_outputs(game: Game) -> TypeGuard[ModelGame]:
    """Whether a game's utilities are sums over test samples, whose outputs its oracle gives."""
    if not isinstance(game, ModelGame) or not isinstance(game.oracle, OutputOracle):
        return False
    return not game.oracle.task.criterion(game.oracle.measure).is_whole


def ensemble_shapley(
    game: ModelGame,
    rng: np.random.Generator,
    is_enough: Enough = lambda _: True,
    progress: Callable[[int], None] = lambda _: None,
) -> Sampled:
    """The Shapley values of a game of four clients or more that `has_outputs`, and what each adds to large coalitions.

    Args:
        game: The game of a round.
        rng: Draws coalitions.
        is_enough: Says after each pass whether the estimate is precise enough.
        progress: Called with the number of passes after each of the first n + 2.

    Returns:
        Values by block of test samples; evaluations are counted in passes of the whole test set, rounded up.
    """
    work = _Estimation(game, rng, progress)
    next_look = FEWEST_PASSES
    for part in work.parts():
        work.add_ensemble(part)
        for n_done in range(1, (work.n_passes or MOST_PASSES) + 1):
            work.draw(part)
            if not work.is_enumerated:
                work.draw_ensemble(part, n_done % 2)
            if work.n_passes is None and n_done >= next_look:
                if is_enough(work.estimate(n_done)):
                    break
                next_look += max(1, n_done // 8)  # an estimate looks at all draws so far
        work.n_passes = work.n_passes or n_done
    return work.shares()


def batches_of(n_samples: int) -> list[Indices]:
    """The numbers of the samples of each batch: random, and always the same for `n_samples`."""
    n_batches = max(min(FEWEST_BATCHES, n_samples), n_samples // BATCH_SAMPLES)
    n_batches = min(n_batches, int(math.sqrt(n_batches * USUAL_BATCHES)))
    shuffled = stream(0, "batches of samples").permutation(n_samples)
    return [np.sort(part) for part in np.array_split(shuffled, n_batches)]


@dataclass(frozen=True, eq=False)
class _Part:
    """Some batches, and the outputs of the global model, of everyone and of each client on their samples."""

    batches: range
    samples: Indices  # (n_samples,), batch after batch
    starts: Indices  # (n_batches + 1,): where each batch starts among the samples
    before: torch.Tensor  # z_0, (n_samples, …)
    alone: torch.Tensor  # z_i, (n, n_samples, …)
    gap: torch.Tensor  # z_all − ensemble of all, (n_samples, …)
    labels: torch.Tensor
    score_before: Floats  # (n_samples,)
    score_all: Floats


@dataclass
class _Draws:
    """Coalitions that were measured on batches, with u(S) − u(all) and g(S) − u(all) of each sample."""

    coalitions: list[Memberships] = field(default_factory=list)  # (n,) each
    batches: list[int] = field(default_factory=list)
    measured: list[Floats] = field(default_factory=list)
    expected: list[Floats] = field(default_factory=list)


class _Estimation:
    """What the passes so far have measured of a game."""

    def __init__(self, game: ModelGame, rng: np.random.Generator, progress: Callable[[int], None]) -> None:
        self.game, self.rng, self.n, self.progress = game, rng, len(game.clients), progress
        self.task = game.oracle.task
        self.criterion = self.task.criterion(game.oracle.measure)
        self.n_counted = self.criterion.n_counted(self.task.labels)
        self.batches = batches_of(len(self.task.labels))
        self.n_passes: int | None = None  # of every part, once the first has decided
        self.draws = _Draws()
        self.decks = {size: _Deck(self.n, size, rng) for size in range(2, self.n)}
        sizes = np.arange(2.0, self.n)
        self.chances = needs_of(self.n) / needs_of(self.n).sum()  # q_s
        self.bins = np.minimum(np.geomspace(1, N_BINS + 1, len(sizes) + 1)[:-1].astype(int) - 1, N_BINS - 1)
        if len(sizes) <= N_BINS:
            self.bins = np.arange(len(sizes))
        self.n_bins = int(self.bins[-1]) + 1
        n_batches = len(self.batches)
        # of the 2n numbers that are estimated, n Shapley values are the first: see `contrasts_of`
        self.by_batch = np.zeros((2 * self.n, n_batches))  # U(all) and size 1, of the models
        self.of_ensemble = np.zeros((2, self.n_bins, 2 * self.n, n_batches))  # Σ_s A_s(g), by half of the passes
        self.in_cells = np.zeros((2, self.n_bins, 2 * self.n, game.n_blocks))  # the same, by half of the batches, block
        self.n_drawn = np.zeros(2, dtype=np.int64)  # how often the ensemble was drawn in each half of the passes
        self.is_enumerated = 2**self.n <= MOST_COALITIONS
        lone = np.diag(self._counted(np.eye(self.n, dtype=bool)))
        self.lone_counted = np.where(lone > 0, lone, 1.0)  # c_{i,i}, (n,)
        self.all_pairs = float(_pairs(self._counted(np.ones((1, self.n), dtype=bool)))[0]) or 1.0  # q_all
        self.totals: Floats | None = None  # (n + 1, n_criteria, n_blocks) of everyone and of each client
        self.mean = np.eye(self.n)  # takes the mean over clients that are worth the same

    @property
    def cells(self) -> Indices:
        """(n_samples,): the block of each sample of the test set."""
        blocks = self.task.blocks
        return np.zeros(len(self.task.labels), dtype=np.int64) if blocks is None else np.asarray(blocks, np.int64)

    def parts(self) -> Iterator[_Part]:
        """The samples, as many at a time as their outputs may be kept."""
        some = self.batches[0]
        first, again = self.game.outputs(np.zeros((2, self.n), bool), [some, np.concatenate(self.batches[:2])])
        if not torch.allclose(first, again[: len(some)], rtol=1e-3, atol=1e-4, equal_nan=True):
            raise DependentSamplesError
        each = max(1, first.numel() * (self.n + 2) // len(self.batches[0]))  # numbers per sample
        per_part = max(1, int(KEPT_NUMBERS / each * len(self.batches) / len(self.task.labels) / DRAWN_BATCHES))
        n_groups = -(-len(self.batches) // DRAWN_BATCHES)
        ends = np.linspace(0, n_groups, -(-n_groups // per_part) + 1).astype(int) * DRAWN_BATCHES
        ends = np.minimum(ends, len(self.batches)).tolist()
        for start, end in itertools.pairwise(ends):
            yield self._part(range(start, end))

    def _part(self, batches: range) -> _Part:
        """The outputs of n + 2 models on some batches; what they say of the utilities is kept."""
        self.n_drawn[:] = 0  # of each part
        n, some = self.n, [self.batches[k] for k in batches]
        samples, starts = np.concatenate(some), np.cumsum([0, *map(len, some)])
        rows = np.concatenate([np.zeros((1, n), bool), np.ones((1, n), bool), np.eye(n, dtype=bool)])
        order = np.argsort(samples)  # in the order of the test set no inputs are copied
        each: list[torch.Tensor] = []
        for outputs in self.game.outputs(rows, [samples[order]] * len(rows)):
            each.append(outputs)
            if self.n_passes is None:  # of the first part, which stands for all
                self.progress(len(each))
        found = torch.stack(each)  # (n + 2, n_samples, …)
        found = found[:, torch.from_numpy(np.argsort(order))]
        labels = self.task.labels.cpu()[torch.from_numpy(samples)]
        before, everyone, alone = found[0], found[1], found[2:]
        if batches.start == 0:
            self.mean = mean_of_equals(alone, before, self.game.weights[self.game.clients])
        whole = self._weights(np.ones((1, n), dtype=bool))[0]
        part = _Part(
            batches, samples, starts, before, alone, everyone - self._mixed(whole, before, alone)[0], labels,
            self._scores(before[None], labels)[0], self._scores(everyone[None], labels)[0],
        )  # fmt: skip
        lone = self._scores(alone, labels) - part.score_before  # (n, n_samples)
        self.game.refuse_infinite(rows[1:], np.stack([part.score_all - part.score_before, *lone]))
        base = (part.score_all - part.score_before + contrasts_of_clients(lone)) / n
        self.by_batch[:n, batches] = np.add.reduceat(base, starts[:-1], axis=1)
        self._remember(found, labels, self.cells[samples])
        return part

    def _remember(self, outputs: torch.Tensor, labels: torch.Tensor, cells: Indices) -> None:
        """Add up what the game's own measuring would find of everyone and of single clients."""
        oracle = self.game.oracle
        criteria = criteria_of(self.task, oracle.measure, also_of(oracle))
        if any(criterion.is_whole for criterion in criteria):
            return  # the game measures them itself
        found = np.array([block_totals(criteria, one, labels, cells, self.game.n_blocks) for one in outputs])
        found = (found[1:] - found[0]) / n_counted(criteria, self.task.labels)
        self.totals = found if self.totals is None else self.totals + found

    def _scores(self, outputs: torch.Tensor, labels: torch.Tensor) -> Floats:
        """(k, n_samples): what each sample adds to the quality of each of k models; higher is better."""
        k, n_samples = outputs.shape[:2]
        repeated = labels.repeat(k, *[1] * (labels.ndim - 1))
        with torch.inference_mode():
            found = self.criterion.of(outputs.flatten(0, 1), repeated).double().numpy().reshape(k, n_samples)
        return np.asarray(found if self.criterion.is_better_higher else -found) / self.n_counted

    def _mixed(self, relative: Floats, before: torch.Tensor, alone: torch.Tensor) -> torch.Tensor:
        """(k, n_samples, …): the ensembles of coalitions with these r, (k, n), without the gap."""
        weights = torch.from_numpy(np.column_stack([1 - relative.sum(axis=1), relative])).to(alone)
        stacked = torch.cat([before[None], alone]).flatten(1)
        return (weights @ stacked).reshape(len(relative), *before.shape)

    def _weights(self, coalitions: Memberships) -> tuple[Floats, Floats]:
        """r, (k, n), and h, (k,), of coalitions."""
        counted = self._counted(coalitions)  # c, (k, n)
        return counted / self.lone_counted, _pairs(counted) / self.all_pairs

    def _counted(self, coalitions: Memberships) -> Floats:
        """(k, n): the weight of each client's model in coalitions."""
        return self.game.mixtures(coalitions).of_clients[:, self.game.clients]

    def expected(self, part: _Part, weights: tuple[Floats, Floats], some: slice) -> Floats:
        """(k, n_samples): g(S) − u(all) of coalitions, given by their r and h, on some of a part's samples."""
        relative, gap_weights = weights
        gap, labels = part.gap[some], part.labels[some]
        outputs = self._mixed(relative, part.before[some], part.alone[:, some])
        outputs += torch.from_numpy(gap_weights).to(gap).reshape(-1, *[1] * gap.ndim) * gap
        return self._scores(outputs, labels) - part.score_all[some]

    def _expected_each(self, part: _Part, coalitions: Memberships) -> Floats:
        """(n_samples,): g(S) − u(all) of one coalition for each of a part's samples."""
        relative, gap_weights = self._weights(coalitions)
        like, shape = part.gap, (-1, *[1] * (part.gap.ndim - 1))
        outputs = torch.from_numpy(1 - relative.sum(axis=1)).to(like).view(shape) * part.before
        for weight, alone in zip(relative.T, part.alone, strict=True):
            outputs += torch.from_numpy(weight).to(like).view(shape) * alone
        outputs += torch.from_numpy(gap_weights).to(like).view(shape) * part.gap
        return np.asarray(self._scores(outputs[None], part.labels)[0] - part.score_all)

    def add_ensemble(self, part: _Part) -> None:
        """The ensemble's A_s by bin of sizes, of all coalitions; with many clients each pass draws some."""
        if not self.is_enumerated:
            return
        rows = np.concatenate([of_size(self.n, size) for size in range(2, self.n)])
        weights = 1 / np.array([math.comb(self.n, int(size)) for size in rows.sum(axis=1)])
        of_samples = np.zeros((self.n_bins, 2 * self.n, len(part.samples)))
        numbers = max(1, part.before.numel() // len(part.samples))
        per_piece, mixed = max(1, PIECE // (numbers * len(rows))), self._weights(rows)
        for start in range(0, len(part.samples), per_piece):
            some = slice(start, start + per_piece)
            of_samples[:, :, some] = self._strata(rows, weights, self.expected(part, mixed, some))
        self._add_strata(part, of_samples, 0)
        self._add_strata(part, of_samples, 1)

    def draw_ensemble(self, part: _Part, half: int) -> None:
        """Coalitions of the ensemble for one of the two halves of the passes; every few batches have their own."""
        of_samples = np.zeros((self.n_bins, 2 * self.n, len(part.samples)))
        starts = part.starts[:-1:DRAWN_BATCHES].tolist()
        drawn = draw(needs_of(self.n), N_DRAWN, rng=self.rng, n_groups=len(starts))
        relative, gap_weights = self._weights(drawn.coalitions)
        size = max(1, PIECE // max(1, part.before.numel() // len(starts)))
        for group, (start, end) in enumerate(itertools.pairwise([*starts, len(part.samples)])):
            mine, some = np.flatnonzero(drawn.groups == group), slice(start, end)  # in the order of their sizes
            for which in np.split(mine, range(size, len(mine), size)):
                expected = self.expected(part, (relative[which], gap_weights[which]), some)
                of_samples[:, :, some] += self._strata(drawn.coalitions[which], drawn.weights[which], expected)
        self._add_strata(part, of_samples, half)

    def _add_strata(self, part: _Part, of_samples: Floats, half: int) -> None:
        """Add the ensemble's A_s of a part's samples, (n_bins, 2n, n_samples), to one half of the passes."""
        self.n_drawn[half] += 1
        self.of_ensemble[half][:, :, part.batches] += np.add.reduceat(of_samples, part.starts[:-1], axis=2)
        halves = np.repeat(np.array(part.batches) % 2, np.diff(part.starts))  # (n_samples,)
        for other in (0, 1):
            mine = np.flatnonzero(halves == other)
            places = np.arange(len(mine)), self.cells[part.samples[mine]]
            into = csr_array((np.ones(len(mine)), places), shape=(len(mine), self.game.n_blocks))
            for k in range(self.n_bins):
                self.in_cells[other, k] += of_samples[k][:, mine] @ into

    def _ensemble(self, fits: Floats) -> tuple[Floats, Floats]:
        """(2n, n_batches): Σ_s β A_s(g) by batch, and its error where coalitions were drawn.

        With c_0 and c_1 passes in the halves, the means m_0 and m_1 of the halves give the error of the mean of all as
        (m_0 − m_1) √(c_0 c_1) / (c_0 + c_1).
        """
        first, second = self.n_drawn.tolist()
        betas = fits[np.arange(len(self.batches)) % 2]  # (n_batches, n_bins)
        sums = np.einsum("bk,hkib->hib", betas, self.of_ensemble)
        apart = sums[0] / max(first, 1) - sums[1] / max(second, 1)
        return sums.sum(axis=0) / (first + second), apart * math.sqrt(first * second) / (first + second)

    def _strata(self, coalitions: Memberships, weights: Floats, expected: Floats) -> Floats:
        """(n_bins, 2n, n_samples): Σ_s A_s of each bin, from utilities (k, n_samples) of weighted coalitions."""
        bins = self.bins[coalitions.sum(axis=1) - 2]
        contrasts = contrasts_of(coalitions) * weights[:, None]  # (k, 2n)
        ends = np.searchsorted(bins, np.arange(self.n_bins + 1))  # coalitions are in the order of their sizes
        return np.stack([contrasts[a:b].T @ expected[a:b] for a, b in itertools.pairwise(ends)])

    def draw(self, part: _Part) -> None:
        """One pass: every batch of a part is measured with one coalition."""
        n_batches = len(part.batches)
        marks = (np.arange(n_batches) + self.rng.random()) / n_batches  # systematic: about B q_s of each size
        sizes = 2 + np.minimum(np.searchsorted(np.cumsum(self.chances), marks), len(self.chances) - 1)
        order = self.rng.permutation(n_batches).tolist()
        rows = np.stack([self.decks[size].deal() for size in sizes.tolist()])
        which = [self.batches[part.batches[place]] for place in order]
        found = dict(zip(order, self.game.outputs(rows, which), strict=True))
        rows = rows[np.argsort(order)]  # as the batches
        scores = self._scores(torch.cat([found[place] for place in range(n_batches)])[None], part.labels)[0]
        ends = part.starts[1:-1]
        for row, of_batch in zip(rows, np.split(scores, ends), strict=True):
            self.game.refuse_infinite(row[None], of_batch[None])
        self.draws.coalitions += list(rows)
        self.draws.batches += list(part.batches)
        self.draws.measured += np.split(scores - part.score_all, ends)
        self.draws.expected += np.split(self._expected_each(part, np.repeat(rows, np.diff(part.starts), axis=0)), ends)

    def fit(self) -> Floats:
        """β, (2, n_bins): for each half of the batches, fitted on the other half."""
        draws, halves = self.draws, np.array(self.draws.batches) % 2
        bins = self.bins[np.array(draws.coalitions).sum(axis=1) - 2]
        both = np.array([x @ y for x, y in zip(draws.expected, draws.measured, strict=True)])
        own = np.array([x @ x for x in draws.expected])
        fits = np.ones((2, self.n_bins))
        for half in (0, 1):
            other = halves != half
            if not own[other].sum() > 0:
                continue
            pooled, held = both[other].sum() / own[other].sum(), HELD * own[other].mean()
            for k in range(self.n_bins):
                some = other & (bins == k)
                fits[half, k] = (both[some].sum() + held * pooled) / (own[some].sum() + held)
        return fits

    def left(self, fits: Floats) -> tuple[list[Floats], Floats, Floats]:
        """e of each draw, the draws' weights B/K_s, and what e counts in each number, (n_draws, 2n)."""
        draws, rows = self.draws, np.array(self.draws.coalitions)
        sizes, halves = rows.sum(axis=1), np.array(draws.batches) % 2
        betas = fits[halves, self.bins[sizes - 2]]
        left = [y - beta * x for y, x, beta in zip(draws.measured, draws.expected, betas, strict=True)]
        counts = np.bincount(sizes, minlength=self.n + 1)[sizes]
        n_batches = len(np.unique(draws.batches))
        wanted = len(rows) * self.chances[sizes - 2]  # the expected number of draws of this size
        is_rare = n_batches * self.chances[sizes - 2] < 1  # a size that a pass may miss
        return left, n_batches / np.where(is_rare, wanted, counts), contrasts_of(rows)

    def estimate(self, n_passes: int) -> Estimate:
        """Values by batch and the covariance of the draws' errors, scaled to all batches."""
        fits, batches = self.fit(), np.unique(self.draws.batches)
        left, weights, contrasts = self.left(fits)
        added = contrasts * (weights * np.array([e.sum() for e in left]))[:, None]  # (n_draws, 2n)
        n, covariance = self.n, self._covariance(left, added, fits) * len(self.batches) / len(batches)
        sizes = np.array([len(self.batches[k]) for k in batches])
        return Estimate(self._by_batch(fits, added)[:, batches], covariance[:n, :n], sizes, n_passes)

    def _by_batch(self, fits: Floats, added: Floats) -> Floats:
        """(n, n_batches): Shapley values by batch; `added`, (n_draws, 2n), is what each draw adds to its batch."""
        found = self.by_batch + self._ensemble(fits)[0]
        np.add.at(found.T, np.array(self.draws.batches), added)
        return np.asarray(found[: self.n])

    def _covariance(self, left: Sequence[Floats], added: Floats, fits: Floats) -> Floats:
        """(2n, 2n), of the draws so far."""
        sizes = np.array(self.draws.coalitions).sum(axis=1)
        within = np.array([len(e) * e.var(ddof=1) if len(e) > 1 else 0.0 for e in left])  # of a batch's sum
        squares = np.array([e.sum() ** 2 for e in left])
        total = np.zeros((2 * self.n, 2 * self.n))
        for size in np.unique(sizes).tolist():
            mine = sizes == size
            n_draws, n_all = int(mine.sum()), math.comb(self.n, size)
            norms = (added[mine] ** 2).sum(axis=1) / np.maximum(squares[mine], 1e-300)
            by_samples = float(norms @ within[mine]) / max(float((added[mine] ** 2).sum()), 1e-300)
            part, rest = float(np.clip(1 - by_samples, 0, 1)), 1.0
            if n_all <= MOST_COALITIONS:
                over = n_draws % n_all
                rest = over * (n_all - over) / (n_all * n_draws)
            total += added[mine].T @ added[mine] * (1 - part + part * rest)
        errors = self._ensemble(fits)[1]
        groups = np.add.reduceat(errors, np.arange(0, errors.shape[1], DRAWN_BATCHES), axis=1)
        return np.asarray(total + groups @ groups.T)

    def shares(self) -> Sampled:
        """The values by block of test samples, and what clients add to large coalitions."""
        game, n = self.game, self.n
        fits = self.fit()
        left, weights, contrasts = self.left(fits)
        known = np.concatenate([np.ones((1, n), dtype=bool), np.eye(n, dtype=bool)])
        if self.totals is not None:
            game.memory.add(known, in_columns(self.totals))
        everyone, lone = np.split(game.utilities(known), [1])  # a game may know single clients better than by models
        values = np.concatenate([(everyone + contrasts_of_clients(lone)) / n, np.zeros_like(lone)])  # (2n, n_blocks)
        values += np.einsum("hk,hkic->ic", fits, self.in_cells) / self.n_drawn.sum()
        cells = [self.cells[self.batches[k]] for k in self.draws.batches]
        rows = np.repeat(np.arange(len(left)), [len(e) for e in left])
        sums = csr_array((np.concatenate(left), (rows, np.concatenate(cells))), shape=(len(left), game.n_blocks))
        values += np.asarray((contrasts * weights[:, None]).T @ sums)
        added = contrasts * (weights * np.array([e.sum() for e in left]))[:, None]
        covariance, n_evaluations = self._covariance(left, added, fits), n + 2 + (self.n_passes or 0)
        mean = self.mean
        return Sampled(
            Shares(mean @ values[:n], mean @ covariance[:n, :n] @ mean.T, n_evaluations),
            Shares(mean @ values[n:], mean @ covariance[n:, n:] @ mean.T, n_evaluations),
            mean @ self._by_batch(fits, added),
        )


class _Deck:
    """Coalitions of one size in random order, without replacement; of very many, parts of random permutations."""

    def __init__(self, n: int, size: int, rng: np.random.Generator) -> None:
        self.n, self.size, self.rng = n, size, rng
        self.left: list[Memberships] = []

    def deal(self) -> Memberships:
        """(n,): the next coalition."""
        if not self.left:
            self.left = list(self._shuffled())
        return self.left.pop()

    def _shuffled(self) -> Memberships:
        if math.comb(self.n, self.size) <= MOST_COALITIONS:
            return np.asarray(self.rng.permutation(of_size(self.n, self.size)))
        shuffled = self.rng.permutation(self.n)
        return from_members(shuffled[: self.n // self.size * self.size].reshape(-1, self.size), self.n)


def mean_of_equals(alone: torch.Tensor, before: torch.Tensor, weights: Floats) -> Floats:
    """(n, n): takes the mean over clients with equal weights, (n,), and equal outputs, up to rounding.

    They are worth the same, and without it draws would tell them apart.
    """
    step = max(1, before.numel() // N_COMPARED)
    changes = alone.flatten(1)[:, ::step] - before.flatten()[::step]
    apart = torch.cdist(changes, changes, compute_mode="donot_use_mm_for_euclid_dist").numpy()
    is_equal = (apart <= ROUNDING * float(changes.norm(dim=1).max())) & (weights[:, None] == weights)
    is_equal |= np.eye(len(weights), dtype=bool)
    return np.asarray(is_equal / is_equal.sum(axis=1, keepdims=True))


def _pairs(counted: Floats) -> Floats:
    """(k,): q of coalitions in which clients have these weights, (k, n)."""
    return np.asarray(counted.sum(axis=1) ** 2 - (counted**2).sum(axis=1))


def needs_of(n: int) -> Floats:
    """(n − 2,): how often each size from 2 on is drawn, relative to the others."""
    sizes = np.arange(2.0, n)
    return np.asarray(1 / sizes)


def contrasts_of(coalitions: Memberships) -> Floats:
    """(k, 2n): what U(S) − U(all) counts in the mean over its size for v_i, and for l_i, of coalitions of 2 … n−1."""
    n, sizes = coalitions.shape[1], coalitions.sum(axis=1, keepdims=True)
    share, half = sizes / n, n // 2  # ⌈(n − 1)/2⌉
    contrasts = (coalitions - share) / (share * (1 - share))  # c, (k, n)
    to_large = np.where(sizes == half, share * contrasts - 1, np.where(sizes > half, contrasts, 0.0))
    return np.concatenate([contrasts / n, to_large / (n - half)], axis=1)
