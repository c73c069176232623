"""The page's figures on matplotlib axes: same order, colours and words as on the page.

Each function draws on `ax`, or on a new figure, and returns the axes. None shows a window or changes matplotlib's
settings. Users call them as methods of `Report` and `Comparison`.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from fedworth.arrays import Floats
from fedworth.colours import LIGHT
from fedworth.errors import ArtefactError, UsageError

if TYPE_CHECKING:
    from fedworth.report.comparison import Comparison
    from fedworth.report.report import Report, Rounds

SERIES = (LIGHT["plus"], LIGHT["minus"], LIGHT["care"], LIGHT["ink"])
INCHES_PER_ROW = 0.32


def values(report: "Report", ax: Any = None) -> Any:
    """Bars of the chosen values with their intervals, the most valuable on top."""
    lines = [line for line in sorted(report, reverse=True) if line.value is not None]
    axes = _axes(ax, len(lines))
    for place, line in enumerate(lines):
        value = line.value or 0.0
        colour = LIGHT["plus"] if value >= 0 else LIGHT["minus"]
        is_unclear = line.low is not None and line.helps is None
        look = {"facecolor": "none", "edgecolor": colour, "linestyle": "--"} if is_unclear else {"color": colour}
        axes.barh(place, value, height=0.4, alpha=0.6 if is_unclear else 0.38, **look)
        if line.low is not None and line.high is not None:
            axes.plot([line.low, line.high], [place, place], color=colour, linewidth=2)
        axes.plot([value], [place], "o", color=colour, markersize=5)
    _name_rows(axes, [line.client for line in lines])
    axes.set_xlabel(f"value by {report.chosen.label}")
    return axes


def gains(report: "Report", ax: Any = None) -> Any:
    """The improvement of the model since the start."""
    rounds = _rounds(report)
    if rounds.gains is None:
        raise ArtefactError(f"{report.title}: what each round gained was not measured")
    axes = _axes(ax, 8)
    axes.plot(range(len(rounds.gains) + 1), [0.0, *np.cumsum(rounds.gains)], color=LIGHT["plus"])
    axes.set_xlabel("rounds")
    axes.set_ylabel("improvement since the start")
    return axes


def course(report: "Report", ax: Any = None) -> Any:
    """Each client's value added up over the rounds; the best in blue, those that end below zero in orange."""
    rounds, sums = _rounds(report), np.cumsum(_by_round(report), axis=0)
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


def heat_map(report: "Report", ax: Any = None) -> Any:
    """Who added what in which round, the most valuable on top: blue helped, orange harmed."""
    matplotlib = _matplotlib()
    rounds, by_round = _rounds(report), _by_round(report)
    order = [report.clients.index(line.client) for line in sorted(report, reverse=True)]
    axes = _axes(ax, len(order))
    top = float(np.nanquantile(np.abs(by_round), 0.995)) or 1.0
    colours = matplotlib.colors.LinearSegmentedColormap.from_list("value", [LIGHT["minus"], "#ffffff", LIGHT["plus"]])
    extent = (rounds.numbers[0] - 0.5, rounds.numbers[0] + len(rounds.numbers) - 0.5, len(order) - 0.5, -0.5)
    look = {"cmap": colours, "vmin": -top, "vmax": top, "aspect": "auto", "interpolation": "nearest"}
    axes.imshow(by_round.T[order], extent=extent, **look)
    axes.set_yticks(range(len(order)), [report.clients[k] for k in order])
    axes.set_xlabel("round")
    return axes


OF_REPORTS = {"values": values, "gains": gains, "course": course, "rounds": heat_map}


def comparison(compared: "Comparison", ax: Any = None) -> Any:
    """Each client's value in each report, with its interval."""
    axes = _axes(ax, len(compared.rows))
    for column, name in enumerate(compared.names):
        colour = SERIES[column % len(SERIES)]
        shift = 0.6 * ((column + 0.5) / len(compared.names) - 0.5)
        lines = [(row + shift, entry.values[column]) for row, entry in enumerate(compared.rows)]
        known = [(place, line) for place, line in lines if line.value is not None]
        axes.plot([x.value for _, x in known], [place for place, _ in known], "o", color=colour, ms=4, label=name)
        for place, line in known:
            if line.low is not None and line.high is not None:
                axes.plot([line.low, line.high], [place, place], color=colour, linewidth=1.5)
    _name_rows(axes, [row.client for row in compared.rows])
    axes.set_xlabel("value")
    axes.legend(frameon=False)
    return axes


def _name_rows(axes: Any, clients: list[str]) -> None:
    axes.set_yticks(range(len(clients)), clients)
    axes.invert_yaxis()
    axes.axvline(0, color=LIGHT["edge"], linewidth=1)


def _axes(ax: Any, n_rows: int) -> Any:
    """The given axes, or those of a new figure with room for `n_rows`."""
    if ax is not None:
        return ax
    return _matplotlib().pyplot.subplots(figsize=(7, max(2.5, INCHES_PER_ROW * n_rows)), layout="constrained")[1]


def _rounds(report: "Report") -> "Rounds":
    if report.rounds is None:
        raise ArtefactError(f"{report.title}: the report has no rounds; make it again from the ledger")
    return report.rounds


def _by_round(report: "Report") -> Floats:
    if report.chosen.by_round is None:
        raise ArtefactError(f"{report.title}: the values by {report.chosen.method} are not known by round")
    return report.chosen.by_round


def _matplotlib() -> Any:
    try:
        import matplotlib
        import matplotlib.pyplot
    except ImportError:
        raise UsageError("plots need matplotlib: install it with  pip install 'fedworth[plots]'") from None
    return matplotlib
