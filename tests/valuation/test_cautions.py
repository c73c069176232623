"""Values that call for care although their errors are small: the verdict says so, on the page and in the terminal."""

import pytest
import torch
from torch import nn

from fedworth.ledger.ledger import Ledger
from fedworth.pipeline.report_on import report_on
from fedworth.recording.recorder import record_into
from fedworth.report.page.trust import verdict_of
from fedworth.report.report import Report
from fedworth.report.settings import PageSettings
from fedworth.report.tables import markdown
from fedworth.task.task import Task
from fedworth.valuation.settings import WorkSettings

NAMES = ["ada", "bob", "cleo", "dora"]


@pytest.fixture
def report(tmp_path):
    """One of four clients sends a model that nobody would use alone."""
    torch.manual_seed(0)
    module, x = nn.Linear(6, 3), torch.randn(400, 6)
    recorder = record_into(tmp_path / "ledger", NAMES, aggregation="uniform")
    model = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    answers = [{name: (1 + k) * tensor for name, tensor in model.items()} for k in range(3)]
    answers.append({name: 300 * torch.randn_like(tensor) for name, tensor in model.items()})
    recorder.start_round(model, asked=NAMES)
    for name, answer in zip(NAMES, answers, strict=True):
        recorder.client_model(name, answer, 1)
    recorder.end_round()
    recorder.close({name: torch.stack([answer[name] for answer in answers]).mean(0) for name in model})
    task = Task(module, x, module(x).argmax(dim=1))
    return report_on(Ledger.open(tmp_path / "ledger"), task, methods=["fedsv"], work=WorkSettings(cache=False))


def test_values_that_small_coalitions_dominate_are_to_be_used_with_care(report):
    settings = PageSettings()
    (caution,) = report.chosen.cautions
    assert "the model of dora alone" in caution
    assert caution in report.chosen.notes
    for known in (report, Report.from_document(report.document())):
        verdict = verdict_of(known, settings)
        assert verdict.head == "Use with care"
        assert caution in verdict.why
        assert "Good to use" not in known.page_html(settings)
        assert f"Use with care: {caution}" in markdown(known).replace("\\", "")
    statement = report.statement_html("ada", settings)
    assert "Use with care" in statement
    assert "dora" not in statement  # a statement names no other client
