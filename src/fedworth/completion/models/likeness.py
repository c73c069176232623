"""Likeness: how alike two clients are, and two global models, by what they say of the server's test set.

    C_ij = exp(−d_ij²/(2 (.6 m)²))        d: distance of the changes that two answers make to the test outputs
    E_ts = exp(−‖f(w^t) − f(w^s)‖²/(2 m'))    f: test outputs of a global model

m is the median distance of two clients, m' the median squared distance of two rounds. A round that heard everyone
compares all clients on the same global model; where there are several, their squared distances are averaged, each in
units of its own median. Without one, distances are predicted: the update process with all clients equally far from each
other predicts everyone's change of outputs in every round, and the mean squared distance of their changes counts. Those
that gave the same answer in every round that they share, and share one, are of one kind then: their distance is 0.

Outputs are logits, centred over the classes, or whatever else the task's module gives, as it gives it. A utility of
one's own has no outputs: models are then compared by their numbers themselves.
"""

import numpy as np
import torch

from fedworth.arrays import Floats
from fedworth.completion.models.answers import Answers
from fedworth.completion.models.update_process import Likeness, update_process
from fedworth.ledger.ledger import Model
from fedworth.oracle.fitting import fitted_model
from fedworth.task.modules import UtilityModule
from fedworth.task.task import Task

WIDTH = 0.6
UPDATES = "updates"
N_SKETCHED = 1 << 14
MOST_SAMPLES = 1000
"""Test samples that are looked at; more say nothing new of how alike two models are."""


def likeness_of(answers: Answers, task: Task) -> Likeness:
    """How alike the clients and the rounds of a federation are."""
    probe = _Probe(task)
    before = np.stack([probe.of(round_.global_model) for round_ in answers.rounds])  # (n_rounds, n_numbers)
    of_rounds = _alike(squared_distances(before), 1.0)
    heard, n_clients = answers.heard, answers.participants.shape[1]
    everyone = np.flatnonzero(answers.participants[:, heard].all(axis=1))
    if len(everyone):
        apart = sum(_in_round(answers, probe, t, before[t]) for t in everyone.tolist())
    else:
        apart = _predicted(answers, probe, before, of_rounds)
    of_clients = np.eye(n_clients)
    of_clients[np.ix_(heard, heard)] = _alike(np.asarray(apart), WIDTH)
    return Likeness(of_clients, of_rounds, compared_by(task))


