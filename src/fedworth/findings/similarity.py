"""Similar updates: the one pair of clients whose updates are far more similar than those of any other pair.

A copy of a client that draws other batches looks like this. The mean of the round's updates is subtracted first, then
the similarity of two clients is the cosine c_ij of the rest. Among the pairs of a round c has a median m and a robust
spread s (1.48 times the median distance from m):

    z_ij = (c_ij − m) / s,     confidence = 1 − n_pairs Φ(−z), and at most .99

A pair is reported if z ≥ 3.3 and no other pair has z ≥ 3, or if c ≥ .999, where little more than rounding separates
the two. If several pairs stand out, clients come in groups (the same two classes, say), and a copy cannot be
distinguished from a client of the same group: nothing is reported. This is possible even for a single pair, hence the
.99. Rounds of fewer than eight answers have too few pairs to know how much they vary.
"""

from collections.abc import Iterator

import numpy as np
from scipy.special import ndtr

from fedworth.arrays import Floats
from fedworth.findings.copies import CLIENT_COPY, COPIES, REPEATS
from fedworth.findings.finding import Evidence, Kind, Level
from fedworth.findings.traces import RoundTrace
from fedworth.ledger.ledger import Ledger

STANDS_OUT, OTHERS_BELOW = 3.3, 3.0
NEARLY_EQUAL = 0.999
MOST_CONFIDENCE = 0.99
FEWEST = 8

SIMILAR = Kind(
    "similar updates",
    Level.NOTE,
    sentence="{clients} sent the most similar updates of all pairs (cosine similarity {similarity})",
    basis="similarity of all other pairs; data of the same kind can look like a copy",
    tag="Similar",
    title="sent updates more similar than those of any other pair",
    why="They may hold the same data and draw other batches of it, or hold data of the same kind. " + COPIES,
    action="Ask each of them where its data come from.",
    client_title="Your updates were very similar to another {noun}’s",
    client_action=CLIENT_COPY,
    passed="No two {nouns} sent updates more similar than chance explains.",
    needs="a round of eight answers, with models that are not too large to compare all pairs",
)


def detect(ledger: Ledger, traces: list[RoundTrace], earlier: list[Evidence]) -> Iterator[Evidence]:  # noqa: ARG001
    """Similar pairs, without answers that are reported as copies or repeats."""
    copied = {(client, piece.round_index) for piece in earlier if piece.kind in REPEATS for client in piece.clients}
    for round_index, trace in enumerate(traces):
        for clients, similarity, confidence in similar_pairs(trace):
            if not any((client, round_index) in copied for client in clients):
                yield Evidence(SIMILAR, clients, round_index, {"similarity": similarity}, confidence)


def looked_for(ledger: Ledger, traces: list[RoundTrace]) -> Iterator[Kind]:  # noqa: ARG001
    """The kind, if a round can show it."""
    if any(len(trace.clients) >= FEWEST and trace.products is not None for trace in traces):
        yield SIMILAR


def similar_pairs(trace: RoundTrace) -> list[tuple[tuple[int, int], float, float]]:
    """The pairs of one round that stand out: the two clients, their similarity and the confidence."""
    if len(trace.clients) < FEWEST or trace.products is None:
        return []
    cosines = _cosines(trace.products)
    first, second = np.triu_indices(len(cosines), 1)
    found = cosines[first, second]  # (n_pairs,)
    middle = np.median(found)
    spread = 1.4826 * float(np.median(np.abs(found - middle)))
    z = (found - middle) / spread if spread > 0 else np.zeros(len(found))
    stands_out = (z >= STANDS_OUT) & ((z >= OTHERS_BELOW).sum() == 1)
    return [
        (
            (trace.clients[int(first[k])], trace.clients[int(second[k])]),
            float(found[k]),
            min(MOST_CONFIDENCE, 1 - len(found) * float(ndtr(-z[k]))),
        )
        for k in np.flatnonzero(stands_out | (found >= NEARLY_EQUAL)).tolist()
    ]


def _cosines(products: Floats) -> Floats:
    """(n, n): cosines of the updates after subtracting their mean; 0 for an update equal to the mean."""
    n = len(products)
    lengths = np.sqrt(np.maximum(np.diag(products), 0))
    scales = np.divide(1.0, lengths, out=np.zeros(n), where=lengths > 0)
    units = products * np.outer(scales, scales)  # so that one long update does not decide the mean
    centre = np.eye(n) - 1 / n
    left = centre @ units @ centre
    sizes = np.sqrt(np.maximum(np.diag(left), 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        cosines = np.clip(left / np.outer(sizes, sizes), -1, 1)
    return np.where(np.isfinite(cosines), cosines, 0.0)
