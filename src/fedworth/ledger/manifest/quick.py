"""Most lines of a manifest in a third of the time, so that a ledger of 32,000 rounds is opened within a second.

A round's line as fedworth writes it has its fields in one order, so one regular expression takes it apart. Its lists
(who was asked, who answered, their counts) speak of the same clients in every round: each spelling of a list, and in a
new list each spelling of an item, is parsed and checked once, by the same checks as any other line's, and known from
then on. A line that does not fit is left to `parsed_line`.
"""

import json
import re
from collections.abc import Callable
from typing import Any, get_type_hints

from fedworth.ledger.manifest.lines import OPTIONAL, RoundEntry
from fedworth.ledger.manifest.parsing import CHECKED

MOST_KNOWN = 20_000  # spellings of a kind that are remembered: rounds that all differ must not fill the memory
SCAN = json.JSONDecoder().raw_decode  # what json.loads calls once it has guessed the encoding, which takes it as long
PLAIN = rb"[ !#-\[^-~]*"  # ASCII without quotes, backslashes and closing brackets: it is what it looks like
SPELLED: dict[Any, bytes] = {
    int: rb"(0|[1-9][0-9]{0,17})",
    str: rb'"(' + PLAIN + rb')"',
    str | None: rb'(null|"' + PLAIN + rb'")',
    tuple[int, ...]: rb"(\[[0-9, ]*\])",
    tuple[str, ...]: rb'(\[\]|\["[ !"#-\[^-~]*"\])',
    tuple[float, ...]: rb"(\[[0-9., ]*\])",
}
FIELDS = get_type_hints(RoundEntry)
UNIQUE = ("round_index", "number", "file", "sha256")  # they differ in every round, and stand first
ALIKE = tuple(name for name in FIELDS if name not in UNIQUE)


def _field(name: str) -> bytes:
    spelled = rb', "' + name.encode() + rb'": ' + SPELLED[FIELDS[name]]
    return rb"(?:" + spelled + rb")?" if name in OPTIONAL else spelled


LINE = re.compile(rb'\{"kind": "round"' + b"".join(_field(name) for name in FIELDS) + rb', "chain": "[0-9a-f]{64}"\}')


class Known(dict[bytes | None, Any]):
    """What the spellings met so far say; a new one is read, and is a ValueError if it is not right."""

    def __init__(self, read: Callable[[bytes], Any]) -> None:
        super().__init__({None: ()})  # a field that the line leaves out
        self._read = read

    def __missing__(self, text: bytes) -> Any:
        value = self._read(text)
        if len(self) >= MOST_KNOWN:
            self.clear()
            self[None] = ()
        self[text] = value
        return value


class QuickReader:
    """Reads the lines of one manifest, and remembers what their lists say."""

    def __init__(self) -> None:
        by_hint = {hint: Known(_reader(hint)) for hint in {FIELDS[name] for name in ALIKE}}
        self._known = [by_hint[FIELDS[name]] for name in ALIKE]

    def read(self, raw: bytes) -> RoundEntry | None:
        """The round that a line speaks of; None if it is not spelled as expected, or something in it is not right."""
        found = LINE.fullmatch(raw)
        if found is None:
            return None
        index, number, file, sha256, *spelled = found.groups()
        try:
            said = [known[text] for known, text in zip(self._known, spelled, strict=True)]
        except ValueError:
            return None
        return RoundEntry(int(index), int(number), file.decode(), sha256.decode(), *said)


def _reader(hint: Any) -> Callable[[bytes], Any]:
    """What reads a spelling of this type."""
    if hint == str | None:
        return lambda text: _checked(text, hint)
    if hint == tuple[str, ...]:
        texts = Known(_text)
        return lambda text: () if text == b"[]" else tuple(map(texts.__getitem__, text[2:-2].split(b'", "')))
    numbers = Known(lambda text: _only(_checked(b"[" + text + b"]", hint)))
    return lambda text: () if text == b"[]" else tuple(map(numbers.__getitem__, text[1:-1].split(b", ")))


def _text(text: bytes) -> str:
    """A plain text as it stands between quotes: it is what it looks like."""
    if b'"' in text:
        raise ValueError("a quote between quotes")
    return text.decode()


def _only(found: list[float]) -> float:
    """The one item of a list; several are spelled without the blank that fedworth writes."""
    if len(found) != 1:
        raise ValueError(f"{len(found)} numbers, expected 1")
    return found[0]


def _checked(text: bytes, hint: Any) -> Any:
    """What JSON reads in a spelling, if that is all of it and passes the check of its type."""
    found, end = SCAN(text.decode())
    if end != len(text) or not CHECKED[hint][0](found):
        raise ValueError(f"not a right spelling of {hint}")
    return found
