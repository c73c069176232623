"""Tasks of every loss, small, and their utilities by an obvious loop in float64."""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedworth.ledger.ledger import Model, Round
from fedworth.oracle.oracle import mix
from fedworth.oracle.weighting import Mixtures
from fedworth.task.losses import LOSSES
from fedworth.task.samples import each, outputs_of
from fedworth.task.task import Task

N = 24


class Words(nn.Module):
    """A class for every token, from embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 5), nn.Linear(5, 7)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(torch.tanh(self.embedding(words)))
        return logits


class Two(nn.Module):
    """Two inputs, by place or by name, and outputs as a model of Hugging Face gives them."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(2, 4)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> dict[str, torch.Tensor | None]:
        return {"logits": torch.relu(self.left(left)) + self.right(right), "more": None}


class Scores(Words):
    """The log-probability of each word after the ones before it."""

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        given = super().forward(words).log_softmax(dim=2)[:, :-1].gather(2, words[:, 1:, None])[:, :, 0]
        return nn.functional.pad(given, (1, 0))


def rows(n_out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, n_out))


def pixels(n_out: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, n_out, 1))


def task_with(loss: Any, seed: int = 0, **more: Any) -> Task:
    """A task of a named loss, with random samples and labels that fit it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        x = torch.randn(N, 6)
        flags = (torch.arange(N) % 3 == 0).float()
        match loss:
            case "segmentation" | "dice":
                labels = torch.randint(0, 3, (N, 4, 4))
                labels[:, 0, 0] = -100
                return Task(pixels(3), torch.randn(N, 2, 4, 4), labels, loss=loss, **more)
            case "tokens" | "next-token" | "texts":
                words = torch.randint(0, 7, (N, 5))
                return Task(
                    Scores() if loss == "texts" else Words(),
                    words,
                    torch.where(words == 3, -100, words),
                    loss=loss,
                    **more,
                )
            case "squared-error":
                return Task(rows(2), x, torch.randn(N, 2), loss=loss, **more)
            case "binary" | "hinge-binary" | "pairwise":
                return Task(rows(1), x, flags, loss=loss, **more)
            case "multi-label":
                return Task(rows(3), x, torch.randint(0, 2, (N, 3)), loss=loss, **more)
            case "cox":
                return Task(rows(1), x, torch.stack([torch.rand(N) // 0.1, flags], dim=1), loss=loss, **more)
            case "probabilities":
                module = nn.Sequential(rows(3), nn.Softmax(dim=1))
                return Task(module, x, torch.randint(0, 3, (N,)), loss=loss, **more)
            case _:
                return Task(rows(3), x, torch.randint(0, 3, (N,)), loss=loss, **more)


NAMES = sorted(LOSSES)
PAIRS = [(name, measure.name) for name in NAMES for measure in LOSSES[name].measures]


@dataclass(frozen=True)
class Wide:
    """A task in float64, all samples at once."""

    task: Task

    def quality(self, model: Model, measure: str) -> float:
        module, criterion = copy.deepcopy(self.task.module).double().eval(), self.task.criterion(measure)
        with torch.inference_mode():
            outputs = outputs_of(
                module, _double(model), each(self.task.inputs, lambda t: t.double() if t.is_floating_point() else t)
            )
        return criterion.total(outputs, self.task.labels) / criterion.n_counted(self.task.labels)

    def utilities(self, round_: Round, wanted: Mixtures, measure: str) -> NDArray[np.float64]:
        origin, models = _double(round_.global_model), {k: _double(m) for k, m in round_.client_models.items()}
        pairs = zip(wanted.of_clients, wanted.of_global.tolist(), strict=True)
        after = [self.quality(mix(origin, models, row, of_global), measure) for row, of_global in pairs]
        return np.array(after) - self.quality(origin, measure)


def _double(model: Model) -> Model:
    return {name: t.double() if t.is_floating_point() else t for name, t in model.items()}
