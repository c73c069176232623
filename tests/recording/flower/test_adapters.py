"""Adapters and a head as PEFT names them, in Flower: by their names, and as a list of arrays without names."""

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import fedworth.flower
from fedworth.ledger.ledger import Ledger
from fedworth.valuation.federation import Federation
from tests.recording.flower.in_process import InProcessGrid
from tests.task.test_adapters import AS_PEFT_SAVES, TRAINED, head_task, loss_with

app = ClientApp(mods=[fedworth.flower.identity])


@app.train()
def train(message, context):
    """Move every tensor, whatever it is called."""
    partition, sent = context.node_config["partition-id"], message.content["arrays"]
    rng = np.random.default_rng(partition)
    moved = {
        name: array.numpy() + 0.3 * rng.random(array.numpy().shape, dtype=np.float32) for name, array in sent.items()
    }
    arrays = [*moved.values()] if "0" in moved else {name: torch.from_numpy(array) for name, array in moved.items()}
    metrics = MetricRecord({"num-examples": 10 * (partition + 1)})
    return Message(content=RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)


@pytest.mark.parametrize("is_named", [True, False], ids=["names", "a list of arrays"])
def test_adapters_and_head_are_valued_however_flower_sends_them(tmp_path, is_named):
    task = head_task(tuple(AS_PEFT_SAVES))
    own = task.module.state_dict()
    first = {name: own[key].clone() for name, key in zip(AS_PEFT_SAVES, TRAINED, strict=True)}
    initial = ArrayRecord(first if is_named else [tensor.numpy() for tensor in first.values()])
    strategy = FedAvg(fraction_evaluate=0.0)
    recording = fedworth.flower.record(InProcessGrid(app, 3), ledger=tmp_path / "l", strategy=strategy)
    result = strategy.start(grid=recording, initial_arrays=initial, num_rounds=2, timeout=60)
    recording.close(result.arrays)
    ledger = Ledger.open(tmp_path / "l")
    sent = AS_PEFT_SAVES if is_named else ["0", "1", "2", "3"]
    assert ledger.open_round(0).global_model.keys() == {*sent}
    last = {name: torch.from_numpy(result.arrays[name].numpy().copy()) for name in sent}
    gain = loss_with(task, TRAINED, first) - loss_with(task, TRAINED, last)
    assert abs(gain) > 0.01
    assert Federation(ledger, task).value("fedsv").values.sum() == pytest.approx(gain, abs=1e-6)
