"""The command line: one verb a stage. Errors know their exit code; docs/exit-codes.md lists them.

Options are parsed before anything heavy is imported: a command's module has its options, and imports what it needs to
work where it works. So help and a mistyped option take no longer than Python itself does to start.
"""

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import Any

from fedworth.cli import complete, import_, observe, report, reproduce, run, simulate, theory, value, verify, watch
from fedworth.cli.results import check, compare, interactions, rewards, statement
from fedworth.errors import FedworthError, MachineError

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
    given = sys.argv[1:] if argv is None else argv

    def act() -> None:
        top = parser()
        for text in given:
            if text.startswith("--") and text.endswith("=--"):
                top.error(f"argument {text[:40]!r}: expected a value")  # argparse would drop the dashes and their type
        args = top.parse_args(given, argparse.Namespace(line=given))
        args.action(args)

    _make_output_safe()

    return code_of(act)


def code_of(action: Callable[[], None]) -> int:
    """Do it, and say how it ended: an error is one line on standard error and a code."""
    try:
        action()
        _flush()
    except FedworthError as error:
        _say_error(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; what was written is whole, and can be resumed", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _stop_printing()  # whoever read has seen enough
        return 0
    except OSError as error:
        _stop_printing()
        where = f"{error.filename}: " if error.filename else ""
        remedy = "what was written before is whole: make room, or name another place"
        _say_error(f"{where}{error.strerror or error}; {remedy}")
        return MachineError.exit_code
    except MemoryError as error:
        _say_error(f"this needs more memory than the machine has ({error}); ask for less, or use a larger machine")
        return MachineError.exit_code
    return 0


def _make_output_safe() -> None:
    """A character that a terminal's encoding lacks is shown by its number; it must not end a command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _say_error(text: str) -> None:
    """One line on standard error; what an artefact or a client put into it can neither paint nor scroll a terminal."""
    print(f"error: {''.join(c if c.isprintable() else ' ' for c in text)}", file=sys.stderr)


def _flush() -> None:
    if sys.stdout is not None:  # as it is if the descriptor was closed before Python began
        sys.stdout.flush()


def _stop_printing() -> None:
    """Standard output takes no more: what is still to be flushed goes nowhere, without an error at the very end."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def entry() -> None:
    """What the `fedworth` script calls."""
    sys.exit(main())
