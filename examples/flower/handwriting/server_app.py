"""The server: Flower's own FedAvg. One line records the federation, one more keeps the final model."""

from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import fedworth.flower
from handwriting.task import build

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = FedAvg(fraction_train=float(config["fraction-train"]), fraction_evaluate=0.0)
    ledger = Path(str(config["ledger"])).expanduser()
    recording = fedworth.flower.record(grid, ledger=ledger, hear_everyone=int(config["n-clients"]))
    result = strategy.start(
        grid=recording,
        initial_arrays=ArrayRecord(build().state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        timeout=float(config["timeout"]),
    )
    recording.close(result.arrays)
