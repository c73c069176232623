"""Losses of the order in which a model puts samples; they look at the whole test set at once.

pairwise       mean over pairs of a 1 and a 0 of log(1 + exp(−(s_1 − s_0))); measured by AUC
cox            minus Cox's partial log-likelihood a seen event (Breslow where times are equal); outputs are log risks

auc            the share of pairs in which the 1 has the higher score, ties counting half
concordance    the share of comparable pairs in which who had the event earlier has the higher risk (Harrell)
"""

import torch
import torch.nn.functional as F

from fedworth.task.losses.criterion import Criterion, Loss
from fedworth.task.losses.shapes import both_flags, one_score, survival

PAIRS = 1 << 22
"""Pairs that are looked at together."""


def _two_sides(outputs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scores, flags = outputs.reshape(-1), labels.reshape(-1) > 0
    return scores[flags], scores[~flags]


def _pairwise(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    ones, zeros = _two_sides(outputs.double(), labels)
    rows = torch.split(ones, max(1, PAIRS // max(1, len(zeros))))
    total = torch.stack([F.softplus(zeros - row[:, None]).sum() for row in rows]).sum()
    return total / (len(ones) * len(zeros))


def _auc(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    ones, zeros = _two_sides(outputs, labels)
    ordered = zeros.contiguous().sort().values
    below, upto = (torch.searchsorted(ordered, ones.contiguous(), right=right) for right in (False, True))
    return (below + upto).sum(dtype=torch.float64) / (2 * len(ones) * len(zeros))


def _cox(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    risks, times, seen = outputs.reshape(-1).double(), labels[:, 0], labels[:, 1] > 0
    order = torch.argsort(times, descending=True, stable=True)
    at_risk = torch.logcumsumexp(risks[order], dim=0)  # of those who last at least as long
    falling = -times[order]  # ascending
    last = torch.searchsorted(falling.contiguous(), falling.contiguous(), right=True) - 1  # equal times share a set
    events = seen[order]
    return (at_risk[last] - risks[order])[events].sum() / events.sum()


def _concordance(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    risks, times, seen = outputs.reshape(-1), labels[:, 0], labels[:, 1] > 0
    right = pairs = torch.zeros((), dtype=torch.float64, device=outputs.device)
    for some in torch.split(torch.nonzero(seen).ravel(), max(1, PAIRS // len(times))):
        later = times > times[some][:, None]  # (n_some, n_samples): comparable pairs
        ahead = risks[some][:, None] - risks
        right = right + (later & (ahead > 0)).sum() + 0.5 * (later & (ahead == 0)).sum()
        pairs = pairs + later.sum()
    return right / pairs.clamp(min=1)


AUC = Criterion("auc", _auc, is_better_higher=True, is_whole=True, is_smooth=False)
_CONCORDANCE = Criterion("concordance", _concordance, is_better_higher=True, is_whole=True, is_smooth=False)

OF_ORDERS = (
    Loss(Criterion("pairwise", _pairwise, is_whole=True), both_flags, one_score, (AUC,)),
    Loss(Criterion("cox", _cox, is_whole=True), survival, one_score, (_CONCORDANCE,)),
)
