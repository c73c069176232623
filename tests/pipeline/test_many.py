"""Many clients: more than can be enumerated are valued by default, each value with its standard error."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fedworth.cli.main import main
from fedworth.completion.completion_file import load_completion
from fedworth.completion.models import complete as models_complete
from fedworth.completion.models import complete_by_models
from fedworth.games.matrix_file import load_utilities
from fedworth.games.observe import observe
from fedworth.games.planning.choose import PlanSettings
from fedworth.ledger.ledger import open_ledger
from fedworth.ledger.writer import Answer, create_ledger
from fedworth.oracle.fast import FastOracle
from fedworth.pipeline.measures import MeasureRow, compare_measures
from fedworth.pipeline.report_on import report_on
from fedworth.pipeline.stages import ValuingSettings
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of
from fedworth.trail import fingerprint
from fedworth.valuation.value import value

MANY = SimulationSettings(
    n_clients=24, copies=(), n_participants=6, n_rounds=3, partition="iid", train_limit=480, test_limit=60, seed=5
)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    return simulate(MANY, tmp_path_factory.mktemp("many") / "ledger")


@pytest.fixture(scope="module")
def reported(ledger, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    return report_on(ledger, task_of(ledger), ValuingSettings(), folder, with_truth=True), folder


def test_every_method_values_everyone_with_a_standard_error(reported):
    report, _ = reported
    assert report.refusals == ()
    for method in ("comfedsv", "comfedsv-factors", "fedsv", "truth", "heard-round"):
        found = report.valuation(method)
        assert found is not None
        assert np.isfinite(found.values).all()
        assert found.standard_errors is not None
        assert (found.standard_errors >= 0).all()
    main_one = report.valuation("comfedsv")
    assert main_one is not None
    assert main_one.uncertainty is not None
    assert main_one.standard_errors is not None
    assert (main_one.uncertainty.deviations >= main_one.standard_errors).all()


def test_values_share_out_what_everyone_together_achieves(reported):
    """Each round's values sum to U_t(all), in FedSV to U_t(participants), whatever was drawn."""
    _, folder = reported
    utilities = load_utilities(folder / "utilities.npz")
    assert utilities.round_values is not None
    for t, row in enumerate(utilities.participants):
        assert utilities.round_values.values[t].sum() == pytest.approx(utilities.row(t, row[None])[0], abs=1e-6)
        assert (utilities.round_values.values[t, ~row] == 0).all()
    completion = load_completion(folder / "completion.npz")
    assert completion.by_rounds is not None
    first = utilities.row(0, np.ones((1, 24), dtype=bool))[0]  # the first round heard everyone
    assert completion.by_rounds.values[0].sum() == pytest.approx(first, abs=1e-6)


@pytest.mark.parametrize("method", ["comfedsv", "fedsv"])
def test_what_a_client_is_worth_is_the_sum_of_its_rounds(reported, method):
    report, _ = reported
    found = report.valuation(method)
    assert found is not None
    assert report.rounds is not None
    np.testing.assert_allclose(report.rounds.values[method].sum(axis=0), found.values, rtol=0, atol=1e-9)


def test_the_sum_of_the_rounds_is_the_value_where_orders_were_drawn_of_few_clients(tmp_path):
    ledger = simulate(replace(MANY, n_clients=5, n_participants=2, train_limit=150), tmp_path / "ledger")
    settings = ValuingSettings(plan=PlanSettings(5))
    report = report_on(ledger, task_of(ledger), settings, tmp_path / "report")
    found = report.valuation("comfedsv")
    assert found is not None
    assert report.rounds is not None
    np.testing.assert_allclose(report.rounds.values["comfedsv"].sum(axis=0), found.values, rtol=0, atol=1e-9)


