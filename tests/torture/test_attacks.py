"""Every attack of `make torture`, in small; and each finds a fedworth that is broken on purpose."""

import logging
import os
from unittest.mock import patch

import numpy as np
import pytest

from fedworth.errors import LedgerError
from fedworth.ledger import lock, model_file, writer
from fedworth.oracle.fast import FastOracle
from fedworth.pipeline import verify
from tools.torture import options, power, recorders
from tools.torture.corruption import corruptions
from tools.torture.full_device import full_device
from tools.torture.hostile import hostile
from tools.torture.reports import edited_reports
from tools.torture.tasks import changed_tasks


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """Hundreds of recordings are taken over from the dead."""
    monkeypatch.setattr(logging.getLogger("fedworth"), "disabled", True)


class Unflushed:
    """The operating system, but nothing reaches the device until it likes."""

    def __getattr__(self, name):
        return getattr(os, name)

    def fsync(self, descriptor):
        """Promise, and do nothing."""


def cuts(place, n_rounds=1, n_random=0, n_again=0):
    return power.power_cuts(place, n_rounds=n_rounds, n_random=n_random, n_again=n_again, seed=0)


def test_a_power_cut_anywhere_loses_nothing_that_was_promised(tmp_path):
    n_cuts, wrong = cuts(tmp_path / "disk", n_rounds=2, n_random=1)
    assert n_cuts > 300
    assert wrong == []


def test_nor_does_a_second_one_in_the_recording_that_went_on(tmp_path):
    n_cuts, wrong = cuts(tmp_path / "disk", n_again=2)
    assert n_cuts > 200
    assert wrong == []


def test_a_power_cut_leaves_the_old_artefact_or_the_new_one(tmp_path):
    n_cuts, wrong = power.artefact_cuts(tmp_path / "disk", n_random=4, seed=0)
    assert n_cuts > 100
    assert wrong == []


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (model_file, "flush_folder", lambda _: None),
        (model_file, "os", Unflushed()),
        (writer, "os", Unflushed()),
    ],
    ids=["a folder not flushed", "a round not flushed", "a line not flushed"],
)
def test_a_recorder_that_does_not_flush_is_found_out(tmp_path, owner, name, broken):
    with patch.object(owner, name, broken):
        assert cuts(tmp_path / "disk")[1]


def test_recorders_at_one_ledger_lose_no_round(tmp_path):
    n_rounds, wrong = recorders.recorders(tmp_path, 6, seed=0)
    assert n_rounds > 30
    assert wrong == []


def test_recorders_without_a_lock_are_found_out(tmp_path, monkeypatch):
    class Free(lock.LedgerLock):
        is_held = True

    def take(folder):
        return Free(folder / "none", os.open(os.devnull, os.O_RDONLY))

    monkeypatch.setattr(lock, "take_lock", take)
    problems = []
    for trial in range(20):
        try:
            problems += recorders.recorders_trial(tmp_path / str(trial), trial)
        except LedgerError as error:
            problems.append(str(error))
        if problems:
            break
    assert problems


def test_readers_beside_a_recorder_see_whole_rounds(tmp_path):
    assert recorders.readers(tmp_path / "readers", 1, seed=0) == []


def test_a_full_device_loses_no_round(tmp_path):
    n_refused, wrong = full_device(tmp_path, 6)
    assert n_refused
    assert wrong == []


def test_corruptions_are_found():
    found, missed = corruptions((1, 60))
    assert found.total() == 60
    assert missed == []


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_hostile_answers_are_measured_as_the_loop_does_or_refused_by_name(tmp_path):
    ends, wrong = hostile(tmp_path, seed=1, share=0.2, modules=("mlp", "double"))
    assert wrong == []
    assert ends["measured"]
    assert ends["quarantined"]


def test_an_oracle_that_errs_is_found_out(tmp_path, monkeypatch):
    real = FastOracle.utilities
    monkeypatch.setattr(FastOracle, "utilities", lambda *args: real(*args) + 1e-2 * np.arange(len(args[2]))[:, None])
    assert hostile(tmp_path, seed=1, share=0.02, modules=("mlp",))[1]


CHANGES = ("a forgotten relu", "another layer", "one label", "another measure")


def test_kept_utilities_answer_for_their_own_task_only(tmp_path):
    ends, wrong = changed_tasks(tmp_path, seed=0, names=CHANGES)
    assert ends.total() == 12  # two oracles; tasks with code of their own, and of torch's layers alone
    assert wrong == []


def test_odd_options_end_with_a_sentence_and_a_documented_code(tmp_path):
    ends, wrong = options.option_fuzz(19, 7, tmp_path / "place")
    assert ends.total() == 19
    assert wrong == []


def test_every_command_is_among_those_tried():
    words = [" ".join(words) for words, _ in options.commands()]
    assert len(words) == len(set(words)) >= 14
    assert {"theory rank-bound", "verify", "watch"} <= set(words)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (ValueError("odd"), "a traceback"),
        (SystemExit(99), "code 99, which no page lists"),
        (SystemExit(2), "code 2 without a word"),
    ],
)
def test_a_command_that_fails_in_another_way_is_found_out(tmp_path, monkeypatch, error, fault):
    def fail(_):
        raise error

    monkeypatch.setattr(options, "fedworth_command", fail)
    call = options.Call(("value",), "plain")
    assert fault in options.faults(options.made(call, tmp_path / "log"), options.documented_codes())


def test_edited_reports_are_found_out(tmp_path, monkeypatch):
    done, wrong = edited_reports(tmp_path / "run", 0.04, seed=0)
    assert done["report.json"] > 10
    assert wrong == []
    monkeypatch.setattr(verify, "difference", lambda *_: "")
    assert edited_reports(tmp_path / "again", 0.04, seed=0)[1]
