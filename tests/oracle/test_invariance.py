"""A utility is the same to the last bit whatever is measured beside it, in any order, on any number of threads."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from torch import nn

from fedworth.games.matrix_file import save_utilities
from fedworth.games.observe import observe
from fedworth.games.planning.plan import plan_exact, plan_prefixes
from fedworth.ledger.ledger import Round
from fedworth.names import CHOICES
from fedworth.oracle.cache import utility_cache
from fedworth.oracle.fast.averages import averages, groups
from fedworth.oracle.fast.oracle import FastOracle
from fedworth.oracle.fast.trie import coalition_trie
from fedworth.oracle.weighting import client_weights, mixtures, participation
from tests.support.zoo import GREY, ROWS, ZOO, exact_utilities, round_of, task_of

N_CLIENTS = 7
COUNTS = dict(enumerate([3, 1, 4, 1, 5, 9, 2]))
KINDS = ("logistic", "mlp", "deep mlp", "cnn", "recurrent", "pooled convolution", "branching", "batch statistics")


def measured(oracle, round_, coalitions, weighting):
    weights = client_weights(COUNTS, N_CLIENTS, weighting=weighting, aggregation="samples")
    return oracle.utilities(round_, mixtures(coalitions, weights, weighting)).sum(axis=1)


def assert_invariant(task, round_, weighting, seed, measure="loss"):
    """Against all of them together: some of them, others' order, one after the other, and two threads."""
    rng = np.random.default_rng(seed)
    coalitions = rng.random((24, N_CLIENTS)) < rng.random((24, 1))
    oracle = FastOracle(task, measure, n_threads=1)
    together = measured(oracle, round_, coalitions, weighting)
    some = rng.permutation(24)[:10]
    for n_threads in (1, 2):
        other = FastOracle(task, measure, n_threads=n_threads)
        for chosen in (some, some[:4], some[4:], some[::-1], *some[:3, None]):
            found = measured(other, round_, coalitions[chosen], weighting)
            assert found.tobytes() == together[chosen].tobytes()


@pytest.mark.parametrize("weighting", CHOICES["weighting"])
@pytest.mark.parametrize("name", KINDS)
def test_a_utility_does_not_depend_on_what_else_is_measured(name, weighting):
    task = task_of(*ZOO[name][:2])
    assert_invariant(task, round_of(task.module, N_CLIENTS), weighting, seed=0)


@st.composite
def modules(draw):
    """Logistic regression, MLPs of odd and even widths, a small CNN, and modules without an affine prefix or kernel."""
    widths = draw(st.lists(st.integers(1, 30), max_size=2))
    kind = draw(st.sampled_from(["relu", "tanh", "cnn", "embedding"]))
    if kind == "cnn":
        first = nn.Conv2d(1, draw(st.integers(1, 5)), 3)
        return nn.Sequential(first, nn.ReLU(), nn.Flatten(), nn.Linear(36 * first.out_channels, 4)), GREY
    if kind == "embedding":
        return nn.Sequential(nn.Embedding(10, 3), nn.Flatten(), nn.Tanh(), nn.Linear(12, 4)), (4,)
    layers, before = [], ROWS[0]
    for width in widths:
        layers += [nn.Linear(before, width), nn.ReLU() if kind == "relu" else nn.Tanh()]
        before = width
    return nn.Sequential(*layers, nn.Linear(before, 4)), ROWS


@settings(max_examples=25)
@given(modules(), st.sampled_from(CHOICES["weighting"]), st.sampled_from(["loss", "accuracy"]), st.integers(0, 2**31))
def test_nor_does_it_for_random_architectures(drawn, weighting, measure, seed):
    module, shape = drawn
    task = task_of(lambda: module, shape, seed=seed)
    assert_invariant(task, round_of(task.module, N_CLIENTS), weighting, seed, measure)


@pytest.mark.parametrize("name", ["logistic", "mlp", "cnn"])
def test_nor_does_it_if_clients_are_twins_huge_frozen_or_unmoved(name):
    """Whoever decides a unit, a route or an order of sums must be in the coalition itself."""
    task = task_of(*ZOO[name][:2])
    round_ = round_of(task.module, N_CLIENTS)
    models = dict(round_.client_models)
    last = list(round_.global_model)[-1]
    models[5] = {**round_.global_model, last: models[5][last]}  # only the last tensor moved
    models |= {3: models[1], 6: models[1], 4: round_.global_model}
    models[2] = {key: 1e4 * tensor for key, tensor in models[2].items()}
    apart = {k: models.pop(k) for k in (0, 1)}
    for weighting in CHOICES["weighting"]:
        assert_invariant(task, Round(round_.entry, round_.global_model, models, apart), weighting, seed=1)


