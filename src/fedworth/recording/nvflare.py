"""Record an NVFlare federation as it happens, by a server component that listens and changes nothing.

    job.to_server(fedworth.nvflare.RoundRecorder("my.ledger"), id="fedworth")

    BEFORE_TRAIN_TASK           a client fetches the task: it was asked, and w^t is what it is sent
    AFTER_TASK_RESULT_FILTER    a result arrived; if it is an error, the site failed, which no later event tells
    AFTER_CONTRIBUTION_ACCEPT   a result was accepted: a model, or a difference (w_k = w^t + difference)
    AFTER_AGGREGATION           the round is over; a site that was asked and sent nothing was silent
    ABOUT_TO_END_RUN, END_RUN   the final model is the last aggregate; at END_RUN trackers take nothing any more

FedAvg, recipes and ScatterAndGather fire the same events; the latter's aggregate is a Shareable. Results are aggregated
one by one and not kept, so each goes to disk as it comes. Site names are stable and are the clients' names. A site's
weight is its `NUM_STEPS_CURRENT_ROUND` (default 1) times the server's `aggregation_weights` for it (default 1), as in
NVFlare's own averaging.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.analytix import ANALYTIC_EVENT_TYPE, AnalyticsDataType
from nvflare.apis.client import Client
from nvflare.apis.dxo import MetaKey
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import (
    FedEventHeader,
    FLContextKey,
    FLMetaKey,
    ReservedKey,
    ReturnCode,
    ServerCommandKey,
)
from nvflare.apis.shareable import Shareable
from nvflare.apis.utils.analytix_utils import create_analytic_dxo
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.fedavg import FedAvg

from fedworth.errors import FedworthError, ModelError
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.model import checked_count
from fedworth.names import Aggregation
from fedworth.recording.identity import NodeNames, owners_of, skeleton
from fedworth.recording.recorder import Arrays, LiveRecorder, attempt, reason_of, record_into, with_difference
from fedworth.report.trackers import Metric
from fedworth.task.task import Task

RECEIVERS = "nvflare"
"""The name of the job's own tracking receivers in `track`."""


