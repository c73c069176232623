"""Where a report's numbers come from: which ledger, task, settings and software."""

from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

STILL_TRAINING = "the federation is still training: values change with every further round"
SOFTWARE = f"fedworth {version('fedworth')}"


@dataclass(frozen=True)
class Provenance:
    """What a report was made from; `fedworth verify REPORT` makes it again."""

    head: str  # of the ledger, when it was valued
    n_rounds: int  # that it had then
    task: str | None  # the task's fingerprint
    software: str = SOFTWARE
    settings: dict[str, Any] = field(default_factory=dict)  # of the valuation
    n_missing_rounds: int = 0
    n_rejected_answers: int = 0
    judged_by: str | None = None  # the loss or measure by its name
    n_test_samples: int | None = None
    samples: str = "test samples"  # what these are: a vertical federation may have batches of training samples only
    is_vertical: bool = False  # whether clients sent embeddings of their features, and no models
    is_open: bool = False  # whether the federation was still training
    sampled: bool = False  # whether coalitions of up to 12 clients were sampled, since measuring all would take long
    slow: tuple[str, ...] = ()  # everyday methods that were left out, since they would take long
    unit: str = ""  # of the loss or measure, in words that follow its name
    other_heads: tuple[str, ...] = ()  # of the ledgers of further runs, if the report is their mean
