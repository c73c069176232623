"""What values are measured in, and what the model scores with and without each client.

A score is the task's loss or measure on the test set, as a reader knows it: a loss is low if the model is good. Without
a client means: without its update in the last round in which it took part, all else equal.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from fedworth.arrays import Floats
from fedworth.errors import ArtefactError
from fedworth.names import Measure
from fedworth.oracle.oracle import also_of, criteria_of, fitted, quality, threads_of
from fedworth.provenance import Provenance
from fedworth.valuation.federation import Federation


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
    """The scores of a recorded federation, also by accuracy if it was taken in the same pass; None if nobody took part.

    Leave-one-out has measured these utilities already; only the models that rounds started with are evaluated.
    """
    recorded = federation.recorded
    participants, oracle = recorded.participants, recorded.oracle
    if not participants.any():
        return None
    also: tuple[Measure, ...] = ("accuracy",) if "accuracy" in also_of(oracle) else ()
    criteria = criteria_of(oracle.task, oracle.measure, also)
    signs = np.array([1.0 if criterion.is_better_higher else -1.0 for criterion in criteria])
    columns = [oracle.n_blocks + also_of(oracle).index(name) for name in also]
    last = np.where(participants.any(axis=0), len(participants) - 1 - np.argmax(participants[::-1], axis=0), -1)

    @cache
    def before(t: int) -> Floats:
        """(n_measures,): quality of the global model that a round started with."""
        start = fitted(recorded.round(t), oracle.task).global_model
        return np.asarray(quality(oracle.task, criteria, start).sum(axis=1))

    with_client, without = np.full((2, len(last), len(criteria)), np.nan)
    with threads_of(oracle):
        for t in np.unique(last[last >= 0]).tolist():
            game = recorded.game(t)
            n = len(game.clients)
            found = game.columns(np.concatenate([np.ones((1, n), dtype=bool), ~np.eye(n, dtype=bool)]))
            scores = before(t) + np.column_stack([found[:, : oracle.n_blocks].sum(axis=1), found[:, columns]])
            mine = last[game.clients] == t
            with_client[game.clients[mine]] = signs * scores[0]
            without[game.clients[mine]] = signs * scores[1:][mine]
        start = signs * before(int(np.argmax(participants.any(axis=1))))
    # An accuracy of .2625 is printed as 26.2 % or 26.3 % by its last bit, so digits that rounding decides are cut off
    start, end, with_client, without = (x.round(9) for x in (start, with_client[np.argmax(last)], with_client, without))
    numbers = tuple(recorded.numbers[t] if t >= 0 else None for t in last.tolist())
    return Scores(tuple(criterion.name for criterion in criteria), start, end, numbers, with_client, without)


def levels_text(scores: Scores | None) -> str:
    """What the model scored: "cross-entropy 2.38 at the start, 1.32 at the end"."""
    if scores is None:
        return ""
    levels = zip(scores.measures, scores.start.tolist(), scores.end.tolist(), strict=True)
    return "; ".join(
        f"{name} {score_text(name, first)} at the start, {score_text(name, last)} at the end"
        for name, first, last in levels
    )


def measure_text(provenance: Provenance | None) -> str:
    """What values are measured in: "loss (cross-entropy), in nats per test sample"."""
    if provenance is None or provenance.judged_by is None:
        return "utility, in the unit of the given utilities"
    name = f"loss ({provenance.judged_by})" if is_loss(provenance) else provenance.judged_by
    return f"{name}, {provenance.unit}" if provenance.unit else name


def change_text(provenance: Provenance | None) -> str:
    """What a value above zero says of the model: "lowers the loss"."""
    if provenance is None or provenance.judged_by is None:
        return "raises the utility"
    return "lowers the loss" if is_loss(provenance) else f"raises the {provenance.judged_by}"


def is_loss(provenance: Provenance | None) -> bool:
    """Whether values are measured in a loss, which is low if the model is good."""
    return provenance is not None and provenance.settings.get("measure", "loss") == "loss"


def test_set_text(provenance: Provenance | None) -> str:
    """The test set with its size: "the coordinator’s 400 test samples"."""
    n = None if provenance is None else provenance.n_test_samples
    if provenance is None or n is None:
        return "the coordinator’s test data"
    weighted = ", weighted to known shares of their groups" if provenance.settings.get("group_shares") else ""
    samples = f"{n:,} {provenance.samples}" if n > 1 else f"one {provenance.samples.removesuffix('s')}"
    return f"the coordinator’s {samples}{weighted}"
