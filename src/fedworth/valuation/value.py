"""Value: the utilities go in, and the name of a method; a valuation comes out."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from fedworth.completion.complete import FactorSettings, complete
from fedworth.completion.completion import Completion
from fedworth.errors import ValuationError
from fedworth.names import MethodName, Unseen, checked_name
from fedworth.trail import Trail, fingerprint
from fedworth.utility.matrix import UtilityMatrix
from fedworth.valuation.baselines import heard_round, leave_one_out, truth
from fedworth.valuation.comfedsv import comfedsv
from fedworth.valuation.fedsv import fedsv
from fedworth.valuation.valuation import Valuation

MEASURED: dict[MethodName, Callable[..., Valuation]] = {
    "fedsv": fedsv,
    "fedsv-later": partial(fedsv, without_heard=True),
    "truth": truth,
    "heard-round": heard_round,
    "leave-one-out": leave_one_out,
}
"""The methods that need no completion."""


def value(
    matrix: UtilityMatrix,
    method: MethodName,
    *,
    completion: Completion | None = None,
    settings: FactorSettings | None = None,
    unseen: Unseen = "refuse",
    strict: bool = False,
) -> Valuation:
    """What each client is worth by this method. ComFedSV rests on `completion`, or completes by `settings` first."""
    checked_name("method", method)
    if method == "comfedsv":
        completion = completion or complete(matrix, settings)
        made = comfedsv(matrix, completion, unseen=unseen, strict=strict)
        return replace(made, trail=_trail(matrix, completion))
    return replace(MEASURED[method](matrix, strict=strict), trail=_trail(matrix, None))


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
