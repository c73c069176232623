"""A recomputed aggregate against the recorded one: the gap between them, beyond float error.

The gap is ‖A − w^{t+1}‖ / ‖w^{t+1} − w^t‖ over all tensors of floats; integers are counters, which servers round, cast
or zero as they like. Within FLOAT_STEPS units in the last place of w^{t+1}, plus a ten-thousandth of the update, they
are the same. Where a private server adds noise, what is left over must be as large as the noise is said to be.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedworth.ledger.ledger import Model, Round
from fedworth.task.rules.rule import Arrays

FLOAT_STEPS = 16
OF_UPDATE = 1e-4
MASKED = 50.0
"""Updates that are so much longer than what the server made of them, and as long as the model itself, are masks: in a
federation that has converged, updates cancel as well, but none moves the weights by so much."""


@dataclass(frozen=True)
class RoundCheck:
    """One round's recomputed aggregate against the recorded one; `gap` is None where there is nothing to compare."""

    number: int
    gap: float | None
    is_same: bool
    remark: str = ""
    is_masked: bool = False  # the answers hide the clients' models, also where their sum is right


def compared(round_: Round, predicted: Arrays, following: Model, noise: float) -> RoundCheck:
    """How the server's recorded model compares with what its rule makes of the participants' models."""
    floats = [name for name in round_.global_model if _is_float(name, round_)]
    pairs = [(predicted[name], following[name], round_.global_model[name]) for name in floats if name in following]
    if len(pairs) < len(floats) or any(np.shape(p) != tuple(f.shape) for p, f, _ in pairs):
        return RoundCheck(round_.entry.number, float("inf"), False, "the next model has other tensors")
    distance = _norm(p - float64_of(f) for p, f, _ in pairs)
    update = _norm(float64_of(f) - float64_of(w) for _, f, w in pairs)
    room = FLOAT_STEPS * _norm(_step_size(f, round_, name) for name, (_, f, _) in zip(floats, pairs, strict=True))
    if noise > 0:
        return _noisy(round_, distance, noise, sum(np.size(p) for p, _, _ in pairs))
    is_same = distance <= room + OF_UPDATE * update
    gap = distance / update if update > 0 else (0.0 if is_same else float("inf"))
    is_masked = _is_masked(round_, update)
    return RoundCheck(round_.entry.number, gap, is_same, "" if is_same else _hint(round_, is_masked), is_masked)


def _noisy(round_: Round, distance: float, noise: float, n_numbers: int) -> RoundCheck:
    """The root mean square of n draws of noise is σ(1 ± 1/√(2n)); six such deviations are allowed."""
    gap = abs(distance / (noise * np.sqrt(n_numbers)) - 1)
    return RoundCheck(round_.entry.number, float(gap), bool(gap <= 6 / np.sqrt(2 * n_numbers) + 1e-3))


def _hint(round_: Round, is_masked: bool) -> str:
    """What may be behind a gap, as far as the round shows it."""
    if round_.entry.quarantined:
        return "answers that are quarantined here may have been averaged by the server"
    return "the answers look masked (secure aggregation)" if is_masked else ""


def _is_masked(round_: Round, update: float) -> bool:
    """Whether every answer is far longer than what became of all of them, and as long as the model itself."""
    models = list(round_.client_models.values())
    least = max(MASKED * update, _norm(float64_of(tensor) for tensor in round_.global_model.values()))
    if len(models) < 2 or least == 0:
        return False
    return all(
        _norm(float64_of(tensor) - float64_of(round_.global_model[name]) for name, tensor in model.items()) > least
        for model in models
    )


def _is_float(name: str, round_: Round) -> bool:
    models = round_.client_models.values()
    return all(model[name].is_floating_point() for model in models) and round_.global_model[name].is_floating_point()


def _step_size(following: torch.Tensor, round_: Round, name: str) -> NDArray[Any]:
    """How far apart neighbouring floats are around each number, in the coarsest precision that it went through."""
    models = [following, round_.global_model[name], *(model[name] for model in round_.client_models.values())]
    return max(torch.finfo(t.dtype).eps for t in models if t.is_floating_point()) * float64_of(following)


def float64_of(tensor: torch.Tensor) -> NDArray[Any]:
    """A tensor as numbers of double precision."""
    return np.asarray(tensor.to(torch.float64).numpy())


def _norm(arrays: Iterable[NDArray[Any]]) -> float:
    return float(np.sqrt(sum(float(np.sum(np.square(array, dtype=np.float64))) for array in arrays)))
