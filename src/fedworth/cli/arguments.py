"""What stands on the command line: read, or refused with the nearest name that there is and one line of usage.

In: the parser of all commands and the words given. Out: what they mean. Names are looked at first, so that a mistyped
option is told from one that is missing. A command that has commands below it and is given none shows its help.
"""

import argparse
import re
import textwrap
from typing import NoReturn

from fedworth.errors import UsageError, near_name, unknown_name

_OPTION = re.compile(r"--?[A-Za-z]\S*")
"""What argparse takes for an option; negative numbers and texts with spaces are values."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are fedworth's, so that they are told as all others are."""

    def error(self, message: str) -> NoReturn:
        """Refuse what was given."""
        raise UsageError(message)


class Wrapped(argparse.HelpFormatter):
    """Help that breaks lines between words, however narrow the terminal; indented lines are examples, left whole."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = [[line] if line.startswith("  ") else self._split_lines(line, width) for line in text.splitlines()]
        return "\n".join(indent + part for parts in lines for part in parts or [""])

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)


def parse(top: argparse.ArgumentParser, given: list[str]) -> tuple[argparse.Namespace, str]:
    """What the command line means, and the usage of its command; a UsageError carries the usage as its note."""
    place, rest = _place(top, given)
    try:
        _check_names(place, rest)
        wants_help = bool(_commands(place)) and not rest
        return top.parse_args([*given, "--help"] if wants_help else given, argparse.Namespace(line=given)), _usage(
            place
        )
    except UsageError as error:
        error.add_note(_usage(place))
        raise


def wants_json(given: list[str]) -> bool:
    """Whether the output is to be JSON, asked before anything is parsed: a command line may have errors."""
    return any(len(text) > 2 and "--json".startswith(text) for text in given)


def _place(top: argparse.ArgumentParser, given: list[str]) -> tuple[argparse.ArgumentParser, list[str]]:
    """The parser of the command that is named, and what stands behind its name."""
    place, rest = top, given
    while rest and rest[0] in _commands(place):
        place, rest = _commands(place)[rest[0]], rest[1:]
    return place, rest


def _commands(place: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [action for action in place._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found[0].choices) if found else {}


def _check_names(place: argparse.ArgumentParser, rest: list[str]) -> None:
    """Refuse a command or an option that there is not."""
    commands = _commands(place)
    if commands and rest and not rest[0].startswith("-"):
        raise unknown_name("command", rest[0][:40], commands)
    known = [text for action in place._actions for text in action.option_strings]
    for text in rest[: rest.index("--")] if "--" in rest else rest:
        option = text.partition("=")[0]
        if _OPTION.fullmatch(option) and not any(name.startswith(option) for name in known):
            near = near_name(f"--{option.lstrip('-')}", known, cutoff=0.7)
            raise UsageError(f"unknown option {option[:40]!r}: {near or 'expected one that this command has'}".strip())
        if text.startswith("--") and text.endswith("=--"):  # argparse would drop the dashes and their type
            raise UsageError(f"argument {text[:40]!r}: expected a value")


def _usage(place: argparse.ArgumentParser) -> str:
    """One line: what a command needs."""
    needed = [action for action in place._actions if action.required]
    formatter = argparse.HelpFormatter(place.prog, width=10_000)
    formatter.add_usage(None, needed, [])
    options = "" if _commands(place) else " [options]"
    return f"{formatter.format_help().strip()}{options}; more: {place.prog} --help"
