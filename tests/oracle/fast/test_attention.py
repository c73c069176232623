"""Attention of short sequences: the kernel against float64, whatever lies where, and modules measured by way of it."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedworth.oracle.fast import tuning
from fedworth.oracle.fast.graph import export, operation
from fedworth.oracle.fast.kernels.attention import MOST_NUMBERS, attention
from fedworth.oracle.fast.kernels.lanes import LANES
from fedworth.oracle.fast.oracle import FastOracle
from fedworth.oracle.fast.sections import cut
from tests.support.zoo import LINES, N_CLASSES, ZOO, all_mixtures, exact_utilities, round_of, task_of


def drawn(n_samples, n_heads, n_queries, width, n_keys=None, n_outputs=None, dtype=torch.float32):
    generator = torch.Generator().manual_seed(n_samples + width)
    shapes = (n_queries, width), (n_keys or n_queries, width), (n_keys or n_queries, n_outputs or width)
    return [torch.randn(n_samples, n_heads, *shape, generator=generator, dtype=dtype) for shape in shapes]


def plain(q, k, v, scale):
    q, k, v = q.double(), k.double(), v.double()
    return torch.softmax(scale * q @ k.mT, -1) @ v


SHAPES = [(1, 1, 1, 1), (3, 2, 5, 7), (LANES, 1, 4, 8), (LANES + 1, 3, 6, 4), (2, 2, 3, 5, 9, 2), (40, 4, 24, 8)]


@pytest.mark.parametrize("shape", SHAPES)
def test_attention_is_what_float64_says(shape):
    q, k, v = drawn(*shape)
    assert (attention(q, k, v, 0.3) - plain(q, k, v, 0.3)).abs().max() < 2e-6
    one_head = attention(q[:, 0], k[:, 0], v[:, 0], 0.3)
    assert torch.equal(one_head, attention(q[:, :1], k[:, :1], v[:, :1], 0.3)[:, 0])


def test_numbers_are_read_where_they_lie():
    together = torch.randn(6, 5, 3, 2, 4)  # (n_samples, n_tokens, q or k or v, n_heads, width)
    q, k, v = (together[:, :, part].transpose(1, 2) for part in range(3))
    assert torch.equal(attention(q, k, v, 0.5), attention(q.contiguous(), k.contiguous(), v.contiguous(), 0.5))


def test_a_sample_does_not_notice_the_others():
    q, k, v = drawn(2 * LANES + 3, 2, 5, 4)
    together = attention(q, k, v, 0.5)
    for sample in range(len(q)):
        own = slice(sample, sample + 1)
        assert torch.equal(attention(q[own], k[own], v[own], 0.5), together[own])


def test_large_scores_do_not_overflow_and_what_is_not_finite_stays_so():
    q, k, v = drawn(2, 1, 4, 3)
    assert (attention(1000 * q, k, v, 1.0) - plain(1000 * q, k, v, 1.0)).abs().max() < 1e-4
    q[1, 0, 0, 0] = math.inf
    found = attention(q, k, v, 1.0)
    assert found[0].isfinite().all()
    assert not found[1, 0, 0].isfinite().any()


def test_long_sequences_and_float64_are_left_to_torch():
    for q, k, v in (drawn(2, 1, MOST_NUMBERS // 8, 16), drawn(2, 1, 4, 3, dtype=torch.float64)):
        expected = F.scaled_dot_product_attention(q, k, v, scale=0.2)
        torch.testing.assert_close(attention(q, k, v, 0.2), expected)


@pytest.mark.parametrize("alone", [(0,), (1,), (2,), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("part", [(slice(1), slice(None)), (slice(None), slice(1)), (slice(1), slice(1)), (0, 0)])
def test_one_of_a_thing_serves_all_samples_or_heads(alone, part):
    """A learned query, learned keys, one head of keys for all of queries; with no dimension for it at all too."""
    q, k, v = (t[part] if i in alone else t for i, t in enumerate(drawn(LANES + 1, 3, 5, 4)))
    expected, found = plain(q, k, v, 0.3), attention(q, k, v, 0.3)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < 2e-6


def test_no_samples_give_no_outputs_and_shapes_that_do_not_fit_are_refused():
    q, k, v = drawn(2, 1, 4, 3)
    assert attention(q[:0], k[:0], v[:0], 1.0).shape == (0, 1, 4, 3)
    for misfit in ((q[..., :2], k, v), (q, k, v[:, :, :3]), (q, k.expand(-1, 3, -1, -1), v.expand(-1, 2, -1, -1))):
        with pytest.raises(RuntimeError):
            attention(*misfit, 1.0)


class Tokens(nn.Module):
    """Attention over tokens and a classifier on their mean, in one of the ways it is written."""

    def __init__(self, way):
        super().__init__()
        self.way, self.attention = way, nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        if self.way == "masked":
            mask = torch.zeros(4, 4, dtype=torch.bool)
            return self.head(self.attention(x, x, x, attn_mask=mask, need_weights=False)[0].mean(1))
        return self.head(self.attention(x, x, x, need_weights=self.way == "by products")[0].mean(1))


@pytest.mark.parametrize(("way", "has_kernel"), [("by products", True), ("by name", True), ("masked", False)])
def test_attention_without_a_mask_is_found_however_it_is_written(way, has_kernel):
    module, inputs = Tokens(way).eval(), torch.randn(6, 4, 8)
    exported = export(module, inputs)
    rest = cut(exported, set(module.state_dict()), shares_prefix=False).rest
    assert rest is not None
    called = [node.target for node in rest.graph_module.graph.nodes if node.op == "call_function"]
    assert (attention in called) == has_kernel
    assert not any(operation(node) == "clone" for node in rest.graph_module.graph.nodes)
    names = {node.name: node for node in exported.constants}
    reads = [inputs if n is exported.samples else exported.constants[names[n.name]] for n in rest.reads]
    torch.testing.assert_close(rest.graph_module(*reads)[0], module(inputs))


class Shared(nn.Module):
    """Several heads of queries, one of keys and values; or a query, or keys and values, that are learned."""

    def __init__(self, way):
        super().__init__()
        self.way, self.query = way, nn.Linear(8, 8)
        self.key, self.value, self.head = nn.Linear(8, 4), nn.Linear(8, 4), nn.Linear(8, N_CLASSES)
        self.learned = nn.ParameterList(torch.randn(1, 1, 3, 4) for _ in range(3))

    def forward(self, x):
        q = self.query(x).unflatten(2, (2, 4)).transpose(1, 2)
        k, v = self.key(x)[:, None], self.value(x)[:, None]
        if self.way == "learned query":
            q = self.learned[0].expand(-1, 2, -1, -1)
        elif self.way == "learned keys":
            k, v = self.learned[1], self.learned[2]
        return self.head(F.scaled_dot_product_attention(q, k, v).mean(2).flatten(1) + x.mean(1))


@pytest.mark.parametrize("way", ["one head of keys", "learned query", "learned keys"])
def test_utilities_are_the_plain_loops_where_heads_or_samples_share(way):
    task = task_of(lambda: Shared(way), LINES)
    oracle, round_, wanted = FastOracle(task, n_threads=1), round_of(task.module), all_mixtures("uniform")
    expected = exact_utilities(task, round_, wanted)
    assert np.ptp(expected) > 1e-3
    np.testing.assert_allclose(oracle.utilities(round_, wanted).sum(axis=1), expected, rtol=0, atol=1e-6)
    assert oracle.describe().startswith("graph: ")


def test_a_kernel_that_is_wrong_in_float32_alone_is_caught_by_the_self_check(monkeypatch):
    task = task_of(*ZOO["attentive"][:2])

    def wrong(q, k, v, scale):
        return attention(q, k, v, scale) * (1 + 1e-3 * (q.dtype == torch.float32))

    monkeypatch.setattr(tuning, "attention", wrong)
    oracle, round_, wanted = FastOracle(task, n_threads=1), round_of(task.module), all_mixtures("uniform")
    expected = exact_utilities(task, round_, wanted)
    np.testing.assert_allclose(oracle.utilities(round_, wanted).sum(axis=1), expected, rtol=0, atol=1e-6)
    assert "not graph, which disagrees (on amplified random clients logits differ" in oracle.describe()
