"""Look-alikes: clients whose updates cannot be told apart over the rounds, as if they held the same data.

Two identities of one client look like this, and so does a copy of a client's data that draws other batches, or another
client's updates under noise. With c_kt the update of client k in round t at length one, minus the mean of the round,
and again at length one:

    S_kk = mean of c_kt · c_ks over rounds t ≠ s         how much a client is like itself in another round
    S_ij = mean of c_it · c_js over rounds t ≠ s         how much two clients are like each other in different rounds
    ρ_ij = S_ij / √(S_ii S_jj)                           1: no less like each other than each is like itself

Batches and noise differ from round to round, so they change neither side of the ratio. Clients are reported as
look-alikes if ρ ≥ .85 and this is far from what is usual, with m the median of all pairs and s their robust spread
(1.48 times the median distance from m):

    confidence = 1 − n_pairs Φ(−(ρ_ij − m) / s), and at most .99

Clients whose data are of the same kind, as with the same two classes, look alike as well, hence the .99. If several
groups of clients look alike, clients come in kinds, and nothing is reported. Two halves of one client's data look alike
only where its data differ from the others'.
"""

import itertools
from collections import defaultdict

import numpy as np
from scipy.special import ndtr

from fedworth.arrays import Floats
from fedworth.findings.copies import CLIENT_COPY, COPIES, REPEATS
from fedworth.findings.finding import ROBUST, Detected, Evidence, Kind, Level, joined
from fedworth.findings.traces import RoundTrace
from fedworth.ledger.ledger import Ledger

ALIKE = 0.85
MOST_CONFIDENCE = 0.99
FEWEST_ANSWERS, FEWEST_ROUNDS, FEWEST_CLIENTS = 3, 3, 5
"""Least number of answers in a round, of rounds of a client, and of clients with that many rounds."""

LEAST_OWN = 0.25
"""A client is compared if it is like itself by at least this part of what is usual; below, all is noise."""

SIMILAR = Kind(
    "look-alikes",
    Level.NOTE,
    sentence="{clients} cannot be told apart by their updates (their similarity is {similarity} times that of each "
    "with itself in other rounds)",
    basis="similarity of all other pairs; data of the same kind can look like a copy",
    title="cannot be told apart by their updates",
    why="They may be one client under several names, hold the same data, or hold data of the same kind. " + COPIES,
    action="Ask each of them where its data come from. To value them as one client and share its value among them, "
    "make the report again with option --as-one.",
    client_title="Your updates could not be told apart from another {noun}’s",
    client_action=CLIENT_COPY,
    needs="five {nouns} with three rounds each, in rounds of three answers",
    across_rounds=True,
)

Directions = dict[int, dict[int, Floats]]
"""Client → round → c, (WIDTH,)."""


def detect(ledger: Ledger, traces: list[RoundTrace], earlier: list[Evidence]) -> Detected:  # noqa: ARG001
    """Look-alikes, without answers that are reported as copies or repeats."""
    looked_for = [SIMILAR] if len(directions_of(traces, set())) >= FEWEST_CLIENTS else []
    reported = {(k, piece.round_index) for piece in earlier if piece.kind in REPEATS for k in piece.clients}
    directions = directions_of(traces, reported)
    found = alike(directions)
    if len(joined([pair for pair, _, _ in found])) != 1:
        return [], looked_for
    return [
        Evidence(SIMILAR, pair, round_index, {"similarity": similarity}, confidence)
        for pair, similarity, confidence in found
        for round_index in sorted({*directions[pair[0]], *directions[pair[1]]})
    ], looked_for


def directions_of(traces: list[RoundTrace], reported: set[tuple[int, int]]) -> Directions:
    """c of every client in its rounds, for clients with enough of them; `reported` are left out."""
    found: Directions = defaultdict(dict)
    for t, trace in enumerate(traces):
        if len(trace.clients) >= FEWEST_ANSWERS:
            units = _units(trace.sketches[1:])  # (n, WIDTH)
            for client, direction in zip(trace.clients, _units(units - units.mean(axis=0)), strict=True):
                if (client, t) not in reported and direction.any():
                    found[client][t] = direction
    return {client: of for client, of in sorted(found.items()) if len(of) >= FEWEST_ROUNDS}


def alike(directions: Directions) -> list[tuple[tuple[int, int], float, float]]:
    """The pairs that cannot be told apart: the two clients, ρ and the confidence."""
    own = {k: _between(directions[k], directions[k]) for k in directions}
    least = LEAST_OWN * float(np.median(list(own.values()))) if own else 0.0
    clients = [k for k in own if own[k] >= least > 0]
    if len(clients) < FEWEST_CLIENTS:
        return []
    pairs = list(itertools.combinations(clients, 2))
    ratios = np.array([_between(directions[i], directions[j]) / np.sqrt(own[i] * own[j]) for i, j in pairs])
    middle = float(np.median(ratios))
    spread = ROBUST * float(np.median(np.abs(ratios - middle)))
    with np.errstate(divide="ignore"):
        chances = len(pairs) * ndtr(-(ratios - middle) / spread)
    return [
        (pairs[k], float(ratios[k]), min(MOST_CONFIDENCE, 1 - float(chances[k])))
        for k in np.flatnonzero(ratios >= ALIKE).tolist()
    ]


def _between(first: dict[int, Floats], second: dict[int, Floats]) -> float:
    """The mean product of two clients' directions over pairs of different rounds."""
    products = np.stack(list(first.values())) @ np.stack(list(second.values())).T
    return float(products[np.not_equal.outer(list(first), list(second))].mean())


def _units(rows: Floats) -> Floats:
    """Rows at length one; zeros stay zeros."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0))
