"""fedworth verify: check every line and every byte of a ledger."""

import argparse
from pathlib import Path

from fedworth.cli.options import command
from fedworth.cli.show import show_json, show_lines, warn


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its options."""
    parser = command(
        subparsers,
        "verify",
        "Check every line and every byte of a ledger; the error names the first bad round.",
        "fedworth verify my.ledger",
        run,
    )
    parser.add_argument("ledger", type=Path, help="the ledger of a federation")


def run(args: argparse.Namespace) -> None:
    """Verify, and say what is in the ledger."""
    from fedworth.ledger.ledger import verify_ledger

    ledger = verify_ledger(args.ledger)
    found = {
        "ledger": str(args.ledger),
        "n_rounds": ledger.n_rounds,
        "n_missing": len(ledger.missing),
        "n_clients": len(ledger.clients),
        "is_closed": ledger.is_closed,
        "chain": ledger.chain,
    }
    if args.json:
        show_json({**found, "warnings": list(ledger.warnings())})
        return
    state = "closed" if ledger.is_closed else "still open"
    show_lines(
        [
            f"{args.ledger}: {ledger.n_rounds} rounds of {len(ledger.clients)} clients, {state}; every byte as written",
            f"chain: {ledger.chain}",
        ]
    )
    warn(ledger.warnings())
