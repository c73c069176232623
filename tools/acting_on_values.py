"""What acting on values does to accuracy: federations with noisy labels or free riders, trained by FedAvg and by a
strategy that drops clients whose value is negative.

    .venv-flower/bin/python tools/acting_on_values.py                 a table for docs/live-federations.md, some minutes

Handwritten digits, 10 clients, a network with one hidden layer. Some clients have wrong labels: drawn anew, or all one
too high. Or they have no data, and send the global model back, or the server's last step. Values are measured on 250
samples of the server's, accuracy on 250 others. The difference from FedAvg is over pairs of the same seed. Every
federation is recorded, and its ledger must pass the check that the server averaged what is recorded.
"""

import argparse
import logging
import os
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # read when flwr is imported
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "flower")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from handwriting.acting import Dropping  # noqa: E402
from handwriting.task import digits  # noqa: E402
from tests.recording.flower.in_process import InProcessGrid  # noqa: E402
from torch import nn  # noqa: E402

import fedworth.flower  # noqa: E402
from fedworth import Ledger, Task  # noqa: E402
from fedworth.task.replay import check_ledger  # noqa: E402
from fedworth.task.rules import WeightedMean  # noqa: E402

N_CLIENTS, N_VALUED, N_TEST, N_ROUNDS = 10, 250, 250, 15
Noise = tuple[int, float, bool]
NOISES: dict[str, Noise] = {  # how many clients, what share of their labels, drawn anew or (True) one too high
    "none": (0, 0.0, False),
    "3 of 10: all labels drawn anew": (3, 1.0, False),
    "5 of 10: 80 % of labels drawn anew": (5, 0.8, False),
    "4 of 10: all labels one too high": (4, 1.0, True),
}
RIDERS: dict[str, tuple[int, float]] = {  # how many clients without data, and what part of the last step they send
    "3 of 10: no update": (3, 0.0),
    "3 of 10: the last step": (3, 1.0),
    "3 of 10: the last step × 3": (3, 3.0),
    "5 of 10: the last step × 3": (5, 3.0),
}
STRATEGIES: dict[str, Callable[..., Any]] = {
    "FedAvg": lambda _, **options: FedAvg(**options),
    "dropping": Dropping,
}
Part = tuple[torch.Tensor, torch.Tensor]


def build(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def parts(seed: int, n_noisy: int, share: float, is_shifted: bool) -> tuple[list[Part], Part, Part]:
    """Each client's samples, those that values are measured on, and those for accuracy."""
    inputs, labels = digits()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    inputs, labels = inputs[order], labels[order].clone()
    first = N_VALUED + N_TEST
    rng = torch.Generator().manual_seed(1000 + seed)
    clients = []
    for index, own in enumerate(torch.arange(first, len(labels)).chunk(N_CLIENTS)):
        said = labels[own]
        if index < n_noisy:
            is_wrong = torch.rand(len(own), generator=rng) < share
            drawn = torch.randint(10, said.shape, generator=rng)
            said = torch.where(is_wrong, (said + 1) % 10 if is_shifted else drawn, said)
        clients.append((inputs[own], said))
    return clients, (inputs[:N_VALUED], labels[:N_VALUED]), (inputs[N_VALUED:first], labels[N_VALUED:first])


def client_app(clients: list[Part], seed: int, n_riders: int, factor: float) -> ClientApp:
    """Clients that train, the first of them free riders that remember the last global model."""
    app = ClientApp(mods=[fedworth.flower.identity])
    before: dict[int, dict[str, torch.Tensor]] = {}

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Any) -> Message:
        inputs, labels = clients[context.node_config["partition-id"]]
        model = build(seed)
        start = message.content["arrays"].to_torch_state_dict()
        model.load_state_dict(start)
        if context.node_config["partition-id"] < n_riders:
            last = before.get(context.node_config["partition-id"], start)
            before[context.node_config["partition-id"]] = {name: tensor.clone() for name, tensor in start.items()}
            model.load_state_dict({name: t + factor * (t - last[name]) for name, t in start.items()})
            metrics = MetricRecord({"num-examples": len(labels)})
            return Message(
                RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message
            )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(10):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": len(labels)})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    return app


def accuracy(name: str, seed: int, noise: Noise, riders: tuple[int, float], folder: Path) -> float:
    """The final model's accuracy on samples that nobody has seen."""
    clients, valued, unseen = parts(seed, *noise)
    strategy = STRATEGIES[name](Task(build(seed), *valued), fraction_evaluate=0.0)
    random.seed(seed)
    grid = InProcessGrid(client_app(clients, seed, *riders), N_CLIENTS)
    recording = fedworth.flower.record(grid, ledger=folder, strategy=strategy)
    start = ArrayRecord(build(seed).state_dict())
    arrays = strategy.start(grid=recording, initial_arrays=start, num_rounds=N_ROUNDS, timeout=60).arrays
    recording.close(arrays)
    check_ledger(Ledger.open(folder), WeightedMean()).refuse_others()  # the recorded weights are those in use
    model = build(seed)
    model.load_state_dict(arrays.to_torch_state_dict())
    with torch.inference_mode():
        return float((model(unseen[0]).argmax(dim=1) == unseen[1]).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(100, 120)))
    parser.add_argument("--rows", choices=("noise", "riders", "all"), default="all")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    print(f"| clients | {' | '.join(STRATEGIES)} | difference |")
    print(f"| --- |{' ---: |' * (len(STRATEGIES) + 1)}")
    rows = {label: (noise, (0, 0.0)) for label, noise in NOISES.items() if args.rows != "riders"}
    rows |= {label: (NOISES["none"], riders) for label, riders in RIDERS.items() if args.rows != "noise"}
    for label, (noise, riders) in rows.items():
        found = []
        for name in STRATEGIES:
            with tempfile.TemporaryDirectory() as place:
                each = [accuracy(name, seed, noise, riders, Path(place) / f"{seed}.ledger") for seed in args.seeds]
            found.append(np.array(each))
        shown = [f"{each.mean():.3f} ± {error_of(each):.3f}" for each in found]
        apart = found[1] - found[0]
        print(f"| {label} | {' | '.join(shown)} | {apart.mean():+.4f} ± {error_of(apart):.4f} |", flush=True)


def error_of(found: np.ndarray) -> float:
    """The standard error of a mean."""
    return float(np.std(found, ddof=1) / np.sqrt(len(found))) if len(found) > 1 else 0.0


if __name__ == "__main__":
    main()
