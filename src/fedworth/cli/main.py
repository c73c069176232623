"""The command line: one verb a stage. Errors know their exit code; docs/exit-codes.md lists them.

Options are parsed before anything heavy is imported: a command's module has its options, and imports what it needs to
work where it works. So help and a mistyped option take no longer than Python itself does to start.
"""

import argparse
import contextlib
import gc
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedworth import errors
from fedworth.cli import complete, import_, observe, report, run, simulate, theory, value, verify, watch
from fedworth.cli.arguments import Parser, Wrapped, parse, wants_json
from fedworth.cli.results import check, compare, interactions, rewards, statement
from fedworth.cli.show import warn, whole_words
from fedworth.errors import FedworthError, MachineError, UsageError
from fedworth.notices import warned

SELDOM = 100_000
"""Objects made before Python looks for garbage: imports make a million that stay (a tenth of a start, measured)."""

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
)
INTERRUPTED = 130
INSTALLED_INDEX = "share/doc/fedworth/index.md"
"""Where pyproject.toml has the wheel put the first page."""


class _Version(argparse.Action):
    """Show the version, which is looked up only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"fedworth {version('fedworth')}")
        parser.exit()


class _Top(Parser):
    """The parser of all commands; its help ends with where to read on, which is looked up only then."""

    def format_help(self) -> str:
        """The help, with the exit codes and the place of the documentation."""
        kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FedworthError)]
        codes = ", ".join(f"{kind.exit_code} {kind.__name__}" for kind in kinds if kind is not FedworthError)
        self.epilog = (
            "example:\n  fedworth run --out runs/demo\n\n"
            f"exit codes: 0 done, 1 a fault of fedworth itself, {codes}, {INTERRUPTED} interrupted\n\n"
            f"documentation: {_documentation()}"
        )
        return super().format_help()


def _documentation() -> str:
    """Where the documentation of this fedworth lies: beside the package, or in its clone."""
    from importlib.metadata import files

    installed = [Path(str(path.locate())) for path in files("fedworth") or () if path.match(INSTALLED_INDEX)]
    for path in (*installed, Path(__file__).parents[3] / "docs" / "index.md"):
        if path.is_file():
            return str(path.resolve())
    return "not installed; it is in docs/ of the source"


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    top = _Top(
        prog="fedworth",
        description="What each client's data is worth in a federation.",
        formatter_class=Wrapped,
    )
    top.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    subparsers = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for module in COMMANDS:
        module.add_parser(subparsers)
    return top


def main(argv: list[str] | None = None) -> int:
    """Run one command; the exit code says how it ended."""
    given = sys.argv[1:] if argv is None else argv

    def act() -> None:
        args, usage = parse(parser(), given)
        try:
            with warned(lambda what: warn([what])):
                args.action(args)
        except UsageError as error:
            error.add_note(usage)
            raise

    _make_output_safe()
    return code_of(act, as_json=wants_json(given))


def code_of(action: Callable[[], None], *, as_json: bool = False) -> int:
    """Do it, and say how it ended: an error is a line on standard error, one more of usage if it helps, and a code."""
    try:
        action()
        _flush()
    except BrokenPipeError:
        _stop_printing()  # whoever read has seen enough
    except (FedworthError, KeyboardInterrupt, OSError, MemoryError) as error:
        if isinstance(error, OSError):
            _stop_printing()
        return _tell(error, as_json=as_json)
    return 0


def _tell(error: BaseException, *, as_json: bool) -> int:
    """Say on standard error what went wrong, as text or as one line of JSON; the exit code."""
    kind, code, message = _ending(error)
    lead = "" if isinstance(error, KeyboardInterrupt) else "error: "
    lines = [_printable(text) for text in (message, *getattr(error, "__notes__", ()))]
    if as_json:
        document = {"error": kind, "exit_code": code, "message": lines[0], "usage": lines[1] if lines[1:] else None}
        print(json.dumps(document), file=sys.stderr)
        return code
    for line in (lead + lines[0], *lines[1:]):
        print(whole_words(line, sys.stderr), file=sys.stderr)
    return code


def _ending(error: BaseException) -> tuple[str, int, str]:
    """What an error is called, the exit code, and what to say."""
    if isinstance(error, FedworthError):
        return type(error).__name__, error.exit_code, str(error)
    if isinstance(error, KeyboardInterrupt):
        return "Interrupted", INTERRUPTED, "interrupted; what was written is whole, and can be resumed"
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        remedy = "what was written before is whole: make room, or name another place"
        said = f"{where}{error.strerror or error}; {remedy}"
    else:
        said = f"this needs more memory than the machine has ({error}); ask for less, or use a larger machine"
    return MachineError.__name__, MachineError.exit_code, said


def _make_output_safe() -> None:
    """A character that a terminal's encoding lacks is shown by its number; it must not end a command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _printable(text: str) -> str:
    """On one line; what an artefact or a client put into it can neither paint nor scroll a terminal."""
    return "".join(c if c.isprintable() else " " for c in text)


def _flush() -> None:
    if sys.stdout is not None:  # as it is if the descriptor was closed before Python began
        sys.stdout.flush()


def _stop_printing() -> None:
    """Standard output takes no more: what is still to be flushed goes nowhere, without an error at the very end."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def entry() -> None:
    """What the `fedworth` script calls."""
    gc.set_threshold(SELDOM)
    sys.exit(main())
