"""The kernels agree with float64 averages written out, one coalition at a time."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedworth.errors import UtilityError
from fedworth.utility.fast.kernels.lanes import TILE
from fedworth.utility.fast.kernels.measures import (
    ReluHeads,
    hidden_relu_losses,
    hidden_relu_measures,
    softmax_losses,
    softmax_measures,
)
from fedworth.utility.fast.tiles import extremes_of
from fedworth.utility.fast.trie import coalition_trie, prefix_trie

WEIGHTINGS = ("uniform", "samples", "fixed")


def coefficients(members, weighting, weights):
    """(n_coalitions, n_clients + 1): how much of each client, and last of the global model, a coalition's model is."""
    if weighting == "fixed":
        shares = members * weights
        return np.column_stack((shares, 1 - shares.sum(axis=1)))
    shares = members * (weights if weighting == "samples" else np.ones_like(weights))
    return np.column_stack((shares / shares.sum(axis=1, keepdims=True), np.zeros(len(members))))


def reference(logits, labels):
    """Mean cross-entropy and accuracy, (n_samples, n_classes) float64."""
    largest = logits.max(axis=1)
    own = logits[np.arange(len(labels)), labels]
    losses = np.log(np.exp(logits - largest[:, None]).sum(axis=1)) + largest - own
    return losses.mean(), (own >= largest).mean()


def reference_network(heads, global_head, shares):
    """The logits of the network averaged with the given shares, (n_samples, n_classes) float64."""

    def averaged(clients, model):
        return np.tensordot(shares, np.concatenate((clients, model)).astype(np.float64), 1)

    x = averaged(heads.pre_activations, global_head.pre_activations)
    layers = zip(heads.weights, global_head.weights, heads.biases, global_head.biases, strict=True)
    for weight, global_weight, bias, global_bias in layers:
        x = np.maximum(x, 0) @ averaged(weight, global_weight).T + averaged(bias, global_bias)
    return x


def weights_for(weighting, rng, n_clients):
    if weighting == "uniform":
        return None
    weights = rng.integers(1, 1000, n_clients).astype(np.float64)
    return weights if weighting == "samples" else weights / weights.sum()


def some_coalitions(rng, n_clients, n_coalitions, allows_empty):
    members = rng.random((n_coalitions, n_clients)) < rng.random((n_coalitions, 1))
    if not allows_empty:
        members[~members.any(axis=1), rng.integers(n_clients)] = True
    return members


@given(
    seed=st.integers(0, 2**32),
    n_clients=st.integers(1, 9),
    n_samples=st.integers(1, 600),
    n_classes=st.integers(1, 40),
    n_coalitions=st.integers(1, 30),
    scale=st.sampled_from([0.01, 1.0, 20.0, 1e3]),
    weighting=st.sampled_from(WEIGHTINGS),
)
@example(seed=0, n_clients=1, n_samples=1, n_classes=1, n_coalitions=1, scale=1.0, weighting="uniform")
@example(seed=1, n_clients=5, n_samples=257, n_classes=10, n_coalitions=9, scale=1e3, weighting="fixed")
def test_softmax_agrees_with_the_reference(seed, n_clients, n_samples, n_classes, n_coalitions, scale, weighting):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, scale, (n_clients + 1, n_samples, n_classes)).astype(np.float32)
    labels = rng.integers(0, n_classes, n_samples)
    weights = weights_for(weighting, rng, n_clients)
    members = some_coalitions(rng, n_clients, n_coalitions, allows_empty=weighting == "fixed")
    options = {"client_weights": weights, "global_logits": logits[-1] if weighting == "fixed" else None}

    trie = coalition_trie(members)
    measures = softmax_measures(logits[:-1], labels, trie, **options)
    losses = softmax_losses(logits[:-1], labels, trie, n_threads=2, **options)

    shares = coefficients(members, weighting, np.ones(n_clients) if weights is None else weights)
    expected = [reference(np.tensordot(row, logits.astype(np.float64), 1), labels) for row in shares]
    tolerance = 1e-6 * max(1.0, float(np.abs(logits).max()))  # float32 rounds a logit in proportion to its size
    np.testing.assert_allclose(measures.losses, [loss for loss, _ in expected], rtol=0, atol=tolerance)
    np.testing.assert_allclose(losses, [loss for loss, _ in expected], rtol=0, atol=tolerance)
    np.testing.assert_allclose(measures.accuracies, [share for _, share in expected], atol=1.01 / n_samples)


