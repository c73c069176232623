"""What values are measured in, and what the model scores with and without each client.

A score is the task's loss or measure on the test set, as a reader knows it: a loss is low if the model is good. Without
a client means: without its update in the last round in which it took part, all else equal.
"""

from dataclasses import dataclass

import numpy as np

from fedworth.arrays import Floats
from fedworth.errors import ArtefactError
from fedworth.oracle.oracle import also_of, criteria_of, fitted, quality, threads_of
from fedworth.provenance import Provenance
from fedworth.valuation.federation import Federation

UNKNOWN_UNIT = "in the unit of the utilities that were brought"


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores by one or several measures; the first is the one that values are in."""

    measures: tuple[str, ...]  # such as cross-entropy, accuracy
    start: Floats  # (n_measures,): before the first round
    end: Floats  # (n_measures,): after the last round
    last_rounds: tuple[int | None, ...]  # of each client, by the federation's own number; None if it took part in none
    with_client: Floats  # (n_clients, n_measures): after the client's last round; NaN without one
    without_client: Floats  # (n_clients, n_measures): after the same round, without the client's update

    def __post_init__(self) -> None:
        n_clients, n_measures = len(self.last_rounds), len(self.measures)
        expected = ((n_measures,), (n_measures,), (n_clients, n_measures), (n_clients, n_measures))
        found = tuple(x.shape for x in (self.start, self.end, self.with_client, self.without_client))
        if found != expected:
            raise ArtefactError(f"scores: of shapes {found}, expected {expected}")


def score_text(measure: str, score: float) -> str:
    """A score as text: accuracy in percent, everything else as a number."""
    if np.isnan(score):
        return "–"
    if measure == "accuracy":
        return f"{100 * score:.1f}\N{NO-BREAK SPACE}%"
    return (f"{score:.3f}" if 0.01 <= abs(score) < 1000 else f"{score:,.4g}").replace("-", "−")


def scores_of(federation: Federation) -> Scores | None:
    """The scores of a recorded federation; None if nobody took part. The method leave-one-out measures the same."""
    recorded = federation.recorded
    oracle, participants = recorded.oracle, recorded.participants
    answered = np.flatnonzero(participants.any(axis=1)).tolist()
    if not answered:
        return None
    criteria = criteria_of(oracle.task, oracle.measure, also_of(oracle))
    signs = np.array([1.0 if criterion.is_better_higher else -1.0 for criterion in criteria])

    def before(t: int) -> Floats:
        """(n_measures,): quality of the global model that a round started with."""
        start = fitted(recorded.round(t), oracle.task).global_model
        return np.asarray(quality(oracle.task, criteria, start).sum(axis=1))

    def gained(t: int) -> Floats:
        """(1 + n, n_measures): what a round's participants gained, and what they would have without each of them."""
        game = recorded.game(t)
        n = len(game.clients)
        found = game.columns(np.concatenate([np.ones((1, n), dtype=bool), ~np.eye(n, dtype=bool)]))
        return np.column_stack([found[:, : game.n_blocks].sum(axis=1), found[:, game.n_blocks :]])

    n_clients = len(recorded.clients)
    with_client, without = np.full((2, n_clients, len(criteria)), np.nan)
    last = np.where(participants.any(axis=0), len(participants) - 1 - np.argmax(participants[::-1], axis=0), -1)
    with threads_of(oracle):
        for t in np.unique(last[last >= 0]).tolist():
            scores = signs * (before(t) + gained(t))
            members = np.flatnonzero(participants[t])
            for place, client in enumerate(members.tolist(), start=1):
                if last[client] == t:
                    with_client[client], without[client] = scores[0], scores[place]
        start = signs * before(answered[0])
    numbers = tuple(recorded.numbers[t] if t >= 0 else None for t in last.tolist())
    end = with_client[int(np.argmax(last))]
    return Scores(tuple(c.name for c in criteria), start, end, numbers, with_client, without)


def levels_text(scores: Scores | None) -> str:
    """What the model scored before the first round and after the last: "cross-entropy 2.38, then 1.32"."""
    if scores is None:
        return ""
    levels = zip(scores.measures, scores.start.tolist(), scores.end.tolist(), strict=True)
    return "; ".join(
        f"{name} {score_text(name, first)} at the start, {score_text(name, last)} at the end"
        for name, first, last in levels
    )


def measure_text(known: Provenance | None) -> str:
    """What values are measured in: "loss (cross-entropy), in nats per test sample"."""
    if known is None or known.judged_by is None:
        return f"utility, {UNKNOWN_UNIT}"
    return ", ".join(
        text for text in (f"loss ({known.judged_by})" if is_loss(known) else known.judged_by, known.unit) if text
    )


def detail_text(known: Provenance | None) -> str:
    """The same without the word loss, to stand beside it: "cross-entropy, in nats per test sample"."""
    if known is None or known.judged_by is None:
        return UNKNOWN_UNIT
    return ", ".join(text for text in (known.judged_by if is_loss(known) else "", known.unit) if text)


def change_text(known: Provenance | None) -> str:
    """What a value above zero says of the model: "lowers the loss"."""
    if known is None or known.judged_by is None:
        return "raises the utility"
    return "lowers the loss" if is_loss(known) else f"raises the {known.judged_by}"


def is_loss(known: Provenance | None) -> bool:
    """Whether values are measured in a loss, which is low if the model is good."""
    return known is not None and known.settings.get("measure", "loss") == "loss"


def test_set_text(known: Provenance | None) -> str:
    """The test set with its size: "the coordinator’s 400 test samples"."""
    n = None if known is None else known.n_test_samples
    if known is None or n is None:
        return "the coordinator’s test data"
    weighted = ", weighted to known shares of their groups" if known.settings.get("group_shares") else ""
    return f"the coordinator’s {n:,} test samples{weighted}" if n > 1 else "the coordinator’s one test sample"
