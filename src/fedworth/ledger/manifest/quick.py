"""Most lines of a manifest in half the time, so that a ledger of 32,000 rounds is opened within a second.

A round's line as fedworth writes it has its fields in one order, so one regular expression takes it apart. Its lists
(who was asked, who answered, their counts) are much the same in every round: each spelling is parsed and checked once,
by the same checks as any other line's, and known from then on. A line that does not fit is left to `parsed_line`.
"""

import contextlib
import json
import re
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


NOTHING = object()
"""What a wrong spelling says; null says None."""


class QuickReader:
    """Reads the lines of one manifest, and remembers what their lists say."""

    def __init__(self) -> None:
        by_hint = {hint: dict[bytes | None, Any]({None: ()}) for hint in CHECKED}
        self._known = [(name, FIELDS[name], by_hint[FIELDS[name]]) for name in ALIKE]

    def read(self, raw: bytes) -> RoundEntry | None:
        """The round that a line speaks of; None if it is not spelled as expected, or something in it is not right."""
        found = LINE.fullmatch(raw)
        if found is None:
            return None
        index, number, file, sha256, *spelled = found.groups()
        said = {}
        for (name, hint, known), text in zip(self._known, spelled, strict=True):
            value = known.get(text, NOTHING)
            if value is NOTHING:
                value = _learnt(known, text, hint)
                if value is NOTHING:
                    return None
            said[name] = value
        return RoundEntry(
            round_index=int(index), number=int(number), file=file.decode(), sha256=sha256.decode(), **said
        )


def _learnt(known: dict[bytes | None, Any], text: bytes, hint: Any) -> Any:
    """What a spelling says that was not met before; NOTHING if it is not a right one."""
    value: Any = NOTHING
    if hint == tuple[str, ...]:  # between quotes and commas, plain texts are what they look like
        texts = () if text == b"[]" else tuple(text[2:-2].decode().split('", "'))
        value = texts if text.count(b'"') == 2 * len(texts) else NOTHING
    else:
        with contextlib.suppress(ValueError):
            found, end = SCAN(text.decode())
            is_right = end == len(text) and CHECKED[hint][0](found)
            value = (tuple(found) if type(found) is list else found) if is_right else NOTHING
    if len(known) >= MOST_KNOWN:
        known.clear()
        known[None] = ()
    known[text] = value
    return value
