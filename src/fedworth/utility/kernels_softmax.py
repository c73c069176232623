"""Cross-entropy of averaged logits: what a coalition's softmax regression would lose.

With y the label and d_c = z_c − z_y the margin by which class c beats it, a sample loses

    −log softmax(z)_y = log(1 + Σ_{c≠y} exp d_c).

Margins are linear in the logits, and logits in the model, so the margins of an averaged model are the averaged
margins of its clients: the label costs nothing after packing, and one class of exponentials is saved.

No margin of an average exceeds the largest of its clients. If that is at most LARGEST_MARGIN the exponentials
cannot overflow; otherwise, and to count correct predictions, a step takes out m = max(0, max_c d_c) first.

Packed, a block of samples is (n_vectors, n_classes − 1, LANES) float32 for each client. Samples that fill up the
last vector have margins of −PADDING: they lose exactly 0 and count as correct.
"""

import math
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from fedworth.utility.kernels_compile import compiled, intrinsic
from fedworth.utility.kernels_lanes import (
    DOUBLES,
    I64,
    LANES,
    LOG2E,
    MEASURES,
    Lanes,
    LogSum,
    measures,
)

N_VECTORS = 16
BLOCK = N_VECTORS * LANES
"""Samples in a block."""

LARGEST_MARGIN = 80.0
PADDING = 1e4

Floats = NDArray[np.float32]


