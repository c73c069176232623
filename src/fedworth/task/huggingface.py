"""Test sets and losses of Hugging Face's models.

A sample is one item of the data set: what the model takes for one text (`input_ids`, …), and its labels. Samples of
unequal length are padded on the right, with an attention mask that is 0 and labels of −100 there. A text without labels
is its own labels, as for a causal language model.

The loss is the one of `LOSSES` that gives, on padded samples, what the model itself gives on each of them alone:

    sequence classification      cross-entropy, multi-label or squared-error, as the labels are
    causal language models       texts: the mean over the label tokens of a sample
    classes or words in place    tokens: the mean over the label tokens of all samples

A causal language model gives a number for each word of its vocabulary at each place, millions for a text. The task's
module is one that gives the log-probabilities of the labels instead: one number per place.
"""

import copy
import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fedworth.errors import DataError, UsageError
from fedworth.task.losses import IGNORED, LOSSES
from fedworth.task.modules import evaluating
from fedworth.task.samples import LABELS, outputs_of

Sample = dict[str, torch.Tensor]
ALLOWED = 1e-4  # of the model's own loss
WORDS, MASK, TRUE = "input_ids", "attention_mask", "labels"


def samples_of(model: nn.Module, dataset: Iterable[Mapping[str, Any]]) -> list[Sample]:
    """The samples of a data set, or of a loader's batches: what the model takes, by name, and `labels`."""
    base: Any = model
    if hasattr(model, "get_base_model"):  # PEFT's own signature does not name everything
        base = base.get_base_model()
    taken = inspect.signature(base.forward).parameters
    device = next(model.parameters()).device
    samples = [_sample(row, taken, device) for item in dataset for row in _rows(item)]
    if not samples:
        raise DataError("test set: the data set has no samples")
    if any(sample.keys() != samples[0].keys() for sample in samples):
        raise DataError("test set: samples have different columns; expected the same in each")
    return samples


def padded(samples: list[Sample], pad_token: int | None) -> Sample:
    """All samples in one tensor by name; shorter ones are filled up on the right."""
    fill = {WORDS: pad_token or 0, TRUE: IGNORED}
    return {name: _stacked(name, [sample[name] for sample in samples], fill.get(name, 0)) for name in samples[0]}


def loss_like_models(model: nn.Module, samples: list[Sample], together: Sample) -> str:
    """The name of the loss that gives what the model itself gives: on the first, shortest and longest sample."""
    order = sorted(range(len(samples)), key=lambda place: sum(t.numel() for t in samples[place].values()))
    places = sorted({0, order[0], order[-1]})
    some = {name: tensor[places] for name, tensor in together.items()}
    labels = some.pop(TRUE)
    try:
        with evaluating(model), torch.inference_mode():
            alone = [model(**{name: t[None] for name, t in samples[place].items()}).loss for place in places]
            outputs = outputs_of(model, {}, some)
        expected = torch.stack([loss.double().cpu() for loss in alone])
    except Exception as error:
        raise UsageError(f"test set: the model has no loss for it ({type(error).__name__}: {error})") from error
    if not bool(expected.isfinite().all()):
        place = places[int((~expected.isfinite()).nonzero()[0])]
        raise UsageError(f"test set: the model's own loss of sample {place} is not finite; has it a label that counts?")
    gaps, rows = {}, [slice(i, i + 1) for i in range(len(places))]
    for name in _candidates(outputs, labels):
        loss, given = LOSSES[name], token_scores(outputs, labels) if name == "texts" else outputs
        if not (loss.labels(labels) or loss.outputs(given, labels)):
            found = [-float(loss.criterion.quality(given[row], labels[row])) for row in rows]
            gaps[name] = float(((torch.tensor(found) - expected).abs() / expected.abs().clamp(min=1)).max())
    best, *others = sorted(gaps, key=lambda name: gaps[name]) or [""]
    allowed = max(ALLOWED, 4 * torch.finfo(outputs.dtype).eps)  # padding changes how sums are rounded
    # A model that knows nothing yet gives nearly the same loss in each place, so the second best must be far off.
    if best and gaps[best] <= allowed and all(gaps[name] > 10 * gaps[best] for name in others):
        return best
    shown = " and ".join(f"{name} differs from it by {gap:.2g}" for name, gap in gaps.items()) or "no loss takes it"
    raise UsageError(
        f"test set: labels of {labels.dtype} and outputs of shape {tuple(outputs.shape)} do not tell which loss is the "
        f"model's own ({shown}); name it, or give a function of logits and labels: loss=…"
    )


