"""Games of the whole training, and measures of a client's value that share out no game.

    or          Shapley value of one game for the whole training, of models rebuilt from recorded updates:
                M_S = w⁰ + Σ_t Σ_{k ∈ S∩I_t} c_k (w_k^{t+1} − w^t),   U(S) = ℓ(w⁰) − ℓ(M_S)          (Song et al., 2019)
    influence   Σ_t c_i (−∇ℓ(w^t) · Δ_i^t)                                                first-order influence
    cosine      r_i ← .95 r_i + .05 cos(Δ_i^t, Σ_k c_k Δ_k^t) in its rounds               CGSV (Xu et al., 2021)
    retraining  Shapley value of what each coalition would have reached by training alone; simulations only

c are the weights among the round's participants (in `or`, among those of S). Influence takes one backward pass per
round; the cosine needs no test set.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from fedworth.arrays import Floats, Indices, Memberships
from fedworth.errors import TooManyError, UsageError
from fedworth.games.federation import RecordedFederation
from fedworth.ledger.ledger import Model, Round
from fedworth.oracle.oracle import Oracle, fitted
from fedworth.oracle.server import RuleOracle
from fedworth.oracle.weighting import Mixtures, mixtures
from fedworth.simulation.simulate import retrained_models
from fedworth.threads import fitting_threads

MOMENTUM = 0.95
"""How much of a reputation a round keeps in `cosine`."""

MOST_RETRAINED = 10
"""Clients up to which every coalition is trained again."""

TOGETHER = 64
"""Coalitions' models that are held in memory at once."""


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
                found[part] = self.oracle.utilities(round_, alone)[:, : self.n_blocks]
        return found


def rebuilt(federation: RecordedFederation) -> TrainedGame:
    """The game of `or`: a coalition has the model rebuilt from the updates that its clients sent."""
    return _training_game(federation, lambda rows: _rebuilt_models(federation, rows))


def retrained(federation: RecordedFederation) -> TrainedGame:
    """The game of what each coalition would have reached by training alone, in a simulated federation."""
    n = len(federation.heard)
    if n > MOST_RETRAINED:
        raise TooManyError(
            f"{n} clients have {2**n:,} coalitions, each of which would be trained again; "
            f"at most {MOST_RETRAINED} clients are retrained; choose another method"
        )
    return _training_game(federation, lambda rows: retrained_models(federation.ledger, rows))


def _training_game(federation: RecordedFederation, models_of: Callable[[Memberships], Iterable[Model]]) -> TrainedGame:
    oracle = federation.oracle
    plain = oracle.inner if isinstance(oracle, RuleOracle) else oracle  # models are complete: no rule to follow
    return TrainedGame(federation.round(0), plain, federation.heard, len(federation.clients), models_of)


def influence(federation: RecordedFederation) -> Floats:
    """(n_clients,): how far each client's update goes down the slope of the test loss."""
    values = np.zeros(len(federation.clients))
    for t, participants in _rounds(federation):
        share = _shares(federation, t, participants)
        values[participants] += share * _slopes(federation, t, participants)
    return values


def cosine(federation: RecordedFederation) -> Floats:
    """(n_clients,): reputations by how well updates agree with the average; their sizes add up to 1."""
    reputation = np.zeros(len(federation.clients))
    for t, participants in _rounds(federation):
        round_, share = federation.round(t), _shares(federation, t, participants)
        floats = [name for name, before in round_.global_model.items() if before.is_floating_point()]
        rows = (_updates(round_, participants, name) for name in floats)
        products = sum(((each @ each.T).numpy() for each in rows), np.zeros((len(share), len(share))))
        with_mean = products @ share
        sizes = np.sqrt(np.maximum(np.diag(products) * float(share @ with_mean), 0))
        cosines = np.divide(with_mean, sizes, out=np.zeros(len(share)), where=sizes > 0)
        reputation[participants] = MOMENTUM * reputation[participants] + (1 - MOMENTUM) * cosines
    total = float(np.abs(reputation).sum())
    return reputation / total if total > 0 else reputation


def _rounds(federation: RecordedFederation) -> Iterator[tuple[int, Indices]]:
    """Every round that has participants, and who they are."""
    for t, row in enumerate(federation.participants):
        if row.any():
            yield t, np.flatnonzero(row)


def _shares(federation: RecordedFederation, t: int, participants: Indices) -> Floats:
    """(n,): what each participant counts in the average of all."""
    own = federation.weights(t)[participants]
    return np.asarray(own / own.sum())


def _rebuilt_models(federation: RecordedFederation, coalitions: Memberships) -> list[Model]:
    """M_S of each coalition; a round's updates are added to all of them by one product per tensor."""
    start, n = federation.round(0).global_model, len(coalitions)
    sums = {name: tensor.to(torch.float64).expand(n, *tensor.shape).clone() for name, tensor in start.items()}
    for t, participants in _rounds(federation):
        round_ = federation.round(t)
        present = np.zeros_like(coalitions)
        present[:, participants] = coalitions[:, participants]
        counted = mixtures(present, federation.weights(t), federation.weighting).of_clients[:, participants]
        for name, before in round_.global_model.items():
            updates = _updates(round_, participants, name)  # (n_participants, n_numbers)
            sums[name] += (torch.from_numpy(counted) @ updates).reshape(n, *before.shape)
    whole = {name: x if start[name].is_floating_point() else x.round() for name, x in sums.items()}
    return [{name: tensors[k].to(start[name].dtype) for name, tensors in whole.items()} for k in range(n)]


def _updates(round_: Round, participants: Indices, name: str) -> torch.Tensor:
    """(n_participants, n_numbers): how each participant changed one tensor, in float64."""
    before = round_.global_model[name].double()
    models = (round_.client_models[k] for k in participants.tolist())
    return torch.stack([(model[name].double() - before).reshape(-1) for model in models])


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
