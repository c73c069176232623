"""Commands from dataclasses: name, type, default and help of an option are written once.

A command is a frozen dataclass with a `run` method. The first line of its docstring is the summary, the section `Args:`
the help of its fields. A field without a default is an argument, a field with one is an option, and a field that is a
settings dataclass adds the options of that class, except those that its metadata lists under `hidden`. Equal names in
two of them are one option that sets both. Metadata `is_argument` makes a field with a default an argument, too.

    n_rounds: int = 10               --rounds N
    with_truth: bool = True          --no-truth
    strict: bool = False             --strict
    without: tuple[str, ...] = ()    --without TEXT, repeated
    hidden: tuple[int, ...] = ()     --hidden N,N
"""

import argparse
import csv
import dataclasses
import inspect
import math
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedworth.errors import UsageError, near_name, unknown_name
from fedworth.names import GroupShares

NAMES = {
    "copies": "copy",
    "copies_shuffled": "shuffle-copies",
    "copies_halved": "halve-copies",
    "noise_shares": "noise",
    "flip_shares": "flips",
    "n_steps": "local-steps",
    "n_epochs": "local-epochs",
    "everyone_heard": "everyone-first",
    "evaluations": "budget",
    "data_folder": "data",
    "n_threads": "threads",
    "all_clients": "all",
}
"""Fields whose option is named differently."""

NEVER_OPTIONS = {"command", "max_sweeps", "line"}
"""Fields that only programs set."""

SWITCHED_OFF = {
    "everyone_heard": "Do not ask all clients in the first round.",
    "with_truth": "Do not train the absent clients, so that the truth stays unknown.",
    "with_validation": "Let clients of a vertical federation send embeddings of their training batch only.",
    "cache": "Neither use nor keep measured utilities in your cache folder ($FEDWORTH_CACHE).",
}
"""Help of the switches that turn a field off; the field's own help says what it does when it is on."""

MOST_DIGITS = 18
_OPTION = re.compile(r"--?[A-Za-z]\S*")


@dataclass(frozen=True)
class Option:
    """One argument or option of a command, and the fields that it sets."""

    name: str  # "rounds", or a positional argument's name
    help: str
    type: Any  # without None
    default: Any  # dataclasses.MISSING: a positional argument
    fields: tuple[tuple[str, ...], ...]  # paths from the command to the fields
    is_argument: bool = False  # may be given as an argument or as an option

    @property
    def is_positional(self) -> bool:
        return self.default is dataclasses.MISSING and not self.is_required_option

    @property
    def is_required_option(self) -> bool:
        return self.default is dataclasses.MISSING and self.name in ("out", "pool")

    @property
    def flag(self) -> str:
        """The option as it is typed."""
        if self.type is bool and self.default is True:
            return f"--no-{self.name}"
        return f"--{self.name}"

    @property
    def metavar(self) -> str:
        """The placeholder for the value; empty for a switch."""
        return _form(self.type)[0]

    def meaning(self) -> str:
        """The help, with the default where it says something."""
        text, is_plain = self.help, isinstance(self.default, int | float | str) and not isinstance(self.default, bool)
        if is_plain and self.default != "" and "default" not in text:
            text = f"{text.rstrip('.')} (default {self.default})"
        if _is_repeated(self.type):
            text = f"{text.rstrip('.')} (repeatable)"
        return text.rstrip(".")


