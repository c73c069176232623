"""Trackers that get a federation's values after each round: those of `fedworth report` on the rounds so far.

Each tracker has a thread of its own, so one that hangs or raises does not hold up the training: a round waits for it
`ROUND_SECONDS`, and once it was late no round waits for it again. What it raises is logged. At the end the trackers get
`FINISH_SECONDS` to send what is left.
"""

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedworth.errors import ArtefactError, UsageError
from fedworth.ledger.ledger import Ledger
from fedworth.oracle.store import Session
from fedworth.pipeline.run import update
from fedworth.report.report import Report
from fedworth.report.trackers import Tracker, metrics_of, text_of, tracker_of
from fedworth.task.task import Task
from fedworth.valuation.settings import ValuationSettings

log = logging.getLogger("fedworth")

ROUND_SECONDS = 2.0
FINISH_SECONDS = 60.0
ARTEFACTS = ("report.html", "report.csv", "report.json")


class Trackers:
    """Several trackers that show the same reports."""

    def __init__(self, named: Any) -> None:
        given = named if isinstance(named, Sequence) and not isinstance(named, str) else [named]
        self._senders = [_Sender(tracker_of(tracker)) for tracker in given]
        self._shown: Any = None

    def show(self, report: Report) -> None:
        """Send a round, unless nothing has changed since."""
        number = report.rounds.numbers[-1] if report.rounds is not None and report.rounds.numbers else 0
        content = (number, metrics_of(report), text_of(report))
        if content != self._shown:
            self._shown = content
            for sender in self._senders:
                sender.send(lambda tracker: tracker.log(*content))

    def finish(self, folder: Path) -> None:
        """Send the report's files, and wait until everything is sent."""
        files = [folder / name for name in ARTEFACTS if (folder / name).is_file()]
        for sender in self._senders:
            sender.finish(lambda tracker: tracker.finish(files))


class _Sender:
    """Calls one tracker on a thread of its own, in order."""

    def __init__(self, tracker: Tracker) -> None:
        self.name, self.is_late = type(tracker).__name__, False
        self.waiting: queue.SimpleQueue[tuple[Callable[[Tracker], None], threading.Event]] = queue.SimpleQueue()
        threading.Thread(target=self._run, args=(tracker,), daemon=True, name=f"fedworth {self.name}").start()

    def send(self, action: Callable[[Tracker], None], *, seconds: float | None = None) -> None:
        """Call the tracker, and wait a little, so that it logs in step with the training."""
        done = threading.Event()
        self.waiting.put((action, done))
        if seconds is not None or not self.is_late:
            self.is_late = not done.wait(ROUND_SECONDS if seconds is None else seconds)

    def finish(self, action: Callable[[Tracker], None]) -> None:
        """Call it a last time, and wait until everything is sent."""
        self.send(action, seconds=FINISH_SECONDS)
        if self.is_late:
            log.error("fedworth: %s did not answer; it lacks the last rounds or the report", self.name)

    def _run(self, tracker: Tracker) -> None:
        while True:
            action, done = self.waiting.get()
            try:
                action(tracker)
            except Exception as error:
                log.error("fedworth: %s failed (%s: %s)", self.name, type(error).__name__, error)
            done.set()


class LiveTracking:
    """Values the ledger that a recorder writes, in the recorder's own process; the recorder logs errors."""

    def __init__(self, ledger: Path, task: Task | str | None, track: Any, *, is_new: bool) -> None:
        if task is None:
            raise UsageError("track: values are measured on a task; give one, such as task='mytask.py:task'")
        self.ledger, self.folder = ledger.absolute(), ledger.absolute().with_name(ledger.name + ".watch")
        if is_new and (self.folder / "report.json").exists():
            raise ArtefactError(f"{self.folder}: a report on another ledger; remove it first, or name another ledger")
        self.session = Session(Task.load(task) if isinstance(task, str) else task)
        self.trackers: Trackers | None = Trackers(track)

    def round_ended(self) -> None:
        """Value the rounds so far, write the report and show it."""
        if self.trackers is not None:
            ledger = self.session.remember(Ledger.open(self.ledger))
            self.trackers.show(
                update(ledger, self.session.task, ValuationSettings(), self.folder, session=self.session)
            )

    def finish(self) -> None:
        """Show the closed ledger's report, and hand its files over."""
        trackers = self.trackers
        try:
            self.round_ended()
        finally:
            self.trackers = None
            if trackers is not None:
                trackers.finish(self.folder)
