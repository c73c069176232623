"""Recording an NVFlare federation: the events of a job go in, a ledger comes out; the simulator proves it whole."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from nvflare.apis.client import Client
from nvflare.apis.dxo import MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.shareable import ReturnCode, make_reply
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import fedworth.nvflare
from fedworth.errors import RuleError, UsageError
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.writer import LedgerWriter
from fedworth.recording import nvflare as live
from fedworth.recording.nvflare import RoundRecorder
from fedworth.recording.recorder import LiveRecorder
from fedworth.task.replay import check_ledger
from fedworth.task.rules import Median, WeightedMean
from fedworth.task.task import Task

EXAMPLE = Path(__file__).parents[3] / "examples" / "nvflare"
JOBS = Path(__file__).parent / "jobs"
START = {"w": np.arange(4.0, dtype=np.float32), "b": np.array([1.0], dtype=np.float32)}


@dataclass
class Job:
    """A job's server in miniature: it fires the events that NVFlare's controllers fire."""

    recorder: RoundRecorder
    sites: tuple[str, ...] = ("site-1", "site-2", "site-3")
    start: dict[str, Any] = field(default_factory=lambda: START)
    runner: Any = None
    receiver: Any = None
    manager: Any = field(init=False)

    def __post_init__(self) -> None:
        self.manager = FLContextManager(engine=self, identity_name="server", job_id="job")
        self.fire(EventType.START_RUN)

    def get_clients(self) -> list[Client]:
        """Who has registered, with which token."""
        return [Client(name, f"token of {name}") for name in self.sites]

    def get_workspace(self) -> Any:
        """Where the job has brought no file."""
        return SimpleNamespace(get_app_custom_dir=lambda _: "nowhere")

    def get_component(self, _name: str) -> Any:
        """No component is asked for by its name."""
        return None

    def new_context(self) -> Any:
        """For events of components."""
        return self.manager.new_context()

    def fire_event(self, event: str, context: Any) -> None:
        """An event of a component, for the job's receiver."""
        if self.receiver is not None:
            self.receiver.handle_event(event, context)

    def fire(self, event: str, site: str | None = None, **props: Any) -> None:
        context = self.manager.new_context()
        if site is not None:
            context.set_peer_context(FLContextManager(engine=self, identity_name=site).new_context())
        context.set_prop(FLContextKey.RUNNER, self.runner, private=True, sticky=False)
        for key, value in props.items():
            context.set_prop(getattr(AppConstants, key), value, private=True, sticky=False)
        self.recorder.handle_event(event, context)

    def ask(self, site: str, number: int) -> None:
        sent = FLModelUtils.to_shareable(FLModel(params=self.start, current_round=number, total_rounds=9))
        self.fire(AppEventType.BEFORE_TRAIN_TASK, site, TRAIN_SHAREABLE=sent)

    def hear(self, site: str, number: int, result: Any, *, accepted: bool = True) -> None:
        self.fire(
            AppEventType.AFTER_CONTRIBUTION_ACCEPT,
            site,
            TRAINING_RESULT=result,
            AGGREGATION_ACCEPTED=accepted,
            CURRENT_ROUND=number,
        )

    def came_back(self, site: str, result: Any, *, task: str = "train") -> None:
        context = self.manager.new_context()
        context.set_peer_context(FLContextManager(engine=self, identity_name=site).new_context())
        for key, value in ((FLContextKey.TASK_NAME, task), (FLContextKey.TASK_RESULT, result)):
            context.set_prop(key, value, private=True, sticky=False)
        self.recorder.handle_event(EventType.AFTER_TASK_RESULT_FILTER, context)

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
    entry = Ledger.verify(tmp_path / "l").entries[0]
    assert (entry.answered, entry.failed, entry.silent) == ((0,), (1,), (2,))
    assert (entry.number, entry.sample_counts) == (0, (7,))


def test_a_difference_becomes_the_model_that_it_stands_for(job, tmp_path):
    job.ask("site-1", 0)
    job.hear("site-1", 0, result({name: 0.5 * array for name, array in START.items()}, ParamsType.DIFF))
    job.aggregate({name: array + 1 for name, array in START.items()}, ParamsType.DIFF)
    job.fire(EventType.END_RUN)
    ledger = Ledger.verify(tmp_path / "l")
    assert torch.equal(ledger.open_round(0).client_models[0]["w"], torch.from_numpy(1.5 * START["w"]))
    assert torch.equal(ledger.final_model()["w"], torch.from_numpy(2 * START["w"] + 1))
    assert ledger.entries[0].sample_counts == (1,)


