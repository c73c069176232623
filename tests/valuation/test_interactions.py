"""Pairs of clients, and everyone's game for shapiq."""

import numpy as np
import pytest

import fedworth
from fedworth.errors import TooManyError
from fedworth.games.effort import shapley
from fedworth.games.rules import banzhaf
from fedworth.games.shapley import interactions as interaction_matrix
from fedworth.valuation.interactions import whole_game


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Six clients, the last a copy of the first; fixed weights, with which a copy adds what its source has added."""
    settings = fedworth.SimulationSettings(n_clients=6, n_rounds=4, copies=((5, 0),), with_truth=False, test_limit=200)
    ledger = fedworth.simulate(settings, tmp_path_factory.mktemp("pairs") / "l")
    return fedworth.Federation(ledger, fedworth.task_of(ledger), fedworth.ValuationSettings(weighting="fixed"))


def test_a_client_and_its_copy_interact_most(federation):
    pairs = federation.interactions()
    assert len(pairs) == 15
    assert [pair.index for pair in pairs] == sorted(pair.index for pair in pairs)
    largest = max(pairs, key=lambda pair: abs(pair.index))
    assert (largest.first, largest.second) == ("0", "5")
    assert largest.index < 0


def test_shapiq_finds_the_same_values_and_interactions(federation):
    """An outside check: the same game through another library's exact computer."""
    shapiq = pytest.importorskip("shapiq")
    game = whole_game(federation)
    computer = shapiq.ExactComputer(federation.shapiq_game())
    rng = np.random.default_rng(0)
    for index, rule in (("SV", shapley), ("BV", banzhaf)):
        found = computer(index, 1)
        assert [found[(i,)] for i in range(6)] == pytest.approx(rule(game, rng).totals, abs=1e-9)
    pairs, ours = computer("SII", 2), interaction_matrix(game)
    for i, j in ((0, 1), (0, 5), (2, 3)):
        assert pairs[(i, j)] == pytest.approx(ours[i, j], abs=1e-9)


def test_pairs_of_a_vertical_federation_are_those_of_the_refitted_head_also_with_absent_clients(tmp_path):
    settings = fedworth.SimulationSettings(
        partition="vertical", n_clients=4, n_participants=2, n_rounds=4, copies=((3, 0),), train_limit=200,
        test_limit=100, n_steps=4,
    )  # fmt: skip
    ledger = fedworth.simulate(settings, tmp_path / "l")
    federation = fedworth.Federation(ledger, fedworth.task_of(ledger), work=fedworth.WorkSettings(cache=False))
    first = federation.interactions()[0]
    assert (first.first, first.second) == ("0", "3")
    assert first.index < 0
    values = shapley(whole_game(federation), np.random.default_rng(0)).totals
    assert values == pytest.approx(federation.value("refitted-head").values, abs=1e-12)


def test_pairs_of_many_clients_are_refused(tmp_path):
    settings = fedworth.SimulationSettings(
        n_clients=13, n_rounds=1, n_participants=2, partition="iid", train_limit=130, test_limit=40, with_truth=False
    )
    ledger = fedworth.simulate(settings, tmp_path / "l")
    with pytest.raises(TooManyError, match="13 clients"):
        fedworth.Federation(ledger, fedworth.task_of(ledger)).interactions()
