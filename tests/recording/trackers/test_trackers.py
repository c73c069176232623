"""What MLflow, Weights & Biases and TensorBoard show, read back from their own files, is what the report says."""

import json
import re
import struct
from pathlib import Path

import mlflow
import pytest
import torch
import wandb
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter
from wandb.proto import wandb_internal_pb2

from fedworth.cli.main import main
from fedworth.pipeline import track as tracking
from fedworth.report.report import Report
from fedworth.report.trackers import metrics_of
from tests.support.loops import net, task, train, train_into

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"
)
PAGE = Path(__file__).parents[3] / "docs" / "howto" / "trackers.md"
FILES = ["report.csv", "report.html", "report.json"]
SOUTH = "fedworth/value/s_uth__2_-"


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """MLflow's own database in a file, whose tables take seconds to make."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def store(database, request, tmp_path):
    """MLflow's client, with an experiment of the test's own."""
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(database)
    mlflow.create_experiment(request.node.name, artifact_location=str(tmp_path / "artefacts"))
    mlflow.set_experiment(request.node.name)
    yield mlflow.MlflowClient()
    mlflow.set_tracking_uri(before)


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """Where W&B keeps its runs."""
    for name in ("WANDB_DIR", "WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    yield tmp_path / "wandb"
    wandb.teardown()  # or the next test would have this folder


def reports_after_each_round(folder):
    """Keeps what `report.json` said after each round, by the round's number."""
    kept: dict[int, Report] = {}
    return kept, lambda number: kept.setdefault(number, Report.read(folder))


def numbers(report):
    return {metric.key: metric.number for metric in metrics_of(report)}


def wandb_records(folder):
    """The records of the only offline run: a log of LevelDB's, in blocks of 32 KB."""
    wandb.teardown()  # it writes the file
    (path,) = folder.glob("offline-run-*/run-*.wandb")
    data, at, part = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, n_bytes, kind = struct.unpack_from("<IHB", data, at)
        part, at = part + data[at + 7 : at + 7 + n_bytes], at + 7 + n_bytes
        if kind in (1, 4):  # whole, or the last part
            yield wandb_internal_pb2.Record.FromString(part)
            part = b""


