"""A server or a client of Flower's old API, each a process of its own on loopback: `start_server` and `start_client`.

python processes.py server PORT LEDGER
python processes.py client PORT INDEX
"""

import sys

import numpy as np
from flwr.client import NumPyClient, start_client
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerConfig, start_server
from flwr.server.strategy import FedAvg

import fedworth.flower

N_CLIENTS, N_ROUNDS = 2, 2


class Client(NumPyClient):  # type: ignore[misc]
    """Adds its own number, and says who it is itself: there are no mods here."""

    def __init__(self, index: int) -> None:
        self.index = index

    def fit(self, parameters, config):  # noqa: ARG002
        return [array + self.index for array in parameters], 1 + self.index, {"fedworth.client": f"clinic-{self.index}"}


def serve(address: str, ledger: str) -> None:
    start = ndarrays_to_parameters([np.zeros((2, 2), dtype=np.float32), np.ones(2, dtype=np.float32)])
    options = {"min_fit_clients": N_CLIENTS, "min_available_clients": N_CLIENTS, "fraction_evaluate": 0.0}
    recording = fedworth.flower.record(FedAvg(initial_parameters=start, **options), ledger=ledger)
    start_server(server_address=address, config=ServerConfig(num_rounds=N_ROUNDS), strategy=recording)
    recording.close()


if __name__ == "__main__":
    role, port, what = sys.argv[1:]
    if role == "server":
        serve(f"127.0.0.1:{port}", what)
    else:
        start_client(server_address=f"127.0.0.1:{port}", client=Client(int(what)).to_client(), max_wait_time=120)
