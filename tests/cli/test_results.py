"""The commands that start from a report: statement, rewards, compare, report with a page's options."""

import hashlib
import json

import pytest

import fedworth
from fedworth.cli.main import main
from fedworth.report.files import write_report
from tests.support.reports import HOSPITALS, hospitals


@pytest.fixture
def run(tmp_path):
    write_report(hospitals(), tmp_path / "run")
    return tmp_path / "run"


def test_statements_for_all_or_for_one(run, capsys):
    assert main(["statement", str(run), HOSPITALS[6], "--noun", "hospital", "hospitals"]) == 0
    (path,) = (run / "statements").iterdir()
    assert path.name == "statement-06-lund-regional-hospital.html"
    assert "You and 11 other hospitals" in path.read_text()
    assert main(["statement", str(run), "--all", "--json"]) == 0
    assert sorted(json.loads(capsys.readouterr().out.split("\n", 1)[1])) == sorted(HOSPITALS)
    assert len(list((run / "statements").iterdir())) == 12


def test_a_statement_is_for_one_client_or_for_all(run, capsys):
    assert main(["statement", str(run)]) == 2
    assert main(["statement", str(run), "x", "--all"]) == 2
    assert main(["statement", str(run), "Lakeside"]) == 2
    assert "did you mean 'Lakeside Clinic'" in capsys.readouterr().err


def test_rewards_are_written_shown_and_put_on_page_and_statement(run, capsys):
    assert main(["report", str(run), "--rewards"]) == 12
    assert "make it first with  fedworth rewards" in capsys.readouterr().err
    assert main(["rewards", str(run), "--pool", "100000", "--rule", "floor", "--unit", "EUR", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert sum(made["cents"]) == 10_000_000
    assert (run / "rewards.csv").read_text().startswith("client,reward,unit\nNorthfield General,")
    assert main(["report", str(run), "--rewards", "--title", "Our model", "--date", "today"]) == 0
    page = (run / "report.html").read_text()
    assert "What each would get of 100,000.00 EUR" in page
    assert "Our model · 12 clients · 40 rounds · today" in page
    assert main(["statement", str(run), HOSPITALS[0], "--rewards"]) == 0
    assert "of 100,000.00 EUR" in next((run / "statements").iterdir()).read_text()


def test_rewards_by_another_method_and_by_none(run, capsys):
    assert main(["rewards", str(run), "--pool", "10", "--method", "fedsv"]) == 0
    assert "Rewards from 10.00, by fedsv" in capsys.readouterr().out
    assert main(["rewards", str(run), "--pool", "10", "--method", "truth"]) == 2
    assert main(["rewards", str(run), "--pool", "10", "--rule", "fair"]) == 2
    assert "known are floor, lower, positive, softmax" in capsys.readouterr().err


def test_reports_are_compared(run, tmp_path, capsys):
    write_report(hospitals(seed=8), tmp_path / "other")
    assert main(["compare", str(run), str(tmp_path / "other"), "--out", str(tmp_path / "c")]) == 0
    said = capsys.readouterr().out
    assert "rank correlation 0.9" in said
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["compare.csv", "compare.html", "compare.json"]
    assert main(["compare", str(run), "--method", "comfedsv", "--method", "fedsv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pairs"][0]["n_compared"] == 0
    assert main(["compare", str(run)]) == 2


TASK = """
from fedworth import load_task, open_ledger, task_of

task = task_of(open_ledger({ledger!r}))
"""


def test_from_a_ledger_to_a_page_in_one_command(tiny_ledger, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mytask.py").write_text(TASK.format(ledger=str(tiny_ledger.folder)))
    command = ["report", str(tiny_ledger.folder), "--task", "mytask.py:task", "--noun", "school", "schools", "--json"]
    assert main(command) == 0
    made = json.loads(capsys.readouterr().out)
    folder = tiny_ledger.folder.with_name("ledger.report")
    page = (folder / "report.html").read_text()
    assert sorted(path.name for path in folder.glob("report.*")) == [
        "report.csv",
        "report.html",
        "report.json",
        "report.md",
    ]
    assert [valuation["method"] for valuation in made["valuations"]][:2] == ["comfedsv", "comfedsv-factors"]
    assert "What each school is worth" in page
    assert "fedworth report" in page
    assert hashlib.sha256((folder / "report.json").read_bytes()).hexdigest() in page
    assert made["looked_for"]
    assert len(made["rounds"]["values"]["comfedsv"]) == 3
    assert main(command) == 0
    assert (folder / "report.html").read_text() == page
    assert main(["report", str(folder), "--task", "mytask.py:task"]) == 2
    assert main([*command[:2], "--measure", "accuracy"]) == 12
    assert "other settings" in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 12
    assert "neither a ledger nor the folder of a run" in capsys.readouterr().err
    for options in (["--completion", "factors"], ["--without", "1"], ["--measure", "accuracy"]):
        assert main(["report", str(folder), *options]) == 2
        assert "whose values are made" in capsys.readouterr().err


def test_several_methods_from_utilities_to_a_page(tiny_ledger, tiny_task, tmp_path, capsys):
    utilities = fedworth.observe(tiny_ledger, fedworth.LoopOracle(tiny_task))
    fedworth.save_utilities(utilities, tmp_path / "u.npz")
    command = ["value", str(tmp_path / "u.npz"), "--method", "comfedsv,fedsv", "--method", "leave-one-out", "--json"]
    assert main([*command, "--out", str(tmp_path / "values")]) == 0
    made = json.loads(capsys.readouterr().out)
    assert [valuation["method"] for valuation in made["valuations"]] == ["comfedsv", "fedsv", "leave-one-out"]
    assert "No ledger was read for this page" in (tmp_path / "values" / "report.html").read_text()
    same = fedworth.compare(utilities, ["comfedsv", "fedsv", "leave-one-out"])
    assert [v.document()["values"] for v in same.valuations] == [v["values"] for v in made["valuations"]]
    assert main(["value", str(tmp_path / "u.npz"), "--method", "comfedsv,fedvs"]) == 2
    assert "did you mean 'fedsv'" in capsys.readouterr().err


def test_a_line_below_each_table_says_what_its_headings_mean(run, capsys):
    proposition = "theory rank-bound --convexity 1 --rounds 9 --clients 4 --lipschitz 1 --smoothness 1 --epsilon 0.1"
    lines = {
        "reward: ": ["rewards", str(run), "--pool", "10"],
        "(1), (2), …: ": ["compare", str(run), str(run)],
        "s: ": ["theory", "observation-1", "--clients", "5", "--participants", "2", "--rounds", "2"],
        "bound: ": proposition.split(),
    }
    for start, words in lines.items():
        assert main(words) == 0
        table = capsys.readouterr().out.split("\n\n")[0].splitlines()
        assert table[-1].startswith(start), words
