"""A recorded federation as games: each round opened once, each coalition measured once.

In: a ledger and an oracle. Out: for every round the game of its participants, and where the ledger kept the models of
absent clients, the game of everyone. All later stages get rounds, weights and utilities from here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from fedworth.arrays import Floats, Indices
from fedworth.errors import LedgerError, UsageError
from fedworth.games.game import ModelGame
from fedworth.ledger.ledger import Ledger, Model, Round
from fedworth.names import Weighting
from fedworth.oracle.oracle import Oracle
from fedworth.oracle.store import KeptOutputs, LedgerStore
from fedworth.oracle.weighting import participation, round_weights
from fedworth.task.cells import Cells

PIECE = 1 << 16
"""Numbers of a tensor that are rescaled at a time."""


@dataclass
class RecordedFederation:
    """The rounds of a ledger, their models, and what an oracle measures on them.

    The oracle follows the server's own rule. Each coalition is measured once. With `is_clipped`, every update has the
    median length of its round.
    """

    ledger: Ledger
    oracle: Oracle
    weighting: Weighting
    notes: tuple[str, ...] = ()  # what a reader of any value must know
    store: LedgerStore | None = None
    is_clipped: bool = False
    cells: Cells | None = None  # of the test samples; without them every block that is measured is a random one
    _games: dict[int, ModelGame] = field(default_factory=dict, repr=False)
    _n_kept: dict[int, int] = field(default_factory=dict, repr=False)  # utilities of each round that the store has
    _rescaled: dict[tuple[int, bool], Round] = field(default_factory=dict, repr=False)
    _made: dict[tuple[int, int], Model] = field(default_factory=dict, repr=False)  # rescaled models, see `_Rescaled`

    def __post_init__(self) -> None:
        self.clients, self.n_rounds = self.ledger.clients, self.ledger.n_rounds
        self.numbers = tuple(entry.number for entry in self.ledger.entries)  # the rounds by the federation's own count
        self.participants = participation(self.ledger)  # (n_rounds, n_clients): whose models were aggregated
        self.heard = np.flatnonzero(self.participants.any(axis=0))  # the clients that took part in some round
        if self.ledger.n_rounds == 0:
            missing = f" ({len(self.ledger.missing)} are missing; `fedworth verify` says why)"
            raise LedgerError(
                f"{self.ledger.folder}: no recorded rounds{missing if self.ledger.missing else ''}, so there is "
                "nothing to value; record a round first"
            )
        if self.ledger.left_out and not self.participants.any():
            raise UsageError("every client that took part in a round is left out, so nobody is left to be valued")

    @property
    def has_truth(self) -> bool:
        """Whether the ledger kept the models of all absent clients in every round; a vertical federation has none."""
        if self.ledger.form is not None:
            return False
        heard = set(self.heard.tolist())
        return all(heard <= {*entry.answered, *entry.apart} for entry in self.ledger.entries)

    def round(self, round_index: int, *, with_apart: bool = False) -> Round:
        """The models of a round; its file is checked when it is first opened."""
        if not self.is_clipped:
            return self.ledger.open_round(round_index, with_apart=with_apart)
        key = round_index, with_apart
        if key not in self._rescaled:
            found = self.ledger.open_round(round_index, with_apart=with_apart)
            self._rescaled[key] = at_equal_length(found, self.ledger.participants(round_index), self._made)
        return self._rescaled[key]

    @cached_property
    def at_equal_length(self) -> "RecordedFederation":
        """The same federation with every update at the median length of its round."""
        if self.is_clipped:
            return self
        store = None if self.store is None else replace(self.store, is_clipped=True)
        return RecordedFederation(self.ledger, self.oracle, self.weighting, self.notes, store, is_clipped=True)

    def lengths(self) -> Floats:
        """(n_rounds, n_clients): the length of each update over the median of its round; NaN for absent clients."""
        found = np.full(self.participants.shape, np.nan)
        for t in range(self.n_rounds):
            for client, factor in rescaling(self.ledger.open_round(t), self.ledger.participants(t)).items():
                found[t, client] = 1 / factor if factor > 0 else np.nan
        return np.where(self.participants, found, np.nan)

    def weights(self, round_index: int) -> Floats:
        """(n_clients,): what each client counts in a coalition's model."""
        return round_weights(self.ledger, round_index, self.weighting)

    def game(self, round_index: int) -> ModelGame:
        """The game among a round's participants; what was measured is remembered."""
        if round_index not in self._games:
            members = np.flatnonzero(self.participants[round_index])
            kept = None if self.store is None else self.store.outputs(round_index)
            game = self._game(round_index, self.round(round_index), members, kept)
            if self.store is not None:
                game.memory.add(*self.store.load(round_index))
                self._n_kept[round_index] = len(game.memory)
            self._games[round_index] = game
        return self._games[round_index]

    def keep(self, round_index: int) -> None:
        """Store what is known of a round, if something was measured since it was last stored."""
        if "at_equal_length" in self.__dict__ and not self.is_clipped:
            self.at_equal_length.keep(round_index)
        game = self._games.get(round_index)
        if self.store is None or game is None or len(game.memory) == self._n_kept.get(round_index, 0):
            return
        self.store.save(round_index, *game.memory.measured())
        self._n_kept[round_index] = len(game.memory)

    def true_game(self, round_index: int) -> ModelGame:
        """The game among all clients, on the models that absent clients would have sent (simulations only)."""
        entry = self.ledger.entries[round_index]
        missing = set(self.heard.tolist()) - {*entry.answered, *entry.apart}
        if missing:
            raise LedgerError(
                f"{self.ledger.folder}, round {entry.number}: no model of clients {sorted(missing)}, so the truth "
                "cannot be measured; only a federation simulated with the truth has them"
            )
        if self.participants[round_index, self.heard].all():
            return self.game(round_index)  # which other methods may have measured
        return self._game(round_index, self.round(round_index, with_apart=True), self.heard)

    def _game(self, round_index: int, round_: Round, members: Indices, kept: KeptOutputs | None = None) -> ModelGame:
        weights = self.weights(round_index)
        return ModelGame(self.oracle, round_, members, weights, self.weighting, client_names=self.clients, kept=kept)