def options_of(kind: type, path: tuple[str, ...] = ()) -> list[Option]:
    """All arguments and options of a command, those of its settings included."""
    found: dict[str, Option] = {}
    hints, documented = typing.get_type_hints(kind), {**_documented(kind), **SWITCHED_OFF}
    for field in dataclasses.fields(kind):
        hint, place = hints[field.name], (*path, field.name)
        if dataclasses.is_dataclass(hint):
            hidden = set(field.metadata.get("hidden", ()))
            inner = options_of(typing.cast(type, hint), place)
            added = [option for option in inner if not any(hidden & set(path) for path in option.fields)]
        elif field.name in NEVER_OPTIONS:
            continue
        else:
            is_argument = field.metadata.get("is_argument", False)
            name = NAMES.get(field.name) or field.name.removeprefix("n_").removeprefix("with_").replace("_", "-")
            factory = field.default_factory
            default = field.default if factory is dataclasses.MISSING else factory()
            added = [Option(name, documented[field.name], _without_none(hint), default, (place,), is_argument)]
        for option in added:
            same = found.get(option.name)
            fields = option.fields if same is None else same.fields + option.fields
            found[option.name] = dataclasses.replace(same or option, fields=fields)
    return list(found.values())


def add_options(parser: argparse.ArgumentParser, options: list[Option]) -> None:
    """Add the options to a parser; an option that is not given is absent from the parsed arguments."""
    for option in options:
        metavar, read = _form(option.type)
        given: dict[str, Any] = {"help": option.meaning().replace("%", "%%"), "default": argparse.SUPPRESS}
        if option.type is bool:
            parser.add_argument(option.flag, dest=option.name, action="store_const", const=not option.default, **given)
            continue
        given["type"] = read
        if option.is_positional or option.is_argument:
            n_values = "?" if option.is_argument else "+" if typing.get_origin(option.type) is tuple else None
            parser.add_argument(option.name, metavar=option.name.upper(), nargs=n_values, **given)
        if not option.is_positional:
            given |= {"metavar": metavar, "action": "append" if _is_repeated(option.type) else "store"}
            parser.add_argument(option.flag, dest=option.name, required=option.is_required_option, **given)


def command_from(kind: type, options: list[Option], given: dict[str, Any]) -> Any:
    """The command with the given options; all others have their defaults."""
    tree: dict[str, Any] = {}
    for option in options:
        if option.name in given:
            value = given[option.name]
            if value == [] or (isinstance(value, list) and [] in value):  # what argparse makes of  --rate=--
                raise UsageError(f"{option.flag}: found '--', expected a value")
            value = tuple(value) if isinstance(value, list) else value
            for path in option.fields:
                place = tree
                for name in path[:-1]:
                    place = place.setdefault(name, {})
                place[path[-1]] = value
    return _build(kind, tree)


def _build(kind: type, tree: dict[str, Any]) -> Any:
    hints, metadata = typing.get_type_hints(kind), {field.name: field.metadata for field in dataclasses.fields(kind)}
    given = {}
    for name, value in tree.items():
        if dataclasses.is_dataclass(hints[name]):
            adjust = metadata[name].get("adjust", dict)  # where one option changes another's default
            value = _build(typing.cast(type, hints[name]), adjust(value))
        given[name] = value
    return kind(**given)


def refuse_unknown(options: list[Option], given: list[str]) -> None:
    """Refuse an option that the command does not have, with the nearest name that it has."""
    known = [option.flag for option in options if not option.is_positional] + ["--help", "--json"]
    for text in given[: given.index("--")] if "--" in given else given:
        name = text.partition("=")[0]
        if _OPTION.fullmatch(name) and name != "-h" and not any(flag.startswith(name) for flag in known):
            near = near_name(f"--{name.lstrip('-')}", known, cutoff=0.7)
            raise UsageError(f"unknown option {name[:40]!r}: {near or 'expected one that this command has'}".strip())


def summary_of(kind: type) -> str:
    """The first paragraph of a command's docstring."""
    return " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())


def example_of(kind: type) -> str:
    """The example in a command's docstring, a command line."""
    text = inspect.cleandoc(kind.__doc__ or "")
    return text.partition("Example:\n")[2].strip()


