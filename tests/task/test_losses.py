"""Every loss and measure against the formula written out, sample by sample."""

import math
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedworth.errors import DataError, UsageError
from fedworth.task.losses import LOSSES, loss_of
from fedworth.task.task import Task
from tests.support.tasks import NAMES, PAIRS, rows, task_with


def judged(name: str, measure: str, outputs: torch.Tensor, labels: torch.Tensor) -> float:
    """Higher is better, of the whole."""
    found = {c.name: c for c in LOSSES[name].measures} | {"loss": LOSSES[name].criterion}
    return found[measure].total(outputs, labels) / found[measure].n_counted(labels)


LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.1, 0.2, 0.3], [-3.0, 1.0, 1.5], [0.0, 4.0, 0.0]], dtype=torch.float64)
CLASSES = torch.tensor([0, 2, 1, 0])


def test_losses_over_classes():
    p = torch.softmax(LOGITS, dim=1)
    nll = [-math.log(float(p[i, c])) for i, c in enumerate(CLASSES.tolist())]
    assert judged("cross-entropy", "loss", LOGITS, CLASSES) == pytest.approx(-np.mean(nll))
    assert judged("probabilities", "loss", p, CLASSES) == pytest.approx(-np.mean(nll))
    signs = [[1.0 if c == label else -1.0 for c in range(3)] for label in CLASSES.tolist()]
    margins = np.array(signs) * LOGITS.numpy()
    assert judged("one-vs-rest", "loss", LOGITS, CLASSES) == pytest.approx(-np.log1p(np.exp(-margins)).sum(1).mean())
    assert judged("hinge", "loss", LOGITS, CLASSES) == pytest.approx(-np.maximum(0, 1 - margins).sum(1).mean())
    assert judged("cross-entropy", "accuracy", LOGITS, CLASSES) == 0.5


def test_pixels_and_tokens_that_do_not_count_are_left_out_of_the_mean():
    logits, labels = LOGITS.reshape(2, 2, 3), CLASSES.reshape(2, 2).clone()
    labels[0, 1] = -100
    kept = [0, 2, 3]
    expected = -F.cross_entropy(LOGITS[kept], CLASSES[kept]).item()
    assert judged("tokens", "loss", logits, labels) == pytest.approx(expected)
    assert judged("tokens", "accuracy", logits, labels) == pytest.approx(1 / 3)
    assert judged("segmentation", "loss", logits.transpose(1, 2), labels) == pytest.approx(expected)
    assert judged("segmentation", "accuracy", logits.transpose(1, 2), labels) == pytest.approx(1 / 3)


def test_the_next_token_is_judged_as_hugging_face_shifts_it():
    logits, words = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0)), torch.arange(10).reshape(2, 5) % 7
    expected = -F.cross_entropy(logits[:, :-1].reshape(-1, 7), words[:, 1:].reshape(-1)).item()
    assert judged("next-token", "loss", logits, words) == pytest.approx(expected)


def test_dice_by_hand():
    labels = torch.tensor([[[0, 0], [1, 1]], [[0, 0], [0, -100]]])
    found = torch.tensor([[[0, 1], [1, 1]], [[0, 0], [1, 1]]])
    sure = 1000.0 * F.one_hot(found, 2).movedim(-1, 1)
    first, second = (2 * 1 / (1 + 2) + 2 * 2 / (3 + 2)) / 2, 2 * 2 / (2 + 3)
    assert judged("dice", "dice", sure, labels) == pytest.approx((first + second) / 2)
    assert judged("dice", "loss", sure, labels) == pytest.approx((first + second) / 2 - 1)
    one_logit = 1000.0 * (2 * found - 1)[:, None]
    assert judged("dice", "dice", one_logit, labels) == pytest.approx((first + second) / 2)
    assert judged("dice", "loss", one_logit, labels) == pytest.approx((first + second) / 2 - 1)


def test_numbers_and_flags():
    outputs, labels = torch.tensor([[1.0, 2.0], [3.0, -1.0]]), torch.tensor([[0.0, 2.0], [1.0, 1.0]])
    assert judged("squared-error", "loss", outputs, labels) == pytest.approx(-(1 + 0 + 4 + 4) / 4)
    assert judged("squared-error", "absolute-error", outputs, labels) == pytest.approx(-(1 + 0 + 2 + 2) / 4)
    assert judged("squared-error", "r2", outputs, labels) == pytest.approx(1 - 9 / 1.0)
    log_losses = [math.log1p(math.exp(-s * z)) for s, z in ((-1, 1.0), (1, 2.0), (1, 3.0), (1, -1.0))]
    flags = torch.tensor([[0, 1], [1, 1]])
    assert judged("multi-label", "loss", outputs, flags) == pytest.approx(-np.mean(log_losses))
    assert judged("multi-label", "accuracy", outputs, flags) == 0.5
    assert judged("binary", "loss", outputs[:, :1], flags[:, 0]) == pytest.approx(
        -np.mean([log_losses[0], log_losses[2]])
    )
    assert judged("hinge-binary", "loss", outputs[:, :1], flags[:, 0]) == pytest.approx(-1.0)


def test_ranking_pair_by_pair():
    scores, flags = torch.tensor([0.3, 0.3, 2.0, -1.0, 0.9]), torch.tensor([1, 0, 0, 1, 1])
    ones, zeros = scores[flags == 1].tolist(), scores[flags == 0].tolist()
    pairs = [(a, b) for a in ones for b in zeros]
    assert judged("pairwise", "auc", scores[:, None], flags) == pytest.approx(
        np.mean([(a > b) + 0.5 * (a == b) for a, b in pairs])
    )
    assert judged("pairwise", "loss", scores, flags) == pytest.approx(
        -np.mean([math.log1p(math.exp(b - a)) for a, b in pairs])
    )


