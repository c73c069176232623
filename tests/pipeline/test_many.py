"""Many clients: more than can be enumerated are valued by default, each value with its standard error."""

import json
from dataclasses import replace

import numpy as np
import pytest

import fedworth
from fedworth.cli.main import main
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.writer import Answer, LedgerWriter
from fedworth.valuation.uncertainty import Source

MANY = fedworth.SimulationSettings(
    n_clients=16, n_participants=14, n_rounds=2, partition="iid", train_limit=320, test_limit=60, seed=5
)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    return fedworth.simulate(MANY, tmp_path_factory.mktemp("many") / "ledger")


@pytest.fixture(scope="module")
def federation(ledger):
    return fedworth.Federation(ledger, fedworth.task_of(ledger))


@pytest.mark.parametrize("method", ["comfedsv-models", "comfedsv", "fedsv", "truth", "all-clients-round"])
def test_every_method_values_everyone_with_a_standard_error(federation, method):
    found = federation.value(method)
    assert np.isfinite(found.values).all()
    assert found.standard_errors is not None
    if method == "comfedsv":  # its errors are measured by the values by models, whatever they come from
        assert found.covered == (Source.ESTIMATES, Source.TEST_SET)
        return
    assert found.sampling_errors is not None
    assert (found.sampling_errors > 0).all()
    assert (found.standard_errors > found.sampling_errors).all()


@pytest.mark.parametrize("method", ["comfedsv-models", "fedsv"])
def test_values_share_out_what_everyone_together_achieves(federation, method):
    """Each round's values sum to the utility of its players, whatever was drawn; a value is the sum of its rounds."""
    found = federation.value(method)
    assert found.by_round is not None
    np.testing.assert_allclose(found.by_round.sum(axis=0), found.values, rtol=0, atol=1e-9)
    first = federation.game(0).utilities(np.ones((1, 16), dtype=bool)).sum()  # everyone took part in the first round
    assert found.by_round[0].sum() == pytest.approx(first, abs=1e-6)
    absent = ~federation.participants[1]
    assert (found.by_round[1, absent] == 0).all() == (method == "fedsv")


def test_the_command_gives_the_same_values(ledger, federation, capsys):
    assert main(["value", str(ledger.folder), "--method", "fedsv", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    np.testing.assert_allclose(found["values"], federation.value("fedsv").values, rtol=0, atol=1e-6)


def test_sampled_values_agree_with_exact_ones(tmp_path):
    """The same federation both ways: the difference is within what the standard errors say."""
    settings = replace(MANY, n_clients=9, n_participants=8, n_rounds=2, train_limit=270, model="mlp", hidden=(8,))
    ledger = fedworth.simulate(settings, tmp_path / "ledger")
    exact = fedworth.Federation(ledger, fedworth.task_of(ledger)).value("fedsv")
    work = fedworth.WorkSettings(cache=False)  # what is measured is not known already
    drawn = fedworth.Federation(ledger, fedworth.task_of(ledger), work=work, sampled=True).value("fedsv")
    assert any("coalitions are sampled" in note for note in drawn.notes)
    assert exact.sampling_errors is None
    assert drawn.sampling_errors is not None
    scale = np.maximum(drawn.sampling_errors, 1e-6)
    assert (np.abs(drawn.values - exact.values) / scale).max() < 5  # nine values, standard errors that are estimates


def test_another_measure_is_estimated_too(ledger):
    settings = fedworth.ValuationSettings(measure="accuracy")
    found = fedworth.Federation(ledger, fedworth.task_of(ledger), settings).value("fedsv")
    assert np.isfinite(found.values).all()


def test_other_rules_are_estimated_within_a_budget_and_repeat(ledger):
    names = ["banzhaf", "beta-shapley", "least-core"]
    rows = {row.method: row for row in fedworth.compare(ledger, fedworth.task_of(ledger), names=names)}
    for name in names:
        found = rows[name].valuation
        assert found is not None
        assert np.isfinite(found.values).all()
        assert rows[name].n_evaluations < MANY.n_rounds * 2**MANY.n_clients / 20
    (again,) = fedworth.compare(ledger, fedworth.task_of(ledger), names=["banzhaf"])
    assert again.document()["values"] == rows["banzhaf"].document()["values"]


def test_a_round_that_nobody_answered_adds_nothing(ledger, tmp_path):
    writer = LedgerWriter.create(tmp_path / "longer", ledger.clients, aggregation="uniform")
    for t, round_ in enumerate(ledger.rounds()):
        answers = {ledger.clients[k]: Answer(round_.client_models[k], 1) for k in ledger.participants(t)}
        writer.record_round(round_.global_model, answers)
    writer.record_round(ledger.final_model(), {})
    writer.close(ledger.final_model())
    found = fedworth.Federation(Ledger.open(tmp_path / "longer"), fedworth.task_of(ledger)).value("fedsv")
    assert found.by_round is not None
    assert (found.by_round[2] == 0).all()
    assert (found.by_round[0] != 0).all()


def test_an_everyday_report_on_more_clients_than_can_be_listed(tmp_path):
    """Of 24 clients not even the coalitions can be listed, whatever is timed or forecast."""
    settings = replace(MANY, n_clients=24, n_participants=22, train_limit=240, with_truth=False)
    ledger = fedworth.simulate(settings, tmp_path / "ledger")
    report = fedworth.report_on(ledger, fedworth.task_of(ledger))
    assert np.isfinite(report.chosen.values).all()
    assert "fedsv" in {valuation.method for valuation in report.valuations}
