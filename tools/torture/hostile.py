"""One client sends something odd: every utility is what the plain loop measures, or the client is refused by name.

Each kind of model and of count goes through the recorder of a live federation, into a ledger, and through an oracle;
then all coalitions are measured by the plain loop, too, and must agree. An oracle that refuses must name the client.
What fails otherwise, or differs, is wrong.
"""

import itertools
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedworth.arrays import Floats
from fedworth.errors import FedworthError
from fedworth.ledger.ledger import Ledger, Model
from fedworth.names import Measure, Weighting
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle, Oracle
from fedworth.recording.recorder import record_into
from fedworth.task.task import Task
from fedworth.valuation.federation import Federation
from fedworth.valuation.settings import ValuationSettings, WorkSettings

EVIL = "evil"
TOLERANCE = 1e-4
"""Part of the largest utility by which an oracle in float32 may differ from another."""
CLIENTS = ("ada", EVIL, "ben", "cyd")
MODULES: dict[str, Callable[[], nn.Module]] = {
    "logistic": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3)),
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)),
    "convolution": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)
    ),
    "double": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, 3)).double(),
}
ORACLES: dict[str, Callable[[Task, Measure], Oracle]] = {"fast": FastOracle, "loop": LoopOracle}


Make = Callable[[Model, Model], Any]
"""What a client sends, made of an honest answer and the global model."""


def scaled(factor: float) -> Make:
    """The model, its floats so many times as large."""
    return lambda good, _: {k: t * factor if t.is_floating_point() else t for k, t in good.items()}


def moved(factor: float) -> Make:
    """The update, so many times as long."""
    return lambda good, start: {
        k: start[k] + factor * (t - start[k]) if t.is_floating_point() else t for k, t in good.items()
    }


def one(value: float) -> Make:
    """One number of the last matrix is another."""

    def made(good: Model, _: Model) -> Model:
        bad = {name: tensor.clone() for name, tensor in good.items()}
        bad[[name for name in bad if name.endswith("weight")][-1]].view(-1)[0] = value
        return bad

    return made


def cast(dtype: torch.dtype) -> Make:
    """All floats in another dtype."""
    return lambda good, _: {k: t.to(dtype) if t.is_floating_point() else t for k, t in good.items()}


def every(value: float) -> Make:
    """All numbers are this one."""
    return lambda good, _: {name: torch.full_like(tensor, value) for name, tensor in good.items()}


def each(change: Callable[[torch.Tensor], Any]) -> Make:
    """Every tensor, changed."""
    return lambda good, _: {name: change(tensor) for name, tensor in good.items()}


MODELS: dict[str, Make] = {
    "nothing odd": scaled(1.0),
    **{f"times {factor:g}": scaled(factor) for factor in (0.0, -1.0, 1e3, -1e6, 1e12, 1e18, 1e30, 1e-7, 1e-30, 1e-42)},
    **{f"update times {factor:g}": moved(factor) for factor in (0.0, 10.0, 1e3, -1e5, 1e9)},
    **{f"one number {value:g}": one(value) for value in (np.nan, np.inf, -np.inf, 1e5, 1e15, 1e37, 1e-45, 3e38)},
    **{str(dtype): cast(dtype) for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8)},
    **{f"every number {value:g}": every(value) for value in (1e4, 1e6, -1e7)},
    "complex": cast(torch.complex64),
    "the global model": lambda _, start: dict(start),
    "no tensors": lambda *_: {},
    "a tensor more": lambda good, _: {**good, "more": torch.zeros(2)},
    "another shape": each(lambda t: t.reshape(-1)[:1]),
    "a row for all": each(lambda t: t[:1].expand(t.shape) if t.ndim else t),
    "transposed": each(lambda t: t.mT.contiguous().mT if t.ndim > 1 else t),
    "sparse": each(lambda t: t.to_sparse()),
    "meta": each(lambda t: t.to("meta")),
    "nested": each(lambda t: torch.nested.nested_tensor([t, t])),
    "negated view": each(lambda t: torch._neg_view(t) if t.is_floating_point() else t),
    "with a gradient": each(lambda t: t.clone().requires_grad_() if t.is_floating_point() else t),
    "numpy": each(lambda t: t.numpy()),
    "text": each(lambda _: "x"),
    "a whole number of 2^62": each(lambda t: t if t.is_floating_point() else torch.full_like(t, 2**62)),
}
COUNTS: dict[str, Any] = {
    **{f"{count!r}": count for count in (1, 7, 10**6, 10**12, 0, -3, 10**13, 10**400, 0.5, 1e-18, 1e-300, 5e-324)},
    **{f"{count!r}": count for count in (np.nan, np.inf, -np.inf, True, "5", None, 1e17, 12.0)},
    "numpy int64": np.int64(9),
    "numpy float32": np.float32(9),
    "numpy int8": np.int8(9),
    "an array": np.array([9]),
    "a tensor": torch.tensor(9),
}
WEIGHTS = (2.0**-53, 1e-15, 1e-9, 0.1, 1e9, 2.0**53)