def test_cox_event_by_event():
    risks = torch.tensor([0.5, -0.2, 1.0, 0.0, 0.3], dtype=torch.float64)
    labels = torch.tensor([[3.0, 1], [1.0, 1], [3.0, 1], [2.0, 0], [5.0, 0]])
    times, seen = labels[:, 0].tolist(), labels[:, 1].tolist()
    likelihood, right, pairs = 0.0, 0.0, 0
    for i in (i for i in range(5) if seen[i]):
        likelihood += float(risks[i]) - math.log(
            sum(math.exp(r) for r, t in zip(risks.tolist(), times, strict=True) if t >= times[i])
        )
        for j in (j for j in range(5) if times[j] > times[i]):
            right, pairs = right + float(risks[i] > risks[j]) + 0.5 * float(risks[i] == risks[j]), pairs + 1
    assert judged("cox", "loss", risks[:, None], labels) == pytest.approx(likelihood / 3)
    assert judged("cox", "concordance", risks, labels) == pytest.approx(right / pairs)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_of_another_shape_are_told(name):
    task = task_with(name)
    assert task.judged_by.outputs(torch.zeros(len(task.labels), 50, 50, 50), task.labels)
    assert task.judged_by.outputs(task.module(task.inputs), task.labels) == ""


@pytest.mark.parametrize(
    ("name", "labels", "message"),
    [
        ("binary", torch.tensor([0, 1, 2]), "other values than 0 and 1"),
        ("pairwise", torch.ones(3), "all labels are 1, so there is nothing to rank"),
        ("pairwise", torch.ones(3, 2), "expected one per sample"),
        ("squared-error", torch.tensor([0, 1, 2]), "expected floating point numbers"),
        ("squared-error", torch.tensor([0, 1, math.nan]), "NaN or infinite"),
        ("cox", torch.ones(3), r"expected \(n_samples, 2\): a time, and 1 if the event was seen"),
        ("cox", torch.tensor([[1.0, 0], [2, 0], [3, 0]]), "no event was seen"),
        ("cox", torch.tensor([[1.0, 7], [2, 0], [3, 0]]), "second column of the labels"),
        ("cox", torch.tensor([[1.0, 1], [math.inf, 0], [3, 0]]), "times are NaN or infinite"),
        ("segmentation", torch.zeros(3, dtype=torch.int64), "class for every pixel or token"),
        ("segmentation", torch.full((3, 2), -100), "all labels are -100"),
        ("tokens", torch.full((3, 2), -1), "found label -1, expected 0 or more, or -100"),
    ],
)
def test_labels_that_a_loss_cannot_take_are_refused(name, labels, message):
    with pytest.raises(DataError, match=message):
        Task(rows(1), torch.zeros(3, 6), labels, loss=name)


def test_an_unknown_loss_or_measure_is_refused_with_those_that_are_known():
    with pytest.raises(UsageError, match="unknown loss 'crossentropy': did you mean 'cross-entropy'"):
        loss_of(cast(Any, "crossentropy"))
    with pytest.raises(UsageError, match="unknown measure 'auc': known are accuracy, loss"):
        task_with("cross-entropy").criterion("auc")
    with pytest.raises(UsageError, match="known are absolute-error, loss, r2"):
        task_with("squared-error").criterion("dice")


def test_a_measure_of_ones_own_is_known_by_its_name():
    def most(outputs, _labels):
        return outputs.max()

    task = task_with("squared-error", measure=most)
    assert task.criterion("most").total(torch.tensor([[1.0, 7.0]]), torch.zeros(1, 2)) == 7
    assert task.fingerprint != task_with("squared-error").fingerprint


def test_a_loss_of_ones_own_gives_one_number_or_one_a_sample():
    outputs, labels = torch.tensor([1.0, 3.0]), torch.zeros(2)
    of_each = loss_of(lambda o, y: (o - y).abs()).criterion
    of_all = loss_of(lambda o, y: float((o - y).abs().mean())).criterion
    assert of_each.total(outputs, labels) == of_all.total(outputs, labels) == -2
    with pytest.raises(DataError, match=r"of shape \(2, 2\) for 2 samples"):
        loss_of(lambda o, y: o[:, None] - y).criterion.total(outputs, labels)


def test_every_loss_has_another_fingerprint():
    tasks = [
        task_with("cross-entropy"),
        *(Task(rows(1), torch.zeros(6, 6), labels(), loss=n) for n in ("binary", "pairwise")),
    ]
    assert len({task.fingerprint for task in tasks}) == 3
    assert len(PAIRS) > len(NAMES)


def labels():
    return torch.tensor([0, 1, 0, 1, 1, 0])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "gave a NoneType"),
        ("0.5", "gave a str"),
        ({"loss": 1.0}, "gave a dict"),
        (torch.zeros(2, dtype=torch.complex64), "gave torch.complex64"),
        (KeyError("x"), "with KeyError"),
    ],
)
def test_a_loss_that_gives_no_number_is_named_with_what_it_gave(given, said):
    def own(_outputs, _labels):
        if isinstance(given, Exception):
            raise given
        return given

    with pytest.raises(DataError, match=f"own: .*{said}"):
        loss_of(own).criterion.total(torch.zeros(2, 3), torch.zeros(2))


def test_a_loss_that_changes_outputs_in_place_changes_no_other_measure():
    def own(outputs, labels):
        return outputs.mul_(0.5).square().mean() + labels.zero_().sum()

    outputs, labels = torch.ones(2, 3), torch.ones(2)
    criterion = loss_of(own).criterion
    assert criterion.total(outputs, labels) == criterion.total(outputs, labels)
    assert bool((outputs == 1).all())
    assert bool((labels == 1).all())
