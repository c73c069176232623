"""Value: the utilities go in, and the name of a method; a valuation comes out."""

from dataclasses import replace

from fedworth.completion.complete import FactorSettings, complete
from fedworth.completion.completion import Completion
from fedworth.errors import ValuationError, unknown_name
from fedworth.trail import Trail, fingerprint
from fedworth.utility.matrix import UtilityMatrix
from fedworth.valuation.baselines import heard_round, leave_one_out, truth
from fedworth.valuation.comfedsv import comfedsv
from fedworth.valuation.fedsv import fedsv
from fedworth.valuation.valuation import BASES, Valuation

METHODS = tuple(BASES)


def value(
    matrix: UtilityMatrix,
    method: str,
    *,
    completion: Completion | None = None,
    settings: FactorSettings | None = None,
    unseen: str = "refuse",
    strict: bool = False,
) -> Valuation:
    """What each client is worth by this method. ComFedSV rests on `completion`, or completes by `settings` first."""
    if method == "comfedsv":
        completion = completion or complete(matrix, settings)
        made = comfedsv(matrix, completion, unseen=unseen, strict=strict)
        return replace(made, trail=_trail(matrix, completion))
    return replace(_valued(matrix, method, strict), trail=_trail(matrix, None))


def _valued(matrix: UtilityMatrix, method: str, strict: bool) -> Valuation:
    match method:
        case "fedsv":
            return fedsv(matrix, strict=strict)
        case "fedsv-later":
            return fedsv(matrix, without_heard=True, strict=strict)
        case "truth":
            return truth(matrix, strict=strict)
        case "heard-round":
            return heard_round(matrix, strict=strict)
        case "leave-one-out":
            return leave_one_out(matrix, strict=strict)
    raise unknown_name("method", method, METHODS)


def _trail(matrix: UtilityMatrix, completion: Completion | None) -> Trail | None:
    """Where the values come from; a completion of other utilities is refused."""
    if matrix.trail is None:
        return None
    utilities, before = fingerprint(matrix), getattr(completion, "trail", None)
    if before is not None and before.utilities != utilities:
        raise ValuationError("the completion is of other utilities than these; complete these ones")
    return replace(
        matrix.trail, utilities=utilities, completion=None if completion is None else fingerprint(completion)
    )
