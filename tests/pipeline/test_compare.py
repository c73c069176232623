"""Methods side by side on one ledger, and pairs of clients."""

import numpy as np
import pytest

import fedworth
from fedworth.errors import TooManyError, UsageError, ValuationError
from fedworth.games.effort import shapley
from fedworth.games.rules import banzhaf
from fedworth.games.shapley import interactions as interaction_matrix
from fedworth.pipeline.compare import completed_game, everyday_methods
from fedworth.valuation.methods import METHODS, OF_EMBEDDINGS, Method


def test_every_method_on_one_ledger_with_its_cost_and_its_distance_from_the_truth(tiny_ledger, tiny_task):
    names = [name for name in METHODS if name not in {"truth", *OF_EMBEDDINGS}]
    rows = fedworth.compare(tiny_ledger, tiny_task, names=names, copies=(("4", "0"),))
    assert [row.method for row in rows] == names
    for row in rows:
        assert row.refusal is None
        assert row.rank_correlation is not None
        assert (row.error is None) == (row.method == "cosine")
        assert row.copies_gap is not None
        assert row.copies_gap >= 0
    by_name = {row.method: row for row in rows}
    assert by_name["fedsv"].n_evaluations == by_name["comfedsv"].n_evaluations == 31 + 3 + 3
    assert by_name["comfedsv-models"].n_evaluations > 37
    assert by_name["comfedsv-models"].copies_gap == pytest.approx(0, abs=1e-6)
    assert by_name["cosine"].n_evaluations == 0


def test_the_values_are_those_of_a_federation(tiny_ledger, tiny_task):
    (row,) = fedworth.compare(tiny_ledger, tiny_task, names=["fedsv"])
    work = fedworth.WorkSettings(cache=False)
    expected = fedworth.Federation(tiny_ledger, tiny_task, work=work).value("fedsv").values
    assert row.valuation is not None
    assert row.valuation.values.tobytes() == expected.tobytes()


def test_a_method_that_is_refused_says_why_and_the_others_go_on(tiny_ledger, tiny_task, monkeypatch):
    def fail(_):
        raise ValuationError("not today")

    monkeypatch.setitem(METHODS, "moody", Method("Moody", "refuses", fail))
    fedworth.valuation.methods.methods.cache_clear()
    refused, made = fedworth.compare(tiny_ledger, tiny_task, names=["moody", "influence"])
    fedworth.valuation.methods.methods.cache_clear()
    assert refused.refusal == "not today"
    assert refused.document()["values"] is None
    assert np.isfinite(made.document()["values"]).all()


def test_no_method_and_an_unknown_one_are_errors(tiny_ledger, tiny_task):
    with pytest.raises(UsageError, match="no method to compare"):
        fedworth.compare(tiny_ledger, tiny_task, names=[])
    with pytest.raises(UsageError, match="gtg"):
        fedworth.compare(tiny_ledger, tiny_task, names=["gtx"])


def test_retraining_and_the_truth_are_left_out_unless_asked_for():
    assert set(METHODS) - set(everyday_methods()) == {"retraining", "truth"}


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Six clients, the last a copy of the first; fixed weights, with which a copy adds what its source has added."""
    settings = fedworth.SimulationSettings(n_clients=6, n_rounds=4, copies=((5, 0),), with_truth=False, test_limit=200)
    ledger = fedworth.simulate(settings, tmp_path_factory.mktemp("pairs") / "l")
    return fedworth.Federation(ledger, fedworth.task_of(ledger), fedworth.ValuationSettings(weighting="fixed"))


def test_a_client_and_its_copy_interact_most(federation):
    pairs = fedworth.interactions(federation)
    assert len(pairs) == 15
    assert [pair.index for pair in pairs] == sorted(pair.index for pair in pairs)
    largest = max(pairs, key=lambda pair: abs(pair.index))
    assert (largest.first, largest.second) == ("0", "5")
    assert largest.index < 0


def test_shapiq_finds_the_same_values_and_interactions(federation):
    """An outside check: the same game through another library's exact computer."""
    shapiq = pytest.importorskip("shapiq")
    game = completed_game(federation)
    computer = shapiq.ExactComputer(fedworth.shapiq_game(federation))
    rng = np.random.default_rng(0)
    for index, rule in (("SV", shapley), ("BV", banzhaf)):
        found = computer(index, 1)
        assert [found[(i,)] for i in range(6)] == pytest.approx(rule(game, rng).totals, abs=1e-9)
    pairs, ours = computer("SII", 2), interaction_matrix(game)
    for i, j in ((0, 1), (0, 5), (2, 3)):
        assert pairs[(i, j)] == pytest.approx(ours[i, j], abs=1e-9)


def test_pairs_of_many_clients_are_refused(tmp_path):
    settings = fedworth.SimulationSettings(
        n_clients=13, n_rounds=1, n_participants=2, partition="iid", train_limit=130, test_limit=40, with_truth=False
    )
    ledger = fedworth.simulate(settings, tmp_path / "l")
    with pytest.raises(TooManyError, match="13 clients"):
        fedworth.interactions(fedworth.Federation(ledger, fedworth.task_of(ledger)))
