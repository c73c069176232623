"""Federations of large models from the training to the page: time, memory, and what was said before; prints a table.

    python benchmarks/federations.py resnet18 --out FOLDER [--data FOLDER] [--rounds 5] [--samples 1000] [--steps 10]
    python benchmarks/federations.py lora --out FOLDER

    resnet18    ResNet-18 (11 million parameters) on CIFAR-10, 8 clients by Dirichlet's distribution, all of them in
                every round, trained by Flower's simulation; needs `flwr[simulation]`
    lora        adapters of rank 4 beside a transformer of 4 layers that stays as it is, dictionaries as inputs, 3 of 6
                clients in a round and all in the first, recorded from a loop

The stages (data, training with the recorder, report and page, time of the loop) leave their results in FOLDER. Call the
command again after an interruption: finished stages are skipped, the training starts anew, and the report goes on where
it stopped, with the measurements in the user's cache folder ($FEDWORTH_CACHE). CPU time and
memory are those of the report's process (RssAnon at its peak; the ledger's mapped pages are the kernel's). Enumeration
is extrapolated from the loop's time for two coalitions.
"""

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from heavy import Adapted, Residual
from memory import Watch
from torch import nn

from fedworth.games.effort import time_text
from fedworth.ledger.ledger import Ledger
from fedworth.oracle.oracle import LoopOracle
from fedworth.oracle.weighting import mixtures
from fedworth.pipeline.report_on import report_on
from fedworth.recording.recorder import record_into
from fedworth.simulation.datasets import DatasetRequest, load_dataset
from fedworth.task.task import Task

N_CLIENTS = {"resnet18": 8, "lora": 6}
N_WORDS, N_PLACES, N_TOPICS = 2000, 48, 6
State = dict[str, torch.Tensor]


def resnet18() -> nn.Module:
    """ResNet-18 with the stem that images of 32 × 32 have."""
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()),
        *(Residual(*width) for width in [*widths, (512, 512, 1)]),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)),
    )


class Layer(nn.Module):
    """A transformer's layer with adapters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = Adapted(width, 3 * width, 4), Adapted(width, width, 4)
        self.up, self.down = Adapted(width, 4 * width, 4), Adapted(4 * width, width, 4)

    def forward(self, h: torch.Tensor, is_word: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.unflatten(-1, (4, -1)).transpose(1, 2) for x in self.qkv(self.norms[0](h)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=is_word[:, None, None])
        h = h + self.out(mixed.transpose(1, 2).flatten(2))
        found: torch.Tensor = h + self.down(F.gelu(self.up(self.norms[1](h))))
        return found


class Transformer(nn.Module):
    """Says of a text which topic it has; takes what a tokenizer gives."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(N_WORDS, width), nn.Parameter(torch.randn(N_PLACES, width) * 0.1)
        self.layers = nn.ModuleList([Layer(width) for _ in range(4)])
        self.head = nn.Linear(width, N_TOPICS)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        h = self.words(input_ids) + self.places[: input_ids.shape[1]]
        for layer in self.layers:
            h = layer(h, attention_mask.bool())
        weights = attention_mask[:, :, None] / attention_mask.sum(1)[:, None, None]
        found: torch.Tensor = self.head((h * weights).sum(1))
        return found


def texts(labels: torch.Tensor, seed: int) -> dict[str, torch.Tensor]:
    """Texts of 12 to 48 words, of which a sixth belongs to their topic."""
    rng = np.random.default_rng(seed)
    shape = len(labels), N_PLACES
    is_topical, of_topic = rng.random(shape) < 1 / 6, 60 * labels.numpy()[:, None] + rng.integers(0, 60, shape)
    words = np.where(is_topical, of_topic, rng.integers(60 * N_TOPICS, N_WORDS, shape))
    is_word = np.arange(N_PLACES) < rng.integers(12, N_PLACES + 1, (len(labels), 1))
    return {"input_ids": torch.from_numpy(words * is_word), "attention_mask": torch.from_numpy(is_word).float()}


