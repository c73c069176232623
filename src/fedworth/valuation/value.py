"""Value: the utilities go in, and the name of a method; a valuation comes out."""

from fedworth.completion.complete import FactorSettings, complete
from fedworth.completion.completion import Completion
from fedworth.errors import unknown_name
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
    match method:
        case "fedsv":
            return fedsv(matrix, strict=strict)
        case "fedsv-later":
            return fedsv(matrix, without_heard=True, strict=strict)
        case "comfedsv":
            return comfedsv(matrix, completion or complete(matrix, settings), unseen=unseen, strict=strict)
        case "truth":
            return truth(matrix, strict=strict)
        case "heard-round":
            return heard_round(matrix, strict=strict)
        case "leave-one-out":
            return leave_one_out(matrix, strict=strict)
    raise unknown_name("method", method, METHODS)
