"""fedworth verify: check every byte of a ledger and what its server made of the models, or the trail of a report."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedworth.cli.head import add_head_options, check_head, check_options
from fedworth.cli.options import add_as_average_option, command
from fedworth.cli.show import show_findings, show_json, show_lines, warn
from fedworth.cli.verify_report import add_report_options, report_file, verify_report

if TYPE_CHECKING:
    from fedworth.findings import Finding
    from fedworth.ledger.ledger import Ledger
    from fedworth.task.replay import LedgerCheck


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its options."""
    parser = command(
        subparsers,
        "verify",
        "Check every byte of a ledger, and that its server did what its rule says; or that a report is of a ledger.",
        "fedworth verify my.ledger",
        run,
    )
    parser.add_argument(
        "what", type=Path, metavar="LEDGER|REPORT", help="a ledger, or a report (report.json, or the folder of a run)"
    )
    add_as_average_option(parser)
    add_head_options(parser)
    add_report_options(parser)


def run(args: argparse.Namespace) -> None:
    """Verify a report's trail, or a ledger."""
    check_options(args)
    path = report_file(args.what)
    if path is not None:
        verify_report(args, path)
    else:
        _verify_ledger(args)


def _verify_ledger(args: argparse.Namespace) -> None:
    """Say what is in the ledger, and whether its server did what its rule says."""
    from fedworth.findings import findings
    from fedworth.ledger.ledger import verify_ledger
    from fedworth.task.replay import check_ledger
    from fedworth.task.rules import rule_name, rule_of

    ledger = verify_ledger(args.what)
    said = check_head(args, ledger)
    checked = check_ledger(ledger, rule_of(ledger))
    odd = findings(ledger, is_kept=False)
    found = {
        "ledger": str(args.what),
        "n_rounds": ledger.n_rounds,
        "n_missing": len(ledger.missing),
        "n_clients": len(ledger.clients),
        "is_closed": ledger.is_closed,
        "head": ledger.chain,
        "head_checks": said,
        "rule": rule_name(checked.rule),
        "n_rounds_by_rule": checked.n_same,
        "largest_gap": checked.largest_gap,
    }
    if args.json:
        warnings = _warnings(ledger, checked)
        show_json({**found, "warnings": warnings, "findings": [finding.document() for finding in odd]})
    else:
        _show(args, ledger, checked, odd, said)
    if not args.as_average:
        checked.refuse_others()


def _show(
    args: argparse.Namespace, ledger: "Ledger", checked: "LedgerCheck", odd: "tuple[Finding, ...]", said: list[str]
) -> None:
    from fedworth.task.rules import rule_name

    state = "closed" if ledger.is_closed else "still open"
    show_lines(
        [
            f"{args.what}: {ledger.n_rounds} rounds of {len(ledger.clients)} clients, {state}; every byte as written",
            f"head: {ledger.chain} (keep it elsewhere; --head tells whether the ledger has passed it)",
            *said,
            f"server: {rule_name(checked.rule)}; so it was in {checked.n_same} of {ledger.n_rounds} rounds",
        ]
    )
    show_findings(odd)
    warn(_warnings(ledger, checked))


def _warnings(ledger: "Ledger", checked: "LedgerCheck") -> tuple[str, ...]:
    """What a keeper of the ledger must know: of its folder, its files, its rounds and its server."""
    from fedworth.ledger.writer import exposures

    unsettled = [f"{file} is whole, but still has its partial name" for file in ledger.unsettled()]
    return (*exposures(ledger.folder), *unsettled, *ledger.warnings(), *checked.notes())
