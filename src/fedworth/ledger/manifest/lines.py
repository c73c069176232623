"""What a line of the manifest says: a recorded round, a round that is missing, or the end of the ledger.

`round_index` counts the recorded rounds. `number` is the federation's own: it may start at 1 and have gaps.
"""

from dataclasses import dataclass

from fedworth.errors import LedgerError


@dataclass(frozen=True, slots=True)
class RoundEntry:
    """What the manifest says of one round; clients by their position in the ledger's list.

    Whoever was asked either answered (its model is in the file), failed (and said so), was quarantined (its answer
    cannot be averaged, and why), or stayed silent. Participants are those whose models were averaged. `nodes` says from
    which node each answer came, where the framework knows; `contested` are the clients whose name a second node
    claimed. Both are left out of a line where they are empty, so that lines from before there were any read the same.
    Fields stand in the order of a line: whoever reads many passes them by place, which takes half the time.
    """

    round_index: int
    number: int
    file: str
    sha256: str
    apart_file: str | None = None
    apart_sha256: str | None = None
    joined: tuple[str, ...] = ()
    asked: tuple[int, ...] = ()
    answered: tuple[int, ...] = ()
    participants: tuple[int, ...] = ()
    sample_counts: tuple[float, ...] = ()
    failed: tuple[int, ...] = ()
    failure_reasons: tuple[str, ...] = ()
    quarantined: tuple[int, ...] = ()
    quarantine_reasons: tuple[str, ...] = ()
    apart: tuple[int, ...] = ()
    apart_sample_counts: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    contested: tuple[int, ...] = ()

    @property
    def silent(self) -> tuple[int, ...]:
        """Who was asked, and neither answered nor failed."""
        heard = {*self.answered, *self.failed, *self.quarantined}
        return tuple(k for k in self.asked if k not in heard)

    def __post_init__(self) -> None:
        """Refuse what contradicts itself; sets are made only where there is something to compare: lines are many."""
        if self.participants != self.answered and not set(self.participants).issubset(self.answered):
            raise self._error(f"participants {self.participants} not all among {self.answered}")
        fates = self.answered + self.failed + self.quarantined
        different = set(fates)
        if len(different) != len(fates) or not different.issubset(self.asked):
            raise self._error(
                f"answered {self.answered}, failed {self.failed}, quarantined {self.quarantined}; "
                f"expected each of the asked {self.asked} at most once"
            )
        apart = set(self.apart)
        if apart and (not apart.isdisjoint(self.answered) or len(apart) != len(self.apart)):
            raise self._error(f"clients {self.apart} kept apart, yet some of them answered, or stand there twice")
        if len(self.answered) != len(self.sample_counts) or len(apart) != len(self.apart_sample_counts):
            raise self._error(f"{len(self.sample_counts)} counts for clients {self.answered}, or another number apart")
        if len(self.failed) != len(self.failure_reasons) or len(self.quarantined) != len(self.quarantine_reasons):
            raise self._error("expected a reason for each client that failed or was quarantined")
        if len(self.nodes) not in (0, len(self.answered)) or not set(self.contested).issubset(self.asked):
            raise self._error(f"{len(self.nodes)} nodes, contested {self.contested}; expected those answered")

    def _error(self, found: str) -> LedgerError:
        return LedgerError(f"round {self.round_index}: {found}")


@dataclass(frozen=True, slots=True)
class MissingRound:
    """A round that the federation trained and the ledger does not have."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class ClosedLine:
    """The end of a ledger: where the final model is."""

    file: str
    sha256: str


Line = RoundEntry | MissingRound | ClosedLine
OPTIONAL = {"nodes", "contested"}
KINDS: dict[str, type[Line]] = {"round": RoundEntry, "missing": MissingRound, "closed": ClosedLine}
