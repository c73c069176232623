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
            fedworth.open_ledger("not-there")
        except fedworth.FedworthError as error:
            print(error, error.exit_code)
    """

    exit_code: ClassVar[int] = 1


class UsageError(FedworthError):
    """An unknown name, or settings that contradict each other."""

    exit_code = 2


class DataError(FedworthError):
    """A data set that is missing, broken or cannot be split as asked."""

    exit_code = 3


class LedgerError(FedworthError):
    """A recorded round that is missing, damaged or contradicts the manifest."""

    exit_code = 4


class ModelError(FedworthError):
    """Client models that cannot be averaged or evaluated."""

    exit_code = 5


class UtilityError(FedworthError):
    """Utilities that are not finite, or cells that cannot have been seen."""

    exit_code = 6


class CompletionError(FedworthError):
    """A utility matrix that cannot be completed."""

    exit_code = 7


class UnseenError(CompletionError):
    """A value that depends on a coalition which was never measured."""

    exit_code = 8


class ValuationError(FedworthError):
    """A valuation that cannot be made from these utilities."""

    exit_code = 9


class TooManyError(ValuationError):
    """Too many clients to enumerate their coalitions."""

    exit_code = 10


class NeverHeardError(ValuationError):
    """A client that never took part, with --strict."""

    exit_code = 11


class ArtefactError(FedworthError):
    """An artefact that exists already, or is not what was expected."""

    exit_code = 12


class RuleError(FedworthError):
    """A server that did not follow the rule which its values assume."""

    exit_code = 13


class MachineError(FedworthError):
    """A full disk, a folder without permission, or too little memory."""

    exit_code = 14


def unknown_name(kind: str, found: str, known: Iterable[str]) -> UsageError:
    """The error for an unknown name, which suggests the nearest known one."""
    names = sorted(known)
    return UsageError(f"unknown {kind} {found!r}: {near_name(found, names, cutoff=0.4)}known are {', '.join(names)}")


def near_name(found: str, known: Iterable[str], *, cutoff: float) -> str:
    """A question that suggests the nearest known name; empty if none is near."""
    near = difflib.get_close_matches(found, sorted(known), n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}? " if near else ""
