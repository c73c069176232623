"""Values for a server while it trains are those of a report on the same ledger, to the bit."""

import pytest
import torch

from fedworth.names import CompletionKind, MethodName
from fedworth.pipeline.acting import values_so_far
from fedworth.pipeline.report_on import report_on
from fedworth.pipeline.stages import ValuingSettings
from fedworth.task.rules import WeightedMean
from fedworth.task.task import Task
from tests.support.servers import federation

METHODS: dict[CompletionKind, tuple[MethodName, ...]] = {
    "models": ("fedsv", "comfedsv", "comfedsv-factors"),
    "factors": ("fedsv", "comfedsv"),
}


def task_of() -> Task:
    rng = torch.Generator().manual_seed(1)
    return Task(torch.nn.Linear(3, 4), torch.randn(20, 3, generator=rng), torch.randint(0, 4, (20,), generator=rng))


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("kind", METHODS)
def test_values_while_training_are_those_of_a_report(tmp_path, is_closed, kind):
    ledger, settings = federation(tmp_path / "l", WeightedMean(), is_closed=is_closed), ValuingSettings(completion=kind)
    report = report_on(ledger, task_of(), settings, tmp_path / "report")
    for method in METHODS[kind]:
        reported = {each.method: each for each in report.valuations}[method]
        expected = dict(zip(reported.clients, reported.values.tolist(), strict=True))
        assert values_so_far(tmp_path / "l", task_of(), method=method, settings=settings) == expected


def test_fedsv_is_the_default(tmp_path):
    federation(tmp_path / "l", WeightedMean(), is_closed=False)
    assert values_so_far(tmp_path / "l", task_of()) == values_so_far(tmp_path / "l", task_of(), method="fedsv")


def test_clients_that_are_left_out_have_no_value(tmp_path):
    ledger = federation(tmp_path / "l", WeightedMean())
    found = values_so_far(tmp_path / "l", task_of(), settings=ValuingSettings(without=(ledger.clients[0],)))
    assert set(found) == set(ledger.clients[1:])