def _documented(kind: type) -> dict[str, str]:
    """Field → help, from the section `Args:` of a docstring."""
    documents = [base.__doc__ or "" for base in kind.__mro__ if "Args:\n" in (base.__doc__ or "")]
    text = inspect.cleandoc(documents[0] if documents else "").partition("Args:\n")[2].split("\n\n")[0]
    found: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        start = re.match(r" {4}(\w+): (.*)", line)
        if start:
            name = start[1]
            found[name] = start[2]
        elif name:
            found[name] += " " + line.strip()
    return {name: text.replace("`", "") for name, text in found.items()}


def _without_none(hint: Any) -> Any:
    """X of `X | None`."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        return kinds[0]
    return hint


def _is_repeated(kind: Any) -> bool:
    """Whether an option is given once for each item: texts and pairs; numbers are given in one list with commas."""
    return typing.get_origin(kind) is tuple and typing.get_args(kind)[0] not in (int, float)


def _form(kind: Any) -> tuple[str, Callable[[str], Any]]:
    """The placeholder of an option's value, and what reads it; of texts and pairs, those of each one."""
    if typing.get_origin(kind) is Literal:
        known = typing.get_args(kind)
        return "|".join(map(str, known)), _choice(known)
    if typing.get_origin(kind) is not tuple:
        return FORMS[kind]
    inner = typing.get_args(kind)[0]
    if inner in (int, float):
        return f"{FORMS[inner][0]},…", lambda text: _numbers(text, inner)
    return ("I=J", _pair) if typing.get_origin(inner) is tuple else _form(inner)


def _choice(known: tuple[Any, ...]) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        if text not in known:
            raise unknown_name("value", text[:40], map(str, known))
        return text

    return convert


def whole(text: str) -> int:
    """A non-negative integer that fits into 64 bits."""
    if not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS):
        raise argparse.ArgumentTypeError(f"found {text[:40]!r}, expected a whole number from 0 on")
    return int(text)


def real(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"found {text[:40]!r}, expected a finite number")
    return number


def _numbers(text: str, kind: type) -> Any:
    """Numbers with commas between them; `step:S` stays text: S·i for client i, as many as there are clients."""
    if text.startswith("step:") and kind is float:
        return Steps(real(text.removeprefix("step:")))
    convert: Callable[[str], Any] = whole if kind is int else real
    return tuple(convert(part) for part in text.split(",") if part)


@dataclass(frozen=True)
class Steps:
    """S·i for client i."""

    step: float

    def for_clients(self, n_clients: int) -> tuple[float, ...]:
        return tuple(self.step * k for k in range(n_clients))


def _shares(text: str) -> GroupShares:
    """Shares of groups: `equal`, or a CSV file with a group and its share in each line, and perhaps a heading."""
    if text == "equal":
        return "equal"
    try:
        rows = [row for row in csv.reader(Path(text).read_text(encoding="utf-8-sig").splitlines()) if row]
        heading = 1 if rows and not rows[0][-1].strip().replace(".", "", 1).isdigit() else 0
        found = {name.strip(): real(share.strip()) for name, share in rows[heading:]}
    except (OSError, ValueError, argparse.ArgumentTypeError) as error:
        raise argparse.ArgumentTypeError(
            f"{text[:80]!r}: cannot be read ({error}); expected equal, or a CSV file with lines such as  north,0.3"
        ) from error
    return found


def _pair(text: str) -> tuple[int, int]:
    if not re.fullmatch(rf"[0-9]{{1,{MOST_DIGITS}}}=[0-9]{{1,{MOST_DIGITS}}}", text):
        raise argparse.ArgumentTypeError(f"found {text[:40]!r}, expected I=J, two client numbers")
    left, right = map(int, text.split("="))
    return left, right


FORMS: dict[Any, tuple[str, Callable[[str], Any]]] = {
    bool: ("", str),
    int: ("N", whole),
    float: ("X", real),
    str: ("TEXT", str),
    Path: ("PATH", Path),
    dict[str, float]: ("FILE|equal", _shares),
}
"""The placeholder of each kind of value, and what reads it; a switch has no value."""
