"""The plain oracle against losses and accuracies computed by hand in numpy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedworth.coalitions import coalitions_of
from fedworth.errors import ModelError, UsageError, UtilityError
from fedworth.ledger.ledger import Model, Round
from fedworth.ledger.manifest import RoundEntry
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle, fitted, mix, mixer, plain_utilities
from fedworth.oracle.weighting import Mixtures, mixtures
from fedworth.simulation.models import ModelSpec, build_model, state_of
from fedworth.task import task as task_module
from fedworth.task.task import Task
from tests.support.zoo import round_of

ALL = coalitions_of(np.arange(3), 3)
SPEC = ModelSpec("logistic", (5,), 4, dtype="float64")


def random_model(seed: int, spec: ModelSpec = SPEC) -> Model:
    return state_of(build_model(spec, seed=seed))


def a_round(entry: RoundEntry, spec: ModelSpec = SPEC) -> Round:
    return Round(entry, random_model(10, spec), {k: random_model(k, spec) for k in (0, 2)}, {1: random_model(1, spec)})


@pytest.fixture
def round_(tiny_ledger) -> Round:
    """A round of three clients, the second of them absent."""
    return a_round(tiny_ledger.entries[0])


def a_task(n_samples: int = 30, spec: ModelSpec = SPEC) -> Task:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(n_samples, *spec.input_shape, generator=generator, dtype=torch.float64)
    module = build_model(spec, seed=99)
    return Task(module, inputs.to(next(module.parameters()).dtype), torch.arange(n_samples) % spec.n_classes)


def by_hand(model: dict[str, np.ndarray], task: Task, measure: str) -> float:
    logits = task.inputs.numpy() @ model["1.weight"].T + model["1.bias"]
    labels = task.labels.numpy()
    if measure == "accuracy":
        return float(np.mean(logits.argmax(axis=1) == labels))
    log_sums = np.log(np.exp(logits).sum(axis=1))
    return -float(np.mean(log_sums - logits[np.arange(len(labels)), labels]))


def uniform(coalitions: np.ndarray = ALL) -> Mixtures:
    return mixtures(coalitions, np.ones(3), "uniform")


@pytest.mark.parametrize("measure", ["loss", "accuracy"])
def test_utilities_are_those_computed_by_hand(round_, measure):
    task = a_task()
    models = {**round_.client_models, **round_.apart_models}
    plain = {k: {name: tensor.numpy() for name, tensor in model.items()} for k, model in models.items()}
    start = {name: tensor.numpy() for name, tensor in round_.global_model.items()}
    before = by_hand(start, task, measure)
    expected = [0.0]
    for coalition in ALL[1:]:
        members = np.flatnonzero(coalition)
        mean = {name: np.mean([plain[k][name] for k in members], axis=0) for name in start}
        expected.append(by_hand(mean, task, measure) - before)
    found = LoopOracle(task, measure).utilities(round_, uniform()).sum(axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
    assert np.ptp(found) > 0


def test_a_better_model_has_a_higher_utility(round_):
    """A model that is nearly always right, against one that is nearly always wrong."""
    task = a_task(4, ModelSpec("logistic", (4,), 4, dtype="float64"))
    task = Task(task.module, torch.eye(4, dtype=torch.float64), torch.arange(4))
    good = {"1.weight": 9 * torch.eye(4, dtype=torch.float64), "1.bias": torch.zeros(4, dtype=torch.float64)}
    bad = {name: -tensor for name, tensor in good.items()}
    same = {name: torch.zeros_like(tensor) for name, tensor in good.items()}
    one_of_each = Round(round_.entry, same, {0: good, 1: bad}, {})
    for measure in ("loss", "accuracy"):
        up, down = (
            LoopOracle(task, measure)
            .utilities(one_of_each, mixtures(np.eye(2, dtype=bool), np.ones(2), "uniform"))
            .sum(axis=1)
        )
        assert up > 0 >= down


@pytest.mark.parametrize("weighting", ["uniform", "samples", "fixed"])
def test_the_empty_coalition_has_utility_zero_to_the_bit(round_, weighting):
    found = LoopOracle(a_task()).utilities(round_, mixtures(ALL[:1], np.ones(3) / 3, weighting)).sum(axis=1)
    assert found.tolist() == [0.0]


def test_utilities_do_not_depend_on_the_size_of_the_batches(round_, monkeypatch):
    task = a_task(30)
    whole = LoopOracle(task).utilities(round_, uniform()).sum(axis=1)
    monkeypatch.setattr(task_module, "MOST_SAMPLES", 7)
    task = a_task(30)
    assert task.batch_size == 7
    np.testing.assert_allclose(LoopOracle(task).utilities(round_, uniform()).sum(axis=1), whole, rtol=1e-12, atol=1e-15)


def test_measuring_leaves_the_task_and_the_models_as_they_were(round_):
    task = a_task()
    before, model = state_of(task.module), {name: t.clone() for name, t in round_.global_model.items()}
    LoopOracle(task).utilities(round_, uniform()).sum(axis=1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in state_of(task.module).items())
    assert all(torch.equal(tensor, model[name]) for name, tensor in round_.global_model.items())


def test_a_batch_norm_is_evaluated_by_its_own_statistics(round_):
    """In training mode it would use the batch's, and a sample's loss would depend on its neighbours."""
    spec = ModelSpec("vgg16-bn", (1, 32, 32), 4, width_divisor=64, dtype="float64")
    task = a_task(6, spec)
    task.module.train()
    models = a_round(round_.entry, spec)
    whole = LoopOracle(task).utilities(models, uniform(ALL[1:3])).sum(axis=1)
    halves = [
        LoopOracle(Task(task.module, task.inputs[half], task.labels[half]))
        .utilities(models, uniform(ALL[1:3]))
        .sum(axis=1)
        for half in (slice(0, 3), slice(3, 6))
    ]
    np.testing.assert_allclose(np.mean(halves, axis=0), whole, rtol=1e-9, atol=1e-12)
    assert all(layer.training for layer in task.module.modules())


def test_a_client_without_a_model_is_refused_by_its_number(round_):
    alone = Round(round_.entry, round_.global_model, {0: round_.client_models[0]}, {})
    with pytest.raises(ModelError, match=r"clients \[1, 2\] have no model in this round"):
        LoopOracle(a_task()).utilities(alone, uniform(np.ones((1, 3), dtype=bool))).sum(axis=1)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ModelSpec("mlp", (5,), 4, (3,), dtype="float64"), "are missing or extra"),
        (ModelSpec("logistic", (5,), 3, dtype="float64"), r"has shape \(4,.*expected \(3,"),
    ],
)
def test_models_that_are_not_of_the_tasks_module_are_refused(round_, spec, message):
    with pytest.raises(ModelError, match=message):
        LoopOracle(a_task(spec=spec)).utilities(round_, uniform()).sum(axis=1)


def test_an_unknown_measure_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match=r"unknown measure 'acuracy': did you mean 'accuracy'\?"):
        LoopOracle(a_task(), "acuracy")


@given(st.lists(st.floats(-5, 5), min_size=3, max_size=3), st.floats(-5, 5))
def test_a_mixture_is_the_weighted_sum(weights, of_global):
    models = {k: {"w": torch.tensor([float(k + 1), -1.0], dtype=torch.float64)} for k in range(3)}
    start = {"w": torch.tensor([0.5, 0.25], dtype=torch.float64)}
    found = mix(start, models, np.array(weights), of_global)["w"].numpy()
    expected = of_global * np.array([0.5, 0.25]) + sum(w * np.array([k + 1, -1.0]) for k, w in enumerate(weights))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_whole_numbers_are_mixed_to_the_nearest():
    start = {"n": torch.tensor(0)}
    models = {k: {"n": torch.tensor(3)} for k in range(10)}
    assert mix(start, models, np.full(10, 0.1), 0.0)["n"].item() == 3


class _LargestDouble(TorchDispatchMode):
    """How many numbers the largest float64 tensor has that torch makes meanwhile."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.dtype == torch.float64:
            self.size = max(self.size, made.numel())
        return made


