"""Every error fedworth raises on purpose, and the exit code it ends a command with.

    FedworthError            1  (never raised itself)
    ├── UsageError           2  an unknown name, or settings that contradict each other
    ├── DataError            3  a data set that is missing, broken or cannot be split as asked
    ├── LedgerError          4  a recorded round that is missing, damaged or contradicts the manifest
    ├── ModelError           5  client models that cannot be averaged or evaluated
    ├── UtilityError         6  utilities that are not finite, or cells that cannot have been seen
    ├── CompletionError      7  a utility matrix that cannot be completed
    │   └── UnseenError      8  a value that depends on a coalition which was never measured
    ├── ValuationError       9  a valuation that cannot be made from these utilities
    │   ├── TooManyError    10  too many clients to enumerate their coalitions
    │   └── NeverHeardError 11  a client that never took part, with --strict
    ├── ArtefactError       12  an artefact that exists already, or is not what was expected
    ├── RuleError           13  a server that did not follow the rule which its values assume
    └── MachineError        14  a full disk, a folder without permission, or too little memory

A message gives where, what was found, what was expected, and what to do.
`docs/exit-codes.md` shows the same table; a test keeps the two equal.
"""

import difflib
from collections.abc import Iterable
from typing import ClassVar


class FedworthError(Exception):
    """Base class of all errors of fedworth; the message is written for users.

    Example:
        try:
            fedworth.Ledger.open("not-there")
        except fedworth.FedworthError as error:
            print(error, error.exit_code)
    """

    exit_code: ClassVar[int] = 1

    def __init_subclass__(cls, exit_code: int | None = None) -> None:
        cls.exit_code = cls.exit_code if exit_code is None else exit_code


class UsageError(FedworthError, exit_code=2):
    """An unknown name, or settings that contradict each other."""


class DataError(FedworthError, exit_code=3):
    """A data set that is missing, broken or cannot be split as asked."""


class LedgerError(FedworthError, exit_code=4):
    """A recorded round that is missing, damaged or contradicts the manifest."""


class ModelError(FedworthError, exit_code=5):
    """Client models that cannot be averaged or evaluated."""


class UtilityError(FedworthError, exit_code=6):
    """Utilities that are not finite, or cells that cannot have been seen."""


class CompletionError(FedworthError, exit_code=7):
    """A utility matrix that cannot be completed."""


class UnseenError(CompletionError, exit_code=8):
    """A value that depends on a coalition which was never measured."""


class ValuationError(FedworthError, exit_code=9):
    """A valuation that cannot be made from these utilities."""


class TooManyError(ValuationError, exit_code=10):
    """Too many clients to enumerate their coalitions."""


class NeverHeardError(ValuationError, exit_code=11):
    """A client that never took part, with --strict."""


class ArtefactError(FedworthError, exit_code=12):
    """An artefact that exists already, or is not what was expected."""


class RuleError(FedworthError, exit_code=13):
    """A server that did not follow the rule which its values assume."""


class MachineError(FedworthError, exit_code=14):
    """A full disk, a folder without permission, or too little memory."""


def unknown_name(kind: str, found: str, known: Iterable[str]) -> UsageError:
    """The error for an unknown name, which suggests the nearest known one."""
    names = sorted(known)
    return UsageError(f"unknown {kind} {found!r}: {near_name(found, names, cutoff=0.4)}known are {', '.join(names)}")


def near_name(found: str, known: Iterable[str], *, cutoff: float) -> str:
    """A question that suggests the nearest known name; empty if none is near."""
    near = difflib.get_close_matches(found, sorted(known), n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}? " if near else ""
