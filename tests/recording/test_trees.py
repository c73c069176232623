"""Coalitions of a server that adds up what its clients send, as one that appends trees: exact."""

from dataclasses import replace

import numpy as np
import pytest

import fedworth
from fedworth.games.shapley import shapley_values
from fedworth.task.rules import Sum, WeightedMean

N_SAMPLES, N_CLIENTS = 400, 12


@pytest.fixture
def recorded(tmp_path):
    """(the ledger of one round, its task, what each client's trees add to each margin)."""
    rng = np.random.default_rng(0)
    labels = (rng.random(N_SAMPLES) < 0.5).astype(float)
    updates = 0.1 * (labels - 0.5) + 0.3 * rng.normal(size=(N_CLIENTS, N_SAMPLES))
    recorder, start = fedworth.record_into(tmp_path / "l", rule=Sum()), np.full(N_SAMPLES, 0.2)
    recorder.start_round({"margins": start}, asked=[f"c{k}" for k in range(N_CLIENTS)])
    for k, update in enumerate(updates):
        recorder.client_model(f"c{k}", {"margins": start + update}, 1 + k)
    recorder.end_round()
    recorder.close({"margins": start + updates.sum(axis=0)})
    task = fedworth.Trees(np.zeros((N_SAMPLES, 1)), labels).task()
    return fedworth.Ledger.open(tmp_path / "l"), task, start, updates


def test_values_are_those_of_sums_whatever_the_clients_weigh(recorded):
    ledger, task, start, updates = recorded
    members = (np.arange(2**N_CLIENTS)[:, None] >> np.arange(N_CLIENTS)) & 1  # (2^n, n)
    margins = start + members @ updates
    losses = (np.logaddexp(0, margins) - task.labels.numpy() * margins).mean(axis=1)
    found = fedworth.Federation(ledger, task).value("fedsv").values
    assert found == pytest.approx(shapley_values(losses[0] - losses), abs=1e-9)
    assert found.sum() == pytest.approx(losses[0] - losses[-1])


def test_a_server_that_averaged_margins_is_refused(recorded):
    ledger, task, *_ = recorded
    with pytest.raises(fedworth.FedworthError, match="the recorded next model is not"):
        fedworth.Federation(ledger, replace(task, rule=WeightedMean())).value("fedsv")
