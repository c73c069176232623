"""The fast oracle against the plain loop in float64, over modules of every kind."""

import pickle
import threading
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import nn
from torch.nn.utils import prune

from fedworth.coalitions import coalitions_of
from fedworth.errors import ModelError, UsageError
from fedworth.ledger.ledger import Round
from fedworth.names import CHOICES
from fedworth.oracle.fast import affine, costs, graph, heads, routes, selfcheck
from fedworth.oracle.fast import oracle as fast
from fedworth.oracle.fast.oracle import FastOracle
from fedworth.oracle.oracle import LoopOracle
from fedworth.oracle.weighting import client_weights, mixtures
from fedworth.task.task import Task
from tests.support.zoo import (
    GREY,
    IMAGES,
    LINES,
    N_CLASSES,
    ROWS,
    ZOO,
    Residual,
    all_mixtures,
    exact_utilities,
    round_of,
    task_of,
)


@pytest.mark.parametrize("name", ZOO)
def test_utilities_are_the_plain_loops_for_every_kind_of_module(name):
    make, shape, kind = ZOO[name]
    task = task_of(make, shape)
    oracle, round_ = FastOracle(task, n_threads=1), round_of(task.module)
    for weighting in CHOICES["weighting"]:
        wanted = all_mixtures(weighting)
        expected = exact_utilities(task, round_, wanted)
        assert np.ptp(expected) > 1e-3
        np.testing.assert_allclose(oracle.utilities(round_, wanted).sum(axis=1), expected, rtol=0, atol=1e-6)
    assert oracle.describe().startswith(f"{kind}: ")


def _layers_for_rows(draw, width):
    """Layers that keep or change the width of rows."""
    new = draw(st.integers(1, 9))
    choices = {
        "linear": (nn.Linear(width, new, bias=draw(st.booleans())), new),
        "relu": (nn.ReLU(), width),
        "tanh": (nn.Tanh(), width),
        "dropout": (nn.Dropout(0.5), width),
        "batch norm": (nn.BatchNorm1d(width), width),
        "layer norm": (nn.LayerNorm(width), width),
        "residual": (Residual(lambda: nn.Linear(width, width)), width),
    }
    return choices[draw(st.sampled_from(sorted(choices)))]


