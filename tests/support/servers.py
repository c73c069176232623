"""Small federations with a server of one's choice: models drawn from a seed, each next model the server's own."""

from pathlib import Path

import numpy as np
import torch

from fedworth.ledger.ledger import Ledger, Model
from fedworth.recording.recorder import record_into
from fedworth.task.rules import Rule, State, arrays_of, model_of

CLIENTS = ("a", "b", "c", "d")


def first_model() -> Model:
    """The parameters of a linear layer of 3 inputs and 4 classes."""
    rng = torch.Generator().manual_seed(5)
    return {"weight": torch.randn(4, 3, generator=rng), "bias": torch.randn(4, generator=rng)}


def federation(
    folder: Path, rule: Rule, *, n_rounds: int = 4, is_closed: bool = True, recorded: Rule | None = None
) -> Ledger:
    """Four clients that draw towards points of their own, and a server that follows `rule`; `recorded` is what the
    ledger's header says of it."""
    rng = np.random.default_rng(0)
    recorder = record_into(folder, rule=recorded)
    model, memory = first_model(), dict[str, object]()
    for number in range(1, n_rounds + 1):
        chosen = CLIENTS if number == 1 else CLIENTS[number % 2 : 3 + number % 2]
        answers = {name: _trained(model, CLIENTS.index(name), rng) for name in chosen}
        recorder.start_round(model, asked=list(chosen), number=number)
        for name, answer in answers.items():
            recorder.client_model(name, answer, 10.0 + CLIENTS.index(name))
        recorder.end_round()
        weights = [10.0 + CLIENTS.index(name) for name in chosen]
        state = State(number, memory)  # type: ignore[arg-type]
        arrays, after = rule.aggregate(arrays_of(model), [arrays_of(m) for m in answers.values()], weights, state)
        model, memory = model_of(arrays, model), dict(after.memory)
    if is_closed:
        recorder.close(model)
    return Ledger.open(folder)


def _trained(model: Model, client: int, rng: np.random.Generator) -> Model:
    return {
        name: tensor + 0.3 * (client - tensor) + torch.from_numpy(0.1 * rng.normal(size=tensor.shape)).to(tensor)
        for name, tensor in model.items()
    }
