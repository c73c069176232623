"""Figures: panels drawn with matplotlib. The same numbers give the same bytes.

A method has the same colour, dashes and marker in every figure, so that it can be recognised without colour.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from studies.bars import Interval
from studies.methods import METHODS

matplotlib.use("Agg")
from matplotlib import pyplot as plt

PANEL_INCHES = (3.6, 2.7)
SPARE = (
    ("#332288", "-", "o"), ("#882255", "--", "s"), ("#117733", ":", "^"), ("#DDCC77", "-.", "D"),
    ("#44AA99", "-", "v"), ("#AA4499", "--", "P"), ("#888888", ":", "X"),
)  # fmt: skip
PAPER: dict[str, Any] = {
    "color": "#000000",
    "marker": "*",
    "ls": (0, (1, 1.5)),
    "markersize": 8,
    "markerfacecolor": "white",
}
SETTINGS: Any = {
    "svg.hashsalt": "fedworth", "svg.fonttype": "path", "font.size": 9, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25, "legend.frameon": False,
    "lines.linewidth": 1.6, "lines.markersize": 4,
}  # fmt: skip


def save(panels: Sequence[Any], path: Path) -> None:
    """Draw the panels, two a row, with one legend below, and write them as an SVG file."""
    with plt.rc_context(SETTINGS):
        n_across = min(2, len(panels))
        n_down = -(-len(panels) // n_across)
        size = (PANEL_INCHES[0] * 2, PANEL_INCHES[1] * n_down + 0.5)
        figure, grid = plt.subplots(n_down, n_across, figsize=size, squeeze=False, layout="constrained")
        for axes, draw in zip(grid.flat, panels, strict=False):
            draw(axes)
        for axes in list(grid.flat)[len(panels) :]:
            axes.set_visible(False)
        entries: dict[str, Any] = {}
        for axes in grid.flat:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                entries.setdefault(label, handle)
        figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=max(1, min(3, len(entries))))
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def style(name: str, position: int = 0) -> dict[str, Any]:
    """Label, colour, dashes and marker of a method, or of any other name by its position in the panel."""
    if name in METHODS:
        method = METHODS[name]
        return {"label": method.label, "color": method.colour, "ls": method.dash, "marker": method.marker}
    colour, dash, marker = SPARE[position % len(SPARE)]
    return {"label": name, "color": colour, "ls": dash, "marker": marker}


def line(axes: Axes, name: str, x: Sequence[float], y: Sequence[float], position: int = 0, **changes: Any) -> None:
    """A line of a method or of any other name."""
    axes.plot(x, y, **{**style(name, position), **changes})


def band(axes: Axes, x: Sequence[float], low: Any, high: Any, name: str, position: int = 0) -> None:
    """A shaded band around a line."""
    axes.fill_between(x, low, high, color=style(name, position)["color"], alpha=0.13, lw=0)


def means(axes: Axes, name: str, x: Sequence[float], found: Sequence[Interval], position: int = 0) -> None:
    """A line through means, with their intervals as a band."""
    line(axes, name, x, [mean.value for mean in found], position)
    low, high = ends(found)
    band(axes, x, low, high, name, position)


def ends(found: Sequence[Interval]) -> tuple[list[float], list[float]]:
    """The ends of the intervals; the mean itself if there is no interval."""
    return (
        [mean.low if mean.low == mean.low else mean.value for mean in found],
        [mean.high if mean.high == mean.high else mean.value for mean in found],
    )


def bars(axes: Axes, series: Mapping[str, Sequence[float]], spreads: Mapping[str, Any] | None = None) -> None:
    """Groups of bars, one bar a series in every group, with error bars from (low, high) if there are any."""
    width = 0.8 / len(series)
    for position, (name, y) in enumerate(series.items()):
        places = np.arange(len(y)) - 0.4 + width * (position + 0.5)
        looks = style(name, position)
        axes.bar(places, y, width * 0.92, color=looks["color"], label=looks["label"])
        if spreads is not None:
            reach = np.abs(np.array(spreads[name]) - np.asarray(y))
            axes.errorbar(places, y, reach, fmt="none", ecolor="#444444", elinewidth=1, capsize=2)


def ticks(axes: Axes, names: Sequence[str]) -> None:
    """Names below the horizontal axis; slanted if there are many."""
    slanted: dict[str, Any] = {"rotation": 35, "ha": "right"} if len(names) > 4 and "\n" not in names[0] else {}
    axes.set_xticks(range(len(names)), names, **slanted)


def logarithmic(axes: Axes, low: float, high: float) -> None:
    """A logarithmic vertical axis with plain numbers."""
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}" if high / low <= 30 else "")