def wandb_rows(folder):
    """What fedworth logged, by the number of the round; and all rows."""
    rows = [
        {item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for record in wandb_records(folder)
        if record.WhichOneof("record_type") == "history"
    ]
    shown = {
        row["fedworth/round"]: {k: x for k, x in row.items() if k.startswith("fedworth/") and k != "fedworth/round"}
        for row in rows
        if "fedworth/round" in row
    }
    return shown, rows


def test_mlflow_shows_each_round_in_the_run_that_is_active(store, tmp_path):
    kept, each_round = reports_after_each_round(tmp_path / "l.watch")
    with mlflow.start_run() as run:
        mlflow.log_metric("loss", 0.5, step=1)
        train(tmp_path / "l", each_round=each_round, track="mlflow", task=task())
        assert mlflow.active_run().info.run_id == run.info.run_id
    shown: dict[int, dict[str, float]] = {}
    for key in store.get_run(run.info.run_id).data.metrics:
        for metric in store.get_metric_history(run.info.run_id, key):
            shown.setdefault(metric.step, {})[key] = metric.value
    assert shown[1].pop("loss") == 0.5
    assert shown == {number: numbers(report) for number, report in kept.items()}
    assert len(kept) == 3
    assert any(key.startswith(SOUTH) for key in shown[3])
    assert any(key.startswith("fedworth/finding/") and key.endswith("/copy") for key in shown[3])
    final = Report.read(tmp_path / "l.watch")
    assert numbers(final) == shown[3]
    assert final.all_findings[0].sentence in store.get_run(run.info.run_id).data.tags["fedworth"]
    assert sorted(file.path for file in store.list_artifacts(run.info.run_id, "fedworth")) == [
        f"fedworth/{name}" for name in FILES
    ]
    got = store.download_artifacts(run.info.run_id, "fedworth/report.html", str(tmp_path))
    assert Path(got).read_bytes() == (tmp_path / "l.watch" / "report.html").read_bytes()


def test_watch_tracks_into_a_run_of_its_own_or_the_one_that_is_named(store, tmp_path, monkeypatch, request, capsys):
    train(tmp_path / "l")
    experiment = store.get_experiment_by_name(request.node.name).experiment_id
    named = store.create_run(experiment).info.run_id
    command = ["watch", str(tmp_path / "l"), "--task", f"{__file__}:task", "--once", "--track", "mlflow"]
    assert main(command) == 0
    monkeypatch.setenv("MLFLOW_RUN_ID", named)
    assert main(command) == 0
    capsys.readouterr()
    own = next(run for run in store.search_runs([experiment]) if run.info.run_id != named)
    assert own.info.status == "FINISHED"
    assert store.get_run(named).info.status == "RUNNING"  # whoever started it ends it
    expected = numbers(Report.read(tmp_path / "l.watch"))
    assert own.data.metrics == expected == store.get_run(named).data.metrics


def test_wandb_offline_shows_each_round_and_drops_nothing_of_the_trainings_own(offline, tmp_path):
    kept, each_round = reports_after_each_round(tmp_path / "l.watch")
    run = wandb.init(project="p")

    def logged(number):
        each_round(number)
        run.log({"loss": 1 / number}, step=number)
        run.log({"accuracy": number}, step=number)  # would be dropped if fedworth had moved the step on

    train(tmp_path / "l", each_round=logged, track="wandb", task=task())
    run.finish()
    shown, rows = wandb_rows(offline)
    assert shown == {number: numbers(report) for number, report in kept.items()}
    assert [(row["loss"], row["accuracy"]) for row in rows if "loss" in row] == [(1, 1), (1 / 2, 2), (1 / 3, 3)]
    (artifact,) = [r.artifact for r in wandb_records(offline) if r.WhichOneof("record_type") == "artifact"]
    assert sorted(entry.path for entry in artifact.manifest.contents) == FILES


@pytest.mark.parametrize("is_active", [True, False])
def test_wandb_keeps_every_round_if_nobody_else_logs(offline, tmp_path, is_active):
    kept, each_round = reports_after_each_round(tmp_path / "l.watch")
    run = wandb.init(project="p") if is_active else None
    train(tmp_path / "l", each_round=each_round, track="wandb", task=task())
    if run is not None:
        run.finish()
    shown, _ = wandb_rows(offline)
    assert shown == {number: numbers(report) for number, report in kept.items()}


@pytest.mark.parametrize("is_writer", [True, False])
def test_tensorboard_shows_each_round(tmp_path, is_writer):
    kept, each_round = reports_after_each_round(tmp_path / "l.watch")
    writer = SummaryWriter(str(tmp_path / "events")) if is_writer else None
    train(tmp_path / "l", each_round=each_round, track=writer or f"tensorboard:{tmp_path}/events", task=task())
    if writer is not None:
        writer.add_scalar("loss", 1.0, 1)  # it is still open
        writer.close()
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    shown: dict[int, dict[str, float]] = {}
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            shown.setdefault(event.step, {})[tag] = event.value
    assert shown.get(1, {}).pop("loss", None) == (1.0 if is_writer else None)
    assert shown == {number: pytest.approx(numbers(report), rel=1e-6) for number, report in kept.items()}
    said = events.Tensors("fedworth/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert Report.read(tmp_path / "l.watch").all_findings[0].sentence in said
    assert sorted(file.name for file in (tmp_path / "events" / "fedworth").iterdir()) == FILES


def test_an_mlflow_server_that_is_not_there_costs_nothing_but_a_line_in_the_log(tmp_path, monkeypatch, caplog):
    """Its own retries take minutes; the training does not wait for them."""
    monkeypatch.setattr(tracking, "FINISH_SECONDS", 0.5)
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri("http://127.0.0.1:9")  # nobody listens
    try:
        plain = train(tmp_path / "plain")
        tracked = train(tmp_path / "l", track="mlflow", task=task())
    finally:
        mlflow.set_tracking_uri(before)
    assert all(torch.equal(plain[name], tracked[name]) for name in plain)
    assert "MlflowTracker did not answer" in caplog.text


def test_prometheus_reads_the_last_round(tmp_path):
    train(tmp_path / "l", track=f"prometheus:{tmp_path}/fedworth.prom", task=task())
    families = {
        family.name: family for family in text_string_to_metric_families((tmp_path / "fedworth.prom").read_text())
    }
    report = Report.read(tmp_path / "l.watch")
    shown = {sample.labels["client"]: sample.value for sample in families["fedworth_value"].samples}
    assert shown == {line.client: line.value for line in report}
    found = {(s.labels["kind"], s.labels["client"]): s.value for s in families["fedworth_finding"].samples}
    assert found == {(f.kind.name, client): f.confidence for f in report.all_findings for client in f.clients}
    assert families["fedworth_round"].samples[0].value == 3
    assert set(families) == {f"fedworth_{name}" for name in ("round", "value", "low", "high", "finding")}


def test_the_page_on_trackers_does_what_it_says(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mytask.py").write_text("from tests.support.loops import task\n")
    (block,) = re.findall(r'^```python title="training.py"\n(.*?)^```$', PAGE.read_text(), re.DOTALL | re.MULTILINE)
    known = {"train": train_into, "final_model": net().state_dict()}
    exec(compile(block, "training.py", "exec"), known)
    run = mlflow.active_run().info.run_id
    mlflow.end_run()
    assert store.get_run(run).data.metrics == numbers(Report.read("my.ledger.watch"))
    assert len(store.list_artifacts(run, "fedworth")) == 3