class RoundRecorder(FLComponent):  # type: ignore[misc]
    """Writes every training round of a job into a ledger, and values the rounds so far on request.

    Example:
        job.to_server(fedworth.nvflare.RoundRecorder("my.ledger"), id="fedworth")
    """

    def __init__(
        self,
        ledger: str,
        aggregation: Aggregation = "samples",
        task_name: str = "train",
        resume: bool = False,
        track: Sequence[str] = (),
        task: str | None = None,
    ) -> None:
        super().__init__()
        self.ledger, self.aggregation, self.task_name, self.resume = ledger, aggregation, task_name, resume
        self.track, self.task = track, task
        self._lock = threading.RLock()  # results arrive on threads of their own
        self._recorder: LiveRecorder | None = None
        self._number: int | None = None  # of the round that is open
        self._refused: int | None = None  # of the last round, if its model cannot be recorded
        self._model: dict[str, Any] = {}
        self._asked: list[str] = []
        self._nodes = NodeNames()  # by the tokens of sites
        self._failed: set[str] = set()  # in the open round
        self._after: dict[str, Any] | None = None

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Record what the event tells; errors never reach the training."""
        actions = {
            AppEventType.BEFORE_TRAIN_TASK: self._on_asked,
            EventType.AFTER_TASK_RESULT_FILTER: self._on_result,
            AppEventType.AFTER_CONTRIBUTION_ACCEPT: self._on_accepted,
            AppEventType.AFTER_AGGREGATION: self._on_aggregated,
            EventType.ABOUT_TO_END_RUN: self._on_end_run,
            EventType.END_RUN: self._on_end_run,
        }
        if event_type != EventType.START_RUN and event_type not in actions:
            return  # without the lock: a tracker's own events come while a round waits for it
        with self._lock:
            if event_type == EventType.START_RUN:
                self._on_start_run(fl_ctx)
            elif self._recorder is not None:
                self._attempt(actions[event_type], self._recorder, fl_ctx)

    def _attempt(self, action: Callable[[LiveRecorder, Any], None], recorder: LiveRecorder, fl_ctx: Any) -> None:
        """Handle one event; an error loses the round and is logged."""
        try:
            action(recorder, fl_ctx)
        except Exception as error:
            attempt(self._lose, recorder, error)

    def _on_start_run(self, fl_ctx: Any) -> None:
        try:
            self._recorder = record_into(
                Path(self.ledger),
                aggregation=self.aggregation,
                real_weights=True,  # steps times aggregation weights
                settings={"source": "nvflare"},
                resume=self.resume,
                track=self._trackers(fl_ctx) or None,
                task=self._task_place(fl_ctx),
            )
            self._nodes = NodeNames(owners_of(Ledger.open(self._recorder.writer.folder)))
        except FedworthError as error:  # no training has happened yet, so stop the job
            self.system_panic(f"fedworth cannot record: {error}", fl_ctx)

    def _trackers(self, fl_ctx: Any) -> list[Any]:
        named = [self.track] if isinstance(self.track, str) else self.track
        return [Receivers(self, fl_ctx.get_engine()) if name == RECEIVERS else name for name in named]

    def _task_place(self, fl_ctx: Any) -> str | None:
        """The task's file where the job has brought it, or where it is named."""
        if self.task is None:
            return None
        copy = Path(fl_ctx.get_engine().get_workspace().get_app_custom_dir(fl_ctx.get_job_id())) / self.task
        return str(copy) if copy.with_name(copy.name.rpartition(":")[0]).is_file() else self.task

    def values(self, task: Task, **how: Any) -> dict[str, float]:
        """Each site's value so far, by its name, empty if nothing is recorded yet; see `LiveRecorder.values`."""
        with self._lock:
            return {} if self._recorder is None else self._recorder.values(task, **how)

    def _on_asked(self, recorder: LiveRecorder, fl_ctx: Any) -> None:
        sent = FLModelUtils.from_shareable(fl_ctx.get_prop(AppConstants.TRAIN_SHAREABLE))
        if self._refused is not None and sent.current_round == self._refused:
            return  # another site is asked in the same round
        registered = [client.name for client in fl_ctx.get_engine().get_clients()]
        owners = self._nodes.owners = self._nodes.owners.knowing([*registered, _peer(fl_ctx)])
        name = owners.spelled(_peer(fl_ctx))
        if self._number != sent.current_round:
            self._end(recorder)  # a round that was given up
            self._refused = sent.current_round
            _refuse_encrypted(sent)
            _refuse_trees(sent)
            self._refused = None
            self._number, self._asked, self._failed = sent.current_round, [], set()
            self._model = {key: _array(value) for key, value in sent.params.items()}
            sites = [owners.spelled(site) for site in registered]
            recorder.start_round(self._model, asked=[*dict.fromkeys([*sites, name])], number=int(sent.current_round))
        if name not in self._asked:
            self._asked.append(name)

    def _on_result(self, recorder: LiveRecorder, fl_ctx: Any) -> None:
        result = fl_ctx.get_prop(FLContextKey.TASK_RESULT)
        if self._number is None or fl_ctx.get_prop(FLContextKey.TASK_NAME) != self.task_name:
            return
        code = result.get_return_code(default=ReturnCode.OK) if isinstance(result, Shareable) else "no result"
        name = None if code == ReturnCode.OK else self._who(recorder, result, fl_ctx)
        if name is not None and name in self._asked:
            self._failed.add(name)
            recorder.client_failed(name, f"the site returned {code}")

    def _on_accepted(self, recorder: LiveRecorder, fl_ctx: Any) -> None:
        result = fl_ctx.get_prop(AppConstants.TRAINING_RESULT)
        if self._number is None or fl_ctx.get_prop(AppConstants.CURRENT_ROUND) != self._number:
            return  # late, from a round that is over: it is not averaged
        name = self._who(recorder, result, fl_ctx)
        if name is None or name in self._failed:
            return
        if result is None:
            recorder.client_failed(name, "the site returned an error")
            return
        if fl_ctx.get_prop(AppConstants.AGGREGATION_ACCEPTED):
            recorder.client_answer(name, lambda: self._read(result, fl_ctx))
        else:
            recorder.client_quarantined(name, "the server did not accept its result")

    def _read(self, result: Any, fl_ctx: Any) -> tuple[Arrays, float]:
        """The model in a result, and its weight."""
        answer = FLModelUtils.from_shareable(result)
        _refuse_encrypted(answer)
        model = _whole_model(answer.params, answer.params_type, self._model)
        steps = (answer.meta or {}).get(FLMetaKey.NUM_STEPS_CURRENT_ROUND, 1)
        return model, checked_count(steps, "samples", "its steps") * _server_weight(_peer(fl_ctx), fl_ctx)

    def _who(self, recorder: LiveRecorder, result: Any, fl_ctx: Any) -> str | None:
        """The client name of a result; None if its site may not use the name that it says.

        NVFlare knows a site by the token that it got when it registered (with its certificate, if the server asks for
        one). The name in the peer's context is only what the site says.
        """
        said, owners = _peer(fl_ctx), self._nodes.owners
        site = result.get_header(ServerCommandKey.FL_CLIENT) if isinstance(result, Shareable) else None
        if not isinstance(site, Client):
            return owners.spelled(said)
        if skeleton(said) != skeleton(site.name):
            recorder.contested.append(owners.spelled(said))
            why = f"it registered by this name, and answered as {said!r}"
            recorder.client_quarantined(owners.spelled(site.name), why)
            return None
        present = [client.token for client in fl_ctx.get_engine().get_clients()]
        for token in (site.token, *present):
            self._nodes.meet(token, token.encode())
        settled = self._nodes.settle({site.token: said}, present)
        recorder.report_claims(settled, heard=settled.conflicts)
        return self._nodes.names.get(site.token)

    def _on_aggregated(self, recorder: LiveRecorder, fl_ctx: Any) -> None:
        result = fl_ctx.get_prop(AppConstants.AGGREGATION_RESULT)
        before = self._model
        self._end(recorder)
        if isinstance(result, Shareable):
            result = FLModelUtils.from_shareable(result)
        if result is not None and result.params and self._refused is None and not _is_encrypted(result):
            self._after = {**before, **_whole_model(result.params, result.params_type, before)}

    def _on_end_run(self, recorder: LiveRecorder, _fl_ctx: Any) -> None:
        self._end(recorder)
        after, self._after = self._after, None
        if after is not None:
            recorder.close(after)
        recorder.release()

    def _end(self, recorder: LiveRecorder) -> None:
        if self._number is not None:
            recorder.end_round(asked=self._asked)
            self._number = None

    def _lose(self, recorder: LiveRecorder, error: Exception) -> None:
        number = next(n for n in (self._number, self._refused, recorder.writer.next_number) if n is not None)
        self._number = None
        recorder.lose_round(int(number), reason_of(error))


