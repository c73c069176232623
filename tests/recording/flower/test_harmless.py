"""No call of fedworth's raises into the training, on a client or on the server, and none changes what is trained."""

import random

import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import fedworth.flower
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.writer import LedgerWriter
from fedworth.recording import flower_grid, flower_identity
from fedworth.recording.flower_grid import RecordingGrid, TrainRound
from fedworth.recording.flower_wrapper import RecordingWrapper
from fedworth.recording.recorder import LiveRecorder
from tests.recording.flower.in_process import InProcessGrid

START = {"w": torch.arange(4.0), "b": torch.tensor([1.0])}

CALLS = [
    *((RecordingGrid, name) for name in vars(RecordingGrid) if name.startswith("_") and not name.endswith("__")),
    *(
        (LiveRecorder, name)
        for name in vars(LiveRecorder)
        if not name.endswith("__") and callable(vars(LiveRecorder)[name])
    ),
    *(
        (LedgerWriter, name)
        for name in vars(LedgerWriter)
        if not name.endswith("__") and callable(vars(LedgerWriter)[name])
    ),
    *((RecordingWrapper, name) for name in vars(RecordingWrapper) if name.startswith("_") and not name.endswith("__")),
    (TrainRound, "by_node"),
    (flower_identity, "_add_name"),
    *((flower_grid, name) for name in ("round_number", "weight_in", "model_in", "model_sent", "name_taken_from")),
]
BEFORE_TRAINING = {"_sent"}
"""These are the guards themselves: all they do is call something else under a `try`."""


def trained(message, _context):
    """One step away from what was sent, a different one on every node."""
    step = 0.1 * (message.metadata.dst_node_id % 10 + 1)
    arrays = {name: tensor + step for name, tensor in message.content["arrays"].to_torch_state_dict().items()}
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 3})})
    return Message(content=content, reply_to=message)


def app(*mods):
    made = ClientApp(mods=list(mods))
    made.train()(trained)
    return made


def train(grid):
    random.seed(0)
    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(dict(START)), num_rounds=2, timeout=60)
    if isinstance(grid, RecordingGrid):
        grid.close(result.arrays)
    return result.arrays.to_torch_state_dict()


def explode(*_args, **_kwargs):
    raise RuntimeError("a fault of fedworth's")


def is_same(found, expected):
    return set(found) == set(expected) and all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.fixture(scope="module")
def expected():
    return train(InProcessGrid(app(), 3))


@pytest.mark.parametrize(("owner", "name"), [call for call in CALLS if call[1] not in BEFORE_TRAINING])
def test_training_is_the_same_whichever_call_fails(tmp_path, monkeypatch, expected, owner, name):
    recording = fedworth.flower.record(InProcessGrid(app(fedworth.flower.identity), 3), ledger=tmp_path / "l")
    monkeypatch.setattr(owner, name, explode)
    assert is_same(train(recording), expected)


@pytest.mark.parametrize("is_nameless", [False, True])
def test_training_with_recording_is_training_without_to_the_bit(tmp_path, expected, is_nameless):
    grid = InProcessGrid(app(fedworth.flower.identity), 3, nameless=is_nameless)
    assert is_same(train(fedworth.flower.record(grid, ledger=tmp_path / "l")), expected)


def test_a_client_without_a_node_config_trains_and_goes_by_its_node(tmp_path, caplog):
    grid = InProcessGrid(app(fedworth.flower.identity), 2, nameless=True)
    train(fedworth.flower.record(grid, ledger=tmp_path / "l"))
    ledger = Ledger.open(tmp_path / "l")
    assert sorted(ledger.clients) == ["node-1000", "node-1001"]
    assert [len(entry.answered) for entry in ledger.entries] == [2, 2]
    assert "this client has no name; start its SuperNode with --node-config" in caplog.text


def test_an_error_of_the_strategy_is_still_the_strategys(tmp_path):
    recording = fedworth.flower.record(InProcessGrid(app(), 2), ledger=tmp_path / "l")

    def messages():
        raise ValueError("the strategy's own")
        yield

    with pytest.raises(ValueError, match="the strategy's own"):
        recording.send_and_receive(messages())


def test_closing_without_a_final_model_is_said_and_nothing_more(tmp_path, caplog):
    fedworth.flower.record(InProcessGrid(app(), 2), ledger=tmp_path / "l").close(None)
    assert "recording failed" in caplog.text
