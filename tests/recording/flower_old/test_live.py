"""`start_server` and `start_client` for real: three processes on loopback."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from fedworth.ledger.ledger import Ledger
from fedworth.task.replay import check_ledger
from fedworth.task.rules import WeightedMean

SCRIPT = Path(__file__).with_name("processes.py")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def process(*words: str) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0"}
    return subprocess.Popen([sys.executable, str(SCRIPT), *words], env=environment, stderr=subprocess.PIPE)


def test_a_server_and_two_clients_in_processes_of_their_own(tmp_path):
    port = str(free_port())
    server = process("server", port, str(tmp_path / "l"))
    assert server.stderr is not None
    assert any(b"[ROUND 1]" in line for line in server.stderr)  # it listens, and waits for its clients
    clients = [process("client", port, str(index)) for index in range(2)]
    said = server.communicate(timeout=300)[1]
    assert server.returncode == 0, said.decode()[-3000:]
    assert [client.communicate(timeout=60) and client.returncode for client in clients] == [0, 0]
    ledger = Ledger.verify(tmp_path / "l")
    assert sorted(ledger.clients) == ["clinic-0", "clinic-1"]
    assert (ledger.is_closed, [len(entry.participants) for entry in ledger.entries]) == (True, [2, 2])
    check_ledger(ledger, WeightedMean()).refuse_others()
