"""A strategy of the old API that is recorded: who is who, who failed, what is refused; and no call raises."""

import logging
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import Server
from flwr.server.strategy import FedAvg

import fedworth.flower
from fedworth.errors import UsageError
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.writer import LedgerWriter
from fedworth.recording import flower_strategy
from fedworth.recording.flower_strategy import RecordingStrategy
from fedworth.recording.flower_wrapper import RecordingWrapper
from fedworth.recording.recorder import LiveRecorder
from fedworth.task.task import Task
from tests.recording.flower_old.in_process import Drawn, manager, start, train

CALLS = [
    *((RecordingStrategy, n) for n in vars(RecordingStrategy) if n.startswith("_") and not n.endswith("__")),
    *((LiveRecorder, n) for n, f in vars(LiveRecorder).items() if not n.endswith("__") and callable(f)),
    *((LedgerWriter, n) for n, f in vars(LedgerWriter).items() if not n.endswith("__") and callable(f)),
    *((RecordingWrapper, n) for n in vars(RecordingWrapper) if n.startswith("_") and not n.endswith("__")),
    *((flower_strategy, n) for n in ("_take_name", "_failures")),
]


def fedavg(**options):
    common = {"fraction_evaluate": 0.0, "min_available_clients": 4, "initial_parameters": start()}
    return FedAvg(**{**common, **options})


def arrays(parameters):
    return parameters_to_ndarrays(parameters)


def task():
    rng = torch.Generator().manual_seed(1)
    return Task(torch.nn.Linear(4, 3), torch.randn(30, 4, generator=rng), torch.randint(3, (30,), generator=rng))


def explode(*_args, **_kwargs):
    raise RuntimeError("a fault of fedworth's")


@pytest.fixture(scope="module")
def expected():
    return train(fedavg()).tensors


@pytest.mark.parametrize(("owner", "name"), CALLS)
def test_training_is_the_same_whichever_call_fails(tmp_path, monkeypatch, expected, owner, name):
    recording = fedworth.flower.record(fedavg(), ledger=tmp_path / "l")
    monkeypatch.setattr(owner, name, explode)
    assert train(recording).tensors == expected


def test_flowers_own_server_is_recorded_and_the_ledger_closed_after_its_rounds(tmp_path):
    recording = fedworth.flower.record(fedavg(fraction_fit=0.5), ledger=tmp_path / "l", hear_everyone=4, n_rounds=3)
    server = Server(client_manager=manager(), strategy=recording)
    server.fit(num_rounds=3, timeout=None)
    ledger = Ledger.verify(tmp_path / "l")
    assert (ledger.is_closed, [len(entry.participants) for entry in ledger.entries]) == (True, [4, 2, 2])
    assert sorted(ledger.clients) == [f"clinic-{k}" for k in range(4)]
    assert all((ledger.final_model()[str(k)].numpy() == a).all() for k, a in enumerate(arrays(server.parameters)))


def test_clients_that_are_connected_and_never_asked_cost_no_round(tmp_path):
    train(fedworth.flower.record(fedavg(fraction_fit=0.5), ledger=tmp_path / "l"), n_rounds=1)
    ledger = Ledger.verify(tmp_path / "l")
    assert ([len(entry.participants) for entry in ledger.entries], ledger.missing) == ([2], ())


def test_clients_without_a_name_go_by_their_id(tmp_path, caplog):
    train(fedworth.flower.record(fedavg(), ledger=tmp_path / "l"), manager(named=False))
    assert sorted(Ledger.open(tmp_path / "l").clients) == [f"node-c{k}" for k in range(4)]
    assert "does not say who it is" in caplog.text


def test_a_client_that_comes_back_by_another_id_is_the_same_client(tmp_path):
    recording = fedworth.flower.record(fedavg(), ledger=tmp_path / "l")
    train(recording, n_rounds=1)
    train(recording, manager(first=10), n_rounds=1, first=2)
    assert len(Ledger.open(tmp_path / "l").clients) == 4


class Failing(Drawn):
    """The second client fails after its first round."""

    n_fits = 0

    def fit(self, parameters, config):
        self.n_fits += 1
        if self.index == 1 and self.n_fits > 1:
            raise RuntimeError("out of memory")
        return super().fit(parameters, config)


def test_who_was_asked_and_did_not_answer_has_failed_with_the_reason(tmp_path, caplog):
    train(fedworth.flower.record(fedavg(), ledger=tmp_path / "l"), manager(client=Failing))
    ledger = Ledger.open(tmp_path / "l")
    assert [ledger.clients[k] for k in ledger.entries[1].failed] == ["clinic-1"]
    assert "out of memory" in ledger.entries[1].failure_reasons[0]
    assert "round 2: 'clinic-1' failed: out of memory" in caplog.text


class Odd(Drawn):
    """The second client sends one array too few."""

    def fit(self, parameters, config):
        made, n, metrics = super().fit(parameters, config)
        return (made[:1] if self.index == 1 else made), n, metrics


