"""Cross-entropy of averaged ReLU networks, from the pre-activations of their first hidden layer.

Sums run over z = Σ a_k z_k (first pre-activations, linear in the model) and over every later layer's W = Σ a_k W_k and
b = Σ a_k b_k. With s = 1/Σ a_k the averaged network computes, since relu(s·z) = s·relu(z) for s > 0,

    x₁ = relu(z),  x₂ = relu(s²·W₁x₁ + s·b₁),  x₃ = relu(s·W₂x₂ + s·b₂), …

so nothing is scaled before it has been through a product. The last layer has no relu; its outputs are the logits, and a
sample loses log Σ_c exp(l_c − m) + (m − l_y) with m = max_c l_c.

A product keeps `width` outputs of a tile of samples in registers while it runs through the inputs; every weight loaded
meets VECTORS vectors. For one hidden layer and few classes the running sum and the relu happen in the same pass, which
then reads two numbers and writes one for every 2·n_classes operations. Rejected: storing x₁ first (a third slower).

Packed, a block is (n_tiles, n_inputs, TILE) for each client and a layer is panels of (n_inputs, width) followed by its
biases. Lanes beyond the last sample carry the label −1 and lose exactly 0.
"""

import math
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from fedworth.utility.kernels_compile import compiled, intrinsic
from fedworth.utility.kernels_lanes import (
    DOUBLES,
    F32,
    I32,
    I64,
    INTS,
    LANES,
    LOG2E,
    MEASURES,
    TILE,
    VECTORS,
    Lanes,
    LogSum,
    measures,
)

WIDEST = 12
"""Outputs in a full panel: 24 of 32 registers, or 12 of 16, hold their sums."""

Floats = NDArray[np.float32]
Longs = NDArray[np.int64]


def _panel_product(width: int, joins: bool) -> Any:
    """Make: outputs = max(floor, gain · W x + share · b) for one panel and one tile.

    If it joins, x = relu(source + client), and source + client is kept in target.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes, b = Lanes(context, builder), builder
        arrays = [
            lanes.at(lanes.data(signature.args[i], args[i]), args[i + 1]) for i in range(0, 12, 2)
        ]
        source, client, target, weights, biases, outputs = arrays
        keeps, n_inputs, gain, share, floor = args[12:]
        sums = [[lanes.variable(lanes.constant(0.0)) for _ in range(VECTORS)] for _ in range(width)]
        with lanes.times(n_inputs) as h:
            row = b.mul(h, I64(TILE))
            xs = []
            for v in range(VECTORS):
                offset = b.add(row, I64(v * LANES))
                x = lanes.load(source, offset)
                if joins:
                    x = b.fadd(x, lanes.load(client, offset))
                    lanes.store(x, target, b.add(b.mul(row, keeps), I64(v * LANES)))
                    x = lanes.maximum(x, lanes.constant(0.0))
                xs.append(x)
            for r in range(width):
                weight = b.load(lanes.at(weights, b.add(b.mul(h, I64(width)), I64(r))))
                for v in range(VECTORS):
                    total = lanes.multiply_add(lanes.everywhere(weight), xs[v], b.load(sums[r][v]))
                    b.store(total, sums[r][v])
        gains, floors = lanes.everywhere(gain), lanes.everywhere(floor)
        for r in range(width):
            bias = lanes.everywhere(b.fmul(share, b.load(lanes.at(biases, I64(r)))))
            for v in range(VECTORS):
                output = lanes.multiply_add(gains, b.load(sums[r][v]), bias)
                lanes.store(lanes.maximum(output, floors), outputs, I64(r * TILE + v * LANES))
        return context.get_dummy_value()

    def product(
        typing: Any,
        source: Any,
        source_at: Any,
        client: Any,
        client_at: Any,
        target: Any,
        target_at: Any,
        weights: Any,
        weights_at: Any,
        biases: Any,
        biases_at: Any,
        outputs: Any,
        outputs_at: Any,
        keeps: Any,
        n_inputs: Any,
        gain: Any,
        share: Any,
        floor: Any,
    ) -> Any:
        whole, number = types.int64, types.float32
        arrays = [kind for array in (source, client, target, weights, biases, outputs) for kind in (array, whole)]
        return types.void(*arrays, whole, whole, number, number, number), codegen

    return intrinsic(product)


_product_2, _joining_product_2 = _panel_product(2, joins=False), _panel_product(2, joins=True)
_product_4, _joining_product_4 = _panel_product(4, joins=False), _panel_product(4, joins=True)
_product_6, _joining_product_6 = _panel_product(6, joins=False), _panel_product(6, joins=True)
_product_8, _joining_product_8 = _panel_product(8, joins=False), _panel_product(8, joins=True)
_product_10, _joining_product_10 = _panel_product(10, joins=False), _panel_product(10, joins=True)
_product_12, _joining_product_12 = _panel_product(12, joins=False), _panel_product(12, joins=True)


def _sum_code(rectifies: bool) -> Any:
    """Write: target = source + client, vector by vector; if it rectifies, also outputs = relu(target)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes, b = Lanes(context, builder), builder
        source, client, target, outputs = (
            lanes.at(lanes.data(signature.args[i], args[i]), args[i + 1]) for i in range(0, 8, 2)
        )
        with lanes.times(b.udiv(args[8], I64(LANES))) as v:
            offset = b.mul(v, I64(LANES))
            total = b.fadd(lanes.load(source, offset), lanes.load(client, offset))
            lanes.store(total, target, offset)
            if rectifies:
                lanes.store(lanes.maximum(total, lanes.constant(0.0)), outputs, offset)
        return context.get_dummy_value()

    return codegen

