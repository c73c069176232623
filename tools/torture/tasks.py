"""A task is changed after it was observed: what the cache kept for the old one never answers for the new one.

Each kind of change of module, test set, measure or weighting is observed with the cache that the unchanged task has
left; the utilities must be those of a fresh observation, to the bit. Modules are changed in ways that no name of layers
and no source shows, too. Then everything is done once more as if both tasks had one identity, so that only the witness
and the cell that is measured again are left to tell them apart.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from fedworth.games.planning.plan import plan_exact
from fedworth.oracle.cache import utility_cache
from torch import nn

from fedworth.games.observe import Observed, observe_and_count
from fedworth.ledger.ledger import Ledger, open_ledger
from fedworth.ledger.writer import Answer, create_ledger
from fedworth.names import Measure, Weighting
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle, Oracle
from fedworth.oracle.weighting import participation
from fedworth.task.task import Task

Squash = Callable[[torch.Tensor], torch.Tensor]


class Net(nn.Module):
    """A module whose layers and source look the same, whatever it computes with them."""

    shift: torch.Tensor

    def __init__(self, squash: Squash = torch.relu, scale: float = 1.0, shift: float = 0.0, limit: float = 1e9) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.squash, self.scale, self.limit = squash, scale, limit
        self.register_buffer("shift", torch.tensor(shift), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.last(self.squash(self.norm(self.first(inputs)) + self.shift)) * self.scale
        return logits if self.first.weight.norm() < self.limit else logits / 2


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
    "what only clients' models meet": lambda t: Task(Net(limit=2.5), t.inputs, t.labels),
    "what only some clients' models meet": lambda t: Task(Net(limit=4.2), t.inputs, t.labels),
    "inputs in another order": lambda t: Task(t.module, t.inputs.flip(0), t.labels),
    "all inputs shifted": lambda t: Task(t.module, t.inputs + 0.01, t.labels),
    "one input": lambda t: one_input(t, 1.0),
    "one label": one_label,
    "all labels": lambda t: Task(t.module, t.inputs, (t.labels + 1) % 3),
    "another loss": lambda t: replace(t, loss=halved),
    "a sample less": lambda t: sized(t, -1),
    "half the samples": lambda t: sized(t, 20),
}
UNSEEN = ("what only some clients' models meet",)
"""What nothing but the identity shows: neither the global model nor, by chance, the cells that are measured again."""

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
    writer = create_ledger(folder, ["0", "1", "2"], aggregation="uniform")
    noise = {str(k): {name: 1.5 * torch.rand(t.shape) for name, t in start.items()} for k in range(3)}
    models = {k: {n: _plus(t, each[n]) for n, t in start.items()} for k, each in noise.items()}
    writer.record_round(start, {name: Answer(model, 1 + int(name)) for name, model in models.items()})
    writer.release()
    return open_ledger(folder)


def _plus(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return tensor + other if tensor.is_floating_point() else tensor


def seen(
    ledger: Ledger, oracle: Oracle, folder: Path | None, weighting: Weighting = "uniform", as_if: Task | None = None
) -> Observed:
    """An observation, with the cache at this place; `as_if`: under the identity of another task."""
    cache = None
    if folder is not None:
        named = oracle if as_if is None else type(oracle)(as_if, oracle.measure)  # type: ignore[call-arg]
        cache = replace(utility_cache(ledger, named), folder=folder)
    return observe_and_count(
        ledger, oracle, plan_exact(participation(ledger)), weighting=weighting, cache=cache, as_average=True
    )


def changed_tasks(place: Path, seed: int, names: Sequence[str] = ()) -> tuple[Counter[str], list[str]]:
    """Every change (or those of these names) × oracle × identity; whether the cache answered, and what went wrong."""
    ends, wrong = Counter[str](), list[str]()
    ledger = net_ledger(place / "ledger", seed)
    inputs = torch.randn(40, 4, generator=torch.Generator().manual_seed(seed + 1))
    task = Task(Net(), inputs, torch.arange(40) % 3)
    tried = cases(task, names or [*CHANGES, *SETTINGS])
    for make, (name, changed, as_if, weighting) in itertools.product(ORACLES, tried):
        folder = place / f"cache-{ends.total()}"
        seen(ledger, make(task, "loss"), folder)
        oracle = make(changed, SETTINGS.get(name, {}).get("measure", "loss"))
        found, fresh = seen(ledger, oracle, folder, weighting, as_if), seen(ledger, oracle, None, weighting)
        ends["measured anew" if found.n_evaluations else "answered by the cache"] += 1
        if found.matrix.utilities.tobytes() != fresh.matrix.utilities.tobytes():
            alike = "" if as_if is None else ", under one identity"
            wrong.append(f"{name}, {type(oracle).__name__}{alike}: the cache answered for another task")
    return ends, wrong


def cases(task: Task, names: Sequence[str]) -> list[tuple[str, Task, Task | None, Weighting]]:
    """What each change makes of a task: its name, the other task, whose identity it borrows, and the weighting."""
    found: list[tuple[str, Task, Task | None, Weighting]] = []
    for name in names:
        if name in CHANGES:
            other = CHANGES[name](task)
            found.append((name, other, None, "uniform"))
            if name not in UNSEEN:
                found.append((name, other, task, "uniform"))
        else:
            found.append((name, task, None, SETTINGS[name].get("weighting", "uniform")))
    return found
