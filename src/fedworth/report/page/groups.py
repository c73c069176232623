"""Who helps whom on the page: a table of clients and groups of test samples, in which colour repeats the numbers.

A cell whose range includes zero has no colour: nobody can say whether the client helps that group.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedworth.report.page.clients import Row, share_text
from fedworth.report.report import Report
from fedworth.report.settings import PageSettings
from fedworth.valuation.groups import GroupValues
from fedworth.valuation.notebook import signed

MOST_CELLS = 2_000
"""With more cells the page shows only the clients that it does not fold."""
N_TONES = 4
"""Steps of colour for each sign."""


def group_table(report: Report, rows: list[Row], settings: PageSettings) -> dict[str, Any] | None:
    """The table of a report whose values are known by group, as the template shows it."""
    found = report.chosen.groups
    if found is None:
        return None
    values, half = found.values, found.half_widths
    top = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    digits = max(2, 1 - math.floor(math.log10(top)))
    shown = rows if values.size <= MOST_CELLS else [row for row in rows if not row.is_folded]

    def cell(client: int, group: int) -> dict[str, str]:
        """The value as text, its range if that is known, and its colour: p1 to p4 helps, m1 to m4 harms."""
        value, width = float(values[client, group]), float(half[client, group])
        if math.isnan(value):
            return {"text": "–", "interval": "", "css": ""}
        is_clear = abs(value) > width  # False if the width is not known
        tone = min(N_TONES, 1 + int(N_TONES * math.sqrt(abs(value) / top)))
        interval = "" if math.isnan(width) else f"{signed(value - width, digits)} to {signed(value + width, digits)}"
        css = f"{'p' if value > 0 else 'm'}{tone}" if is_clear else "unclear"
        return {"text": signed(value, digits), "interval": interval, "css": css}

    known = {"share of the test data": found.shares, "share of the population": found.population}
    whole = np.column_stack([values, report.chosen.values]).tolist()
    return {
        "by": found.by,
        "names": found.names,
        "shares": [(of, [*map(share_text, shares.tolist())]) for of, shares in known.items() if shares is not None],
        "rows": [(row, [cell(row.place, group) for group in range(len(found.names))]) for row in shown],
        "n_hidden": len(rows) - len(shown),  # clients that are left out, because there are too many
        "lines": list(_lines(report, found, settings.noun)),
        "sort": [[None if math.isnan(x) else x for x in row] for row in whole],
    }


def _lines(report: Report, found: GroupValues, noun: str) -> Iterator[str]:
    """Which groups one client alone clearly helps, and which nobody does."""
    helps = found.signs > 0  # (n_clients, n_groups)
    n_helping = helps.sum(axis=0)
    if alone := [k for k in range(len(found.names)) if n_helping[k] == 1]:
        by = [report.clients[int(np.argmax(helps[:, k]))] for k in alone]
        by = [f"{noun} {name}" if name.isdigit() else name for name in by]
        told = ", ".join(f"{found.by} {found.names[k]} (by {name})" for k, name in zip(alone, by, strict=True))
        yield f"Clearly helped by one {noun} alone: {told}."
    if nobody := [found.names[k] for k in range(len(found.names)) if n_helping[k] == 0]:
        yield f"Clearly helped by nobody: {found.by} {', '.join(nobody)}."
