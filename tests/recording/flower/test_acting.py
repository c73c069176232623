"""A strategy that acts on values drops whom it should, and the ledger has who was asked."""

import random

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from handwriting.acting import Dropping

import fedworth.flower
from fedworth.ledger.ledger import Ledger
from fedworth.task.replay import check_ledger
from fedworth.task.rules import WeightedMean
from fedworth.task.task import Task
from tests.recording.flower.in_process import InProcessGrid

N_CLIENTS = 4


def task():
    rng = torch.Generator().manual_seed(0)
    inputs = torch.randn(60, 3, generator=rng)
    return Task(torch.nn.Linear(3, 3, bias=False), inputs, inputs.argmax(dim=1))


def trained(message, context):
    """The first client goes the wrong way, the others the right one."""
    sign = -1 if context.node_config["partition-id"] == 0 else 1
    before = message.content["arrays"].to_torch_state_dict()["weight"]
    after = {"weight": before + 0.2 * sign * (torch.eye(3) + 0.01 * context.node_config["partition-id"])}
    content = RecordDict({"arrays": ArrayRecord(after), "metrics": MetricRecord({"num-examples": 10})})
    return Message(content=content, reply_to=message)


def federation(strategy, folder):
    random.seed(0)
    app = ClientApp(mods=[fedworth.flower.identity])
    app.train()(trained)
    recording = fedworth.flower.record(InProcessGrid(app, N_CLIENTS), ledger=folder, strategy=strategy)
    start = ArrayRecord({"weight": torch.zeros(3, 3)})
    recording.close(strategy.start(grid=recording, initial_arrays=start, num_rounds=4, timeout=60).arrays)
    ledger = Ledger.verify(folder)
    checked = check_ledger(ledger, WeightedMean())
    checked.refuse_others()
    assert checked.n_same == 4  # with the weights that are recorded
    return ledger


def asked(ledger, round_index):
    return {ledger.clients[k] for k in ledger.entries[round_index].asked}


def test_who_does_harm_is_not_asked_again_once_patience_is_over(tmp_path):
    ledger = federation(Dropping(task(), patience=2, fraction_evaluate=0.0), tmp_path / "l")
    everyone = {f"partition-{k}" for k in range(N_CLIENTS)}
    assert [asked(ledger, t) for t in range(4)] == [everyone, everyone, *[everyone - {"partition-0"}] * 2]
