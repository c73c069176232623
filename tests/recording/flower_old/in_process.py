"""Clients of Flower's old API in this process, and the loop of its server without threads, so that bits are equal."""

import random
from typing import Any

import numpy as np
from flwr.client import NumPyClient
from flwr.common import ndarrays_to_parameters
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy

N_CLIENTS = 4
SHAPES = ((3, 4), (3,))


def start() -> Any:
    rng = np.random.default_rng(0)
    return ndarrays_to_parameters([rng.normal(size=shape).astype(np.float32) for shape in SHAPES])


class Drawn(NumPyClient):  # type: ignore[misc]
    """Draws towards a point of its own; no two weigh the same."""

    def __init__(self, index: int, metrics: dict[str, Any]) -> None:
        self.index, self.metrics = index, metrics

    def fit(self, parameters: Any, config: Any) -> Any:  # noqa: ARG002
        rng = np.random.default_rng([self.index, abs(int(1e6 * parameters[0][0, 0]))])
        drawn = [w + 0.3 * (self.index - w) + 0.05 * rng.normal(size=w.shape) for w in parameters]
        return [array.astype(np.float32) for array in drawn], 10 + self.index, dict(self.metrics)


class Proxy(ClientProxy):  # type: ignore[misc]
    """A client behind its proxy, called directly."""

    def __init__(self, cid: str, client: Any) -> None:
        super().__init__(cid)
        self.client = client

    def fit(self, ins: Any, timeout: Any = None, group_id: Any = None) -> Any:  # noqa: ARG002
        return self.client.fit(ins)

    get_properties = get_parameters = evaluate = reconnect = None


Proxy.__abstractmethods__ = frozenset()


def manager(n_clients: int = N_CLIENTS, *, first: int = 0, named: bool = True, client: Any = Drawn) -> Any:
    """Clients that say their name, or go by their id."""
    made = SimpleClientManager()
    for k in range(n_clients):
        metrics = {"fedworth.client": f"clinic-{k}"} if named else {}
        made.register(Proxy(f"c{first + k}", client(k, metrics).to_client()))
    return made


def train(strategy: Any, clients: Any = None, *, n_rounds: int = 2, first: int = 1) -> Any:
    """The loop of Flower's own server, one client after the other."""
    random.seed(0)
    np.random.seed(0)  # what Flower draws its noise from
    clients = clients or manager()
    parameters = strategy.initialize_parameters(clients) or start()  # a strategy gives its own only once
    for number in range(first, first + n_rounds):
        results, failures = [], []
        for proxy, instructions in strategy.configure_fit(number, parameters, clients):
            try:
                results.append((proxy, proxy.fit(instructions)))
            except Exception as error:
                failures.append(error)
        aggregated, _ = strategy.aggregate_fit(number, results, failures)
        parameters = parameters if aggregated is None else aggregated
    return parameters
