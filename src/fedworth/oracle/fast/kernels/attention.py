"""Attention of short sequences: softmax(scale · Q Kᵀ) V, a few sequences side by side in vector instructions.

Torch's own softmax takes most of the time where rows are short (eight tokens: 60 % of an attention block, measured),
and its products of small matrices much of the rest. Here LANES pairs of a sample and a head are laid side by side, each
number of a pair in its lane. Queries, keys and values are read where they lie, whatever their strides. A sample's
numbers are the same whatever other samples are in its batch.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedworth.compile import compiled, compiled_within, intrinsic, types
from fedworth.oracle.fast.kernels.lanes import I64, LANES, LOG2E, Lanes

MOST_NUMBERS = 1 << 10
"""Scores, or numbers of the keys, of a head and a sample, at most: beyond, torch is as fast (measured)."""

TOGETHER = 4
"""Queries whose sums are kept in registers at once."""

Floats = NDArray[np.float32]
Strides = NDArray[np.int64]


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """softmax(scale · q kᵀ) v over the last two dimensions; the one or two before tell sequences apart, and what has 1
    there serves all of them."""
    if not _is_known(q, k, v):
        return torch.softmax((q * scale) @ k.mT, -1) @ v
    if not q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:
        leading = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
        q, k, v = (tensor.expand(*leading, -1, -1) for tensor in (q, k, v))
    if q.ndim == 3:
        return _attention(q[:, None], k[:, None], v[:, None], scale)[:, 0]
    return _attention(q, k, v, scale)


def _is_known(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether the kernel takes these: small, in float32, on a CPU, and of shapes that go together."""
    is_single = all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in (q, k, v))
    is_small = k.shape[-2] * max(q.shape[-2], k.shape[-1]) <= MOST_NUMBERS
    fits = q.shape[-1] == k.shape[-1] and k.shape[-2] == v.shape[-2] and min(*q.shape, *k.shape, *v.shape) > 0
    return is_single and is_small and fits and max(q.ndim, k.ndim, v.ndim) in (3, 4)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """The kernel, for the same samples and heads of all three."""
    n_samples, n_heads, n_queries, width = q.shape
    n_keys, n_outputs = v.shape[2:]
    outputs = np.empty((n_queries, n_samples, n_heads, n_outputs), np.float32)
    n_rows = -(-n_queries // TOGETHER) * TOGETHER
    sizes = (n_rows * width, n_keys * width, n_keys * n_outputs, TOGETHER * n_keys, TOGETHER * n_outputs)
    queries, keys, values, scores, means = (np.zeros((n, LANES), np.float32) for n in sizes)
    (of_q, at_q), (of_k, at_k), (of_v, at_v) = (_flat(tensor) for tensor in (q, k, v))
    _attend(of_q, at_q, of_k, at_k, of_v, at_v, np.float32(scale), queries, keys, values, scores, means, outputs)
    return torch.from_numpy(outputs).permute(1, 2, 0, 3)


def _flat(tensor: torch.Tensor) -> tuple[Floats, Strides]:
    """All memory from a tensor's first number to its last, and its strides there."""
    span = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    flat = torch.as_strided(tensor, (span,), (1,), tensor.storage_offset())
    return flat.numpy(), np.array(tensor.stride(), np.int64)


@compiled
def _attend(
    q: Floats,
    q_strides: Strides,
    k: Floats,
    k_strides: Strides,
    v: Floats,
    v_strides: Strides,
    scale: np.float32,
    queries: Floats,
    keys: Floats,
    values: Floats,
    scores: Floats,
    means: Floats,
    outputs: Floats,
) -> None:
    """Fill the outputs (n_queries, n_samples, n_heads, n_outputs), LANES pairs of a sample and a head at a time."""
    n_queries, n_samples, n_heads, n_outputs = outputs.shape
    n_pairs, n_keys = n_samples * n_heads, len(scores) // TOGETHER
    width = len(keys) // n_keys
    for first in range(0, n_pairs, LANES):
        for lane in range(LANES):
            pair = first + lane if first + lane < n_pairs else first
            sample, head = pair // n_heads, pair % n_heads
            _pack(q, q_strides, sample, head, n_queries, width, scale, queries, lane)
            _pack(k, k_strides, sample, head, n_keys, width, np.float32(1.0), keys, lane)
            _pack(v, v_strides, sample, head, n_keys, n_outputs, np.float32(1.0), values, lane)
        for start in range(0, n_queries, TOGETHER):
            some = queries[start * width : (start + TOGETHER) * width]
            _attend_queries((some, keys, scores, values, means, width, n_keys, n_outputs))
            for lane in range(min(LANES, n_pairs - first)):
                sample, head = (first + lane) // n_heads, (first + lane) % n_heads
                for i in range(start, min(start + TOGETHER, n_queries)):
                    for d in range(n_outputs):
                        outputs[i, sample, head, d] = means[d * TOGETHER + i - start, lane]


@compiled_within
def _pack(
    numbers: Floats,
    strides: Strides,
    sample: int,
    head: int,
    n_rows: int,
    width: int,
    scale: np.float32,
    packed: Floats,
    lane: int,
) -> None:
    """One lane of what is packed: the rows of a sample and a head, one after the other."""
    start = sample * strides[0] + head * strides[1]
    for row in range(n_rows):
        for d in range(width):
            packed[row * width + d, lane] = scale * numbers[start + row * strides[2] + d * strides[3]]


def _queries_code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """TOGETHER queries of every lane: exp(q·k_j − max_j q·k_j), then the mean of the values with these weights."""
    lanes, b = Lanes(context, builder), builder
    queries, keys, scores, values, means, width, n_keys, n_outputs = lanes.operands(signature, args)

    def variables(start: float) -> list[Any]:
        made = [lanes.variable(lanes.constant(start)) for _ in range(TOGETHER)]
        for variable in made:
            b.store(lanes.constant(start), variable)
        return made

    def at(index: Any) -> Any:
        return b.mul(index, I64(LANES))

    def place(row: Any, query: int) -> Any:
        return at(b.add(b.mul(row, I64(TOGETHER)), I64(query)))

    highest, totals = variables(-np.inf), variables(0.0)
    with lanes.times(n_keys) as j:
        sums, start = variables(0.0), b.mul(j, width)
        with lanes.times(width) as d:
            key = lanes.load(keys, at(b.add(start, d)))
            for query, score in enumerate(sums):
                own = lanes.load(queries, at(b.add(b.mul(I64(query), width), d)))
                b.store(lanes.multiply_add(own, key, b.load(score)), score)
        for query, score in enumerate(sums):
            lanes.store(b.load(score), scores, place(j, query))
            b.store(lanes.at_least(b.load(score), b.load(highest[query])), highest[query])
    with lanes.times(n_keys) as j:
        for query in range(TOGETHER):
            below = b.fsub(lanes.load(scores, place(j, query)), b.load(highest[query]))
            probe = b.fmul(below, lanes.constant(0.0))  # NaN if a score is not finite
            weight = b.fadd(lanes.exp2(b.fmul(below, lanes.constant(LOG2E))), probe)
            lanes.store(weight, scores, place(j, query))
            lanes.add_to(totals[query], weight)
    with lanes.times(n_outputs) as d:
        sums = variables(0.0)
        with lanes.times(n_keys) as j:
            value = lanes.load(values, at(b.add(b.mul(j, n_outputs), d)))
            for query, mean in enumerate(sums):
                b.store(lanes.multiply_add(lanes.load(scores, place(j, query)), value, b.load(mean)), mean)
        for query, mean in enumerate(sums):
            lanes.store(b.fdiv(b.load(mean), b.load(totals[query])), means, place(d, query))
    return context.get_dummy_value()


@intrinsic
def _attend_queries(typing: Any, operands: Any) -> Any:  # noqa: ARG001
    """Operands: queries, keys, room for scores, values, room for means; the width and number of keys, values' width."""
    return types.void(operands), _queries_code
