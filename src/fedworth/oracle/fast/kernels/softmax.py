"""Cross-entropy of averaged logits: what a coalition's softmax regression would lose.

With y the label and d_c = z_c − z_y the margin by which class c beats it, a sample loses

    −log softmax(z)_y = log(1 + Σ_{c≠y} exp d_c).

Margins are linear in the logits, and logits in the model, so the margins of an averaged model are the averaged
margins of its clients: the label costs nothing after packing, and one class of exponentials is saved.

No margin of an average exceeds the largest of its clients. If that is at most LARGEST_MARGIN the exponentials
cannot overflow; otherwise a step takes out m = max(0, max_c d_c) first.

Packed, a block of samples is (n_vectors, n_classes − 1, LANES) for each client, in the whole units of `averages`:
running sums are of integers, and a margin becomes a float where it is measured. Samples that fill up the last tile are
PADDING below: they lose exactly 0.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedworth.compile import compiled, compiled_within, intrinsic
from fedworth.oracle.fast.averages import Averages, groups, running_maxima
from fedworth.oracle.fast.kernels.lanes import DOUBLES, I64, INTS, LANES, LOG2E, LOSS_PARTS, Lanes, LogSum
from fedworth.oracle.fast.kernels.products import add
from fedworth.oracle.fast.kernels.tiles import Block, Floats, Labels

LARGEST_MARGIN = 80.0
PADDING = 1e38  # beyond any margin of numbers that a ledger takes, and times log2(e) still a float32

Integers = NDArray[np.int32]


def _step_code(careful: bool) -> Any:
    """What writes: sum = source + client in integers, target = sum, measure the softmax of scale · sum."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes, b = Lanes(context, builder), builder
        sums, source_at, target_at, keeps, packed, client_at, *rest = lanes.operands(signature, args)
        padding, scratch, n_vectors, n_others, scale = rest
        source, target, client = lanes.at(sums, source_at), lanes.at(sums, target_at), lanes.at(packed, client_at)
        scales, log2e = lanes.everywhere(scale), lanes.constant(LOG2E)
        powers = b.fmul(scales, log2e)
        logs = LogSum(lanes)
        linear = lanes.variable(lanes.constant(0.0, DOUBLES))
        s, largest = lanes.variable(lanes.constant(1.0)), lanes.variable(lanes.constant(0.0))
        with lanes.times(n_vectors) as v:
            first = b.mul(v, n_others)
            b.store(lanes.constant(1.0), s)
            b.store(lanes.constant(0.0), largest)
            beyond = lanes.load(padding, b.mul(v, I64(LANES)))
            with lanes.times(n_others) as c:
                offset = b.mul(b.add(first, c), I64(LANES))
                total = b.add(lanes.load(source, offset, INTS), lanes.load(client, offset, INTS))
                lanes.store(total, target, b.mul(offset, keeps))
                margin = lanes.floats(total)
                if careful:
                    margin = lanes.multiply_add(margin, scales, beyond)
                    lanes.store(margin, scratch, b.mul(c, I64(LANES)))
                    b.store(lanes.at_least(margin, b.load(largest)), largest)
                else:
                    lanes.add_to(s, lanes.exp2(lanes.multiply_add(margin, powers, beyond), is_finite=True))
            if careful:
                m = b.load(largest)
                b.store(lanes.exp2(b.fmul(b.fneg(m), log2e)), s)
                with lanes.times(n_others) as c:
                    below = b.fsub(lanes.load(scratch, b.mul(c, I64(LANES))), m)
                    lanes.add_to(s, lanes.exp2(b.fmul(below, log2e)))
                lanes.add_to(linear, b.fpext(m, DOUBLES))
            logs.add(b.load(s))
        return logs.parts(linear)

    return codegen


@intrinsic
def _quick_step(typing: Any, operands: Any) -> Any:  # noqa: ARG001
    return LOSS_PARTS(operands), _step_code(careful=False)


@intrinsic
def _careful_step(typing: Any, operands: Any) -> Any:  # noqa: ARG001
    return LOSS_PARTS(operands), _step_code(careful=True)


def softmax_sums(block: Block, averages: Averages) -> NDArray[np.float64]:
    """Σ loss over a block's samples after each wanted step: (n_steps,).

    If sums start from a model, the clients' margins are relative to it.
    """
    relative, of_start = (_widths(extremes) for extremes in block.relative_extremes())  # (n_clients,), (1 or 0,)
    ranges, start_range = np.maximum(_widths(block.extremes), of_start.max(initial=0)), of_start.max(initial=0)
    trie = averages.trie
    careful = ~averages.convex  # (n_steps,)
    if (ranges > LARGEST_MARGIN).any():
        careful |= running_maxima(trie.clients, trie.parents, ranges) > LARGEST_MARGIN
    found = np.zeros(trie.n_steps)
    padding = np.where(block.labels < 0, np.float32(-PADDING), np.float32(0.0))  # (n_tiles · TILE,)
    for group in groups(averages, [(relative, float(start_range))]):
        steps = group.trie
        measure_margins(
            block.tiles, block.start, block.labels, padding, averages.client_weights, group.members,
            int(group.exponents[0]), steps.clients, steps.sources, steps.targets, steps.wanted, steps.n_slots,
            group.places, averages.shares, careful, _room(block.tiles, steps.n_slots), found,
        )  # fmt: skip
    return found


