"""The fast oracle against the plain loop, over modules of every kind."""

import pickle
import threading
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn

from fedworth.coalitions import coalitions_of
from fedworth.errors import ModelError, UsageError, UtilityError
from fedworth.ledger.ledger import Round
from fedworth.names import Weighting
from fedworth.oracle.fast import NOTHING_YET, FastOracle
from fedworth.oracle.fast.chain import Chain
from fedworth.oracle.oracle import LoopOracle, outputs_on, plain_utilities
from fedworth.oracle.weighting import mixtures
from fedworth.task.task import Task
from tests.support.zoo import (
    GREY,
    N_CLASSES,
    N_SAMPLES,
    ROWS,
    ZOO,
    L,
    S,
    all_mixtures,
    exact_utilities,
    round_of,
    task_of,
)

BLOCKS = np.arange(N_SAMPLES) * 7 % 3


def zoo_task(name: str) -> Task:
    make, shape, _ = ZOO[name]
    return task_of(make, shape)


@pytest.mark.parametrize("name", ZOO)
def test_utilities_are_the_plain_loops_for_every_kind_of_module(name):
    task = zoo_task(name)
    oracle, round_ = FastOracle(task, n_threads=1), round_of(task.module)
    for weighting in get_args(Weighting):
        wanted = all_mixtures(weighting)
        expected = exact_utilities(task, round_, wanted)
        np.testing.assert_allclose(oracle.utilities(round_, wanted).sum(axis=1), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("sent", [lambda t: torch.full_like(t, 1e4), lambda t: 1e-42 * t], ids=["equal", "nothing"])
@pytest.mark.parametrize("weighting", get_args(Weighting))
def test_accuracy_is_the_plain_loops_where_all_classes_tie_in_a_clients_model(sent, weighting):
    """Then rounding decides which class is the largest, so that mixed outputs count others."""
    task = zoo_task("logistic")
    round_, wanted = round_of(task.module), all_mixtures(weighting)
    odd = {name: sent(tensor) for name, tensor in round_.client_models[0].items()}
    round_ = replace(round_, client_models={**round_.client_models, 0: odd})
    found, expected = (kind(task, "accuracy").utilities(round_, wanted) for kind in (FastOracle, LoopOracle))
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("measure", ["loss", "accuracy"])
def test_blocks_are_the_plain_loops_and_sum_to_the_whole(name, measure):
    task = zoo_task(name)
    in_blocks, round_, wanted = replace(task, blocks=BLOCKS), round_of(task.module), all_mixtures("samples")
    found = FastOracle(in_blocks, measure).utilities(round_, wanted)
    assert found.shape == (len(wanted), 3)
    np.testing.assert_allclose(found, LoopOracle(in_blocks, measure).utilities(round_, wanted), rtol=0, atol=1e-6)
    other = {"loss": "accuracy", "accuracy": "loss"}[measure]
    both = FastOracle(in_blocks, measure, also=(other,)).utilities(round_, wanted)
    np.testing.assert_allclose(both[:, :-1], found, rtol=0, atol=1e-7)
    np.testing.assert_allclose(both[:, -1], FastOracle(task, other).utilities(round_, wanted)[:, 0], rtol=0, atol=1e-6)
    whole = FastOracle(task, measure).utilities(round_, wanted)
    np.testing.assert_allclose(found.sum(axis=1), whole[:, 0], rtol=0, atol=1e-12 if measure == "accuracy" else 1e-7)


@pytest.mark.parametrize("name", ["logistic", "mlp"])
def test_of_equal_logits_the_first_is_predicted(name):
    task = zoo_task(name)
    round_ = round_of(task.module)
    zeros = {key: torch.zeros_like(tensor) for key, tensor in round_.global_model.items()}
    silent = {key: tensor.clone().fill_(-0.25) for key, tensor in zeros.items()}  # equal logits too
    hostile = Round(round_.entry, zeros, {**round_.client_models, 0: silent}, {})
    wanted = all_mixtures("uniform")
    found = [oracle(task, "accuracy").utilities(hostile, wanted) for oracle in (FastOracle, LoopOracle)]
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["logistic", "mlp", "vgg", "attentive", "leaky relu"])
def test_threads_do_not_change_a_bit(name):
    task = zoo_task(name)
    round_, wanted = round_of(task.module), all_mixtures("uniform")
    one, three = (FastOracle(task, n_threads=n).utilities(round_, wanted) for n in (1, 3))
    assert one.tobytes() == three.tobytes()


