"""Following: clients whose updates hold nothing of their own, only what the server and the others have shown.

A client without data can repeat past steps of the server, or the mean of the others' updates, at any length and under
any noise. What it lacks is a part of its own that comes back: the data of an honest client pull in the same direction
in all of its rounds. With u_kt the client's update at length one:

    r_kt = u_kt minus its projection on the server's last three steps and the others' mean (plain, and by samples)
    R²_t = 1 − ‖r_kt‖²                          what those explain
    S_k  = mean of r_kt · r_ks over its pairs of rounds t ≠ s          its own part, as a part of ‖u‖²

Noise that is drawn anew has S = 0, whatever its length, and so has a perfect follower, since its r is 0. Clients with
similar data have a large R² as well, so S is compared with what is usual: an honest client of typical size should
have at least .2 of the others' median S. A client with c times the median sample count may have 1/c of that, because
its data deviate less from everybody's. The error of S comes from the jackknife over the client's rounds:

    t = (S_k − .2 min(1, 1/c) median S_j) / se_k,     compared with Student's t, counted for all clients

Student's t has a degree of freedom for each pair of rounds beyond the first: what is left of a follower is independent
from pair to pair.

Noise that a client keeps from round to round looks like data, and is not found. Neither is a follower among clients
that have no part of their own, as with a few small batches of much data: there nothing is usual.
"""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from scipy.special import stdtr

from fedworth.arrays import Floats
from fedworth.findings.copies import ASK_TRAINING, CLIENT_TRAINING, REPEATS
from fedworth.findings.finding import Evidence, Kind, Level, confidence_of
from fedworth.findings.norms import NO_UPDATE
from fedworth.findings.traces import RoundTrace
from fedworth.ledger.ledger import Ledger

FEWEST_ANSWERS, FEWEST_ROUNDS, FEWEST_CLIENTS = 3, 3, 5
"""Answers that a round needs, rounds that a client needs, and clients with so many rounds."""

N_STEPS = 3
"""How many past steps of the server an update is compared with."""

USUAL = 0.2
"""The least part of the usual that an honest client of typical size has of its own."""

FOLLOWER = Kind(
    "follower",
    Level.ACT,
    sentence="{clients} sent updates with nothing of its own: past steps of the server and the mean of the others "
    "explain up to {explained} %, and the rest does not come back from round to round ({own} % does, {usual} % is "
    "usual)",
    basis="what the others' updates have of their own",
    tag="Follows",
    title="sent nothing of its own",
    why="It may follow the others’ training without data, and is paid for theirs.",
    action=ASK_TRAINING,
    client_title="Your updates held nothing of your own",
    client_action=CLIENT_TRAINING,
    passed="Every {noun}’s updates held something of its own.",
    needs="five {nouns} with three rounds each, in rounds of three answers",
)


def detect(ledger: Ledger, traces: list[RoundTrace], earlier: list[Evidence]) -> Iterator[Evidence]:
    """Clients with nothing of their own, without answers that are reported as copies, repeats or empty."""
    reported = {
        (k, piece.round_index) for piece in earlier if piece.kind in (*REPEATS, NO_UPDATE) for k in piece.clients
    }
    residuals: dict[int, dict[int, Floats]] = defaultdict(dict)  # client → round → r, (WIDTH,)
    for client, round_index, residual in _residuals(ledger, traces):
        if (client, round_index) not in reported:
            residuals[client][round_index] = residual
    own = {k: _own_part(np.stack(list(of.values()))) for k, of in residuals.items() if len(of) >= FEWEST_ROUNDS}
    if len(own) < FEWEST_CLIENTS:
        return
    counts = ledger.sample_counts()
    typical = float(np.median([counts[k] for k in own]))
    for client, (part, error) in own.items():
        usual = float(np.median([other for k, (other, _) in own.items() if k != client]))
        least = USUAL * usual * min(1.0, typical / counts[client])
        if usual <= 0 or part >= least:
            continue
        rounds = residuals[client]
        t = (part - least) / error if error > 0 else -np.inf
        n_pairs = len(rounds) * (len(rounds) - 1) / 2
        confidence = confidence_of(len(own) * float(stdtr(n_pairs - 1, t)))
        for round_index, residual in rounds.items():
            numbers = {
                "explained": 100 * (1 - float(residual @ residual)),
                "own": 100 * max(part, 0.0),
                "usual": 100 * usual,
            }
            yield Evidence(FOLLOWER, (client,), round_index, numbers, confidence)


def looked_for(ledger: Ledger, traces: list[RoundTrace]) -> Iterator[Kind]:  # noqa: ARG001
    """The kind, if enough clients sent updates in enough rounds."""
    heard = [trace.clients[place] for trace in traces for place in _compared(trace)]
    if sum(heard.count(k) >= FEWEST_ROUNDS for k in set(heard)) >= FEWEST_CLIENTS:
        yield FOLLOWER


def _residuals(ledger: Ledger, traces: list[RoundTrace]) -> Iterator[tuple[int, int, Floats]]:
    """(client, round, r) of every update in rounds of enough answers."""
    for t, trace in enumerate(traces):
        places = _compared(trace)
        clients, updates = [trace.clients[place] for place in places], trace.sketches[1:][places]
        units = updates / np.linalg.norm(updates, axis=1, keepdims=True)  # (n, WIDTH)
        counts = np.array([ledger.sample_counts(t)[k] for k in clients])
        by_samples = counts[:, None] * updates
        past = [after.sketches[0] - before.sketches[0] for before, after in _steps(traces, t)]
        for place, client in enumerate(clients):
            others = [units.sum(axis=0) - units[place], by_samples.sum(axis=0) - by_samples[place]]
            basis = _orthonormal(np.stack([*past, *others]))  # (n_directions, WIDTH)
            yield client, t, units[place] - (units[place] @ basis.T) @ basis


def _compared(trace: RoundTrace) -> list[int]:
    """The answers of a round that have an update, by place; none if they are too few."""
    moved = np.flatnonzero(np.linalg.norm(trace.sketches[1:], axis=1)).tolist()
    return moved if len(moved) >= FEWEST_ANSWERS else []


def _steps(traces: list[RoundTrace], t: int) -> Iterator[tuple[RoundTrace, RoundTrace]]:
    """The rounds before and after each of the server's last steps before round t."""
    return zip(traces[max(0, t - N_STEPS) : t], traces[max(1, t - N_STEPS + 1) : t + 1], strict=True)


def _orthonormal(rows: Floats) -> Floats:
    """An orthonormal basis of the rows' span; directions that are lost in rounding are left out."""
    lengths = np.linalg.norm(rows, axis=1)
    units = rows[lengths > 0] / lengths[lengths > 0, None]
    _, sizes, basis = np.linalg.svd(units, full_matrices=False)
    return np.asarray(basis[sizes > 1e-6])


def _own_part(residuals: Floats) -> tuple[float, float]:
    """S and its standard error by the jackknife over the rounds, from r, (n_rounds, WIDTH)."""
    n = len(residuals)
    products = residuals @ residuals.T
    np.fill_diagonal(products, 0.0)
    total = float(products.sum())
    without = (total - 2 * products.sum(axis=1)) / ((n - 1) * (n - 2))  # (n,)
    return total / (n * (n - 1)), float(np.sqrt((n - 1) / n * ((without - without.mean()) ** 2).sum()))
