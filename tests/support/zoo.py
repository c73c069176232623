"""Modules of many kinds, rounds of random clients for them, and their utilities in float64."""

import copy
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call

from fedworth.ledger.ledger import Model, Round
from fedworth.ledger.manifest import RoundEntry
from fedworth.names import Weighting
from fedworth.oracle.oracle import mix
from fedworth.oracle.weighting import Mixtures, client_weights, mixtures
from fedworth.task.task import Task

N_SAMPLES, N_CLASSES = 40, 4
SAMPLE_COUNTS = {0: 3, 1: 1, 2: 4, 3: 1, 4: 5}


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 5, batch_first=True), nn.Linear(5, N_CLASSES)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Attentive(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, N_CLASSES)

    def forward(self, x):
        return self.head(self.layer(x).mean(1))


class Tokens(nn.Module):
    """Embeddings averaged, with a buffer that no model holds and a constant written into forward."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(10, 6), nn.Linear(6, N_CLASSES)
        self.register_buffer("scale", torch.linspace(1, 2, 6), persistent=False)

    def forward(self, x):
        return self.head(torch.tanh(self.embedding(x).mean(1) * self.scale + torch.tensor([1.0, 2, 3, 4, 5, 6])))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, N_CLASSES)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.head(torch.relu(self.second(torch.relu(self.first(x)))))


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, N_CLASSES)

    def forward(self, x):
        y = self.layer(x)
        return 2 * y if self.layer.weight.sum() > 0 else y


class Residual(nn.Module):
    """x + f(x), of rows or images."""

    def __init__(self, make: Callable[[], nn.Module]):
        super().__init__()
        self.first, self.second = make(), make()

    def forward(self, x):
        return x + self.second(torch.relu(self.first(x)))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(8, 12), nn.Linear(6, N_CLASSES)

    def forward(self, x):
        value, gate = self.layer(x).chunk(2, 1)
        return self.head(value * torch.sigmoid(gate))


class Raw(nn.Module):
    """Parameters of its own, and a constant changed in place."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, N_CLASSES)), nn.Parameter(torch.zeros(N_CLASSES))

    def forward(self, x):
        return (x.clone().mul_(2)) @ self.weight + self.bias


def _conv(n_in: int, n_out: int) -> nn.Module:
    return nn.Conv2d(n_in, n_out, 3, padding=1)


ROWS, GREY, IMAGES, LINES = (8,), (1, 8, 8), (3, 8, 8), (5, 8)
S, L = nn.Sequential, nn.Linear
ZOO: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "logistic": (lambda: S(L(8, 4)), ROWS, "kernel"),
    "mlp": (lambda: S(L(8, 16), nn.ReLU(), L(16, 4)), ROWS, "kernel"),
    "deep mlp": (
        lambda: S(L(8, 16), nn.ReLU(), nn.Dropout(0.5), L(16, 13), nn.ReLU(True), L(13, 4, bias=False)),
        ROWS,
        "kernel",
    ),
    "tanh": (lambda: S(L(8, 16), nn.Tanh(), L(16, 4)), ROWS, "kernel"),
    "deep gelu": (lambda: S(L(8, 16), nn.GELU(), L(16, 13), nn.GELU(), L(13, 4)), ROWS, "kernel"),
    "gelu by tanh": (lambda: S(L(8, 16), nn.GELU(approximate="tanh"), L(16, 4)), ROWS, "kernel"),
    "silu": (lambda: S(L(8, 16), nn.SiLU(), L(16, 4)), ROWS, "kernel"),
    "sigmoid": (lambda: S(L(8, 16), nn.Sigmoid(), L(16, 4)), ROWS, "kernel"),
    "leaky relu": (lambda: S(L(8, 16), nn.LeakyReLU(0.1), L(16, 4)), ROWS, "kernel"),
    "two kinds": (lambda: S(L(8, 16), nn.Tanh(), L(16, 8), nn.ReLU(), L(8, 4)), ROWS, "graph"),
    "cnn": (
        lambda: S(_conv(1, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(), nn.Flatten(), L(64, 4)),
        GREY,
        "graph",
    ),
    "vgg": (
        lambda: S(
            _conv(3, 4),
            nn.BatchNorm2d(4),
            nn.ReLU(True),
            nn.Conv2d(4, 4, 3, padding="same", bias=False),
            nn.BatchNorm2d(4, affine=False),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            L(4, 4),
        ),
        IMAGES,
        "graph",
    ),
    "residual": (lambda: S(Residual(lambda: _conv(3, 3)), nn.Flatten(), L(192, 4)), IMAGES, "graph"),
    "pooled convolution": (
        lambda: S(nn.Conv2d(3, 4, 3), nn.AvgPool2d(2), nn.ReLU(), nn.Flatten(), L(36, 4)),
        IMAGES,
        "kernel",
    ),
    "two linear": (lambda: S(L(8, 16), L(16, 4)), ROWS, "graph"),
    "input norm": (lambda: S(nn.BatchNorm1d(8), L(8, 4)), ROWS, "graph"),
    "tied": (Tied, ROWS, "kernel"),
    "raw": (Raw, ROWS, "kernel"),
    "tokens": (Tokens, (4,), "graph"),
    "batch statistics": (lambda: S(nn.BatchNorm1d(8, track_running_stats=False), L(8, 4)), ROWS, "plain"),
    "gated": (Gated, ROWS, "graph"),
    "grouped": (
        lambda: S(nn.Conv2d(3, 6, 3, groups=3), nn.GroupNorm(2, 6), nn.ReLU(), nn.Flatten(), L(216, 4)),
        IMAGES,
        "graph",
    ),
    "branching": (Branching, ROWS, "loop"),
    "recurrent": (Recurrent, LINES, "graph"),
    "attentive": (Attentive, LINES, "graph"),
}


