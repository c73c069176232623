"""Check: are the values of this federation sound? All self-tests of a ledger, on one page.

In: a ledger, a task, how it is valued. Out: `Check`, each self-test with its verdict, the findings on the clients, and
one sentence over all.
Altered copies of the ledger are valued in a temporary folder, which is removed.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedworth.errors import TooManyError, UsageError
from fedworth.findings import HARM, Finding
from fedworth.games.matrix_file import load_utilities
from fedworth.ledger.ledger import Ledger
from fedworth.pipeline.checking.selftests import (
    CheckVerdict,
    SelfTest,
    ValuedFederation,
    copy_test,
    heard_round_test,
    held_out_test,
    idle_test,
    order_test,
)
from fedworth.pipeline.report_on import report_on
from fedworth.pipeline.stages import ValuingSettings
from fedworth.report.report import Report
from fedworth.storage import Progress, silent
from fedworth.task.task import Task
from fedworth.valuation.uncertainty import Trust, Uncertainty

MOST_CLIENTS = 11
"""Beyond, everyone's game is estimated by draws, and two valuations differ by chance."""

TESTS = (copy_test, idle_test, order_test, held_out_test, heard_round_test)


@dataclass(frozen=True)
class Check:
    """The self-tests of one federation's values."""

    title: str
    tests: tuple[SelfTest, ...]
    trust: Uncertainty | None  # what the values' own intervals say
    findings: tuple[Finding, ...] = ()

    @property
    def sentence(self) -> str:
        """What to make of it."""
        failed = [test.name for test in self.tests if test.verdict is CheckVerdict.FAILS]
        if failed:
            return f"Do not use these values: {', '.join(failed)} must hold of any values, and does not."
        return f"{self._soundness()}{self._odd()}"

    def _soundness(self) -> str:
        warned = [test.name for test in self.tests if test.verdict is CheckVerdict.WARNS]
        if self.trust is not None and self.trust.trust is Trust.INDISTINGUISHABLE:
            return "The values are sound, and say that these clients cannot be told apart: use no order of them."
        if warned:
            return f"The values are sound, but less sure than they say: see {', '.join(warned)}."
        return "The values are sound: everything that was tried holds."

    def _odd(self) -> str:
        """Whom to ask first; that a client harms is a value, and no reason to doubt it."""
        odd = dict.fromkeys(name for found in self.findings if found.kind is not HARM for name in found.clients)
        return f" Ask about {', '.join(odd)} before you use them: see findings." if odd else ""

    def document(self) -> dict[str, Any]:
        """The check as JSON."""
        return {
            "title": self.title,
            "sentence": self.sentence,
            "trust": None if self.trust is None else self.trust.sentence,
            "tests": [test.document() for test in self.tests],
            "findings": [found.document() for found in self.findings],
        }


def check_values(ledger: Ledger, task: Task, settings: ValuingSettings, *, progress: Progress = silent) -> Check:
    """Try on this federation what must hold of its values.

    Args:
        ledger: The recorded federation.
        task: What its models are judged by.
        settings: How it is valued.
        progress: Called with what is being done, how many parts are done and how many there are.

    Returns:
        What was tried, and whether it held.

    Example:
        fedworth.check_values(ledger, task, fedworth.ValuingSettings())
    """
    if settings.without:
        raise UsageError("a check is of the whole federation: no client can be left out of it")
    if len(ledger.clients) > MOST_CLIENTS:
        raise TooManyError(
            f"{len(ledger.clients)} clients: values of more than {MOST_CLIENTS} rest on draws, and what holds exactly "
            "can be checked on exact ones only; check a federation of fewer clients that trains alike"
        )

    def reported(altered: Ledger, changed: ValuingSettings, folder: Path) -> Report:
        folder.mkdir(parents=True, exist_ok=True)
        return report_on(altered, task, changed, folder)

    with tempfile.TemporaryDirectory(prefix="fedworth-check-") as scratch:
        own = Path(scratch) / "own"
        report = reported(ledger, settings, own)
        valuation = report.valuations[0]
        utilities = load_utilities(own / "utilities.npz")
        federation = ValuedFederation(ledger, utilities, settings, valuation, reported, Path(scratch))
        made = []
        for n_done, test in enumerate(TESTS):
            progress("checking", n_done, len(TESTS))
            made.append(test(federation))
        progress("checking", len(TESTS), len(TESTS))
    return Check(report.title, tuple(made), valuation.uncertainty, report.all_findings)
