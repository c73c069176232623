"""Values from directions alone: how well each update points where the test loss falls, or where the others point.

    influence   Σ_t c_i (−∇ℓ(w^t) · Δ_i^t)                                      first-order influence
    cosine      r_i ← .95 r_i + .05 cos(Δ_i^t, Σ_k c_k Δ_k^t) in its rounds     CGSV (Xu et al., 2021)

with c the weight of a client among the round's participants. Influence takes one backward pass a round; the cosine
needs no test set. A reputation starts at 0, and all are divided by the sum of their sizes at the end.
"""

import numpy as np
import torch

from fedworth.arrays import Floats
from fedworth.ledger.ledger import Model
from fedworth.valuation.rivals.federation import PlayedRound, Recorded

MOMENTUM = 0.95


def influence_values(federation: Recorded) -> Floats:
    """(n_clients,): first-order influence."""
    values = np.zeros(len(federation.clients))
    for played in federation.rounds():
        values[played.members] += played.shares * played.slopes()
    return values


def cosine_values(federation: Recorded) -> Floats:
    """(n_clients,): reputations, which add up to 1 unless all are 0."""
    reputation = np.zeros(len(federation.clients))
    for played in federation.rounds():
        found = _cosines(played)
        reputation[played.members] = MOMENTUM * reputation[played.members] + (1 - MOMENTUM) * found
    total = float(np.abs(reputation).sum())
    return reputation / total if total > 0 else reputation


def _cosines(played: PlayedRound) -> Floats:
    """(n,): of each update with their weighted mean; 0 for who sent the global model back."""
    gram = _gram(played)
    products = gram @ played.shares
    sizes = np.sqrt(np.maximum(np.diag(gram) * float(played.shares @ products), 0))
    return np.divide(products, sizes, out=np.zeros(len(products)), where=sizes > 0)


def _gram(played: PlayedRound) -> Floats:
    """(n, n): the updates' inner products, tensor by tensor in float64."""
    origin, n = played.round_.global_model, len(played.members)
    total = np.zeros((n, n))
    models: list[Model] = [played.round_.client_models[k] for k in played.members.tolist()]
    for name, like in origin.items():
        if like.is_floating_point():
            rows = torch.stack([(model[name].double() - like.double()).reshape(-1) for model in models])
            total += (rows @ rows.T).numpy()
    return total
