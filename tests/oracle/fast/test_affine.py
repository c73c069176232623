"""Sections and mixed tensors, each against the plain way."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from fedworth.oracle.fast import affine
from fedworth.oracle.fast.affine import Prefix, SampleBatch, logits, qualities, quality, sample_batches
from fedworth.oracle.fast.graph import export
from fedworth.oracle.fast.heads import head_of
from fedworth.oracle.fast.mixing import channels_last, combined, round_models, stacked
from fedworth.oracle.fast.sections import constant_tensors, cut
from fedworth.oracle.fast.tuning import normalised_convolution, pool_by_twos
from fedworth.oracle.oracle import mix
from fedworth.task.losses import ACCURACY, CROSS_ENTROPY
from tests.support.zoo import ZOO, all_mixtures, exact_utilities, round_of, task_of

ROWS = np.array([[0.5, 0.5, 0, 0, 0], [0.1, 0.2, 0, 0.3, 0], [0.2, 0.2, 0.2, 0.2, 0.2], [0, 0, 0, 0, 0]])
SHARED = ["tanh", "vgg", "residual", "gated", "tokens", "pooled convolution", "logistic", "attentive"]


def sectioned(name, *, frozen=(), shares_prefix=True, dtype=torch.float64):
    """A module of the zoo, its round's models, and its sections."""
    task = task_of(*ZOO[name][:2], dtype=dtype)
    round_ = round_of(task.module, frozen=frozen)
    varying = {n for n in round_.global_model if not n.startswith(frozen or ("-",))}
    clients = list(round_.client_models.values())
    images = task.inputs.ndim == 4
    models = round_models(round_.global_model, clients, varying, images=images)
    return task, round_, models, cut(export(task.module, task.inputs), varying, shares_prefix=shares_prefix)


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("shares_prefix", [True, False])
def test_sections_give_the_logits_of_mixed_models_one_by_one_or_together(name, shares_prefix):
    task, round_, models, sections = sectioned(name, shares_prefix=shares_prefix)
    assert (sections.prefix is not None) == shares_prefix
    (batch,) = sample_batches(sections, models.origin, task.inputs, task.labels, len(task.labels))
    together = SampleBatch(batch.values, batch.labels.to("meta"))  # anything but a CPU takes all coalitions at once
    for part in (batch, together):
        shared = Prefix(sections, models.everybody, images=models.images).shared(part) if shares_prefix else []
        prefixes = [combined(ROWS, value.origin, value.differences) for value in shared]
        found = list(logits(sections, models.origin, models.mixed(ROWS), part, prefixes))
        for row, of_coalition in zip(ROWS, found, strict=True):
            model = mix(round_.global_model, dict(round_.client_models), row, 1 - float(row.sum()))
            expected = functional_call(task.module, model, (task.inputs,), tie_weights=False)
            torch.testing.assert_close(of_coalition, expected, rtol=0, atol=1e-10)


def test_averaged_prefixes_are_rows_of_samples_as_what_follows_wants_them():
    task, _, models, sections = sectioned("tanh", dtype=torch.float32)
    (batch,) = sample_batches(sections, models.origin, task.inputs, task.labels, len(task.labels))
    (shared,) = Prefix(sections, models.everybody, images=False).shared(batch)
    assert shared.origin.is_contiguous()
    assert all(prefix.is_contiguous() for prefix in combined(ROWS, shared.origin, shared.differences))


@pytest.mark.parametrize("room", [1 << 28, 1000])
def test_a_test_set_gone_through_in_parts_gives_the_same(monkeypatch, room):
    monkeypatch.setattr(affine, "PREFIX_BYTES", room)
    task, round_, models, sections = sectioned("tanh")
    wanted = all_mixtures("fixed")
    samples = sample_batches(sections, models.origin, task.inputs, task.labels, 7)
    found = qualities(sections, models, wanted.of_clients, samples, criterion=CROSS_ENTROPY, n_threads=2)
    expected = exact_utilities(task, round_, wanted)
    np.testing.assert_allclose((found - found[0]) / len(task.labels), expected, rtol=0, atol=1e-12)


def test_constants_are_made_of_samples_and_frozen_tensors_only():
    task, _, models, sections = sectioned("cnn", frozen=("0.",))
    assert sections.constants is not None
    assert constant_tensors(sections) == ["0.weight", "0.bias"]
    (batch,) = sample_batches(sections, models.origin, channels_last(task.inputs), task.labels, len(task.labels))
    (features,) = (batch.values[node] for node in sections.constants.gives)
    torch.testing.assert_close(features, task.module[:5](task.inputs))


