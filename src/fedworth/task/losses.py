"""Losses and measures: how a model's outputs are scored against the labels.

    quality = ± Σ over samples of `of` / `n_counted`        − for a loss, + for a measure (higher is better)

`LOSSES` is the registry: a new loss is one entry. Outputs are logits unless the table says otherwise.

    cross-entropy    −log softmax(outputs)[label]
    probabilities    −log outputs[label], for a module that ends in a softmax
    one-vs-rest      Σ over classes of the log loss of "this class or not"; SGDClassifier minimises it
    hinge            Σ over classes of max(0, 1 − y·output), y = 1 for the label and −1 for other classes
    segmentation     cross-entropy, averaged over all pixels that count
    dice             1 − 2 Σ p g / (Σ p + Σ g), averaged over samples and over the classes in a sample's mask
    tokens           cross-entropy, averaged over all tokens that count; a label is the token at its position
    next-token       the same where labels are the texts themselves: each position predicts the next token
    texts            minus the mean log-probability of a text's tokens: outputs are the log-probabilities of the labels
    squared-error    (output − label)², averaged over all labels
    binary           log loss of one logit per sample
    hinge-binary     max(0, 1 − y·output), y = ±1
    multi-label      log loss of every flag's logit, averaged over all flags
    pairwise         mean over pairs of a 1 and a 0 of log(1 + exp(−(s_1 − s_0)))
    cox              minus Cox's partial log-likelihood per observed event (Breslow's ties); outputs are log risks

Measures: `accuracy`, `dice`, `r2`, `absolute-error` (negated), `auc` (ties count half) and `concordance` (Harrell's).
"""

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from fedworth.errors import DataError, unknown_name

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Outputs (n_samples, …) and labels (n_samples, …) → one number per sample, or one number."""

UserFunction = Callable[[torch.Tensor, torch.Tensor], Any]
"""A user's loss or measure: outputs and labels of the whole test set → one number, or one per sample to be averaged."""

Check = Callable[..., str]
"""Says what is wrong with labels, or with outputs beside their labels; an empty string means nothing."""

DEFAULT_LOSS = "cross-entropy"
IGNORED = -100  # a label that does not count, as in PyTorch and Hugging Face
MOST_PAIRS = 1 << 22  # pairs of samples compared in one operation, which limits memory


