"""Devices, engines and threads chosen by name: the CPU's bytes are as ever, and what cannot be had is refused first."""

from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from fedworth.errors import UsageError
from fedworth.ledger.ledger import Round
from fedworth.oracle.fast import n_processors
from fedworth.oracle.oracle import LoopOracle
from fedworth.oracle.weighting import Mixtures
from fedworth.task.task import Task
from fedworth.valuation.federation import device_named


@pytest.mark.parametrize("name", ["meta", "gpu", ""])
def test_what_is_no_device_to_compute_on_is_refused(name):
    with pytest.raises(UsageError, match=f"--device {name}: torch cannot compute there"):
        device_named(name)
    assert device_named("cpu") == torch.device("cpu")


class Reached(Exception):
    """The logits were made: all tensors were on one device."""


def test_the_plain_loop_takes_models_to_where_the_task_is(monkeypatch):
    """On torch's device of shapes without numbers, whose tensors cannot be mixed with the CPU's."""

    def stop(_task: Task, outputs: torch.Tensor, _labels: torch.Tensor) -> None:
        raise Reached(outputs.device.type)

    monkeypatch.setattr("fedworth.oracle.oracle.refuse_misfit", stop)
    monkeypatch.setattr(Task, "__post_init__", lambda _: None)  # looks at numbers
    task = Task(nn.Linear(2, 2), torch.ones(3, 2), torch.zeros(3, dtype=torch.int64)).to("meta")
    model = {"weight": torch.ones(2, 2), "bias": torch.ones(2)}
    with pytest.raises(Reached, match="meta"):
        LoopOracle(task).utilities(
            Round(cast(Any, None), model, {0: model}, {}),
            Mixtures(np.ones((1, 1), dtype=bool), np.ones(1), from_global=False),
        ).sum(axis=1)


def test_as_many_processors_count_as_this_process_may_use(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3}, raising=False)
    assert n_processors() == 1
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    assert n_processors() == 7
