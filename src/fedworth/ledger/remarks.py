"""Rounds that add nothing to any value, in a sentence: those that are not there, and those that nobody answered."""

from collections.abc import Sequence
from itertools import pairwise

from fedworth.ledger.manifest import MissingRound, RoundEntry

MOST_LISTED = 8


def gaps(entries: Sequence[RoundEntry], missing: Sequence[MissingRound]) -> list[str]:
    """Rounds that were neither recorded nor reported missing, as a killed recorder leaves them; one text a gap."""
    seen = sorted({entry.number for entry in entries} | {gone.number for gone in missing})
    found = [(before + 1, after - 1) for before, after in pairwise(seen) if after - before > 1]
    return [f"{_span(*gap)} missing (the recorder was stopped); nothing of it is in any value" for gap in found]


def unanswered(numbers: Sequence[int], *, is_reduced: bool) -> list[str]:
    """The rounds that nobody answered, or nobody but clients that are left out, in one sentence."""
    if not numbers:
        return []
    who = "nobody else" if is_reduced else "nobody"
    listed = [*map(str, numbers[:MOST_LISTED]), *(["…"] if len(numbers) > MOST_LISTED else [])]
    if len(numbers) == 1:
        return [f"{who} answered in round {listed[0]}; it adds nothing to any value"]
    return [f"{who} answered in {len(numbers)} rounds ({', '.join(listed)}); they add nothing to any value"]


def _span(first: int, last: int) -> str:
    return f"round {first} is" if first == last else f"rounds {first} to {last} are"