def cases(share: float) -> Iterator[tuple[str, Make, Any, bool]]:
    """What an answer may be: its name, its model, its count, and whether the server weighs by real numbers."""
    step = max(1, round(1 / share))
    found: list[tuple[str, Make, Any, bool]] = [(name, make, 9, False) for name, make in MODELS.items()]
    found += [(f"count {name}", MODELS["nothing odd"], count, False) for name, count in COUNTS.items()]
    found += [(f"weight {weight!r}", MODELS["nothing odd"], weight, True) for weight in WEIGHTS]
    yield from found[::step]


def recorded(folder: Path, module: nn.Module, make: Make, count: Any, is_real: bool, seed: int) -> Ledger:
    """A round in which one client of four answers so."""
    generator = torch.Generator().manual_seed(seed)
    start = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    recorder = record_into(folder, real_weights=is_real)
    recorder.start_round(start, asked=list(CLIENTS))
    for k, name in enumerate(CLIENTS):
        good = {n: t + 0.1 * torch.randn(t.shape, generator=generator).to(t) for n, t in start.items()}
        recorder.client_model(name, make(good, start) if name == EVIL else good, count if name == EVIL else 10 + k)
    recorder.end_round()
    recorder.writer.release()
    return Ledger.open(folder)


def tried(ledger: Ledger, task: Task, oracle: str, weighting: Weighting, measure: Measure) -> tuple[str, list[str]]:
    """How it ended, and what went wrong: every cell against the plain loop."""
    if not ledger.entries:
        return "lost", [f"no round was recorded: {ledger.missing}"]
    end = "quarantined" if ledger.clients.index(EVIL) in ledger.entries[0].quarantined else "measured"
    try:
        found = measured(ledger, ORACLES[oracle](task, measure), weighting)
    except FedworthError as error:
        return "refused", [] if EVIL in str(error) and end == "measured" else [f"{end}, then: {error}"]
    try:
        plain = measured(ledger, LoopOracle(task, measure), weighting)
    except FedworthError as error:
        return end, [f"measured, though the plain loop refuses: {error}"]
    scale = max(1.0, float(np.abs(plain).max()))
    apart = float(np.abs(found - plain).max())
    return end, [f"{apart} apart from the plain loop, of {scale}"] if apart > TOLERANCE * scale else []


def measured(ledger: Ledger, oracle: Oracle, weighting: Weighting) -> Floats:
    """The utilities of all coalitions."""
    settings, work = ValuationSettings(weighting=weighting, as_average=True), WorkSettings(cache=False)
    return Federation(ledger, oracle.task, settings, work=work, oracle=oracle).utility_matrix().utilities


def hostile(
    place: Path, seed: int, share: float = 1.0, modules: Sequence[str] = tuple(MODULES)
) -> tuple[Counter[str], list[str]]:
    """Each kind of answer × module × oracle × weighting and measure; how they ended, and what went wrong."""
    rng, ends, wrong = random.Random(seed), Counter[str](), list[str]()
    torch.manual_seed(seed)
    tasks = {name: task_for(make()) for name, make in MODULES.items() if name in modules}
    for (name, task), (kind, change, count, is_real) in itertools.product(tasks.items(), cases(share)):
        folder = place / "ledger"
        ledger = recorded(folder, task.module, change, count, is_real, seed)
        for oracle in ORACLES:
            weighting: Weighting = rng.choice(("uniform", "samples", "fixed"))
            measure: Measure = rng.choice(("loss", "loss", "accuracy"))
            end, problems = tried(ledger, task, oracle, weighting, measure)
            ends[end] += 1
            wrong += [f"{kind}, {name}, {oracle}, {weighting}, {measure}: {problem}" for problem in problems]
        shutil.rmtree(folder)
    return ends, wrong


def task_for(module: nn.Module) -> Task:
    """A small test set for a module."""
    inputs = torch.randn(30, 1, 4, 4, generator=torch.Generator().manual_seed(5))
    return Task(module.eval(), inputs.to(next(module.parameters()).dtype), torch.arange(30) % 3)
