"""What labels and outputs must look like, each as a function that says what is wrong, or nothing."""

import torch

from fedworth.task.losses.criterion import Misfit

IGNORED = -100
"""A label that does not count, as torch and Hugging Face have it."""


def one_class(labels: torch.Tensor) -> str:
    """A class a sample."""
    if labels.dtype != torch.int64 or labels.ndim != 1:
        return f"labels are {_kind(labels)}, expected one int64 class a sample"
    least = int(labels.min())
    return f"found label {least}, expected 0 or more; recode it" if least < 0 else ""


def class_map(labels: torch.Tensor) -> str:
    """A class for every pixel or token."""
    if labels.dtype != torch.int64 or labels.ndim < 2:
        return f"labels are {_kind(labels)}, expected an int64 class for every pixel or token: (n_samples, …)"
    counted = labels[labels != IGNORED]
    if len(counted) == 0:
        return f"all labels are {IGNORED}, which does not count"
    least = int(counted.min())
    return f"found label {least}, expected 0 or more, or {IGNORED} for what does not count" if least < 0 else ""


def flags(labels: torch.Tensor) -> str:
    """0 or 1."""
    is_flag = bool(((labels == 0) | (labels == 1)).all())
    return "" if is_flag else f"labels are {_kind(labels)} with other values than 0 and 1; expected those alone"


def both_flags(labels: torch.Tensor) -> str:
    """0 and 1, one a sample, and some of each: only pairs of both can be ordered."""
    complaint = flags(labels) or _one_each(labels)
    if not complaint and bool((labels == labels.view(-1)[0]).all()):
        return f"all labels are {int(labels.view(-1)[0])}, so there is nothing to rank; expected some 0 and some 1"
    return complaint


def numbers(labels: torch.Tensor) -> str:
    """Finite numbers."""
    if not labels.is_floating_point():
        return f"labels are {_kind(labels)}, expected floating point numbers"
    return "" if bool(torch.isfinite(labels).all()) else "some labels are NaN or infinite"


def survival(labels: torch.Tensor) -> str:
    """(n_samples, 2): a time and whether the event was seen at it."""
    if labels.ndim != 2 or labels.shape[1] != 2:
        return f"labels are {_kind(labels)}, expected (n_samples, 2): a time, and 1 if the event was seen, 0 if not"
    complaint = flags(labels[:, 1])
    if complaint or not bool(torch.isfinite(labels).all()):
        return "second column of the " + complaint if complaint else "some times are NaN or infinite"
    return "" if bool(labels[:, 1].any()) else "no event was seen, so nobody's risk can be told from another's"


def _one_each(labels: torch.Tensor) -> str:
    is_one = labels.ndim == 1 or (labels.ndim == 2 and labels.shape[1] == 1)
    return "" if is_one else f"labels are {_kind(labels)}, expected one a sample"


def logits_of_classes(at: int) -> Misfit:
    """Logits of classes along one dimension, the others as the labels have them."""

    def misfit(outputs: torch.Tensor, labels: torch.Tensor) -> str:
        rest = outputs.shape[:at] + outputs.shape[at + 1 :] if outputs.ndim > at else None
        most = int(labels.max())
        if outputs.ndim == labels.ndim + 1 and rest == labels.shape and most < outputs.shape[at]:
            return ""
        what = "one row a sample and one logit a class" if labels.ndim == 1 else "a logit of each class for each label"
        shape = "" if labels.ndim == 1 else f" of shape {tuple(labels.shape)}"
        found = f"outputs of shape {tuple(outputs.shape)}, labels{shape} up to {most}"
        return f"{found}; expected {what}"

    return misfit


def as_labels(outputs: torch.Tensor, labels: torch.Tensor) -> str:
    """One output a label; (n, 1) for (n,) will do."""
    if outputs.numel() == labels.numel() and len(outputs) == len(labels):
        return ""
    return (
        f"outputs of shape {tuple(outputs.shape)}, labels of shape {tuple(labels.shape)}; expected one output a label"
    )


def one_score(outputs: torch.Tensor, labels: torch.Tensor) -> str:
    """One output a sample."""
    if outputs.numel() == len(labels):
        return ""
    return f"outputs of shape {tuple(outputs.shape)} for {len(labels)} samples; expected one output a sample"


def masks(outputs: torch.Tensor, labels: torch.Tensor) -> str:
    """Logits of classes, or one logit a pixel where there are only 0 and 1."""
    if outputs.ndim == labels.ndim + 1 and outputs.shape[1] == 1:
        return as_labels(outputs, labels)
    return logits_of_classes(1)(outputs, labels)


def anything(*_: torch.Tensor) -> str:
    """No demands: what a function of one's own takes is its own affair."""
    return ""


def _kind(labels: torch.Tensor) -> str:
    return f"{labels.dtype} of shape {tuple(labels.shape)}"
