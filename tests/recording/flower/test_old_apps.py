"""The old API in the newest Flower: apps of `server_fn` and `client_fn`, and `DefaultWorkflow`, with real messages."""

from types import SimpleNamespace

import numpy as np
import pytest
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import Context, RecordDict, ndarrays_to_parameters
from flwr.server import LegacyContext, ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow

import fedworth.flower
from fedworth.ledger.ledger import Ledger
from fedworth.task.replay import check_ledger
from fedworth.task.rules import WeightedMean
from tests.recording.flower.in_process import InProcessGrid


class RunningGrid(InProcessGrid):
    """One that knows its run, as old apps ask."""

    run = SimpleNamespace(run_id=1)


class Client(NumPyClient):  # type: ignore[misc]
    """Adds its own number, and has as many samples."""

    def __init__(self, index):
        self.index = index

    def fit(self, parameters, config):  # noqa: ARG002
        return [array + self.index for array in parameters], 1 + self.index, {"loss": 0.5}


def grid():
    def client_fn(context):
        return Client(context.node_config["partition-id"]).to_client()

    return RunningGrid(ClientApp(client_fn=client_fn, mods=[fedworth.flower.identity]), 3)


def context():
    return Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})


def by_server_fn(strategy, config):
    def server_fn(_context):
        return ServerAppComponents(strategy=strategy, config=config)

    ServerApp(server_fn=server_fn)(grid(), context())


def by_workflow(strategy, config):
    legacy = LegacyContext(context=context(), config=config, strategy=strategy)
    DefaultWorkflow()(grid(), legacy)


@pytest.mark.filterwarnings("ignore")  # Flower says of its own old names that they are old
@pytest.mark.parametrize("run", [by_server_fn, by_workflow])
def test_an_old_app_is_recorded_and_clients_go_by_the_names_that_their_mod_says(tmp_path, run):
    seen = []

    def merged(said):
        seen.append([sorted(metrics) for _, metrics in said])
        return {}

    start = ndarrays_to_parameters([np.zeros((2, 2), dtype=np.float32), np.ones(2, dtype=np.float32)])
    options = {"fraction_evaluate": 0.0, "min_available_clients": 3, "initial_parameters": start}
    strategy = FedAvg(fit_metrics_aggregation_fn=merged, **options)
    recording = fedworth.flower.record(strategy, ledger=tmp_path / "l", n_rounds=2)
    run(recording, ServerConfig(num_rounds=2))
    ledger = Ledger.verify(tmp_path / "l")
    assert (ledger.is_closed, ledger.n_rounds) == (True, 2)
    assert {ledger.clients[k]: n for k, n in ledger.sample_counts().items()} == {
        f"partition-{k}": 1 + k for k in range(3)
    }
    assert seen == [[["loss"]] * 3] * 2  # the strategy never sees the names
    check_ledger(ledger, WeightedMean()).refuse_others()
