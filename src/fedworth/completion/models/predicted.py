"""A ledger whose absent answers are predicted: everyone answers in every round.

In: a ledger and a task. Out: `PredictedLedger`. Its rounds hold the heard models as heard, and for every absent
client that some round has heard a model that the update process predicts. The ordinary oracle measures any coalition
on them. A client whose like (same first answer) was heard answers as that one did.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Floats, Indices
from fedworth.completion.models.answers import Answers, answers_of
from fedworth.completion.models.cut_process import CutProcess
from fedworth.completion.models.likeness import likeness_of
from fedworth.completion.models.update_process import DRAWING, STEADY, Likeness, UpdateProcess, update_process
from fedworth.errors import CompletionError
from fedworth.ledger.ledger import Ledger, Model, Round
from fedworth.task.task import Task

MOST_POINTS = 5000
"""Beyond so many answers each prediction rests on some of them."""

FEWEST_CHOOSING, MOST_CHOOSING = 300, 600
"""Answers from which on they choose the numbers of the process, and how many of them are asked."""


@dataclass(frozen=True)
class PredictedLedger:
    """A recorded federation in which the absent answer too."""

    ledger: Ledger
    answers: Answers
    likeness: Likeness
    process: UpdateProcess | CutProcess
    points: Indices  # (n_points,): which answers the process rests on
    _variances: dict[int, Floats] = field(default_factory=dict, compare=False)  # of predictions made so far, by round

    @property
    def heard(self) -> Indices:
        """The clients that some round has heard."""
        return self.answers.heard

    @cached_property
    def known(self) -> NDArray[np.bool_]:
        """(n_rounds, n_clients): whether a client's answer is known, since it was heard, or one of its kind."""
        alike = self.likeness.same_kind
        return np.asarray(self.answers.participants @ alike)

    @cached_property
    def variances(self) -> Floats:
        """(n_rounds, n_clients): the variance of each predicted answer; 0 where it is known or nobody answered, NaN if
        never heard."""
        found = np.full(self.known.shape, np.nan)
        for round_index, row in enumerate(found):
            if not self.answers.answered[round_index]:
                row[self.heard] = 0.0
                continue
            absent = self._absent(round_index)
            if round_index not in self._variances:
                self._variances[round_index] = self.process.coefficients(absent, round_index)[1]
            row[absent] = self._variances[round_index]
        return np.where(self.known, 0.0, found)

    def open_round(self, round_index: int) -> Round:
        """A round with a model of every heard client, heard or predicted."""
        recorded = self.answers.rounds[round_index]
        absent = self._absent(round_index)
        predicted = self._predict(absent, round_index)
        models = {**recorded.client_models, **dict(zip(absent.tolist(), predicted, strict=True))}
        return replace(recorded, client_models={k: models[k] for k in sorted(models)})

    def agreement(self, points: Indices) -> float:
        """How much more one client's errors agree over the rounds than expected; not asked of many answers, whose
        products take long."""
        if isinstance(self.process, CutProcess) or len(self.points) >= FEWEST_CHOOSING:
            return 0.0
        return self.process.agreement(points, self.answers.products(self.points))

    def left_out(self, points: Indices) -> list[Model]:
        """The answers at these points, each predicted from all the others."""
        spread = np.zeros((len(points), len(self.answers.places[0])))
        spread[:, self.points] = [self.process.left_out(point) for point in points.tolist()]
        return self.answers.models(self.process.rounds[points], spread)

    def _absent(self, round_index: int) -> Indices:
        """Whose answers of a round are predicted."""
        return np.asarray(self.heard[~self.answers.participants[round_index, self.heard]])

    def _predict(self, absent: Indices, round_index: int) -> list[Model]:
        spread = np.zeros((len(absent), len(self.answers.places[0])))
        if len(absent):
            spread[:, self.points] = self._weights(absent, round_index)
        return self.answers.models(round_index, spread)

    def _weights(self, absent: Indices, round_index: int) -> Floats:
        """(n_absent, n_points): the process's coefficients; exactly one point's where the answer is known."""
        weights, self._variances[round_index] = self.process.coefficients(absent, round_index)
        here = self.process.rounds == round_index
        same = self.likeness.same_kind[np.ix_(absent, self.process.clients)] & here
        return np.where(same.any(axis=1)[:, None], same.astype(np.float64), weights)


def predict_absent(ledger: Ledger, task: Task, *, n_threads: int = 1) -> PredictedLedger:
    """The ledger with predicted answers of those whom a round has not heard; models are made on so many threads."""
    answers = answers_of(ledger, n_threads=n_threads)
    if len(answers.heard) == 0:
        raise CompletionError(f"{ledger.folder}: no round has heard anyone, so nobody's answers can be predicted")
    likeness = likeness_of(answers, task)
    whole, points = update_process(likeness, *answers.places)
    whole = _chosen(whole, points, answers)
    process = whole if len(points) <= MOST_POINTS else CutProcess(whole)
    return PredictedLedger(ledger, answers, likeness, process, points)


def _chosen(process: UpdateProcess, points: Indices, answers: Answers) -> UpdateProcess:
    """The process with the numbers that predict left-out answers best; with few answers those that are usual."""
    if len(points) < FEWEST_CHOOSING:
        return process
    some = np.unique(np.linspace(0, len(points) - 1, MOST_CHOOSING).astype(np.int64))
    products = answers.products(points[some])
    thinned = replace(process, rounds=process.rounds[some], clients=process.clients[some])
    missed = {numbers: replace(thinned, numbers=numbers).left_out_error(products) for numbers in (DRAWING, STEADY)}
    return replace(process, numbers=min(missed, key=lambda numbers: missed[numbers]))
