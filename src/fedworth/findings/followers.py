"""Following: clients whose updates hold nothing of their own, only what the server and the others have shown.

A client without data can repeat past steps of the server, or the mean of the others' updates, at any length and under
any noise. What it lacks is a part of its own that comes back: the data of an honest client pull in the same direction
in all of its rounds. With u_kt the client's update at length one:

    r_kt = u_kt minus its projection on the others' means of this round (plain, and by samples) and of the last three
    R²_t = 1 − ‖r_kt‖²                          what those explain
    S_k  = mean of r_kt · r_ks over its rounds t, s that are two or more apart     its own part, as a part of ‖u‖²

A step of the server is the others' mean and the client's own update before, which goes back to earlier means; so steps
are not compared separately, and a client that decides the average is not compared with itself. Noise that is drawn anew
comes back in the server's next step only, hence rounds that are two apart. It has S near 0, whatever its length, and so
has a perfect follower, since its r is 0. Clients with similar data have a large R² as well, so S is compared with what
is usual: an honest client of typical size should have at least .2 of the others' median S. A client with c times the
median sample count may have 1/c of that, because its data deviate less from everybody's. The error of S comes from the
jackknife over the client's rounds:

    t = (S_k − .2 min(1, 1/c) median S_j) / se_k,     compared with Student's t, counted for all clients

with a degree of freedom for each pair of rounds beyond the first: what is left of a follower is independent from pair
to pair.

Noise that a client keeps from round to round looks like data, and is not found. Neither is a follower among clients
that have no part of their own, as with a few small batches of much data.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np
from scipy.special import stdtr

from fedworth.arrays import Floats
from fedworth.findings.copies import ASK_TRAINING, CLIENT_TRAINING, REPEATS
from fedworth.findings.finding import Detected, Evidence, Kind, Level, confidence_of
from fedworth.findings.norms import NO_UPDATE
from fedworth.findings.traces import WIDTH, RoundTrace
from fedworth.ledger.ledger import Ledger

FEWEST_ANSWERS, FEWEST_ROUNDS, FEWEST_CLIENTS = 3, 3, 5
"""Least number of answers in a round, of rounds of a client, and of clients with that many rounds."""

N_STEPS = 3
"""How many past rounds an update is compared with."""

LEAST_APART = 2
"""How far apart two rounds must be: the noise of a follower is in the server's next step, and comes back once."""

USUAL = 0.2
"""The least part of the usual that an honest client of typical size has of its own."""

FOLLOWER = Kind(
    "follower",
    Level.ACT,
    sentence="{clients} sent updates with nothing of its own: past steps of the server and the mean of the others "
    "explain up to {explained} %, and the rest does not come back from round to round ({own} % does, {usual} % is "
    "usual)",
    basis="what the others' updates have of their own",
    title="sent nothing of its own",
    why="It may follow the others’ training without data, and is paid for theirs.",
    action=ASK_TRAINING,
    client_title="Your updates held nothing of your own",
    client_action=CLIENT_TRAINING,
    needs="five {nouns} with three rounds each, in rounds of three answers",
)


