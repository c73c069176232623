"""Sizes: updates that are missing or far longer than the others', and sample counts far above the others'.

    no update       w_k = w^t up to rounding
    large update    ‖w_k − w^t‖ is at least 5 times the median of the round, and the others' norms vary far less
    many samples    a client reports at least 100 times the median sample count of the round

The confidence in a large update is 1 minus the probability that an honest client sends one:

    x_kt = log(‖w_k − w^t‖ / median of the round),   t = max_t x_kt / s,   s² = mean of the others' x²

compared with Student's t with one degree of freedom for each of the others' answers beyond the first (30 at most,
because norms have heavier tails than the normal distribution), and counted for all answers. Medians are those of one
round, because updates become shorter as a model learns; rounds of fewer than three answers have no median.
"""

import math

import numpy as np
from scipy.special import stdtr

from fedworth.findings.copies import ASK_TRAINING, CLIENT_TRAINING, NOT_TRAINED
from fedworth.findings.finding import Detected, Evidence, Kind, Level, confidence_of
from fedworth.findings.traces import RoundTrace
from fedworth.ledger.ledger import Ledger

LARGE, MANY = 5.0, 100.0
FEWEST = 3
"""Answers that a round needs for a median."""

LEAST_SPREAD = 0.05
"""Smallest spread of log norms that is used: below it, clients count as equal."""

MOST_FREEDOM = 30

NO_UPDATE = Kind(
    "no update",
    Level.ACT,
    sentence="{clients} returned the global model unchanged",
    basis="model parameters",
    title="sent the model back unchanged",
    why=NOT_TRAINED,
    action=ASK_TRAINING,
    client_title="You sent the model back unchanged",
    client_action=CLIENT_TRAINING,
)
LARGE_UPDATE = Kind(
    "large update",
    Level.ACT,
    sentence="{clients} sent an update of up to {ratio} times the median norm",
    basis="spread of the other norms",
    title="sent a far larger update than the others",
    why="One large update can decide the average, for better or worse.",
    action="Ask for its learning rate, number of steps and how its inputs are scaled.",
    client_title="Your update was far larger than most",
    client_action="Check your learning rate, your number of steps and the scale of your inputs.",
    needs="a round of three answers",
)
MANY_SAMPLES = Kind(
    "many samples",
    Level.NOTE,
    sentence="{clients} reported up to {n_samples} samples, {ratio} times the median",
    basis="reported sample counts",
    title="reported far more samples than the others",
    why="Where the server weighs by samples, such a number decides the average.",
    action="Ask whether the number is right.",
    client_title="You reported far more samples than most",
    client_action="Check the number of samples that you report.",
    needs="a round of three answers",
)


def detect(ledger: Ledger, traces: list[RoundTrace], earlier: list[Evidence]) -> Detected:  # noqa: ARG001
    """Missing updates, long updates and large sample counts."""
    found = []
    for round_index, trace in enumerate(traces):
        for client, norm in zip(trace.clients, trace.update_norms[1:].tolist(), strict=True):
            if norm <= trace.rounding * trace.model_norms[0]:
                found.append(Evidence(NO_UPDATE, (client,), round_index))
        entry = ledger.entries[round_index]
        median = float(np.median(entry.sample_counts)) if len(entry.sample_counts) >= FEWEST else 0.0
        for client, count in zip(entry.answered, entry.sample_counts, strict=True):
            if 0 < MANY * median <= count:
                numbers = {"n_samples": float(count), "ratio": count / median}
                found.append(Evidence(MANY_SAMPLES, (client,), round_index, numbers))
    ratios = _log_ratios(traces)
    for (round_index, client), ratio in ratios.items():
        if ratio >= math.log(LARGE):
            numbers = {"ratio": math.exp(ratio)}
            found.append(Evidence(LARGE_UPDATE, (client,), round_index, numbers, _confidence(client, ratios)))
    most = max((len(trace.clients) for trace in traces), default=0)  # answers in a round
    looked_for = [NO_UPDATE] if most > 0 else []
    return found, looked_for + ([LARGE_UPDATE, MANY_SAMPLES] if most >= FEWEST else [])


def _log_ratios(traces: list[RoundTrace]) -> dict[tuple[int, int], float]:
    """The logarithm of norm over median, by round and client; only where both are positive."""
    found = {}
    for round_index, trace in enumerate(traces):
        norms = trace.update_norms[1:]
        median = float(np.median(norms)) if len(norms) >= FEWEST else 0.0
        for client, norm in zip(trace.clients, norms.tolist(), strict=True):
            if median > 0 and norm > 0:
                found[round_index, client] = float(np.log(norm / median))
    return found


def _confidence(client: int, ratios: dict[tuple[int, int], float]) -> float:
    """1 minus the probability that some honest answer is as long as this client's longest."""
    others = [x for (_, k), x in ratios.items() if k != client]
    longest = max(x for (_, k), x in ratios.items() if k == client)
    spread = max(float(np.sqrt(np.mean(np.square(others)))), LEAST_SPREAD) if others else np.inf
    freedom = min(max(len(others) - 1, 1), MOST_FREEDOM)
    return confidence_of(len(ratios) * float(stdtr(freedom, -longest / spread)))
