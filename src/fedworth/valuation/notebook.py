"""A valuation in a notebook: a table with bars, without a script, in the notebook's light or dark colours.

Notebooks that are not trusted remove the style; then the plain text is shown, which the style hides. Names come from
clients and may contain anything, so they are escaped.
"""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from fedworth.colours import DARK, LIGHT

if TYPE_CHECKING:
    from fedworth.valuation.valuation import ClientValue

MOST_ROWS = 20
ABSENT = "–"
_ROLES = ("plus", "minus", "edge", "soft")

_RULES = """
.fedworth-text{display:none}.fedworth-view{font-size:.9em}.fedworth-view table{border-collapse:collapse}
.fedworth-view th,.fedworth-view td{padding:.15em .8em .15em 0;text-align:right;white-space:nowrap;border:0}
.fedworth-view th:first-child,.fedworth-view caption,.fedworth-view p{text-align:left;color:inherit}
.fedworth-view svg{display:block;width:12em;height:1.3em;overflow:visible}
.fedworth-view .p{fill:var(--fw-plus);stroke:var(--fw-plus)}
.fedworth-view .m{fill:var(--fw-minus);stroke:var(--fw-minus)}
.fedworth-view .z{stroke:var(--fw-edge)}.fedworth-view rect{fill-opacity:.38;stroke:none}
.fedworth-view,.fedworth-view td{color:var(--jp-content-font-color0,inherit)}
"""


def signed(value: float | None, digits: int = 2) -> str:
    """A number with its sign (a true minus, never −0.00), or a dash for None."""
    if value is None:
        return ABSENT
    text = f"{abs(value):,.{digits}f}"
    return ("−" if value < 0 and any(mark in text for mark in "123456789") else "+") + text


def ranks_text(line: "ClientValue") -> str:
    """A rank, as a range if its interval is known."""
    if line.ranks is not None:
        return str(line.ranks[0]) if line.ranks[0] == line.ranks[1] else f"{line.ranks[0]}–{line.ranks[1]}"
    return ABSENT if line.rank is None else str(line.rank)


def interval_text(line: "ClientValue", digits: int) -> str:
    """The ends of the 90 % interval, if they are known."""
    return ABSENT if line.low is None else f"{signed(line.low, digits)} to {signed(line.high, digits)}"


def share_text(share: float | None) -> str:
    """A share in whole percents; small shares are "under 1 %", not 0."""
    if share is None:
        return ABSENT
    return "under 1\N{NO-BREAK SPACE}%" if 0 < share < 0.005 else f"{100 * share:.0f}\N{NO-BREAK SPACE}%"


def digits_of(lines: Sequence["ClientValue"]) -> int:
    """Decimals that show two digits of the largest value; at least two."""
    largest = max((abs(line.value) for line in lines if line.value is not None), default=0.0)
    decimals = 2
    while 0 < largest * 10**decimals < 10 and decimals < 8:
        decimals += 1
    return decimals


def notebook_html(title: str, text: str, lines: Sequence["ClientValue"], note: str = "") -> str:
    """The table of these lines, most valuable first, and the plain text that replaces it."""
    ordered = sorted(lines, reverse=True)
    shown, n_more = ordered[:MOST_ROWS], max(0, len(ordered) - MOST_ROWS)
    digits = digits_of(lines)
    rows = "".join(_row(line, _reach(ordered), digits) for line in shown)
    heads = "".join(f"<th>{head}</th>" for head in ("client", "", "value", "likely range", "share", "rank"))
    more = f"<p>… {n_more:,} more</p>" if n_more else ""
    note_html = f"<p>{escape(note)}</p>" if note else ""
    table = f"<table><caption>{escape(title)}</caption><tr>{heads}</tr>{rows}</table>"
    plain = f'<pre class="fedworth-text">{escape(text)}</pre>'
    return f'<style>{_style()}</style>{plain}<div class="fedworth-view">{table}{more}{note_html}</div>'


def _row(line: "ClientValue", reach: tuple[float, float], digits: int) -> str:
    texts = (signed(line.value, digits), interval_text(line, digits), share_text(line.share), ranks_text(line))
    cells = (_bar(line, reach), *texts)
    return f"<tr><th><bdi>{escape(line.client)}</bdi></th>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _bar(line: "ClientValue", reach: tuple[float, float]) -> str:
    """A bar from zero to the value with its interval, in percent of the width."""
    if line.value is None:
        return ""
    low, high = reach

    def across(x: float) -> float:
        return 100 * (x - low) / (high - low)

    left, right = sorted((across(0), across(line.value)))
    bar = f'<rect x="{left:.1f}%" width="{right - left:.1f}%" y="25%" height="50%"/>'
    if line.low is not None and line.high is not None:
        bar += f'<line x1="{across(line.low):.1f}%" x2="{across(line.high):.1f}%" y1="50%" y2="50%"/>'
    bar += f'<circle cx="{across(line.value):.1f}%" cy="50%" r="3"/>'
    zero = f'<line class="z" x1="{across(0):.1f}%" x2="{across(0):.1f}%" y1="0" y2="100%"/>'
    return f'<svg aria-hidden="true">{zero}<g class="{"p" if line.value >= 0 else "m"}">{bar}</g></svg>'


def _reach(lines: Sequence["ClientValue"]) -> tuple[float, float]:
    """The range of the bars: zero, all values and all intervals, with a margin."""
    ends = [end for line in lines for end in (line.value, line.low, line.high) if end is not None]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    room = 0.03 * (high - low) or 1.0
    return low - room, high + room


def _style() -> str:
    light, dark = (";".join(f"--fw-{role}:{theme[role]}" for role in _ROLES) for theme in (LIGHT, DARK))
    in_dark = "html[data-theme=dark] .fedworth-view,[data-jp-theme-light=false] .fedworth-view"
    themes = f".fedworth-view{{{light}}}{in_dark}{{{dark}}}"
    return themes + _RULES.strip().replace("\n", "")
