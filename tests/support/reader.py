"""What a reader of README and docstrings has: a ledger, a task in a file, models in a folder, own utilities."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from sklearn.linear_model import LogisticRegression

import fedworth

NAMES = ("north", "south", "west")
SMALL = fedworth.SimulationSettings(
    n_clients=3, n_participants=2, n_rounds=3, train_limit=90, test_limit=60, n_steps=1, seed=5
)
TASK = """
from fedworth import Ledger, task_of

task = task_of(Ledger.open("runs/demo/ledger"))
"""


def lay_out(folder: Path) -> None:
    """Write into `folder` what examples read from the disk."""
    fedworth.run(fedworth.RunSettings(SMALL), folder / "runs" / "demo")
    fedworth.run(fedworth.RunSettings(replace(SMALL, training_seed=6)), folder / "runs" / "again")
    simulated = fedworth.Ledger.open(folder / "runs" / "demo" / "ledger")
    (folder / "mytask.py").write_text(TASK)
    _record(simulated, folder / "my.ledger")
    _keep(simulated, folder / "kept-models")
    federation = fedworth.Federation(fedworth.Ledger.open(folder / "my.ledger"), fedworth.task_of(simulated))
    utilities = federation.utility_matrix()
    utilities.save(folder / "mine.npz")
    for name in ("a", "b"):
        fedworth.report_on(utilities, title=name).write(folder / name)


def _record(simulated: fedworth.Ledger, place: Path) -> None:
    """The same rounds, of clients that have names."""
    writer = fedworth.LedgerWriter.create(place, NAMES, aggregation="uniform")
    for round_ in simulated.rounds():
        answers = {NAMES[k]: fedworth.Answer(model, 30) for k, model in round_.client_models.items()}
        writer.record_round(round_.global_model, answers)
    writer.release()


def _keep(simulated: fedworth.Ledger, place: Path) -> None:
    for number, round_ in enumerate(simulated.rounds()):
        (place / f"{number:03d}").mkdir(parents=True)
        save_file(round_.global_model, place / f"{number:03d}" / "global.safetensors")
        for k, model in round_.client_models.items():
            save_file(model, place / f"{number:03d}" / f"{NAMES[k]}.safetensors")
    (place / "samples.json").write_text(json.dumps(dict.fromkeys(NAMES, 30)))


def names_of_a_reader() -> dict[str, Any]:
    """What examples call by name, from the folder that they run in."""
    from matplotlib.figure import Figure

    ledger, task = fedworth.Ledger.open("my.ledger"), fedworth.Task.load("mytask.py:task")
    utilities, report = fedworth.UtilityMatrix.load("mine.npz"), fedworth.Report.read("a")
    federation = fedworth.Federation(ledger, task)
    whole = fedworth.report_on(ledger, task)
    round_ = next(iter(ledger.rounds()))
    return {
        "fedworth": fedworth,
        "numpy": np,
        "torch": torch,
        "Path": Path,
        "ledger": ledger,
        "task": task,
        "oracle": fedworth.LoopOracle(task),
        "utilities": utilities,
        "federation": federation,
        "completion": fedworth.complete(utilities),
        "report": whole,
        "valuation": whole.chosen,
        "comparison": fedworth.Comparison.of([report, report], ["June", "July"]),
        "axes": Figure().subplots(),
        "model": round_.global_model,
        "answer": round_.client_models[0],
        "module": task.module,
        "test_loader": [(task.inputs, task.labels)],
        "fitted": LogisticRegression().fit(np.eye(4), [0, 1, 0, 1]),
        "test_inputs": np.eye(4),
        "test_labels": np.array([0, 1, 0, 1]),
        "weights": np.zeros(3),
        "vertical": fedworth.Vertical(torch.nn.Linear(8, 2), torch.arange(60) % 2, {"bank": 4, "shop": 4}),
        "regions": ["coast", "inland"] * 30,
        "my_rule": fedworth.shapley,
        "my_loss": lambda found: float(np.abs(found["weights"]).sum()),
    }