def test_sites_that_were_not_asked_in_a_round_are_clients_but_not_asked(job, tmp_path):
    job.ask("site-3", 4)
    job.aggregate({})
    ledger = Ledger.open(tmp_path / "l")
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
    entry = Ledger.verify(tmp_path / "l").entries[0]
    assert (entry.answered, entry.quarantined) == ((0, 2), (1,))


ENCRYPTED: dict[str, dict[str, Any]] = {
    "its filter says so": {"params": START, "meta": {MetaKey.PROCESSED_ALGORITHM: "CKKS"}},
    "stored as bytes": {"params": {name: b"a ciphertext" for name in START}},
}


@pytest.mark.parametrize("how", ENCRYPTED)
def test_homomorphic_encryption_is_refused_with_the_reason(job, tmp_path, how):
    """As NVFlare's HEModelEncryptor and HEModelShareableGenerator leave it: the first global model alone is plain."""
    hidden = FLModel(params_type=ParamsType.DIFF, **ENCRYPTED[how])
    for site in job.sites:
        job.ask(site, 0)
    for site in job.sites:
        job.hear(site, 0, FLModelUtils.to_shareable(hidden))
    job.fire(AppEventType.AFTER_AGGREGATION, AGGREGATION_RESULT=FLModelUtils.to_shareable(hidden))
    sent = FLModelUtils.to_shareable(FLModel(current_round=1, total_rounds=9, **ENCRYPTED[how]))
    for site in job.sites:
        job.fire(AppEventType.BEFORE_TRAIN_TASK, site, TRAIN_SHAREABLE=sent)
    job.fire(EventType.END_RUN)
    ledger = Ledger.verify(tmp_path / "l")
    reasons = [*ledger.entries[0].quarantine_reasons, *(gone.reason for gone in ledger.missing)]
    assert [gone.number for gone in ledger.missing] == [1]
    assert len(reasons) == 4
    assert all(reason.startswith("encrypted (homomorphic encryption): the server cannot read") for reason in reasons)


def test_trees_are_refused_with_the_reason(job, tmp_path):
    """As XGBBaggingRecipe sends them: nothing in the first round, then the trees of each site."""
    trees = {"model_data": bytearray(b"{}")}
    for number, job.start in enumerate([{}, {"model_data": [trees["model_data"]]}]):
        for site in job.sites:
            job.ask(site, number)
        for site in job.sites:
            job.hear(site, number, result(trees))
        job.aggregate({"model_data": [trees["model_data"]]})
    job.fire(EventType.END_RUN)
    missing = Ledger.open(tmp_path / "l").missing
    assert [gone.number for gone in missing] == [0, 1]
    assert all("tree-based XGBoost" in gone.reason for gone in missing)


def test_what_the_server_did_not_accept_is_not_counted(job, tmp_path):
    job.ask("site-1", 0)
    job.hear("site-1", 0, result(START), accepted=False)
    job.hear("site-1", 7, result(START))
    job.aggregate(START)
    assert Ledger.open(tmp_path / "l").entries[0].quarantined == (0,)


def test_an_error_in_recording_never_reaches_the_training(job, tmp_path):
    job.fire(AppEventType.BEFORE_TRAIN_TASK, "site-1", TRAIN_SHAREABLE="no shareable")
    job.ask("site-1", 1)
    job.aggregate(START)
    ledger = Ledger.verify(tmp_path / "l")
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
    assert Ledger.verify(tmp_path / "l").n_rounds == 1


def test_a_site_that_returns_an_error_has_failed_and_one_that_returns_nothing_was_silent(job, tmp_path):
    for site in job.sites:
        job.ask(site, 0)
    job.came_back("site-1", make_reply(ReturnCode.OK))
    job.hear("site-1", 0, result(START))
    job.came_back("site-2", make_reply(ReturnCode.EXECUTION_EXCEPTION))  # ScatterAndGather says no more of it
    job.came_back("site-3", make_reply(ReturnCode.EXECUTION_EXCEPTION), task="validate")
    job.hear("site-2", 0, None, accepted=False)  # FedAvg does
    job.aggregate(START)
    entry = Ledger.verify(tmp_path / "l").entries[0]
    assert (entry.answered, entry.failed, entry.silent) == ((0,), (1,), (2,))
    assert entry.failure_reasons == ("the site returned EXECUTION_EXCEPTION",)
    assert entry.notes == ()


