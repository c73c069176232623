"""The head of a ledger: one hash that stands for every byte recorded so far, to be kept where the ledger is not.

A chain shows that nothing in a ledger was edited. It cannot show that the last rounds, with their lines, are still
there, nor that the ledger is not another one, written anew. Whoever has kept a head can tell: a ledger that has grown
since has passed through that head, and a ledger that was rolled back or rewritten has not.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from fedworth.errors import LedgerError, UsageError
from fedworth.ledger.manifest import RoundEntry, read_header, read_lines


@dataclass(frozen=True, slots=True)
class LedgerHead:
    """The chain of a ledger after a number of rounds."""

    chain: str
    n_rounds: int


def heads(folder: Path) -> list[LedgerHead]:
    """Every head that the ledger at `folder` has had, from the one without rounds to its present one."""
    _, chain = read_header(folder)
    passed = [LedgerHead(chain, 0)]
    for line, following in read_lines(folder, chain):
        passed.append(LedgerHead(following, passed[-1].n_rounds + isinstance(line, RoundEntry)))
    return passed


def head_of(text: str) -> str:
    """A head as somebody gives it: 64 hexadecimal digits, in whatever case."""
    chain = text.strip().lower()
    if not re.fullmatch(r"[0-9a-f]{64}", chain):
        raise UsageError(f"head {text[:80]!r}: expected the 64 hexadecimal digits that fedworth verify prints")
    return chain


def passed_through(folder: Path, chain: str) -> LedgerHead:
    """The head with this chain, if the ledger has had it; else the ledger was rolled back or rewritten."""
    passed = heads(folder)
    for head in passed:
        if head.chain == chain:
            return head
    now = f"its {passed[-1].n_rounds} rounds end in {passed[-1].chain}"
    raise LedgerError(
        f"{folder}: never had the head {chain}; {now}. Rounds were removed from its end, or it "
        "is not the ledger that the head was taken from; restore it from a copy"
    )
