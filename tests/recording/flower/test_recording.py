"""Recording a Flower federation at its grid: every strategy unchanged, every fate told, the aggregate reproduced."""

import random
import time

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from handwriting import client_app
from handwriting.task import build, task

import fedworth.flower
from fedworth.errors import UsageError
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.model import check_alike
from fedworth.valuation.federation import Federation
from fedworth.valuation.settings import ValuationSettings, WorkSettings
from tests.recording.flower.in_process import InProcessGrid

CONFIG = {"n-clients": 4, "learning-rate": 0.2}


def start(strategy, grid, *, n_rounds=3, arrays=None):
    initial = ArrayRecord(build().state_dict()) if arrays is None else arrays
    return strategy.start(grid=grid, initial_arrays=initial, num_rounds=n_rounds, timeout=60)


def fedavg(**options):
    return FedAvg(**{"fraction_train": 0.5, "fraction_evaluate": 0.0, **options})


def numpy_of(model):
    return {name: tensor.numpy() for name, tensor in model.items()}


def mean_of(round_):
    """The models of a round averaged by their sample counts, in float64."""
    counts = np.array(round_.entry.sample_counts, dtype=np.float64)
    models = [round_.client_models[k] for k in round_.entry.answered]
    return {
        name: sum(n * model[name].to(torch.float64) for n, model in zip(counts, models, strict=True)) / counts.sum()
        for name in models[0]
    }


@pytest.fixture(autouse=True)
def _seeded():
    random.seed(0)  # what Flower draws its nodes from


@pytest.fixture
def grid():
    return InProcessGrid(client_app.app, 4, CONFIG)


def test_the_aggregate_recomputed_from_the_ledger_is_flowers(grid, tmp_path):
    recording = fedworth.flower.record(grid, ledger=tmp_path / "l", hear_everyone=4)
    result = start(fedavg(), recording)
    recording.close(result.arrays)
    ledger = Ledger.verify(tmp_path / "l")
    models = [round_.global_model for round_ in ledger.rounds()]
    following = [*models[1:], ledger.final_model()]
    for round_, after in zip(ledger.rounds(), following, strict=True):
        for name, mean in mean_of(round_).items():
            torch.testing.assert_close(mean, after[name].to(torch.float64), rtol=1e-6, atol=1e-6)
    assert [entry.number for entry in ledger.entries] == [1, 2, 3]
    assert sorted(ledger.sample_counts().values()) == [129, 258, 387, 516]


def test_the_first_round_hears_everyone_and_the_others_whom_the_strategy_asks(grid, tmp_path):
    start(fedavg(), fedworth.flower.record(grid, ledger=tmp_path / "l", hear_everyone=4))
    ledger = Ledger.open(tmp_path / "l")
    assert [len(entry.participants) for entry in ledger.entries] == [4, 2, 2]
    assert sorted(ledger.clients) == [f"partition-{k}" for k in range(4)]


def test_the_first_round_waits_for_those_who_are_late(grid, tmp_path, monkeypatch):
    grid.late = {2, 3}
    monkeypatch.setattr(time, "sleep", grid.connect)
    start(fedavg(), fedworth.flower.record(grid, ledger=tmp_path / "l", hear_everyone=4))
    assert len(Ledger.open(tmp_path / "l").entries[0].participants) == 4


def test_the_first_round_does_not_wait_for_ever(grid, tmp_path, caplog):
    grid.late = {3}
    start(fedavg(), fedworth.flower.record(grid, ledger=tmp_path / "l", hear_everyone=4, wait_seconds=0))
    assert len(Ledger.open(tmp_path / "l").entries[0].participants) == 3
    assert "only 3 of 4 clients are connected" in caplog.text


def test_a_hand_written_loop_of_push_and_pull_is_recorded(grid, tmp_path):
    recording = fedworth.flower.record(grid, ledger=tmp_path / "l")
    arrays = ArrayRecord(build().state_dict())
    for _ in range(2):
        content = RecordDict({"arrays": arrays, "config": ConfigRecord()})
        nodes = recording.get_node_ids()
        ids = recording.push_messages([Message(content=content, message_type="train", dst_node_id=n) for n in nodes])
        for message_id in ids:
            recording.pull_messages([message_id])
    ledger = Ledger.verify(tmp_path / "l")
    assert [(entry.number, len(entry.answered)) for entry in ledger.entries] == [(1, 4), (2, 4)]


def failing_app(fate):
    """The example's client, but partition 1 meets its fate from the second round on."""
    app = ClientApp(mods=[fedworth.flower.identity])

    @app.train()
    def train(message, context):
        reply = client_app.train_here(message, context)
        is_chosen = context.node_config["partition-id"] == 1 and message.content["config"]["server-round"] > 1
        return fate(message, reply) if is_chosen else reply

    return app


def explode(_message, _reply):
    raise RuntimeError("out of\nmemory")


