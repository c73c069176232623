"""Products of weights with tiles of samples, and the cross-entropy of a tile, in vector instructions.

A product keeps `width` outputs of a tile in registers while it runs through the inputs, so every weight loaded meets
VECTORS vectors and every input `width` weights. A tile is (n_inputs, TILE) float32; a panel of weights is
(n_inputs, width), and a layer's outputs are cut into panels of WIDEST and a last one of the rest, always even. Every
output is one chain of multiply-adds through the inputs in their order, whatever else is computed beside it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedworth.compile import compiled_within, intrinsic, types
from fedworth.oracle.fast.kernels.lanes import (
    DOUBLES,
    I32,
    I64,
    INTS,
    LANES,
    LOG2E,
    LOSS_PARTS,
    TILE,
    VECTORS,
    Lanes,
    LogSum,
)

WIDEST = 12
"""Outputs in a full panel: their sums take 24 of 32 registers, or 12 of 16."""

Floats = NDArray[np.float32]


def _product(width: int, joins: bool) -> Any:
    """An intrinsic for outputs = max(floor, gain · W x + share · b) of one panel and one tile.

    If it joins, a client joins the running sum on the way: target = source + client in integers, x = relu(target).
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes, b = Lanes(context, builder), builder
        inputs, panel, effect = _split(lanes.operands(signature, args), 6 if joins else 2)
        weights, weights_at, biases_at, outputs, outputs_at, n_inputs = panel
        weights, biases = lanes.at(weights, weights_at), lanes.at(weights, biases_at)
        sums = [[lanes.variable(lanes.constant(0.0)) for _ in range(VECTORS)] for _ in range(width)]
        with lanes.times(n_inputs) as h:
            xs = _inputs(lanes, inputs, h)
            for r in range(width):
                weight = lanes.everywhere(b.load(lanes.at(weights, b.add(b.mul(h, I64(width)), I64(r)))))
                for total, x in zip(sums[r], xs, strict=True):
                    b.store(lanes.multiply_add(weight, x, b.load(total)), total)
        gain, share, floor = map(lanes.everywhere, effect)
        outputs = lanes.at(outputs, outputs_at)
        for r in range(width):
            bias = b.fmul(share, lanes.everywhere(b.load(lanes.at(biases, I64(r)))))
            for v in range(VECTORS):
                output = lanes.multiply_add(gain, b.load(sums[r][v]), bias)
                lanes.store(lanes.at_least(output, floor), outputs, I64(r * TILE + v * LANES))
        return context.get_dummy_value()

    def product(typing: Any, operands: Any) -> Any:  # noqa: ARG001
        return types.void(operands), codegen

    return intrinsic(product)


def _split(operands: list[Any], n_inputs: int) -> tuple[list[Any], list[Any], list[Any]]:
    return operands[:n_inputs], operands[n_inputs:-3], operands[-3:]


def _inputs(lanes: Lanes, inputs: list[Any], h: Any) -> list[Any]:
    """Row h of a tile's inputs, as vectors; joined from a sum and a client if six operands say so."""
    b = lanes.builder
    row = b.mul(h, I64(TILE))
    offsets = [b.add(row, I64(v * LANES)) for v in range(VECTORS)]
    source = lanes.at(*inputs[:2])
    if len(inputs) == 2:
        return [lanes.load(source, offset) for offset in offsets]
    target, keeps = lanes.at(inputs[0], inputs[2]), inputs[3]
    client = lanes.at(*inputs[4:])
    totals = [b.add(lanes.load(source, offset, INTS), lanes.load(client, offset, INTS)) for offset in offsets]
    for v, total in enumerate(totals):
        lanes.store(total, target, b.add(b.mul(row, keeps), I64(v * LANES)))
    return [lanes.rectified(total) for total in totals]


_product_2, _joining_product_2 = _product(2, joins=False), _product(2, joins=True)
_product_4, _joining_product_4 = _product(4, joins=False), _product(4, joins=True)
_product_6, _joining_product_6 = _product(6, joins=False), _product(6, joins=True)
_product_8, _joining_product_8 = _product(8, joins=False), _product(8, joins=True)
_product_10, _joining_product_10 = _product(10, joins=False), _product(10, joins=True)
_product_12, _joining_product_12 = _product(12, joins=False), _product(12, joins=True)


@compiled_within
def run_panel(width: int, operands: Any) -> None:
    """outputs = max(floor, gain · W x + share · b). Operands: x, x_at, weights, weights_at, biases_at, outputs,
    outputs_at, n_inputs, gain, share, floor."""
    if width == 12:
        _product_12(operands)
    elif width == 10:
        _product_10(operands)
    elif width == 8:
        _product_8(operands)
    elif width == 6:
        _product_6(operands)
    elif width == 4:
        _product_4(operands)
    else:
        _product_2(operands)