@pytest.mark.parametrize("kind", [ParamsType.FULL, ParamsType.DIFF])
def test_an_aggregate_that_is_a_shareable_is_the_final_model(job, tmp_path, kind):
    """As ScatterAndGather's aggregators give it."""
    job.ask("site-1", 0)
    job.hear("site-1", 0, result(START))
    job.fire(AppEventType.AFTER_AGGREGATION, AGGREGATION_RESULT=result(START, kind))
    job.fire(EventType.END_RUN)
    ledger = Ledger.verify(tmp_path / "l")
    assert (ledger.is_closed, ledger.missing) == (True, ())
    assert torch.equal(ledger.final_model()["w"], torch.from_numpy(START["w"] * (1 + (kind == ParamsType.DIFF))))


@pytest.mark.parametrize(
    "controller",
    [
        SimpleNamespace(aggregation_weights={"site-1": 2.5}),
        SimpleNamespace(aggregator=SimpleNamespace(aggregation_weights={"": {"site-1": 2.5}})),
    ],
    ids=["FedAvg", "ScatterAndGather"],
)
def test_the_weights_that_the_server_gives_its_sites_are_recorded(job, tmp_path, controller):
    job.runner = SimpleNamespace(current_wf=SimpleNamespace(controller=controller))
    for site in job.sites:
        job.ask(site, 0)
        job.hear(site, 0, result(START, NUM_STEPS_CURRENT_ROUND=4))
    job.aggregate(START)
    assert Ledger.open(tmp_path / "l").entries[0].sample_counts == (10, 4, 4)


CALLS = [
    *((live.RoundRecorder, n) for n in vars(live.RoundRecorder) if n.startswith("_") and not n.endswith("__")),
    *((LiveRecorder, n) for n, f in vars(LiveRecorder).items() if not n.endswith("__") and callable(f)),
    *((LedgerWriter, n) for n, f in vars(LedgerWriter).items() if not n.endswith("__") and callable(f)),
    *(
        (live, name)
        for name in ("_peer", "_whole_model", "_array", "_server_weight", "_refuse_encrypted", "_is_encrypted")
    ),
]


@pytest.mark.parametrize(("owner", "name"), [call for call in CALLS if call[1] not in ("_attempt", "_on_start_run")])
def test_no_call_raises_into_the_training(job, monkeypatch, owner, name):
    def explode(*_args, **_kwargs):
        raise RuntimeError("a fault of fedworth's")

    monkeypatch.setattr(owner, name, explode)
    for number in (0, 1):
        for site in job.sites:
            job.ask(site, number)
            job.came_back(site, make_reply(ReturnCode.OK))
            job.hear(site, number, result(START))
        job.aggregate(START)
    job.fire(EventType.END_RUN)


def test_values_are_there_after_each_round_and_nobody_has_one_before(tmp_path):
    recorder = fedworth.nvflare.RoundRecorder(str(tmp_path / "l"))
    task = Task(torch.nn.Linear(4, 1), torch.randn(6, 4), torch.zeros(6, dtype=torch.int64))
    assert recorder.values(task) == {}
    start = {"weight": np.zeros((1, 4), dtype=np.float32), "bias": np.zeros(1, dtype=np.float32)}
    job = Job(recorder, start=start)
    for site in job.sites:
        job.ask(site, 0)
        job.hear(site, 0, result(start))
    job.aggregate(start)
    assert recorder.values(task) == dict.fromkeys(job.sites, 0.0)


def own_task() -> Task:
    return Task(torch.nn.Linear(4, 1), torch.ones(6, 4), torch.zeros(6, dtype=torch.int64))


def test_a_tracker_shows_values_after_each_round(tmp_path):
    prom, start = tmp_path / "f.prom", {"weight": np.zeros((1, 4), np.float32), "bias": np.zeros(1, np.float32)}
    place = f"{__file__}:own_task"
    job = Job(
        fedworth.nvflare.RoundRecorder(str(tmp_path / "l"), track=[f"prometheus:{prom}"], task=place), start=start
    )
    for number in (0, 1):
        for site in job.sites:
            job.ask(site, number)
            job.hear(site, number, result(start))
        job.aggregate(start)
        assert f"fedworth_round {number}\n" in prom.read_text()
    assert 'fedworth_value{client="site-2"} 0.0\n' in prom.read_text()
    job.fire(EventType.END_RUN)
    assert Ledger.open(tmp_path / "l").is_closed


class Heard(FLComponent):  # type: ignore[misc]
    """A job's own receiver: hears what the recorder fires, as every component of the job does."""

    def __init__(self, recorder):
        super().__init__()
        self.recorder, self.heard = recorder, []

    def handle_event(self, event_type, fl_ctx):
        self.recorder.handle_event(event_type, fl_ctx)  # an event goes to all components, the recorder too
        data = from_shareable(fl_ctx.get_prop(FLContextKey.EVENT_DATA)).data
        self.heard.append((data["track_key"], data["global_step"]))