@dataclass(frozen=True)
class Criterion:
    """Scores outputs: each sample separately, or all together.

    A criterion with `is_whole` takes the outputs of the whole test set. It returns one number (AUC, R², Cox's
    likelihood), or the parts of samples in it, as a user's function may.
    """

    name: str
    of: Function
    is_better_higher: bool = False
    is_whole: bool = False
    is_smooth: bool = True  # has first and second derivatives by the outputs
    counted: Callable[[torch.Tensor], float] = len
    is_own: bool = False  # a function of the user's
    unit: str = ""  # of a mean score, in words that follow its name

    def n_counted(self, labels: torch.Tensor) -> float:
        """What sums over the whole test set are divided by."""
        return 1.0 if self.is_whole else self.counted(labels)

    def total(self, outputs: torch.Tensor, labels: torch.Tensor) -> float:
        """The sum over these samples, or the score of the whole test set; higher is better."""
        found = float(self.of(outputs, labels).sum(dtype=torch.float64))
        return found if self.is_better_higher else -found

    def quality(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean score of these samples as a differentiable tensor; higher is better."""
        mean = self.of(outputs, labels).sum() / self.n_counted(labels)
        return mean if self.is_better_higher else -mean


@dataclass(frozen=True)
class Loss:
    """A criterion to minimise, the labels and outputs that it accepts, and the measures that go with it."""

    criterion: Criterion
    labels: Check
    outputs: Check
    measures: tuple[Criterion, ...] = ()
    over_classes: int | None = None  # adding a constant along this dimension of the outputs changes nothing
    has_classes: bool = False  # whether the label of a sample is its class
    takes_probabilities: bool = True  # False: outputs must be logits, and a module that ends in a softmax is refused


# What labels must look like


def _one_class(labels: torch.Tensor) -> str:
    if labels.dtype != torch.int64 or labels.ndim != 1:
        return f"labels are {_kind(labels)}, expected one int64 class per sample"
    least = int(labels.min())
    return f"found label {least}, expected 0 or more; recode it" if least < 0 else ""


def _class_map(labels: torch.Tensor) -> str:
    if labels.dtype != torch.int64 or labels.ndim < 2:
        return f"labels are {_kind(labels)}, expected an int64 class for every pixel or token: (n_samples, …)"
    counted = labels[labels != IGNORED]
    if len(counted) == 0:
        return f"all labels are {IGNORED}, which does not count"
    least = int(counted.min())
    return f"found label {least}, expected 0 or more, or {IGNORED} for what does not count" if least < 0 else ""


def _texts(labels: torch.Tensor) -> str:
    problem = _class_map(labels)
    if problem or bool((labels[:, 1:] != IGNORED).any(dim=1).all()):
        return problem
    return f"a text has no label that counts after its first token, expected one at least that is not {IGNORED}"


def _zero_or_one(labels: torch.Tensor) -> str:
    is_flag = bool(((labels == 0) | (labels == 1)).all())
    return "" if is_flag else f"labels are {_kind(labels)} with other values than 0 and 1; expected only 0 and 1"


def _both_flags(labels: torch.Tensor) -> str:
    """0 or 1 for each sample, and some of each: only pairs of both can be ranked."""
    is_one_each = labels.ndim == 1 or (labels.ndim == 2 and labels.shape[1] == 1)
    problem = _zero_or_one(labels) or ("" if is_one_each else f"labels are {_kind(labels)}, expected one per sample")
    if not problem and bool((labels == labels.view(-1)[0]).all()):
        return f"all labels are {int(labels.view(-1)[0])}, so there is nothing to rank; expected some 0 and some 1"
    return problem


def _numbers(labels: torch.Tensor) -> str:
    if not labels.is_floating_point():
        return f"labels are {_kind(labels)}, expected floating point numbers"
    return "" if bool(torch.isfinite(labels).all()) else "some labels are NaN or infinite"


def _survival(labels: torch.Tensor) -> str:
    if labels.ndim != 2 or labels.shape[1] != 2:
        return f"labels are {_kind(labels)}, expected (n_samples, 2): a time, and 1 if the event was seen, 0 if not"
    problem = _zero_or_one(labels[:, 1])
    if problem or not bool(torch.isfinite(labels).all()):
        return "second column of the " + problem if problem else "some times are NaN or infinite"
    return "" if bool(labels[:, 1].any()) else "no event was seen, so risks cannot be compared"


def _anything(*_: torch.Tensor) -> str:
    """No check: a user's function decides what it takes."""
    return ""


def _kind(labels: torch.Tensor) -> str:
    return f"{labels.dtype} of shape {tuple(labels.shape)}"


# What outputs must look like beside the labels


def _logits(dimension: int) -> Check:
    """One logit per class along `dimension`; the other dimensions are those of the labels."""

    def check(outputs: torch.Tensor, labels: torch.Tensor) -> str:
        rest = outputs.shape[:dimension] + outputs.shape[dimension + 1 :] if outputs.ndim > dimension else None
        largest = int(labels.max())
        if outputs.ndim == labels.ndim + 1 and rest == labels.shape and largest < outputs.shape[dimension]:
            return ""
        what = "one row per sample, one logit per class" if labels.ndim == 1 else "a logit of each class for each label"
        shape = "" if labels.ndim == 1 else f" of shape {tuple(labels.shape)}"
        return (
            f"outputs of shape {tuple(outputs.shape)}, labels{shape} up to {largest}; expected {what}, labels from 0 up"
        )

    return check


def _as_labels(outputs: torch.Tensor, labels: torch.Tensor) -> str:
    """One output per label; outputs (n, 1) fit labels (n,)."""
    if outputs.numel() == labels.numel() and len(outputs) == len(labels):
        return ""
    shapes = f"outputs of shape {tuple(outputs.shape)}, labels of shape {tuple(labels.shape)}"
    return f"{shapes}; expected one output per label"


def _one_score(outputs: torch.Tensor, labels: torch.Tensor) -> str:
    if outputs.numel() == len(labels):
        return ""
    return f"outputs of shape {tuple(outputs.shape)} for {len(labels)} samples; expected one output per sample"


def _masks(outputs: torch.Tensor, labels: torch.Tensor) -> str:
    """Logits of classes, or one logit per pixel where labels are 0 and 1."""
    if outputs.ndim == labels.ndim + 1 and outputs.shape[1] == 1:
        return _as_labels(outputs, labels)
    return _logits(1)(outputs, labels)


# Classes: of a sample, of every pixel, of every token


def _cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if outputs.ndim != 2:
        return F.cross_entropy(outputs, labels, reduction="none")
    # with the classes before the samples, as of an image, torch takes a tenth of the time
    return F.cross_entropy(outputs.T.contiguous()[None], labels[None], reduction="none")[0]


def _one_vs_rest(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    targets = F.one_hot(labels, outputs.shape[1]).to(outputs.dtype)
    return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").sum(dim=1)


def _hinge(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    sign = 2 * F.one_hot(labels, outputs.shape[1]).to(outputs.dtype) - 1
    return (1 - sign * outputs).clamp(min=0).sum(dim=1)


def _pixels(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    losses = F.cross_entropy(outputs, labels, reduction="none", ignore_index=IGNORED)
    return losses.flatten(1).sum(dim=1, dtype=torch.float64)


def _right_pixels(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(dim=1) == labels).flatten(1).sum(dim=1)


def _tokens(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    # with the words last, as they are, torch takes a tenth of the time that it takes with the words before the places
    losses = F.cross_entropy(outputs.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=IGNORED)
    return losses.view(labels.shape).sum(dim=1, dtype=torch.float64)


def _right_tokens(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(dim=2) == labels).sum(dim=1)


def _of_next(of: Function) -> Function:
    """A function of tokens as one of texts, in which each position predicts the next token and the last one nothing."""
    return lambda outputs, labels: of(outputs, F.pad(labels[:, 1:], (0, 1), value=IGNORED))


def _mean_over_text(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Minus the mean over the tokens of each text; nothing predicts the first one."""
    counts = labels[:, 1:] != IGNORED
    return -(outputs[:, 1:] * counts).sum(dim=1, dtype=torch.float64) / counts.sum(dim=1)


def _n_labels(labels: torch.Tensor) -> float:
    """How many pixels or tokens count."""
    return float((labels != IGNORED).sum())


def _n_next_labels(labels: torch.Tensor) -> float:
    return _n_labels(labels[:, 1:])


def _soft_dice(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if outputs.shape[1] == 1:
        outputs = torch.cat([torch.zeros_like(outputs), outputs], dim=1)
    return 1 - _overlap(torch.softmax(outputs, dim=1), labels)


def _hard_dice(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    classes = outputs.argmax(dim=1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).long()
    n_classes = max(2, outputs.shape[1])
    return _overlap(F.one_hot(classes, n_classes).movedim(-1, 1).to(outputs.dtype), labels)


def _overlap(shares: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """(n_samples,): the Dice coefficient, averaged over the classes in a sample's mask."""
    counts = (labels != IGNORED)[:, None]
    true = F.one_hot(labels.clamp(min=0), shares.shape[1]).movedim(-1, 1).to(shares.dtype) * counts
    shares = shares * counts
    both, sizes = (t.flatten(2).sum(dim=2) for t in (shares * true, shares + true))  # (n_samples, n_classes)
    present = true.flatten(2).any(dim=2)
    scores = torch.where(present, 2 * both / sizes.clamp(min=1e-12), torch.zeros_like(both))
    return scores.sum(dim=1) / present.sum(dim=1).clamp(min=1)


# Numbers and flags: one output per label


def _in_columns(outputs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both as (n_samples, n_labels), labels in the outputs' precision."""
    return outputs.reshape(len(labels), -1), labels.reshape(len(labels), -1).to(outputs.dtype)


def _mean_over_labels(of: Function) -> Function:
    """The mean over a sample's labels of a function of outputs and labels, (n_samples, n_labels) each."""
    return lambda outputs, labels: of(*_in_columns(outputs, labels)).mean(dim=1)


_squared_error = _mean_over_labels(lambda outputs, targets: (outputs - targets).square())
_minus_absolute_error = _mean_over_labels(lambda outputs, targets: -(outputs - targets).abs())
_flags = _mean_over_labels(lambda o, targets: F.binary_cross_entropy_with_logits(o, targets, reduction="none"))
_right_flags = _mean_over_labels(lambda outputs, targets: ((outputs > 0) == (targets > 0)).double())
_binary_hinge = _mean_over_labels(lambda outputs, targets: (1 - (2 * targets - 1) * outputs).clamp(min=0))


def _r2(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """R² of all labels together, each column against its own mean."""
    outputs, targets = (t.double() for t in _in_columns(outputs, labels))
    spread = (targets - targets.mean(dim=0)).square().sum()
    return 1 - (outputs - targets).square().sum() / spread


# Rankings: functions of the whole test set


def _ones_and_zeros(outputs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scores, flags = outputs.reshape(-1), labels.reshape(-1) > 0
    return scores[flags], scores[~flags]


def _pairwise(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    ones, zeros = _ones_and_zeros(outputs.double(), labels)
    rows = torch.split(ones, max(1, MOST_PAIRS // max(1, len(zeros))))
    total = torch.stack([F.softplus(zeros - row[:, None]).sum() for row in rows]).sum()
    return total / (len(ones) * len(zeros))


def _auc(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    ones, zeros = _ones_and_zeros(outputs, labels)
    ordered = zeros.contiguous().sort().values
    below, upto = (torch.searchsorted(ordered, ones.contiguous(), right=right) for right in (False, True))
    return (below + upto).sum(dtype=torch.float64) / (2 * len(ones) * len(zeros))


def _cox(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    risks, times, seen = outputs.reshape(-1).double(), labels[:, 0], labels[:, 1] > 0
    order = torch.argsort(times, descending=True, stable=True)
    at_risk = torch.logcumsumexp(risks[order], dim=0)  # of everyone who survives at least as long
    falling = -times[order]  # ascending
    last = torch.searchsorted(falling.contiguous(), falling.contiguous(), right=True) - 1  # equal times share a set
    events = seen[order]
    return (at_risk[last] - risks[order])[events].sum() / events.sum()


def _concordance(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    risks, times, seen = outputs.reshape(-1), labels[:, 0], labels[:, 1] > 0
    right = pairs = torch.zeros((), dtype=torch.float64, device=outputs.device)
    for some in torch.split(torch.nonzero(seen).ravel(), max(1, MOST_PAIRS // len(times))):
        later = times > times[some][:, None]  # (n_some, n_samples): comparable pairs
        ahead = risks[some][:, None] - risks
        right = right + (later & (ahead > 0)).sum() + 0.5 * (later & (ahead == 0)).sum()
        pairs = pairs + later.sum()
    return right / pairs


PER_SAMPLE, NATS, OF_LABELS = "per test sample", "in nats per test sample", "in units of the labels"


def _measure(name: str, of: Function, unit: str, **more: Any) -> Criterion:
    return Criterion(name, of, is_better_higher=True, unit=unit, **{"is_smooth": False, **more})


CROSS_ENTROPY = Criterion("cross-entropy", _cross_entropy, unit=NATS)
ACCURACY = _measure(
    "accuracy", lambda outputs, labels: outputs.argmax(dim=1) == labels, "as a share of the test samples"
)
_PROBABILITIES = Criterion("probabilities", lambda o, labels: -o.gather(1, labels[:, None])[:, 0].log(), unit=NATS)
_DICE = _measure("dice", _hard_dice, PER_SAMPLE)
_PIXEL_ACCURACY = _measure("accuracy", _right_pixels, "as a share of the pixels", counted=_n_labels)
_TOKEN_ACCURACY = _measure("accuracy", _right_tokens, "as a share of the tokens", counted=_n_labels)
_NEXT_ACCURACY = _measure("accuracy", _of_next(_right_tokens), "as a share of the tokens", counted=_n_next_labels)
_ABSOLUTE_ERROR = _measure("absolute-error", _minus_absolute_error, OF_LABELS)
_FLAG_ACCURACY = _measure("accuracy", _right_flags, "as a share of the labels")
_R2 = _measure("r2", _r2, "as a share of the variance of the labels", is_whole=True, is_smooth=True)
_AUC = _measure("auc", _auc, "as a share of the pairs of samples", is_whole=True)
_CONCORDANCE = _measure("concordance", _concordance, "as a share of the pairs of samples", is_whole=True)
_SEGMENTATION = Criterion("segmentation", _pixels, counted=_n_labels, unit="in nats per pixel")
_TOKENS = Criterion("tokens", _tokens, counted=_n_labels, unit="in nats per token")
_NEXT_TOKEN = Criterion("next-token", _of_next(_TOKENS.of), counted=_n_next_labels, unit="in nats per token")
_TEXTS = Criterion("texts", _mean_over_text, unit="in nats per token, all texts counting alike")
_SQUARED_ERROR = Criterion("squared-error", _squared_error, unit="in squared units of the labels")
_HINGE_BINARY = Criterion("hinge-binary", _binary_hinge, is_smooth=False, unit=PER_SAMPLE)
_MULTI_LABEL = Criterion("multi-label", _flags, unit="in nats per label")
_PAIRWISE = Criterion("pairwise", _pairwise, is_whole=True, unit="in nats per pair of samples")
_COX = Criterion("cox", _cox, is_whole=True, unit="in nats per observed event")

# What losses of one kind have in common
_CLASSES: dict[str, Any] = {
    "labels": _one_class, "outputs": _logits(1), "measures": (ACCURACY,), "has_classes": True
}  # fmt: skip
_FLAGS: dict[str, Any] = {
    "labels": _zero_or_one, "outputs": _as_labels, "measures": (_FLAG_ACCURACY, _AUC), "has_classes": True
}  # fmt: skip
_LOGITS: dict[str, Any] = {"takes_probabilities": False}

LOSSES: dict[str, Loss] = {
    loss.criterion.name: loss
    for loss in (
        Loss(CROSS_ENTROPY, **_CLASSES, **_LOGITS, over_classes=1),
        Loss(_PROBABILITIES, **_CLASSES),
        Loss(Criterion("one-vs-rest", _one_vs_rest, unit=NATS), **_CLASSES),
        Loss(Criterion("hinge", _hinge, is_smooth=False, unit=PER_SAMPLE), **_CLASSES),
        Loss(_SEGMENTATION, _class_map, _logits(1), (_PIXEL_ACCURACY, _DICE), 1, **_LOGITS),
        Loss(Criterion("dice", _soft_dice, unit=PER_SAMPLE), _class_map, _masks, (_DICE,), 1, **_LOGITS),
        Loss(_TOKENS, _class_map, _logits(2), (_TOKEN_ACCURACY,), 2, **_LOGITS),
        Loss(_NEXT_TOKEN, _class_map, _logits(2), (_NEXT_ACCURACY,), 2, **_LOGITS),
        Loss(_TEXTS, _texts, _as_labels),
        Loss(_SQUARED_ERROR, _numbers, _as_labels, (_R2, _ABSOLUTE_ERROR)),
        Loss(Criterion("binary", _flags, unit=NATS), **_FLAGS, **_LOGITS),
        Loss(_HINGE_BINARY, **_FLAGS),
        Loss(_MULTI_LABEL, _zero_or_one, _as_labels, (_FLAG_ACCURACY,), **_LOGITS),
        Loss(_PAIRWISE, _both_flags, _one_score, (_AUC,)),
        Loss(_COX, _survival, _one_score, (_CONCORDANCE,)),
    )
}


# Functions of the user's own


def loss_of(loss: str | UserFunction) -> Loss:
    """The loss of this name, or the loss made of a user's function."""
    if not isinstance(loss, str):
        return Loss(user_criterion(loss, is_better_higher=False), _anything, _anything)
    if loss not in LOSSES:
        raise unknown_name("loss", loss, LOSSES)
    return LOSSES[loss]


def user_criterion(function: UserFunction, *, is_better_higher: bool) -> Criterion:
    """A criterion made of a user's function, known by the function's name.

    Numbers of samples are divided by the number of samples, so that they add up to their mean. The function sees the
    whole test set at once, so it need not know how the test set is cut into batches.
    """

    def of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        try:
            given = function(outputs.clone(), labels.clone())  # it may change them in place
        except Exception as error:
            failure = f"failed on {len(labels)} samples with {type(error).__name__}: {error}"
            raise DataError(f"{name_of(function)}: {failure}") from error
        try:
            found = torch.as_tensor(given)
        except (TypeError, ValueError, RuntimeError):
            kind = f"gave a {type(given).__name__} for {len(labels)} samples"
            raise DataError(
                f"{name_of(function)}: {kind}, expected one number or one per sample; see what it returns"
            ) from None
        if found.is_complex() or found.ndim > 1 or (found.ndim == 1 and len(found) != len(labels)):
            shape = f"gave {found.dtype} of shape {tuple(found.shape)} for {len(labels)} samples"
            raise DataError(f"{name_of(function)}: {shape}, expected one number or one per sample")
        return found.double() / len(labels) if found.ndim else found.double()

    unit = getattr(function, "unit", "in its own unit")
    return Criterion(name_of(function), of, is_better_higher, is_whole=True, is_smooth=False, is_own=True, unit=unit)


def name_of(function: Callable[..., Any]) -> str:
    """A function's name, or the name of its type."""
    return str(getattr(function, "__name__", type(function).__name__))


def identity_of(function: Callable[..., Any]) -> str:
    """The sha256 of a function's name and, where it can be read, its source."""
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        source = ""
    return hashlib.sha256(f"{name_of(function)}\n{source}".encode()).hexdigest()
