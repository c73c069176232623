"""What values are measured in, and what the model scores with and without each client."""

import re

import numpy as np
import pytest
import torch

import fedworth
from fedworth.oracle.oracle import mix, quality
from fedworth.report import scores
from fedworth.report.tables import tables
from tests.report.page.test_page import text_of


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    settings = fedworth.SimulationSettings(dataset="digits", n_clients=4, n_participants=2, n_rounds=3, test_limit=60)
    return fedworth.simulate(settings, tmp_path_factory.mktemp("scores") / "ledger")


@pytest.fixture(scope="module")
def task(ledger):
    return fedworth.task_of(ledger)


def loss_of(task, model):
    with torch.inference_mode():
        return float(torch.nn.functional.cross_entropy(task.outputs(model).double(), task.labels))


def test_scores_are_those_of_the_averages_with_and_without_the_clients_model(ledger, task):
    report = fedworth.report_on(ledger, task)
    scores = report.scores
    assert scores is not None
    assert scores.measures == ("cross-entropy", "accuracy")
    assert scores.start[0] == pytest.approx(loss_of(task, ledger.open_round(0).global_model), rel=1e-5)
    heard = [[t for t, entry in enumerate(ledger.entries) if k in entry.participants] for k in range(4)]
    for k, rounds in enumerate(heard):
        last = ledger.open_round(rounds[-1])
        assert scores.last_rounds[k] == last.entry.number
        for found, members in (
            (scores.with_client, [*last.client_models]),
            (scores.without_client, [j for j in last.client_models if j != k]),
        ):
            weights = np.array([float(j in members) for j in range(4)]) / max(1, len(members))
            model = mix(last.global_model, last.client_models, weights, float(not members))
            assert found[k, 0] == pytest.approx(loss_of(task, model), rel=1e-5)
            right = task.outputs(model).argmax(dim=1) == task.labels
            assert found[k, 1] == pytest.approx(float(right.double().mean()), abs=1e-9)
    assert fedworth.Report.from_document(report.document()) == report


def test_page_statement_and_tables_name_measure_unit_and_size_of_the_test_set(ledger, task):
    report = fedworth.report_on(ledger, task)
    page, statement = text_of(report.page_html()), text_of(report.statement_html("1"))
    for said in (page, statement):
        assert "lowers the loss on the coordinator’s 60 test samples" in said
        assert "It is measured in loss (cross-entropy), in nats per test sample." in said
        assert "added up over all 3 rounds" in said
    words = tables(report)[0].legend
    assert "lowers the loss on the coordinator’s 60 test samples" in words
    assert "loss (cross-entropy), in nats per test sample" in words
    assert report.scores is not None
    for loss, accuracy in (report.scores.with_client[1], report.scores.without_client[1]):
        for said in (page, statement):
            assert f"{loss:.3f}" in said
            assert f"{100 * accuracy:.1f} %" in said


def test_a_measure_is_raised_and_its_scores_are_in_percent(ledger, task):
    report = fedworth.report_on(ledger, task, fedworth.ValuationSettings(measure="accuracy"))
    text = text_of(report.page_html())
    assert "raises the accuracy on the coordinator’s" in text
    assert "It is measured in accuracy, as a share of the test samples." in text
    assert report.scores is not None
    assert report.scores.measures == ("accuracy",)
    assert f"{100 * report.scores.end[0]:.1f} % at the end" in text


def test_with_everyone_in_every_round_no_text_speaks_of_estimates(tmp_path):
    settings = fedworth.SimulationSettings(dataset="digits", n_clients=4, n_participants=4, n_rounds=3, test_limit=60)
    whole = fedworth.simulate(settings, tmp_path / "ledger")
    report = fedworth.report_on(whole, fedworth.task_of(whole))
    said = [text_of(report.page_html()), text_of(report.statement_html("1"))]
    said += [f"{table.note} {table.legend}" for table in tables(report)[:4]]
    for text in said:
        assert "estimate" not in text.replace("All values are measured; none is estimated", "")
        assert not re.search(r"\bcertain\b", text.replace("certain (byte-identical models)", ""))


def test_accuracy_is_taken_from_the_passes_that_measured_the_loss(ledger, task, monkeypatch):
    federation = fedworth.Federation(ledger, task, work=fedworth.WorkSettings(cache=False))
    federation.value("leave-one-out")
    evaluated = []

    def counted(*given):
        evaluated.append(given)
        return quality(*given)

    monkeypatch.setattr(scores, "quality", counted)
    monkeypatch.setattr(fedworth.LoopOracle, "utilities", None)  # would be an error
    found = scores.scores_of(federation)
    assert found is not None
    assert found.measures == ("cross-entropy", "accuracy")
    n_rounds = len({0, *(t for t, entry in enumerate(ledger.entries) if {*entry.participants} & last_in(ledger, t))})
    assert len(evaluated) == n_rounds


def last_in(ledger, t):
    """The clients that took part in no round after this one."""
    return {*range(4)} - {k for entry in ledger.entries[t + 1 :] for k in entry.participants}


def test_a_report_by_other_methods_measures_nothing_for_scores(ledger, task):
    assert fedworth.report_on(ledger, task, methods=["fedsv"]).scores is None