def test_a_round_does_not_wait_for_receivers_that_wait_for_the_round(tmp_path):
    """Events of a tracker come back to the recorder, which is in the middle of the round's end."""
    start = {"weight": np.zeros((1, 4), np.float32), "bias": np.zeros(1, np.float32)}
    recorder = fedworth.nvflare.RoundRecorder(str(tmp_path / "l"), track="nvflare", task=f"{__file__}:own_task")
    job = Job(recorder, start=start)
    receiver = job.receiver = Heard(recorder)
    for number in (0, 1):
        for site in job.sites:
            job.ask(site, number)
            job.hear(site, number, result(start))
        job.aggregate(start)
        assert receiver.heard.count(("fedworth/value", number)) == len(job.sites)  # already, not two seconds later
    job.fire(EventType.ABOUT_TO_END_RUN)
    job.fire(EventType.END_RUN)
    assert Ledger.open(tmp_path / "l").is_closed


def simulated(tmp_path, folder, *command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    told = [sys.executable, "job.py", *command, "--ledger", str(tmp_path / "l")]
    subprocess.run(told, cwd=folder, env=environment, capture_output=True, check=True, timeout=600)
    ledger = Ledger.verify(tmp_path / "l")
    checked = check_ledger(ledger, WeightedMean())
    checked.refuse_others()
    assert (checked.n_same, ledger.is_closed, ledger.missing) == (2, True, ())
    return ledger


def test_three_sites_of_fedavg_that_drops_one_leave_a_ledger_whose_mean_is_nvflares(tmp_path):
    """Nobody has a value before the first round: everyone is asked."""
    ledger = simulated(tmp_path, EXAMPLE, "--rounds", "2", "--drop", "--wrong", "site-3")
    assert ledger.sample_counts(0) == {0: 216, 1: 432, 2: 648}
    assert "site-3" not in {ledger.clients[k] for k in ledger.entries[1].asked}


def test_a_recipe_whose_sites_send_differences_is_recorded_with_the_weights_it_gives(tmp_path):
    """And NVFlare's own receiver, in the run that it keeps for each site, has what the report says."""
    ledger = simulated(tmp_path, JOBS, "recipe", "--diff", "--workspace", str(tmp_path / "workspace"))
    assert ledger.sample_counts() == {0: 25, 1: 20, 2: 30}
    report = fedworth.Report.read(tmp_path / "l.watch")
    (folder,) = (tmp_path / "workspace").rglob("tb_events")
    for line in report:
        events = EventAccumulator(str(folder / line.client))
        events.Reload()
        for name in ("value", "low", "high"):
            shown = [(event.step, event.value) for event in events.Scalars(f"fedworth/{name}")]
            assert [step for step, _ in shown] == [0, 1]
            assert shown[-1][1] == pytest.approx(getattr(line, name), rel=1e-6)
    assert {folder.name for folder in folder.iterdir()} == {"site-1", "site-2", "site-3"}


def test_scatter_and_gather_is_recorded_and_a_site_that_fails_is_told_from_a_silent_one(tmp_path):
    ledger = simulated(tmp_path, JOBS, "scatter-and-gather", "--diff")
    assert [len(entry.participants) for entry in ledger.entries] == [3, 2]
    assert (ledger.entries[1].failed, ledger.entries[1].silent) == ((1,), ())
    assert ledger.sample_counts() == {0: 25, 1: 20, 2: 30}


def test_scaffold_is_recorded_and_its_controls_are_no_part_of_a_model(tmp_path):
    ledger = simulated(tmp_path, JOBS, "scaffold", "--diff")
    assert set(ledger.open_round(0).global_model) == {"weight", "bias"}
    assert ledger.sample_counts() == {0: 10, 1: 20, 2: 30}


def test_an_aggregator_of_ones_own_is_recorded_and_refused_when_valued(tmp_path):
    """It takes the middle one of each number."""
    with pytest.raises(RuleError, match="the recorded next model is not the weighted mean"):
        simulated(tmp_path, JOBS, "own-aggregator")
    checked = check_ledger(Ledger.verify(tmp_path / "l"), Median())
    checked.refuse_others()
    assert checked.n_same == 2


def test_a_task_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        fedworth.nvflare.add_valuation(None, ledger=tmp_path / "l", task="nowhere.py:task")


def test_another_kind_of_object_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="record: found a str, expected NVFlare's FedJob or a recipe"):
        fedworth.nvflare.record("job", ledger=tmp_path / "l")
