"""Most lines of a manifest in half the time, so that a ledger of 32,000 rounds is opened within a second.

A round's line as fedworth writes it has its fields in one order, so one regular expression takes it apart. Its lists
(who was asked, who answered, their counts) are much the same in every round: each spelling is parsed and checked once,
by the same checks as any other line's, and known from then on. A line that does not fit is left to `parsed_line`.
"""

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
            try:
                said[name] = known[text]
            except KeyError:
                if not _learn(known, text, hint):
                    return None
                said[name] = known[text]
        return RoundEntry(
            round_index=int(index), number=int(number), file=file.decode(), sha256=sha256.decode(), **said
        )


def _learn(known: dict[bytes | None, Any], text: bytes, hint: Any) -> bool:
    """Parse and check a spelling that was not met before; False if it is not a right one."""
    is_right, _ = CHECKED[hint]
    try:
        value, end = SCAN(text.decode())
    except ValueError:
        return False
    if end != len(text) or not is_right(value):
        return False
    if len(known) >= MOST_KNOWN:
        known.clear()
        known[None] = ()
    known[text] = tuple(value) if type(value) is list else value
    return True
