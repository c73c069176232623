"""The page's figures on axes of your own: same order, colours and wording as on the page.

Each function draws on `ax`, or on a new figure's if there is none, and returns the axes. None shows a window or changes
matplotlib's settings.
"""

from typing import Any

import numpy as np

from fedworth.colours import LIGHT
from fedworth.errors import ArtefactError, UsageError
from fedworth.report.comparison import Comparison
from fedworth.report.report import Report
from fedworth.report.rounds import Rounds

SERIES = (LIGHT["plus"], LIGHT["minus"], LIGHT["care"], LIGHT["ink"])
INCHES_A_ROW = 0.32


def plot_values(report: Report, ax: Any = None) -> Any:
    """Bars of the chosen values with their 90 % intervals, the most valuable on top.

    Args:
        report: What is drawn.
        ax: The matplotlib axes to draw on; those of a new figure if there are none.

    Returns:
        The axes that were drawn on; nothing is shown.

    Example:
        fedworth.plot_values(report).figure.savefig("values.svg")
    """
    lines = [line for line in sorted(report, reverse=True) if line.value is not None]
    axes = _axes(ax, len(lines))
    for place, line in enumerate(lines):
        value = line.value or 0.0
        colour = LIGHT["plus"] if value >= 0 else LIGHT["minus"]
        is_unsure = line.low is not None and line.helps is None
        look = {"facecolor": "none", "edgecolor": colour, "linestyle": "--"} if is_unsure else {"color": colour}
        axes.barh(place, value, height=0.4, alpha=0.6 if is_unsure else 0.38, **look)
        if line.low is not None and line.high is not None:
            axes.plot([line.low, line.high], [place, place], color=colour, linewidth=2)
        axes.plot([value], [place], "o", color=colour, markersize=5)
    axes.set_yticks(range(len(lines)), [line.client for line in lines])
    axes.invert_yaxis()
    axes.axvline(0, color=LIGHT["edge"], linewidth=1)
    axes.set_xlabel(f"value by {report.chosen.method}")
    return axes


def plot_gains(report: Report, ax: Any = None) -> Any:
    """How much better the model was after each round than before the first.

    Args:
        report: What is drawn.
        ax: The matplotlib axes to draw on; those of a new figure if there are none.

    Returns:
        The axes that were drawn on; nothing is shown.

    Example:
        fedworth.plot_gains(report, ax=axes)
    """
    rounds = _rounds(report)
    if rounds.gains is None:
        raise ArtefactError(f"{report.title}: what each round gained was not measured")
    axes = _axes(ax, 8)
    axes.plot(range(len(rounds.gains) + 1), [0.0, *np.cumsum(rounds.gains)], color=LIGHT["plus"])
    axes.set_xlabel("rounds")
    axes.set_ylabel("improvement since the start")
    return axes


def plot_course(report: Report, ax: Any = None) -> Any:
    """Each client's value, added up over the rounds; the best in blue, those that end below zero in orange.

    Args:
        report: What is drawn.
        ax: The matplotlib axes to draw on; those of a new figure if there are none.

    Returns:
        The axes that were drawn on; nothing is shown.

    Example:
        fedworth.plot_course(report).figure.savefig("course.svg")
    """
    rounds, found = _rounds(report), _by_round(report)
    sums = np.cumsum(found, axis=0)
    axes = _axes(ax, 10)
    best = int(np.nanargmax(sums[-1]))
    for k in range(sums.shape[1]):
        colour = LIGHT["plus"] if k == best else LIGHT["minus"] if sums[-1, k] < 0 else LIGHT["grey"]
        label = report.clients[k] if k == best else None
        axes.plot(rounds.numbers, sums[:, k], color=colour, linewidth=2 if k == best else 1.2, label=label)
    axes.axhline(0, color=LIGHT["edge"], linewidth=1)
    axes.set_xlabel("round")
    axes.set_ylabel("value so far")
    axes.legend(frameon=False)
    return axes


def plot_rounds(report: Report, ax: Any = None) -> Any:
    """Who added what in which round, the most valuable on top: blue helped, orange harmed.

    Args:
        report: What is drawn.
        ax: The matplotlib axes to draw on; those of a new figure if there are none.

    Returns:
        The axes that were drawn on; nothing is shown.

    Example:
        fedworth.plot_rounds(report).figure.savefig("rounds.svg")
    """
    matplotlib = _matplotlib()
    rounds, found = _rounds(report), _by_round(report)
    place = {client: k for k, client in enumerate(report.clients)}
    order = [place[line.client] for line in sorted(report, reverse=True)]
    axes = _axes(ax, len(order))
    top = float(np.nanquantile(np.abs(found), 0.995)) or 1.0
    colours = matplotlib.colors.LinearSegmentedColormap.from_list("worth", [LIGHT["minus"], "#ffffff", LIGHT["plus"]])
    reach = (rounds.numbers[0] - 0.5, rounds.numbers[0] + len(rounds.numbers) - 0.5, len(order) - 0.5, -0.5)
    axes.imshow(found.T[order], cmap=colours, vmin=-top, vmax=top, aspect="auto", extent=reach, interpolation="nearest")
    axes.set_yticks(range(len(order)), [report.clients[k] for k in order])
    axes.set_xlabel("round")
    return axes


def plot_comparison(comparison: Comparison, ax: Any = None) -> Any:
    """Each client's value in each report, with its interval.

    Args:
        comparison: What `compare_reports` found.
        ax: The matplotlib axes to draw on; those of a new figure if there are none.

    Returns:
        The axes that were drawn on; nothing is shown.

    Example:
        fedworth.plot_comparison(comparison).figure.savefig("compare.svg")
    """
    axes = _axes(ax, len(comparison.rows))
    n = len(comparison.names)
    for column, name in enumerate(comparison.names):
        colour = SERIES[column % len(SERIES)]
        known = [(row, w) for row, entry in enumerate(comparison.rows) if (w := entry.worths[column]).value is not None]
        places = [row + 0.6 * ((column + 0.5) / n - 0.5) for row, _ in known]
        axes.plot([worth.value for _, worth in known], places, "o", color=colour, markersize=4, label=name)
        for place, (_, worth) in zip(places, known, strict=True):
            if worth.low is not None and worth.high is not None:
                axes.plot([worth.low, worth.high], [place, place], color=colour, linewidth=1.5)
    axes.set_yticks(range(len(comparison.rows)), [row.client for row in comparison.rows])
    axes.invert_yaxis()
    axes.axvline(0, color=LIGHT["edge"], linewidth=1)
    axes.set_xlabel("value")
    axes.legend(frameon=False)
    return axes


def _axes(ax: Any, n_rows: int) -> Any:
    """The axes given, or those of a new figure with room for so many rows."""
    if ax is not None:
        return ax
    return _matplotlib().pyplot.subplots(figsize=(7, max(2.5, INCHES_A_ROW * n_rows)), layout="constrained")[1]


def _rounds(report: Report) -> Rounds:
    if report.rounds is None:
        raise ArtefactError(f"{report.title}: the report says nothing of its rounds; make it again from the ledger")
    return report.rounds


def _by_round(report: Report) -> Any:
    found = _rounds(report).values.get(report.chosen.method)
    if found is None:
        raise ArtefactError(f"{report.title}: the values by {report.chosen.method} were not taken apart by round")
    return found


def _matplotlib() -> Any:
    try:
        import matplotlib
        import matplotlib.pyplot
    except ImportError:
        raise UsageError("plots need matplotlib: install it with  pip install 'fedworth[plots]'") from None
    return matplotlib