def test_failed_and_silent_clients_are_told_apart(tmp_path):
    grid = InProcessGrid(failing_app(explode), 4, CONFIG)
    recording = fedworth.flower.record(grid, ledger=tmp_path / "l")
    start(fedavg(fraction_train=1.0), recording, n_rounds=1)
    grid.silent = {2}
    content = RecordDict({"arrays": ArrayRecord(build().state_dict()), "config": ConfigRecord({"server-round": 2})})
    nodes = grid.get_node_ids()
    recording.send_and_receive([Message(content=content, message_type="train", dst_node_id=n) for n in nodes])
    ledger = Ledger.open(tmp_path / "l")
    entry = ledger.entries[1]
    assert [ledger.clients[k] for k in entry.failed] == ["partition-1"]
    assert [ledger.clients[k] for k in entry.silent] == ["partition-2"]
    assert "out of memory" in entry.failure_reasons[0]
    assert len(entry.answered) == 2


def test_a_restarted_client_is_the_same_client(grid, tmp_path):
    recording = fedworth.flower.record(grid, ledger=tmp_path / "l")
    start(fedavg(fraction_train=1.0), recording, n_rounds=1)
    grid.first_id = 2000
    start(fedavg(fraction_train=1.0), recording, n_rounds=1)
    assert len(Ledger.open(tmp_path / "l").clients) == 4


def test_a_node_that_never_says_who_it_is_is_a_stranger(grid, tmp_path):
    grid.silent = {3}
    start(fedavg(fraction_train=1.0), fedworth.flower.record(grid, ledger=tmp_path / "l"), n_rounds=1)
    ledger = Ledger.open(tmp_path / "l")
    assert len(ledger.clients) == 3
    assert ledger.entries[0].notes == ("node 1003, which has never said who it is, was silent",)


def test_clients_without_the_mod_go_by_their_node(tmp_path, caplog):
    app = ClientApp()
    app.train()(client_app.train_here)
    grid = InProcessGrid(app, 2, CONFIG)
    start(fedavg(fraction_train=1.0), fedworth.flower.record(grid, ledger=tmp_path / "l"), n_rounds=1)
    assert sorted(Ledger.open(tmp_path / "l").clients) == ["node-1000", "node-1001"]
    assert "does not say who it is" in caplog.text


def with_arrays(change):
    def fate(_message, reply):
        arrays = reply.content["arrays"].to_torch_state_dict()
        change(arrays)
        reply.content["arrays"] = ArrayRecord(arrays)
        return reply

    return fate


def with_metrics(metrics):
    def fate(_message, reply):
        reply.content["metrics"] = MetricRecord(metrics)
        return reply

    return fate


HOSTILE = {
    "NaN": with_arrays(lambda arrays: arrays["0.weight"].fill_(float("nan"))),
    "1e30": with_arrays(lambda arrays: arrays["0.weight"].fill_(1e30)),
    "shape": with_arrays(lambda arrays: arrays.update({"0.bias": torch.zeros(3)})),
    "missing": with_arrays(lambda arrays: arrays.pop("0.bias")),
    "extra": with_arrays(lambda arrays: arrays.update(more=torch.zeros(3))),
    "no samples": with_metrics({"num-examples": 0}),
    "no count": with_metrics({"train-loss": 1.0}),
    "counts": with_metrics({"num-examples": [1, 2]}),
    "empty": lambda message, _reply: Message(content=RecordDict(), reply_to=message),
}


@pytest.mark.parametrize("fate", HOSTILE)
def test_a_hostile_client_is_refused_alone_and_the_others_values_are_unchanged(tmp_path, fate):
    def utilities(app, name):
        grid = InProcessGrid(app, 3, {**CONFIG, "n-clients": 3})
        recording = fedworth.flower.record(grid, ledger=tmp_path / name)
        content = RecordDict({"arrays": ArrayRecord(build().state_dict()), "config": ConfigRecord({"server-round": 2})})
        nodes = [1000, 1002] if name == "without" else [1000, 1001, 1002]
        recording.send_and_receive([Message(content=content, message_type="train", dst_node_id=n) for n in nodes])
        ledger = Ledger.open(tmp_path / name)
        settings = ValuationSettings(oracle="loop", weighting="samples")
        federation = Federation(ledger, task(), settings, work=WorkSettings(cache=False))
        return ledger, federation.utility_matrix().utilities

    ledger, found = utilities(failing_app(HOSTILE[fate]), "with")
    _, expected = utilities(client_app.app, "without")
    assert [ledger.clients[k] for k in ledger.entries[0].quarantined] == ["partition-1"]
    assert ledger.entries[0].quarantine_reasons[0]
    assert (found == expected).all()


def test_an_error_in_recording_never_stops_the_training(grid, tmp_path, monkeypatch):
    recording = fedworth.flower.record(grid, ledger=tmp_path / "l")
    monkeypatch.setattr(recording.recorder.writer, "start_round", lambda *_a, **_k: 1 / 0)
    result = start(fedavg(), recording, n_rounds=2)
    recording.close(result.arrays)
    ledger = Ledger.verify(tmp_path / "l")
    assert [(gone.number, gone.reason) for gone in ledger.missing] == [
        (1, "ZeroDivisionError: division by zero"),
        (2, "ZeroDivisionError: division by zero"),
    ]
    check_alike(ledger.final_model(), build().state_dict(), "the trained model")


