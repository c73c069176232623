"""Everyone's completed game where its coalitions are too many to list: any of them is measured when it is asked for.

In: the seen utilities, a ledger and an oracle. Out: `PredictedGame`, which sums a coalition's utilities over the
rounds, U(S) = Σ_t U_t(S), on the models that were heard and those predicted of the absent. One alone is valued by the
lone process, as in `complete`. A coalition takes as many evaluations as there are rounds.
"""

from dataclasses import dataclass

import numpy as np

from fedworth.arrays import Indices, Memberships, Utilities
from fedworth.completion.models.complete import MOST_ENUMERATED, heard_alone
from fedworth.completion.models.holdouts import is_far_alone
from fedworth.completion.models.lone_process import Lone
from fedworth.completion.models.predicted import PredictedLedger, predict_absent
from fedworth.games.matrix import UtilityMatrix
from fedworth.ledger.ledger import Ledger
from fedworth.names import Weighting
from fedworth.oracle.batches import Batch
from fedworth.oracle.oracle import Oracle, TaskOracle, n_threads_of
from fedworth.oracle.recheck import measured
from fedworth.oracle.server import server_of
from fedworth.oracle.weighting import round_weights


@dataclass(frozen=True)
class PredictedGame:
    """Everyone's game on models heard and predicted, summed over the rounds."""

    predicted: PredictedLedger
    oracle: Oracle
    lone: Lone
    weighting: Weighting

    @property
    def heard(self) -> Indices:
        """The clients that some round has heard: the members of the game."""
        return self.predicted.heard

    @property
    def n_rounds(self) -> int:
        return len(self.predicted.known)

    def __call__(self, rows: Memberships) -> Utilities:
        """(n_coalitions,): totals of coalitions of the members, (n_coalitions, n_heard)."""
        coalitions = np.zeros((len(rows), self.predicted.known.shape[1]), dtype=bool)
        coalitions[:, self.heard] = rows
        is_lone = (coalitions.sum(axis=1) == 1) & is_far_alone(self.weighting)
        alone = np.argmax(coalitions[is_lone], axis=1)
        totals = np.zeros(len(rows))
        for round_index in range(self.n_rounds):
            weights = round_weights(self.predicted.ledger, round_index, self.weighting)
            batch = (
                np.flatnonzero(~is_lone),
                coalitions[~is_lone],
                weights,
                self.weighting,
                self.predicted.ledger.clients,
            )
            if not is_lone.all():
                opened = self.predicted.open_round(round_index)
                totals[~is_lone] += measured(self.oracle, opened, Batch(round_index, *batch)).utilities
            totals[is_lone] += self.lone.utilities[round_index, alone]
        return totals


def predicted_game(
    ledger: Ledger,
    oracle: TaskOracle,
    seen: UtilityMatrix,
    *,
    weighting: Weighting | None = None,
    as_average: bool = False,
) -> PredictedGame | None:
    """The game to draw coalitions of; None where there are so few clients that all coalitions are completed."""
    if int(seen.heard.sum()) <= MOST_ENUMERATED:
        return None
    weighting = weighting or ledger.default_weighting
    predicted = predict_absent(ledger, oracle.task, n_threads=n_threads_of(oracle))
    measuring = server_of(ledger, oracle, weighting, as_average=as_average).oracle
    return PredictedGame(predicted, measuring, heard_alone(predicted, measuring, seen, weighting), weighting)
