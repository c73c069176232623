"""Recording an NVFlare federation: the events of a job go in, a ledger comes out; the simulator proves it whole."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.shareable import ReturnCode, make_reply
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedworth.federation.live.nvflare import RoundRecorder
from fedworth.ledger.ledger import open_ledger, verify_ledger

EXAMPLE = Path(__file__).parents[4] / "examples" / "nvflare"
START = {"w": np.arange(4.0, dtype=np.float32), "b": np.array([1.0], dtype=np.float32)}


@dataclass
class Job:
    """A job's server in miniature: it fires the events that NVFlare's controllers fire."""

    recorder: RoundRecorder
    sites: tuple[str, ...] = ("site-1", "site-2", "site-3")
    manager: Any = field(init=False)

    def __post_init__(self) -> None:
        self.manager = FLContextManager(engine=self, identity_name="server", job_id="job")
        self.fire(EventType.START_RUN)

    def get_clients(self) -> list[Client]:
        """Who has registered, with which token."""
        return [Client(name, f"token of {name}") for name in self.sites]

    def fire(self, event: str, site: str | None = None, **props: Any) -> None:
        context = self.manager.new_context()
        if site is not None:
            context.set_peer_context(FLContextManager(engine=self, identity_name=site).new_context())
        for key, value in props.items():
            context.set_prop(getattr(AppConstants, key), value, private=True, sticky=False)
        self.recorder.handle_event(event, context)

    def ask(self, site: str, number: int) -> None:
        sent = FLModelUtils.to_shareable(FLModel(params=START, current_round=number, total_rounds=9))
        self.fire(AppEventType.BEFORE_TRAIN_TASK, site, TRAIN_SHAREABLE=sent)

    def hear(self, site: str, number: int, result: Any, *, accepted: bool = True) -> None:
        self.fire(
            AppEventType.AFTER_CONTRIBUTION_ACCEPT,
            site,
            TRAINING_RESULT=result,
            AGGREGATION_ACCEPTED=accepted,
            CURRENT_ROUND=number,
        )

    def aggregate(self, params: dict[str, Any], kind: Any = ParamsType.FULL) -> None:
        self.fire(AppEventType.AFTER_AGGREGATION, AGGREGATION_RESULT=FLModel(params=params, params_type=kind))


def result(params: dict[str, Any], kind: Any = ParamsType.FULL, **meta: Any) -> Any:
    return FLModelUtils.to_shareable(FLModel(params=params, params_type=kind, meta=meta))


@pytest.fixture
def job(tmp_path):
    return Job(RoundRecorder(str(tmp_path / "l")))


def test_asked_answered_failed_and_silent_sites_are_told_apart(job, tmp_path):
    for site in job.sites:
        job.ask(site, 0)
    job.hear("site-1", 0, result({"w": START["w"] + 1, "b": START["b"]}, NUM_STEPS_CURRENT_ROUND=7))
    job.hear("site-2", 0, None, accepted=False)
    job.aggregate(START)
    entry = verify_ledger(tmp_path / "l").entries[0]
    assert (entry.answered, entry.failed, entry.silent) == ((0,), (1,), (2,))
    assert (entry.number, entry.sample_counts) == (0, (7,))


def test_a_difference_becomes_the_model_that_it_stands_for(job, tmp_path):
    job.ask("site-1", 0)
    job.hear("site-1", 0, result({name: 0.5 * array for name, array in START.items()}, ParamsType.DIFF))
    job.aggregate({name: array + 1 for name, array in START.items()}, ParamsType.DIFF)
    job.fire(EventType.END_RUN)
    ledger = verify_ledger(tmp_path / "l")
    assert torch.equal(ledger.open_round(0).client_models[0]["w"], torch.from_numpy(1.5 * START["w"]))
    assert torch.equal(ledger.final_model()["w"], torch.from_numpy(2 * START["w"] + 1))
    assert ledger.entries[0].sample_counts == (1,)


def test_sites_that_were_not_asked_in_a_round_are_clients_but_not_asked(job, tmp_path):
    job.ask("site-3", 4)
    job.aggregate({})
    ledger = open_ledger(tmp_path / "l")
    assert ledger.clients == ("site-1", "site-2", "site-3")
    assert ledger.entries[0].asked == (2,)
    assert ledger.entries[0].number == 4


HOSTILE = {
    "NaN": result({"w": np.full(4, np.nan, dtype=np.float32), "b": START["b"]}),
    "shape": result({"w": np.zeros(3, dtype=np.float32), "b": START["b"]}),
    "missing": result({"w": START["w"]}),
    "a difference of a shape that broadcasts": result({"w": np.ones((12_000, 1, 1))}, ParamsType.DIFF),
    "a difference of nothing known": result({"x": START["w"]}, ParamsType.DIFF),
    "text": result({"w": "words", "b": START["b"]}),
    "no samples": result(START, NUM_STEPS_CURRENT_ROUND=-1),
    "no model": make_reply(ReturnCode.OK),
}


@pytest.mark.parametrize("answer", HOSTILE)
def test_a_hostile_site_is_refused_alone(job, tmp_path, answer):
    for site in job.sites:
        job.ask(site, 0)
    job.hear("site-1", 0, result(START))
    job.hear("site-2", 0, HOSTILE[answer])
    job.hear("site-3", 0, result(START))
    job.aggregate(START)
    entry = verify_ledger(tmp_path / "l").entries[0]
    assert (entry.answered, entry.quarantined) == ((0, 2), (1,))


def test_what_the_server_did_not_accept_is_not_counted(job, tmp_path):
    job.ask("site-1", 0)
    job.hear("site-1", 0, result(START), accepted=False)
    job.hear("site-1", 7, result(START))
    job.aggregate(START)
    assert open_ledger(tmp_path / "l").entries[0].quarantined == (0,)


def test_an_error_in_recording_never_reaches_the_training(job, tmp_path):
    job.fire(AppEventType.BEFORE_TRAIN_TASK, "site-1", TRAIN_SHAREABLE="no shareable")
    job.ask("site-1", 1)
    job.aggregate(START)
    ledger = verify_ledger(tmp_path / "l")
    assert (len(ledger.missing), ledger.n_rounds) == (1, 1)


def test_a_ledger_that_exists_stops_the_job_before_it_begins(tmp_path):
    Job(RoundRecorder(str(tmp_path / "l"))).fire(EventType.END_RUN)
    second = RoundRecorder(str(tmp_path / "l"))
    panics: list[str] = []
    second.system_panic = lambda reason, _context: panics.append(reason)
    Job(second)
    assert "exists already" in panics[0]
    again = Job(RoundRecorder(str(tmp_path / "l"), resume=True))
    again.ask("site-1", 0)
    again.aggregate(START)
    assert verify_ledger(tmp_path / "l").n_rounds == 1


@pytest.mark.parametrize("options", [(), ("--diff",)])
def test_three_sites_in_the_simulator_leave_a_ledger_whose_mean_is_nvflares(tmp_path, options):
    command = [sys.executable, "job.py", "--ledger", str(tmp_path / "l"), "--rounds", "2", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=EXAMPLE, env=environment, capture_output=True, check=True, timeout=300)
    ledger = verify_ledger(tmp_path / "l")
    assert [len(entry.participants) for entry in ledger.entries] == [3, 2]
    assert ledger.sample_counts() == {0: 216, 1: 432, 2: 648}
    models = [round_.global_model for round_ in ledger.rounds()]
    for round_, after in zip(ledger.rounds(), [*models[1:], ledger.final_model()], strict=True):
        counts = dict(zip(round_.entry.answered, round_.entry.sample_counts, strict=True))
        for name, expected in after.items():
            shares = [n * round_.client_models[k][name].to(torch.float64) for k, n in counts.items()]
            mean = torch.stack(shares).sum(dim=0) / sum(counts.values())
            torch.testing.assert_close(mean, expected.to(torch.float64), rtol=1e-6, atol=1e-6)