@given(
    seed=st.integers(0, 2**32),
    n_clients=st.integers(1, 7),
    n_samples=st.integers(1, 300),
    widths=st.lists(st.integers(1, 33), min_size=2, max_size=4),
    n_coalitions=st.integers(1, 20),
    scale=st.sampled_from([0.1, 1.0, 20.0]),
    weighting=st.sampled_from(WEIGHTINGS),
)
@example(seed=0, n_clients=1, n_samples=1, widths=[1, 1], n_coalitions=1, scale=1.0, weighting="uniform")
@example(seed=1, n_clients=6, n_samples=299, widths=[30, 10], n_coalitions=20, scale=20.0, weighting="samples")
@example(seed=2, n_clients=6, n_samples=33, widths=[30, 29, 10], n_coalitions=20, scale=1.0, weighting="fixed")
def test_relu_networks_agree_with_the_reference(seed, n_clients, n_samples, widths, n_coalitions, scale, weighting):
    rng = np.random.default_rng(seed)
    heads, global_head = (random_heads(rng, n_models, n_samples, widths, scale) for n_models in (n_clients, 1))
    labels = rng.integers(0, widths[-1], n_samples)
    weights = weights_for(weighting, rng, n_clients)
    members = some_coalitions(rng, n_clients, n_coalitions, allows_empty=weighting == "fixed")

    measures = hidden_relu_measures(
        heads,
        labels,
        coalition_trie(members),
        client_weights=weights,
        global_head=global_head if weighting == "fixed" else None,
    )

    shares = coefficients(members, weighting, np.ones(n_clients) if weights is None else weights)
    logits = [reference_network(heads, global_head, row) for row in shares]
    expected = [reference(each, labels) for each in logits]
    tolerance = 1e-6 * max(1.0, float(np.abs(logits).max()))
    np.testing.assert_allclose(measures.losses, [loss for loss, _ in expected], rtol=0, atol=tolerance)
    np.testing.assert_allclose(measures.accuracies, [share for _, share in expected], atol=1.01 / n_samples)


def random_heads(rng, n_models, n_samples, widths, scale=1.0):
    layers = list(itertools.pairwise(widths))
    return ReluHeads(
        rng.normal(0, scale, (n_models, n_samples, widths[0])).astype(np.float32),
        tuple(rng.normal(0, n_in**-0.5, (n_models, n_out, n_in)).astype(np.float32) for n_in, n_out in layers),
        tuple(rng.normal(0, scale, (n_models, n_out)).astype(np.float32) for _, n_out in layers),
    )


@pytest.fixture
def rng():
    return np.random.default_rng(2022)


@pytest.fixture
def trie(rng):
    return prefix_trie(np.stack([rng.permutation(6) for _ in range(5)]))


def test_results_have_the_same_bytes_on_one_thread_and_on_two(rng, trie):
    labels = rng.integers(0, 10, 1500)
    logits = rng.normal(size=(6, 1500, 10)).astype(np.float32)
    heads = random_heads(rng, 6, 1500, (20, 10))
    for run in (
        lambda n_threads: softmax_losses(logits, labels, trie, n_threads=n_threads),
        lambda n_threads: hidden_relu_losses(heads, labels, trie, n_threads=n_threads),
    ):
        assert run(1).tobytes() == run(2).tobytes() == run(3).tobytes()


def test_memory_order_does_not_matter(rng, trie):
    labels = rng.integers(0, 10, 100)
    logits = rng.normal(size=(6, 100, 10)).astype(np.float32)
    turned = np.ascontiguousarray(logits.transpose(0, 2, 1)).transpose(0, 2, 1)
    assert softmax_losses(logits, labels, trie).tobytes() == softmax_losses(turned, labels, trie).tobytes()
    heads = random_heads(rng, 6, 100, (10, 10))
    turned_heads = ReluHeads(np.asfortranarray(heads.pre_activations), heads.weights, heads.biases)
    assert hidden_relu_losses(heads, labels, trie).tobytes() == hidden_relu_losses(turned_heads, labels, trie).tobytes()


def test_equal_coalitions_have_equal_losses(rng):
    members = np.array([[True, True, False], [False, True, True], [True, True, False]])
    logits = rng.normal(size=(3, 50, 4)).astype(np.float32)
    losses = softmax_losses(logits, rng.integers(0, 4, 50), coalition_trie(members))
    assert losses[0] == losses[2] != losses[1]


def test_a_client_who_returns_the_global_model_changes_nothing_under_fixed_weights(rng):
    logits = rng.normal(size=(2, 50, 4)).astype(np.float32)
    trie = coalition_trie(np.array([[False, False], [True, False], [False, True], [True, True]]))
    losses = softmax_losses(
        logits, rng.integers(0, 4, 50), trie, client_weights=np.array([0.4, 0.6]), global_logits=logits[0]
    )
    assert losses[1] == pytest.approx(losses[0], abs=1e-7)
    assert losses[3] == pytest.approx(losses[2], abs=1e-7)


