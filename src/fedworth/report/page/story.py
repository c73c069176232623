"""How the values came about: the model's improvement, each client's value over time, and who added what when."""

import base64
import math
from typing import Any

import numpy as np

from fedworth.arrays import Floats
from fedworth.report.page.figures import axis_over, dots, heat_png, nice_ticks, packed, path, picks_of
from fedworth.report.report import Report, Rounds

MOST_CELLS = 150_000
"""With more cells, several rounds share a column of the heat map."""
MOST_LINES = 120
MOST_DOTTED = (80, 30)
"""With more rounds or clients, the heat map does not show who took part."""
MOST_NAMED = 40
COLOURS = (0, 2, 1, 3)
"""Of the best client, which is blue, and of those with urgent findings, the first of which is orange."""
CLOSE, EDGE = 0.15, 0.015
"""Labels closer than this to the first are left out; labels this close to an end are aligned with it."""


View = dict[str, Any]
"""What the template shows, by name."""


def story_of(report: Report, order: list[int], flagged: list[int]) -> View | None:
    """The figures of a report with rounds, and under `data` the numbers behind them for the script.

    `order` is that of the table, `flagged` clients are shown in colour.
    """
    rounds, found = report.rounds, report.chosen.by_round
    if rounds is None or not len(rounds.numbers):
        return None
    data: View = {"numbers": list(rounds.numbers), "order": order, "clients": list(report.clients)}
    curve = None if rounds.gains is None else _curve(rounds.gains, rounds.numbers, data)
    if found is None or not np.isfinite(found).any():
        return {"curve": curve, "lines": None, "heat": None, "data": data}
    lines, heat = _lines(found, rounds, order, flagged, data), _heat(found, rounds, order, data)
    return {"curve": curve, "lines": lines, "heat": heat, "data": data}


def _curve(gains: Floats, numbers: tuple[int, ...], data: View) -> View:
    """The model's improvement since the start, after each round."""
    total = np.concatenate([[0.0], np.cumsum(gains)])
    data["gains"] = [float(f"{value:.6g}") for value in total]
    axis = axis_over(total, about=4)
    return {
        "gained": float(total[-1]),
        "axis": axis,
        "path": path(total[picks_of(len(total))], axis),
        "ticks": ticks_of(numbers, is_from_start=True),
    }


def _lines(found: Floats, rounds: Rounds, order: list[int], flagged: list[int], data: View) -> View:
    """Each client's value, added up over the rounds."""
    sums = np.cumsum(found, axis=0)  # (n_rounds, n_clients)
    picks = picks_of(len(sums))
    drawn = sums[picks].T  # (n_clients, n_picked)
    known = [k for k in order if np.isfinite(drawn[k]).all()]
    hot = dict(zip([known[0], *(k for k in flagged if k in known[1:])], COLOURS, strict=False))
    every = max(1, math.ceil(len(known) / MOST_LINES))
    shown = [k for k in known[::every] if k not in hot]
    axis = axis_over(drawn)
    data["sums"], data["sums_decimals"] = packed(drawn)
    data |= {"picks": picks.tolist(), "low": axis.low, "high": axis.high, "drawn": [*shown, *hot]}
    return {
        "axis": axis,
        "paths": [(k, path(drawn[k], axis)) for k in (*shown, *reversed(hot))],  # highlighted ones last, on top
        "hot": hot,
        "n_other": len(known) - len(hot),
        "ticks": ticks_of(rounds.numbers),
    }


def _heat(found: Floats, rounds: Rounds, order: list[int], data: View) -> View:
    """Who added what in which round."""
    n_rounds, n_clients = found.shape
    per_column = math.ceil(n_rounds * n_clients / MOST_CELLS)
    starts = np.arange(0, n_rounds, per_column)
    cells = np.add.reduceat(found, starts, axis=0).T  # (n_clients, n_columns)
    top = float(np.nanquantile(np.abs(cells), 0.995)) or 1.0
    data["cells"], data["cells_decimals"] = packed(cells)
    heard = np.logical_or.reduceat(rounds.participants, starts, axis=0).T  # (n_clients, n_columns)
    data["heard"] = base64.b64encode(np.packbits(heard, axis=1, bitorder="little").tobytes()).decode()
    data["per_column"], data["n_columns"] = per_column, len(starts)
    is_dotted = n_rounds <= MOST_DOTTED[0] and n_clients <= MOST_DOTTED[1]
    decimals = max(3, -math.floor(math.log10(top)) + 1)
    return {
        "image": heat_png(cells[order], top),
        "top": f"{top:.{decimals}f}",
        "dots": dots(rounds.participants.T[order]) if is_dotted else "",
        "is_named": n_clients <= MOST_NAMED,
        "per_column": per_column,
        "n_columns": len(starts),
        "ticks": ticks_of(rounds.numbers, is_cells=True),
    }


def ticks_of(
    numbers: tuple[int, ...], *, is_from_start: bool = False, is_cells: bool = False
) -> tuple[tuple[str, str, str], ...]:
    """Labels below a figure, (where, anchor, text): some rounds by the federation's own numbers."""
    n = len(numbers)
    first = 0 if is_from_start else 1
    steps = [int(step) for step in nice_ticks(0, n, 4)[1:] if step == int(step)] if n > 1 else []
    far = [step for step in steps if step - first > CLOSE * n]
    labels = []
    for place in (first, *far):
        share = place / n if is_from_start else (place - 0.5) / n if is_cells else (place - 1) / max(n - 1, 1)
        anchor = "end" if share > 1 - EDGE else "start" if share < EDGE and not is_cells else "middle"
        text = "start" if place == 0 else str(numbers[place - 1])
        is_long = place == (far[0] if is_from_start and far else 1) and not is_cells
        labels.append((f"{100 * share:.2f}%", anchor, f"round {text}" if is_long else text))
    return tuple(labels)