@pytest.mark.parametrize("name", ["logistic", "deep mlp", "vgg", "recurrent"])
@pytest.mark.parametrize("weighting", get_args(Weighting))
def test_equal_clients_have_equal_bits(name, weighting):
    task = zoo_task(name)
    round_ = round_of(task.module)
    models = {**round_.client_models, 3: round_.client_models[1]}  # clients 1 and 3 weigh the same
    wanted = all_mixtures(weighting)
    found = FastOracle(task).utilities(Round(round_.entry, round_.global_model, models, {}), wanted)
    members = wanted.memberships
    swapped = members[:, [0, 3, 2, 1, 4]]
    partner = [int(np.flatnonzero((members == row).all(axis=1))[0]) for row in swapped]
    assert found.tobytes() == found[partner].tobytes()


@pytest.mark.parametrize("weighting", get_args(Weighting))
def test_who_sends_back_the_global_model_has_exactly_nothing(weighting):
    task = zoo_task("mlp")
    round_ = round_of(task.module)
    models = {**round_.client_models, 2: round_.global_model}
    wanted = all_mixtures(weighting)
    found = FastOracle(task).utilities(Round(round_.entry, round_.global_model, models, {}), wanted)
    only = [0, int(np.flatnonzero((wanted.memberships == np.eye(5, dtype=bool)[2]).all(axis=1))[0])]
    assert not found[only].any()
    if weighting == "fixed":
        for row, members in enumerate(wanted.memberships):
            without = members & ~np.eye(5, dtype=bool)[2]
            other = int(np.flatnonzero((wanted.memberships == without).all(axis=1))[0])
            assert found[row].tobytes() == found[other].tobytes()


def test_frozen_parts_are_evaluated_once():
    seen = []

    class Backbone(nn.Linear):
        def forward(self, x):
            seen.append(len(x))
            return torch.relu(super().forward(x))

    task = task_of(lambda: S(Backbone(8, 6), nn.LayerNorm(6), L(6, N_CLASSES)), ROWS)
    round_, wanted = round_of(task.module, frozen=("0.",)), all_mixtures("uniform")
    oracle = FastOracle(task, n_threads=1)
    first = oracle.utilities(round_, wanted)
    seen.clear()
    again = oracle.utilities(round_of(task.module, frozen=("0.",), size=0.2), wanted)
    assert sum(seen) < 10 * N_SAMPLES  # one of 32 coalitions is checked, and what backbones give is kept
    np.testing.assert_allclose(first[:, 0], exact_utilities(task, round_, wanted), atol=1e-6)
    assert again.any()
    assert "0 evaluated once" in oracle.describe()


def test_another_backbone_is_not_taken_for_the_one_before():
    task = task_of(lambda: S(L(8, 6), nn.ReLU(), L(6, N_CLASSES)), ROWS)
    oracle, wanted = FastOracle(task), all_mixtures("uniform")
    for seed in range(2):
        torch.manual_seed(seed)
        other = S(L(8, 6), nn.ReLU(), L(6, N_CLASSES))
        round_ = round_of(other, frozen=("0.",))
        found = oracle.utilities(round_, wanted).sum(axis=1)
        np.testing.assert_allclose(found, exact_utilities(task, round_, wanted), atol=1e-6)


