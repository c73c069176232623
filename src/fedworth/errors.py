"""Every error fedworth raises on purpose, and the exit code it ends a command with.

    FedworthError            1  (never raised itself)
    ├── UsageError           2  an unknown name, or settings that contradict each other
    ├── DataError            3  a data set that is missing, broken or cannot be split as asked
    ├── LedgerError          4  a recorded round that is missing, damaged or contradicts the manifest
    ├── ModelError           5  client models that cannot be averaged or evaluated
    ├── UtilityError         6  utilities that are not finite, or cells that cannot have been seen
    ├── CompletionError      7  a completion that cannot be had from these cells
    │   └── UnseenError      8  a value would rest on a coalition that no round has shown
    ├── ValuationError       9  a valuation that these cells do not allow
    │   ├── TooManyError    10  too many clients to enumerate their coalitions
    │   └── NeverHeardError 11  a client that no round has heard, under --strict
    ├── ArtefactError       12  an artefact that exists already, or is not what was expected
    ├── RuleError           13  a server that did something else than the rule that values would rest on
    └── MachineError        14  the machine refused: a full device, a closed folder, too little memory

A message gives where, what was found, what was expected, and what to do.
`docs/exit-codes.md` shows the same table; a test keeps the two equal.
"""

import difflib
from collections.abc import Iterable
from typing import ClassVar


class FedworthError(Exception):
    """Whatever fedworth refuses, with a message for the person at the keyboard.

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
    """A completion that cannot be had from these cells."""

    exit_code = 7


class UnseenError(CompletionError):
    """A value would rest on a coalition that no round has shown."""

    exit_code = 8


class ValuationError(FedworthError):
    """A valuation that these cells do not allow."""

    exit_code = 9


class TooManyError(ValuationError):
    """Too many clients to enumerate their coalitions."""

    exit_code = 10


class NeverHeardError(ValuationError):
    """A client that no round has heard, under --strict."""

    exit_code = 11


class ArtefactError(FedworthError):
    """An artefact that exists already, or is not what was expected."""

    exit_code = 12


class RuleError(FedworthError):
    """A server that did something else than the rule that values would rest on."""

    exit_code = 13


class MachineError(FedworthError):
    """The machine refused: a full device, a closed folder, too little memory."""

    exit_code = 14


def unknown_name(kind: str, found: str, known: Iterable[str]) -> UsageError:
    """The error for a name nobody knows, with the nearest name that somebody does."""
    names = sorted(known)
    return UsageError(f"unknown {kind} {found!r}: {near_name(found, names, cutoff=0.4)}known are {', '.join(names)}")


def near_name(found: str, known: Iterable[str], *, cutoff: float) -> str:
    """The question whether the nearest of the known names was meant, or nothing if none is near."""
    near = difflib.get_close_matches(found, sorted(known), n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}? " if near else ""
