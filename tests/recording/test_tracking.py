"""Values in a tracker after each round: equal to the report, and no tracker reaches the training."""

import threading
from importlib.util import find_spec

import pytest
import torch

import fedworth
from fedworth.cli.main import main
from fedworth.errors import ArtefactError, UsageError
from fedworth.pipeline import track as tracking
from fedworth.report.trackers import Metric, metrics_of, text_of
from tests.support.loops import CLIENTS, task, train


class Kept:
    """A tracker of one's own, which keeps what it is given."""

    def __init__(self):
        self.rounds, self.files = [], []

    def log(self, step, metrics, text):
        self.rounds.append((step, metrics, text))

    def finish(self, files):
        self.files += [file.name for file in files]


class Broken:
    """A tracker that always fails."""

    def log(self, *_):
        raise ConnectionError("no network")

    def finish(self, _):
        raise SystemError("still none")


class Hanging:
    """A tracker that never answers."""

    def log(self, *_):
        threading.Event().wait()

    def finish(self, _):
        """Never called."""


def is_same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def test_a_tracker_is_given_what_the_report_says_after_each_round(tmp_path):
    kept, reports = Kept(), {}

    def reported(number):
        ledger = fedworth.Ledger.open(tmp_path / "l")
        reports[number] = fedworth.report_on(ledger, task())

    train(tmp_path / "l", each_round=reported, track=kept, task=task())
    assert kept.rounds == [(number, metrics_of(report), text_of(report)) for number, report in reports.items()]
    assert [step for step, *_ in kept.rounds] == [1, 2, 3]
    values = {metric.client: metric.number for metric in kept.rounds[-1][1] if metric.name == "value"}
    assert values == {
        line.client: line.value for line in fedworth.report_on(fedworth.Ledger.open(tmp_path / "l"), task())
    }
    assert kept.files == ["report.html", "report.csv", "report.json"]


def test_training_is_the_same_to_the_bit_whatever_the_tracker_does(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(tracking, "ROUND_SECONDS", 0.1)
    monkeypatch.setattr(tracking, "FINISH_SECONDS", 0.1)
    plain = train(tmp_path / "plain")
    kept = Kept()
    tracked = train(tmp_path / "l", track=[Broken(), Hanging(), kept], task=task())
    assert is_same(plain, tracked)
    assert [step for step, *_ in kept.rounds] == [1, 2, 3]  # the others do not disturb it either
    assert "Broken failed (ConnectionError: no network)" in caplog.text
    assert "Hanging did not answer" in caplog.text


def test_a_task_that_does_not_fit_is_logged_and_the_training_goes_on(tmp_path, caplog):
    wrong = fedworth.Task(torch.nn.Linear(7, 2), torch.zeros(3, 7), torch.zeros(3, dtype=torch.long))
    assert is_same(train(tmp_path / "plain"), train(tmp_path / "l", track=Kept(), task=wrong))
    assert "recording failed" in caplog.text
    assert fedworth.Ledger.open(tmp_path / "l").n_rounds == 3


def test_watch_shows_the_last_report_in_a_tracker(tmp_path, capsys):
    train(tmp_path / "l")
    command = ["watch", str(tmp_path / "l"), "--task", f"{__file__}:task", "--track", f"prometheus:{tmp_path}/f.prom"]
    assert main(command) == 0
    value = fedworth.Report.read(tmp_path / "l.watch")["copy"].value
    assert f'fedworth_value{{client="copy"}} {value!r}\n' in (tmp_path / "f.prom").read_text()
    assert "copy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"track": "mlfow", "task": task()}, "did you mean 'mlflow'"),
        ({"track": "prometheus", "task": task()}, "expected 'prometheus:FILE'"),
        ({"track": "mlflow:here", "task": task()}, "expected 'mlflow'"),
        ({"track": 7, "task": task()}, "expected a name, or an object with log and finish"),
        ({"track": Kept()}, "give one, such as task='mytask.py:task'"),
    ],
)
def test_a_mistake_is_said_before_the_training_begins(tmp_path, options, said):
    with pytest.raises(UsageError, match=said):
        fedworth.record_into(tmp_path / "l", **options)
    assert not (tmp_path / "l").exists()


@pytest.mark.skipif(find_spec("wandb") is not None, reason="installed here")
def test_a_package_that_is_missing_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"fedworth\[wandb\]"):
        fedworth.record_into(tmp_path / "l", track="wandb", task=task())


def test_the_report_of_another_ledger_is_not_written_over(tmp_path):
    train(tmp_path / "l", track=Kept(), task=task())
    (tmp_path / "l").rename(tmp_path / "old")
    with pytest.raises(ArtefactError, match="a report on another ledger"):
        fedworth.record_into(tmp_path / "l", track=Kept(), task=task())


@pytest.mark.parametrize("client", [*CLIENTS, "", "..", "a/b", "x" * 200, "Ä", "Ö", 'a"\n\\'])
def test_keys_are_plain_and_tell_clients_apart(client):
    key = Metric("value", client, 1.0).key
    assert key.isascii()
    assert key.count("/") == 2
    assert not {*key} & set(' ()"\n\\')
    assert len(key) < 150
    others = {Metric("value", other, 1.0).key for other in ("north", "_", "Ü", "a_b") if other != client}
    assert key not in others