def test_masked_classes_and_outlying_samples_are_right():
    task = task_of(lambda: S(L(8, N_CLASSES)), ROWS)
    with torch.no_grad():
        task.module.get_parameter("0.bias")[3] = -1e9
    inputs = task.inputs.clone()
    inputs[5] *= 1e4
    task = replace(task, inputs=inputs, labels=task.labels % 3)
    round_, wanted = round_of(task.module, size=0.01), all_mixtures("uniform")
    for model in round_.client_models.values():
        model["0.bias"][3] = -1e9
    expected = exact_utilities(task, round_, wanted)
    np.testing.assert_allclose(FastOracle(task).utilities(round_, wanted)[:, 0], expected, rtol=1e-5, atol=1e-5)


def test_a_broken_client_spoils_only_its_own_coalitions():
    task = zoo_task("mlp")
    round_ = round_of(task.module)
    broken = {name: torch.full_like(tensor, torch.nan) for name, tensor in round_.global_model.items()}
    wanted = all_mixtures("uniform")
    with_it = Round(round_.entry, round_.global_model, {**round_.client_models, 4: broken}, {})
    found = FastOracle(task).utilities(with_it, wanted)[:, 0]
    has_it = wanted.memberships[:, 4]
    assert np.isnan(found[has_it]).all()
    np.testing.assert_allclose(found[~has_it], exact_utilities(task, round_, wanted)[~has_it], atol=1e-6)


def test_a_client_whose_outputs_overflow_is_left_to_the_plain_loop():
    task = zoo_task("mlp")
    round_, wanted = round_of(task.module), all_mixtures("uniform")
    huge = {name: tensor * 1e30 for name, tensor in round_.global_model.items()}
    hostile = Round(round_.entry, round_.global_model, {**round_.client_models, 4: huge}, {})
    oracle = FastOracle(task)
    np.testing.assert_array_equal(oracle.utilities(hostile, wanted), LoopOracle(task).utilities(hostile, wanted))
    assert "plain loop: some outputs are not finite" in oracle.describe()


class Stateful(nn.Module):
    """Counts its calls in a buffer that outputs depend on a little."""

    def __init__(self):
        super().__init__()
        self.layer = L(8, N_CLASSES)
        self.register_buffer("seen", torch.zeros(1), persistent=False)

    def forward(self, x):
        self.get_buffer("seen").add_(1)
        return self.layer(x)


class Dependent(nn.Module):
    """Samples of a batch influence each other."""

    def __init__(self):
        super().__init__()
        self.layer = L(8, N_CLASSES)

    def forward(self, x):
        return self.layer(x) * x.std()


def test_a_module_whose_samples_depend_on_their_batch_is_left_to_the_plain_loop():
    task = task_of(Dependent, ROWS)
    task = replace(task, inputs=torch.randn(2500, 8), labels=torch.randint(0, N_CLASSES, (2500,)))
    oracle, round_, wanted = FastOracle(task), round_of(task.module), all_mixtures("uniform")
    found = oracle.utilities(round_, wanted)
    np.testing.assert_allclose(found, LoopOracle(task).utilities(round_, wanted), atol=1e-6)


def test_a_module_that_changes_its_state_is_measured_as_by_the_plain_loop():
    task = task_of(Stateful, ROWS)
    round_, wanted = round_of(task.module), all_mixtures("uniform")
    found = FastOracle(task).utilities(round_, wanted)
    np.testing.assert_allclose(found, LoopOracle(task).utilities(round_, wanted), atol=1e-6)


