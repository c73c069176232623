"""The command line: one verb a stage. Errors know their exit code; docs/exit-codes.md lists them.

Options are parsed before anything heavy is imported: a command's module has its options, and imports what it needs to
work where it works. So help and a mistyped option take no longer than Python itself does to start.
"""

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any

from fedworth.cli import complete, import_, observe, report, reproduce, run, simulate, theory, value, verify, watch
from fedworth.cli.results import check, compare, interactions, rewards, statement
from fedworth.errors import FedworthError

COMMANDS = (
    simulate,
    observe,
    complete,
    value,
    report,
    statement,
    rewards,
    compare,
    check,
    interactions,
    run,
    theory,
    watch,
    verify,
    import_,
    reproduce,
)
INTERRUPTED = 130


class _Version(argparse.Action):
    """Show the version, which is looked up only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"fedworth {version('fedworth')}")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    top = argparse.ArgumentParser(
        prog="fedworth",
        description="What each client's data is worth in a federation.",
        epilog="example:\n  fedworth run --out runs/demo\n\nexit codes: docs/exit-codes.md",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    subparsers = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS:
        module.add_parser(subparsers)
    return top


def main(argv: list[str] | None = None) -> int:
    """Run one command; the exit code says how it ended."""

    def act() -> None:
        args = parser().parse_args(argv)
        args.action(args)

    return code_of(act)


def code_of(action: Callable[[], None]) -> int:
    """Do it, and say how it ended: an error is one line on standard error and a code."""
    try:
        action()
        sys.stdout.flush()
    except FedworthError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; what was written is whole, and can be resumed", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return 0


def entry() -> None:
    """What the `fedworth` script calls."""
    sys.exit(main())
