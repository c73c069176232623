"""Which cells to measure: the one place where `observe`, `run`, `watch` and the studies choose a plan.

In: who took part in each round, and what the user asked for. Out: a plan.

    permutations=None      exact: all coalitions of each round's participants
    permutations=M         Monte Carlo: the prefixes of M permutations, and what FedSV's own estimate needs
    permutations="auto"    the same with N⌈ln N⌉ permutations
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import stream
from fedworth.errors import UsageError
from fedworth.names import Sampler, checked_name
from fedworth.utility.planning.plan import DEFAULT_SAMPLER, FEWEST, Plan, plan_exact, plan_prefixes


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """Exact or Monte Carlo, and how a Monte Carlo plan is drawn."""

    permutations: int | Literal["auto"] | None = None
    sampler: Sampler = DEFAULT_SAMPLER  # how FedSV and the heard round are estimated
    with_fedsv: bool = True  # whether to measure what only FedSV and leave-one-out need
    most_of_a_round: int | None = None  # most permutations of one round's participants; None: K⌈ln K⌉ of K

    def __post_init__(self) -> None:
        checked_name("sampler", self.sampler)
        if isinstance(self.permutations, int) and self.permutations < FEWEST:
            raise UsageError(f"{self.permutations} permutations: expected a whole number from {FEWEST} on, or auto")
        if self.permutations is None and not self.with_fedsv:
            raise UsageError("an exact plan leaves nothing out; ask for permutations, or for FedSV too")


def choose_plan(
    participants: NDArray[np.bool_], settings: PlanSettings | None = None, *, with_truth: bool = False, seed: int = 0
) -> Plan:
    """The cells to measure of a federation in which these took part, (n_rounds, n_clients).

    `with_truth`: as if everyone had taken part in every round. Equal arguments give equal plans, and a plan with more
    permutations begins with those of a smaller one.
    """
    asked = settings or PlanSettings()
    if asked.permutations is None:
        return plan_exact(participants, with_truth=with_truth)
    return plan_prefixes(
        participants,
        n_permutations=None if asked.permutations == "auto" else asked.permutations,
        with_fedsv=asked.with_fedsv,
        with_truth=with_truth,
        sampler=asked.sampler,
        most_of_a_round=asked.most_of_a_round,
        rng=stream(seed, "permutations"),
    )