def _layers_for_images(draw, channels, side):
    new = draw(st.integers(1, 4))
    choices = {
        "convolution": (nn.Conv2d(channels, new, 3, padding=1, bias=draw(st.booleans())), new, side),
        "relu": (nn.ReLU(inplace=draw(st.booleans())), channels, side),
        "batch norm": (nn.BatchNorm2d(channels), channels, side),
        "max pool": (nn.MaxPool2d(2, ceil_mode=True), channels, (side + 1) // 2),
        "mean pool": (nn.AvgPool2d(2, ceil_mode=True), channels, (side + 1) // 2),
        "residual": (Residual(lambda: nn.Conv2d(channels, channels, 3, padding=1)), channels, side),
    }
    return choices[draw(st.sampled_from(sorted(choices)))]


@st.composite
def architectures(draw):
    """Random stacks of layers for rows or images, what is frozen in them, and their precision."""
    shape = draw(st.sampled_from([ROWS, GREY, IMAGES]))
    layers, width = [], shape[0]
    if shape != ROWS:
        channels, side = shape[0], shape[1]
        for _ in range(draw(st.integers(1, 4))):
            layer, channels, side = _layers_for_images(draw, channels, side)
            layers.append(layer)
        layers.append(nn.Flatten())
        width = channels * side * side
    for _ in range(draw(st.integers(0, 4))):
        layer, width = _layers_for_rows(draw, width)
        layers.append(layer)
    layers.append(nn.Linear(width, N_CLASSES))
    n_frozen = draw(st.integers(0, len(layers) - 1)) if draw(st.booleans()) else 0
    frozen = tuple(f"{i}." for i in range(n_frozen))
    return nn.Sequential(*layers), shape, frozen, draw(st.sampled_from([torch.float32, torch.float64]))


@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(architectures(), st.sampled_from(CHOICES["weighting"]), st.integers(1, 3), st.integers(0, 2**31))
def test_utilities_are_the_plain_loops_for_random_architectures(architecture, weighting, n_threads, seed):
    module, shape, frozen, dtype = architecture
    task = task_of(lambda: module, shape, dtype, seed)
    round_ = round_of(task.module, frozen=frozen)
    every = all_mixtures(weighting)
    chosen = np.random.default_rng(seed).permutation(32)[:9]
    wanted = every.rows(chosen)
    found = FastOracle(task, n_threads=n_threads).utilities(round_, wanted).sum(axis=1)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-10
    np.testing.assert_allclose(found, exact_utilities(task, round_, wanted), rtol=0, atol=tolerance)


def _tanh_task(dtype=torch.float32):
    return task_of(lambda: nn.Sequential(nn.Linear(300, 5), nn.Tanh(), nn.Linear(5, 4)), (300,), dtype)


@pytest.mark.parametrize("make", [lambda: nn.Sequential(nn.Linear(300, 4)), lambda: _tanh_task().module])
def test_accuracies_are_the_plain_loops(make):
    task = task_of(make, (300,))
    oracle, round_ = FastOracle(task, "accuracy", n_threads=1), round_of(task.module)
    wanted = all_mixtures("fixed")
    expected = LoopOracle(task, "accuracy").utilities(round_, wanted).sum(axis=1)
    np.testing.assert_allclose(oracle.utilities(round_, wanted).sum(axis=1), expected, rtol=0, atol=1e-12)
    assert oracle.describe().startswith("prefix: ")


def test_float64_models_stay_float64_in_sections():
    task = _tanh_task(torch.float64)
    oracle, round_ = FastOracle(task, n_threads=1), round_of(task.module)
    wanted = all_mixtures("samples")
    found = oracle.utilities(round_, wanted).sum(axis=1)
    np.testing.assert_allclose(found, exact_utilities(task, round_, wanted), rtol=0, atol=1e-12)
    assert oracle.describe().startswith("prefix: ")


@pytest.mark.parametrize("name", ["mlp", "cnn", "branching", "tanh"])
def test_bytes_do_not_depend_on_threads_or_on_what_was_measured_before(name):
    make, shape, _ = ZOO[name]
    task = task_of(make, shape) if name != "tanh" else _tanh_task()
    round_, wanted = round_of(task.module), all_mixtures("samples")
    oracle = FastOracle(task, n_threads=1)
    first = oracle.utilities(round_, wanted).sum(axis=1).tobytes()
    oracle.utilities(round_of(task.module, size=0.1), all_mixtures("fixed")).sum(axis=1)
    assert oracle.utilities(round_, wanted).sum(axis=1).tobytes() == first
    oracle.n_threads = 3
    assert oracle.utilities(round_, wanted).sum(axis=1).tobytes() == first


@pytest.mark.parametrize("name", ["mlp", "cnn", "branching"])
def test_a_client_who_sends_back_the_global_model_is_a_null_player_under_fixed_weights(name):
    make, shape, _ = ZOO[name]
    task = task_of(make, shape)
    round_ = round_of(task.module)
    models = {**round_.client_models, 2: round_.global_model}
    round_ = Round(round_.entry, round_.global_model, models, {})
    utilities = FastOracle(task, n_threads=2).utilities(round_, all_mixtures("fixed")).sum(axis=1)
    has_it = (np.arange(32) >> 2 & 1).astype(bool)
    np.testing.assert_array_equal(utilities[has_it], utilities[~has_it])
    assert np.ptp(utilities) > 1e-3
    assert utilities[0] == 0


@pytest.mark.parametrize("name", ["logistic", "mlp", "cnn", "branching"])
def test_clients_who_sent_the_same_model_are_interchangeable_to_the_last_bit(name):
    task = task_of(*ZOO[name][:2])
    round_ = round_of(task.module)
    round_ = Round(round_.entry, round_.global_model, {**round_.client_models, 3: round_.client_models[1]}, {})
    oracle = FastOracle(task, n_threads=1)
    coalitions = np.arange(32)
    swapped = coalitions & 0b10101 | (coalitions >> 1 & 1) << 3 | (coalitions >> 3 & 1) << 1
    for weighting in CHOICES["weighting"]:  # both report one sample
        utilities = oracle.utilities(round_, all_mixtures(weighting)).sum(axis=1)
        np.testing.assert_array_equal(utilities, utilities[swapped])
        expected = exact_utilities(task, round_, all_mixtures(weighting))
        np.testing.assert_allclose(utilities, expected, rtol=0, atol=1e-6)


def test_a_round_in_which_nobody_moved_needs_no_evaluation():
    task = task_of(*ZOO["mlp"][:2])
    oracle, round_ = FastOracle(task), round_of(task.module, size=0.0)
    assert not oracle.utilities(round_, all_mixtures("uniform")).sum(axis=1).any()
    assert oracle.describe() == "nothing measured yet"


def test_a_frozen_backbone_is_evaluated_once_for_all_rounds(monkeypatch):
    task = task_of(*ZOO["cnn"][:2])
    n_passes = 0

    def counted(*args):
        nonlocal n_passes
        n_passes += 1
        return affine.sample_batches(*args)

    monkeypatch.setattr(fast, "sample_batches", counted)
    oracle, wanted = FastOracle(task, n_threads=1), all_mixtures("samples")
    for size in (0.1, 0.2, 0.3):
        round_ = round_of(task.module, size=size, frozen=("0.",))
        expected = exact_utilities(task, round_, wanted)
        np.testing.assert_allclose(oracle.utilities(round_, wanted).sum(axis=1), expected, rtol=0, atol=1e-6)
    assert n_passes == 1
    assert oracle.describe().startswith("kernel: 2 of 4 tensors vary")


def test_a_backbone_that_is_frozen_within_each_round_only_is_evaluated_in_each():
    task = task_of(*ZOO["cnn"][:2])
    oracle, wanted = FastOracle(task, n_threads=1), all_mixtures("uniform")
    for seed in (0, 1):
        module = task_of(*ZOO["cnn"][:2], seed=seed).module
        round_ = round_of(module, frozen=("0.",))
        expected = exact_utilities(task, round_, wanted)
        np.testing.assert_allclose(oracle.utilities(round_, wanted).sum(axis=1), expected, rtol=0, atol=1e-6)


def _agrees_with_the_loop(task, round_):
    """An oracle that measured what the plain loop does."""
    oracle, wanted = FastOracle(task, n_threads=1), all_mixtures("uniform")
    expected = LoopOracle(task).utilities(round_, wanted).sum(axis=1)
    np.testing.assert_allclose(oracle.utilities(round_, wanted).sum(axis=1), expected, rtol=0, atol=1e-6)
    return oracle


@pytest.mark.parametrize(("operation", "layer"), [("relu", nn.ReLU), ("tanh", nn.Tanh), ("max_pool2d", None)])
def test_a_wrong_rule_is_caught_however_little_clients_differ_and_another_way_measures(monkeypatch, operation, layer):
    make = ZOO["cnn"][0] if layer is None else lambda: nn.Sequential(nn.Linear(300, 5), layer(), nn.Linear(5, 4))
    task = task_of(make, GREY if layer is None else (300,))
    monkeypatch.setitem(graph.RULES, operation, lambda _, at: at == {0})
    monkeypatch.setitem(graph.RULES, "relu", lambda _, at: at == {0})
    monkeypatch.setattr(costs, "WRITING_COST", 0.0)
    oracle = _agrees_with_the_loop(task, round_of(task.module, size=1e-5))
    assert "disagrees (on amplified random clients logits differ from the plain loop's by" in oracle.describe()


def test_a_head_taken_for_another_is_caught_by_the_self_check(monkeypatch):
    task = task_of(*ZOO["mlp"][:2])

    def without_bias(_inputs, node, _exported):
        return (node.args[1], None) if graph.operation(node) == "linear" else None

    monkeypatch.setattr(heads, "_layer", without_bias)
    oracle = _agrees_with_the_loop(task, round_of(task.module, size=1e-5))
    assert "; not kernel, which disagrees (on amplified random clients a kernel's loss is" in oracle.describe()


class Chaotic(nn.Module):
    """Each step doubles a rounding: in float32 a fraction of a percent is left of it, in float64 1e-11."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(8, 8), nn.Linear(8, N_CLASSES)

    def forward(self, x):
        x = torch.sigmoid(self.layer(x))
        for _ in range(16):
            x = 4 * x * (1 - x)
        return self.head(x)


class Steep(nn.Module):
    """Noise as large as the exponent makes float32 overflow."""

    def __init__(self):
        super().__init__()
        self.head, self.exponent = nn.Linear(8, N_CLASSES), nn.Parameter(torch.tensor([60.0]))

    def forward(self, x):
        return self.head(torch.tanh(x)) * self.exponent.exp() * 1e-26


@pytest.mark.parametrize("make", [Chaotic, Steep])
def test_what_is_used_may_round_and_overflow_as_the_plain_loop_does(make):
    task = task_of(make, ROWS)
    oracle = FastOracle(task, n_threads=1)
    oracle.utilities(round_of(task.module, size=1e-3), all_mixtures("uniform")).sum(axis=1)
    assert oracle.describe().startswith("graph: ")


def test_a_route_that_cannot_be_run_is_passed_over_and_named(monkeypatch):
    task = task_of(*ZOO["cnn"][:2])

    def broken(*_, **__):
        raise RuntimeError("no such stride")

    monkeypatch.setattr("fedworth.oracle.fast.routes.check_sections", broken)
    oracle, round_, wanted = FastOracle(task), round_of(task.module), all_mixtures("uniform")
    expected = exact_utilities(task, round_, wanted)
    np.testing.assert_allclose(oracle.utilities(round_, wanted).sum(axis=1), expected, rtol=0, atol=1e-6)
    assert oracle.describe().startswith("loop: ")
    assert "not graph, which fails (RuntimeError: no such stride)" in oracle.describe()


def test_where_only_sharing_a_prefix_can_be_run_the_plain_loop_measures_all(monkeypatch):
    """Small coalitions share their members' prefixes; for the others nothing can be run."""
    task = task_of(*ZOO["two kinds"][:2])  # a prefix, and no kernel for what follows it
    check = selfcheck.check_sections

    def broken(sections, *args, **options):
        if sections.prefix is None:
            raise RuntimeError("no such stride")
        check(sections, *args, **options)

    def unloopable(*_, **__):
        raise RuntimeError("no such stride")

    monkeypatch.setattr(routes, "check_sections", broken)
    monkeypatch.setattr(routes, "check_loop", unloopable)
    pairs_share = ("prefix", "graph", "loop", "plain")
    monkeypatch.setattr(routes.Routes, "kinds", lambda _, __, n, **___: pairs_share if n <= 2 else pairs_share[1:])
    oracle, round_, wanted = FastOracle(task, n_threads=1), round_of(task.module), all_mixtures("uniform")
    np.testing.assert_array_equal(
        oracle.utilities(round_, wanted).sum(axis=1), LoopOracle(task).utilities(round_, wanted).sum(axis=1)
    )
    assert "plain: no other way can be run" in oracle.describe()


def test_half_precision_is_left_to_the_plain_loop():
    task = task_of(*ZOO["mlp"][:2], dtype=torch.bfloat16)
    oracle, round_, wanted = FastOracle(task), round_of(task.module), all_mixtures("uniform")
    np.testing.assert_array_equal(
        oracle.utilities(round_, wanted).sum(axis=1), LoopOracle(task).utilities(round_, wanted).sum(axis=1)
    )
    assert oracle.describe() == "plain: half precision rounds each model differently"


class Normed(nn.Module):
    """A norm that is taken in float32, whatever comes in."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale, self.head = nn.Linear(8, 6), nn.Parameter(torch.ones(6)), nn.Linear(6, N_CLASSES)

    def forward(self, x):
        hidden = self.layer(x)
        single = hidden.float()
        normed = single * torch.rsqrt(single.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.head(self.scale * normed.to(hidden.dtype))


class Cast(nn.Module):
    """Products in half precision."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, N_CLASSES))

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.layers(x).float()


class Adapted(nn.Module):
    """A backbone in half precision that no model holds, and what is learned in float32."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, N_CLASSES)
        self.register_buffer("base", torch.randn(8, 6, dtype=torch.bfloat16), persistent=False)

    def forward(self, x):
        return self.head(torch.tanh(x.bfloat16() @ self.base.bfloat16()).to(x.dtype))


class Split(nn.Module):
    """Every row becomes two after relu."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(8, 12), nn.Linear(6, N_CLASSES // 2)

    def forward(self, x):
        return self.head(torch.relu(self.layer(x)).view(-1, 6)).view(-1, N_CLASSES)


class Queried(nn.Module):
    """Attention by a learned query alone."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = nn.Parameter(torch.randn(1, 1, 3, 8)), nn.Linear(8, 8), nn.Linear(8, 8)
        self.head = nn.Linear(24, N_CLASSES)

    def forward(self, x):
        key, value = self.key(x)[:, None], self.value(x)[:, None]
        return self.head(nn.functional.scaled_dot_product_attention(self.query, key, value).reshape(len(x), -1))


@pytest.mark.parametrize(
    ("make", "shape", "kind"),
    [
        (Normed, ROWS, "graph"),
        (Cast, ROWS, "plain"),
        (Adapted, ROWS, "kernel"),
        (Split, ROWS, "graph"),
        (Queried, LINES, "graph"),
    ],
)
def test_where_one_way_will_not_do_another_gives_the_plain_loops_numbers(make, shape, kind):
    task = task_of(make, shape)
    oracle = _agrees_with_the_loop(task, round_of(task.module))
    assert oracle.describe().startswith(f"{kind}: ")
    assert ("half precision" in oracle.describe()) == (kind == "plain")
    assert "disagrees" not in oracle.describe()


class Tempered(nn.Module):
    """Logits divided by a temperature of any shape, and a parameter without numbers."""

    def __init__(self, shape):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, N_CLASSES))
        self.temperature, self.nothing = nn.Parameter(torch.full(shape, 2.0)), nn.Parameter(torch.empty(0))

    def forward(self, x):
        return self.layers(x) / self.temperature + self.nothing.sum()


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_parameter_of_no_dimension_is_one_of_one_number(shape):
    task = task_of(lambda: Tempered(shape), ROWS)
    assert _agrees_with_the_loop(task, round_of(task.module)).describe().startswith("graph: ")


def _with_a_made_weight(make_weight):
    module = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, N_CLASSES))
    make_weight(module[0])
    return module


MAKE_WEIGHTS = {
    "weight norm": nn.utils.weight_norm,
    "weight norm as a parametrization": nn.utils.parametrizations.weight_norm,
    "pruning": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
@pytest.mark.parametrize("name", MAKE_WEIGHTS)
def test_weights_that_are_made_before_each_pass_are_measured_as_the_plain_loop_does(name):
    task = task_of(lambda: _with_a_made_weight(MAKE_WEIGHTS[name]), ROWS)
    for _ in range(2):  # the plain loop leaves a weight of its own behind
        oracle = _agrees_with_the_loop(task, round_of(task.module))
        assert not oracle.describe().startswith("plain: ")


def test_a_module_that_cannot_be_copied_is_left_to_the_plain_loop():
    task = task_of(*ZOO["mlp"][:2])
    vars(task.module)["lock"] = threading.Lock()
    oracle = _agrees_with_the_loop(task, round_of(task.module))
    assert oracle.describe() == "plain: it cannot be copied (TypeError: cannot pickle '_thread.lock' object)"


def test_what_the_plain_loop_refuses_is_refused_by_every_way(monkeypatch):
    task = task_of(*ZOO["mlp"][:2])

    def refusing(*_, **__):
        raise ModelError("the module gives a list")

    monkeypatch.setattr(routes, "check_sections", refusing)
    with pytest.raises(ModelError, match="the module gives a list"):
        FastOracle(task).utilities(round_of(task.module), all_mixtures("uniform")).sum(axis=1)


class Averaging(nn.Module):
    """What the mean of the batch adds; float64 is refused if it is so `single`."""

    def __init__(self, single):
        super().__init__()
        self.layer, self.head, self.single = nn.Linear(8, 6), nn.Linear(6, N_CLASSES), single
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x):
        if self.single and x.dtype != torch.float32:
            raise ValueError("float32 only")
        hidden = torch.tanh(self.layer(x))
        return self.head(hidden + hidden.mean(0))


@pytest.mark.parametrize("single", [False, True])
def test_batch_statistics_are_seen_behind_a_head_of_zeros(single):
    task = task_of(lambda: Averaging(single), ROWS)
    oracle, round_, wanted = FastOracle(task), round_of(task.module), all_mixtures("uniform")
    np.testing.assert_array_equal(
        oracle.utilities(round_, wanted).sum(axis=1), LoopOracle(task).utilities(round_, wanted).sum(axis=1)
    )
    assert oracle.describe() == "plain: a sample's logits depend on the batch it is in"


def test_clients_without_samples_and_absent_clients_are_left_out_of_mixtures():
    task = task_of(*ZOO["logistic"][:2])
    round_ = round_of(task.module)
    models = round_.client_models
    without = Round(round_.entry, round_.global_model, {k: models[k] for k in (0, 3)}, {4: models[4]})
    every = all_mixtures("samples")
    inside = np.flatnonzero(~every.memberships[:, [1, 2]].any(axis=1))
    wanted = every.rows(inside)
    expected = exact_utilities(task, round_, wanted)
    np.testing.assert_allclose(FastOracle(task).utilities(without, wanted).sum(axis=1), expected, rtol=0, atol=1e-6)
    with pytest.raises(ModelError, match=r"clients \[1, 2\] have no model in this round"):
        FastOracle(task).utilities(without, every).sum(axis=1)


@pytest.mark.parametrize("name", ["logistic", "cnn"])
def test_labels_without_a_logit_are_refused(name):
    task = task_of(*ZOO[name][:2])
    task = Task(task.module, task.inputs, task.labels + 3)
    with pytest.raises(ModelError, match="labels up to 6; expected one row a sample and one logit a class"):
        FastOracle(task).utilities(round_of(task.module), all_mixtures("uniform")).sum(axis=1)


def test_unknown_measures_and_no_threads_are_refused():
    task = task_of(*ZOO["logistic"][:2])
    with pytest.raises(UsageError, match="unknown measure 'los'"):
        FastOracle(task, "los")
    with pytest.raises(UsageError, match="n_threads is 0"):
        FastOracle(task, n_threads=0)


def test_an_oracle_travels_to_another_process_and_measures_the_same_there():
    task = task_of(*ZOO["logistic"][:2])
    oracle, round_, wanted = FastOracle(task, n_threads=2), round_of(task.module), all_mixtures("fixed")
    here = oracle.utilities(round_, wanted).sum(axis=1)
    there: FastOracle = pickle.loads(pickle.dumps(oracle))
    assert there.n_threads == 2
    assert there.utilities(round_, wanted).sum(axis=1).tobytes() == here.tobytes()


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("n_clients", [300, 1000])
def test_coalitions_of_hundreds_of_clients_keep_the_bar(n_clients, weighting):
    """Weights from 1 to 1,000 samples if they count; the bar is that of few clients, 1e-6 against float64."""
    rng, generator = np.random.default_rng(n_clients), torch.Generator().manual_seed(n_clients)
    module = task_of(lambda: nn.Sequential(nn.Linear(784, 10)), (784,)).module
    inputs = torch.rand(2000, 784, generator=generator)
    task = Task(module, inputs, torch.randint(0, 10, (2000,), generator=generator))
    sizes = np.array([51, 64, 127, n_clients // 2, n_clients - 1, n_clients])
    coalitions = rng.permuted(np.arange(n_clients) < sizes[:, None], axis=1)  # (n_coalitions, n_clients)
    counts = np.geomspace(1, 1000, n_clients) if weighting == "samples" else np.ones(n_clients)
    wanted = mixtures(coalitions, counts, weighting)
    oracle, round_ = FastOracle(task, n_threads=1), round_of(module, n_clients)
    expected = exact_utilities(task, round_, wanted)
    assert np.ptp(expected) > 1e-3
    np.testing.assert_allclose(oracle.utilities(round_, wanted).sum(axis=1), expected, rtol=0, atol=1e-6)
    assert oracle.describe().startswith("kernel: ")


@pytest.mark.parametrize("count", [1e-300, 1e-18, 1e18, 1e300])
@pytest.mark.parametrize("name", ["logistic", "mlp", "deep mlp", "cnn"])
def test_a_sample_count_of_any_size_gives_what_the_plain_loop_gives(name, count):
    """Two such clients, so that they meet each other and the others; their own coalitions are not nothing."""
    task = task_of(*ZOO[name][:2])
    coalitions = coalitions_of(np.arange(5), 5)
    for weighting in ("samples", "fixed"):
        counts = {0: count, 1: 3 * count, 2: 40.0, 3: 1.0, 4: 900.0}
        weights = client_weights(counts, 5, weighting=weighting, aggregation="samples")
        wanted, round_ = mixtures(coalitions, weights, weighting), round_of(task.module)
        expected = exact_utilities(task, round_, wanted)
        np.testing.assert_allclose(FastOracle(task).utilities(round_, wanted).sum(axis=1), expected, rtol=0, atol=1e-6)


def test_torchs_own_threads_are_as_before():
    task = task_of(*ZOO["logistic"][:2])
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        FastOracle(task).utilities(round_of(task.module), all_mixtures("uniform")).sum(axis=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_models_that_differ_in_very_much_are_left_to_the_plain_loop(monkeypatch):
    wide = nn.Sequential(nn.Linear(8, 1 << 15), nn.ReLU(), nn.Linear(1 << 15, 4))
    task = task_of(lambda: wide, ROWS)
    monkeypatch.setattr(routes, "MOST_BYTES", 1 << 20)
    round_, wanted = round_of(task.module, 2), all_mixtures("uniform", 2)
    oracle = FastOracle(task)
    assert (
        oracle.utilities(round_, wanted).sum(axis=1).tobytes()
        == LoopOracle(task).utilities(round_, wanted).sum(axis=1).tobytes()
    )
    assert oracle.describe() == "plain: models differ in 1 MB, more than mixing them otherwise would save"
    frozen = round_of(task.module, 2, frozen=("0.",))
    oracle.utilities(frozen, wanted).sum(axis=1)
    assert "kernel: 2 of 4 tensors vary" in oracle.describe()


@pytest.mark.parametrize("n_samples", [30, 32, 45])
def test_samples_that_fill_up_a_tile_lose_nothing_however_large_the_margins(n_samples):
    """A client whose logits are of 1e6: the samples that are none had been counted as soon as margins passed 1e4."""
    drawn = torch.Generator().manual_seed(n_samples)
    inputs, labels = torch.randn(n_samples, 16, generator=drawn), torch.arange(n_samples) % 3
    task = Task(nn.Linear(16, 3), inputs, labels)
    round_ = round_of(task.module)
    models = {**round_.client_models, 2: {name: -1e6 * tensor for name, tensor in round_.client_models[2].items()}}
    hostile, wanted = replace(round_, client_models=models), all_mixtures("fixed")
    expected = LoopOracle(task).utilities(hostile, wanted).sum(axis=1)
    np.testing.assert_allclose(FastOracle(task).utilities(hostile, wanted).sum(axis=1), expected, rtol=1e-5, atol=1e-5)
