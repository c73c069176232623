"""How similar two clients are, and two global models, by their outputs on the server's test set.

    C_ij = exp(−d_ij²/(2 (.6 m)²))              d: distance of the changes that two updates make to the test outputs
    E_ts = exp(−‖f(w^t) − f(w^s)‖²/(2 m'))      f: test outputs of a global model

m is the median distance of two clients, m' the median squared distance of two rounds. In an all-clients round, every
update starts from the same global model; if there are several such rounds, their squared distances are averaged, each
divided by its median. Without one, distances are predicted: the process of updates, with all clients equally similar,
predicts every client's change of the outputs in every round, and the mean squared distance of the changes counts.
Clients with identical updates in all common rounds, of which there is at least one, are then treated as duplicates:
their distance is 0.

Outputs are logits, centred over the classes, or other outputs as they are. If the task is a utility function without
outputs, the models' parameters are compared.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from fedworth.arrays import Floats, Indices
from fedworth.completion.models.gaussian_process import Similarity, update_process
from fedworth.completion.models.updates import Updates
from fedworth.ledger.ledger import Model
from fedworth.oracle.oracle import batch_size, fitted_model
from fedworth.task.modules import UtilityModule
from fedworth.task.task import Task

WIDTH = 0.6
PARAMETERS = "updates"
N_SKETCHED = 1 << 14
MOST_SAMPLES = 1000
"""Test samples on which outputs are compared; more would hardly change the similarities."""


def measure_similarity(updates: Updates, task: Task) -> Similarity:
    """How similar the clients and the rounds of a federation are."""
    before = np.stack([_outputs(task, round_.global_model) for round_ in updates.opened])  # (n_rounds, n_numbers)
    of_rounds = _similarity(squared_distances(before), 1.0)
    heard, n_clients = np.unique(updates.clients), updates.participants.shape[1]
    all_clients_rounds = np.flatnonzero(updates.participants[:, heard].all(axis=1))
    if len(all_clients_rounds):
        apart = np.zeros((len(heard), len(heard)))
        for t in all_clients_rounds.tolist():
            models = updates.opened[t].client_models
            squared = squared_distances(np.stack([_outputs(task, models[k]) - before[t] for k in heard.tolist()]))
            apart += squared / (_median(squared) or 1.0)
    else:
        apart = _predicted_distances(updates, task, before, of_rounds, heard)
    of_clients = np.eye(n_clients)
    of_clients[np.ix_(heard, heard)] = _similarity(apart, WIDTH)
    return Similarity(of_clients, of_rounds, compared_by(task))


def compared_by(task: Task) -> str:
    """What is compared of two models."""
    if isinstance(task.module, UtilityModule):
        return PARAMETERS
    return "test logits" if task.judged_by.over_classes is not None else "test outputs"


def _outputs(task: Task, model: Model) -> Floats:
    """(n_numbers,): a model's outputs on evenly spaced test samples; for a utility function its parameters."""
    if compared_by(task) == PARAMETERS:
        return sketch(model)
    some = torch.arange(0, len(task.labels), -(-len(task.labels) // MOST_SAMPLES), device=task.device)
    model = fitted_model(model, task)
    with torch.inference_mode():
        found = torch.cat([task.outputs(model, part) for part in some.split(batch_size(task, model))]).to(torch.float64)
    classes = task.judged_by.over_classes
    if classes is not None and found.shape[classes] > 1:
        found = found - found.mean(dim=classes, keepdim=True)
    return np.asarray(found.cpu().numpy().ravel())


def sketch(model: Model) -> Floats:
    """(N_SKETCHED,): sums of a model's parameters with random signs, which keep squared distances on average.

    Models with fewer parameters are taken as they are.
    """
    flat = np.concatenate([t.detach().reshape(-1).double().numpy() for t in model.values() if t.is_floating_point()])
    if len(flat) <= N_SKETCHED:
        return flat
    signs = np.random.default_rng(0).integers(0, 2, len(flat), dtype=np.int8) * 2.0 - 1.0
    padded = np.pad(flat * signs, (0, -len(flat) % N_SKETCHED))
    return np.asarray(padded.reshape(-1, N_SKETCHED).sum(axis=0))


def _predicted_distances(updates: Updates, task: Task, before: Floats, of_rounds: Floats, heard: Indices) -> Floats:
    """(n_heard, n_heard): mean squared distances of predicted changes, starting from equally similar clients."""
    n_clients = updates.participants.shape[1]
    equal = Similarity(_similarity(1.0 - np.eye(n_clients), WIDTH), of_rounds)
    process = update_process(equal, updates.rounds, updates.clients)
    changes = np.stack([_outputs(task, updates.model(a)) - before[t] for a, t in enumerate(updates.rounds.tolist())])
    gram, apart = changes @ changes.T, np.zeros((len(heard), len(heard)))
    for t in range(len(before)):
        weights = process.predict(heard, t)[0]
        apart += _distances(weights @ gram @ weights.T)
    groups = _identical(updates, changes, heard)  # (n_heard, n_heard)
    shares = groups / groups.sum(axis=0)  # column i averages over the duplicates of client i
    return np.where(groups, 0.0, shares.T @ apart @ shares)


def _identical(updates: Updates, changes: Floats, heard: Indices) -> NDArray[np.bool_]:
    """(n_heard, n_heard): whether two clients are duplicates, grouped so that the relation is transitive."""
    sent: dict[int, dict[int, bytes]] = {client: {} for client in heard.tolist()}
    for t, client, change in zip(updates.rounds.tolist(), updates.clients.tolist(), changes, strict=True):
        sent[client][t] = change.tobytes()
    groups: list[list[int]] = []
    known = list(sent.values())
    for place, mine in enumerate(known):
        for group in groups:
            common = [mine[t] == known[k][t] for k in group for t in mine.keys() & known[k].keys()]
            if common and all(common):  # equal in all common rounds, of which there is at least one
                group.append(place)
                break
        else:
            groups.append([place])
    same = np.zeros((len(heard), len(heard)), dtype=bool)
    for group in groups:
        same[np.ix_(group, group)] = True
    return same


def squared_distances(rows: Floats) -> Floats:
    """(n, n): ‖x_i − x_j‖², exactly 0 where two rows are equal."""
    first: dict[bytes, int] = {}
    equal = np.array([first.setdefault(row.tobytes(), i) for i, row in enumerate(rows)])
    return np.where(equal[:, None] == equal, 0.0, _distances(rows @ rows.T))


def _distances(gram: Floats) -> Floats:
    own = np.diag(gram)
    return np.asarray(np.maximum(own[:, None] + own - 2 * gram, 0))


def _similarity(squared: Floats, width: float) -> Floats:
    """exp(−d²/(2 width² m²)), m² the median squared distance."""
    return np.asarray(np.exp(-squared / (2 * width**2 * (_median(squared) or 1.0))))


def _median(squared: Floats) -> float:
    """The median over pairs; over pairs that differ if most are equal; 0 if all are."""
    pairs = squared[np.triu_indices(len(squared), 1)]
    if len(pairs) and np.median(pairs) > 0:
        return float(np.median(pairs))
    return float(np.median(pairs[pairs > 0])) if (pairs > 0).any() else 0.0
