"""Activations of a tile of samples, in vector instructions.

Beside relu and leaky relu, all are made of one exponential, e = exp(−|v|) ≤ 1, so that nothing overflows:

    σ(−|v|) = e / (1 + e)                      sigmoid, and 1 less that for v > 0
    tanh|x| = 1 − 2 σ(−2|x|)                   for |x| ≥ ⅝; below, x + x³ p(x²)
    x σ(v) = max(x, 0) − |x| σ(−|v|)           silu with v = x; gelu's tanh form with v = 2√(2/π) (x + 0.044715 x³)
    x Φ(x) = max(x, 0) − |x| Φ(−|x|)           gelu, with Φ(−|x|) = ½ exp(−x²/2) t q(t) and t = 1 / (1 + |x|/√8)

Each errs by at most 1e-7 of max(1, |x|), which is float32's own rounding. p and q are Chebyshev interpolations of
(tanh(√z)/√z − 1)/z from 0 to 0.4 and of exp(a²) erfc(a) / t with a = 2 (1/t − 1), from a = 0 to 9.3.
A number that is not finite becomes NaN.
"""

from typing import Any, NamedTuple

import numpy as np

from fedworth.compile import compiled_within, intrinsic, types
from fedworth.oracle.fast.kernels.lanes import I64, LANES, LOG2E, Lanes

RELU, LEAKY_RELU, TANH, SIGMOID, SILU, GELU, TANH_GELU = range(7)


class Activation(NamedTuple):
    """What a hidden layer's outputs go through."""

    kind: int = RELU
    slope: float = 0.0  # of a leaky relu, below 0


SMALL = 0.625
"""Below it tanh is a polynomial."""

_TANH = (-0.333333283662796, 0.1333271861076355, -0.05384325981140137, 0.020961323752999306, -0.006045159418135881)
_NORMAL = (
    0.2820852994918823,
    0.28239598870277405,
    0.24295037984848022,
    0.20328256487846375,
    -0.027959143742918968,
    0.2798384726047516,
    -0.4885672926902771,
    0.28513532876968384,
    -0.05916161462664604,
)
_STEEPNESS = 2 * np.sqrt(2 / np.pi)
_BEND = 0.044715


def _activation(of_vector: Any) -> Any:
    """An intrinsic that replaces numbers x by f(scale · x). Operands: numbers, scale, slope, size."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes, b = Lanes(context, builder), builder
        numbers, scale, slope, size = lanes.operands(signature, args)
        scales, slopes = lanes.everywhere(scale), lanes.everywhere(slope)
        with lanes.times(b.udiv(size, I64(LANES))) as v:
            offset = b.mul(v, I64(LANES))
            x = b.fmul(scales, lanes.load(numbers, offset))
            probe = b.fmul(x, lanes.constant(0.0))  # NaN if x is not finite
            lanes.store(b.fadd(of_vector(lanes, x, slopes), probe), numbers, offset)
        return context.get_dummy_value()

    def activation(typing: Any, operands: Any) -> Any:  # noqa: ARG001
        return types.void(operands), codegen

    return intrinsic(activation)


def _size(lanes: Lanes, x: Any) -> Any:
    """|x|"""
    b = lanes.builder
    return b.select(b.fcmp_ordered("<", x, lanes.constant(0.0)), b.fneg(x), x)


def _polynomial(lanes: Lanes, x: Any, coefficients: tuple[float, ...]) -> Any:
    highest, *others = (lanes.constant(coefficient) for coefficient in coefficients[::-1])
    value = highest
    for coefficient in others:
        value = lanes.multiply_add(value, x, coefficient)
    return value


def _lower_sigmoid(lanes: Lanes, size: Any) -> Any:
    """σ(−size), for a size of 0 or more."""
    b = lanes.builder
    e = lanes.exp2(b.fmul(size, lanes.constant(-LOG2E)))
    return b.fdiv(e, b.fadd(lanes.constant(1.0), e))


def _gated(lanes: Lanes, x: Any, below: Any) -> Any:
    """max(x, 0) − |x| · below"""
    b = lanes.builder
    return b.fsub(lanes.at_least(x, lanes.constant(0.0)), b.fmul(_size(lanes, x), below))


def _leaky(lanes: Lanes, x: Any, slopes: Any) -> Any:
    b = lanes.builder
    return b.select(b.fcmp_ordered(">", x, lanes.constant(0.0)), x, b.fmul(slopes, x))


def _sigmoid(lanes: Lanes, x: Any, _: Any) -> Any:
    b, one = lanes.builder, lanes.constant(1.0)
    below = _lower_sigmoid(lanes, _size(lanes, x))
    return b.select(b.fcmp_ordered(">", x, lanes.constant(0.0)), b.fsub(one, below), below)


def _tanh(lanes: Lanes, x: Any, _: Any) -> Any:
    b, size, square = lanes.builder, _size(lanes, x), lanes.builder.fmul(x, x)
    below = _lower_sigmoid(lanes, b.fadd(size, size))
    large = b.fsub(lanes.constant(1.0), b.fadd(below, below))
    large = b.select(b.fcmp_ordered("<", x, lanes.constant(0.0)), b.fneg(large), large)
    small = lanes.multiply_add(b.fmul(x, square), _polynomial(lanes, square, _TANH), x)
    return b.select(b.fcmp_ordered("<", size, lanes.constant(SMALL)), small, large)


def _silu(lanes: Lanes, x: Any, _: Any) -> Any:
    return _gated(lanes, x, _lower_sigmoid(lanes, _size(lanes, x)))


def _gelu(lanes: Lanes, x: Any, _: Any) -> Any:
    b, one, size = lanes.builder, lanes.constant(1.0), _size(lanes, x)
    t = b.fdiv(one, lanes.multiply_add(size, lanes.constant(float(np.sqrt(0.125))), one))
    e = lanes.exp2(b.fmul(b.fmul(x, x), lanes.constant(-0.5 * LOG2E)))
    half = b.fmul(lanes.constant(0.5), b.fmul(e, t))
    return _gated(lanes, x, b.fmul(half, _polynomial(lanes, t, _NORMAL)))


def _tanh_gelu(lanes: Lanes, x: Any, _: Any) -> Any:
    b, size = lanes.builder, _size(lanes, x)
    bent = lanes.multiply_add(b.fmul(x, x), lanes.constant(_BEND), lanes.constant(1.0))
    steep = b.fmul(b.fmul(size, bent), lanes.constant(float(_STEEPNESS)))
    return _gated(lanes, x, _lower_sigmoid(lanes, steep))


_leaky_relus, _tanhs, _sigmoids = _activation(_leaky), _activation(_tanh), _activation(_sigmoid)
_silus, _gelus, _tanh_gelus = _activation(_silu), _activation(_gelu), _activation(_tanh_gelu)


@compiled_within
def activate(kind: int, operands: Any) -> None:
    """Replace numbers x by f(scale · x). Operands: numbers, scale, slope of a leaky relu, size; relu is not among
    them, since the products do it on their way."""
    if kind == LEAKY_RELU:
        _leaky_relus(operands)
    elif kind == TANH:
        _tanhs(operands)
    elif kind == SIGMOID:
        _sigmoids(operands)
    elif kind == SILU:
        _silus(operands)
    elif kind == GELU:
        _gelus(operands)
    else:
        _tanh_gelus(operands)
