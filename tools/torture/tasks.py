"""A task is changed after it was measured: utilities kept for the old one never answer for the new one.

Each kind of change of module, test set, measure or weighting is measured with the utilities that the unchanged task has
left in the cache; the result must be that of a fresh measurement, to the bit. The modules of some tasks are made of
torch's own layers, whose utilities are kept; others have code of their own, whose utilities must not be.
"""

import itertools
import shutil
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedworth.arrays import Floats
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.writer import Answer, LedgerWriter
from fedworth.names import Measure, Weighting
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle, Oracle
from fedworth.oracle.store import cache_folder
from fedworth.task.task import Task
from fedworth.valuation.federation import Federation
from fedworth.valuation.settings import ValuationSettings, WorkSettings

Squash = Callable[[torch.Tensor], torch.Tensor]


class Net(nn.Module):
    """A module whose layers and source look the same, whatever it computes with them."""

    shift: torch.Tensor

    def __init__(self, squash: Squash = torch.relu, scale: float = 1.0, shift: float = 0.0) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.squash, self.scale = squash, scale
        self.register_buffer("shift", torch.tensor(shift), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.last(self.squash(self.norm(self.first(inputs)) + self.shift)) * self.scale
        return logits


class Corrected(Net):
    """The same layers, another source."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(torch.relu(self.first(inputs)))
        return found


def with_eps(eps: float) -> Net:
    """A batch norm with another constant, which no tensor holds."""
    net = Net()
    net.norm.eps = eps
    return net


def sized(task: Task, n: int) -> Task:
    """The first so many samples."""
    return Task(task.module, task.inputs[:n], task.labels[:n])


def one_input(task: Task, amount: float) -> Task:
    """One number of one sample is another."""
    inputs = task.inputs.clone()
    inputs[-1, -1] += amount
    return Task(task.module, inputs, task.labels)


def one_label(task: Task) -> Task:
    """One label is another."""
    labels = task.labels.clone()
    labels[-1] = (labels[-1] + 1) % 3
    return Task(task.module, task.inputs, labels)


def halved(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """A loss of one's own."""
    return nn.functional.cross_entropy(outputs / 2, labels, reduction="none")


CHANGES: dict[str, Callable[[Task], Task]] = {
    "a forgotten relu": lambda t: Task(Net(squash=lambda x: x), t.inputs, t.labels),
    "a relu in place of a leaky one": lambda t: Task(Net(squash=nn.functional.leaky_relu), t.inputs, t.labels),
    "another activation": lambda t: Task(Net(squash=torch.tanh), t.inputs, t.labels),
    "another forward": lambda t: Task(Corrected(), t.inputs, t.labels),
    "a factor of 1.01": lambda t: Task(Net(scale=1.01), t.inputs, t.labels),
    "a temperature": lambda t: Task(Net(scale=0.5), t.inputs, t.labels),
    "a buffer that models do not carry": lambda t: Task(Net(shift=0.1), t.inputs, t.labels),
    "a constant of the batch norm": lambda t: Task(with_eps(0.5), t.inputs, t.labels),
    "inputs in another order": lambda t: Task(t.module, t.inputs.flip(0), t.labels),
    "all inputs shifted": lambda t: Task(t.module, t.inputs + 0.01, t.labels),
    "one input": lambda t: one_input(t, 1.0),
    "one label": one_label,
    "all labels": lambda t: Task(t.module, t.inputs, (t.labels + 1) % 3),
    "another loss": lambda t: replace(t, loss=halved),
    "a sample less": lambda t: sized(t, -1),
    "half the samples": lambda t: sized(t, 20),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "another measure": {"measure": "accuracy"},
    "another weighting": {"weighting": "samples"},
    "fixed weights": {"weighting": "fixed"},
}
ORACLES: tuple[Callable[[Task, Measure], Oracle], ...] = (LoopOracle, FastOracle)


def net_ledger(folder: Path, seed: int) -> Ledger:
    """A round of clients whose first layers are larger than the global model's."""
    torch.manual_seed(seed)
    start = {name: tensor.clone() for name, tensor in Net().state_dict().items()}
    writer = LedgerWriter.create(folder, ["0", "1", "2"], aggregation="uniform")
    noise = {str(k): {name: 1.5 * torch.rand(t.shape) for name, t in start.items()} for k in range(3)}
    models = {k: {n: _plus(t, each[n]) for n, t in start.items()} for k, each in noise.items()}
    writer.record_round(start, {name: Answer(model, 1 + int(name)) for name, model in models.items()})
    writer.release()
    return Ledger.open(folder)


def _plus(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return tensor + other if tensor.is_floating_point() else tensor


def seen(ledger: Ledger, oracle: Oracle, *, is_kept: bool, weighting: Weighting = "uniform") -> Floats:
    """The utilities of all coalitions, with those that are kept in the cache or without."""
    settings = ValuationSettings(weighting=weighting, as_average=True)
    work = WorkSettings(cache=is_kept)
    return Federation(ledger, oracle.task, settings, work=work, oracle=oracle).utility_matrix().utilities


def plain(eps: float = 1e-5, squash: type[nn.Module] = nn.ReLU) -> nn.Module:
    """The same tensors as those of `Net`, in layers of torch alone."""
    net = Net()
    net.norm.eps = eps
    parts = {"first": net.first, "norm": net.norm, "squash": squash(), "last": net.last}
    return nn.Sequential(OrderedDict(parts))


PLAIN_CHANGES: dict[str, Callable[[Task], Task]] = {
    "another layer": lambda t: replace(t, module=plain(squash=nn.Tanh)),
    "a constant of a batch norm": lambda t: replace(t, module=plain(eps=0.5)),
    "a hook": lambda t: replace(t, module=_hooked(plain())),
    "one input": lambda t: one_input(t, 1.0),
    "one label": one_label,
    "half the samples": lambda t: sized(t, 20),
    "another loss": lambda t: replace(t, loss=halved),
}


def _hooked(module: nn.Module) -> nn.Module:
    module.register_forward_hook(lambda *call: call[2] / 2)
    return module


def changed_tasks(place: Path, seed: int, names: Sequence[str] = ()) -> tuple[Counter[str], list[str]]:
    """Every change (or those of these names) for each oracle; how many there were, and what went wrong."""
    ends, wrong = Counter[str](), list[str]()
    ledger = net_ledger(place / "ledger", seed)
    inputs = torch.randn(40, 4, generator=torch.Generator().manual_seed(seed + 1))
    for module, changes in ((Net(), {**CHANGES}), (plain(), PLAIN_CHANGES)):
        task = Task(module, inputs, torch.arange(40) % 3)
        wanted = [name for name in [*changes, *SETTINGS] if not names or name in names]
        for make, name in itertools.product(ORACLES, wanted):
            shutil.rmtree(cache_folder(), ignore_errors=True)
            seen(ledger, make(task, "loss"), is_kept=True)
            changed = changes[name](task) if name in changes else task
            oracle = make(changed, SETTINGS.get(name, {}).get("measure", "loss"))
            weighting: Weighting = SETTINGS.get(name, {}).get("weighting", "uniform")
            found = seen(ledger, oracle, is_kept=True, weighting=weighting)
            ends["changed"] += 1
            if found.tobytes() != seen(ledger, oracle, is_kept=False, weighting=weighting).tobytes():
                wrong.append(f"{name}, {type(oracle).__name__}: utilities of another task were used")
    return ends, wrong
