"""Copies of modules have tensors of their own, whatever the module keeps."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from fedworth.task.modules import copied


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "make",
    [lambda layer: layer, nn.utils.weight_norm, lambda layer: prune.random_unstructured(layer, "weight", 0.5)],
)
def test_a_copy_gives_the_same_learns_and_leaves_the_module_alone(make):
    module, inputs = nn.Sequential(make(nn.Linear(4, 3))), torch.randn(5, 4)
    before, other = module(inputs).detach(), copied(module)
    assert torch.equal(other(inputs), before)
    other(inputs).sum().backward()
    with torch.no_grad():
        for parameter in other.parameters():
            assert parameter.grad is not None
            parameter.add_(1)
    assert not torch.equal(other(inputs), before)
    assert torch.equal(module(inputs), before)
