"""Plots: axes in, axes out, nothing else changed."""

from dataclasses import replace

import pytest

from fedworth.errors import ArtefactError, UsageError
from fedworth.report.comparison import Comparison
from tests.support.reports import hospitals

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

REPORT = hospitals()
PLOTS = ["values", "gains", "course", "rounds"]


@pytest.fixture(autouse=True)
def no_figures():
    """Figures that others left open are not these tests'."""
    import matplotlib.pyplot as plt

    plt.close("all")


@pytest.mark.parametrize("plot", PLOTS)
def test_a_plot_draws_on_the_axes_it_is_given_and_changes_no_settings(plot):
    import matplotlib.pyplot as plt

    before = dict(matplotlib.rcParams)
    figure, ax = plt.subplots()
    assert REPORT.plot(plot, ax) is ax
    assert ax.lines or ax.images
    assert plt.get_fignums() == [figure.number]
    assert dict(matplotlib.rcParams) == before
    plt.close("all")


def test_without_axes_a_plot_makes_a_figure_of_its_own():
    import matplotlib.pyplot as plt

    assert REPORT.plot().figure in [plt.figure(n) for n in plt.get_fignums()]
    plt.close("all")


def test_the_most_valuable_stands_on_top():
    import matplotlib.pyplot as plt

    axes = REPORT.plot()
    assert axes.get_yticklabels()[0].get_text() == "Northfield General"
    assert axes.yaxis_inverted()
    plt.close("all")


def test_a_comparison_is_drawn_a_colour_a_report():
    import matplotlib.pyplot as plt

    axes = Comparison.of([REPORT, hospitals(seed=8)], ["x", "y"]).plot()
    assert axes.get_legend_handles_labels()[1] == ["x", "y"]
    plt.close("all")


def test_what_a_report_does_not_have_is_not_drawn():
    with pytest.raises(ArtefactError, match="has no rounds"):
        replace(REPORT, rounds=None).plot("gains")
    assert REPORT.rounds is not None
    with pytest.raises(ArtefactError, match="was not measured"):
        replace(REPORT, rounds=replace(REPORT.rounds, gains=None)).plot("gains")
    with pytest.raises(ArtefactError, match="not known by round"):
        replace(REPORT, valuations=(replace(REPORT.chosen, by_round=None),)).plot("rounds")


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"fedworth\[plots\]"):
        REPORT.plot()


def test_an_unknown_plot_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'values'"):
        REPORT.plot("value")
