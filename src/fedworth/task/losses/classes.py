"""Losses over classes: of a sample, of every pixel, of every token. Outputs are logits unless said otherwise.

cross-entropy    −log softmax(outputs)[label]
probabilities    −log outputs[label], for a module that ends in a softmax
one-vs-rest      Σ over classes of the log loss of "this class or not", what SGDClassifier minimises
hinge            Σ over classes of max(0, 1 − y·output), y = 1 for the label and −1 for others
segmentation     cross-entropy, the mean over all pixels that count
dice             1 − 2 Σ p g / (Σ p + Σ g), the mean over samples and over the classes that a sample's mask has
tokens           cross-entropy, the mean over all tokens that count; a label says what stands there
next-token       the same where labels are the texts themselves: a place is judged by what it says of the next
"""

import torch
import torch.nn.functional as F

from fedworth.task.losses.criterion import Criterion, Loss
from fedworth.task.losses.shapes import IGNORED, class_map, logits_of_classes, masks, one_class


def _cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs, labels, reduction="none")


def _is_right(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return outputs.argmax(dim=1) == labels


def _of_probabilities(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return -outputs.gather(1, labels[:, None])[:, 0].log()


def _against_rest(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    wanted = F.one_hot(labels, outputs.shape[1]).to(outputs.dtype)
    return F.binary_cross_entropy_with_logits(outputs, wanted, reduction="none").sum(dim=1)


def _hinge(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    sign = 2 * F.one_hot(labels, outputs.shape[1]).to(outputs.dtype) - 1
    return (1 - sign * outputs).clamp(min=0).sum(dim=1)


def _of_pixels(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    losses = F.cross_entropy(outputs, labels, reduction="none", ignore_index=IGNORED)
    return losses.flatten(1).sum(dim=1, dtype=torch.float64)


def _right_pixels(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(dim=1) == labels).flatten(1).sum(dim=1)


def _of_tokens(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return _of_pixels(outputs.transpose(1, 2), labels)


def _right_tokens(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return _right_pixels(outputs.transpose(1, 2), labels)


def _of_next(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return _of_tokens(outputs[:, :-1], labels[:, 1:])


def _right_next(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return _right_tokens(outputs[:, :-1], labels[:, 1:])


def _n_labels(labels: torch.Tensor) -> float:
    """Pixels or tokens that count."""
    return float((labels != IGNORED).sum())


def _n_next(labels: torch.Tensor) -> float:
    return _n_labels(labels[:, 1:])


def _soft_dice(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if outputs.shape[1] == 1:
        outputs = torch.cat([torch.zeros_like(outputs), outputs], dim=1)
    return 1 - _overlap(torch.softmax(outputs, dim=1), labels)


def _hard_dice(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    found = outputs.argmax(dim=1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).long()
    n_classes = max(2, outputs.shape[1])
    return _overlap(F.one_hot(found, n_classes).movedim(-1, 1).to(outputs.dtype), labels)


def _overlap(shares: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """(n_samples,): the Dice coefficient, averaged over the classes in a sample's mask."""
    counts = (labels != IGNORED)[:, None]
    true = F.one_hot(labels.clamp(min=0), shares.shape[1]).movedim(-1, 1).to(shares.dtype) * counts
    shares = shares * counts
    both, sizes = (t.flatten(2).sum(dim=2) for t in (shares * true, shares + true))  # (n_samples, n_classes)
    present = true.flatten(2).any(dim=2)
    scores = torch.where(present, 2 * both / sizes.clamp(min=1e-12), torch.zeros_like(both))
    return scores.sum(dim=1) / present.sum(dim=1).clamp(min=1)


CROSS_ENTROPY = Criterion("cross-entropy", _cross_entropy)
ACCURACY = Criterion("accuracy", _is_right, is_better_higher=True, is_smooth=False)
_PIXELS = Criterion("accuracy", _right_pixels, is_better_higher=True, is_smooth=False, counted=_n_labels)
_TOKENS = Criterion("accuracy", _right_tokens, is_better_higher=True, is_smooth=False, counted=_n_labels)
_NEXT = Criterion("accuracy", _right_next, is_better_higher=True, is_smooth=False, counted=_n_next)
_DICE = Criterion("dice", _hard_dice, is_better_higher=True, is_smooth=False)

OVER_CLASSES = (
    Loss(CROSS_ENTROPY, one_class, logits_of_classes(1), (ACCURACY,), 1, takes_probabilities=False),
    Loss(Criterion("probabilities", _of_probabilities), one_class, logits_of_classes(1), (ACCURACY,)),
    Loss(Criterion("one-vs-rest", _against_rest), one_class, logits_of_classes(1), (ACCURACY,)),
    Loss(Criterion("hinge", _hinge, is_smooth=False), one_class, logits_of_classes(1), (ACCURACY,)),
    Loss(
        Criterion("segmentation", _of_pixels, counted=_n_labels),
        class_map,
        logits_of_classes(1),
        (_PIXELS, _DICE),
        1,
        takes_probabilities=False,
    ),
    Loss(Criterion("dice", _soft_dice), class_map, masks, (_DICE,), 1, takes_probabilities=False),
    Loss(
        Criterion("tokens", _of_tokens, counted=_n_labels),
        class_map,
        logits_of_classes(2),
        (_TOKENS,),
        2,
        takes_probabilities=False,
    ),
    Loss(
        Criterion("next-token", _of_next, counted=_n_next),
        class_map,
        logits_of_classes(2),
        (_NEXT,),
        2,
        takes_probabilities=False,
    ),
)