def two_records(content):
    """As SCAFFOLD's: the control variates beside the model."""
    return RecordDict({**content, "controls": ArrayRecord({"c": torch.zeros(3)})})


def asked(recording, contents):
    nodes = recording.get_node_ids()
    pairs = zip(nodes, contents, strict=True)
    return recording.send_and_receive([Message(content=c, message_type="train", dst_node_id=n) for n, c in pairs])


def content(shift=0.0):
    arrays = {name: tensor + shift for name, tensor in build().state_dict().items()}
    return RecordDict({"arrays": ArrayRecord(arrays), "config": ConfigRecord({"server-round": 2})})


def test_a_model_for_each_node_is_refused_with_the_reason(grid, tmp_path, caplog):
    asked(fedworth.flower.record(grid, ledger=tmp_path / "l"), [content(0.1 * k) for k in range(4)])
    (gone,) = Ledger.open(tmp_path / "l").missing
    assert "clients were sent different models" in gone.reason
    assert "fedworth: round 2 is not recorded: clients were sent different models" in caplog.text


def test_equal_models_that_were_packed_one_by_one_are_one_model(grid, tmp_path):
    asked(fedworth.flower.record(grid, ledger=tmp_path / "l"), [content() for _ in range(4)])
    assert len(Ledger.open(tmp_path / "l").entries[0].answered) == 4


def test_two_records_of_arrays_are_refused_until_the_model_is_named(tmp_path, caplog):
    grid = InProcessGrid(
        failing_app(lambda message, reply: Message(two_records(reply.content), reply_to=message)), 2, CONFIG
    )
    asked(fedworth.flower.record(grid, ledger=tmp_path / "l"), [two_records(content())] * 2)
    (gone,) = Ledger.open(tmp_path / "l").missing
    assert "2 ArrayRecords in it ('arrays', 'controls'), expected one; say which one is the model" in gone.reason
    recording = fedworth.flower.record(grid, ledger=tmp_path / "reply")
    asked(recording, [content()] * 2)
    assert "round 2: 'partition-1' is quarantined: 2 ArrayRecords" in caplog.text
    asked(fedworth.flower.record(grid, ledger=tmp_path / "named", arrays="arrays"), [two_records(content())] * 2)
    assert len(Ledger.open(tmp_path / "named").entries[0].answered) == 2


def test_a_missing_metric_is_said_when_it_happens_and_loudly_if_it_is_everyones(grid, tmp_path, caplog):
    asked(fedworth.flower.record(grid, ledger=tmp_path / "l", weighted_by="n"), [content()] * 4)
    assert "'partition-2' is quarantined: no metric 'n' to weight it by" in caplog.text
    loud = [r.message for r in caplog.records if r.levelname == "ERROR" and r.name == "fedworth"]
    assert loud == [
        "fedworth: round 2 HAS NO USABLE ANSWER: 4 asked, 0 failed, 4 quarantined, 0 silent; it adds nothing to a value"
    ]


def test_another_kind_of_object_is_an_error_and_no_empty_ledger(tmp_path):
    with pytest.raises(UsageError, match="found a FedAvg, a strategy of the Message API; give the grid"):
        fedworth.flower.record(fedavg(), ledger=tmp_path / "l")
    with pytest.raises(UsageError, match="found a ClientApp, expected Flower's grid, or a strategy"):
        fedworth.flower.record(client_app.app, ledger=tmp_path / "l")
    assert not (tmp_path / "l").exists()


def test_values_are_there_after_a_round_with_the_names_behind_the_nodes(grid, tmp_path):
    strategy = fedavg(fraction_train=1.0)
    recording = fedworth.flower.record(grid, ledger=tmp_path / "l", strategy=strategy)
    assert recording.values(task()) == {}
    assert recording.name_of(1001) is None
    start(strategy, recording, n_rounds=1)
    assert recording.name_of(1001) == "partition-1"
    assert set(recording.values(task())) == {f"partition-{k}" for k in range(4)}


def test_a_tracker_shows_what_the_report_says_and_the_training_stays_the_same_to_the_bit(tmp_path):
    def train(**options):
        random.seed(0)
        recording = fedworth.flower.record(InProcessGrid(client_app.app, 4, CONFIG), **options)
        result = start(fedavg(), recording)
        recording.close(result.arrays)
        return result.arrays.to_torch_state_dict()

    plain = train(ledger=tmp_path / "plain")
    tracked = train(ledger=tmp_path / "l", track=f"prometheus:{tmp_path}/f.prom", task=task())
    assert all(torch.equal(plain[name], tracked[name]) for name in plain)
    shown = (tmp_path / "f.prom").read_text()
    for line in fedworth.report_on(Ledger.open(tmp_path / "l"), task()):
        assert f'fedworth_value{{client="{line.client}"}} {line.value!r}\n' in shown
    assert "fedworth_round 3\n" in shown
