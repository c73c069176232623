"""Values in experiment trackers: MLflow, TensorBoard, Weights & Biases, Prometheus.

    fedworth/value/CLIENT, fedworth/low/CLIENT, fedworth/high/CLIENT     the value and its 90 % interval
    fedworth/finding/KIND/CLIENT                                         the confidence of a finding about the client

A tracker is named as `mlflow`, `wandb`, `tensorboard:FOLDER` or `prometheus:FILE`, or is any object with the methods of
`Tracker`. The first two use the run that is active where they are named, and start one if there is none.
"""

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedworth.errors import UsageError, unknown_name
from fedworth.report.report import Report

PLAIN = re.compile(r"\w[\w.-]{0,99}", re.ASCII)
LONGEST_TAG = 5000  # of MLflow's tags


@dataclass(frozen=True)
class Metric:
    """One number about one client."""

    name: str
    client: str
    number: float

    @property
    def key(self) -> str:
        """A name that every tracker accepts; a client name with other characters gets a part of its hash."""
        client = self.client
        if not PLAIN.fullmatch(client):
            kept = re.sub(r"[^\w.-]", "_", client, flags=re.ASCII)[:90].lstrip(".-")
            client = f"{kept}-{hashlib.sha256(self.client.encode(errors='backslashreplace')).hexdigest()[:6]}"
        return f"fedworth/{self.name.replace(' ', '-')}/{client}"


class Tracker(Protocol):
    """Where numbers go; what it raises is logged, and the training continues."""

    def log(self, step: int, metrics: Sequence[Metric], text: str) -> None:
        """Show a round: its number, each client's numbers, and the method and the findings in words."""

    def finish(self, files: Sequence[Path]) -> None:
        """Keep the files of the last report."""


def metrics_of(report: Report) -> list[Metric]:
    """The chosen values, their intervals and the findings of a report; what is not known is left out."""
    lines = list(report) if report.valuations else []
    numbers = [(name, line.client, getattr(line, name)) for line in lines for name in ("value", "low", "high")]
    found = [(f"finding/{f.kind.name}", client, f.confidence) for f in report.all_findings for client in f.clients]
    last = {row[:2]: row[2] for row in numbers + found}  # one number for each name and client
    return [Metric(*key, number) for key, number in last.items() if number is not None]


def text_of(report: Report) -> str:
    """The method of the values, and the findings."""
    method = f"values by {report.chosen.method}, 90 % intervals" if report.valuations else "no values"
    return "\n\n".join([method, *(finding.sentence for finding in report.all_findings)])


class MlflowTracker:
    """The active run, the run that MLFLOW_RUN_ID names, or a new one."""

    def __init__(self) -> None:
        import mlflow

        active = mlflow.active_run()  # of this thread: it is logged to from another one
        self.run = os.environ.get("MLFLOW_RUN_ID") if active is None else active.info.run_id
        self.is_own = self.run is None

    def log(self, step: int, metrics: Sequence[Metric], text: str) -> None:
        import mlflow

        self.run = self.run or mlflow.start_run().info.run_id
        now = int(time.time() * 1000)
        sent = [mlflow.entities.Metric(metric.key, metric.number, now, step) for metric in metrics]
        for start in range(0, len(sent), 1000):  # more are refused
            mlflow.MlflowClient().log_batch(self.run, metrics=sent[start : start + 1000])
        mlflow.MlflowClient().set_tag(self.run, "fedworth", text[:LONGEST_TAG])

    def finish(self, files: Sequence[Path]) -> None:
        import mlflow

        for file in files if self.run else ():
            mlflow.MlflowClient().log_artifact(self.run, str(file), "fedworth")
        if self.is_own:
            mlflow.end_run()