def task_of(
    make: Callable[[], nn.Module], shape: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0
) -> Task:
    """A task with random samples; those of one dimension of 4 are tokens."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = make().to(dtype).eval()
        inputs = torch.randint(0, 10, (N_SAMPLES, 4)) if shape == (4,) else torch.randn(N_SAMPLES, *shape, dtype=dtype)
        return Task(module, inputs, torch.randint(0, N_CLASSES, (N_SAMPLES,)))


def round_of(module: nn.Module, n_clients: int = 5, *, size: float = 0.3, frozen: tuple[str, ...] = ()) -> Round:
    """Clients that differ by `size` of the weights; variances stay positive, tied tensors tied."""
    origin = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    clients = {k: _client(module, origin, k, size, frozen) for k in range(n_clients)}
    return Round(RoundEntry(0, 0, "rounds/000000.safetensors", ""), origin, clients, {})


def _client(module: nn.Module, origin: Model, seed: int, size: float, frozen: tuple[str, ...]) -> Model:
    generator = torch.Generator().manual_seed(seed)
    names: dict[int, str] = {}
    owners = {name: names.setdefault(id(p), name) for name, p in module.named_parameters(remove_duplicate=False)}
    model: Model = {}
    for name, tensor in origin.items():
        if name.startswith(frozen or ("-",)):
            model[name] = tensor
        elif owners.get(name, name) != name:
            model[name] = model[owners[name]]
        elif not tensor.is_floating_point():
            model[name] = tensor + seed
        else:
            noise = size * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
            positive = bool((tensor > 0).all())
            model[name] = tensor * noise.exp() if positive else tensor + noise * (tensor.abs().mean() + 0.1)
    return model


def all_mixtures(weighting: Weighting, n_clients: int = 5) -> Mixtures:
    """Every coalition of the clients, the empty one first."""
    coalitions = (np.arange(2**n_clients)[:, None] >> np.arange(n_clients) & 1).astype(bool)
    weights = client_weights(SAMPLE_COUNTS, n_clients, weighting=weighting, aggregation="samples")
    return mixtures(coalitions, weights, weighting)


def exact_utilities(task: Task, round_: Round, wanted: Mixtures, measure: str = "loss") -> NDArray[np.float64]:
    """The plain loop in float64, all samples in one batch."""
    module = copy.deepcopy(task.module).double().eval()
    inputs = task.inputs.double() if task.inputs.is_floating_point() else task.inputs
    origin, clients = _widened(round_.global_model), {k: _widened(m) for k, m in round_.client_models.items()}

    def quality(model: Model) -> float:
        with torch.inference_mode():
            logits = functional_call(module, model, (inputs,), tie_weights=False)
        if measure == "accuracy":
            return float((logits.argmax(1) == task.labels).double().mean())
        return -F.cross_entropy(logits, task.labels).item()

    rows = zip(wanted.of_clients, wanted.of_global.tolist(), strict=True)
    return np.array([quality(mix(origin, clients, row, of_global)) for row, of_global in rows]) - quality(origin)


def _widened(model: Model) -> Model:
    return {name: t.double() if t.is_floating_point() else t for name, t in model.items()}
