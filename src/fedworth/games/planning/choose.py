"""Which cells to measure: the one place where `observe`, `run`, `watch` and the studies choose a plan.

In: who took part in each round, and what the user asked for. Out: a plan.

    permutations=None      exact: all coalitions of each round's participants; where a round has more than 20 of them,
                           an estimate of each round's game, and N⌈ln N⌉ permutations for the paper's completion
    permutations=M         Monte Carlo: the prefixes of M permutations, and what FedSV's own estimate needs
    permutations="auto"    the same with N⌈ln N⌉ permutations
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import stream
from fedworth.coalitions import MOST_ENUMERATED
from fedworth.errors import UsageError
from fedworth.games.planning.plan import DEFAULT_SAMPLER, FEWEST, Plan, plan_exact, plan_games, plan_prefixes
from fedworth.games.squares import default_permutations
from fedworth.names import Sampler, checked_name

MOST_BYTES = 1 << 28
"""What the prefixes of all permutations may take."""

MOST_PERMUTATIONS = 10_000_000


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """Exact or Monte Carlo, and how a Monte Carlo plan is drawn.

    Args:
        permutations: Monte Carlo over so many permutations, or `auto`; every coalition if it is not given.
        sampler: How FedSV and the heard round are estimated: `stratified`, or by `permutations`.
        with_fedsv: Measure what only FedSV needs, too.
        most_of_a_round: The most permutations of one round's participants; K⌈ln K⌉ of K if it is not given.

    Example:
        settings = fedworth.ValuingSettings(plan=fedworth.PlanSettings(permutations=100))
    """

    permutations: int | Literal["auto"] | None = None
    sampler: Sampler = DEFAULT_SAMPLER  # how FedSV and the heard round are estimated
    with_fedsv: bool = True  # whether to measure what only FedSV and leave-one-out need
    most_of_a_round: int | None = None  # most permutations of one round's participants; None: K⌈ln K⌉ of K

    def __post_init__(self) -> None:
        checked_name("sampler", self.sampler)
        if isinstance(self.permutations, int) and not FEWEST <= self.permutations <= MOST_PERMUTATIONS:
            expected = f"a whole number from {FEWEST} to {MOST_PERMUTATIONS:,}, or auto"
            raise UsageError(f"{self.permutations} permutations: expected {expected}")
        if self.permutations is None and not self.with_fedsv:
            raise UsageError("an exact plan leaves nothing out; ask for permutations, or for FedSV too")


def choose_plan(
    participants: NDArray[np.bool_], settings: PlanSettings | None = None, *, with_truth: bool = False, seed: int = 0
) -> Plan:
    """The cells to measure of a federation in which these took part, (n_rounds, n_clients).

    Args:
        participants: Who took part in which round, as `participation` gives it.
        settings: Exact, or how many permutations; exact if there are none.
        with_truth: Plan as if everyone had taken part in every round.
        seed: Of whatever is drawn: equal arguments give equal plans.

    Returns:
        The cells to measure; a plan with more permutations begins with those of a smaller one.

    Example:
        plan = fedworth.choose_plan(fedworth.participation(ledger), fedworth.PlanSettings(permutations=100))
    """
    asked = settings or PlanSettings()
    if asked.permutations is None:
        largest = int(participants.any(axis=0).sum() if with_truth else participants.sum(axis=1).max(initial=0))
        if largest <= MOST_ENUMERATED:
            return plan_exact(participants, with_truth=with_truth)
        count = 0 if with_truth else _affordable(int(participants.any(axis=0).sum()))
        plan = plan_games(participants, n_permutations=count, rng=stream(seed, "permutations"))
        return replace(plan, is_truth=with_truth)
    return plan_prefixes(
        participants,
        n_permutations=None if asked.permutations == "auto" else asked.permutations,
        with_fedsv=asked.with_fedsv,
        with_truth=with_truth,
        sampler=asked.sampler,
        most_of_a_round=asked.most_of_a_round,
        rng=stream(seed, "permutations"),
    )


def _affordable(n_clients: int) -> int:
    """N⌈ln N⌉ permutations, or none where their prefixes would not fit in memory; some can still be asked for."""
    usual = default_permutations(n_clients)
    return usual if usual * n_clients**2 <= MOST_BYTES else 0
