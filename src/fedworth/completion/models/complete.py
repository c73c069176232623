"""Completion by models: everyone's game in every round, on recorded and predicted models.

    coalitions of participants      as measured
    an absent client alone          by the process of single clients
    any other coalition             measured on the recorded models and the predicted models of absent clients

In a round that nobody answered every coalition has the utility 0.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedworth.arrays import Floats, Indices, Memberships
from fedworth.completion.completion import Caveat, heard_early, heard_little, heard_once, unlike_others
from fedworth.completion.models.holdout import HeldOut, hold_out, uses_singletons
from fedworth.completion.models.prediction import PredictedModels, Singletons, predict_models, singleton_gp
from fedworth.completion.models.similarity import compared_by
from fedworth.games.federation import RecordedFederation
from fedworth.games.game import GameOfColumns, ModelGame
from fedworth.ledger.ledger import Round
from fedworth.oracle.oracle import n_columns_of, threads_of
from fedworth.storage import Progress, silent
from fedworth.threads import one_blas_thread

FAR_OUTSIDE = 4.0
"""Clients whose predictions have this many times the variance of the held-out ones get a caveat."""

FEW_ROUNDS = 3
"""Clients that took part in at most this many rounds, and in at most a quarter of all, get a caveat."""

MOST_REMEMBERED = 1 << 26
"""Bytes of measured utilities beyond which those of earlier rounds are forgotten: with many blocks of test samples they
would take gigabytes, and few methods ask for a round twice."""


def complete_by_models(
    federation: RecordedFederation, *, few_checks: bool = False, progress: Progress = silent
) -> "ModelCompletion":
    """Predict what absent clients would have answered, and how wrong the predictions are.

    Args:
        federation: The recorded rounds, and the oracle that measures them.
        few_checks: Whether predictions are checked on few coalitions, since evaluations are slow.
        progress: Called with what is being done, how many parts are done and how many there are.

    Returns:
        A game among all heard clients for every round, and the covariance of the errors of their Shapley values.

    Example:
        completion = complete_by_models(RecordedFederation(ledger, oracle, "uniform"))
        completion.game(0).utilities(np.ones((1, len(completion.heard)), dtype=bool))
    """
    with one_blas_thread(), threads_of(federation.oracle):
        models = predict_models(federation)
        alone = []
        for t in range(federation.n_rounds):
            game = federation.game(t)
            alone.append(game.columns(np.eye(len(game.clients), dtype=bool)))
            progress("measuring single clients", t + 1, federation.n_rounds)
        n_blocks = federation.oracle.n_blocks
        singletons = singleton_gp(models.similarity, federation.participants, np.concatenate(alone), n_blocks)
        return ModelCompletion(models, singletons, hold_out(models, singletons, few=few_checks))


class ModelCompletion:
    """Everyone's game in every round, from recorded and predicted models."""

    def __init__(self, models: PredictedModels, singletons: Singletons, held: HeldOut) -> None:
        self.models, self.singletons, self.held = models, singletons, held
        federation = models.federation
        self.clients, self.heard, self.n_rounds = federation.clients, federation.heard, federation.n_rounds
        self._opened: tuple[int, Round] | None = None
        self._games: dict[int, PredictedGame] = {}

    def game(self, round_index: int) -> GameOfColumns:
        """The game among the heard clients in a round; models are predicted when a coalition first needs them."""
        if not self.models.participants[round_index].any():
            oracle = self.models.federation.oracle
            return UnansweredGame(self.heard, oracle.n_blocks, n_columns_of(oracle))
        if self.models.participants[round_index, self.heard].all():
            return self.models.federation.game(round_index)  # nothing has to be predicted
        if round_index not in self._games:
            while self._games and sum(game.memory.n_bytes for game in self._games.values()) > MOST_REMEMBERED:
                del self._games[next(iter(self._games))]  # the oldest
            self._games[round_index] = PredictedGame(self, round_index)
        return self._games[round_index]

    def open_round(self, round_index: int) -> Round:
        """A round with a model of every heard client; the last one is kept, since predicted models take memory."""
        if self._opened is None or self._opened[0] != round_index:
            with one_blas_thread(), threads_of(self.models.federation.oracle):
                self._opened = round_index, self.models.open_round(round_index)
        return self._opened[1]

    def covariance(self) -> Floats:
        """(n_heard, n_heard): of the errors that predictions cause in the Shapley values summed over rounds."""
        return self._covariance

    @cached_property
    @one_blas_thread()
    def _covariance(self) -> Floats:
        return self.held.value_covariance()

    @one_blas_thread()
    def error_ratios(self, parts: Floats) -> Floats:
        """(n_parts,): how large errors of parts of values are, relative to errors of the values; see `Completion`."""
        return self.held.error_ratios(parts)

    @cached_property
    def caveats(self) -> tuple[Caveat, ...]:
        """Clients heard in few or early rounds only, and clients unlike those that predictions were checked on."""
        once, little, early, unlike = list[str](), dict[str, int](), dict[str, int](), list[str]()
        for client in self.heard.tolist():
            name, rounds = self.clients[client], np.flatnonzero(self.models.known[:, client])
            if self.models.participants[:, client].sum() == 1 and self.n_rounds > 1:
                once.append(name)
            elif len(rounds) <= FEW_ROUNDS and len(rounds) <= self.n_rounds / 4:
                little[name] = len(rounds)
            elif rounds[-1] + 1 < self.n_rounds / 2:
                early[name] = self.models.federation.numbers[int(rounds[-1])]
            elif self._relative_variances[client] > FAR_OUTSIDE:
                unlike.append(name)
        return (
            *([heard_once(once)] if once else []),
            *([heard_little(little, self.n_rounds)] if little else []),
            *([heard_early(early)] if early else []),
            *([unlike_others(unlike)] if unlike else []),
        )

    @cached_property
    @one_blas_thread()
    def _relative_variances(self) -> Floats:
        """(n_clients,): mean variance of each client's predicted updates, over the mean of the held-out ones."""
        if len(self.held.points) == 0:
            return np.zeros(len(self.clients))
        variances = self.models.variances  # (n_rounds, n_clients)
        means = variances.sum(axis=0) / np.maximum((variances > 0).sum(axis=0), 1)
        return np.asarray(means / self.held.variances.mean())

    def summary(self) -> dict[str, Any]:
        """How the completion was made, as JSON."""
        return {
            "kind": "models",
            "n_answers": len(self.models.points),
            "n_held_out": len(self.held.points),
            "n_evaluations": self.held.n_evaluations,
            "everyone_heard": bool(self.models.participants[:, self.heard].all(axis=1).any()),
            "compared_by": self.models.similarity.compared_by,
        }