def detect(ledger: Ledger, traces: list[RoundTrace], earlier: list[Evidence]) -> Detected:
    """Clients with nothing of their own, without answers that are reported as copies, repeats or empty."""
    found = list(_residuals(ledger, traces))
    n_rounds = Counter(client for client, _, _ in found)
    is_enough = sum(n >= FEWEST_ROUNDS for n in n_rounds.values()) >= FEWEST_CLIENTS
    evidence, looked_for = [], [FOLLOWER] if is_enough else []
    reported = {
        (k, piece.round_index) for piece in earlier if piece.kind in (*REPEATS, NO_UPDATE) for k in piece.clients
    }
    residuals: dict[int, dict[int, Floats]] = defaultdict(dict)  # client → round → r, (WIDTH,)
    for client, round_index, residual in found:
        if (client, round_index) not in reported:
            residuals[client][round_index] = residual
    parts = {k: _own_part(of) for k, of in residuals.items() if len(of) >= FEWEST_ROUNDS}
    own = {k: part for k, part in parts.items() if part[2] > 1}
    if len(own) < FEWEST_CLIENTS:
        return [], looked_for
    counts = ledger.sample_counts()
    typical = float(np.median([counts[k] for k in own]))
    for client, (part, error, n_pairs) in own.items():
        usual = float(np.median([other for k, (other, _, _) in own.items() if k != client]))
        least = USUAL * usual * min(1.0, typical / counts[client])
        if usual <= 0 or part >= least:
            continue
        rounds = residuals[client]
        t = (part - least) / error if error > 0 else -np.inf
        confidence = confidence_of(len(own) * float(stdtr(n_pairs - 1, t)))
        for round_index, residual in rounds.items():
            numbers = {
                "explained": 100 * (1 - float(residual @ residual)),
                "own": 100 * max(part, 0.0),
                "usual": 100 * usual,
            }
            evidence.append(Evidence(FOLLOWER, (client,), round_index, numbers, confidence))
    return evidence, looked_for


def _residuals(ledger: Ledger, traces: list[RoundTrace]) -> Iterator[tuple[int, int, Floats]]:
    """(client, round, r) of every update in rounds of enough answers."""
    by_samples = []  # of each round: client → its update times its samples, (WIDTH,)
    for t, trace in enumerate(traces):
        counts = ledger.sample_counts(t)
        by_samples.append({k: counts[k] * row for k, row in zip(trace.clients, trace.sketches[1:], strict=True)})
    for t, trace in enumerate(traces):
        places = _compared(trace)
        updates = trace.sketches[1:][places]
        units = updates / np.linalg.norm(updates, axis=1, keepdims=True)  # (n, WIDTH)
        for place, client in enumerate(trace.clients[place] for place in places):
            recent = by_samples[max(0, t - N_STEPS) : t + 1]
            others = [sum((row for k, row in of.items() if k != client), np.zeros(WIDTH)) for of in recent]
            basis = _orthonormal(np.stack([*others, units.sum(axis=0) - units[place]]))  # (n_directions, WIDTH)
            yield client, t, units[place] - (units[place] @ basis.T) @ basis


def _compared(trace: RoundTrace) -> list[int]:
    """The answers of a round that have an update, by place; none if they are too few."""
    moved = np.flatnonzero(np.linalg.norm(trace.sketches[1:], axis=1)).tolist()
    return moved if len(moved) >= FEWEST_ANSWERS else []


def _orthonormal(rows: Floats) -> Floats:
    """An orthonormal basis of the rows' span; directions that are lost in rounding are left out."""
    lengths = np.linalg.norm(rows, axis=1)
    units = rows[lengths > 0] / lengths[lengths > 0, None]
    _, sizes, basis = np.linalg.svd(units, full_matrices=False)
    return np.asarray(basis[sizes > 1e-6])


def _own_part(residuals: dict[int, Floats]) -> tuple[float, float, int]:
    """S, its standard error by the jackknife over the rounds, and the number of pairs, from r by round."""
    rounds, rows = np.array(list(residuals)), np.stack(list(residuals.values()))  # (n,), (n, WIDTH)
    apart = np.abs(np.subtract.outer(rounds, rounds)) >= LEAST_APART
    products, n = (rows @ rows.T) * apart, len(rounds)
    left = apart.sum() - 2 * apart.sum(axis=1)  # (n,): pairs without each round, counted twice
    if not left.all():
        return np.nan, np.nan, 0
    without = (products.sum() - 2 * products.sum(axis=1)) / left
    error = float(np.sqrt((n - 1) / n * ((without - without.mean()) ** 2).sum()))
    return float(products.sum() / apart.sum()), error, int(apart.sum()) // 2
