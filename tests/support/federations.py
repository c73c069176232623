"""A ledger as a recorded federation, measured as its own server aggregates."""

from fedworth.games.federation import RecordedFederation
from fedworth.games.matrix import UtilityMatrix
from fedworth.games.observe import utility_matrix
from fedworth.ledger.ledger import Ledger
from fedworth.names import Weighting
from fedworth.oracle.oracle import Oracle
from fedworth.oracle.server import server_of
from fedworth.oracle.store import LedgerStore


def federation_of(
    ledger: Ledger,
    oracle: Oracle,
    weighting: Weighting | None = None,
    *,
    as_average: bool = False,
    is_kept: bool = False,
) -> RecordedFederation:
    weighting = weighting or ledger.aggregation
    server = server_of(ledger, oracle, weighting, as_average=as_average)
    store = LedgerStore(ledger, server, weighting) if is_kept else None
    return RecordedFederation(ledger, server.oracle, weighting, server.notes, store)


def matrix_of_ledger(ledger: Ledger, oracle: Oracle, weighting: Weighting | None = None) -> UtilityMatrix:
    """All coalitions of each round's participants."""
    return utility_matrix(federation_of(ledger, oracle, weighting), None)