def test_a_huge_client_costs_no_precision_to_coalitions_without_it():
    task = task_of(*ZOO["mlp"][:2])
    round_ = round_of(task.module, N_CLIENTS)
    huge = {key: 1e6 * tensor for key, tensor in round_.client_models[2].items()}
    round_ = Round(round_.entry, round_.global_model, {**round_.client_models, 2: huge}, {})
    coalitions = np.random.default_rng(0).random((40, N_CLIENTS)) < 0.5
    coalitions[:30, 2] = False
    coalitions[30:, 2] = True
    wanted = mixtures(coalitions, np.ones(N_CLIENTS), "uniform")
    found, exact = FastOracle(task).utilities(round_, wanted).sum(axis=1), exact_utilities(task, round_, wanted)
    np.testing.assert_allclose(found[:30], exact[:30], rtol=0, atol=1e-6)
    np.testing.assert_allclose(found[30:], exact[30:], rtol=1e-5)


@given(st.integers(0, 2**31), st.integers(1, 200), st.booleans())
def test_sums_in_whole_units_never_leave_32_bits(seed, n_clients, starts):
    """The largest sums there can be: every member at its bound, and the start at its own."""
    rng = np.random.default_rng(seed)
    members = rng.random((20, n_clients)) < rng.random((20, 1))
    members[~members.any(axis=1), 0] = True
    bounds, start = 2.0 ** rng.integers(-60, 60, n_clients), 2.0 ** rng.integers(-20, 20) * starts
    sums = averages(coalition_trie(members), n_clients, np.ones(n_clients), from_global=starts)
    seen = 0
    for group in groups(sums, [(bounds, start)]):
        unit = np.ldexp(1.0, group.exponents[0])
        units = np.rint(bounds / unit)
        steps: list[float] = []
        for client, parent in zip(group.trie.clients, group.trie.parents, strict=True):
            steps.append(units[client] + (steps[parent] if parent >= 0 else np.rint(start / unit)))
        assert max(steps) < 2**31
        seen += int(group.trie.wanted.sum())
    assert seen == sums.trie.wanted.sum()


@pytest.mark.parametrize("weighting", CHOICES["weighting"])
def test_a_longer_plan_on_top_of_a_cache_gives_the_bytes_of_a_fresh_run(tiny_ledger, tiny_task, tmp_path, weighting):
    rows = participation(tiny_ledger)
    plans = [
        plan_prefixes(rows, n_permutations=n, sampler="permutations", rng=np.random.default_rng(0)) for n in (3, 6, 20)
    ]
    for plan in plans:
        oracle = FastOracle(tiny_task, n_threads=1)
        grown = observe(tiny_ledger, oracle, plan, weighting=weighting, cache=utility_cache(tiny_ledger, oracle))
    fresh = observe(tiny_ledger, FastOracle(tiny_task, n_threads=2), plans[-1], weighting=weighting)
    for name, matrix in (("grown.npz", grown), ("fresh.npz", fresh)):
        save_utilities(matrix, tmp_path / name)
    assert (tmp_path / "grown.npz").read_bytes() == (tmp_path / "fresh.npz").read_bytes()


def test_the_truth_on_top_of_what_was_seen_gives_the_bytes_of_a_fresh_run(tiny_ledger, tiny_task, tmp_path):
    rows, oracle = participation(tiny_ledger), FastOracle(tiny_task)
    cache = utility_cache(tiny_ledger, oracle)
    observe(tiny_ledger, oracle, plan_exact(rows), cache=cache)
    truth = plan_exact(rows, with_truth=True)
    save_utilities(observe(tiny_ledger, oracle, truth, cache=cache), tmp_path / "grown.npz")
    save_utilities(observe(tiny_ledger, FastOracle(tiny_task), truth), tmp_path / "fresh.npz")
    assert (tmp_path / "grown.npz").read_bytes() == (tmp_path / "fresh.npz").read_bytes()


def test_a_client_whose_numbers_are_not_finite_leaves_no_utility():
    """They are measured again by the plain loop, which finds out who it is; see `test_recheck`."""
    task = task_of(*ZOO["mlp"][:2])
    round_ = round_of(task.module, N_CLIENTS)
    oracle, coalitions = FastOracle(task), np.eye(N_CLIENTS, dtype=bool)
    measured(oracle, round_, coalitions, "uniform")  # the route is known
    for layer in ("0.weight", "2.weight"):
        broken = {**round_.client_models[5], layer: round_.client_models[5][layer] * np.inf}
        with_it = Round(round_.entry, round_.global_model, {**round_.client_models, 5: broken}, {})
        assert np.isnan(measured(oracle, with_it, coalitions, "uniform")).all()
