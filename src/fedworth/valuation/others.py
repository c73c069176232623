"""Measures of a client's value that are not a sharing rule of each round's game.

    mr          Σ_t λ^t (Shapley value of round t's participants), λ = .9                 (Song et al., 2019)
    or          Shapley value of one game for the whole training, of models rebuilt from recorded updates:
                M_S = w⁰ + Σ_t Σ_{k ∈ S∩I_t} c_k (w_k^{t+1} − w^t),   U(S) = ℓ(w⁰) − ℓ(M_S)          (ibid.)
    influence   Σ_t c_i (−∇ℓ(w^t) · Δ_i^t)                                                first-order influence
    cosine      r_i ← .95 r_i + .05 cos(Δ_i^t, Σ_k c_k Δ_k^t) in its rounds               CGSV (Xu et al., 2021)
    retraining  Shapley value of what each coalition would have reached by training alone; simulations only

c are the weights among the round's participants (in `or`, among those of S). Influence takes one backward pass a
round; the cosine needs no test set.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from fedworth.arrays import Floats, Indices, Memberships
from fedworth.errors import TooManyError, UsageError
from fedworth.games.federation import RecordedFederation
from fedworth.games.game import Shares
from fedworth.games.shapley import shapley
from fedworth.ledger.ledger import Model, Round
from fedworth.oracle.oracle import Oracle, fitted
from fedworth.oracle.server import RuleOracle
from fedworth.oracle.weighting import Mixtures, mixtures
from fedworth.simulation.simulate import retrained_models
from fedworth.storage import Place
from fedworth.threads import fitting_threads

DECAY = 0.9
"""λ of `mr`."""

MOMENTUM = 0.95
"""How much of a reputation a round keeps in `cosine`."""

MOST_RETRAINED = 10
"""Clients up to which every coalition is trained anew."""

TOGETHER = 64
"""Coalitions' models that are held in memory at once."""


@dataclass(frozen=True)
class OtherValues:
    """Values of all clients, NaN for clients that no round has heard."""

    values: Floats  # (n_clients,)
    standard_errors: Floats | None  # (n_clients,), due to sampling of coalitions; None if nothing was sampled
    notes: tuple[str, ...]  # what a reader of these values must know
    n_evaluations: int


@dataclass(frozen=True, eq=False)
class TrainedGame:
    """A game for the whole training: a coalition's utility is that of its final model over the first global model."""

    first: Round
    oracle: Oracle  # measures models as they are
    clients: Indices  # (n,)
    n_clients: int
    models_of: Callable[[Memberships], Iterable[Model]]  # the final models of coalitions, (n_coalitions, n_clients)

    @property
    def n_blocks(self) -> int:
        """How many blocks of test samples there are."""
        return self.oracle.n_blocks

    def utilities(self, coalitions: Memberships) -> Floats:
        """(n_coalitions, n_blocks): utilities of coalitions, (n_coalitions, n); the empty one is not trained."""
        found = np.zeros((len(coalitions), self.n_blocks))
        wanted = np.flatnonzero(coalitions.any(axis=1))
        for part in np.split(wanted, range(TOGETHER, len(wanted), TOGETHER)):
            rows = np.zeros((len(part), self.n_clients), dtype=bool)
            rows[:, self.clients] = coalitions[part]
            models = dict(enumerate(self.models_of(rows)))  # each stands for one client of the first round
            alone = Mixtures(np.eye(len(models), dtype=bool), np.ones(len(models)), from_global=False)
            if models:
                round_ = Round(self.first.entry, self.first.global_model, models, {})
                found[part] = self.oracle.utilities(round_, alone)
        return found


def mr(federation: RecordedFederation, rng: np.random.Generator) -> OtherValues:
    """Shapley values of each round's participants; later rounds count less."""
    n, n_evaluations = len(federation.clients), 0
    values, variances = np.zeros(n), np.zeros(n)
    for t, participants in _rounds(federation):
        shares = shapley(federation.game(t), rng)
        values[participants] += DECAY**t * shares.totals
        variances[participants] += (DECAY**t * shares.standard_errors) ** 2
        n_evaluations += shares.n_evaluations
    errors = np.sqrt(variances) if variances.any() else None
    return _heard_only(federation, values, errors, n_evaluations)


def rebuilt(federation: RecordedFederation, rng: np.random.Generator) -> OtherValues:
    """`or`: the Shapley value of the game of models rebuilt from the updates that clients sent."""
    return _of_training(federation, lambda rows: _rebuilt_models(federation, rows), rng)


def retraining(
    federation: RecordedFederation, rng: np.random.Generator, *, data_folder: Place | None = None
) -> OtherValues:
    """The Shapley value of what each coalition would have reached by training alone, in a simulated federation."""
    n = len(federation.heard)
    if n > MOST_RETRAINED:
        raise TooManyError(
            f"{n} clients have {2**n:,} coalitions, each of which would be trained anew; "
            f"at most {MOST_RETRAINED} clients are retrained; choose another method"
        )
    return _of_training(
        federation, lambda rows: retrained_models(federation.ledger, rows, data_folder=data_folder), rng
    )


def influence(federation: RecordedFederation, _rng: np.random.Generator) -> OtherValues:
    """How far each client's update goes down the slope of the test loss."""
    values = np.zeros(len(federation.clients))
    for t, participants in _rounds(federation):
        share = _shares(federation, t, participants)
        values[participants] += share * _slopes(federation, t, participants)
    return _heard_only(federation, values, None, 0)