@pytest.mark.parametrize("n_classes", [2, 10, 100])
def test_losses_are_torchs_cross_entropy_even_for_huge_logits(n_classes):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(50, n_classes, generator=generator, dtype=torch.float64) * 1000
    labels = torch.randint(0, n_classes, (50,), generator=generator)
    expected = -F.cross_entropy(scores, labels, reduction="sum").item()
    assert quality(scores, labels, CROSS_ENTROPY) == pytest.approx(expected, rel=1e-12)
    assert quality(scores, labels, ACCURACY) == int((scores.argmax(1) == labels).sum())


def test_ties_are_predicted_as_the_plain_loop_predicts_them():
    assert quality(torch.zeros(3, 4), torch.tensor([0, 1, 0]), ACCURACY) == 2


@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 1, 3, 3), (4, 3, 3, 3), (2, 3, 2, 2, 2)])
def test_mixtures_keep_the_order_of_memory(shape):
    generator = torch.Generator().manual_seed(0)
    origin, *clients = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(6))
    differences = stacked([client - origin for client in clients], images=True)
    found = combined(ROWS, channels_last(origin), differences)
    for row, mixed in zip(ROWS, found, strict=True):
        total = origin + sum(float(c) * (client - origin) for c, client in zip(row, clients, strict=True))
        torch.testing.assert_close(mixed, total)
        if len(shape) == 4:
            assert mixed.stride() == channels_last(mixed).stride()


@pytest.mark.parametrize("n_numbers", [1, 17, 1024, 2500])
def test_a_mixture_is_one_sum_in_the_order_of_the_clients_whatever_is_mixed_with_it(n_numbers):
    generator = torch.Generator().manual_seed(0)
    origin, differences = torch.randn(n_numbers, generator=generator), torch.randn(5, n_numbers, generator=generator)
    found = combined(ROWS, origin, differences)
    for row, mixed in zip(ROWS, found, strict=True):
        total = origin.numpy().copy()
        for k in np.flatnonzero(row):
            total += np.float32(row[k]) * differences[k].numpy()
        np.testing.assert_allclose(mixed.numpy(), total, rtol=0, atol=1e-6)
        assert combined(row[None], origin, differences)[0].numpy().tobytes() == mixed.numpy().tobytes()


def test_one_channel_is_laid_out_as_innermost():
    assert channels_last(torch.zeros(2, 1, 5, 5)).stride() == (25, 1, 5, 1)


@pytest.mark.parametrize(("bias", "affine_norm"), [(True, True), (False, False)])
def test_a_batch_norm_becomes_part_of_the_convolution_before_it(bias, affine_norm):
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 3, 3, stride=2, bias=bias).double()
    norm = nn.BatchNorm2d(3, affine=affine_norm).double().train()
    norm(layer(torch.randn(9, 2, 8, 8, dtype=torch.float64)))
    x, norm = torch.randn(4, 2, 8, 8, dtype=torch.float64), norm.eval()
    numbers = (norm.weight, norm.bias, norm.running_mean, norm.running_var, 0.1, norm.eps)
    torch.testing.assert_close(normalised_convolution(numbers, x, layer.weight, layer.bias, [2, 2]), norm(layer(x)))


@pytest.mark.parametrize("side", [2, 5, 8])
def test_pooling_by_twos_is_max_pooling(side):
    x = torch.randn(3, 2, side, side + 1, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(pool_by_twos(x), F.max_pool2d(x, 2), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("layers", "n_layers"),
    [
        ([nn.Linear(8, 4)], 0),
        ([nn.Linear(8, 6), nn.ReLU(), nn.ReLU(), nn.Linear(6, 4)], 1),
        ([nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4)], 1),
        ([nn.Linear(8, 6), nn.Tanh(), nn.Tanh(), nn.Linear(6, 4)], None),
        ([nn.Linear(8, 6), nn.Softplus(), nn.Linear(6, 4)], None),
        ([nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4), nn.ReLU()], None),
        ([nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 6), nn.Linear(6, 4)], None),
        ([nn.Linear(8, 6), nn.ReLU(), nn.Unflatten(1, (2, 3)), nn.Linear(3, 2), nn.Flatten()], None),
    ],
)
def test_heads_are_recognised_by_the_graph_alone(layers, n_layers):
    module = nn.Sequential(*layers)
    head = head_of(cut(export(module, torch.rand(5, 8)), set(module.state_dict())))
    assert (None if head is None else len(head.layers)) == n_layers
