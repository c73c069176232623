"""The mean of several recorded runs: its intervals are Student's over the runs, and other federations are refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

import fedworth
from fedworth import Task
from fedworth.completion.completion import Caveat, heard_little, heard_once
from fedworth.errors import ArtefactError, UsageError
from fedworth.provenance import Provenance
from fedworth.report.report import Report, Rounds
from fedworth.valuation.groups import GroupValues
from fedworth.valuation.uncertainty import uncertainty
from fedworth.valuation.valuation import Valuation

CLIENTS = ("north", "south", "west")


def run(*values: float, head: str, clients=CLIENTS, task: str = "t", **settings: object) -> Report:
    known = uncertainty(np.array(values), np.eye(len(values)) * 1e-6)
    made = Valuation("comfedsv-models", clients, np.array(values), completion={"kind": "models"}, uncertainty=known)
    return Report(f"run {head}", clients, (made,), provenance=Provenance(head, 5, task, settings=settings))


def intervals(report: Report) -> np.ndarray:
    found = report.chosen.intervals
    assert found is not None
    return found


def chances(report: Report) -> np.ndarray:
    assert report.chosen.uncertainty is not None
    found = report.chosen.uncertainty.chances
    assert found is not None
    return found


def test_intervals_are_students_over_the_runs():
    values = np.array([[1.0, 2.0, 3.0], [1.5, 2.1, 2.0], [0.8, 2.2, 2.9], [1.1, 1.9, 2.2]])
    made = fedworth.Report.mean([run(*row, head=str(k)) for k, row in enumerate(values)])
    low, high = intervals(made).T
    expected = stats.t.interval(0.9, 3, values.mean(axis=0), stats.sem(values))
    np.testing.assert_allclose([low, high], expected, rtol=1e-9)
    assert made.chosen.covered == ("runs",)
    far = stats.ttest_rel(values[:, 1], values[:, 0]).statistic * 1.6448536 / stats.t.ppf(0.95, 3)
    assert chances(made)[1, 0] == pytest.approx(stats.norm.cdf(np.sqrt(far**2 - 1)), rel=1e-5)


def test_intervals_over_runs_hold_the_expected_value_in_nine_of_ten_cases():
    """Runs whose values scatter by 1 while each claims to be exact, as full participation does."""
    rng, covered = np.random.default_rng(0), []
    for _ in range(300):
        made = fedworth.Report.mean([run(*rng.normal(0, 1, 3), head=str(k)) for k in range(3)])
        low, high = intervals(made).T
        covered += ((low <= 0) & (high >= 0)).tolist()
    assert np.mean(covered) == pytest.approx(0.9, abs=0.03)


def test_the_test_sets_part_does_not_become_smaller_with_more_runs():
    def with_part(head: str, *values: float) -> Report:
        known = uncertainty(np.array(values), np.zeros((3, 3)), test_set=np.diag([0.25, 0.0, 1.0]), degrees=31)
        report = run(*values, head=head)
        return replace(report, valuations=(replace(report.chosen, uncertainty=known),))

    made = fedworth.Report.mean([with_part(str(k), 1.0, 2.0, 3.0) for k in range(5)])
    assert made.chosen.standard_errors == pytest.approx([0.5, 0.0, 1.0])
    assert intervals(made)[2] == pytest.approx([3 - stats.t.ppf(0.95, 31), 3 + stats.t.ppf(0.95, 31)])
    assert chances(made)[2, 0] < stats.norm.cdf(2 / np.hypot(0.5, 1.0))


def test_clients_are_matched_by_name():
    turned = run(30.0, 10.0, 20.0, head="b", clients=("west", "north", "south"))
    made = fedworth.Report.mean([run(1.0, 2.0, 3.0, head="a"), turned])
    assert made.chosen.values.tolist() == [5.5, 11.0, 16.5]


def test_a_client_without_a_value_in_one_run_has_none():
    made = fedworth.Report.mean([run(1.0, np.nan, 3.0, head="a"), run(1.0, 2.0, 2.0, head="b")])
    assert made["south"].value is None
    assert made["south"].low is None
    assert made["north"].value == 1


def test_values_by_group_are_means_that_add_up_to_the_value():
    def grouped(head: str, clients=CLIENTS, names=("0", "1")) -> Report:
        report = run(3.0, 2.0, 1.0, head=head, clients=clients)
        parts = np.array([[2.0, 1.0], [3.0, -1.0], [0.5, 0.5]]) + {"a": 0.0, "b": 0.2}[head] * np.array([1, -1])
        errors = np.full((3, 2), 0.1)
        made = GroupValues(names, np.array([0.4, 0.6]), parts, errors, 1.7 * errors, "class")
        return replace(report, valuations=(replace(report.chosen, groups=made),))

    made = fedworth.Report.mean([grouped("a"), grouped("b", clients=("north", "west", "south"))]).chosen
    assert made.groups is not None
    assert made.groups.values.sum(axis=1) == pytest.approx(made.values)
    assert made.groups.values[0] == pytest.approx([2.1, 0.9])
    assert made.groups.values[1] == pytest.approx([(3 + 0.7) / 2, (-1 + 0.3) / 2])  # south, which is last in run b
    assert made.groups.half_widths[0, 0] == pytest.approx(np.hypot(0.17, 0.1 * stats.t.ppf(0.95, 1)))
    other = fedworth.Report.mean([grouped("a"), grouped("b", names=("0", "2"))])
    assert other.chosen.groups is None


def recorded(head: str, *gains: float) -> Report:
    rounds = Rounds(tuple(range(len(gains))), np.ones((len(gains), 3), dtype=bool), np.array(gains))
    return replace(run(1.0, 2.0, 3.0, head=head), rounds=rounds)


def test_two_states_of_one_growing_ledger_are_one_run():
    fedworth.Report.mean([recorded("a", 0.5, 0.2), recorded("b", 0.5, 0.3, 0.1)])  # deterministic in the first round
    for later in (recorded("b", 0.5, 0.2, 0.1), recorded("closed", 0.5, 0.2)):
        for both in ([recorded("a", 0.5, 0.2), later], [later, recorded("c", 0.4), recorded("a", 0.5, 0.2)]):
            with pytest.raises(UsageError, match=f"the same first rounds as {both[0].title}"):
                fedworth.Report.mean(both)


def test_only_clients_that_every_run_has_a_caveat_about_have_one():
    def with_caveats(head: str, *caveats: Caveat) -> Report:
        report = run(1.0, 2.0, 3.0, head=head)
        assert report.chosen.uncertainty is not None
        known = replace(report.chosen.uncertainty, caveats=caveats)
        return replace(report, valuations=(replace(report.chosen, uncertainty=known),))

    first = with_caveats("a", heard_once(["north", "west"]), Caveat((), "on this test set"))
    made = fedworth.Report.mean([first, with_caveats("b", heard_little({"west": 2}, 9))])
    assert made.chosen.uncertainty is not None
    assert [caveat.clients for caveat in made.chosen.uncertainty.caveats] == [("west",)]
    both = fedworth.Report.mean([first, with_caveats("b", Caveat((), "on this test set"))])
    assert both.chosen.uncertainty is not None
    assert both.chosen.uncertainty.caveats == (Caveat((), "on this test set"),)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (run(1.0, 2.0, head="b", clients=("north", "east")), "other clients than run a"),
        (run(1.0, 2.0, 3.0, head="b", task="u"), "another task"),
        (run(1.0, 2.0, 3.0, head="b", measure="accuracy"), "other settings than run a .measure"),
        (run(1.0, 2.0, 3.0, head="a"), "the same recorded run as run a"),
        (replace(run(1.0, 2.0, 3.0, head="b"), provenance=None), "does not name its ledger"),
        (fedworth.Report.mean([run(1.0, 2.0, 3.0, head=head) for head in "xy"]), "already the mean"),
    ],
)
def test_what_is_no_other_run_of_the_federation_is_refused(other, why):
    with pytest.raises(UsageError, match=why):
        fedworth.Report.mean([run(1.0, 2.0, 3.0, head="a"), other])
    with pytest.raises(UsageError, match="expected two or more"):
        fedworth.Report.mean([other])


def test_the_report_is_written_read_and_says_what_it_is(tmp_path):
    made = fedworth.Report.mean([run(1.0, 2.0, 3.0, head=head) for head in "ab"])
    made.write(tmp_path)
    assert Report.read(tmp_path) == made
    for name in ("report.html", "report.md"):
        assert "2 recorded runs" in (tmp_path / name).read_text()
    with pytest.raises(ArtefactError, match="mean of several runs"):
        fedworth.verify_report(made, tmp_path, Task(torch.nn.Linear(1, 2), torch.zeros(2, 1), torch.tensor([0, 1])))
