"""Pairs that are alike are named where one stands out, and not where clients come in kinds."""

import numpy as np
import pytest

from fedworth.findings import SIMILAR, findings
from fedworth.findings.similarity import MOST_CONFIDENCE, similar_pairs
from fedworth.findings.traces import RoundTrace, trace_of
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate

SHARED = 3.0


def trace(updates) -> RoundTrace:
    n, rows = len(updates), np.asarray(updates, dtype=float)
    zeros = np.zeros(n + 1)
    return RoundTrace(tuple(range(n)), ("",) * (n + 1), zeros, zeros, np.zeros((n + 1, 64)), 1e-7, 1, rows @ rows.T)


@pytest.fixture
def drawn():
    """Ten clients that share a direction, and each has noise of its own."""
    rng = np.random.default_rng(5)
    return SHARED * np.eye(200)[0] + rng.normal(size=(10, 200)) / np.sqrt(200), rng


def test_nobody_is_alike_by_chance(drawn):
    assert similar_pairs(trace(drawn[0])) == []


def test_a_copy_with_other_batches_stands_out(drawn):
    updates, rng = drawn
    updates[9] = updates[0] + 0.7 * rng.normal(size=200) / np.sqrt(200)
    ((clients, _, confidence),) = similar_pairs(trace(updates))
    assert clients == (0, 9)
    assert 0.9 < confidence <= MOST_CONFIDENCE


def test_a_long_update_changes_nothing(drawn):
    updates, rng = drawn
    updates[9] = updates[0] + 0.7 * rng.normal(size=200) / np.sqrt(200)
    updates[4] *= 20
    assert [clients for clients, _, _ in similar_pairs(trace(updates))] == [(0, 9)]


def test_where_clients_come_in_kinds_nothing_is_said(drawn):
    """Three pairs of one kind each: any of them could be a copy."""
    updates, rng = drawn
    for first, second in ((0, 9), (1, 8), (2, 7)):
        updates[second] = updates[first] + 0.5 * rng.normal(size=200) / np.sqrt(200)
    assert similar_pairs(trace(updates)) == []
    updates[9] = updates[0] + 1e-4 * rng.normal(size=200)  # hardly anything tells these apart
    assert [clients for clients, _, _ in similar_pairs(trace(updates))] == [(0, 9)]


def test_few_answers_have_too_few_pairs(drawn):
    assert similar_pairs(trace([drawn[0][0]] * 7)) == []


def test_copies_with_other_batches_in_a_simulated_federation(tmp_path):
    settings = SimulationSettings(
        copies=((9, 0),),
        copies_shuffled=True,
        partition="iid",
        batch_size=32,
        n_rounds=2,
        with_truth=False,
        seed=3,
    )
    (found,) = findings(simulate(settings, tmp_path / "l"))
    assert (found.kind, found.clients) == (SIMILAR, ("0", "9"))


def test_products_that_take_too_long_are_left_out_and_nothing_is_said(tiny_ledger, monkeypatch):
    monkeypatch.setattr("fedworth.findings.traces.MOST_PRODUCTS", 10)
    trace = trace_of(tiny_ledger.open_round(0))
    assert trace.products is None
    assert similar_pairs(trace) == []
