"""Values from models rebuilt of recorded updates (Song et al., 2019).

    MR   Σ_t λ^t (Shapley value of round t's participants): with λ = 1 it is FedSV; later rounds count less with λ < 1
    OR   one game for the whole training: M_S = w⁰ + Σ_t Σ_{k ∈ S∩I_t} c_k (w_k^{t+1} − w^t),
         U(S) = ℓ(w⁰) − ℓ(M_S), with c the weights among those of S who took part

OR asks what the clients of S would have reached with the updates that they sent, though these were made from models
that everyone had trained. Up to 12 clients all coalitions are rebuilt; beyond, prefixes of 50 orders.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from fedworth.arrays import Floats, Memberships
from fedworth.coalitions import prefixes
from fedworth.ledger.ledger import Model
from fedworth.oracle.weighting import mixtures
from fedworth.valuation.permutations import permutation_values
from fedworth.valuation.rivals.counted import CountedGame
from fedworth.valuation.rivals.federation import Recorded
from fedworth.valuation.shapley import shapley_values

DECAY = 0.9
"""λ of MR."""

MOST_EXACT = 12

N_ORDERS = 50
"""Orders of many clients: few, since a coalition's model is made of all updates that its members ever sent."""


@dataclass(frozen=True)
class Rebuilt:
    """Values from one game of rebuilt models, and their standard errors where orders were drawn."""

    values: Floats  # (n_clients,)
    standard_errors: Floats | None


def or_values(federation: Recorded, game: CountedGame, *, rng: np.random.Generator) -> Rebuilt:
    """The Shapley value of the game of rebuilt models."""
    heard = federation.heard
    values, errors = np.full(len(federation.clients), np.nan), None
    if game.n <= MOST_EXACT:
        values[heard] = shapley_values(game.all())
        return Rebuilt(values, None)
    orders = rng.permuted(np.tile(np.arange(game.n), (N_ORDERS, 1)), axis=1)
    utilities = game(prefixes(orders, game.n)).reshape(N_ORDERS, -1)
    found, spread = permutation_values(utilities, orders, game.n)
    errors = np.full(len(values), np.nan)
    values[heard], errors[heard] = found, spread
    return Rebuilt(values, errors)


def rebuilt_game(federation: Recorded) -> CountedGame:
    """The game of rebuilt models among the clients that were heard."""
    start = federation.ledger.open_round(0).global_model
    return federation.game_of_models(lambda coalitions: _rebuilt(federation, coalitions, start))


def _rebuilt(federation: Recorded, coalitions: Memberships, start: Model) -> list[Model]:
    """M_S, one a coalition; a round's updates are shared out among all coalitions by one product a tensor."""
    n = len(coalitions)
    made = {name: tensor.to(torch.float64).expand(n, *tensor.shape).clone() for name, tensor in start.items()}
    for before, models, coefficients in _steps(federation, coalitions):
        counted = torch.from_numpy(coefficients[:, list(models)])  # (n_coalitions, n_members)
        for name, like in before.items():
            updates = torch.stack([(model[name].double() - like.double()).reshape(-1) for model in models.values()])
            made[name] += (counted @ updates).reshape(n, *like.shape)
    return [{name: _like(tensors[k], start[name]) for name, tensors in made.items()} for k in range(n)]


def _steps(federation: Recorded, coalitions: Memberships) -> Iterator[tuple[Model, dict[int, Model], Floats]]:
    """Of each round the global model, the participants' models, and what each counts in each coalition."""
    for played in federation.rounds():
        here = np.zeros_like(coalitions)
        here[:, played.members] = coalitions[:, played.members]
        models = {k: played.round_.client_models[k] for k in played.members.tolist()}
        yield played.round_.global_model, models, mixtures(here, played.weights, federation.weighting).of_clients


def _like(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return tensor.to(like.dtype) if like.is_floating_point() else tensor.round().to(like.dtype)
