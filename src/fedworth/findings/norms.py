"""Updates that are far longer than the others', and how sure that is.

In: the traces of all rounds. Out: which answers are five times the median norm of their round or more, and for each
client the chance that an honest one sends such an update, given how much the others' norms differ:

    x_kt = log(‖w_k − w^t‖ / median of the round),   t = max_t x_kt / s,   s² = mean of the others' x²

held against Student's t with one degree of freedom for each of the others' answers beyond the first (30 at most: norms
have heavier tails than the normal), and counted for all answers.
"""

import numpy as np
from scipy.special import stdtr

from fedworth.findings.finding import sure_of
from fedworth.findings.traces import RoundTrace

LARGE_UPDATE = 5.0
FEWEST = 3
"""Answers in a round without which no median is taken."""

LEAST_SPREAD = 0.05
"""Of log norms: below, clients are called equal, and a little longer is nothing odd."""

MOST_FREEDOM = 30


def log_ratios(traces: list[RoundTrace]) -> dict[tuple[int, int], float]:
    """By round and client the logarithm of the norm over the round's median; of updates and rounds that have one."""
    found = {}
    for round_index, trace in enumerate(traces):
        norms = trace.update_norms[1:]
        median = float(np.median(norms)) if len(norms) >= FEWEST else 0.0
        for client, norm in zip(trace.clients, norms.tolist(), strict=True):
            if median > 0 and norm > 0:
                found[round_index, client] = float(np.log(norm / median))
    return found


def sure_of_large(client: int, ratios: dict[tuple[int, int], float]) -> float:
    """1 minus the chance that some honest answer is as long as this client's longest."""
    others = [x for (_, k), x in ratios.items() if k != client]
    longest = max(x for (_, k), x in ratios.items() if k == client)
    spread = max(float(np.sqrt(np.mean(np.square(others)))), LEAST_SPREAD) if others else np.inf
    freedom = min(max(len(others) - 1, 1), MOST_FREEDOM)
    return sure_of(len(ratios) * float(stdtr(freedom, -longest / spread)))
