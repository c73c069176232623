"""Pictures of the studies; the only room where matplotlib is. Same panels, same bytes.

Colours, dashes and markers come with the methods, so that a method looks the same in every picture and can be told
apart without colour.
"""

import io
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedworth.errors import UsageError
from fedworth.storage import write_whole
from fedworth.studies.results.outcome import Panel, Series
from fedworth.studies.trials.methods import METHODS

PANEL_INCHES = (3.6, 2.7)
MOST_ACROSS = 2
"""So that letters are ten pixels high where a picture is 700 wide."""

MOST_LEVEL_TICKS = 4
"""With more names than these below a panel they are slanted."""

MOST_MARKED = 40
FEW_POWERS = 1000
SPARE_COLOURS = ("#332288", "#882255", "#117733", "#DDCC77", "#44AA99", "#AA4499", "#888888")  # none is a method's
PAPER, ACCURACY = "paper", "accuracy"
SPARE_DASHES = ("-", "--", ":", "-.", "-", "--", ":")
SPARE_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SETTINGS = {
    "svg.hashsalt": "fedworth",
    "svg.fonttype": "path",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
}


def draw(panels: Sequence[Panel], path: Path) -> None:
    """Write the panels side by side as one picture; the ending of `path` says which kind (.svg, .png)."""
    plt = _pyplot(backend="Agg")
    with plt.rc_context(SETTINGS):
        n_across = min(MOST_ACROSS, len(panels))
        n_down = -(-len(panels) // n_across)
        width = PANEL_INCHES[0] * max(n_across, 2)  # a panel alone takes the room of two
        size = (width, PANEL_INCHES[1] * n_down + 0.5)
        figure, grid = plt.subplots(n_down, n_across, figsize=size, squeeze=False, layout="constrained")
        for axes, panel in zip(grid.flat, panels, strict=False):
            plot_panel(panel, axes)
        for axes in list(grid.flat)[len(panels) :]:
            axes.set_visible(False)
        _shared_legend(figure, grid)
        buffer = io.BytesIO()
        ending = path.suffix[1:]
        figure.savefig(buffer, format=ending, metadata={"Date": None} if ending == "svg" else None, dpi=120)
        plt.close(figure)
    write_whole(path, buffer.getvalue())


def plot_panel(panel: Panel, ax: Any = None) -> Any:
    """One panel of a study's picture.

    Args:
        panel: One of the `panels` of what `study` found.
        ax: The matplotlib axes to draw on; those of a new figure if there are none.

    Returns:
        The axes that were drawn on; nothing is shown.

    Example:
        found = fedworth.study("fairness", "runs/studies", datasets=["digits"], seeds=[0])
        fedworth.plot_panel(found.panels[0]).figure.savefig("fairness.svg")
    """
    axes = ax if ax is not None else _pyplot().subplots(figsize=PANEL_INCHES, layout="constrained")[1]
    names = list(dict.fromkeys(series.name for series in panel.series))
    for position, series in enumerate(panel.series):
        style = _papers_style(series.name, names) if series.is_papers else _style(series.name, names)
        if panel.kind == "bars":
            _bars(axes, series, style, position, len(panel.series))
        elif panel.kind == "steps":
            axes.step(series.x, series.y, where="post", label=style["label"], color=style["color"], ls=style["ls"])
        elif panel.kind == "points":
            axes.plot(series.x, series.y, **{**style, "ls": ""})
        else:
            style["marker"] = style["marker"] if len(series.x) <= MOST_MARKED else ""
            axes.plot(series.x, series.y, **style)
            if len(series.low):
                axes.fill_between(series.x, series.low, series.high, color=style["color"], alpha=0.13, lw=0)
    for dash, (name, level) in zip(itertools.cycle((":", (0, (1, 3)))), panel.levels, strict=False):
        axes.axhline(level, color="#555555", lw=1.1, ls=dash, label=name)
    axes.set(title=panel.title, xlabel=panel.across, ylabel=panel.up)
    if panel.logarithmic:
        axes.set_yscale("log")
    if panel.limits is not None:
        axes.set_ylim(*panel.limits)
    if panel.logarithmic:
        _label_powers(axes)
    if panel.ticks:
        slant = (
            {"rotation": 35, "ha": "right"}
            if len(panel.ticks) > MOST_LEVEL_TICKS and "\n" not in panel.ticks[0]
            else {}
        )
        axes.set_xticks(range(len(panel.ticks)), panel.ticks, **slant)
    return axes


def _label_powers(axes: Any) -> None:
    """Plain numbers on a logarithmic axis: the powers of ten, and 2 and 5 of each where there are few."""
    low, high = axes.get_ylim()
    axes.yaxis.set_major_formatter("{x:g}")
    if high / low <= FEW_POWERS:
        axes.set_yticks([y for power in range(-9, 10) for y in (2 * 10.0**power, 5 * 10.0**power)], minor=True)
        axes.set_ylim(low, high)  # which ticks outside would widen
    axes.yaxis.set_minor_formatter("{x:g}" if high / low <= FEW_POWERS else "")


def _bars(axes: Any, series: Series, style: dict[str, Any], position: int, n_series: int) -> None:
    width = 0.8 / n_series
    places = np.asarray(series.x) - 0.4 + width * (position + 0.5)
    axes.bar(places, series.y, width * 0.92, color=style["color"], label=style["label"])
    if len(series.low):
        spread = np.abs(np.array([series.low, series.high]) - np.asarray(series.y))
        axes.errorbar(places, series.y, spread, fmt="none", ecolor="#444444", elinewidth=1, capsize=2)


def _style(name: str, names: Sequence[str]) -> dict[str, Any]:
    if name in METHODS:
        method = METHODS[name]
        return {"label": method.label, "color": method.colour, "ls": method.dash, "marker": method.marker}
    if name == ACCURACY:
        return {"label": name, "color": "#777777", "ls": (0, (4, 2)), "marker": ""}
    spare = names.index(name) % len(SPARE_COLOURS)
    looks = {"color": SPARE_COLOURS[spare], "ls": SPARE_DASHES[spare], "marker": SPARE_MARKERS[spare]}
    return {"label": name, **looks}


def _papers_style(name: str, names: Sequence[str]) -> dict[str, Any]:
    """The colour of what the numbers are of, thin and dotted, hollow markers; black where they are of nothing shown."""
    style = {**_style(name, names), "ls": (0, (1, 1.5)), "lw": 1.1, "markerfacecolor": "white"}
    if name == PAPER:
        return {**style, "color": "#000000", "marker": "*", "markersize": 8}
    return {**style, "label": f"{style['label']}, paper"}


def _shared_legend(figure: Any, grid: Any) -> None:
    """One legend below all panels, each name once."""
    entries: dict[str, Any] = {}
    for axes in grid.flat:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    columns = max(1, min(3, len(entries)))
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns)


def _pyplot(backend: str | None = None) -> Any:
    try:
        import matplotlib

        if backend is not None:
            matplotlib.use(backend)
        import matplotlib.pyplot as plt
    except ImportError:
        raise UsageError("pictures need matplotlib: install it with  pip install 'fedworth[studies]'") from None
    return plt
