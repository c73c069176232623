"""Several reports side by side on one page: a row a client, a dot and a range for each report."""

import numpy as np

from fedworth.report.comparison import Comparison
from fedworth.report.page.figures import Axis, axis_over
from fedworth.report.page.render import render
from fedworth.report.page.settings import PageSettings
from fedworth.trail import SOFTWARE
from fedworth.valuation.notebook import signed

LANE = 11
"""Pixels between the dots of one client."""


def comparison_html(comparison: Comparison, settings: PageSettings | None = None) -> str:
    """The page of a comparison.

    Args:
        comparison: What `compare_reports` found.
        settings: Title, nouns and date.

    Returns:
        One HTML file that needs nothing else.

    Example:
        Path("compare.html").write_text(fedworth.comparison_html(comparison))
    """
    settings = settings or PageSettings()
    return render(
        "comparison.html",
        {
            "title": settings.title or " · ".join(comparison.names),
            "noun": settings.noun,
            "nouns": settings.nouns,
            "date": settings.date,
            "c": comparison,
            "axis": _axis(comparison),
            "lane": LANE,
            "height": LANE * len(comparison.names) + 8,
            "signed": signed,
            "software": SOFTWARE,
        },
    )


def _axis(comparison: Comparison) -> Axis:
    ends = [end for row in comparison.rows for w in row.worths for end in (w.value, w.low, w.high) if end is not None]
    return axis_over(np.array(ends, dtype=np.float64))
