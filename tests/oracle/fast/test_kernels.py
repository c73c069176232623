"""The kernels, as the oracle calls them, agree with float64 averages written out, one coalition at a time."""

import functools
import itertools

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from fedworth.errors import UtilityError
from fedworth.oracle.fast.affine import sample_batches
from fedworth.oracle.fast.averages import averages
from fedworth.oracle.fast.graph import export
from fedworth.oracle.fast.heads import head_losses, head_of, tiled_batches
from fedworth.oracle.fast.kernels.lanes import TILE
from fedworth.oracle.fast.kernels.tiles import NotFiniteError, extremes_of
from fedworth.oracle.fast.mixing import RoundModels
from fedworth.oracle.fast.routes import KERNEL_BATCH
from fedworth.oracle.fast.sections import cut
from fedworth.oracle.fast.trie import coalition_trie
from fedworth.oracle.weighting import Mixtures

SHAPES = [(1, 1), (3, 2), (4, 10), (7, 40), (1, 1, 1), (5, 33, 3), (9, 30, 10), (6, 30, 29, 10)]
"""From inputs to classes: softmax regressions, and networks of one and of two hidden layers."""


@functools.cache
def sections_of(widths):
    """A network of these widths, cut where the kernels begin."""
    layers = [layer for n in itertools.pairwise(widths) for layer in (nn.Linear(*n), nn.ReLU())]
    module = nn.Sequential(*layers[:-1])
    return cut(export(module, torch.zeros(8, widths[0])), frozenset(module.state_dict()))


def random_model(rng, widths, scale=1.0):
    model = {}
    for at, (n_inputs, n_outputs) in enumerate(itertools.pairwise(widths)):
        model[f"{2 * at}.weight"] = rng.normal(0, scale * n_inputs**-0.5, (n_outputs, n_inputs)).astype(np.float32)
        model[f"{2 * at}.bias"] = rng.normal(0, scale, n_outputs).astype(np.float32)
    return model


def kernel_losses(origin, clients, inputs, labels, mixtures, n_threads=1):
    """(n_coalitions + 1,): the mean losses, and last that of the global model."""
    n_layers = len(origin) // 2
    sections = sections_of(
        (*(origin[f"{2 * k}.weight"].shape[1] for k in range(n_layers)), len(list(origin.values())[-1]))
    )
    head = head_of(sections)
    assert head is not None
    start, *others = ({name: torch.from_numpy(array) for name, array in m.items()} for m in (origin, *clients))
    batches = sample_batches(sections, start, torch.from_numpy(inputs), torch.from_numpy(labels), KERNEL_BATCH)
    models = RoundModels(start, tuple(others), {}, (), False)
    samples = tiled_batches(sections, batches)
    return head_losses(sections, head, models, mixtures, samples, n_threads=n_threads).losses / len(labels)


