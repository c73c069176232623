"""The games that a ledger has recorded: of each round's participants, or of everyone where all models were kept."""

from functools import partial

import numpy as np

from fedworth.arrays import Indices
from fedworth.games.round_game import RoundGame
from fedworth.games.round_values import RoundValues
from fedworth.games.rounds import estimate_rounds
from fedworth.ledger.ledger import Ledger
from fedworth.names import Weighting
from fedworth.oracle.oracle import Oracle
from fedworth.oracle.weighting import round_weights
from fedworth.storage import Progress, silent


def recorded_values(
    ledger: Ledger,
    oracle: Oracle,
    weighting: Weighting,
    *,
    of_everyone: bool = False,
    earlier: RoundValues | None = None,
    progress: Progress = silent,
) -> RoundValues:
    """The values of each round's participants; `of_everyone`: of all that were ever heard, which is the truth."""
    heard = np.array(sorted({k for t in range(ledger.n_rounds) for k in ledger.participants(t)}), dtype=np.int64)
    game_of = partial(_game, ledger, oracle, weighting, heard if of_everyone else None)
    return estimate_rounds(game_of, ledger.n_rounds, len(ledger.clients), earlier=earlier, progress=progress)


def _game(ledger: Ledger, oracle: Oracle, weighting: Weighting, members: Indices | None, round_index: int) -> RoundGame:
    everyone = members is not None
    if members is None:
        members = np.array(sorted(ledger.participants(round_index)), dtype=np.int64)
    round_ = ledger.open_round(round_index, with_apart=everyone)
    return RoundGame(oracle, round_, members, round_weights(ledger, round_index, weighting), weighting, ledger.clients)
