"""The models of the paper's studies by name: logistic regression, MLP, CNN, VGG16.

All take samples of `input_shape` and return one logit per class. The same spec and seed give the same bytes.
"""

import itertools
import math
from dataclasses import dataclass

import torch
from torch import nn

from fedworth.errors import UsageError
from fedworth.ledger.ledger import Model
from fedworth.names import Dtype, ModelName, checked_name
from fedworth.simulation.settings import MOST_LAYERS, MOST_WIDTH

DTYPES: dict[Dtype, torch.dtype] = {"float32": torch.float32, "float64": torch.float64}

# Simonyan and Zisserman 2014, configuration D; 0 stands for a pooling layer
VGG16_WIDTHS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
N_GROUPS = 8  # of channels that GroupNorm normalises together


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a model is made from: its kind, the shape of its samples, the number of classes, and its widths."""

    name: ModelName
    input_shape: tuple[int, ...]
    n_classes: int
    hidden: tuple[int, ...] = ()
    width_divisor: int = 1
    dtype: Dtype = "float32"

    def __post_init__(self) -> None:
        checked_name("model", ModelName, self.name)
        checked_name("dtype", Dtype, self.dtype)
        if (self.name == "cnn" or self.name.startswith("vgg16")) and len(self.input_shape) != 3:
            raise UsageError(f"model {self.name!r} reads images, but the samples have shape {self.input_shape}")
        if self.name == "cnn" and len(self.hidden) not in (0, 3):
            raise UsageError(
                f"model 'cnn' has hidden widths {self.hidden}, expected three (two of channels, one layer) or none"
            )
        if max(self.hidden, default=0) > MOST_WIDTH or len(self.hidden) > MOST_LAYERS:
            found = f"{len(self.hidden)} hidden layers, the widest of {max(self.hidden)}"
            raise UsageError(f"model {self.name!r}: {found}; expected {MOST_LAYERS} of {MOST_WIDTH:,} at most")
        if min(*self.hidden, self.width_divisor, self.n_classes, 64 // max(self.width_divisor, 1)) < 1:
            found = f"hidden {self.hidden}, {self.n_classes} classes, widths divided by {self.width_divisor}"
            raise UsageError(f"model {self.name!r}: {found}; expected widths of 1 or more")
        if self.name.startswith("vgg16") and min(self.input_shape[1:]) < 32:
            raise UsageError(f"model {self.name!r} needs images of 32×32 or more, found {self.input_shape}")


def build_model(spec: ModelSpec, *, seed: int = 0) -> nn.Module:
    """A module with weights drawn from `seed` alone; torch's global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        match spec.name:
            case "logistic":
                module = _perceptron(spec, ())
            case "mlp":
                module = _perceptron(spec, spec.hidden or (200,))
            case "cnn":
                module = _cnn(spec)
            case _:
                module = _vgg16(spec)
    return module.to(DTYPES[spec.dtype]).eval()


def state_of(module: nn.Module) -> Model:
    """A module's parameters and buffers, detached, in one dictionary."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def _perceptron(spec: ModelSpec, hidden: tuple[int, ...]) -> nn.Module:
    widths = (math.prod(spec.input_shape), *hidden, spec.n_classes)
    layers: list[nn.Module] = [nn.Flatten()]
    for n_in, n_out in itertools.pairwise(widths):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _cnn(spec: ModelSpec) -> nn.Module:
    """Two 5×5 convolutions of 16 and 32 channels, each pooled, and one hidden layer of 128."""
    n_channels, height, width = spec.input_shape
    first, second, hidden = spec.hidden or (16, 32, 128)
    return nn.Sequential(
        nn.Conv2d(n_channels, first, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * (height // 4) * (width // 4), hidden),
        nn.ReLU(),
        nn.Linear(hidden, spec.n_classes),
    )


def _vgg16(spec: ModelSpec) -> nn.Module:
    """VGG16 for images of 32×32: thirteen convolutions, then one linear layer (He et al. 2015 start)."""
    layers: list[nn.Module] = []
    n_in = spec.input_shape[0]
    for width in VGG16_WIDTHS:
        n_out = width // spec.width_divisor
        if width == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        layers.append(nn.Conv2d(n_in, n_out, 3, padding=1))
        layers += [nn.BatchNorm2d(n_out)] if spec.name == "vgg16-bn" else []
        layers += [nn.GroupNorm(math.gcd(n_out, N_GROUPS), n_out)] if spec.name == "vgg16-gn" else []
        layers.append(nn.ReLU())
        n_in = n_out
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n_in, spec.n_classes))
    for layer in module:
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias) if layer.bias is not None else None
    return module
