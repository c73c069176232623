"""Observe: a ledger and a task go in, the seen part of the utility matrix comes out.

Rounds are opened one at a time. Every cell is measured or the whole fails: a failed evaluation has no default.
"""

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Memberships, Utilities
from fedworth.errors import LedgerError, UtilityError
from fedworth.federation.ledger import Ledger
from fedworth.storage import Progress, silent
from fedworth.utility.coalitions import names
from fedworth.utility.matrix import UtilityMatrix, matrix_from_cells
from fedworth.utility.oracle import Oracle
from fedworth.utility.plan import Plan
from fedworth.utility.weighting import client_weights, mixtures


def participation(ledger: Ledger) -> NDArray[np.bool_]:
    """(n_rounds, n_clients): whose models were aggregated when."""
    rows = np.zeros((ledger.n_rounds, len(ledger.clients)), dtype=bool)
    for entry in ledger.entries:
        rows[entry.round_index, list(entry.participants)] = True
    return rows


def observe(
    ledger: Ledger, oracle: Oracle, plan: Plan, *, weighting: str = "uniform", progress: Progress = silent
) -> UtilityMatrix:
    """Measure the cells of the plan, round by round."""
    if len(plan.cells) != ledger.n_rounds:
        raise UtilityError(f"plan for {len(plan.cells)} rounds, but {ledger.folder} has {ledger.n_rounds}")
    if any(cells.shape[1:] != (len(ledger.clients),) for cells in plan.cells):
        raise UtilityError(f"plan for other clients than the {len(ledger.clients)} of {ledger.folder}")
    if plan.is_truth:
        _refuse_without_absent(ledger)
    rows: list[tuple[Memberships, Utilities]] = []
    for round_index, cells in enumerate(plan.cells):
        progress("observing rounds", round_index, ledger.n_rounds)
        coalitions = cells[cells.any(axis=1)]  # (n_cells, n_clients)
        weights = round_weights(ledger, round_index, weighting)  # (n_clients,)
        # unnamed, so that this round is let go before the next one is opened
        utilities = oracle.utilities(
            ledger.open_round(round_index, with_apart=plan.is_truth), mixtures(coalitions, weights, weighting)
        )
        _refuse_unmeasured(utilities, coalitions, round_index, ledger.clients)
        rows.append((coalitions, utilities))
    progress("observing rounds", ledger.n_rounds, ledger.n_rounds)
    return matrix_from_cells(
        ledger.clients,
        participation(ledger),
        rows,
        permutations=plan.permutations,
        round_permutations=plan.round_permutations,
        is_truth=plan.is_truth,
    )


def round_weights(ledger: Ledger, round_index: int, weighting: str) -> NDArray[np.float64]:
    """(n_clients,): what each client counts in a round: as it reported then, or (fixed) in the whole federation."""
    counts = ledger.sample_counts(None if weighting == "fixed" else round_index)
    return client_weights(counts, len(ledger.clients), weighting=weighting, aggregation=ledger.aggregation)


def _refuse_without_absent(ledger: Ledger) -> None:
    heard = set(np.flatnonzero(participation(ledger).any(axis=0)).tolist())
    for entry in ledger.entries:
        missing = heard - set(entry.answered) - set(entry.apart)
        if missing:
            raise LedgerError(
                f"{ledger.folder}, round {entry.round_index}: no model of clients {sorted(missing)}, so the "
                "truth cannot be measured; only a federation simulated with the truth has them"
            )


def _refuse_unmeasured(
    utilities: Utilities, coalitions: Memberships, round_index: int, clients: tuple[str, ...]
) -> None:
    bad = np.flatnonzero(~np.isfinite(utilities))
    if len(bad):
        where = f"round {round_index}, coalition {names(coalitions[bad[0]], clients)}"
        raise UtilityError(
            f"{where}: utility is {utilities[bad[0]]}, expected a finite number; the coalition's model "
            "overflows on the test set"
        )
