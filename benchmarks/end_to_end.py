"""From a ledger to values, beside the loop that measures every coalition; prints a Markdown table.

    python benchmarks/end_to_end.py [--data FOLDER] [name …]

Ten clients, who all take part in ten rounds, on MNIST with two digits a client; ResNet-18 has five rounds, on CIFAR-10,
and is measured only if it is named. Our time starts with the ledger's
folder and ends with the values and their intervals, with nothing kept from another run: by all coalitions, and by
sampled coalitions until the sampling error is a quarter of the test set's standard error. The loop averages state
dicts, loads them and predicts in batches of 128 under inference mode; it is timed on some coalitions and scaled to all
coalitions of all rounds. Processor time of one thread; the loop is timed before and after ours. `sampled ρ`: the
sampling error over the test set's standard error, root mean squares over clients. `off`: values by sampling minus those
by all coalitions over the test set's standard error, where both were made. A ratio that misses its bar is named at the
end, and the exit code is 1.
"""

import argparse
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bars import Bars
from federations import exchanged, images_of, module_of, trained

from fedworth.coalitions import coalitions_of
from fedworth.ledger.ledger import Ledger
from fedworth.recording.recorder import record_into
from fedworth.simulation.datasets import DatasetRequest, load_dataset
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of
from fedworth.task.task import Task
from fedworth.valuation.federation import Federation
from fedworth.valuation.settings import WorkSettings
from fedworth.valuation.uncertainty import Source
from fedworth.valuation.valuation import Valuation
from oracle import naive_losses

N_CLIENTS = 10


@dataclass(frozen=True)
class Case:
    """A model, its test set, by how much the loop must be beaten, and on how many coalitions the loop is timed."""

    model: dict[str, Any]  # of a simulation; ResNet-18 if empty
    n_samples: int
    at_least: float
    n_timed: int = 24
    with_all: bool = True  # whether all coalitions are measured, too
    n_rounds: int = 10


CASES = {
    "logistic 784→10": Case({"model": "logistic", "rate": 0.1}, 10_000, 1000),
    "MLP 784-200-10": Case({"model": "mlp", "hidden": (200,), "rate": 0.1}, 10_000, 300),
    "CNN": Case({"model": "cnn", "rate": 0.05}, 1000, 50, n_timed=8, with_all=False),
    "ResNet-18": Case({}, 200, 23, n_timed=4, with_all=False, n_rounds=5),
}


def recorded(case: Case, folder: Path, data: Path | None) -> Task:
    """Simulate a federation, and give its task."""
    settings = SimulationSettings(
        dataset="mnist", n_clients=N_CLIENTS, n_participants=N_CLIENTS, n_rounds=case.n_rounds, with_truth=False,
        train_limit=5000, test_limit=case.n_samples, batch_size=32, n_steps=10, **case.model,
    )  # fmt: skip
    return task_of(simulate(settings, folder, data_folder=data), data_folder=data)


def recorded_resnet(case: Case, folder: Path, data: Path | None) -> Task:
    """Train ResNet-18 a little: each client has its own class of CIFAR-10, and some images of all classes."""
    found = load_dataset("cifar10", DatasetRequest(np.random.default_rng(0), 1, data, 5000, case.n_samples))
    images, labels = images_of(found.train.features), torch.as_tensor(np.asarray(found.train.labels)).long()
    module, names = module_of("resnet18"), [str(k) for k in range(N_CLIENTS)]
    start, recorder = exchanged(module), record_into(folder, names, aggregation="uniform")
    for t in range(case.n_rounds):
        recorder.start_round(start, asked=names)
        models = []
        for k, name in enumerate(names):
            mine = torch.cat([torch.nonzero(labels == k)[:200, 0], torch.arange(40 * k, 40 * k + 40)])
            module.load_state_dict(start)
            models.append(exchanged(trained(module, (images[mine], labels[mine]), 2, 100 * t + k)))
            recorder.client_model(name, models[-1], len(mine))
        recorder.end_round()
        start = {name: torch.stack([m[name] for m in models]).double().mean(0).to(like) for name, like in start.items()}
    recorder.close(start)
    test = images_of(found.test.features), torch.as_tensor(np.asarray(found.test.labels)).long()
    return Task(module_of("resnet18"), *test)


def values_of(folder: Path, task: Task, *, is_sampled: bool) -> tuple[Valuation, float]:
    """The values of a ledger, and the processor time that they took."""
    start = time.process_time()
    work = WorkSettings(n_threads=1, cache=False)
    made = Federation(Ledger.open(folder), task, work=work, sampled=is_sampled).value("fedsv")
    return made, time.process_time() - start


def loop_seconds(folder: Path, task: Task, n_timed: int) -> float:
    """The processor time of the loop for one coalition."""
    rows = coalitions_of(np.arange(N_CLIENTS), N_CLIENTS)
    some = np.random.default_rng(0).permutation(rows[1:])[:n_timed]
    round_ = Ledger.open(folder).open_round(0)
    naive_losses(task, round_, some[:1])
    start = time.process_time()
    naive_losses(task, round_, some)
    return (time.process_time() - start) / n_timed


def measure(name: str, data: Path | None, bars: Bars) -> str:
    """One row of the table."""
    case = CASES[name]
    n_all = case.n_rounds * 2**N_CLIENTS  # the empty coalition is the global model of every round
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "ledger"
        task = (recorded if case.model else recorded_resnet)(case, folder, data)
        before = loop_seconds(folder, task, case.n_timed)
        made, sampled = values_of(folder, task, is_sampled=True)
        exact, enumerated = values_of(folder, task, is_sampled=False) if case.with_all else (None, np.nan)
        loop = n_all * min(before, loop_seconds(folder, task, case.n_timed))
    assert made.uncertainty is not None
    of_test_set = rms(made.uncertainty.parts[Source.TEST_SET])
    rho = rms(made.uncertainty.parts[Source.SAMPLING]) / of_test_set
    off = "" if exact is None else f"{rms(made.values - exact.values) / of_test_set:.2f}"
    bars.at_least(f"{name}, times the loop", loop / sampled, case.at_least)
    bars.at_most(f"{name}, ρ", rho, 0.25)
    ours = f"{enumerated:.2f} | {loop / enumerated:,.0f}×" if case.with_all else " | "
    row = f"{case.n_samples:,} | {loop:,.0f} | {ours} | {sampled:.2f} | **{loop / sampled:,.0f}×** | {case.at_least:g}×"
    return f"| {name} | {row} | {made.n_evaluations:,} of {n_all:,} | {rho:.2f} | {off} |"


def rms(values: Any) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(CASES))
    parser.add_argument("--data", type=Path, default=os.environ.get("FEDWORTH_DATA"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    bars = Bars()
    names = (
        "model | samples | loop, s | all, s | ratio | sampled, s | ratio | asked for | evaluations | sampled ρ | off"
    )
    print(f"| {names} |")
    print("| --- |" + " ---: |" * 10)
    for name, case in CASES.items():
        if any(wanted in name for wanted in given.names) or (not given.names and case.model):
            print(measure(name, given.data, bars), flush=True)
    bars.close()


if __name__ == "__main__":
    main()
