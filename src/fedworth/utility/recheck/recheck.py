"""A batch is measured, and a few of its cells once more by the plain loop, whatever the route.

In: an oracle, a round, a batch. Out: the batch's utilities, or an error. Measured again are the last cell of the batch
and the one whose members count least, the two ends between which routes differ; with the global model, that is three
plain evaluations a batch. `plain` says how far the two may differ.

A utility that is not finite is measured again by the plain loop too. If it stays so, the error names a client without
whom it would not be, found by trying. So it is where rounding explains a difference as large as the losses themselves:
outputs of 1e14 that nearly cancel give a number by every oracle, and it means nothing by any.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedworth.errors import UtilityError
from fedworth.ledger.ledger import Round
from fedworth.utility.batches import Batch, Measured
from fedworth.utility.oracle import LoopOracle, Oracle, TaskOracle
from fedworth.utility.recheck.plain import PlainRound
from fedworth.utility.server import RuleOracle
from fedworth.utility.weighting import Mixtures


def measured(oracle: Oracle, round_: Round, batch: Batch) -> Measured:
    """The utilities of a batch, checked; an oracle that does not say what it measures on is believed."""
    mixtures = batch.mixtures()
    utilities = oracle.utilities(round_, mixtures)
    if not isinstance(oracle, TaskOracle):
        return Measured(utilities, None)
    plain = plain_round(oracle, round_)
    for row in np.flatnonzero(~np.isfinite(utilities)).tolist():
        utilities[row] = _finite(plain, mixtures, batch, row)
    if not isinstance(oracle, LoopOracle):
        _refuse_disagreement(plain, mixtures, batch, utilities)
    return Measured(utilities, plain.witness)


def plain_round(oracle: TaskOracle, round_: Round) -> "PlainRound":
    """What the plain loop makes of a round, under the server's rule that the oracle knows."""
    return PlainRound(oracle.task, oracle.measure, round_, oracle.model if isinstance(oracle, RuleOracle) else None)


def ends(mixtures: Mixtures) -> list[int]:
    """The rows that are measured again: the last, and the one whose members count least."""
    counts = np.where(mixtures.is_empty, np.inf, mixtures.memberships @ mixtures.weights)
    return sorted({len(mixtures) - 1, int(counts.argmin())})


def _refuse_disagreement(plain: PlainRound, mixtures: Mixtures, batch: Batch, utilities: NDArray[np.float64]) -> None:
    for row in ends(mixtures):
        utility, after = float(utilities[row]), plain.after(mixtures, row)
        instead = plain.disagreement(mixtures, row, utility, after)
        if instead:
            raise UtilityError(
                f"{batch.where(row)}: the fast oracle measures a utility of {utility:.9g}, the plain loop "
                f"{instead}; use --oracle loop, and report it. A module whose answers change from call to call, by "
                "dropout or by other random numbers, cannot be measured by any oracle"
            )
        if plain.is_noise(utility, after):
            cure = _cure(
                plain, mixtures, batch, row, lambda without: plain.is_sure(plain.after(without, 0)), "it is sure"
            )
            raise UtilityError(
                f"{batch.where(row)}: the coalition's model gives outputs of up to {after.largest:.1e}, "
                f"and rounding alone decides its utility; {cure}"
            )


def _finite(plain: PlainRound, mixtures: Mixtures, batch: Batch, row: int) -> float:
    """The plain loop's utility of a cell, or an error that says who makes it infinite."""
    utility = plain.utility(mixtures, row)
    if math.isfinite(utility):
        return utility
    if not np.isfinite(plain.before.losses).all():
        raise UtilityError(
            f"round {batch.round_index}: the global model's loss on the test set is not finite, so no coalition has a "
            "utility; the federation diverged, or the task is another than the one it trained for"
        )
    cure = _cure(plain, mixtures, batch, row, lambda without: math.isfinite(plain.utility(without, 0)), "it is finite")
    where = f"{batch.where(row)}: the loss of the coalition's model on the test set is not finite"
    raise UtilityError(f"{where}; {cure}")


def _cure(
    plain: PlainRound, mixtures: Mixtures, batch: Batch, row: int, is_well: Callable[[Mixtures], bool], well: str
) -> str:
    """Whose absence cures a coalition, found by trying, and what to do."""
    for client in _suspects(plain, mixtures, row):
        without = mixtures.memberships[[row]]
        without[0, client] = False
        if is_well(replace(mixtures, memberships=without)):
            name = batch.clients[client]
            return f"without {name!r} {well}, so leave that client out (--without {name})"
    return "no single client's absence cures it; leave several out (--without CLIENT)"


def _suspects(plain: PlainRound, mixtures: Mixtures, row: int) -> Iterator[int]:
    """The members, those with the largest numbers first."""
    models = {**plain.round_.client_models, **plain.round_.apart_models}

    def size(client: int) -> float:
        return max(float(t.double().abs().max()) for t in models[client].values() if t.numel())

    yield from sorted(np.flatnonzero(mixtures.memberships[row]).tolist(), key=size, reverse=True)