def test_a_module_of_chance_is_refused():
    task = task_of(lambda: S(L(8, N_CLASSES)), ROWS)

    class Chance(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = L(8, N_CLASSES)

        def forward(self, x):
            return nn.functional.dropout(self.layer(x), 0.5, training=True)

    task = replace(task, module=Chance())
    for oracle in (FastOracle(task), LoopOracle(task)):
        with pytest.raises(UtilityError, match="other outputs when it is called again"):
            oracle.utilities(round_of(task.module), all_mixtures("uniform"))


def test_half_precision_is_left_to_the_plain_loop():
    task = task_of(lambda: S(L(8, 16), nn.ReLU(), L(16, N_CLASSES)), ROWS, torch.bfloat16)
    oracle, round_, wanted = FastOracle(task), round_of(task.module), all_mixtures("uniform")
    np.testing.assert_array_equal(oracle.utilities(round_, wanted), LoopOracle(task).utilities(round_, wanted))
    assert "half precision" in oracle.describe()


def test_double_precision_is_measured_in_it():
    task = task_of(lambda: S(L(8, 16), nn.ReLU(), L(16, N_CLASSES)), ROWS, torch.float64)
    round_, wanted = round_of(task.module), all_mixtures("samples")
    found = FastOracle(task).utilities(round_, wanted)[:, 0]
    np.testing.assert_allclose(found, exact_utilities(task, round_, wanted), rtol=0, atol=1e-13)


@pytest.mark.parametrize("n_right", [0, 1, 5])
@pytest.mark.parametrize("blocks", [None, BLOCKS])
def test_a_wrong_route_is_found_on_the_first_round_and_on_later_ones(monkeypatch, n_right, blocks):
    task = replace(zoo_task("mlp"), blocks=blocks)
    oracle, wanted, of_chain = FastOracle(task), all_mixtures("uniform"), Chain.totals
    for seed in range(n_right):
        oracle.utilities(round_of(task.module, size=0.1 + seed / 100), wanted)
    assert "plain loop" not in oracle.describe()
    monkeypatch.setattr(Chain, "totals", lambda *args: of_chain(*args) * np.linspace(1, 1.01, len(wanted))[:, None])
    round_ = round_of(task.module)
    np.testing.assert_array_equal(oracle.utilities(round_, wanted), LoopOracle(task).utilities(round_, wanted))
    assert "the plain loop: it disagrees with" in oracle.describe()


def test_large_test_sets_are_compared_in_part(monkeypatch):
    task = zoo_task("mlp")
    task = replace(task, inputs=torch.randn(5000, 8), labels=torch.randint(0, N_CLASSES, (5000,)))
    oracle, round_, wanted = FastOracle(task), round_of(task.module), all_mixtures("samples")
    sizes = []

    def counted(part, *args):
        sizes.append(len(part.labels))
        return plain_utilities(part, *args)

    monkeypatch.setattr("fedworth.oracle.fast.oracle.plain_utilities", counted)
    found = oracle.utilities(round_, wanted)
    assert sizes == [5000 // 32 + 1]
    np.testing.assert_allclose(found[:, 0], exact_utilities(task, round_, wanted), atol=1e-6)


@pytest.mark.parametrize("oracle_type", [FastOracle, LoopOracle])
def test_the_users_module_is_left_in_its_mode(oracle_type):
    task = task_of(lambda: S(L(8, 16), nn.Dropout(0.5), L(16, N_CLASSES)), ROWS)
    task.module.train()
    task.module.get_submodule("1").eval()
    before = {name: tensor.clone() for name, tensor in task.module.state_dict().items()}
    oracle_type(task).utilities(round_of(task.module), all_mixtures("uniform"))
    assert [part.training for part in task.module.children()] == [True, False, True]
    assert all(torch.equal(tensor, before[name]) for name, tensor in task.module.state_dict().items())


def test_several_threads_may_ask_one_oracle():
    task = zoo_task("vgg")
    round_, wanted = round_of(task.module), all_mixtures("uniform")
    oracle, found = FastOracle(task, n_threads=2), []
    threads = [threading.Thread(target=lambda: found.append(oracle.utilities(round_, wanted))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({utilities.tobytes() for utilities in found}) == 1
    assert len(found) == 4


def test_a_coalition_without_a_model_is_refused():
    task = zoo_task("mlp")
    round_ = round_of(task.module, 3)
    with pytest.raises(ModelError, match=r"clients \[3, 4\] have no model"):
        FastOracle(task).utilities(round_, all_mixtures("uniform"))


def test_it_can_be_sent_to_another_process():
    task = zoo_task("cnn")
    oracle, round_, wanted = FastOracle(task, n_threads=1), round_of(task.module), all_mixtures("uniform")
    here = oracle.utilities(round_, wanted)
    there = pickle.loads(pickle.dumps(oracle))
    assert there.describe() == NOTHING_YET
    assert there.utilities(round_, wanted).tobytes() == here.tobytes()


def test_prefixes_of_many_clients_are_right():
    task = task_of(lambda: S(L(8, 16), nn.ReLU(), L(16, N_CLASSES)), ROWS)
    round_ = round_of(task.module, 30)
    order = np.random.default_rng(0).permutation(30)
    coalitions = np.zeros((30, 30), dtype=bool)
    for size in range(30):
        coalitions[size, order[: size + 1]] = True
    wanted = mixtures(coalitions, np.arange(1.0, 31), "samples")
    np.testing.assert_allclose(
        FastOracle(task).utilities(round_, wanted)[:, 0], exact_utilities(task, round_, wanted), atol=1e-6
    )


def test_images_with_frozen_convolutions_are_right():
    task = task_of(lambda: S(nn.Conv2d(1, 4, 3), nn.ReLU(True), nn.Flatten(), L(144, N_CLASSES)), GREY)
    round_, wanted = round_of(task.module, frozen=("0.",)), all_mixtures("uniform")
    oracle = FastOracle(task)
    np.testing.assert_allclose(oracle.utilities(round_, wanted)[:, 0], exact_utilities(task, round_, wanted), atol=1e-6)
    assert oracle.describe().startswith("mixed outputs of the linear layer 3.weight")


def test_threads_must_be_one_or_more():
    with pytest.raises(UsageError, match="n_threads is 0"):
        FastOracle(zoo_task("mlp"), n_threads=0)


def test_coalitions_of_some_clients_look_at_no_other_model():
    task = zoo_task("logistic")
    round_ = round_of(task.module)
    few = {k: round_.client_models[k] for k in (1, 2)}
    wanted = mixtures(coalitions_of(np.array([1, 2]), 5), np.ones(5), "uniform")
    found = FastOracle(task).utilities(Round(round_.entry, round_.global_model, few, {}), wanted)[:, 0]
    np.testing.assert_allclose(found, exact_utilities(task, round_, wanted), atol=1e-6)


@pytest.mark.parametrize("name", ["logistic", "cnn"])
def test_large_models_are_held_for_each_client_only_where_that_saves_work(name, monkeypatch):
    monkeypatch.setattr("fedworth.oracle.fast.oracle.LARGE_MODEL", 0)
    task = zoo_task(name)
    oracle, round_ = FastOracle(task, n_threads=1), round_of(task.module)
    wanted = all_mixtures("samples")
    found = oracle.utilities(round_, wanted)
    assert ("models are large" in oracle.describe()) == (name == "cnn")
    np.testing.assert_allclose(found, LoopOracle(task).utilities(round_, wanted), rtol=0, atol=1e-6)


def test_large_models_take_few_images_at_a_time(monkeypatch):
    task, sizes = zoo_task("cnn"), []
    task = replace(task, inputs=task.inputs.repeat(3, 1, 1, 1), labels=task.labels.repeat(3))
    task.module.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    model, which = round_of(task.module).client_models[0], np.arange(len(task.labels))
    at_once = outputs_on(task, model, which)
    assert max(sizes) == len(task.labels) > 32
    sizes.clear()
    monkeypatch.setattr("fedworth.oracle.oracle.MOST_IN_FLOAT64", 0)
    torch.testing.assert_close(outputs_on(task, model, which), at_once)
    assert max(sizes) == 32
