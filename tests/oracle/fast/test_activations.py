"""Activations in vector instructions err no more than float32 itself does."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedworth.compile import compiled
from fedworth.oracle.fast.kernels.activations import GELU, LEAKY_RELU, SIGMOID, SILU, TANH, TANH_GELU, activate
from fedworth.oracle.fast.kernels.lanes import LANES

SLOPE = 0.125
REFERENCES = {
    LEAKY_RELU: lambda x: F.leaky_relu(x, SLOPE),
    TANH: torch.tanh,
    SIGMOID: torch.sigmoid,
    SILU: F.silu,
    GELU: F.gelu,
    TANH_GELU: lambda x: F.gelu(x, approximate="tanh"),
}


@compiled
def activate_all(kind, numbers, scale, slope):
    activate(kind, (numbers, scale, slope, len(numbers)))


def activated(kind, numbers, scale=1.0):
    found = numbers.copy()
    activate_all(kind, found, np.float32(scale), np.float32(SLOPE))
    return found


@pytest.mark.parametrize("kind", REFERENCES)
def test_an_activation_errs_by_1e_7_at_most_of_what_it_is_given(kind):
    near, far = np.linspace(-4, 4, 1 << 14), np.linspace(-200, 200, 1 << 14)
    numbers = np.concatenate([near, far, np.geomspace(1e-30, 1e30, 1 << 12)]).astype(np.float32)
    expected = REFERENCES[kind](torch.from_numpy(numbers).double()).numpy()
    assert (np.abs(activated(kind, numbers) - expected) <= 1e-7 * np.maximum(1, np.abs(numbers))).all()


@pytest.mark.parametrize("kind", REFERENCES)
def test_the_scale_comes_first_and_what_is_not_finite_is_said(kind):
    numbers = np.linspace(-8, 8, LANES, dtype=np.float32)
    assert activated(kind, 4 * numbers, 0.25).tolist() == activated(kind, numbers).tolist()
    numbers[1], numbers[LANES - 1] = np.nan, np.inf
    assert np.flatnonzero(np.isnan(activated(kind, numbers))).tolist() == [1, LANES - 1]