def token_scores(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """(n_samples, length): the log-probability of each label after the words before it; 0 for the first one.

    Labels of −100 have 0, too.
    """
    following = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
    losses = F.cross_entropy(logits.float().flatten(0, 1), following.flatten(), reduction="none", ignore_index=IGNORED)
    return F.pad(-losses.view(labels.shape)[:, :-1], (1, 0))


def scoring(model: nn.Module) -> nn.Module:
    """The model, with the same tensors, as one that takes labels and gives their log-probabilities."""
    tensors = [*model.parameters(), *model.buffers()]
    made = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    made.register_forward_pre_hook(_take_labels, with_kwargs=True)
    made.register_forward_hook(_give_scores)
    return made


def _take_labels(model: nn.Module, args: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    vars(model)[TRUE] = given[TRUE]  # with labels, the model would compute its own loss, which takes as long again
    return args, {name: tensor for name, tensor in given.items() if name != TRUE}


def _give_scores(model: nn.Module, _: Any, outputs: Any) -> torch.Tensor:
    return token_scores(outputs.logits, vars(model).pop(TRUE))


def _candidates(outputs: torch.Tensor, labels: torch.Tensor) -> tuple[str, ...]:
    """The losses that may be the model's own, by the kind of its outputs and labels."""
    if labels.is_floating_point():
        return ("squared-error", "multi-label")
    if labels.ndim == 1:
        return ("cross-entropy",)
    return ("texts", "tokens") if outputs.ndim == 3 and outputs.shape[:2] == labels.shape else ()


def _rows(item: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The samples of a batch; an item that is no batch is a sample."""
    if not isinstance(item, Mapping):
        raise DataError(f"test set: an item is a {type(item).__name__}, expected a dictionary such as {{'{WORDS}': …}}")
    words = item.get(WORDS)
    if not isinstance(words, torch.Tensor) or words.ndim < 2:
        yield item
        return
    for place in range(len(words)):
        yield {name: column[place] for name, column in item.items()}


def _sample(row: Mapping[str, Any], taken: Mapping[str, Any], device: torch.device) -> Sample:
    """What the model takes of a sample, with an attention mask and labels."""
    label = next((name for name in (*LABELS, "label_ids") if name in row), None)
    try:
        sample = {name: torch.as_tensor(row[name], device=device) for name in row if name in taken and name != TRUE}
        if WORDS in sample and MASK in taken:
            sample.setdefault(MASK, torch.ones_like(sample[WORDS]))
        if label is None:
            sample[TRUE] = sample[WORDS].masked_fill(sample.get(MASK, torch.ones(())) == 0, IGNORED)
        else:
            labels = torch.as_tensor(row[label], device=device)
            sample[TRUE] = labels if labels.is_floating_point() else labels.long()
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        shown = ", ".join(map(str, row))
        raise DataError(f"test set: a sample with {shown} cannot be read ({error}); tokenize it first") from error
    return sample


def _stacked(name: str, tensors: list[torch.Tensor], fill: int) -> torch.Tensor:
    """(n_samples, …)."""
    shapes = {tuple(tensor.shape) for tensor in tensors}
    if len(shapes) == 1:
        return torch.stack(tensors)
    if any(len(shape) != 1 for shape in shapes):
        raise DataError(
            f"test set: {name!r} has shapes {sorted(shapes)[:3]}, expected one shape, or one dimension each"
        )
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=fill)