def at_equal_length(
    round_: Round, participants: Sequence[int], made: dict[tuple[int, int], Model] | None = None
) -> Round:
    """The round with every client's update at the median length m of the participants' updates, and all else the same.

        w_i  →  w^t + (m / ‖u_i‖) u_i,      u_i = w_i − w^t

    A client cannot gain here by sending a longer update. An update of length 0 stays as it is, and so do tensors that
    are not floats. Models are rescaled when they are read; rounds that share `made` hold those of one round in memory.
    """
    factors, number, made = rescaling(round_, participants), round_.entry.round_index, {} if made is None else made

    def rescaled(models: Mapping[int, Model]) -> Mapping[int, Model]:
        return _Rescaled(round_.global_model, models, factors, number, made)

    return replace(round_, client_models=rescaled(round_.client_models), apart_models=rescaled(round_.apart_models))


def rescaling(round_: Round, participants: Sequence[int]) -> dict[int, float]:
    """What each client's update is multiplied by."""
    models = {**round_.client_models, **round_.apart_models}
    lengths = {k: update_length(model, round_.global_model) for k, model in models.items()}
    median = float(np.median([lengths[k] for k in participants])) if participants else 0.0
    return {k: median / length if length > 0 else 1.0 for k, length in lengths.items()}


def update_length(model: Model, start: Model) -> float:
    """‖w_i − w^t‖ over the float tensors, summed in float64."""
    squares = (
        float(((tensor.double() - start[name].double()) ** 2).sum())
        for name, tensor in model.items()
        if tensor.is_floating_point()
    )
    return float(np.sqrt(sum(squares)))


def _moved(tensor: torch.Tensor, start: torch.Tensor, factor: float) -> torch.Tensor:
    """start + factor (tensor − start), computed in float64 piece by piece, so that no second tensor is held."""
    if not tensor.is_floating_point():
        return tensor
    found = torch.empty(tensor.shape, dtype=tensor.dtype)
    parts = (each.reshape(-1).split(PIECE) for each in (found, tensor, start))
    for into, after, before in zip(*parts, strict=True):
        origin = before.double()
        into.copy_(origin + factor * (after.double() - origin))
    return found


@dataclass(frozen=True)
class _Rescaled(Mapping[int, Model]):
    """Models of clients with rescaled updates; those of the round that was read last are kept."""

    start: Model
    models: Mapping[int, Model]
    factors: Mapping[int, float]
    round_index: int
    made: dict[tuple[int, int], Model]  # (round, client) → model, shared by the rounds of a federation

    def __getitem__(self, client: int) -> Model:
        key = self.round_index, client
        if key not in self.made:
            if any(round_index != self.round_index for round_index, _ in self.made):
                self.made.clear()
            self.made[key] = self._rescaled(client)
        return self.made[key]

    def _rescaled(self, client: int) -> Model:
        model = self.models[client]
        return {name: _moved(tensor, self.start[name], self.factors[client]) for name, tensor in model.items()}

    def __iter__(self) -> Iterator[int]:
        return iter(self.models)

    def __len__(self) -> int:
        return len(self.models)
