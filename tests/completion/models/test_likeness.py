"""How alike clients are, by what the task has: logits, other outputs, or the updates themselves."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedworth.completion.models import likeness
from fedworth.completion.models.answers import answers_of
from fedworth.completion.models.complete import complete_by_models
from fedworth.completion.models.likeness import likeness_of
from fedworth.games.observe import observe
from fedworth.ledger.ledger import Ledger, open_ledger
from fedworth.ledger.writer import Answer, create_ledger
from fedworth.oracle.oracle import LoopOracle
from fedworth.simulation.simulate import simulate, task_of
from fedworth.task.task import Task

CLIENTS = tuple("abcd")
INPUTS = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))


def weight(seed: int) -> torch.Tensor:
    return torch.randn(1, 3, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    """a and b answer alike, c and d each otherwise; two of four in the later rounds."""
    writer = create_ledger(tmp_path / "l", CLIENTS, aggregation="uniform")
    start = torch.zeros(1, 3)
    for t in range(3):
        heard = CLIENTS if t == 0 else CLIENTS[t : t + 2]
        sent = {name: start + weight(max(1, CLIENTS.index(name))) + 0.1 * t for name in heard}
        writer.record_round({"weight": start}, {name: Answer({"weight": w}, 1) for name, w in sent.items()})
        start = torch.stack(list(sent.values())).mean(0)
    writer.close({"weight": start})
    return open_ledger(tmp_path / "l")


def regression() -> Task:
    return Task(nn.Linear(3, 1, bias=False), INPUTS, INPUTS.sum(1), loss="squared-error")


def own() -> Task:
    def utility(model):
        return -float(((INPUTS @ model["weight"].T)[:, 0] - INPUTS.sum(1)).square().mean())

    return Task.from_utility(utility, {"weight": torch.zeros(1, 3)})


@pytest.mark.parametrize(("task", "by"), [(regression(), "test outputs"), (own(), "updates")])
def test_one_output_tells_clients_apart_and_so_do_updates(ledger, task, by):
    """Centred over its only output, a regression would make all clients the same."""
    found = likeness_of(answers_of(ledger), task)
    assert found.compared_by == by
    assert found.of_clients[0, 1] == 1
    assert found.of_clients[0, 2] < 0.9
    assert found.of_rounds[0, 1] < 1


@pytest.mark.parametrize("task", [regression(), own()])
def test_distances_are_those_of_what_is_compared(ledger, task):
    answers = answers_of(ledger)
    sent = [answers.rounds[0].client_models[k]["weight"][0] for k in range(4)]
    rows = [(INPUTS @ w if task.loss == "squared-error" else w).double().numpy() for w in sent]
    apart = np.array([[((a - b) ** 2).sum() for b in rows] for a in rows])
    middle = np.median(apart[np.triu_indices(4, 1)])
    assert likeness_of(answers, task).of_clients == pytest.approx(np.exp(-apart / (2 * 0.6**2 * middle)), rel=1e-4)


@pytest.mark.parametrize("task", [regression(), own()])
def test_a_completion_says_what_it_compared(ledger, task):
    oracle = LoopOracle(task)
    made = complete_by_models(ledger, oracle, observe(ledger, oracle))
    assert made.summary()["compared_by"] == likeness_of(answers_of(ledger), task).compared_by
    assert np.isfinite(made.cells).all()


def test_regression_and_the_same_as_a_function_complete_to_nearly_the_same(ledger):
    cells = [
        complete_by_models(ledger, LoopOracle(task), observe(ledger, LoopOracle(task))).cells
        for task in (regression(), own())
    ]
    assert np.corrcoef(cells[0].ravel(), cells[1].ravel())[0, 1] > 0.95


def test_large_models_are_sketched_and_keep_their_distances():
    rng = np.random.default_rng(0)
    models = [{"w": torch.from_numpy(rng.normal(size=200_000))} for _ in range(2)]
    a, b = (likeness._sketch(model) for model in models)
    assert len(a) == likeness.N_SKETCHED
    far = float(((models[0]["w"] - models[1]["w"]) ** 2).sum())
    assert ((a - b) ** 2).sum() == pytest.approx(far, rel=6 * np.sqrt(2 / likeness.N_SKETCHED))


def test_without_everyone_heard_clients_that_share_a_round_and_answer_alike_are_of_one_kind(tiny_settings, tmp_path):
    """Client 4 is a copy of client 0; nobody else has anyone's data."""
    unheard = replace(tiny_settings, everyone_heard=False, n_rounds=6, seed=0)
    ledger = simulate(unheard, tmp_path / "ledger")
    assert ledger.n_rounds == 6
    answers = answers_of(ledger)
    assert answers.participants[:, [0, 4]].all(axis=1).any()
    assert not answers.participants.all(axis=1).any()
    found = likeness_of(answers, task_of(ledger))
    expected = np.eye(5, dtype=bool)
    expected[0, 4] = expected[4, 0] = True
    assert (found.same_kind == expected).all()
    np.testing.assert_array_equal(found.of_clients[0, 1:4], found.of_clients[4, 1:4])
    assert (np.linalg.eigvalsh(found.of_clients) > -1e-9).all()


def test_one_different_answer_tells_two_clients_apart():
    same, other = b"same", b"other"
    assert likeness._is_one_kind({1: same, 2: same}, [{2: same, 3: other}])
    assert not likeness._is_one_kind({1: same, 2: same}, [{1: same, 2: other}])
    assert not likeness._is_one_kind({1: same}, [{2: same}])
