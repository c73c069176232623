import json

import numpy as np
import pytest

from fedworth.cli.main import main
from fedworth.completion.completion_file import save_completion
from fedworth.completion.factors import complete
from fedworth.completion.models import complete_by_models
from fedworth.games.observe import observe
from fedworth.oracle.fast import FastOracle
from fedworth.pipeline.interactions import completed_game, interactions_of, shapiq_game
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of
from fedworth.valuation.interactions import shapley_interactions
from fedworth.valuation.shapley import shapley_values
from tests.support.games import game, matrix_of


@pytest.fixture
def completion():
    """Clients a and b hold the same; c adds to everyone; d was never heard."""
    utilities = game(4, lambda members: float(bool(members & {0, 1})) + 0.5 * (2 in members))
    participants = np.array([[1, 1, 1, 0], [1, 1, 1, 0]], dtype=bool)
    return complete(matrix_of(np.stack([utilities, 0.5 * utilities]), participants))


def test_copies_are_the_most_redundant_pair(completion):
    pairs = interactions_of(completion)
    assert [pair.index for pair in pairs] == sorted(pair.index for pair in pairs)
    assert {pairs[0].first, pairs[0].second} == {"a", "b"}
    assert pairs[0].index == pytest.approx(-1.5, rel=0.05)
    assert len(pairs) == 3  # d was never heard


def test_shapiq_finds_the_same_values_and_interactions(completion):
    """An outside check: the same game through another library's exact computer."""
    shapiq = pytest.importorskip("shapiq")
    totals, outside = completed_game(completion), shapiq_game(completion)
    computer = shapiq.ExactComputer(outside)
    values = computer("SV", 1)
    assert [values[(i,)] for i in range(3)] == pytest.approx(shapley_values(totals), abs=1e-9)
    pairs, ours = computer("SII", 2), shapley_interactions(totals)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert pairs[(i, j)] == pytest.approx(ours[i, j], abs=1e-9)
    banzhaf = computer("BV", 1)
    from fedworth.valuation.rivals.concepts import banzhaf_values

    assert [banzhaf[(i,)] for i in range(3)] == pytest.approx(banzhaf_values(totals), abs=1e-9)


def test_the_command_shows_pairs_of_a_run_or_of_a_completion(completion, tmp_path, capsys):
    save_completion(completion, tmp_path / "factors.npz")
    for place in (tmp_path, tmp_path / "factors.npz"):
        assert main(["interactions", str(place)]) == 0
        assert "redundant" in capsys.readouterr().out
    assert main(["interactions", str(tmp_path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["pairs"]) == 3


def test_a_folder_without_a_completion_is_an_error_in_words(tmp_path, capsys):
    assert main(["interactions", str(tmp_path)]) != 0
    assert "neither completion.npz nor factors.npz" in capsys.readouterr().err


def test_a_copied_client_and_its_source_interact_most_in_a_recorded_federation(tmp_path):
    """With fixed weights, where a copy adds what its source has added already; shapiq finds the same of this game."""
    shapiq = pytest.importorskip("shapiq")
    settings = SimulationSettings(n_clients=6, n_rounds=4, copies=((5, 0),), with_truth=False, test_limit=200)
    ledger = simulate(settings, tmp_path / "l")
    oracle = FastOracle(task_of(ledger))
    seen = observe(ledger, oracle, weighting="fixed")
    made = complete_by_models(ledger, oracle, seen, weighting="fixed")
    pairs = interactions_of(made)
    largest = max(pairs, key=lambda pair: abs(pair.index))
    assert (largest.first, largest.second) == ("0", "5")
    assert largest.index < 0
    outside = shapiq.ExactComputer(shapiq_game(made))("SII", 2)
    assert outside[(0, 5)] == pytest.approx(largest.index, abs=1e-9)