def cosine(federation: RecordedFederation, _rng: np.random.Generator) -> OtherValues:
    """Reputations by how well each update points where all updates together point; their sizes add up to 1."""
    reputation = np.zeros(len(federation.clients))
    for t, participants in _rounds(federation):
        share, products = _shares(federation, t, participants), _inner_products(federation.round(t), participants)
        with_mean = products @ share
        sizes = np.sqrt(np.maximum(np.diag(products) * float(share @ with_mean), 0))
        cosines = np.divide(with_mean, sizes, out=np.zeros(len(share)), where=sizes > 0)
        reputation[participants] = MOMENTUM * reputation[participants] + (1 - MOMENTUM) * cosines
    total = float(np.abs(reputation).sum())
    return _heard_only(federation, reputation / total if total > 0 else reputation, None, 0)


def _rounds(federation: RecordedFederation) -> Iterator[tuple[int, Indices]]:
    """Every round that has participants, and who they are."""
    for t, row in enumerate(federation.participants):
        if row.any():
            yield t, np.flatnonzero(row)


def _shares(federation: RecordedFederation, t: int, participants: Indices) -> Floats:
    """(n,): what each participant counts in the average of all."""
    own = federation.weights(t)[participants]
    return np.asarray(own / own.sum())


def _heard_only(
    federation: RecordedFederation, values: Floats, errors: Floats | None, n_evaluations: int
) -> OtherValues:
    unheard = ~federation.participants.any(axis=0)
    values = np.where(unheard, np.nan, values)
    return OtherValues(values, None if errors is None else np.where(unheard, np.nan, errors), (), n_evaluations)


def _of_training(
    federation: RecordedFederation, models_of: Callable[[Memberships], Iterable[Model]], rng: np.random.Generator
) -> OtherValues:
    """The Shapley value of the game in which a coalition has the model that `models_of` makes of it."""
    oracle, n = federation.oracle, len(federation.clients)
    plain = oracle.inner if isinstance(oracle, RuleOracle) else oracle  # models are complete: no rule to follow
    shares: Shares = shapley(TrainedGame(federation.round(0), plain, federation.heard, n, models_of), rng)
    values, errors = np.zeros(n), np.zeros(n)
    values[federation.heard], errors[federation.heard] = shares.totals, shares.standard_errors
    return _heard_only(federation, values, errors if errors.any() else None, shares.n_evaluations)


def _rebuilt_models(federation: RecordedFederation, coalitions: Memberships) -> list[Model]:
    """M_S, one a coalition; a round's updates are shared out among all coalitions by one product a tensor."""
    start, n = federation.round(0).global_model, len(coalitions)
    made = {name: tensor.to(torch.float64).expand(n, *tensor.shape).clone() for name, tensor in start.items()}
    for t, participants in _rounds(federation):
        round_ = federation.round(t)
        present = np.zeros_like(coalitions)
        present[:, participants] = coalitions[:, participants]
        counted = mixtures(present, federation.weights(t), federation.weighting).of_clients[:, participants]
        for name, before in round_.global_model.items():
            updates = _updates(round_, participants, name)  # (n_participants, n_numbers)
            made[name] += (torch.from_numpy(counted) @ updates).reshape(n, *before.shape)
    return [{name: _like(tensors[k], start[name]) for name, tensors in made.items()} for k in range(n)]


def _updates(round_: Round, participants: Indices, name: str) -> torch.Tensor:
    """(n_participants, n_numbers): how each participant changed one tensor, in float64."""
    before = round_.global_model[name].double()
    models = (round_.client_models[k] for k in participants.tolist())
    return torch.stack([(model[name].double() - before).reshape(-1) for model in models])


def _inner_products(round_: Round, participants: Indices) -> Floats:
    """(n, n): of the participants' updates, tensor by tensor."""
    total = np.zeros((len(participants), len(participants)))
    for name, before in round_.global_model.items():
        if before.is_floating_point():
            rows = _updates(round_, participants, name)
            total += (rows @ rows.T).numpy()
    return total


def _slopes(federation: RecordedFederation, t: int, participants: Indices) -> Floats:
    """(n,): −∇ℓ(w^t) · (w_i − w^t), over the module's parameters: running statistics have no gradient."""
    task = federation.oracle.task
    loss = task.judged_by.criterion
    if not loss.is_smooth:
        raise UsageError(f"loss {loss.name!r} has no gradient; choose a method that needs none")
    round_ = fitted(federation.round(t), task)
    parameters = {name for name, _ in task.module.named_parameters()}
    leaves = {
        name: tensor.detach().to(task.device).clone().requires_grad_()
        for name, tensor in round_.global_model.items()
        if name in parameters and tensor.is_floating_point()
    }
    with fitting_threads(task.module), torch.enable_grad():
        quality = loss.quality(task.outputs({**round_.global_model, **leaves}), task.labels)
        found = torch.autograd.grad(quality, list(leaves.values()), allow_unused=True)
    total = np.zeros(len(participants))
    for name, gradient in zip(leaves, found, strict=True):
        if gradient is not None:
            total += (_updates(round_, participants, name) @ gradient.cpu().double().reshape(-1)).numpy()
    return total


def _like(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return tensor.to(like.dtype) if like.is_floating_point() else tensor.round().to(like.dtype)
