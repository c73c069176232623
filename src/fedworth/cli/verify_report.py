"""fedworth verify REPORT --ledger LEDGER: follow a report's trail back to its ledger."""

import argparse
from pathlib import Path

from fedworth.cli.head import check_head
from fedworth.cli.options import add_data_option
from fedworth.cli.show import show_json, show_lines
from fedworth.errors import UsageError

REPORT = "report.json"


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """The options for a report."""
    group = parser.add_argument_group("with a report")
    group.add_argument("--ledger", type=Path, metavar="LEDGER", help="its ledger (default: ledger/ beside it)")
    group.add_argument("--task", metavar="FILE:NAME", help="model and test set, such as mytask.py:task")
    add_data_option(parser)


def report_file(path: Path) -> Path | None:
    """The report that a path stands for: the file itself, or the one in the folder of a run; None for a ledger."""
    if (path / REPORT).is_file():
        return path / REPORT
    return path if path.is_file() else None


def verify_report(args: argparse.Namespace, path: Path) -> None:
    """Recompute the trail, and say step by step what was found."""
    from fedworth.ledger.ledger import open_ledger
    from fedworth.pipeline.audit import audit
    from fedworth.storage import read_json

    ledger = args.ledger or path.parent / "ledger"
    if not ledger.is_dir():
        raise UsageError(f"{path}: a report; expected --ledger LEDGER beside it, the ledger that it should be of")
    steps = audit(read_json(path), ledger, path.parent, task=args.task, data_folder=args.data)
    said = check_head(args, open_ledger(ledger))
    if args.json:
        documents = [{"step": step.name, "is_checked": step.is_checked, "found": step.found} for step in steps]
        show_json({"report": str(path), "ledger": str(ledger), "head_checks": said, "trail": documents})
        return
    show_lines(said)
    show_lines(f"{step.name}: {'' if step.is_checked else 'not checked: '}{step.found}" for step in steps)
    how_far = "" if all(step.is_checked for step in steps) else ", as far as it was checked"
    show_lines([f"{path}: its trail holds{how_far}"])