class _Probe:
    """What a model says of some of the test samples, evenly taken; or what it is, if its utility says no more."""

    def __init__(self, task: Task) -> None:
        self._task, self._some = task, slice(None, None, -(-len(task.labels) // MOST_SAMPLES))

    def of(self, model: Model) -> Floats:
        """(n_numbers,): the outputs of the samples, centred over the classes where there are some."""
        if compared_by(self._task) == UPDATES:
            return _sketch(model)
        with torch.inference_mode():
            found = self._task.outputs(fitted_model(model, self._task), self._some).to(torch.float64)
        over = self._task.judged_by.over_classes
        if over is not None and found.shape[over] > 1:
            found = found - found.mean(dim=over, keepdim=True)
        return np.asarray(found.cpu().numpy().ravel())


def compared_by(task: Task) -> str:
    """What says how alike two clients are."""
    if isinstance(task.module, UtilityModule):
        return UPDATES
    return "test logits" if task.judged_by.over_classes is not None else "test outputs"


def _sketch(model: Model) -> Floats:
    """(N_SKETCHED,): sums of a model's numbers under random signs, whose squared distances are the models' own on the
    average; few numbers are taken as they are."""
    flat = np.concatenate([t.detach().reshape(-1).double().numpy() for t in model.values() if t.is_floating_point()])
    if len(flat) <= N_SKETCHED:
        return flat
    signs = np.random.default_rng(0).integers(0, 2, len(flat), dtype=np.int8) * 2.0 - 1.0
    padded = np.pad(flat * signs, (0, -len(flat) % N_SKETCHED))
    return np.asarray(padded.reshape(-1, N_SKETCHED).sum(axis=0))


def _in_round(answers: Answers, probe: _Probe, round_index: int, before: Floats) -> Floats:
    """Squared distances of the heard clients' answers in a round that heard everyone, in units of their median."""
    models = answers.rounds[round_index].client_models
    apart = squared_distances(np.stack([probe.of(models[k]) - before for k in answers.heard.tolist()]))
    return np.asarray(apart / (_median(apart) or 1.0))


def _predicted(answers: Answers, probe: _Probe, before: Floats, of_rounds: Floats) -> Floats:
    """Mean squared distances of predicted changes; the prediction starts from clients equally far from each other."""
    heard, (rounds, clients) = answers.heard, answers.places
    equal = Likeness(_alike(1.0 - np.eye(answers.participants.shape[1]), WIDTH), of_rounds)
    process, points = update_process(equal, rounds, clients)
    changes = np.stack([probe.of(answers.model(a)) - before[rounds[a]] for a in points.tolist()])
    gram, apart = changes @ changes.T, np.zeros((len(heard), len(heard)))
    for round_index in range(len(before)):
        weights, _ = process.coefficients(heard, round_index)
        apart += _distances_of(weights @ gram @ weights.T)
    shares = _kinds(answers, changes)[:, heard]
    shares = shares / shares.sum(axis=0)  # (n_heard, n_heard): column i is the mean of the i-th kind
    return np.asarray(np.where(shares.T @ shares > 0, 0.0, shares.T @ apart @ shares))


def _kinds(answers: Answers, changes: Floats) -> Floats:
    """(n_heard, n_clients): row i has a 1 for every client of the kind of the i-th heard one: clients whose answers
    were the same in every round that any two of them share, and who share one with another of the kind."""
    rounds, clients = answers.places
    told: dict[int, dict[int, bytes]] = {client: {} for client in answers.heard.tolist()}
    for t, client, change in zip(rounds.tolist(), clients.tolist(), changes, strict=True):
        told[client][t] = change.tobytes()
    kinds: list[list[int]] = []
    for client, mine in told.items():
        fits = [kind for kind in kinds if _is_one_kind(mine, [told[other] for other in kind])]
        kinds.remove(fits[0]) if fits else None
        kinds.append([*fits[0], client] if fits else [client])
    same = np.zeros((answers.participants.shape[1],) * 2)
    for kind in kinds:
        same[np.ix_(kind, kind)] = 1.0
    return same[answers.heard]


def _is_one_kind(mine: dict[int, bytes], others: list[dict[int, bytes]]) -> bool:
    """Whether these answers by round equal all of the others' where they share a round, and share one."""
    shared = [mine[t] == other[t] for other in others for t in mine.keys() & other.keys()]
    return bool(shared) and all(shared)


def squared_distances(rows: Floats) -> Floats:
    """(n, n): ‖x_i − x_j‖², exactly 0 where two rows are equal."""
    first: dict[bytes, int] = {}
    equal = np.array([first.setdefault(row.tobytes(), i) for i, row in enumerate(rows)])
    return np.where(equal[:, None] == equal, 0.0, _distances_of(rows @ rows.T))


def _distances_of(gram: Floats) -> Floats:
    own = np.diag(gram)
    return np.asarray(np.maximum(own[:, None] + own - 2 * gram, 0))


def _alike(squared: Floats, width: float) -> Floats:
    """exp(−d²/(2 width² m²)), m² the median squared distance of two different ones."""
    return np.asarray(np.exp(-squared / (2 * width**2 * (_median(squared) or 1.0))))


def _median(squared: Floats) -> float:
    """The median over pairs; if most pairs are equal, over those that are not; 0 if all are."""
    pairs = squared[np.triu_indices(len(squared), 1)]
    if len(pairs) and np.median(pairs) > 0:
        return float(np.median(pairs))
    return float(np.median(pairs[pairs > 0])) if (pairs > 0).any() else 0.0