def test_margins_too_large_for_float32_exponentials_are_measured():
    logits = np.zeros((1, 40, 3), np.float32)
    logits[0, :, 0] = 3e4
    losses = softmax_losses(logits, np.ones(40, np.int64), coalition_trie(np.ones((1, 1), np.bool_)))
    assert losses[0] == pytest.approx(3e4)


def test_averages_may_leave_the_range_of_their_models_under_large_fixed_weights():
    logits = np.zeros((2, 20, 2), np.float32)
    logits[1, :, 0] = 60.0
    logits[0] = logits[1]
    trie = coalition_trie(np.ones((1, 2), np.bool_))
    losses = softmax_losses(
        logits, np.ones(20, np.int64), trie, client_weights=np.array([1.0, 1.0]), global_logits=np.zeros((20, 2), "f4")
    )
    assert losses[0] == pytest.approx(120.0)


@given(st.integers(0, 2**32 - 1), st.sampled_from([None, np.nan, np.inf, -np.inf]))
def test_extremes_are_the_lowest_and_the_highest_number_and_tell_what_is_not_finite(seed, bad):
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 4)), int(rng.integers(1, 4)), int(rng.integers(1, 6)), TILE)
    tiles = rng.normal(size=shape).astype(np.float32)
    expected = np.stack((tiles.min(axis=(1, 2, 3)), tiles.max(axis=(1, 2, 3))), axis=1)
    if bad is not None:
        place = tuple(rng.integers(0, shape).tolist())
        tiles[place], expected[place[0]] = bad, np.nan
    assert np.array_equal(extremes_of(tiles), expected, equal_nan=True)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_outputs_that_are_not_finite_are_refused_by_name(rng, trie, bad):
    labels = np.zeros(70, np.int64)
    logits = rng.normal(size=(6, 70, 3)).astype(np.float32)
    logits[4, 69, 2] = bad
    with pytest.raises(UtilityError, match="client 4: logits are not finite"):
        softmax_losses(logits, labels, trie)
    heads = random_heads(rng, 6, 70, (5, 3))
    heads.pre_activations[2, 69, 4] = bad
    with pytest.raises(UtilityError, match="client 2: pre-activations are not finite"):
        hidden_relu_losses(heads, labels, trie)


def test_a_global_model_that_is_not_finite_is_refused(rng, trie):
    logits = rng.normal(size=(6, 70, 3)).astype(np.float32)
    with pytest.raises(UtilityError, match="the global model: logits are not finite"):
        softmax_losses(
            logits, np.zeros(70, np.int64), trie, client_weights=np.ones(6), global_logits=logits[0] * np.nan
        )


@pytest.mark.parametrize("widths", [(4, 3), (4, 4, 3)])
def test_an_overflow_inside_a_network_is_refused(rng, trie, widths):
    heads = random_heads(rng, 6, 10, widths)
    huge = tuple((weight * np.float32(1e38)).astype(np.float32) for weight in heads.weights)
    heads = ReluHeads(heads.pre_activations * np.float32(1e20), huge, heads.biases)
    with pytest.raises(UtilityError, match="losses are not finite"):
        hidden_relu_losses(heads, np.zeros(10, np.int64), trie)


def test_the_empty_coalition_needs_a_global_model(rng):
    trie = coalition_trie(np.zeros((1, 2), np.bool_))
    with pytest.raises(UtilityError, match="empty coalition"):
        softmax_losses(rng.normal(size=(2, 5, 3)).astype(np.float32), np.zeros(5, np.int64), trie)


def test_contradictory_inputs_are_refused(rng, trie):
    logits = rng.normal(size=(6, 8, 3)).astype(np.float32)
    labels = np.zeros(8, np.int64)
    for problem, arguments in {
        "names 6 clients": (logits[:5], labels, trie, {}),
        "expected 6 positive numbers": (logits, labels, trie, {"client_weights": np.zeros(6)}),
        "need client_weights": (logits, labels, trie, {"global_logits": logits[0]}),
        "global model's outputs": (
            logits,
            labels,
            trie,
            {"global_logits": logits[0, 1:], "client_weights": np.ones(6)},
        ),
        "expected 0 to 2": (logits, labels + 3, trie, {}),
        "expected .n_clients, n_samples": (logits, labels[1:], trie, {}),
    }.items():
        with pytest.raises(UtilityError, match=problem):
            softmax_losses(*arguments[:3], **arguments[3])


def test_layers_that_do_not_fit_are_refused(rng):
    heads = random_heads(rng, 2, 3, (4, 5))
    for problem, weights, biases in (
        ("at least one", (), ()),
        ("layer 0: weights", (heads.weights[0][:, :, 1:],), heads.biases),
        ("not finite", (heads.weights[0] * np.nan,), heads.biases),
    ):
        with pytest.raises(UtilityError, match=problem):
            ReluHeads(heads.pre_activations, weights, biases)