def test_a_large_model_is_summed_in_its_own_precision_and_agrees_with_float64():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(1200, 900), nn.BatchNorm1d(900), nn.ReLU(), nn.Linear(900, 3)).eval()
    task = Task(module, torch.randn(40, 1200), torch.randint(0, 3, (40,)))
    round_ = round_of(module, 4, size=0.1)
    coalitions = np.array([[1, 0, 0, 0], [1, 1, 0, 1], [1, 1, 1, 1]], dtype=bool)
    for weighting in ("uniform", "fixed"):
        wanted = mixtures(coalitions, np.array([0.4, 0.3, 0.2, 0.1]), weighting)
        with _LargestDouble() as largest:
            found = LoopOracle(task).utilities(round_, wanted)
        in_float64 = mixer(fitted(round_, task), wanted, is_large=False)
        reference = plain_utilities(task, (task.criterion("loss"),), fitted(round_, task), wanted, in_float64)
        assert largest.size < 1200
        assert found == pytest.approx(reference, abs=1e-6)


def test_a_mixture_keeps_the_precision_of_the_models():
    start = {"w": torch.zeros(2, dtype=torch.float32)}
    assert mix(start, {0: {"w": torch.ones(2)}}, np.array([1.0]), 0.0)["w"].dtype == torch.float32


def test_blocks_sum_to_the_whole(round_):
    task = a_task()
    blocks = np.arange(len(task.labels)) % 3
    found = LoopOracle(replace(task, blocks=blocks)).utilities(round_, uniform())
    assert found.shape == (len(ALL), 3)
    np.testing.assert_allclose(found.sum(axis=1), LoopOracle(task).utilities(round_, uniform())[:, 0], atol=1e-12)


NAMES = "ada", "eve", "ben", "cyd"


