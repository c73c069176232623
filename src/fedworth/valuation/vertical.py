"""What calls for care with values of a vertical federation.

VerFedSV adds up what new embeddings changed, each beside the server's head of its round. Embeddings that never change
are worth 0 by it. Noise of small batches fits the head less and less, so values fall below zero while the model learns.
Steps back and forth cancel, and a client that sends bad embeddings in between is paid by what remains. The refitted
head has none of these faults, and is nearer to what training again would show (`docs/vertical.md`).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedworth.completion.completion import listed
from fedworth.valuation.ranking import EQUAL
from fedworth.valuation.valuation import Valuation, other_orders

VERFEDSV, REFITTED = "verfedsv", "refitted-head"

MOST_CANCELLED = 2.0
"""What clients gained and lost in single rounds, over what remains as values, above which values are used with care.

It is near 1 where clients train on all samples (`docs/vertical.md`)."""

MOST_SHOWN = 100
"""A larger ratio is not shown as it is."""

CANCELLED = (
    "steps mostly cancel: clients gained and lost {} times as much in single rounds as remains, {} most of all; "
    f"training on small batches does this, and so do embeddings that are out of line in some rounds; use {REFITTED}"
)
BELOW_ZERO = (
    "all values together are {:+.3g}: new embeddings fitted the head of their round less than those before, as in "
    f"training on small batches, and what the head learned from them is not counted; use {REFITTED}"
)
UNCHANGED = (
    "nothing that {} sent changed what is measured, as embeddings of one round only, or the same in all: worth 0 by "
    f"VerFedSV, whatever they tell; {REFITTED} values what they tell"
)
UNCHECKED = f"{REFITTED}, which sees what others tell already, was refused, so nothing checks these values"
WITHOUT = (
    f"the head was trained with {{}}, whose embeddings stay as they were first sent; {REFITTED} values the others by "
    "heads of their own"
)
OTHER_ORDER = f"{REFITTED}, which sees what others tell already, orders the clients differently"
STEPS_HARDLY_INTERACT = f"steps of one round hardly show what the given clients have already; {REFITTED} sees it"
ONE_TRAINING = (
    "one training cannot always tell what clients would have learned without the given ones, and the intervals do not "
    "count this"
)


def cautions_of(valuation: Valuation, without: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """What calls for care with these values, which are of the clients beside the given ones."""
    if valuation.method == REFITTED:
        return (ONE_TRAINING,) if given else ()
    found = [STEPS_HARDLY_INTERACT] if given else []
    if without:
        found.append(WITHOUT.format(listed(without)))
    if valuation.method == VERFEDSV and valuation.by_round is not None:
        moved, values = np.abs(valuation.by_round).sum(axis=0), valuation.values  # (n_clients,), NaN without a value
        in_all, left = np.nansum(moved), np.nansum(np.abs(values))
        if in_all and (unchanged := [valuation.clients[k] for k in np.flatnonzero(moved == 0)]):
            found.append(UNCHANGED.format(listed(unchanged)))
        if np.nansum(values) < -EQUAL * in_all:
            found.append(BELOW_ZERO.format(np.nansum(values)))
        if in_all > MOST_CANCELLED * left:
            times = f"{in_all / left:.1f}" if in_all < MOST_SHOWN * left else f"over {MOST_SHOWN}"
            found.append(CANCELLED.format(times, valuation.clients[int(np.nanargmax(moved - np.abs(values)))]))
    return tuple(found)


def with_disputes(valuations: Sequence[Valuation], refused: Sequence[str]) -> tuple[Valuation, ...]:
    """The valuations, with a caution where the refitted head orders clients differently, or was refused."""
    if REFITTED in refused:
        return tuple(replace(made, cautions=(*made.cautions, UNCHECKED)) for made in valuations)
    reference = {made.method: made.values for made in valuations if made.method == REFITTED}
    notes = [() if made.method in reference else tuple(other_orders(made, reference)) for made in valuations]
    return tuple(
        replace(made, cautions=(*made.cautions, OTHER_ORDER), notes=(*made.notes, *found)) if found else made
        for made, found in zip(valuations, notes, strict=True)
    )
