"""Designs: which coalitions of a round's members to measure, stratum by stratum, for a Monte Carlo Shapley value.

A stratum is all coalitions of one size s; m_s of its C(n, s) are drawn uniformly and without replacement, or all of
them. A design is the drawn coalitions as rows, and nothing else has to be kept: m_s is the number of rows of size s.

The value takes from each stratum a mean of (U − surrogate) × contrast with standard deviation ∝ σ_s / √(s (n−s)),
σ_s the spread of what the surrogate misses. By Neyman's rule m_s ∝ σ_s / √(s (n−s)). The averaging weights of a
coalition of size s lie √(1/s − 1/n) from the centre; if the surrogate misses in proportion, m_s ∝ 1/s; if in
proportion to the square, m_s ∝ √(n−s) / s^1.5. Measured best: between the two, √(n−s) / s. So small coalitions are
many, and soon all; n−1 are made whole too, since leave-one-out needs them.
"""

import heapq
import math

import numpy as np

from fedworth.arrays import Indices, Memberships
from fedworth.coalitions import distinct, locate, of_size
from fedworth.errors import UsageError, UtilityError
from fedworth.games.squares import default_permutations

LEAST = 2
"""Coalitions of a stratum at least (if it has them): one alone shows no spread, hence no standard error."""


def least_budget(n_members: int) -> int:
    """The fewest evaluations that a design of n members takes."""
    return sum(_least(n_members))


def default_budget(n_members: int) -> int:
    """The different prefixes that n⌈ln n⌉ permutations have on average, so that samplers cost the same; at least
    what makes the sizes 1, n−1 and n whole.

    A coalition of size s is no prefix of M permutations with chance (1 − 1/C(n, s))^M.
    """
    n_permutations = default_permutations(n_members)
    counts = [math.comb(n_members, size) for size in range(1, n_members + 1)]
    expected = sum(-count * math.expm1(n_permutations * _log_miss(count)) for count in counts)
    least = _least(n_members)
    whole = sum(n_members if _is_first(n_members, size) else least[size] for size in range(n_members + 1))
    return min(max(int(expected), whole), sum(counts))


def allocation(n_members: int, budget: int) -> Indices:
    """(n + 1,): how many coalitions of each size to measure; a larger budget never takes any away."""
    counts = _least(n_members)
    if sum(counts) > budget:
        raise UsageError(
            f"a budget of {budget:,} evaluations for {n_members} clients: expected at least {sum(counts):,}, "
            f"{LEAST} of every size"
        )
    open_sizes = [s for s in range(1, n_members) if counts[s] < math.comb(n_members, s)]
    queue = [(-_need(n_members, s, counts[s]), s) for s in open_sizes]
    heapq.heapify(queue)
    for _ in range(budget - sum(counts)):
        if not queue:
            break
        size = heapq.heappop(queue)[1]
        counts[size] += 1
        if counts[size] < math.comb(n_members, size):
            heapq.heappush(queue, (-_need(n_members, size, counts[size]), size))
    return np.array(counts, dtype=np.int64)


def draw_design(members: Indices, n_clients: int, budget: int, *, rng: np.random.Generator) -> Memberships:
    """(n_coalitions, n_clients): the coalitions of `members` to measure, at most `budget`, by size."""
    return grow_design(np.zeros((0, n_clients), dtype=bool), members, budget, rng=rng)


def grow_design(design: Memberships, members: Indices, budget: int, *, rng: np.random.Generator) -> Memberships:
    """The design with more coalitions, up to `budget` in all: those it has stay, each stratum's in the order drawn."""
    wanted = allocation(len(members), budget)  # (n + 1,)
    local = design[:, members]  # (n_coalitions, n)
    strata = []
    for size in range(1, len(members) + 1):
        known = local[local.sum(axis=1) == size]
        strata.append(np.concatenate([known, _draw(known, size, int(wanted[size]) - len(known), rng)]))
    rows = np.concatenate(strata) if strata else local
    grown = np.zeros((len(rows), design.shape[1]), dtype=bool)
    grown[:, members] = rows
    return grown


def check_design(design: Memberships, members: Indices, where: str) -> None:
    """Refuse what is no design of these members."""
    outside = np.delete(design, members, axis=1) if design.ndim == 2 else design
    if design.dtype != np.bool_ or design.ndim != 2 or outside.any():
        raise UtilityError(f"{where}: expected rows of booleans, coalitions of clients {members.tolist()}")
    if len(distinct(design)[0]) != len(design):
        raise UtilityError(f"{where}: a coalition stands in it twice; expected draws without replacement")
    found = np.bincount(design.sum(axis=1), minlength=len(members) + 1).tolist()
    for size, least in enumerate(_least(len(members))):
        if found[size] < least or (size == 0 and found[size]):
            raise UtilityError(
                f"{where}: {found[size]} coalitions of {size} clients, expected {'at least ' if least else ''}{least}"
            )


def _least(n_members: int) -> list[int]:
    return [0, *(min(LEAST, math.comb(n_members, size)) for size in range(1, n_members + 1))]


def _is_first(n_members: int, size: int) -> bool:
    """The sizes that are made whole before any other."""
    return size > 0 and size in (1, n_members - 1)


def _need(n_members: int, size: int, count: int) -> float:
    """Neyman's rule, one coalition at a time: the next goes where weight / count is largest."""
    return math.inf if _is_first(n_members, size) else math.sqrt(n_members - size) / size / count


def _log_miss(count: int) -> float:
    return math.log1p(-1 / count) if count > 1 else -math.inf


def _draw(known: Memberships, size: int, n_more: int, rng: np.random.Generator) -> Memberships:
    """Further coalitions of this size, uniformly among those not known yet."""
    n_members = known.shape[1]
    if n_more <= 0:
        return known[:0]
    if 2 * (len(known) + n_more) >= math.comb(n_members, size):
        everyone = of_size(n_members, size)
        fresh = everyone[locate(everyone, known) < 0]
        return fresh[rng.permutation(len(fresh))[:n_more]]
    first = np.arange(n_members) < size  # (n,): a coalition of this size
    rows = known
    while len(rows) < len(known) + n_more:  # repeats are dropped, which leaves draws without replacement
        drawn = rng.permuted(np.tile(first, (len(known) + n_more - len(rows), 1)), axis=1)
        rows = _without_repeats(np.concatenate([rows, drawn]))
    return rows[len(known) :]


def _without_repeats(rows: Memberships) -> Memberships:
    """Each coalition where it first stands."""
    first = np.unique(distinct(rows)[1], return_index=True)[1]
    return rows[np.sort(first)]