@compiled_within
def join_and_run_panel(width: int, operands: Any) -> None:
    """The same with x = relu(source + client). Operands: sums, source_at, target_at, keeps, packed, client_at in the
    place of x, x_at."""
    if width == 12:
        _joining_product_12(operands)
    elif width == 10:
        _joining_product_10(operands)
    elif width == 8:
        _joining_product_8(operands)
    elif width == 6:
        _joining_product_6(operands)
    elif width == 4:
        _joining_product_4(operands)
    else:
        _joining_product_2(operands)


def _join_code(rectifies: bool) -> Any:
    """What writes: target = source + client in integers; and outputs = the same as floats, or its relu."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes, b = Lanes(context, builder), builder
        sums, source_at, target_at, keeps, packed, client_at, outputs, outputs_at, size = lanes.operands(
            signature, args
        )
        source, target, client = lanes.at(sums, source_at), lanes.at(sums, target_at), lanes.at(packed, client_at)
        outputs = lanes.at(outputs, outputs_at)
        with lanes.times(b.udiv(size, I64(LANES))) as v:
            offset = b.mul(v, I64(LANES))
            total = b.add(lanes.load(source, offset, INTS), lanes.load(client, offset, INTS))
            lanes.store(total, target, b.mul(offset, keeps))
            lanes.store(lanes.rectified(total) if rectifies else lanes.floats(total), outputs, offset)
        return context.get_dummy_value()

    return codegen


@intrinsic
def add(typing: Any, operands: Any) -> Any:  # noqa: ARG001
    """target = source + client, in integers. Operands: sums, source_at, target_at, packed, client_at, size."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes, b = Lanes(context, builder), builder
        sums, source_at, target_at, packed, client_at, size = lanes.operands(signature, args)
        source, target, client = lanes.at(sums, source_at), lanes.at(sums, target_at), lanes.at(packed, client_at)
        with lanes.times(b.udiv(size, I64(LANES))) as v:
            offset = b.mul(v, I64(LANES))
            lanes.store(b.add(lanes.load(source, offset, INTS), lanes.load(client, offset, INTS)), target, offset)
        return context.get_dummy_value()

    return types.void(operands), codegen


@intrinsic
def join(typing: Any, operands: Any) -> Any:  # noqa: ARG001
    """outputs = target = source + client. Operands: sums, source_at, target_at, keeps, packed, client_at, outputs,
    outputs_at, size; the target stays as it is unless keeps is 1."""
    return types.void(operands), _join_code(rectifies=False)


@intrinsic
def join_and_rectify(typing: Any, operands: Any) -> Any:  # noqa: ARG001
    """target = source + client, outputs = relu(target); operands as for `join`."""
    return types.void(operands), _join_code(rectifies=True)


@intrinsic
def cross_entropy(typing: Any, operands: Any) -> Any:  # noqa: ARG001
    """Measure a tile of logits: log Σ_c exp(l_c − m), and m − l_y as the linear part, with m = max_c l_c.

    Operands: logits, labels, labels_at, n_classes. A logit that is not finite makes the linear part NaN.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes, b = Lanes(context, builder), builder
        logits, labels, labels_at, n_classes = lanes.operands(signature, args)
        labels = lanes.at(labels, labels_at)
        zero, one = lanes.constant(0.0), lanes.constant(1.0)
        logs = LogSum(lanes)
        linear = lanes.variable(lanes.constant(0.0, DOUBLES))
        largest, own, probe, s = (lanes.variable(zero) for _ in range(4))
        for v in range(VECTORS):
            label = lanes.load(labels, I64(v * LANES), INTS)
            b.store(lanes.constant(-np.inf), largest)
            for variable in (own, probe, s):
                b.store(zero, variable)
            with lanes.times(n_classes) as c:
                logit = lanes.load(logits, b.add(b.mul(c, I64(TILE)), I64(v * LANES)))
                b.store(lanes.at_least(logit, b.load(largest)), largest)
                is_own = b.icmp_signed("==", label, lanes.everywhere(b.trunc(c, I32), INTS))
                b.store(b.select(is_own, logit, b.load(own)), own)
                lanes.add_to(probe, b.fmul(logit, zero))
            m = b.load(largest)
            with lanes.times(n_classes) as c:
                logit = lanes.load(logits, b.add(b.mul(c, I64(TILE)), I64(v * LANES)))
                lanes.add_to(s, lanes.exp2(b.fmul(b.fsub(logit, m), lanes.constant(LOG2E))))
            is_sample = b.icmp_signed(">=", label, lanes.constant(0, INTS))
            logs.add(b.select(is_sample, b.load(s), one))
            behind = b.fadd(b.fsub(m, b.load(own)), b.load(probe))
            lanes.add_to(linear, b.fpext(b.select(is_sample, behind, zero), DOUBLES))
        return logs.parts(linear)

    return LOSS_PARTS(operands), codegen
