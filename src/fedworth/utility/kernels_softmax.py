"""Cross-entropy of averaged logits: what a coalition's softmax regression would lose.

With y the label and d_c = z_c − z_y the margin by which class c beats it, a sample loses

    −log softmax(z)_y = log(1 + Σ_{c≠y} exp d_c).

Margins are linear in the logits, and logits in the model, so the margins of an averaged model are the averaged
margins of its clients: the label costs nothing after packing, and one class of exponentials is saved.

No margin of an average exceeds the largest of its clients. If that is at most LARGEST_MARGIN the exponentials
cannot overflow; otherwise, and to count correct predictions, a step takes out m = max(0, max_c d_c) first. A prediction
is correct if no class beats the label.

Packed, a block of samples is (n_vectors, n_classes − 1, LANES) float32 for each client. Samples that fill up the
last vector have margins of −PADDING: they lose exactly 0 and count as correct.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedworth.utility.kernels_compile import compiled, intrinsic
from fedworth.utility.kernels_lanes import DOUBLES, I64, LANES, LOG2E, MEASURES, Lanes, LogSum

MOST_VECTORS = 16
"""Vectors of samples in a block, at most: what a LogSum can hold."""

LARGEST_MARGIN = 80.0
PADDING = 1e4

Floats = NDArray[np.float32]


def _step_code(careful: bool) -> Any:
    """What writes: sum = source + client, target = sum, measure the softmax of scale · sum."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes, b = Lanes(context, builder), builder
        sums, source_at, target_at, keeps, packed, client_at, scratch, n_vectors, n_others, scale = lanes.operands(
            signature, args
        )
        source, target, client = lanes.at(sums, source_at), lanes.at(sums, target_at), lanes.at(packed, client_at)
        scales, log2e = lanes.everywhere(scale), lanes.constant(LOG2E)
        powers = b.fmul(scales, log2e)
        logs = LogSum(lanes)
        linear, n_correct = (lanes.variable(lanes.constant(0.0, DOUBLES)) for _ in range(2))
        s, largest = lanes.variable(lanes.constant(1.0)), lanes.variable(lanes.constant(0.0))
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
                    b.store(lanes.at_least(margin, b.load(largest)), largest)
                else:
                    lanes.add_to(s, lanes.exp2(b.fmul(margin, powers)))
            if careful:
                m = b.load(largest)
                b.store(lanes.exp2(b.fmul(b.fneg(m), log2e)), s)
                with lanes.times(n_others) as c:
                    below = b.fsub(lanes.load(scratch, b.mul(c, I64(LANES))), m)
                    lanes.add_to(s, lanes.exp2(b.fmul(below, log2e)))
                lanes.add_to(linear, b.fpext(m, DOUBLES))
                hits = b.fcmp_ordered("<=", m, lanes.constant(0.0))
                lanes.add_to(n_correct, b.uitofp(hits, DOUBLES))
            logs.add(b.load(s))
        return logs.measures(linear, n_correct)

    return codegen


@intrinsic
def _quick_step(typing: Any, operands: Any) -> Any:  # noqa: ARG001
    return MEASURES(operands), _step_code(careful=False)


@intrinsic
def _careful_step(typing: Any, operands: Any) -> Any:  # noqa: ARG001
    return MEASURES(operands), _step_code(careful=True)


@compiled
def pack_margins(
    logits: Floats,
    start_logits: Floats,
    labels: NDArray[np.int64],
    client_weights: NDArray[np.float64],
) -> tuple[Floats, Floats, float]:
    """A block's weighted margins for each client, the margins sums start from, and the largest of all unweighted.

    Logits are (n_models, n_samples, n_classes), labels (n_samples,), all of one block.

    `start_logits` holds one model if sums start from it, and the clients' margins are then relative to it; it holds
    none if they start from nothing. The largest is NaN if a margin is not finite.
    """
    n_clients, n_samples, n_classes = logits.shape
    n_vectors = -(-n_samples // LANES)
    starts = start_logits.shape[0] == 1
    size = n_vectors * (n_classes - 1) * LANES
    packed, start = np.empty((n_clients, size), np.float32), np.zeros(size, np.float32)
    largest, probe = -PADDING, np.float32(0.0)
    for at in range(size):
        i = at // ((n_classes - 1) * LANES) * LANES + at % LANES
        if i >= n_samples:
            if starts:
                start[at] = -PADDING
            for k in range(n_clients):
                packed[k, at] = 0.0 if starts else -PADDING * client_weights[k]
            continue
        label = labels[i]
        c = at // LANES % (n_classes - 1)
        c += c >= label
        origin = 0.0
        if starts:
            origin = np.float64(start_logits[0, i, c]) - np.float64(start_logits[0, i, label])
            start[at] = origin
            largest = max(largest, origin)
            probe += np.float32(0.0) * start[at]
        for k in range(n_clients):
            margin = np.float64(logits[k, i, c]) - np.float64(logits[k, i, label])
            packed[k, at] = (margin - origin) * client_weights[k]
            largest = max(largest, margin)
            probe += np.float32(0.0) * packed[k, at]
    return packed, start, largest + np.float64(probe)


@compiled
def measure_margins(
    packed: Floats,
    start: Floats,
    n_vectors: int,
    clients: NDArray[np.int32],
    sources: NDArray[np.int32],
    targets: NDArray[np.int32],
    wanted: NDArray[np.bool_],
    scales: Floats,
    n_slots: int,
    careful: bool,
) -> NDArray[np.float64]:
    """Σ loss over the block's samples after each wanted step, and how many were correct if careful."""
    size = packed.shape[1]
    n_others = size // (n_vectors * LANES)
    sums = np.empty(n_slots * size + LANES, np.float32)  # the slots, and a place for sums nobody continues
    scratch = np.empty(max(n_others, 1) * LANES, np.float32)
    found = np.zeros((2, len(clients)))  # (2, n_steps)
    sums[:size] = start
    for step in range(len(clients)):
        keeps = np.int64(targets[step] >= 0)
        source = np.int64(sources[step]) * size
        target = np.int64(targets[step] if keeps else n_slots) * size
        client = np.int64(clients[step]) * size
        operands = (sums, source, target, keeps, packed, client, scratch, n_vectors, n_others, scales[step])
        if not wanted[step]:
            sums[target : target + size] = sums[source : source + size] + packed[clients[step]]
        else:
            measures = _careful_step(operands) if careful else _quick_step(operands)
            found[0, step] = math.log(measures[0]) + math.log(2.0) * measures[1] + measures[2]
            found[1, step] = measures[3]
    return found