def logits_of(origin, clients, inputs, shares, of_global):
    """The logits of the averaged network, (n_samples, n_classes) float64."""
    x = inputs.astype(np.float64)
    models = [origin, *clients]
    mean = {
        name: np.tensordot([of_global, *shares], np.stack([m[name] for m in models]).astype(np.float64), 1)
        for name in origin
    }
    for layer in range(len(origin) // 2):
        x = (x if layer == 0 else np.maximum(x, 0)) @ mean[f"{2 * layer}.weight"].T + mean[f"{2 * layer}.bias"]
    return x


def loss_of(logits, labels):
    largest = logits.max(axis=1)
    return (
        np.log(np.exp(logits - largest[:, None]).sum(axis=1)) + largest - logits[np.arange(len(labels)), labels]
    ).mean()


def weights_for(weighting, rng, n_clients):
    weights = np.ones(n_clients) if weighting == "uniform" else rng.integers(1, 1000, n_clients).astype(np.float64)
    return weights / weights.sum() if weighting == "fixed" else weights


def some_coalitions(rng, n_clients, n_coalitions):
    members = rng.random((n_coalitions, n_clients)) < rng.random((n_coalitions, 1))
    members[~members.any(axis=1), rng.integers(n_clients)] = True
    return members


@given(
    seed=st.integers(0, 2**32),
    widths=st.sampled_from(SHAPES),
    n_clients=st.integers(1, 9),
    n_samples=st.integers(1, 600),
    n_coalitions=st.integers(1, 30),
    scale=st.sampled_from([0.1, 1.0, 20.0]),
    weighting=st.sampled_from(["uniform", "samples", "fixed"]),
)
@example(seed=0, widths=(1, 1), n_clients=1, n_samples=1, n_coalitions=1, scale=1.0, weighting="uniform")
@example(seed=1, widths=(4, 10), n_clients=5, n_samples=257, n_coalitions=9, scale=1e3, weighting="fixed")
@example(seed=2, widths=(9, 30, 10), n_clients=6, n_samples=299, n_coalitions=20, scale=20.0, weighting="samples")
@example(seed=3, widths=(6, 30, 29, 10), n_clients=6, n_samples=33, n_coalitions=20, scale=1.0, weighting="fixed")
def test_losses_agree_with_the_reference(seed, widths, n_clients, n_samples, n_coalitions, scale, weighting):
    rng = np.random.default_rng(seed)
    origin, *clients = (random_model(rng, widths, scale) for _ in range(n_clients + 1))
    inputs = rng.normal(size=(n_samples, widths[0])).astype(np.float32)
    labels = rng.integers(0, widths[-1], n_samples)
    members = some_coalitions(rng, n_clients, n_coalitions)
    mixtures = Mixtures(members, weights_for(weighting, rng, n_clients), weighting == "fixed")

    found = kernel_losses(origin, clients, inputs, labels, mixtures)

    rows = [*zip(mixtures.of_clients, mixtures.of_global, strict=True), (np.zeros(n_clients), 1.0)]
    logits = [logits_of(origin, clients, inputs, shares, of_global) for shares, of_global in rows]
    alone = [logits_of(origin, clients, inputs, np.eye(n_clients)[k], 0.0) for k in range(n_clients)]
    largest = max(float(np.abs(each).max()) for each in (*logits, *alone))
    tolerance = 1e-6 * max(1.0, largest)  # float32 rounds a logit in proportion to its size
    np.testing.assert_allclose(found, [loss_of(each, labels) for each in logits], rtol=0, atol=tolerance)


@pytest.fixture
def rng():
    return np.random.default_rng(2022)


@pytest.mark.parametrize("widths", [(4, 10), (9, 30, 10)])
def test_losses_have_the_same_bytes_on_one_thread_and_on_two(rng, widths):
    origin, *clients = (random_model(rng, widths) for _ in range(7))
    inputs, labels = rng.normal(size=(1500, widths[0])).astype(np.float32), rng.integers(0, 10, 1500)
    mixtures = Mixtures(some_coalitions(rng, 6, 20), np.ones(6), False)
    one, two, three = (kernel_losses(origin, clients, inputs, labels, mixtures, n).tobytes() for n in (1, 2, 3))
    assert one == two == three


def test_equal_coalitions_have_equal_losses(rng):
    origin, *clients = (random_model(rng, (4, 10)) for _ in range(4))
    members = np.array([[True, True, False], [False, True, True], [True, True, False]])
    inputs, labels = rng.normal(size=(50, 4)).astype(np.float32), rng.integers(0, 10, 50)
    losses = kernel_losses(origin, clients, inputs, labels, Mixtures(members, np.ones(3), False))
    assert losses[0] == losses[2] != losses[1]


def test_a_client_who_returns_the_global_model_changes_nothing_under_fixed_weights(rng):
    origin, client = (random_model(rng, (4, 10)) for _ in range(2))
    members = np.array([[True, False], [False, True], [True, True]])
    inputs, labels = rng.normal(size=(50, 4)).astype(np.float32), rng.integers(0, 10, 50)
    mixtures = Mixtures(members, np.array([0.4, 0.6]), True)
    losses = kernel_losses(origin, [origin, client], inputs, labels, mixtures)
    assert losses[0] == pytest.approx(losses[3], abs=1e-7)
    assert losses[2] == pytest.approx(losses[1], abs=1e-7)


def softmax_model(*biases):
    """Logits that are the same for every sample."""
    return {"0.weight": np.zeros((2, 3), np.float32), "0.bias": np.array(biases, np.float32)}


def losses_at_one(origin, clients, mixtures, n_samples=20):
    """Of samples of class 1."""
    inputs, labels = np.zeros((n_samples, 3), np.float32), np.ones(n_samples, np.int64)
    return kernel_losses(origin, clients, inputs, labels, mixtures)


def test_margins_too_large_for_float32_exponentials_are_measured():
    mixtures = Mixtures(np.ones((1, 1), np.bool_), np.ones(1), False)
    assert losses_at_one(softmax_model(0, 0), [softmax_model(3e4, 0)], mixtures)[0] == pytest.approx(3e4)


def test_averages_may_leave_the_range_of_their_models_under_large_fixed_weights():
    mixtures = Mixtures(np.ones((1, 2), np.bool_), np.ones(2), True)
    losses = losses_at_one(softmax_model(0, 0), [softmax_model(60, 0)] * 2, mixtures)
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
@pytest.mark.parametrize("whose", ["global", "client"])
def test_outputs_that_are_not_finite_are_refused(whose, bad):
    good, broken = softmax_model(0, 1), softmax_model(bad, 0)
    origin, client = (broken, good) if whose == "global" else (good, broken)
    with pytest.raises(NotFiniteError):
        losses_at_one(origin, [client], Mixtures(np.ones((1, 1), np.bool_), np.ones(1), False))


@pytest.mark.parametrize("widths", [(4, 5, 3), (4, 4, 4, 3)])
def test_an_overflow_inside_a_network_is_no_number(rng, widths):
    origin, *clients = (random_model(rng, widths) for _ in range(3))
    for client in clients:
        client["0.weight"] *= np.float32(1e20)
        client["2.weight"] *= np.float32(1e30)
    inputs, labels = rng.normal(size=(10, 4)).astype(np.float32), np.zeros(10, np.int64)
    losses = kernel_losses(origin, clients, inputs, labels, Mixtures(np.ones((1, 2), np.bool_), np.ones(2), False))
    assert not np.isfinite(losses[0])
    assert np.isfinite(losses[1])


@pytest.mark.parametrize(
    ("members", "n_clients", "weights", "problem"),
    [
        (np.ones((1, 6), np.bool_), 5, np.ones(5), "names 6 clients"),
        (np.ones((1, 6), np.bool_), 6, np.zeros(6), "expected 6 positive numbers"),
        (np.ones((1, 6), np.bool_), 6, np.ones(5), "expected 6 positive numbers"),
        (np.zeros((1, 2), np.bool_), 2, np.ones(2), "empty coalition"),
    ],
)
@pytest.mark.parametrize("from_global", [False, True])
def test_averages_that_cannot_be_are_refused(members, n_clients, weights, problem, from_global):
    with pytest.raises(UtilityError, match=problem):
        averages(coalition_trie(members), n_clients, weights, from_global=from_global)
