"""What values are measured in, and what the model scores with and without each client.

A score is the task's loss or measure on the test set, as a reader knows it: a loss is low if the model is good. Without
a client means: without its update in the last round in which it took part, all else equal.
"""

from dataclasses import dataclass, replace

import numpy as np

from fedworth.arrays import Floats, Indices
from fedworth.errors import ArtefactError
from fedworth.games.federation import RecordedFederation
from fedworth.games.game import all_but_one
from fedworth.oracle.oracle import LoopOracle, fitted, quality, threads_of
from fedworth.oracle.server import RuleOracle
from fedworth.provenance import Provenance
from fedworth.valuation.federation import Federation

UNKNOWN_UNIT = "in the unit of the given utilities"


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
    """The scores of a recorded federation; None if nobody took part.

    By the measure that values are in, these are utilities that leave-one-out has measured already. Loss and accuracy
    are shown together unless a budget limits what may be measured: the other one takes as many evaluations again.
    """
    recorded, budget = federation.recorded, federation.settings.budget
    participants, task = recorded.participants, recorded.oracle.task
    if not participants.any():
        return None
    measured = [recorded]
    other = "loss" if recorded.oracle.measure == "accuracy" else "accuracy"
    if (
        other in ("loss", *(known.name for known in task.judged_by.measures))
        and budget.evaluations is None
        and budget.seconds is None
    ):
        plain = LoopOracle(replace(task, blocks=None), other)
        oracle = replace(recorded.oracle, inner=plain) if isinstance(recorded.oracle, RuleOracle) else plain
        measured.append(RecordedFederation(recorded.ledger, oracle, recorded.weighting, is_clipped=recorded.is_clipped))
    last = np.where(participants.any(axis=0), len(participants) - 1 - np.argmax(participants[::-1], axis=0), -1)
    with threads_of(recorded.oracle):
        found = [_with_and_without(recording, last) for recording in measured]
    with_client, without, ends = (np.stack(parts, axis=-1) for parts in zip(*found, strict=True))
    numbers = tuple(recorded.numbers[t] if t >= 0 else None for t in last.tolist())
    names = tuple(recording.oracle.task.criterion(recording.oracle.measure).name for recording in measured)
    return Scores(names, ends[0], ends[1], numbers, with_client, without)


def _with_and_without(recorded: RecordedFederation, last: Indices) -> tuple[Floats, Floats, Floats]:
    """Scores with and without each client in its last round, (n_clients,) each, and those at the start and the end."""
    task, participants = recorded.oracle.task, recorded.participants
    criterion = task.criterion(recorded.oracle.measure)
    sign = 1.0 if criterion.is_better_higher else -1.0

    def before(t: int) -> float:
        """Quality of the global model that a round started with."""
        start = fitted(recorded.round(t), task).global_model
        return float(quality(task, (criterion,), start).sum())

    with_client, without = np.full((2, len(last)), np.nan)
    for t in np.unique(last[last >= 0]).tolist():
        game = recorded.game(t)
        gained = all_but_one(game).sum(axis=1)
        mine = last[game.clients] == t
        with_client[game.clients[mine]] = sign * (before(t) + gained[0])
        without[game.clients[mine]] = sign * (before(t) + gained[1:][mine])
    first = int(np.argmax(participants.any(axis=1)))
    return with_client, without, np.array([sign * before(first), with_client[int(np.argmax(last))]])


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
        return f"utility, {UNKNOWN_UNIT}"
    return ", ".join(
        text
        for text in (f"loss ({provenance.judged_by})" if is_loss(provenance) else provenance.judged_by, provenance.unit)
        if text
    )


def detail_text(provenance: Provenance | None) -> str:
    """The same without the word loss, to follow it: "cross-entropy, in nats per test sample"."""
    if provenance is None or provenance.judged_by is None:
        return UNKNOWN_UNIT
    return ", ".join(text for text in (provenance.judged_by if is_loss(provenance) else "", provenance.unit) if text)


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
    return f"the coordinator’s {n:,} test samples{weighted}" if n > 1 else "the coordinator’s one test sample"