def round_with_eve(size: float) -> tuple[Task, Round]:
    """A round in which every number of Eve's model is `size`: her logits are huge and cancel."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    start = state_of(module)
    models = {k: {name: t + 0.1 * torch.randn(t.shape) for name, t in start.items()} for k in range(len(NAMES))}
    models[1] = {name: torch.full_like(t, size) for name, t in start.items()}
    entry = RoundEntry(7, 7, "rounds/000007.safetensors", "")
    return Task(module, torch.randn(64, 8), torch.arange(64) % 3), Round(entry, start, models, {})


@pytest.mark.parametrize("oracle_type", [LoopOracle, FastOracle])
def test_a_coalition_whose_loss_rounding_alone_decides_is_refused(oracle_type):
    task, round_ = round_with_eve(1e6)
    everyone = mixtures(coalitions_of(np.arange(4), 4), np.ones(4), "uniform")
    together = mixtures(np.ones((1, 4), dtype=bool), np.ones(4), "uniform")
    for wanted, members in ((everyone, r"\[1\]"), (together, r"\[0, 1, 2, 3\]")):
        with pytest.raises(UtilityError, match=rf"round 7, coalition {members}: .*rounding alone .*leave out client 1"):
            oracle_type(task).utilities(round_, wanted)
    without = mixtures(coalitions_of(np.array([0, 2, 3]), 4), np.ones(4), "uniform")
    assert np.isfinite(oracle_type(task).utilities(round_, without)).all()


@pytest.mark.parametrize("oracle_type", [LoopOracle, FastOracle])
def test_a_model_that_is_only_bad_is_measured(oracle_type):
    """A diverged client has a large loss, and its logits do not cancel."""
    task, round_ = round_with_eve(1.0)
    generator = torch.Generator().manual_seed(1)
    diverged = {name: 1e4 * torch.randn(t.shape, generator=generator) for name, t in round_.global_model.items()}
    round_ = replace(round_, client_models={**round_.client_models, 1: diverged})
    found = oracle_type(task).utilities(round_, mixtures(np.eye(4, dtype=bool), np.ones(4), "uniform"))
    assert found[1, 0] < -1e6


def right(outputs, labels):
    return (outputs.argmax(dim=1) == labels).double()


def test_a_mean_over_samples_has_the_same_blocks_by_the_jackknife(round_):
    task = replace(a_task(), measure=right, blocks=np.minimum(np.arange(30) * 7 % 11, 5))  # unequal blocks
    found = [LoopOracle(task, measure).utilities(round_, uniform()) for measure in ("right", "accuracy")]
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-12)


def test_blocks_of_a_ranking_give_its_jackknife_variance(round_):
    spec = ModelSpec("logistic", (5,), 1, dtype="float64")
    module, inputs = build_model(spec, seed=99), a_task(40).inputs
    task = Task(module, inputs, (torch.arange(40) % 3 == 0).double(), loss="binary", blocks=np.arange(40) % 8)
    auc, models = task.criterion("auc"), a_round(round_.entry, spec)

    def scores(model):
        outputs = task.outputs(model)
        kept = [torch.from_numpy(task.blocks != b) for b in range(8)]
        return auc.total(outputs, task.labels), np.array([auc.total(outputs[k], task.labels[k]) for k in kept])

    (whole, without), (before, before_without) = scores(models.client_models[0]), scores(models.global_model)
    by_block = LoopOracle(task, "auc").utilities(models, uniform(ALL[1:2]))[0]
    assert by_block.sum() == pytest.approx(whole - before, abs=1e-12)
    drops = without - before_without
    assert 8 * by_block.var(ddof=1) == pytest.approx(7 / 8 * ((drops - drops.mean()) ** 2).sum(), rel=1e-9)


def test_a_score_that_is_not_defined_without_a_block_is_an_error(round_):
    spec = ModelSpec("logistic", (5,), 1, dtype="float64")
    labels = (torch.arange(30) == 4).double()
    task = Task(build_model(spec, seed=99), a_task().inputs, labels, loss="binary", blocks=np.arange(30) % 3)
    with pytest.raises(UtilityError, match="auc is not defined without block 1 of 3"):
        LoopOracle(task, "auc").utilities(a_round(round_.entry, spec), uniform())


def noisy(outputs, labels):
    return nn.functional.cross_entropy(outputs + 0.1 * torch.randn(outputs.shape), labels)


def some_samples(outputs, labels):
    """A measure on half of the test samples, drawn anew in each call."""
    drawn = torch.randperm(len(labels))[: len(labels) // 2]
    return (outputs.argmax(dim=1) == labels)[drawn].double().mean()


def seeded(outputs, labels):
    drawn = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))[: len(labels) // 2]
    return nn.functional.cross_entropy(outputs[drawn], labels[drawn])


@pytest.mark.parametrize("kind", [LoopOracle, FastOracle])
def test_a_random_loss_or_measure_is_refused_and_a_seeded_one_is_not(round_, kind):
    with pytest.raises(UtilityError, match=r"noisy: gave .* for the same outputs"):
        kind(replace(a_task(), loss=noisy)).utilities(round_, uniform())
    with pytest.raises(UtilityError, match=r"some_samples: gave .* for the same outputs"):
        kind(replace(a_task(), measure=some_samples), "some_samples").utilities(round_, uniform())
    task = replace(a_task(), loss=seeded, measure=some_samples)
    assert np.array_equal(kind(task).utilities(round_, uniform()), kind(task).utilities(round_, uniform()))