class WandbTracker:
    """The active run, or a new one; WANDB_MODE=offline keeps it on disk."""

    def __init__(self) -> None:
        import wandb

        self.run: Any = wandb.run
        self.is_own, self.left_at = self.run is None, -1

    def log(self, step: int, metrics: Sequence[Metric], text: str) -> None:
        """Metrics over `fedworth/round`, and a summary."""
        import wandb

        self.run = self.run or wandb.init()
        if self.left_at == self.run.step:  # nobody else has logged since: keep that round before the next
            self.run.log({}, commit=True)
        self.run.define_metric("fedworth/*", step_metric="fedworth/round")
        # a step of our own would make W&B drop what the training logs for an earlier one
        self.run.log({"fedworth/round": step, **{metric.key: metric.number for metric in metrics}}, commit=False)
        self.run.summary["fedworth"] = text
        self.left_at = self.run.step

    def finish(self, files: Sequence[Path]) -> None:
        import wandb

        if self.run is None:
            return
        artifact = wandb.Artifact(f"fedworth-{self.run.id}", type="report")
        for file in files:
            artifact.add_file(str(file))
        self.run.log_artifact(artifact)
        if self.is_own:
            self.run.finish()


class TensorboardTracker:
    """Event files in a folder, or a `SummaryWriter`."""

    def __init__(self, to: Any) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.is_own = isinstance(to, str)
        self.folder: str = to if self.is_own else to.log_dir
        self.writer: Any = None if self.is_own else to
        self.make = SummaryWriter

    def log(self, step: int, metrics: Sequence[Metric], text: str) -> None:
        self.writer = self.writer or self.make(self.folder)
        for metric in metrics:
            self.writer.add_scalar(metric.key, metric.number, step)
        self.writer.add_text("fedworth", text, step)
        self.writer.flush()

    def finish(self, files: Sequence[Path]) -> None:
        """TensorBoard keeps no files: they go into a folder beside its own."""
        folder = Path(self.folder) / "fedworth"
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copy(file, folder)
        if self.is_own and self.writer is not None:
            self.writer.close()


class PrometheusTracker:
    """A text file for node_exporter's textfile collector; it has the last round only."""

    def __init__(self, to: str) -> None:
        self.path = Path(to)

    def log(self, step: int, metrics: Sequence[Metric], text: str) -> None:  # noqa: ARG002
        lines = ["# TYPE fedworth_round gauge", f"fedworth_round {step}"]
        for name in dict.fromkeys(metric.name.partition("/")[0] for metric in metrics):
            lines.append(f"# TYPE fedworth_{name} gauge")
            for metric in metrics:
                stem, _, kind = metric.name.partition("/")
                labels = {"client": metric.client} | ({"kind": kind} if kind else {})
                shown = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels.items())
                lines += [f"fedworth_{stem}{{{shown}}} {metric.number!r}"] if stem == name else []
        partial = self.path.with_name(f".{self.path.name}.part")  # so that nobody reads half a file
        partial.write_text("\n".join([*lines, ""]), encoding="utf-8", errors="backslashreplace")
        partial.replace(self.path)

    def finish(self, files: Sequence[Path]) -> None:
        """Prometheus keeps no files."""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


TRACKERS: dict[str, tuple[Callable[..., Tracker], str]] = {
    "mlflow": (MlflowTracker, ""),
    "wandb": (WandbTracker, ""),
    "tensorboard": (TensorboardTracker, "FOLDER"),
    "prometheus": (PrometheusTracker, "FILE"),
}
"""By name: the class, and what follows the name and a colon."""


def tracker_of(named: Any) -> Tracker:
    """The tracker with this name; a `SummaryWriter` is one of TensorBoard's, and any other tracker is itself."""
    if callable(getattr(named, "add_scalar", None)):
        return TensorboardTracker(named)
    if not isinstance(named, str):
        if callable(getattr(named, "log", None)) and callable(getattr(named, "finish", None)):
            return named  # type: ignore[no-any-return]
        raise UsageError(f"track: found a {type(named).__name__}, expected a name, or an object with log and finish")
    name, _, place = named.partition(":")
    if name not in TRACKERS:
        raise unknown_name("tracker", name, TRACKERS)
    make, expected = TRACKERS[name]
    if bool(place) != bool(expected):
        raise UsageError(f"track {named!r}: expected {':'.join(filter(None, (name, expected)))!r}")
    try:
        return make(place) if place else make()
    except ImportError as error:
        raise UsageError(f"track {named!r}: {error}; install it: pip install 'fedworth[{name}]'") from None
