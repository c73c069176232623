"""Utilities by every loss and measure: the plain loop and the fast oracle against an obvious loop in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedworth.errors import ModelError
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle
from fedworth.task.task import Task, refuse_probabilities
from fedworth.task.vertical import Vertical
from tests.support.tasks import NAMES, PAIRS, Wide, rows, task_with
from tests.support.zoo import all_mixtures, round_of

WANTED = all_mixtures("samples")
CRITERIA = [(name, "loss") for name in NAMES] + PAIRS


@pytest.mark.parametrize(("name", "measure"), CRITERIA)
def test_both_oracles_agree_with_float64(name, measure):
    task = task_with(name)
    round_ = round_of(task.module)
    expected = Wide(task).utilities(round_, WANTED, measure)
    fast = FastOracle(task, measure, n_threads=1)
    assert LoopOracle(task, measure).utilities(round_, WANTED).sum(axis=1) == pytest.approx(expected, abs=2e-6)
    assert fast.utilities(round_, WANTED).sum(axis=1) == pytest.approx(expected, abs=2e-6)
    assert np.ptp(expected) > 0
    assert "plain loop" not in fast.describe()


@pytest.mark.parametrize(("name", "measure"), CRITERIA)
def test_both_oracles_agree_by_block_and_the_blocks_add_up(name, measure):
    task = task_with(name)
    in_blocks, round_ = replace(task, blocks=np.arange(len(task.labels)) % 4), round_of(task.module)
    plain, fast = LoopOracle(in_blocks, measure), FastOracle(in_blocks, measure, n_threads=1)
    by_block = plain.utilities(round_, WANTED)
    np.testing.assert_allclose(fast.utilities(round_, WANTED), by_block, rtol=0, atol=2e-6)
    whole = LoopOracle(task, measure).utilities(round_, WANTED)
    np.testing.assert_allclose(by_block.sum(axis=1), whole[:, 0], rtol=0, atol=1e-12)
    assert "plain loop" not in fast.describe()


def both(name, measure):
    """The other measures of a loss, and the loss itself."""
    return tuple(found for found in ("loss", *(m for n, m in PAIRS if n == name)) if found != measure)


@pytest.mark.parametrize(("name", "measure"), CRITERIA)
@pytest.mark.parametrize("blocks", [None, 4])
def test_other_measures_in_the_same_pass_are_those_measured_alone(name, measure, blocks):
    task, also = task_with(name), both(name, measure)
    task = replace(task, blocks=None if blocks is None else np.arange(len(task.labels)) % blocks)
    round_ = round_of(task.module)
    alone = [LoopOracle(task, one).utilities(round_, WANTED) for one in (measure, *also)]
    expected = np.concatenate([alone[0], *(found.sum(axis=1, keepdims=True) for found in alone[1:])], axis=1)
    fast = FastOracle(task, measure, n_threads=1, also=also)
    np.testing.assert_allclose(LoopOracle(task, measure, also).utilities(round_, WANTED), expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(fast.utilities(round_, WANTED), expected, rtol=0, atol=2e-6)
    assert "plain loop" not in fast.describe()


def absolute(outputs, labels):
    return (outputs[:, 0].numpy() - labels.numpy()).__abs__()


def best(outputs, labels):
    return float((outputs - labels[:, None]).abs().max())


@pytest.mark.parametrize("function", [absolute, best])
def test_a_loss_and_a_measure_of_ones_own(function):
    generator = torch.Generator().manual_seed(1)
    inputs, labels = torch.randn(20, 6, generator=generator), torch.randn(20, generator=generator)
    task = Task(rows(1), inputs, labels, loss=function, measure=best)
    round_ = round_of(task.module)
    for measure in ("loss", "best"):
        expected = Wide(task).utilities(round_, WANTED, measure)
        for oracle in (LoopOracle(task, measure), FastOracle(task, measure, n_threads=1)):
            assert oracle.utilities(round_, WANTED).sum(axis=1) == pytest.approx(expected, abs=1e-6)


class Two(nn.Module):
    """Two inputs, by place or by name, and an answer as Hugging Face gives it."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(2, 4)

    def forward(self, left, right):
        return {"logits": torch.relu(self.left(left)) + self.right(right), "more": None}


def parts():
    generator = torch.Generator().manual_seed(2)
    left, right = torch.randn(30, 3, generator=generator), torch.randn(30, 2, generator=generator)
    return left, right, torch.arange(30) % 4