def _room(tiles: Floats, n_slots: int) -> tuple[NDArray[np.float64], Integers, Integers, Floats]:
    """Where margins are made and summed: in float64, in units of each client, the slots' sums and a place for sums
    that nobody continues, and one vector's margins."""
    n_clients, n_tiles, n_classes, width = tiles.shape
    n_others = n_classes - 1
    size = n_tiles * n_others * width
    return (
        np.empty((3, max(size, LANES))),
        np.empty((n_clients, size), np.int32),
        np.empty(n_slots * size + LANES, np.int32),
        np.empty(max(n_others, 1) * LANES, np.float32),
    )


def _widths(extremes: Floats) -> NDArray[np.float64]:
    """(n_models,): no margin between numbers of these extremes is larger, in size."""
    return np.asarray(extremes[:, 1].astype(np.float64) - extremes[:, 0])


@compiled_within
def _margins(
    models: Floats, model: int, labels: Labels, own: NDArray[np.float64], margins: NDArray[np.float64]
) -> None:
    """A model's margins, (n_vectors, n_classes − 1, LANES): class after class, the label's left out."""
    n_tiles, n_classes, width = models.shape[1:]
    n_others = n_classes - 1
    for vector in range(n_tiles * width // LANES):
        tile, lane, sample = vector * LANES // width, np.uint64(vector * LANES % width), np.uint64(vector * LANES)
        for i in range(np.uint64(LANES)):  # unsigned, so that no index can count from the end, and vectors are used
            label = labels[sample + i]
            own[i] = models[model, tile, label if label > 0 else 0, lane + i]
        for c in range(n_others):
            at = np.uint64((vector * n_others + c) * LANES)
            for i in range(np.uint64(LANES)):
                this, next_ = models[model, tile, c, lane + i], models[model, tile, c + 1, lane + i]
                margins[at + i] = np.float64(this if c < labels[sample + i] else next_) - own[i]


@compiled_within
def _pack_margins(
    members: NDArray[np.int64],
    exponent: int,
    client_weights: NDArray[np.float64],
    tiles: Floats,
    start: Floats,
    labels: Labels,
    work: NDArray[np.float64],
    packed: Integers,
    sums: Integers,
) -> None:
    """The weighted margins of some clients, in whole units, and those that sums start from; others' are left open."""
    size = packed.shape[1]
    own, margins, origin = work[2], work[0], work[1]
    for at in range(size):
        origin[at] = 0.0
    for k in range(len(start)):
        _margins(start, k, labels, own, origin)
    unit = math.ldexp(1.0, -exponent)
    for at in range(size):
        sums[at] = np.int32(np.rint(origin[at] * unit))
    for k in members:
        _margins(tiles, k, labels, own, margins)
        factor = math.ldexp(client_weights[k], -exponent)
        for at in range(size):
            packed[k, at] = np.int32(np.rint((margins[at] - origin[at]) * factor))


@compiled
def measure_margins(
    tiles: Floats,
    start: Floats,
    labels: Labels,
    padding: Floats,
    client_weights: NDArray[np.float64],
    members: NDArray[np.int64],
    exponent: int,
    clients: NDArray[np.int32],
    sources: NDArray[np.int32],
    targets: NDArray[np.int32],
    wanted: NDArray[np.bool_],
    n_slots: int,
    places: NDArray[np.int64],
    shares: NDArray[np.float64],
    careful: NDArray[np.bool_],
    room: tuple[NDArray[np.float64], Integers, Integers, Floats],
    found: NDArray[np.float64],
) -> None:
    """Σ loss over the block's samples after each wanted step: into `found`, which has a place for every step of the
    whole trie, as `shares` and `careful` have. `room` is room to work in.

    One call for all of a block's work: threads that come back to the interpreter wait for each other there."""
    work, packed, sums, scratch = room
    _pack_margins(members, exponent, client_weights, tiles, start, labels, work, packed, sums)
    size, n_vectors = packed.shape[1], len(padding) // LANES
    n_others = size // (n_vectors * LANES)
    for step in range(len(clients)):
        keeps = np.int64(targets[step] >= 0)
        source = np.int64(sources[step]) * size
        target = np.int64(targets[step] if keeps else n_slots) * size
        client = np.int64(clients[step]) * size
        if not wanted[step]:
            add((sums, source, target, packed, client, size))
            continue
        place = places[step]
        scale = np.float32(math.ldexp(shares[place], exponent))
        operands = (sums, source, target, keeps, packed, client, padding, scratch, n_vectors, n_others, scale)
        parts = _careful_step(operands) if careful[place] else _quick_step(operands)
        found[place] = math.log(parts[0]) + math.log(2.0) * parts[1] + parts[2]
