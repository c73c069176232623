"""What a report says that it will take, and what it takes."""

import logging
import re

import pytest
import torch
from torch import nn

from fedworth.games import observe
from fedworth.games.budget import Budget
from fedworth.games.effort import Effort
from fedworth.ledger.ledger import Ledger
from fedworth.pipeline.report_on import report_on
from fedworth.recording.recorder import record_into
from fedworth.task.task import Task
from fedworth.valuation.federation import Federation
from fedworth.valuation.settings import ValuationSettings, WorkSettings

N_SAMPLES, N_CLIENTS = 100, 6


class Counted(nn.Module):
    """Two layers that count the samples that they see."""

    n_seen = 0

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x):
        Counted.n_seen += len(x)
        return self.layers(x)


@pytest.fixture
def federation(tmp_path):
    """Three or four of six clients answer in each of five rounds."""
    return recorded(tmp_path, lambda t: 3 + t % 2)


@pytest.fixture
def whole_federation(tmp_path):
    """All six clients answer in each of five rounds."""
    return recorded(tmp_path, lambda _: N_CLIENTS)


def recorded(tmp_path, n_answers):
    torch.manual_seed(0)
    module, names = Counted().eval(), [f"c{k}" for k in range(N_CLIENTS)]
    recorder = record_into(tmp_path / "ledger", names, aggregation="uniform")
    model = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    for t in range(5):
        recorder.start_round(model, asked=names)
        answers = [{name: x + 0.3 * torch.randn_like(x) for name, x in model.items()} for _ in range(n_answers(t))]
        for k, answer in enumerate(answers):
            recorder.client_model(names[(2 * t + k) % N_CLIENTS], answer, 1)
        recorder.end_round()
        model = {name: torch.stack([answer[name] for answer in answers]).mean(0) for name in model}
    recorder.close(model)
    return Ledger.open(tmp_path / "ledger"), Task(module, torch.randn(N_SAMPLES, 6), torch.randint(0, 3, (N_SAMPLES,)))


def forecast_and_passes(federation, monkeypatch, caplog, **settings):
    """The line that is logged before the start, the evaluations that it counts, and the passes that were made."""
    monkeypatch.setattr(Effort, "seconds_of", lambda *_: 1.0)
    monkeypatch.setattr(Effort, "seconds_of_pass", lambda *_: 1.0)
    Counted.n_seen = 0
    with caplog.at_level(logging.INFO, "fedworth.effort"):
        looped = ValuationSettings(oracle="loop", **settings)  # it calls the module for every coalition
        ledger, task = federation
        report = report_on(ledger, task, looped, work=WorkSettings(cache=False))
    (line,) = [record.getMessage() for record in caplog.records if "evaluations" in record.getMessage()]
    assert report.provenance is not None
    said = re.findall(r"(?:about |: |, )(\d+) (?:evaluations|for predictions)", line)
    return line, sum(map(int, said)), Counted.n_seen / N_SAMPLES


def test_a_forecast_counts_predictions_their_checks_and_other_methods(federation, monkeypatch, caplog):
    line, n_said, n_made = forecast_and_passes(federation, monkeypatch, caplog)
    assert "for predictions, other methods and scores" in line
    assert "sampling" in line
    assert 0.7 < n_made / n_said < 1.4


def test_a_forecast_counts_other_methods_and_scores_where_nobody_is_absent(whole_federation, monkeypatch, caplog):
    line, n_said, n_made = forecast_and_passes(whole_federation, monkeypatch, caplog)
    assert "for predictions, other methods and scores" in line
    assert "sampling" in line
    assert 0.7 < n_made / n_said < 1.4


def test_a_forecast_of_all_coalitions_counts_other_models_once_more(whole_federation, monkeypatch, caplog):
    budget = Budget(precision=0)
    line, n_said, n_made = forecast_and_passes(whole_federation, monkeypatch, caplog, budget=budget)
    assert "measuring all coalitions" in line
    assert 0.7 < n_made / n_said < 1.4


def test_with_a_limit_of_seconds_methods_must_fit_in_together(whole_federation, monkeypatch):
    """70 evaluations for sampling, as many at equal length, 35 without each client."""
    monkeypatch.setattr(Effort, "seconds_of", lambda *_: 0.3)
    ledger, task = whole_federation

    def slow(budget):
        federation = Federation(ledger, task, ValuationSettings(oracle="loop", budget=budget))
        return federation.slow_methods(["comfedsv-models", "comfedsv", "fedsv", "fedsv-equal", "leave-one-out"])

    assert slow(Budget()) == ("comfedsv",)
    assert slow(Budget(seconds=40)) == ("comfedsv", "fedsv-equal")


def test_fast_evaluations_need_no_forecast(federation, caplog):
    with caplog.at_level(logging.INFO, "fedworth.effort"):
        report = report_on(*federation, work=WorkSettings(cache=False))
    assert not caplog.records
    assert report.provenance is not None
    assert not report.provenance.sampled


def test_a_method_that_is_refused_for_its_memory_refuses_no_other(whole_federation, monkeypatch):
    monkeypatch.setattr(observe, "MOST_BYTES", 1)
    monkeypatch.setattr(observe, "MOST_ENUMERATED", 3)
    report = report_on(*whole_federation, work=WorkSettings(cache=False))
    assert report.valuation("comfedsv-models") is not None
    assert any(name == "comfedsv" and "too much memory" in why for name, why in report.refusals)
