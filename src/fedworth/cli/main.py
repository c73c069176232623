"""The command line. Each error class has an exit code; docs/exit-codes.md lists them.

Options are parsed before anything heavy is imported: commands import what they need inside `run`. So help and errors
about options take no longer than the start of Python.
"""

import argparse
import contextlib
import dataclasses
import errno
import io
import json
import os
import signal
import sys
import textwrap
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from fedworth import errors
from fedworth.cli.options import Option, add_options, command_from, example_of, options_of, refuse_unknown, summary_of
from fedworth.cli.show import on_one_line, whole_words
from fedworth.errors import FedworthError, MachineError, UsageError, unknown_name

COMMANDS = {
    "init": "init:Init",
    "simulate": "record:Simulate",
    "observe": "values:Observe",
    "complete": "values:Complete",
    "value": "values:Value",
    "report": "values:Report",
    "statement": "results:Statement",
    "rewards": "results:RewardsCommand",
    "compare": "values:Compare",
    "interactions": "values:Interactions",
    "run": "values:Run",
    "watch": "values:Watch",
    "verify": "record:Verify",
    "import": "record:Import",
    "theory observation-1": "theory:Observation1",
    "theory rank-bound": "theory:RankBound",
    "theory rank": "theory:Rank",
    "theory fairness": "theory:Fairness",
}
INTERRUPTED = 130
SECONDS_TO_STOP = 3.0
"""After which a command that was interrupted, and goes on, is interrupted again."""

NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
INSTALLED_INDEX = "share/doc/fedworth/index.md"
"""Where the wheel installs the first page, as set in pyproject.toml."""


def command_class(name: str) -> type:
    module, _, kind = COMMANDS[name].partition(":")
    found: type = getattr(import_module(f"fedworth.cli.{module}"), kind)
    return found


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def main(argv: list[str] | None = None) -> int:
    """Run one command; the exit code says how it ended."""
    given = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # characters that the terminal lacks are printed as escapes
            stream.reconfigure(errors="backslashreplace")
    as_json = any(len(text) > 2 and "--json".startswith(text) for text in given)
    return code_of(lambda: _act(given), as_json=as_json)


def _act(given: list[str]) -> None:
    if not given or given[0] in ("-h", "--help"):
        print(_overview())
        return
    if given[0] == "--version":
        from importlib.metadata import version

        print(f"fedworth {version('fedworth')}")
        return
    name, rest = _split(given)
    if name == "theory":
        print(_list("fedworth theory STATEMENT", "theory "))
        return
    kind = command_class(name)
    options = options_of(kind)
    try:
        refuse_unknown(options, rest)
        parsed = vars(_parser(name, kind, options).parse_args(rest))
        as_json = parsed.pop("json")
        command = command_from(kind, options, parsed)
        if hasattr(command, "line"):
            command = dataclasses.replace(command, line=tuple(given))
        command.run(as_json=as_json)
    except UsageError as error:
        error.add_note(_usage(name, options))
        raise


def _split(given: list[str]) -> tuple[str, list[str]]:
    """The command's name, and its arguments."""
    if given[0] == "theory":
        if len(given) == 1 or given[1] in ("-h", "--help"):
            return "theory", []
        name = f"theory {given[1]}"
        if name not in COMMANDS:
            known = [known.removeprefix("theory ") for known in COMMANDS if known.startswith("theory ")]
            raise unknown_name("statement", given[1][:40], known)
        return name, given[2:]
    if given[0] not in COMMANDS:
        raise unknown_name("command", given[0][:40], [*(name for name in COMMANDS if " " not in name), "theory"])
    return given[0], given[1:]


def _parser(name: str, kind: type, options: list[Option]) -> argparse.ArgumentParser:
    parser = Parser(
        prog=f"fedworth {name}",
        description=summary_of(kind),
        epilog=f"example:\n  {example_of(kind)}",
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=32),
    )
    add_options(parser, options)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _usage(name: str, options: list[Option]) -> str:
    needed = [option.name.upper() for option in options if option.is_positional]
    needed += [f"[{option.name.upper()}]" for option in options if option.is_argument]
    needed += [f"{option.flag} {option.metavar}" for option in options if option.is_required_option]
    return f"usage: {' '.join(['fedworth', name, *needed])} [options]; more: fedworth {name} --help"