def _step_code(careful: bool) -> Any:
    """Write: sum = source + client, target = sum, measure the softmax of scale · sum."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes, b = Lanes(context, builder), builder
        _, source, _, target, keeps, client_offset, n_vectors, n_others, scale, _ = args
        sums = lanes.data(signature.args[0], args[0])
        client = lanes.at(lanes.data(signature.args[2], args[2]), client_offset)
        source, target = lanes.at(sums, source), lanes.at(sums, target)
        scratch = lanes.data(signature.args[9], args[9])
        scales = lanes.everywhere(scale)
        powers = lanes.everywhere(b.fmul(scale, scale.type(LOG2E)))
        logs = LogSum(lanes)
        linear = lanes.variable(lanes.constant(0.0, DOUBLES))
        n_correct = lanes.variable(lanes.constant(0.0, DOUBLES))
        s = lanes.variable(lanes.constant(1.0))
        largest = lanes.variable(lanes.constant(0.0))
        with lanes.times(n_vectors) as v:
            first = b.mul(v, n_others)
            b.store(lanes.constant(1.0), s)
            b.store(lanes.constant(0.0), largest)
            with lanes.times(n_others) as c:
                offset = b.mul(b.add(first, c), I64(LANES))
                margin = b.fadd(lanes.load(source, offset), lanes.load(client, offset))
                lanes.store(margin, target, b.mul(offset, keeps))
                if careful:
                    margin = b.fmul(margin, scales)
                    lanes.store(margin, scratch, b.mul(c, I64(LANES)))
                    b.store(lanes.maximum(margin, b.load(largest)), largest)
                else:
                    b.store(b.fadd(b.load(s), lanes.exp2(b.fmul(margin, powers))), s)
            if careful:
                m = b.load(largest)
                log2e = lanes.constant(LOG2E)
                b.store(lanes.exp2(b.fmul(b.fneg(m), log2e)), s)
                with lanes.times(n_others) as c:
                    below = b.fsub(lanes.load(scratch, b.mul(c, I64(LANES))), m)
                    b.store(b.fadd(b.load(s), lanes.exp2(b.fmul(below, log2e))), s)
                b.store(b.fadd(b.load(linear), b.fpext(m, DOUBLES)), linear)
                hits = b.uitofp(b.fcmp_ordered("<=", m, lanes.constant(0.0)), DOUBLES)
                b.store(b.fadd(b.load(n_correct), hits), n_correct)
            logs.add(b.load(s))
        totals = [lanes.total(b.load(part)) for part in (linear, n_correct)]
        return measures(lanes, logs, *totals)

    return codegen


def _step_signature(
    sums: Any, packed: Any, scale: Any, scratch: Any
) -> Any:
    whole = types.int64
    return MEASURES(sums, whole, packed, whole, whole, whole, whole, whole, scale, scratch)


@intrinsic
def _quick_step(
    typing: Any,
    sums: Any,
    source: Any,
    packed: Any,
    target: Any,
    keeps: Any,
    client: Any,
    n_vectors: Any,
    n_others: Any,
    scale: Any,
    scratch: Any,
) -> Any:
    return _step_signature(sums, packed, scale, scratch), _step_code(careful=False)


@intrinsic
def _careful_step(
    typing: Any,
    sums: Any,
    source: Any,
    packed: Any,
    target: Any,
    keeps: Any,
    client: Any,
    n_vectors: Any,
    n_others: Any,
    scale: Any,
    scratch: Any,
) -> Any:
    return _step_signature(sums, packed, scale, scratch), _step_code(careful=True)


@compiled
def pack_margins(
    logits: Floats,
    start_logits: Floats,
    labels: NDArray[np.int64],
    first: int,
    client_weights: NDArray[np.float64],
) -> tuple[Floats, Floats, float]:
    """A block's weighted margins for each client, those every sum starts from, and the largest unweighted one.

    `start_logits` has one row of samples if sums start from a model, whose margins the clients' are then relative
    to, and none if they start from nothing. The largest margin is NaN if any is not finite.
    """
    n_clients, n_samples, n_classes = logits.shape
    has_start = start_logits.shape[0] == 1
    n_vectors = min(N_VECTORS, (n_samples - first + LANES - 1) // LANES)
    n_others = n_classes - 1
    packed = np.empty((n_clients, n_vectors * n_others * LANES), np.float32)
    start = np.zeros(n_vectors * n_others * LANES, np.float32)
    largest, probe = 0.0, 0.0
    for k in range(-1, n_clients):
        if k < 0 and not has_start:
            continue
        at = 0
        for v in range(n_vectors):
            for other in range(n_others):
                for i in range(first + v * LANES, first + (v + 1) * LANES):
                    margin, origin = -PADDING, 0.0
                    if has_start and (k >= 0):
                        origin = -PADDING
                    if i < n_samples:
                        label = labels[i]
                        c = other + (other >= label)
                        if has_start:
                            origin = float(start_logits[0, i, c]) - float(start_logits[0, i, label])
                        margin = origin
                        if k >= 0:
                            margin = float(logits[k, i, c]) - float(logits[k, i, label])
                        largest = max(largest, margin)
                        probe += 0.0 * margin
                    if k >= 0:
                        packed[k, at] = client_weights[k] * (margin - origin)
                    else:
                        start[at] = margin
                    at += 1
    return packed, start, largest + probe


@compiled
def softmax_block(
    packed: Floats,
    start: Floats,
    n_others: int,
    clients: NDArray[np.int32],
    sources: NDArray[np.int32],
    targets: NDArray[np.int32],
    wanted: NDArray[np.bool_],
    scales: Floats,
    n_slots: int,
    careful: bool,
) -> NDArray[np.float64]:
    """Σ loss over the block's samples after each wanted step, and how many were predicted correctly if careful."""
    size = packed.shape[1]
    n_vectors = size // max(n_others * LANES, 1)
    sums = np.empty(n_slots * size + LANES, np.float32)  # the slots, then where sums go that nobody continues
    scratch = np.empty(max(n_others, 1) * LANES, np.float32)
    found = np.zeros((2, len(clients)))
    sums[:size] = start
    for step in range(len(clients)):
        keeps = targets[step] >= 0
        source = sources[step] * size
        target = targets[step] * size if keeps else n_slots * size
        client = clients[step] * size
        if not wanted[step]:
            for i in range(size):
                sums[target + i] = sums[source + i] + packed[clients[step], i]
            continue
        if careful:
            mantissa, exponent, linear, n_correct = _careful_step(
                sums, source, packed, target, int(keeps), client, n_vectors, n_others, scales[step], scratch
            )
        else:
            mantissa, exponent, linear, n_correct = _quick_step(
                sums, source, packed, target, int(keeps), client, n_vectors, n_others, scales[step], scratch
            )
        found[0, step] = math.log(mantissa) + exponent * math.log(2.0) + linear
        found[1, step] = n_correct
    return found