def test_an_answer_that_cannot_be_used_is_refused_alone_and_said_at_once(tmp_path, caplog):
    recording = fedworth.flower.record(fedavg(), ledger=tmp_path / "l", names=["weight", "bias"])
    recording.configure_fit(1, start(), clients := manager(client=Odd))
    results = [(proxy, proxy.fit(ins)) for proxy, ins in recording.asked]
    recording._record(1, results, [])
    ledger = Ledger.open(tmp_path / "l")
    assert [ledger.clients[k] for k in ledger.entries[0].quarantined] == ["clinic-1"]
    assert len(clients) == 4
    assert "round 1: 'clinic-1' is quarantined: 1 arrays, and 2 names" in caplog.text


class Hopeless(Drawn):
    """Sends what is no number."""

    def fit(self, parameters, config):
        made, n, metrics = super().fit(parameters, config)
        return [np.full_like(array, np.nan) for array in made], n, metrics


def test_a_round_without_a_usable_answer_is_said_loudly(tmp_path, caplog):
    train(fedworth.flower.record(fedavg(), ledger=tmp_path / "l"), manager(client=Hopeless), n_rounds=1)
    loud = [r.message for r in caplog.records if r.levelno == logging.ERROR and r.name == "fedworth"]
    assert loud == [
        "fedworth: round 1 HAS NO USABLE ANSWER: 4 asked, 0 failed, 4 quarantined, 0 silent; it adds nothing to a value"
    ]


def test_a_model_for_each_client_is_refused_with_the_reason(tmp_path, caplog):
    class PerClient(FedAvg):  # type: ignore[misc]
        def configure_fit(self, server_round, parameters, client_manager):
            asked = super().configure_fit(server_round, parameters, client_manager)
            for place, (_, instructions) in enumerate(asked):
                made = [array + place for array in arrays(parameters)]
                asked[place] = (
                    asked[place][0],
                    type(instructions)(type(parameters)(_bytes(made), "numpy.ndarray"), {}),
                )
            return asked

    options = {"fraction_evaluate": 0.0, "initial_parameters": start()}
    train(fedworth.flower.record(PerClient(**options), ledger=tmp_path / "l"), n_rounds=1)
    (gone,) = Ledger.open(tmp_path / "l").missing
    assert "clients were sent different models" in gone.reason
    assert "round 1 is not recorded" in caplog.text


def _bytes(made):
    return ndarrays_to_parameters(made).tensors


def test_answers_that_secure_aggregation_has_summed_are_not_valued_as_models(tmp_path):
    """SecAgg+ gives every answer the one sum of all."""
    recording = fedworth.flower.record(fedavg(), ledger=tmp_path / "l")
    recording.configure_fit(1, start(), manager())
    results = [(proxy, proxy.fit(ins)) for proxy, ins in recording.asked]
    for _, answer in results:
        answer.parameters = results[0][1].parameters
    recording.aggregate_fit(1, results, [])
    (gone,) = Ledger.open(tmp_path / "l").missing
    assert "secure aggregation has summed them" in gone.reason


@pytest.mark.parametrize("wrong", ["my.ledger", None, object(), FedAvg], ids=lambda wrong: type(wrong).__name__)
def test_another_kind_of_object_is_an_error_and_no_empty_ledger(tmp_path, wrong):
    if wrong is FedAvg:
        wrong = type("New", (), {"configure_train": print})()
    with pytest.raises(UsageError, match=r"record: found a \w+, "):
        fedworth.flower.record(wrong, ledger=tmp_path / "l")
    assert not (tmp_path / "l").exists()


@pytest.mark.skipif(find_spec("flwr.app") is not None, reason="this Flower has messages")
def test_a_grid_of_a_flower_without_messages_is_refused_with_a_way_out(tmp_path):
    grid = type("Driver", (), {"send_and_receive": print, "push_messages": print})()
    with pytest.raises(UsageError, match=r"this Flower has no grid .* or record the strategy"):
        fedworth.flower.record(grid, ledger=tmp_path / "l")
    assert not (tmp_path / "l").exists()


def test_values_are_there_after_a_round(tmp_path):
    recording = fedworth.flower.record(fedavg(), ledger=tmp_path / "l", names=["weight", "bias"])
    train(recording, n_rounds=1)
    assert sorted(recording.values(task())) == [f"clinic-{k}" for k in range(4)]


def test_values_that_cannot_be_had_are_nobodys_and_never_an_error(tmp_path, caplog):
    recording = fedworth.flower.record(fedavg(), ledger=tmp_path / "l")
    assert recording.values(task()) == {}
    assert "no values after round" in caplog.text


def test_what_the_strategy_is_asked_else_is_the_inner_strategys():
    recording = RecordingStrategy(inner := fedavg(), recorder=None)  # type: ignore[arg-type]
    assert recording.min_available_clients == inner.min_available_clients
    assert repr(recording) == repr(inner)
    assert recording.name_of("c0") is None