def _overview() -> str:
    """The help of all commands, with the exit codes and the place of the documentation."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FedworthError)]
    codes = ", ".join(f"{kind.exit_code} {kind.__name__}" for kind in kinds if kind is not FedworthError)
    ending = [
        "example:\n  fedworth run --out runs/demo\n",
        textwrap.fill(f"exit codes: 0 done, 1 a bug in fedworth, {codes}, {INTERRUPTED} interrupted", 100),
        f"\ndocumentation: {_documentation()}",
    ]
    lead = "What each client's data is worth in a federation.\n\n"
    return lead + _list("fedworth COMMAND", "") + "\n" + "\n".join(ending)


def _list(usage: str, prefix: str) -> str:
    """Commands with this prefix and their summaries."""
    lines = [f"usage: {usage} [options]; each has --help and --json\n"]
    for name in COMMANDS:
        if name.startswith(prefix) and (prefix or " " not in name):
            summary = textwrap.wrap(summary_of(command_class(name)), 78)
            lines.append(f"  {name.removeprefix(prefix):<14}  {summary[0]}")
            lines += [f"{'':18}{more}" for more in summary[1:]]
    if not prefix:
        lines.append(f"  {'theory':<14}  The paper's statements in numbers, corrected.")
    return "\n".join(lines) + "\n"


def _documentation() -> str:
    """The path of the installed documentation, or of docs/ in a clone."""
    from importlib.metadata import files

    installed = [Path(str(path.locate())) for path in files("fedworth") or () if path.match(INSTALLED_INDEX)]
    for path in (*installed, Path(__file__).parents[3] / "docs" / "index.md"):
        if path.is_file():
            return str(path.resolve())
    return "not installed; it is in docs/ of the source"


def code_of(action: Callable[[], None], *, as_json: bool = False) -> int:
    """Run an action and return its exit code; errors are printed to standard error, with the usage if it helps."""
    try:
        action()
        if sys.stdout is not None:  # None if the descriptor was closed before Python began
            sys.stdout.flush()
    except BrokenPipeError:
        _stop_printing()  # the reader has seen enough
    except (FedworthError, KeyboardInterrupt, OSError, MemoryError) as error:
        if isinstance(error, OSError):
            _stop_printing()
        return _print_error(error, as_json=as_json)
    except (ImportError, RecursionError, SystemError):  # what an interrupt in the middle of an import may become
        if not _was_interrupted:
            raise
        return _print_error(KeyboardInterrupt(), as_json=as_json)
    finally:
        if _was_interrupted:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return 0


def _print_error(error: BaseException, *, as_json: bool) -> int:
    """Print an error to standard error, as text or as one line of JSON, and return its exit code."""
    kind, code, message = _ending(error)
    lead = "" if isinstance(error, KeyboardInterrupt) else "error: "
    lines = [on_one_line(text) for text in (message, *getattr(error, "__notes__", ()))]
    if as_json:
        document = {"error": kind, "exit_code": code, "message": lines[0], "usage": lines[1] if lines[1:] else None}
        print(json.dumps(document), file=sys.stderr)
        return code
    for line in (lead + lines[0], *lines[1:]):
        print(whole_words(line, sys.stderr), file=sys.stderr)
    return code


def _ending(error: BaseException) -> tuple[str, int, str]:
    """The name of an error, its exit code and its message."""
    if isinstance(error, FedworthError):
        return type(error).__name__, error.exit_code, str(error)
    if isinstance(error, KeyboardInterrupt):
        return "Interrupted", INTERRUPTED, "interrupted; what was written is intact, and can be resumed"
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        change = "change its permissions" if error.errno in NOT_ALLOWED else "make room"
        remedy = f"what was written before is intact: {change}, or name another place (--out)"
        message = f"{where}{error.strerror or error}; {remedy}"
    else:
        message = f"this needs more memory than the machine has ({error}); ask for less, or use a larger machine"
    return MachineError.__name__, MachineError.exit_code, message


def _stop_printing() -> None:
    """Discard further output: the reader has closed the pipe, so Python's last flush would raise."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_was_interrupted: list[int] = []
"""Signals that arrived. Numpy turns an interrupt during its import into an error of its own."""


def _interrupt(number: int, _frame: object) -> NoReturn:
    """Interrupt, and again after a while: callbacks of imports, and C code of other libraries, may ignore it."""
    _was_interrupted.append(number)
    signal.setitimer(signal.ITIMER_REAL, SECONDS_TO_STOP)
    raise KeyboardInterrupt


def entry() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
        signal.signal(signal.SIGALRM, _interrupt)
    sys.exit(main())
