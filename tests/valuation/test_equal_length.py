"""Values at equal length: as if every update had the median length of its round; who gains by length is named."""

import numpy as np
import pytest
import torch

from fedworth import Federation, ValuationSettings, WorkSettings, report_on
from fedworth.findings import LONG
from fedworth.ledger.ledger import Round
from fedworth.ledger.writer import Answer
from fedworth.oracle.oracle import LoopOracle
from fedworth.oracle.weighting import mixtures
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of
from tests.support.games import shapley_by_definition

SETTINGS = SimulationSettings(
    n_clients=6, n_participants=6, n_rounds=4, partition="iid", model="mlp", hidden=(16,), rate=0.1, batch_size=32,
    aggregation="samples", with_truth=False, seed=1000,
)  # fmt: skip
PLAIN = WorkSettings(cache=False, n_threads=1)
AS_SENT, CLIPPED = ValuationSettings(weighting="samples"), ValuationSettings(weighting="samples", clip="median")


def four_times(_round_index, start, answers):
    """Client 0 sends an update four times as long as the one it trained."""
    honest = answers["0"]
    model = {name: start[name] + 4 * (tensor - start[name]) for name, tensor in honest.model.items()}
    return {**answers, "0": Answer(model, honest.n_samples)}


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    return simulate(SETTINGS, tmp_path_factory.mktemp("length") / "ledger", misconduct=four_times)


@pytest.fixture(scope="module")
def task(ledger):
    return task_of(ledger)


def rescaled(round_):
    """The round's models at the median length, by hand."""
    start = torch.cat([tensor.flatten() for tensor in round_.global_model.values()])
    flat = {k: torch.cat([t.flatten() for t in model.values()]) - start for k, model in round_.client_models.items()}
    median = float(np.median([float(update.norm()) for update in flat.values()]))
    return {
        k: {
            name: round_.global_model[name] + (median / float(flat[k].norm())) * (tensor - round_.global_model[name])
            for name, tensor in model.items()
        }
        for k, model in round_.client_models.items()
    }


@pytest.mark.parametrize(
    ("method", "settings"), [("fedsv-equal", AS_SENT), ("fedsv", CLIPPED), ("comfedsv-models", CLIPPED)]
)
def test_values_at_equal_length_are_those_of_rescaled_models(ledger, task, method, settings):
    made = Federation(ledger, task, settings, work=PLAIN).value(method)
    expected = np.zeros(6)
    everyone = (np.arange(64)[:, None] >> np.arange(6)) % 2 == 1
    for round_ in ledger.rounds():
        counts = np.array(round_.entry.sample_counts, dtype=float)
        same = Round(round_.entry, round_.global_model, rescaled(round_), {})
        cells = LoopOracle(task).utilities(same, mixtures(everyone, counts, "samples")).sum(axis=1)
        expected += shapley_by_definition(cells)
    assert made.values == pytest.approx(expected, abs=1e-6)


def test_who_gains_by_length_is_named_and_gains_nothing_when_clipped(ledger, task, tmp_path):
    report = report_on(ledger, task, AS_SENT, work=PLAIN)
    (found,) = [found for found in report.all_findings if found.kind is LONG]
    assert found.clients == ("0",)
    assert found.evidence["share"] > 2 * found.evidence["equal"]
    assert found.evidence["ratio"] > 3
    clipped = report_on(ledger, task, CLIPPED, work=PLAIN)
    assert report.chosen.shares[0] > 0.4
    assert clipped.chosen.shares[0] < 0.3
    assert [one for one in clipped.all_findings if one.kind is LONG] == []
    assert LONG in clipped.not_looked_for
    assert "median length" in " ".join(clipped.all_notes)
    clean = simulate(SETTINGS, tmp_path / "clean")
    assert LONG not in {one.kind for one in report_on(clean, task, work=PLAIN).all_findings}


def test_kept_utilities_of_one_length_do_not_answer_for_the_other(ledger, task):
    for settings in (AS_SENT, CLIPPED):
        plain = Federation(ledger, task, settings, work=PLAIN)
        for _ in range(2):  # measured, then read
            kept = Federation(ledger, task, settings, work=WorkSettings(n_threads=1))
            for method in ("fedsv", "fedsv-equal"):
                assert kept.value(method).values == pytest.approx(plain.value(method).values, abs=1e-9)


def test_models_of_one_round_are_rescaled_once_and_those_of_another_forgotten(ledger, task):
    recorded = Federation(ledger, task, CLIPPED, work=PLAIN).recorded.at_equal_length
    first, second = (recorded.round(t).client_models for t in (0, 1))
    model = first[0]
    assert first[0] is model
    expected = rescaled(ledger.open_round(0))[0]
    assert all(torch.allclose(tensor, expected[name], atol=1e-6) for name, tensor in model.items())
    assert second[0] is not model
    assert first[0] is not model
