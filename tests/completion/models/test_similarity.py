"""How similar clients are, by what the task has: logits, other outputs, or the parameters themselves."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedworth.completion.models.similarity import N_SKETCHED, measure_similarity, sketch
from fedworth.completion.models.updates import Updates
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.writer import Answer, LedgerWriter
from fedworth.oracle.weighting import participation
from fedworth.simulation.simulate import simulate, task_of
from fedworth.task.task import Task

CLIENTS = tuple("abcd")
INPUTS = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))


def updates_of(ledger: Ledger) -> Updates:
    return Updates(tuple(ledger.rounds()), participation(ledger))


def weight(seed: int) -> torch.Tensor:
    return torch.randn(1, 3, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    """Clients a and b send the same updates, c and d others; two of four take part in later rounds."""
    writer = LedgerWriter.create(tmp_path / "l", CLIENTS, aggregation="uniform")
    start = torch.zeros(1, 3)
    for t in range(3):
        heard = CLIENTS if t == 0 else CLIENTS[t : t + 2]
        sent = {name: start + weight(max(1, CLIENTS.index(name))) + 0.1 * t for name in heard}
        writer.record_round({"weight": start}, {name: Answer({"weight": w}, 1) for name, w in sent.items()})
        start = torch.stack(list(sent.values())).mean(0)
    writer.close({"weight": start})
    return Ledger.open(tmp_path / "l")


def regression() -> Task:
    return Task(nn.Linear(3, 1, bias=False), INPUTS, INPUTS.sum(1), loss="squared-error")


def own() -> Task:
    def utility(model):
        return -float(((INPUTS @ model["weight"].T)[:, 0] - INPUTS.sum(1)).square().mean())

    return Task.from_utility(utility, {"weight": torch.zeros(1, 3)})


@pytest.mark.parametrize(("task", "by"), [(regression(), "test outputs"), (own(), "updates")])
def test_a_single_output_distinguishes_clients_and_so_do_parameters(ledger, task, by):
    """Centred over its only output, a regression would make all clients equal."""
    found = measure_similarity(updates_of(ledger), task)
    assert found.compared_by == by
    assert found.of_clients[0, 1] == 1
    assert found.of_clients[0, 2] < 0.9
    assert found.of_rounds[0, 1] < 1


@pytest.mark.parametrize("task", [regression(), own()])
def test_distances_are_those_of_what_is_compared(ledger, task):
    updates = updates_of(ledger)
    sent = [updates.opened[0].client_models[k]["weight"][0] for k in range(4)]
    rows = [(INPUTS @ w if task.loss == "squared-error" else w).double().numpy() for w in sent]
    apart = np.array([[((a - b) ** 2).sum() for b in rows] for a in rows])
    middle = np.median(apart[np.triu_indices(4, 1)])
    assert measure_similarity(updates, task).of_clients == pytest.approx(
        np.exp(-apart / (2 * 0.6**2 * middle)), rel=1e-4
    )


def test_large_models_are_sketched_and_keep_their_distances():
    rng = np.random.default_rng(0)
    models = [{"w": torch.from_numpy(rng.normal(size=200_000))} for _ in range(2)]
    a, b = (sketch(model) for model in models)
    assert len(a) == N_SKETCHED
    far = float(((models[0]["w"] - models[1]["w"]) ** 2).sum())
    assert ((a - b) ** 2).sum() == pytest.approx(far, rel=6 * np.sqrt(2 / N_SKETCHED))


def test_without_an_all_clients_round_clients_with_equal_updates_in_common_rounds_are_duplicates(
    tiny_settings, tmp_path
):
    """Client 4 is a copy of client 0; the others have data of their own."""
    unheard = replace(tiny_settings, everyone_heard=False, n_rounds=6, seed=0)
    ledger = simulate(unheard, tmp_path / "ledger")
    assert ledger.n_rounds == 6
    updates = updates_of(ledger)
    assert updates.participants[:, [0, 4]].all(axis=1).any()
    assert not updates.participants.all(axis=1).any()
    found = measure_similarity(updates, task_of(ledger))
    expected = np.eye(5, dtype=bool)
    expected[0, 4] = expected[4, 0] = True
    assert (found.duplicates == expected).all()
    np.testing.assert_array_equal(found.of_clients[0, 1:4], found.of_clients[4, 1:4])
    assert (np.linalg.eigvalsh(found.of_clients) > -1e-9).all()


def test_one_different_update_tells_two_clients_apart(tmp_path):
    """Clients a and b send the same update in round 1 and different ones in round 2; nobody hears all three."""
    writer = LedgerWriter.create(tmp_path / "l", ("a", "b", "c"), aggregation="uniform")
    start = {"weight": torch.zeros(1, 3)}
    for sent in ({"a": 1, "b": 1}, {"a": 1, "b": 2}, {"c": 3}):
        writer.record_round(start, {name: Answer({"weight": weight(seed)}, 1) for name, seed in sent.items()})
    writer.close(start)
    found = measure_similarity(updates_of(Ledger.open(tmp_path / "l")), regression())
    assert (found.duplicates == np.eye(3, dtype=bool)).all()
