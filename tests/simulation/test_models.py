"""Models are made by name, from their spec and seed alone."""

from typing import Any, get_args

import pytest
import torch
from torch import nn

from fedworth.errors import UsageError
from fedworth.names import ModelName
from fedworth.simulation.models import ModelSpec, build_model, state_of

IMAGE = (3, 32, 32)


def spec(name: str, **changes: Any) -> ModelSpec:
    narrow = {"width_divisor": 16} if name.startswith("vgg16") else {}
    return ModelSpec(**{"name": name, "input_shape": IMAGE, "n_classes": 10, **narrow, **changes})


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("name", get_args(ModelName))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_model_gives_one_logit_a_class_in_its_precision(name, dtype):
    module = build_model(spec(name, dtype=dtype))
    expected = getattr(torch, dtype)
    with torch.inference_mode():
        logits = module(torch.zeros(2, *IMAGE, dtype=expected))
    assert logits.shape == (2, 10)
    assert logits.dtype == expected
    assert not module.training


@pytest.mark.parametrize("name", get_args(ModelName))
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(name):
    first, again, other = (state_of(build_model(spec(name), seed=seed)) for seed in (7, 7, 8))
    assert same(first, again)
    assert not same(first, other)


def test_building_a_model_leaves_the_global_generator_as_it_was():
    before = torch.random.get_rng_state()
    build_model(spec("mlp"), seed=5)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "hidden", "shapes"),
    [
        ("logistic", [], [(10, 3072)]),
        ("mlp", [], [(200, 3072), (10, 200)]),
        ("mlp", [7, 5], [(7, 3072), (5, 7), (10, 5)]),
        ("cnn", [], [(16, 3, 5, 5), (32, 16, 5, 5), (128, 2048), (10, 128)]),
        ("cnn", [2, 3, 4], [(2, 3, 5, 5), (3, 2, 5, 5), (4, 192), (10, 4)]),
    ],
)
def test_the_widths_are_those_asked_for(name, hidden, shapes):
    state = state_of(build_model(spec(name, hidden=hidden)))
    assert [tuple(tensor.shape) for key, tensor in state.items() if key.endswith("weight")] == shapes


@pytest.mark.parametrize("name", ["vgg16", "vgg16-bn", "vgg16-gn"])
def test_vgg16_has_thirteen_convolutions_and_one_linear_layer(name):
    layers = list(build_model(spec(name)).modules())
    assert sum(isinstance(layer, nn.Conv2d) for layer in layers) == 13
    assert sum(isinstance(layer, nn.Linear) for layer in layers) == 1
    assert any(isinstance(layer, nn.BatchNorm2d) for layer in layers) == (name == "vgg16-bn")
    assert any(isinstance(layer, nn.GroupNorm) for layer in layers) == (name == "vgg16-gn")


def test_a_state_is_a_copy_with_the_buffers():
    module = build_model(spec("vgg16-bn"))
    state = state_of(module)
    assert any(name.endswith("running_mean") for name in state)
    next(iter(state.values())).add_(1)
    assert not same(state, state_of(module))
    assert not any(tensor.requires_grad for tensor in state.values())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "vgg17"}, r"unknown model 'vgg17': did you mean 'vgg16'\?"),
        ({"dtype": "float16"}, r"unknown dtype 'float16': did you mean 'float"),
        ({"name": "cnn", "input_shape": (60,)}, r"'cnn' reads images, but the samples have shape \(60,\)"),
        ({"name": "vgg16", "input_shape": (1, 28, 28)}, r"'vgg16' needs images of 32×32 or more"),
        ({"name": "cnn", "hidden": (32,)}, r"hidden widths \(32,\), expected three"),
        ({"hidden": (0,)}, "expected widths of 1 or more"),
        ({"n_classes": 0}, "expected widths of 1 or more"),
        ({"name": "vgg16", "width_divisor": 0}, "expected widths of 1 or more"),
        ({"name": "vgg16", "width_divisor": 65}, "expected widths of 1 or more"),
    ],
)
def test_a_model_that_cannot_be_made_is_refused(fields, message):
    with pytest.raises(UsageError, match=message):
        ModelSpec(**{"name": "mlp", "input_shape": IMAGE, "n_classes": 10, **fields})