def test_the_artefacts_survive_the_disk_and_the_commands_agree(ledger, reported, tmp_path, capsys):
    report, folder = reported
    paths = [str(tmp_path / name) for name in ("u.npz", "c.npz")]
    assert main(["observe", str(ledger.folder), "--out", paths[0]]) == 0
    assert fingerprint(load_utilities(paths[0])) == fingerprint(load_utilities(folder / "utilities.npz"))
    assert main(["complete", paths[0], "--ledger", str(ledger.folder), "--out", paths[1]]) == 0
    capsys.readouterr()
    assert fingerprint(load_completion(paths[1])) == fingerprint(load_completion(folder / "completion.npz"))
    for method, by in (("comfedsv", ["--completion", paths[1]]), ("fedsv", [])):
        assert main(["value", paths[0], "--method", method, *by, "--json"]) == 0
        found, expected = json.loads(capsys.readouterr().out), report.valuation(method)
        assert expected is not None
        document = json.loads(json.dumps(expected.document()))
        assert {key: found[key] for key in document} == document  # and what follows from it: shares, ranks


def test_estimated_games_agree_with_enumerated_ones(tmp_path, monkeypatch):
    """The same federation both ways: the difference is within what the standard errors say."""
    settings = replace(MANY, n_clients=9, n_participants=3, train_limit=270)
    ledger = simulate(settings, tmp_path / "ledger")
    oracle = FastOracle(task_of(ledger), n_threads=1)
    seen = observe(ledger, oracle)
    exact = value(seen, "comfedsv", completion=complete_by_models(ledger, oracle, seen))
    monkeypatch.setattr(models_complete, "MOST_ENUMERATED", 5)
    drawn = value(seen, "comfedsv", completion=complete_by_models(ledger, oracle, seen))
    assert drawn.standard_errors is not None
    assert exact.uncertainty is not None
    assert drawn.uncertainty is not None
    z = (drawn.values - exact.values) / drawn.standard_errors
    assert np.abs(z).max() < 4  # nine values: beyond 4 standard errors less than once in a thousand runs
    predicted = drawn.uncertainty.deviations**2 - drawn.standard_errors**2
    np.testing.assert_allclose(predicted, exact.uncertainty.deviations**2, rtol=1e-6)


def test_a_measure_without_logits_is_estimated_by_strata(ledger, tmp_path):
    settings = ValuingSettings(measure="accuracy")
    report = report_on(ledger, task_of(ledger), settings, tmp_path)
    found = report.valuation("comfedsv")
    assert found is not None
    assert np.isfinite(found.values).all()


def test_other_ways_to_share_out_a_game_are_estimated_of_many_clients(ledger):
    """Each drawn coalition is measured in every round, beside what was seen."""
    names = ["banzhaf", "beta-shapley", "least-core", "fedsv"]
    made = compare_measures(ledger, task_of(ledger), ValuingSettings(), names)
    rows: dict[str, MeasureRow] = {row.name: row for row in made}
    for name in names[:3]:
        found = rows[name].valuation
        assert found is not None
        assert np.isfinite(found.values).all()
        assert (found.standard_errors is None) == (name == "least-core")
        assert "drawn coalitions" in found.warnings[-1]
        n_drawn, rest = divmod(rows[name].n_evaluations - rows["fedsv"].n_evaluations, MANY.n_rounds)
        assert rest == 0
        assert n_drawn <= 15 * MANY.n_clients
    again = compare_measures(ledger, task_of(ledger), ValuingSettings(), ["banzhaf"])[0]
    assert again.valuation == rows["banzhaf"].valuation


def test_of_many_clients_too_a_round_that_nobody_answered_adds_nothing(ledger, tmp_path):
    writer = create_ledger(tmp_path / "longer", ledger.clients, aggregation="uniform")
    for t, round_ in enumerate(ledger.rounds()):
        answers = {ledger.clients[k]: Answer(round_.client_models[k], 1) for k in ledger.participants(t)}
        writer.record_round(round_.global_model, answers)
    writer.record_round(ledger.final_model(), {})
    writer.close(ledger.final_model())
    longer = open_ledger(tmp_path / "longer")
    oracle = FastOracle(task_of(ledger), n_threads=1)
    made = complete_by_models(longer, oracle, observe(longer, oracle))
    assert made.by_rounds is not None
    assert (made.by_rounds.values[3] == 0).all()
    assert (made.by_rounds.values[2] != 0).all()
