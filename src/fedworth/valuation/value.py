"""Value the clients. In: the utilities, and the name of a method. Out: a valuation."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from fedworth.completion.completion import Completion
from fedworth.completion.factors import FactorSettings, complete, with_errors
from fedworth.errors import ValuationError
from fedworth.games.matrix import UtilityMatrix
from fedworth.names import MethodName, Unseen, checked_name
from fedworth.threads import one_blas_thread
from fedworth.trail import Trail, fingerprint
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

COMPLETED: tuple[MethodName, ...] = ("comfedsv", "comfedsv-factors")
"""Those that rest on one."""


@one_blas_thread()
def value(
    matrix: UtilityMatrix,
    method: MethodName,
    *,
    completion: Completion | None = None,
    settings: FactorSettings | None = None,
    unseen: Unseen = "refuse",
    strict: bool = False,
) -> Valuation:
    """What each client is worth by one method.

    Args:
        matrix: The measured utilities.
        method: `comfedsv`, `comfedsv-factors`, `fedsv`, `fedsv-later`, `truth`, `heard-round` or `leave-one-out`.
        completion: What ComFedSV rests on; factors are made if it is not given.
        settings: How those factors are made.
        unseen: Coalitions that no round has shown: `refuse`, or count as `zero`.
        strict: Refuse if a client was never heard.

    Returns:
        The values, how sure they are, and what to mind.

    Example:
        fedworth.value(utilities, "fedsv")["north"].value
    """
    checked_name("method", method)
    if method in MEASURED:
        return replace(MEASURED[method](matrix, strict=strict), trail=_trail(matrix, None))
    completion = completion or with_errors(matrix, complete(matrix, settings))
    kind = completion.summary()["kind"]
    if method == "comfedsv-factors" and kind != "factors":
        raise ValuationError(f"comfedsv-factors: the completion is one by {kind}; expected factors")
    made = comfedsv(matrix, completion, method=method, unseen=unseen, strict=strict)
    return replace(made, trail=_trail(matrix, completion))


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
