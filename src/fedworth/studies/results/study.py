"""A study: which trials it takes, and what follows from their rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedworth.studies.results.outcome import Cell, Outcome
from fedworth.studies.trials.extents import Extent
from fedworth.studies.trials.settings import Setup
from fedworth.studies.trials.trial import Row, Trial

Rows = Mapping[str, Sequence[Row]]
"""By setup, in the order of the trials."""


@dataclass(frozen=True)
class Study:
    """One of the paper's studies."""

    name: str
    claim: str  # what the paper says, in a sentence
    trials: Callable[[Setup, Extent, Sequence[int]], list[Trial]]
    findings: Callable[[Rows], Outcome]
    remarks: tuple[str, ...] = ()  # paragraphs of Markdown: what a reader must know to judge the numbers
    first_seed: int = 0
    is_timed: bool = False  # its trials must not be run side by side
    shown: Callable[[Sequence[Mapping[str, Cell]]], Outcome] | None = None  # the same from the records of its CSV