def make_data(args: argparse.Namespace, path: Path) -> None:
    """What every client has, and the test set: (inputs, labels) each."""
    n_clients, rng = N_CLIENTS[args.name], np.random.default_rng(0)
    parts: list[tuple[Any, torch.Tensor]] = []
    if args.name == "lora":
        for client, share in enumerate(rng.dirichlet([0.5] * N_TOPICS, n_clients)):
            labels = torch.from_numpy(rng.choice(N_TOPICS, 300, p=share))
            parts.append((texts(labels, client + 1), labels))
        labels = torch.from_numpy(rng.integers(0, N_TOPICS, args.samples))
        torch.save([*parts, (texts(labels, 1000), labels)], path)
        return
    found = load_dataset("cifar10", DatasetRequest(rng, 1, args.data, test_limit=args.samples))
    classes, of_class = np.asarray(found.train.labels), rng.dirichlet([0.5] * n_clients, 10)  # (10, n_clients)
    owner = np.array([rng.choice(n_clients, p=of_class[label]) for label in classes])
    for client in range(n_clients):
        some = rng.permutation(np.flatnonzero(owner == client))[:2000]
        parts.append((images_of(found.train.features[some]), torch.from_numpy(classes[some]).long()))
    test = images_of(found.test.features), torch.as_tensor(np.asarray(found.test.labels)).long()
    torch.save([*parts, test], path)


def images_of(features: Any) -> torch.Tensor:
    """(n, 3, 32, 32)."""
    return torch.as_tensor(np.asarray(features), dtype=torch.float32).reshape(-1, 3, 32, 32)


def module_of(name: str) -> nn.Module:
    """The module as training starts with it."""
    torch.manual_seed(0)
    return (resnet18() if name == "resnet18" else Transformer()).eval()


def trained(module: nn.Module, data: tuple[Any, torch.Tensor], n_steps: int, seed: int) -> nn.Module:
    """The module after some local steps; adapters alone are trained if there are any."""
    torch.manual_seed(seed)
    named = list(module.named_parameters())
    adapters = [p for name, p in named if "lora_" in name]
    optimizer = torch.optim.Adam(adapters or [p for _, p in named], lr=5e-3 if adapters else 1e-3)
    inputs, labels = data
    module.train()
    for _ in range(n_steps):
        some = torch.randint(len(labels), (32,))
        keywords = {name: x[some] for name, x in inputs.items()} if isinstance(inputs, dict) else {}
        outputs = module(**keywords) if keywords else module(inputs[some])
        optimizer.zero_grad()
        F.cross_entropy(outputs, labels[some]).backward()
        optimizer.step()
    return module.eval()


def exchanged(module: nn.Module) -> State:
    """The tensors that clients send: the adapters, if there are any."""
    state = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    return {name: tensor for name, tensor in state.items() if "lora_" in name} or state


