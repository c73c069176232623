"""The four pages of `docs/checks.md`: what `fedworth check` prints of four federations whose truth is known.

    python -m tools.check_pages > docs/checks.md

In: nothing; the federations are simulated here, of scanned digits. Out: the page, as Markdown. Under each check stands
what the truth says, which a simulation knows and a real federation does not.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from fedworth.cli.results.check import page_of
from fedworth.ledger.ledger import Ledger
from fedworth.pipeline.checking import check_values
from fedworth.pipeline.report_on import report_on
from fedworth.pipeline.stages import ValuingSettings
from fedworth.report.report import agreement
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of
from fedworth.studies.conduct.misconduct import Memory, kinds

SOUND = SimulationSettings(n_clients=6, n_rounds=8, n_participants=3, test_limit=200, seed=2)


@dataclass(frozen=True)
class Case:
    """A federation to check, and what is known of it."""

    title: str
    known: str
    settings: SimulationSettings = SOUND
    misconduct: str = ""


CASES = (
    Case("A sound run", "Six clients with two classes each, everyone heard in the first round, nobody cheats."),
    Case("A run with a lying client", "The same, but client 0 sends ten times its update.", misconduct="update × 10"),
    Case(
        "IID data",
        "Six clients whose data differ by chance alone.",
        SimulationSettings(
            n_clients=6, n_rounds=8, test_limit=200, partition="iid", n_steps=2, batch_size=8, rate=0.1, seed=2
        ),
    ),
    Case(
        "A ledger without an everyone-heard round",
        "The first federation, but no round hears everyone.",
        SimulationSettings(n_clients=6, n_rounds=8, test_limit=200, everyone_heard=False, seed=2),
    ),
)
HEAD = """# What a check looks like

`fedworth check RUN` tries on your own federation, of up to 11 clients, what must hold of its values, and prints one
page. Here are four, of federations whose truth is known because they are simulated (scanned digits, six clients, eight
rounds).
`python -m tools.check_pages` makes this page, and a test holds it to that.
"""


def page() -> str:
    """All four, with what the truth says."""
    return "\n".join([HEAD, *(section(case) for case in CASES)])


def section(case: Case) -> str:
    """One federation: what is known of it, its check, and what the truth says."""
    with tempfile.TemporaryDirectory(prefix="fedworth-pages-") as scratch:
        folder = Path(scratch)
        act = next((kind.act for kind in kinds(case.settings.n_clients) if kind.name == case.misconduct), None)
        ledger = simulate(case.settings, folder / "ledger", misconduct=None if act is None else Memory(act))
        made = check_values(ledger, task_of(ledger), ValuingSettings())
        lines = ["fedworth check ledger", "", *page_of(made)[2:]]
        truth = _truth(case, ledger, folder / "report")
    shown = "\n".join(f"    {line}".rstrip() for line in lines)
    return f"## {case.title}\n\n{case.known}\n\n{shown}\n\n{truth}\n"


def _truth(case: Case, ledger: Ledger, folder: Path) -> str:
    """How near the values are to the true ones; of a client that lies the truth is that it does."""
    if case.misconduct:
        return "**The truth:** client 0 lies, and nobody else. The values are right for what it sent."
    report = report_on(ledger, task_of(ledger), ValuingSettings(), folder, with_truth=True)
    row = next(row for row in agreement(report) if row["method"] == report.chosen.method)
    truth, ends = report.valuation("truth"), report.chosen.intervals
    assert truth is not None
    assert ends is not None
    n_in = int(((ends[:, 0] <= truth.values) & (truth.values <= ends[:, 1])).sum())
    return (
        f"**The truth:** the values' rank correlation with the true ones is {row['rank_correlation']:.2f}, their error "
        f"{row['relative_error']:.2f} of the spread, and {n_in} of {len(ends)} intervals hold the true value."
    )


if __name__ == "__main__":
    print(page(), end="")