class Receivers:
    """The tracking receivers of the job, which keep a run for each site: a site's numbers go into its own.

    Receivers listen to events that sites send; these are the same, made on the server.
    """

    def __init__(self, component: FLComponent, engine: Any) -> None:
        self.component, self.engine = component, engine
        # NVFlare's receiver for W&B drops what a site logs for an earlier step, so there the step is a metric
        self.has_steps = type(engine.get_component("receiver")).__name__ != "WandBReceiver"

    def log(self, step: int, metrics: Sequence[Metric], text: str) -> None:  # noqa: ARG002
        numbers = [(metric.client, metric.name, metric.number) for metric in metrics]
        numbers += [(site, "round", step) for site in dict.fromkeys(metric.client for metric in metrics)]
        for site, name, number in numbers:
            at = {"global_step": step} if self.has_steps else {}
            tag = f"fedworth/{name.replace(' ', '-')}"
            sent = create_analytic_dxo(tag, number, AnalyticsDataType.SCALAR, **at).to_shareable()
            sent.set_peer_props({ReservedKey.IDENTITY_NAME: site})
            sent.set_header(FedEventHeader.DIRECTION, "in")  # it goes to nobody else
            with self.engine.new_context() as fl_ctx:
                self.component.fire_fed_event(f"fed.{ANALYTIC_EVENT_TYPE}", sent, fl_ctx)

    def finish(self, files: Sequence[Path]) -> None:
        """Receivers keep no files: the report is in LEDGER.watch."""


class EveryoneHeardFedAvg(FedAvg):  # type: ignore[misc]
    """NVFlare's FedAvg, whose first round asks every site."""

    def sample_clients(self, num_clients: int | None = None) -> Any:
        """All sites in the first round, as many as asked for in the others."""
        return super().sample_clients(None if self.current_round == self.start_round else num_clients)


def _peer(fl_ctx: Any) -> str:
    """The name that the other end says."""
    return str(fl_ctx.get_peer_context().get_identity_name())


def _refuse_encrypted(model: FLModel) -> None:
    """Refuse a model under homomorphic encryption, which the server cannot read."""
    if _is_encrypted(model):
        raise ModelError(
            "encrypted (homomorphic encryption): the server cannot read single models, so they cannot be valued; "
            "record at a party that may read them, or record groups whose sums are revealed (docs/privacy.md)"
        )


def _refuse_trees(model: FLModel) -> None:
    """Refuse NVFlare's tree-based XGBoost, which sends no model at first, and then each round's new trees."""
    if not model.params or "model_data" in model.params:
        raise ModelError(
            "no tensors were sent, as by NVFlare's tree-based XGBoost, whose trees cannot be recorded; those of "
            "Flower's FedXgbBagging can (docs/tasks.md), and utilities that you measure can be valued: fedworth value"
        )


def _is_encrypted(model: FLModel) -> bool:
    """Whether NVFlare's filters marked the model as encrypted, or left bytes in it."""
    is_bytes = any(isinstance(value, bytes) for value in (model.params or {}).values())
    return is_bytes or (model.meta or {}).get(MetaKey.PROCESSED_ALGORITHM) is not None


def _server_weight(site: str, fl_ctx: Any) -> float:
    """The weight of a site in the settings of FedAvg, or of ScatterAndGather's aggregator (by kind of data)."""
    workflow = getattr(fl_ctx.get_prop(FLContextKey.RUNNER), "current_wf", None)
    controller = getattr(workflow, "controller", None)
    of_aggregator = getattr(getattr(controller, "aggregator", None), "aggregation_weights", None)
    given = getattr(controller, "aggregation_weights", None) or of_aggregator or {}
    weight = given.get("", given).get(site)
    return 1.0 if weight is None else float(weight)


def _whole_model(params: Any, kind: Any, model: dict[str, Any]) -> dict[str, Any]:
    """A client's model, whether it sent the model or a difference."""
    arrays = {key: _array(value) for key, value in params.items()}
    if kind != ParamsType.DIFF:
        return arrays
    return with_difference(model, arrays)


def _array(value: Any) -> Any:
    """An array; a job's configuration has lists of numbers."""
    return np.asarray(value) if isinstance(value, list | int | float) else value