def test_several_inputs_by_place_by_name_and_from_a_loader_are_the_same():
    left, right, labels = parts()
    module = Two()
    batches = [(left[i : i + 8], right[i : i + 8], labels[i : i + 8]) for i in range(0, 30, 8)]
    by_name = [{"left": a, "right": b, "labels": c} for a, b, c in batches]
    tasks = [
        Task(module, (left, right), labels),
        Task(module, {"right": right, "left": left}, labels),
        Task.from_loader(module, batches),
        Task.from_loader(module, by_name),
        Task.from_loader(module, [([a, b], c) for a, b, c in batches]),
    ]
    round_ = round_of(module)
    expected = Wide(tasks[0]).utilities(round_, WANTED, "loss")
    for task in tasks:
        fast = FastOracle(task, n_threads=1)
        assert fast.utilities(round_, WANTED).sum(axis=1) == pytest.approx(expected, abs=1e-6)
        assert "plain loop" not in fast.describe()
    assert tasks[0].fingerprint == tasks[2].fingerprint == tasks[4].fingerprint != tasks[1].fingerprint


@pytest.mark.parametrize("oracle", [LoopOracle, FastOracle])
@pytest.mark.parametrize(
    ("loss", "ending", "found"),
    [
        ("cross-entropy", nn.Softmax(dim=1), "it ends in a softmax"),
        ("cross-entropy", nn.Sigmoid(), "it ends in a sigmoid"),
        ("multi-label", nn.Sigmoid(), "it ends in a sigmoid"),
    ],
)
def test_probabilities_where_logits_are_expected_are_refused(oracle, loss, ending, found):
    task = task_with(loss)
    task = Task(nn.Sequential(task.module, ending), task.inputs, task.labels, loss=loss)
    with pytest.raises(ModelError, match=f"outputs are probabilities: {found}, and loss '{loss}' takes logits"):
        oracle(task).utilities(round_of(task.module), WANTED).sum(axis=1)


def test_logits_that_happen_to_look_like_probabilities_are_not_taken_for_them():
    task = task_with("cross-entropy")
    module = nn.Linear(6, 3)
    with torch.no_grad():
        module.weight.zero_()
        module.bias.fill_(1 / 3)
    task = Task(module, task.inputs, task.labels)
    assert LoopOracle(task).utilities(round_of(module), WANTED).sum(axis=1).any()


def test_logits_of_small_embeddings_are_not_taken_for_probabilities():
    generator, clients = torch.Generator().manual_seed(0), ("a", "b")
    linear = nn.Linear(8, 2)
    with torch.no_grad():
        linear.weight.copy_(0.1 * torch.rand(2, 8, generator=generator))
        linear.bias.fill_(0.1)
    head = nn.Sequential(nn.ReLU(), linear)
    sent = {f"embeddings.{k}": 0.1 + 0.5 * torch.rand(40, 4, generator=generator) for k in range(len(clients))}
    task = Vertical(head, torch.arange(40) % 2, dict.fromkeys(clients, 4)).task()
    model = {**{f"head.{name}": weights for name, weights in head.state_dict().items()}, **sent}
    refuse_probabilities(task, model, task.outputs(model, slice(0, 32)))


def test_outputs_that_no_parameter_moves_are_not_taken_for_probabilities():
    class Held(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("weight", torch.zeros(6, 1))

        def forward(self, x):
            return x @ self.weight

    task = task_with("binary")
    task = Task(Held(), task.inputs, task.labels, loss="binary")
    assert not LoopOracle(task).utilities(round_of(task.module, size=0.0), WANTED).sum(axis=1).any()


def test_log_probabilities_are_logits():
    task = task_with("cross-entropy")
    ended = Task(nn.Sequential(task.module, nn.LogSoftmax(dim=1)), task.inputs, task.labels)
    round_ = round_of(ended.module)
    expected = Wide(ended).utilities(round_, WANTED, "loss")
    assert LoopOracle(ended).utilities(round_, WANTED).sum(axis=1) == pytest.approx(expected, abs=1e-6)


def test_a_module_that_gives_no_tensor_is_refused():
    class Pair(nn.Linear):
        def forward(self, x):
            return super().forward(x), x

    task = Task(Pair(6, 3), torch.zeros(3, 6), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ModelError, match="the module returns a tuple, expected a tensor"):
        LoopOracle(task).utilities(round_of(task.module), WANTED).sum(axis=1)
