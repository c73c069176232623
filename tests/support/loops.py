"""A training loop of one's own: three clients, one a copy of another, that train with torch's global random numbers."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedworth.ledger.model import Model
from fedworth.recording.recorder import LiveRecorder, record_into
from fedworth.task.task import Task

CLIENTS = ("north", "söuth (2)", "copy")


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 3))


def samples(seed: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    return inputs, (inputs[:, :3] + 0.1 * inputs[:, 3:]).argmax(1)


def task() -> Task:
    """The test set of the federation."""
    return Task(net(), *samples(99, 60))


def train(folder: Path, *, n_rounds: int = 3, each_round: Any = None, **options: Any) -> Model:
    """Train and record; the final model."""
    recorder = record_into(folder, **options)
    final = train_into(recorder, n_rounds=n_rounds, each_round=each_round)
    recorder.close(final)
    return final


def train_into(recorder: LiveRecorder, *, n_rounds: int = 3, each_round: Any = None) -> Model:
    """Train and record into a ledger that stays open; the final model."""
    torch.manual_seed(4)
    server = net()
    for number in range(1, n_rounds + 1):
        start = {name: tensor.clone() for name, tensor in server.state_dict().items()}
        asked = CLIENTS if number == 1 else CLIENTS[number % 2 :]
        recorder.start_round(start, asked=asked, number=number)
        models = {name: _trained(start, 1 if name == "copy" else CLIENTS.index(name) + 1) for name in asked}
        for name, model in models.items():
            recorder.client_model(name, models["söuth (2)"] if name == "copy" else model, 40)
        recorder.end_round()
        heard = [models["söuth (2)"] if name == "copy" else model for name, model in models.items()]
        server.load_state_dict({key: torch.stack([model[key] for model in heard]).mean(0) for key in start})
        if each_round is not None:
            each_round(number)
    return server.state_dict()


def _trained(start: Model, seed: int) -> Model:
    module, (inputs, labels) = net(), samples(seed, 40)
    module.load_state_dict(start)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.3)
    for chosen in torch.randperm(40).split(10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs[chosen]), labels[chosen]).backward()
        optimizer.step()
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}
