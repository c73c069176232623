"""The commands that start from a report: statement, rewards, report with a page's options, compare."""

import json

import pytest

from fedworth.cli.main import main
from tests.support.reports import HOSPITALS, hospitals


@pytest.fixture
def run(tmp_path):
    hospitals().write(tmp_path / "run")
    return tmp_path / "run"


def test_statements_for_one_or_for_all(run, told):
    told("statement", run, HOSPITALS[6], "--noun", "hospital")
    (path,) = (run / "statements").iterdir()
    assert path.name == "statement-06-lund-regional-hospital.html"
    assert "11 other hospitals" in path.read_text()
    assert list(told("statement", run, "--client", HOSPITALS[0])) == [HOSPITALS[0]]
    assert sorted(told("statement", run, "--all")) == sorted(HOSPITALS)
    assert len(list((run / "statements").iterdir())) == 12


def test_a_statement_is_for_one_client_or_for_all(run, refused):
    refused(2, "statement", run)
    refused(2, "statement", run, "x", "--all")
    assert "did you mean 'Lakeside Clinic'" in refused(2, "statement", run, "Lakeside")
    refused(12, "statement", run / "nothing", "x")


def test_rewards_are_written_shown_and_put_on_page_and_statement(run, told, refused):
    assert "fedworth rewards" in refused(12, "report", run, "--rewards")
    made = told("rewards", run, "--pool", "100000", "--rule", "floor", "--unit", "EUR")
    assert sum(made["cents"]) == 10_000_000
    assert (run / "rewards.csv").read_text().startswith("client,reward,unit\nNorthfield General,")
    told("report", run, "--rewards", "--title", "Our model", "--date", "today")
    page = (run / "report.html").read_text()
    assert "100,000.00 EUR" in page
    assert "Our model" in page
    assert "today" in page
    told("statement", run, HOSPITALS[0], "--rewards")
    assert "100,000.00 EUR" in next((run / "statements").iterdir()).read_text()


def test_rewards_that_the_values_do_not_give_any_more_are_not_shown(run, told, refused):
    told("rewards", run, "--pool", "1000")
    report = json.loads((run / "report.json").read_text())
    values = report["valuations"][0]["values"]
    values[0], values[1] = values[1], values[0]
    (run / "report.json").write_text(json.dumps(report))
    for command in (["report", run], ["statement", run, HOSPITALS[0]]):
        assert "split the pool again" in refused(12, *command, "--rewards")
    told("rewards", run, "--pool", "1000")
    told("report", run, "--rewards")


def test_rewards_by_another_method_and_by_none(run, capsys, refused):
    assert main(["rewards", str(run), "--pool", "10", "--method", "fedsv"]) == 0
    assert "Rewards from 10.00, by fedsv" in capsys.readouterr().out
    assert "it has comfedsv-models, fedsv" in refused(2, "rewards", run, "--pool", "10", "--method", "truth")
    assert "known are cost, floor, lower" in refused(2, "rewards", run, "--pool", "10", "--rule", "fair")
    refused(2, "rewards", run, "--pool", "ten")
    refused(2, "rewards", run, "--pool", "10", "--rule", "floor", "--floor", "2")
    assert "required: --pool" in refused(2, "rewards", run)


def test_reports_are_compared(run, tmp_path, told, refused, capsys):
    hospitals(seed=8).write(tmp_path / "other")
    assert main(["compare", str(run), str(tmp_path / "other"), "--out", str(tmp_path / "c")]) == 0
    assert "rank correlation 0.9" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["compare.csv", "compare.html", "compare.json"]
    made = told("compare", run, "--method", "comfedsv-models", "--method", "fedsv")
    assert made["pairs"][0]["n_compared"] == 0
    refused(2, "compare", run)
    assert "--methods" in refused(2, "compare", run, tmp_path / "other", "--rank", "3")


def test_a_line_below_each_table_says_what_its_headings_mean(run, capsys):
    lines = {
        "reward: ": ["rewards", str(run), "--pool", "10"],
        "(1), (2), …: ": ["compare", str(run), str(run)],
        "s: ": ["theory", "observation-1", "--rounds", "2"],
        "bound: ": ["theory", "rank-bound", "--convexity", "1", "--rounds", "9", "--clients", "4"],
    }
    for start, words in lines.items():
        assert main(words) == 0
        table = capsys.readouterr().out.split("\n\n")[0].splitlines()
        assert table[-1].startswith(start), words