@intrinsic
def _add(
    typing: Any, source: Any, source_at: Any, client: Any, client_at: Any, target: Any, target_at: Any,
    outputs: Any, outputs_at: Any, size: Any,
) -> Any:
    whole = types.int64
    return types.void(source, whole, client, whole, target, whole, outputs, whole, whole), _sum_code(False)

@intrinsic
def _add_and_rectify(
    typing: Any, source: Any, source_at: Any, client: Any, client_at: Any, target: Any, target_at: Any,
    outputs: Any, outputs_at: Any, size: Any,
) -> Any:
    whole = types.int64
    return types.void(source, whole, client, whole, target, whole, outputs, whole, whole), _sum_code(True)


@intrinsic
def _cross_entropy(
    typing: Any, logits: Any, labels: Any, first: Any, n_classes: Any
) -> Any:
    """Measure one tile of logits (n_classes, TILE) against labels from `first` on."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes, b = Lanes(context, builder), builder
        logits = lanes.data(signature.args[0], args[0])
        labels = lanes.at(lanes.data(signature.args[1], args[1]), args[2])
        n_classes = args[3]
        logs = LogSum(lanes)
        gap, n_correct = lanes.constant(0.0, DOUBLES), lanes.constant(0.0, DOUBLES)
        for v in range(VECTORS):
            label = lanes.load(labels, I64(v * LANES), INTS)
            largest = lanes.variable(lanes.constant(-3e38))
            own = lanes.variable(lanes.constant(0.0))
            s = lanes.variable(lanes.constant(0.0))
            with lanes.times(n_classes) as c:
                logit = lanes.load(logits, b.add(b.mul(c, I64(TILE)), I64(v * LANES)))
                b.store(lanes.maximum(logit, b.load(largest)), largest)
                is_own = b.icmp_signed("==", label, lanes.everywhere(b.trunc(c, I32), INTS))
                b.store(b.select(is_own, logit, b.load(own)), own)
            m = b.load(largest)
            with lanes.times(n_classes) as c:
                logit = lanes.load(logits, b.add(b.mul(c, I64(TILE)), I64(v * LANES)))
                power = b.fmul(b.fsub(logit, m), lanes.constant(LOG2E))
                b.store(b.fadd(b.load(s), lanes.exp2(power)), s)
            is_sample = b.icmp_signed(">=", label, lanes.constant(0, INTS))
            logs.add(b.select(is_sample, b.load(s), lanes.constant(1.0)))
            behind = b.select(is_sample, b.fsub(m, b.load(own)), lanes.constant(0.0))
            hit = b.and_(is_sample, b.fcmp_ordered("<=", behind, lanes.constant(0.0)))
            gap = b.fadd(gap, b.fpext(behind, DOUBLES))
            n_correct = b.fadd(n_correct, b.uitofp(hit, DOUBLES))
        return measures(lanes, logs, lanes.total(gap), lanes.total(n_correct))

    return MEASURES(logits, labels, types.int64, types.int64), codegen


@compiled
def _run_layer(
    inputs: Floats,
    weights: Floats,
    weights_at: int,
    n_inputs: int,
    n_outputs: int,
    outputs: Floats,
    gain: Any,
    share: Any,
    floor: Any,
) -> None:
    """outputs = max(floor, gain · W inputs + share · b) for one tile, panel by panel."""
    x, w, y = inputs, weights, outputs
    at, bias = weights_at, weights_at + n_inputs * n_outputs
    first = 0
    while first < n_outputs:
        width = min(WIDEST, n_outputs - first)
        to = first * TILE
        if width == 12:
            _product_12(x, 0, x, 0, x, 0, w, at, w, bias, y, to, 0, n_inputs, gain, share, floor)
        elif width == 10:
            _product_10(x, 0, x, 0, x, 0, w, at, w, bias, y, to, 0, n_inputs, gain, share, floor)
        elif width == 8:
            _product_8(x, 0, x, 0, x, 0, w, at, w, bias, y, to, 0, n_inputs, gain, share, floor)
        elif width == 6:
            _product_6(x, 0, x, 0, x, 0, w, at, w, bias, y, to, 0, n_inputs, gain, share, floor)
        elif width == 4:
            _product_4(x, 0, x, 0, x, 0, w, at, w, bias, y, to, 0, n_inputs, gain, share, floor)
        else:
            _product_2(x, 0, x, 0, x, 0, w, at, w, bias, y, to, 0, n_inputs, gain, share, floor)
        first += width
        at += width * n_inputs
        bias += width


@compiled
def _join_and_run_layer(
    sums: Floats,
    source: int,
    packed: Floats,
    client: int,
    target: int,
    keeps: int,
    weights: Floats,
    weights_at: int,
    n_inputs: int,
    n_outputs: int,
    outputs: Floats,
    gain: Any,
    share: Any,
    floor: Any,
) -> None:
    """The same for a single panel, with inputs = relu(source + client) summed on the way."""
    s, p, w, y = sums, packed, weights, outputs
    at, bias = weights_at, weights_at + n_inputs * n_outputs
    if n_outputs == 12:
        _joining_product_12(s, source, p, client, s, target, w, at, w, bias, y, 0, keeps, n_inputs, gain, share, floor)
    elif n_outputs == 10:
        _joining_product_10(s, source, p, client, s, target, w, at, w, bias, y, 0, keeps, n_inputs, gain, share, floor)
    elif n_outputs == 8:
        _joining_product_8(s, source, p, client, s, target, w, at, w, bias, y, 0, keeps, n_inputs, gain, share, floor)
    elif n_outputs == 6:
        _joining_product_6(s, source, p, client, s, target, w, at, w, bias, y, 0, keeps, n_inputs, gain, share, floor)
    elif n_outputs == 4:
        _joining_product_4(s, source, p, client, s, target, w, at, w, bias, y, 0, keeps, n_inputs, gain, share, floor)
    else:
        _joining_product_2(s, source, p, client, s, target, w, at, w, bias, y, 0, keeps, n_inputs, gain, share, floor)


@compiled
def pack_pre_activations(
    pre_activations: Floats,
    start: Floats,
    first: int,
    n_tiles: int,
    client_weights: NDArray[np.float64],
) -> tuple[Floats, Floats, float]:
    """A block's weighted pre-activations for each client, those every sum starts from, and a probe: 0, or NaN.

    `start` has one row of samples if sums start from a model, whose pre-activations the clients' are then relative to.
    The probe is NaN if a number is not finite.
    """
    n_clients, n_samples, n_inputs = pre_activations.shape
    has_start = start.shape[0] == 1
    packed = np.zeros((n_clients, n_tiles * n_inputs * TILE), np.float32)
    packed_start = np.zeros(n_tiles * n_inputs * TILE, np.float32)
    probe = np.float32(0.0)
    for t in range(n_tiles):
        begin = first + t * TILE
        n_lanes = min(TILE, n_samples - begin)
        for h in range(n_inputs):
            at = (t * n_inputs + h) * TILE
            if has_start:
                for i in range(n_lanes):
                    packed_start[at + i] = start[0, begin + i, h]
                    probe += np.float32(0.0) * start[0, begin + i, h]
    for k in range(n_clients):
        weight = np.float32(client_weights[k])
        for t in range(n_tiles):
            begin = first + t * TILE
            n_lanes = min(TILE, n_samples - begin)
            for h in range(n_inputs):
                at = (t * n_inputs + h) * TILE
                for i in range(n_lanes):
                    z = pre_activations[k, begin + i, h]
                    packed[k, at + i] = weight * (z - packed_start[at + i])
                    probe += np.float32(0.0) * z
    return packed, packed_start, float(probe)


@compiled
def hidden_block(
    packed: Floats,
    start: Floats,
    weights: Floats,
    start_weights: Floats,
    widths: Longs,
    n_classes: int,
    labels: NDArray[np.int32],
    clients: NDArray[np.int32],
    sources: NDArray[np.int32],
    targets: NDArray[np.int32],
    wanted: NDArray[np.bool_],
    scales: Floats,
    n_slots: int,
) -> NDArray[np.float64]:
    """Σ loss over the block's samples after each wanted step, and how many were predicted correctly.

    `widths` are the layers' numbers of outputs, the first pre-activations' first, all but that one even.
    """
    n_tiles = len(labels) // TILE
    n_layers = len(widths) - 1
    n_inputs = widths[0]
    size, weights_size = packed.shape[1], weights.shape[1]
    tile_size = n_inputs * TILE
    sums = np.empty((n_slots + 1) * size, np.float32)
    weight_sums = np.empty((n_slots + 1) * weights_size, np.float32)
    widest = widths.max()
    xs, ys = np.empty(widest * TILE, np.float32), np.empty(widest * TILE, np.float32)
    found = np.zeros((2, len(clients)))
    sums[:size] = start
    weight_sums[:weights_size] = start_weights
    joins = n_layers == 1 and widths[1] <= WIDEST
    lowest, nothing = np.float32(-3e38), np.float32(0.0)
    for step in range(len(clients)):
        client, source = clients[step], sources[step]
        keeps = targets[step] >= 0
        target = targets[step] if keeps else n_slots
        w, w_source = target * weights_size, source * weights_size
        _add(weight_sums, w_source, weights, client * weights_size, weight_sums, w, weight_sums, w, weights_size)
        if not wanted[step]:
            _add(sums, source * size, packed, client * size, sums, target * size, sums, 0, size)
            continue
        share = scales[step]
        product, exponents, linear, n_correct = 1.0, 0.0, 0.0, 0.0
        for t in range(n_tiles):
            source_at = source * size + t * tile_size
            client_at = client * size + t * tile_size
            target_at = target * size + t * tile_size
            if joins:
                _join_and_run_layer(
                    sums, source_at, packed, client_at, target_at, int(keeps), weight_sums, w,
                    n_inputs, widths[1], xs, share * share, share, lowest,
                )  # fmt: skip
            else:
                _add_and_rectify(sums, source_at, packed, client_at, sums, target_at, xs, 0, tile_size)
                at, gain = w, share * share
                for layer in range(n_layers):
                    n_in, n_out = widths[layer], widths[layer + 1]
                    floor = lowest if layer == n_layers - 1 else nothing
                    _run_layer(xs, weight_sums, at, n_in, n_out, ys, gain, share, floor)
                    at += (n_in + 1) * n_out
                    gain = share
                    xs, ys = ys, xs
            tile = _cross_entropy(xs, labels, t * TILE, n_classes)
            product *= tile[0]
            exponents += tile[1]
            linear += tile[2]
            n_correct += tile[3]
        found[0, step] = math.log(product) + exponents * math.log(2.0) + linear
        found[1, step] = n_correct
    return found


def pack_layers(
    weights: list[Floats], biases: list[Floats], client_weights: NDArray[np.float64]
) -> Floats:
    """Every client's later layers in the order the products read them: (n_clients, n_numbers)."""
    parts: list[Floats] = []
    n_clients = len(client_weights)
    for weight, bias in zip(weights, biases, strict=True):
        n_outputs = weight.shape[1]
        if n_outputs % 2:
            weight = np.concatenate((weight, np.zeros_like(weight[:, :1])), axis=1)
            bias = np.concatenate((bias, np.zeros_like(bias[:, :1])), axis=1)
        for first in range(0, weight.shape[1], WIDEST):
            panel = weight[:, first : first + WIDEST].transpose(0, 2, 1)  # (n_clients, n_inputs, width)
            parts.append(panel.reshape(n_clients, -1))
        parts.append(bias)
    n_numbers = sum(part.shape[1] for part in parts)
    parts.append(np.zeros((n_clients, -n_numbers % LANES), np.float32))
    packed = np.concatenate(parts, axis=1) * client_weights[:, None]  # (n_clients, n_numbers)
    return packed.astype(np.float32)