def record_by_loop(args: argparse.Namespace, data: list[Any], folder: Path) -> None:
    """Train adapters in a loop, half of the clients a round."""
    names, rng, module = [f"clinic-{k}" for k in range(len(data) - 1)], np.random.default_rng(1), module_of(args.name)
    start = exchanged(module)
    recorder = record_into(folder, names, aggregation="uniform")
    for t in range(args.rounds):
        chosen = range(len(names)) if t == 0 else sorted(rng.choice(len(names), len(names) // 2, replace=False))
        recorder.start_round(start, asked=[names[k] for k in chosen])
        models = []
        for k in chosen:
            module.load_state_dict(start, strict=False)
            models.append(exchanged(trained(module, data[k], args.steps, 100 * t + k)))
            recorder.client_model(names[k], models[-1], len(data[k][1]))
        recorder.end_round()
        start = {name: torch.stack([model[name] for model in models]).mean(0) for name in start}
    recorder.close(start)


def record_by_flower(args: argparse.Namespace, path: Path, folder: Path) -> None:
    """Train by Flower's simulation, every client in every round."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    import fedworth.flower

    client, server, n_clients = ClientApp(mods=[fedworth.flower.identity]), ServerApp(), N_CLIENTS[args.name]

    @client.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        module, k = module_of("resnet18"), int(context.node_config["partition-id"])
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        data = torch.load(path, mmap=True)[k]
        trained(module, data, args.steps, 100 * int(message.content["config"]["server-round"]) + k)
        metrics = MetricRecord({"num-examples": len(data[1])})
        content = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    @server.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, _context: Context) -> None:
        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=n_clients)
        recording = fedworth.flower.record(grid, ledger=folder)
        arrays = ArrayRecord(module_of("resnet18").state_dict())
        result = strategy.start(grid=recording, initial_arrays=arrays, num_rounds=args.rounds, timeout=7200)
        recording.close(result.arrays)

    run_simulation(server, client, n_clients, backend_config={"client_resources": {"num_cpus": 1}})


class Said(logging.Handler):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        print(f"{time.process_time():.0f} s: {self.lines[-1]}", file=sys.stderr, flush=True)


def task_of(name: str, data: list[Any]) -> Task:
    """The task on the test set."""
    inputs, labels = data[-1]
    return Task(module_of(name), inputs, labels, exchanged="lora_" if name == "lora" else None)


def make_report(args: argparse.Namespace, data: list[Any], folder: Path, spent: Path) -> dict[str, Any]:
    """The report and its page, and what they took, with what an interrupted call had taken before."""
    before: dict[str, Any] = json.loads(spent.read_text()) if spent.exists() else {"cpu": 0.0, "said": ""}
    said = Said()
    log = logging.getLogger("fedworth")
    log.addHandler(said)
    log.setLevel(logging.INFO)

    def note(*_: object) -> None:
        forecast = [line for line in said.lines if line.startswith("sampling coalitions")]
        now = {"cpu": before["cpu"] + time.process_time(), "said": before["said"] or "".join(forecast[:1])}
        spent.write_text(json.dumps(now))

    with Watch(every=0.05) as watch:
        report = report_on(Ledger.open(folder), task_of(args.name, data), progress=note)
        report.write(folder.parent / "report")
    made = report.chosen
    note()
    return {
        **json.loads(spent.read_text()),
        "gb": watch.peak / 1e9,
        "method": made.method,
        "evaluations": made.n_evaluations,
        "notes": [note for note in made.notes if "sampl" in note],
    }


def loop_seconds(args: argparse.Namespace, data: list[Any], folder: Path) -> float:
    """The processor time of the loop for one coalition on all test samples."""
    ledger = Ledger.open(folder)
    round_, n = ledger.open_round(0), len(ledger.clients)
    oracle = LoopOracle(task_of(args.name, data))
    times = []
    for rows in (np.ones((1, n), dtype=bool), np.tri(3, n, dtype=bool)):
        start = time.process_time()
        oracle.utilities(round_, mixtures(rows, np.ones(n), "uniform"))
        times.append(time.process_time() - start)
    return (times[1] - times[0]) / 2  # both measure the global model, and check the others


def stage(args: argparse.Namespace, name: str) -> None:
    """One stage, in a process of its own."""
    ledger, path = args.out / "ledger", args.out / "data.pt"
    if name == "data":
        make_data(args, path)
        return
    if name == "record" and args.name == "resnet18":
        record_by_flower(args, path.resolve(), ledger.resolve())
        return
    data = torch.load(path, mmap=True)
    if name == "record":
        record_by_loop(args, data, ledger)
    elif name == "report":
        (args.out / "report.figures").write_text(json.dumps(make_report(args, data, ledger, args.out / "spent")))
    else:
        (args.out / "loop.figures").write_text(json.dumps(loop_seconds(args, data, ledger)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=list(N_CLIENTS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=os.environ.get("FEDWORTH_DATA"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.stage:
        stage(args, args.stage)
        return
    made = {"data": "data.pt", "record": "ledger/final.safetensors", "report": "report.figures", "loop": "loop.figures"}
    times = args.out / "times"
    wall: dict[str, float] = json.loads(times.read_text()) if times.exists() else {}
    for name, file in made.items():
        if name == "record" and not (args.out / file).exists():
            shutil.rmtree(args.out / "ledger", ignore_errors=True)  # of a training that was interrupted
        start = time.monotonic()
        if not (args.out / file).exists():
            subprocess.run([sys.executable, *sys.argv, "--stage", name], check=True)
            wall[name] = wall.get(name, 0.0) + time.monotonic() - start
            times.write_text(json.dumps(wall))
    found, loop = (json.loads((args.out / made[name]).read_text()) for name in ("report", "loop"))
    ledger = Ledger.open(args.out / "ledger")
    n_all = ledger.n_rounds * (2 ** len(ledger.clients) - 1)
    print(f"before: {found['said']}")
    print("\n".join(found["notes"]))
    print(
        "\n| federation | rounds | test samples | training, wall | report, wall | report, CPU | own GB | evaluations |"
    )
    print("| --- |" + " ---: |" * 7)
    walls = " | ".join(time_text(wall[name]) if name in wall else "" for name in ("record", "report"))
    sizes = f"{args.name} | {ledger.n_rounds} | {args.samples:,} | {walls}"
    print(
        f"| {sizes} | {time_text(found['cpu'])} | {found['gb']:.2f} | {found['evaluations']:,} by {found['method']} |"
    )
    every = f"{time_text(n_all * loop)} for all {n_all:,} of all rounds"
    print(f"\nThe loop takes {time_text(loop)} of CPU a coalition, so {every}.")


if __name__ == "__main__":
    main()
