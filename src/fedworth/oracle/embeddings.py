"""The oracle of vertical federations: coalitions of embeddings.

    U_t(S) = mean over samples of  ℓ(head_t(h^{t−1} of all)) − ℓ(head_t(h^t of S, h^{t−1} of the others))

head_t is the server's head as the embeddings of round t found it, before the server learned from them. An absent
client's embeddings are stale, so a client that changes nothing adds exactly nothing.
"""

from dataclasses import dataclass

import numpy as np

from fedworth.errors import ModelError
from fedworth.ledger.ledger import Model, Round
from fedworth.oracle.oracle import LoopOracle, ModelOf
from fedworth.oracle.weighting import Mixtures


@dataclass(frozen=True)
class EmbeddingOracle(LoopOracle):
    """Measures coalitions of a vertical federation, one after the other."""

    def _mixer(self, round_: Round, mixtures: Mixtures, _is_large: bool) -> ModelOf:
        return lambda row: _mixed(round_, mixtures.memberships[row])


def _mixed(round_: Round, members: np.ndarray) -> Model:
    """The head with the members' new embeddings and the others' old ones."""
    mixed = dict(round_.global_model)
    for k in np.flatnonzero(members).tolist():
        if k not in round_.client_models:
            raise ModelError(f"round {round_.entry.number}: a coalition has a member without embeddings in this round")
        mixed[f"embeddings.{k}"] = round_.client_models[k][f"embeddings.{k}"]
    return mixed
