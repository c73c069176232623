"""fedworth compare RUN --methods …: every measure on one ledger, with its cost and its distance from the truth."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedworth.cli.options import check_plan, plan_settings
from fedworth.cli.show import progress_bars, show_json, show_lines, show_table
from fedworth.errors import UsageError

if TYPE_CHECKING:
    from fedworth.pipeline.measures import MeasureRow
    from fedworth.report.tables import Table

LEGEND = (
    "error: distance from the truth, 1 is as good as to say that all are worth the same; gap: largest difference of "
    "two copies as a part of the spread; evaluations: utilities measured; CPU s: processor time, each from nothing"
)


def compare_on_ledger(args: argparse.Namespace) -> None:
    """Value one ledger by each measure, and show them side by side."""
    if len(args.runs) != 1:
        raise UsageError(f"--methods values one ledger: found {len(args.runs)} of them, expected one RUN")
    check_plan(args)
    from fedworth.ledger.ledger import open_ledger
    from fedworth.pipeline.measures import EVERYDAY, compare_measures
    from fedworth.pipeline.stages import ValuingSettings
    from fedworth.simulation.simulate import task_for

    folder = args.runs[0]
    ledger = open_ledger(folder / "ledger" if (folder / "ledger").is_dir() else folder)
    settings = ValuingSettings(
        weighting=args.weighting,
        measure=args.measure,
        oracle=args.oracle,
        as_average=args.as_average,
        plan=plan_settings(args),
        without=tuple(args.without),
        seed=args.seed,
    )
    names = EVERYDAY if args.methods == "all" else [name.strip() for name in args.methods.split(",") if name.strip()]
    simulation = ledger.simulation or {}
    with progress_bars() as progress:
        rows = compare_measures(
            ledger,
            task_for(ledger, args.task, data_folder=args.data),
            settings,
            names,
            copies=[(ledger.clients[a], ledger.clients[b]) for a, b in simulation.get("copies", ())],
            with_truth=bool(simulation.get("with_truth")),
            data_folder=args.data,
            progress=progress,
        )
    if args.json:
        show_json({"clients": list(ledger.clients), "measures": [row.document() for row in rows]})
        return
    from fedworth.report.tables import LABELS

    show_table(measures_table(rows))
    show_lines(f"{LABELS[row.name]}: {row.refusal}" for row in rows if row.refusal)


def measures_table(rows: "Sequence[MeasureRow]") -> "Table":
    """A line a measure."""
    from fedworth.report.tables import ABSENT, LABELS, Table

    headings = ("measure", "error", "rank correlation", "gap", "evaluations", "CPU s")
    lines = tuple(
        (
            LABELS[row.name],
            _number(row.error),
            _number(row.correlation),
            _number(row.gap),
            ABSENT if row.refusal else f"{row.n_evaluations:,}",
            f"{row.seconds:.2f}",
        )
        for row in rows
    )
    return Table("Measures side by side", headings, lines, words=LEGEND)


def _number(number: float | None) -> str:
    from fedworth.report.tables import ABSENT

    return ABSENT if number is None else f"{number:.2f}"
