"""Run the Flower example for real, on this machine, and check its ledger.

    python tools/flower_live.py simulation    `flwr run` with Flower's simulation (ray)
    python tools/flower_live.py loopback      a SuperLink and three SuperNodes as processes of their own; one is killed
                                              with SIGKILL during the second round, and started again
    python tools/flower_live.py vertical      the same with the vertical example, whose clients send embeddings

Needs an environment with `fedworth[flower]` (for the simulation also `flwr[simulation]`). Nothing leaves the machine.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fedworth.ledger.ledger import Ledger

APP = Path(__file__).parents[1] / "examples" / "flower"
VERTICAL_APP = APP.with_name("flower_vertical")
N_CLIENTS = 3
PORT = 18400


def environment(home: Path) -> dict[str, str]:
    """Flower's settings of its own, no telemetry, no update check, no installation at run time, one thread."""
    return {
        **os.environ,
        "HOME": str(home),
        "FLWR_HOME": str(home / ".flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        "NO_COLOR": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }


def start(home: Path, log: str, *command: str) -> "subprocess.Popen[bytes]":
    """A process of its own, its words in a file."""
    with (home / log).open("wb") as file:
        return subprocess.Popen(command, env=environment(home), cwd=home, stdout=file, stderr=file)


def wait_for(text: str, file: Path, seconds: float) -> None:
    """Until `text` has been said so often in `file`, or an error with what was said instead."""
    deadline = time.monotonic() + seconds
    while text not in file.read_text():
        if time.monotonic() > deadline:
            raise SystemExit(f"{file}: no {text!r} in {seconds} s; it says\n{file.read_text()[-3000:]}")
        time.sleep(0.3)


def run_config(ledger: Path, **more: object) -> str:
    """Settings of one run, as Flower wants them."""
    settings = {"ledger": f'"{ledger}"', **{k.replace("_", "-"): v for k, v in more.items()}}
    return " ".join(f"{key}={value}" for key, value in settings.items())


def stop_everything(home: Path) -> None:
    """End all processes that were started with our settings, and no others."""
    ours = f"FLWR_HOME={home / '.flwr'}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if ours in (process / "environ").read_bytes().split(b"\0") and int(process.name) != os.getpid():
                os.kill(int(process.name), signal.SIGKILL)
        except (OSError, ProcessLookupError):
            continue


def simulation(home: Path, ledger: Path) -> Ledger:
    """`flwr run` in Flower's own simulation."""
    connections = '[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = ":local:"\n'
    (home / ".flwr" / "config.toml").write_text(connections)
    federation = f"num-supernodes={N_CLIENTS}"
    command = ["flwr", "run", str(APP), "local", "--stream", "--federation-config", federation]
    process = start(home, "run.log", *command, "--run-config", run_config(ledger, n_clients=N_CLIENTS))
    if process.wait(300):
        raise SystemExit((home / "run.log").read_text()[-3000:])
    return Ledger.verify(ledger)


def loopback(home: Path, ledger: Path, app: Path, **more: object) -> Ledger:
    """A real deployment on loopback, and a client that dies during a round and comes back."""
    connections = f'[superlink]\ndefault = "loop"\n\n[superlink.loop]\naddress = "127.0.0.1:{PORT}"\ninsecure = true\n'
    (home / ".flwr" / "config.toml").write_text(connections)
    here = ("--host", "127.0.0.1", "--port")
    start(
        home,
        "superlink.log",
        "flower-superlink",
        "--insecure",
        "--disable-runtime-dependency-installation",
        *here,
        str(PORT),
    )
    wait_for("Uvicorn running", home / "superlink.log", 120)  # it serves
    nodes = [start_node(home, index, "node") for index in range(N_CLIENTS)]
    settings = run_config(ledger, num_server_rounds=4, timeout=150.0, **more)
    run = start(home, "run.log", "flwr", "run", str(app), "loop", "--stream", "--run-config", settings)
    wait_for("ROUND 2/4", home / "run.log", 600)
    nodes[1].kill()
    wait_for("ROUND 3/4", home / "run.log", 600)
    start_node(home, 1, "again")
    if run.wait(600):
        raise SystemExit((home / "run.log").read_text()[-3000:])
    return Ledger.verify(ledger)


def start_node(home: Path, index: int, log: str) -> "subprocess.Popen[bytes]":
    """One SuperNode with a partition of its own."""
    partition = f"partition-id={index} num-partitions={N_CLIENTS}"
    superlink = ("--superlink", f"127.0.0.1:{PORT}", "--host", "127.0.0.1", "--port", str(PORT + 1 + index))
    return start(home, f"{log}{index}.log", "flower-supernode", "--insecure", *superlink, "--node-config", partition)


def summary(ledger: Ledger) -> dict[str, object]:
    """Who did what, by name."""

    def named(positions: tuple[int, ...]) -> list[str]:
        return [ledger.clients[k] for k in positions]

    rounds = [
        {
            "number": entry.number,
            "asked": len(entry.asked),
            "answered": named(entry.answered),
            "failed": named(entry.failed),
            "silent": named(entry.silent),
            "notes": list(entry.notes),
        }
        for entry in ledger.entries
    ]
    return {"clients": list(ledger.clients), "is_closed": ledger.is_closed, "rounds": rounds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("how", choices=["simulation", "loopback", "vertical"])
    parser.add_argument("--ledger", type=Path, help="keep the ledger here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedworth-flower-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        (home / ".flwr").mkdir()
        ledger = args.ledger.absolute() if args.ledger else home / "ledger"
        try:
            if args.how == "simulation":
                recorded = simulation(home, ledger)
            elif args.how == "loopback":
                recorded = loopback(home, ledger, APP, n_clients=N_CLIENTS, fraction_train=1.0)
            else:
                recorded = loopback(home, ledger, VERTICAL_APP)
            sys.stdout.write(json.dumps(summary(recorded), indent=2) + "\n")
        finally:
            stop_everything(home)


if __name__ == "__main__":
    main()
