"""A batch is measured, and a few of its cells once more by the plain loop, whatever the route.

In: an oracle, a round, a batch. Out: the batch's utilities, or an error. Measured again are the last cell of the batch
and the one whose members count least, the two ends between which routes differ; with the global model, that is three
plain evaluations a batch. `plain` says how far the two may differ. If a client's numbers stand out, the cell in which
it counts most comes on top. The plain loop itself is no exception: a module of chance gives another number each time.

A utility that is not finite is measured again by the plain loop too. If it stays so, the error names a client without
whom it would not be, found by trying. So it is where rounding explains a difference as large as the losses themselves:
outputs of 1e14 that nearly cancel give a number by every oracle, and it means nothing by any.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch

from fedworth.arrays import Utilities
from fedworth.errors import UtilityError
from fedworth.ledger.ledger import Round
from fedworth.oracle.batches import Batch, Measured
from fedworth.oracle.oracle import LoopOracle, Oracle, TaskOracle, threads_of
from fedworth.oracle.recheck.plain import PlainRound
from fedworth.oracle.server import RuleOracle
from fedworth.oracle.weighting import Mixtures

STANDS_OUT = 10.0
"""A client does whose largest number is so many times the middle client's."""


def measured(oracle: Oracle, round_: Round, batch: Batch) -> Measured:
    """The utilities of a batch, checked; an oracle that does not say what it measures on is believed."""
    with threads_of(oracle):
        return _checked(oracle, round_, batch, oracle.utilities(round_, batch.mixtures()).sum(axis=1))


def checked(oracle: Oracle, round_: Round, batch: Batch, utilities: Utilities) -> Measured:
    """The same, of utilities that the oracle has measured together with others."""
    with threads_of(oracle):
        return _checked(oracle, round_, batch, utilities)


def _checked(oracle: Oracle, round_: Round, batch: Batch, utilities: Utilities) -> Measured:
    if not isinstance(oracle, TaskOracle):
        return Measured(utilities, None)
    mixtures, plain = batch.mixtures(), plain_round(oracle, round_)
    for row in np.flatnonzero(~np.isfinite(utilities)).tolist():
        utilities[row] = _finite(plain, mixtures, batch, row)
    for row in sorted({*ends(mixtures), *_outlying(plain, mixtures)}):
        _refuse_wrong(plain, mixtures, batch, row, float(utilities[row]), is_plain=isinstance(oracle, LoopOracle))
    return Measured(utilities, plain.witness)


def plain_round(oracle: TaskOracle, round_: Round) -> "PlainRound":
    """What the plain loop makes of a round, under the server's rule that the oracle knows."""
    return PlainRound(oracle.task, oracle.measure, round_, oracle.model if isinstance(oracle, RuleOracle) else None)


def ends(mixtures: Mixtures) -> list[int]:
    """The rows that are measured again: the last, and the one whose members count least."""
    counts = np.where(mixtures.is_empty, np.inf, mixtures.memberships @ mixtures.weights)
    return sorted({len(mixtures) - 1, int(counts.argmin())})


def _outlying(plain: PlainRound, mixtures: Mixtures) -> list[int]:
    """The row in which the client with the largest numbers counts most, if the middle client's are far smaller."""
    counts = mixtures.of_clients
    members = np.flatnonzero(counts.any(axis=0))
    sizes = np.array([_size(plain, client) for client in members.tolist()])
    if len(sizes) == 0 or sizes.max() <= STANDS_OUT * np.median(sizes):
        return []
    return [int(counts[:, members[sizes.argmax()]].argmax())]


def _refuse_wrong(
    plain: PlainRound, mixtures: Mixtures, batch: Batch, row: int, utility: float, *, is_plain: bool
) -> None:
    """Refuse a utility that the plain loop does not give, or that rounding alone decides."""
    after = plain.after(mixtures, row)
    instead = plain.disagreement(mixtures, row, utility, after)
    chance = (
        "A module whose answers change from call to call, by dropout or by other random numbers, cannot be measured"
    )
    if instead and is_plain:
        raise UtilityError(f"{batch.where(row)}: the plain loop measures {utility:.9g}, then {instead}. {chance}")
    if instead:
        raise UtilityError(
            f"{batch.where(row)}: the fast oracle measures a utility of {utility:.9g}, the plain loop "
            f"{instead}; use --oracle loop, and report it. {chance} by any oracle"
        )
    if plain.is_noise(utility, after):
        cure = _cure(plain, mixtures, batch, row, lambda without: plain.is_sure(plain.after(without, 0)), "it is sure")
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
    members = np.flatnonzero(mixtures.memberships[row]).tolist()
    yield from sorted(members, key=lambda client: _size(plain, client), reverse=True)


def _size(plain: PlainRound, client: int) -> float:
    """The largest number of a client's model."""
    model = plain.round_.client_models.get(client) or plain.round_.apart_models[client]
    return max(
        (float(torch.maximum(-t.min(), t.max())) for t in model.values() if t.is_floating_point() and t.numel()),
        default=0.0,
    )