class NothingAbsent:
    """The completion of a federation in which everyone took part in every round: no model has to be predicted."""

    caveats: tuple[Caveat, ...] = ()

    def __init__(self, federation: RecordedFederation) -> None:
        self._federation, self.clients, self.heard = federation, federation.clients, federation.heard
        self.n_rounds = federation.n_rounds

    def game(self, round_index: int) -> GameOfColumns:
        return self._federation.game(round_index)

    def covariance(self) -> Floats:
        return np.zeros((len(self.heard), len(self.heard)))

    def error_ratios(self, parts: Floats) -> Floats:
        return np.zeros(parts.shape[1])

    def summary(self) -> dict[str, Any]:
        none = {"n_held_out": 0, "n_evaluations": 0}
        n_answers, by = int(self._federation.participants.sum()), compared_by(self._federation.oracle.task)
        return {"kind": "models", "n_answers": n_answers, **none, "everyone_heard": True, "compared_by": by}


class PredictedGame(ModelGame):
    """The game of one round among all heard clients, on recorded and predicted models."""

    def __init__(self, completion: ModelCompletion, round_index: int) -> None:
        federation = completion.models.federation
        self._completion, self._round_index = completion, round_index
        self.oracle, self.clients, self.client_names = federation.oracle, completion.heard, federation.clients
        self.weights, self.weighting = federation.weights(round_index), federation.weighting
        self.kept = None if federation.store is None else federation.store.outputs(round_index, is_predicted=True)
        self.sampled = None
        self.__post_init__()

    @property
    def round_(self) -> Round:  # type: ignore[override]
        """The round with all predicted models, which are computed when a coalition first needs them."""
        return self._completion.open_round(self._round_index)

    def columns(self, coalitions: Memberships) -> Floats:
        """(n_coalitions, n_columns): utilities of coalitions, (n_coalitions, n_heard)."""
        models = self._completion.models
        present = models.participants[self._round_index, self.clients]  # (n_heard,)
        within = ~coalitions[:, ~present].any(axis=1)  # coalitions of participants
        alone = ~within & (coalitions.sum(axis=1) == 1) & uses_singletons(self.weighting)
        found = np.empty((len(coalitions), self.n_columns))
        found[within] = models.federation.game(self._round_index).columns(coalitions[within][:, present])
        found[alone] = self._alone[np.argmax(coalitions[alone], axis=1)]
        others = ~within & ~alone
        found[others] = super().columns(coalitions[others])
        return found

    @cached_property
    @one_blas_thread()
    def _alone(self) -> Floats:
        """(n_heard, n_columns): predicted utilities of single clients."""
        return self._completion.singletons.utilities(self.clients, self._round_index)


@dataclass(frozen=True)
class UnansweredGame:
    """The game of a round that nobody answered: every coalition leaves the global model as it is."""

    clients: Indices  # (n,)
    n_blocks: int
    n_columns: int

    def utilities(self, coalitions: Memberships) -> Floats:
        return np.zeros((len(coalitions), self.n_blocks))

    def columns(self, coalitions: Memberships) -> Floats:
        return np.zeros((len(coalitions), self.n_columns))
