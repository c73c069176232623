"""Simulated vertical federations: divided by features, recorded, valued, reported and verified as any other."""

import json

import numpy as np
import pytest

from fedworth import (
    Federation,
    Ledger,
    RunSettings,
    SimulationSettings,
    UtilityMatrix,
    WorkSettings,
    compare,
    report_on,
    run,
    simulate,
    task_of,
    value,
)
from fedworth.cli.main import main
from fedworth.errors import DataError, ModelError, UsageError
from fedworth.simulation.vertical import feature_parts

PLAIN = WorkSettings(cache=False, n_threads=1)


def settings(**more):
    return SimulationSettings(
        **{"partition": "vertical", "n_clients": 4, "n_participants": 4, "n_rounds": 3, "train_limit": 200,
           "test_limit": 60, "n_steps": 1, **more}
    )  # fmt: skip


def test_images_are_cut_into_strips_and_tables_by_columns():
    strips = feature_parts((1, 8, 8), 4, {})
    assert [part.tolist() for part in strips] == [list(range(16 * k, 16 * k + 16)) for k in range(4)]
    assert [len(part) for part in feature_parts((10,), 3, {})] == [4, 3, 3]
    shared = feature_parts((6,), 3, {2: 0})
    assert [part.tolist() for part in shared] == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]
    with pytest.raises(DataError, match="2 features for 3"):
        feature_parts((2,), 3, {})


def test_training_that_diverges_is_refused_with_the_learning_rate_and_the_round(tmp_path):
    with pytest.raises(ModelError, match=r"round 0.*diverged: lower the learning rate, which was 500.0"):
        simulate(settings(dataset="regression", rate=500.0, n_steps=12), tmp_path / "l")


@pytest.mark.parametrize("combine", ["sum", "concatenation"])
@pytest.mark.parametrize("model", [{"model": "logistic"}, {"model": "mlp", "hidden": (8,)}])
@pytest.mark.parametrize("n_participants", [4, 2])
def test_training_gains_and_the_values_add_up_to_what_embeddings_gained(tmp_path, combine, model, n_participants):
    ledger = simulate(
        settings(combine=combine, n_participants=n_participants, rate=0.5, n_steps=20, **model), tmp_path / "l"
    )
    assert [entry.number for entry in ledger.entries] == [0, 1, 2, 3]
    assert ledger.participants(0) == (0, 1, 2, 3)
    federation = Federation(ledger, task_of(ledger), work=PLAIN)
    made = federation.value("verfedsv")
    everyone = [federation.game(t).utilities(np.ones((1, len(ledger.participants(t))), dtype=bool)) for t in range(4)]
    assert made.values.sum() == pytest.approx(sum(float(gained.sum()) for gained in everyone), abs=1e-9)
    assert made.values.sum() > 0
    assert made.by_round is not None
    absent = [(t, k) for t in range(4) for k in range(4) if k not in ledger.participants(t)]
    assert all(made.by_round[t, k] == 0 for t, k in absent)
    assert (not absent) == (n_participants == 4)


@pytest.mark.parametrize("dataset", ["synthetic-iid", "regression"])
def test_tables_and_regressions_are_valued(tmp_path, dataset):
    ledger = simulate(settings(dataset=dataset, rate=0.05), tmp_path / "l")
    made = Federation(ledger, task_of(ledger), work=PLAIN).value("verfedsv")
    assert np.isfinite(made.values).all()
    assert made.values.sum() > 0


def test_without_validation_only_batches_of_training_samples_are_sent(tmp_path):
    ledger = simulate(settings(with_validation=False, batch_size=16), tmp_path / "l")
    sent = [{k: len(model["embedding"]) for k, model in ledger.open_round(t).client_models.items()} for t in range(4)]
    assert sent == [dict.fromkeys(range(4), 200), *[dict.fromkeys(range(4), 16)] * 3]
    task = task_of(ledger)
    assert len(task.labels) == 200
    assert np.isfinite(Federation(ledger, task, work=PLAIN).value("verfedsv").values).all()


def test_copies_with_a_sum_are_worth_the_same(tmp_path):
    ledger = simulate(settings(combine="sum", copies=((3, 0),), dtype="float64"), tmp_path / "l")
    values = Federation(ledger, task_of(ledger), work=PLAIN).value("verfedsv").values
    assert values[3] == pytest.approx(values[0], abs=1e-12)


def test_a_killed_simulation_goes_on_to_the_same_bytes(tmp_path):
    whole = simulate(settings(n_participants=2), tmp_path / "whole")

    class Killed(Exception):
        pass

    def kill(_what, done, _of):
        if done == 2:
            raise Killed

    with pytest.raises(Killed):
        simulate(settings(n_participants=2), tmp_path / "killed", progress=kill)
    assert Ledger.open(tmp_path / "killed").n_rounds == 2
    assert simulate(settings(n_participants=2), tmp_path / "killed", resume=True).chain == whole.chain


@pytest.mark.parametrize(
    "more",
    [
        {"model": "cnn"},
        {"noise_shares": (0.1,) * 4},
        {"momentum": 0.5},
        {"drift": 0.5},
        {"with_validation": False, "n_steps": 2},
        {"width": 0},
        {"partition": "iid", "width": 5},
    ],
)
def test_settings_that_do_not_fit_are_refused(more):
    with pytest.raises(UsageError):
        settings(**more)


def test_report_statement_rewards_and_verify_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FEDWORTH_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "run"
    report = run(RunSettings(settings()), folder)
    assert report.chosen.method == "refitted-head"
    assert report.title.endswith("4 rounds")  # of which the first has the embeddings before training
    assert report.chosen.groups is not None
    assert main(["statement", str(folder), "--client", "1"]) == 0
    assert main(["rewards", str(folder), "--pool", "100"]) == 0
    assert sum(json.loads((folder / "rewards.json").read_text())["cents"]) == 10_000
    assert main(["verify", str(folder)]) == 0
    assert main(["verify", str(folder / "ledger")]) == 0
    assert "concatenation of embeddings" in capsys.readouterr().out
    assert main(["value", str(folder / "ledger"), "--test-samples", "40"]) == 0
    assert "Refitted head" in capsys.readouterr().out
    assert main(["value", str(folder / "ledger"), "--method", "verfedsv", "--test-samples", "40"]) == 0
    again = ["report", str(folder / "ledger"), "--given", "0", "--out", str(tmp_path / "given")]
    assert main(again) == 0
    assert "can do alone" in capsys.readouterr().out + (tmp_path / "given" / "report.html").read_text()
    written = json.loads((tmp_path / "given" / "report.json").read_text())
    assert written["provenance"]["settings"]["given"] == ["0"]


def test_what_was_measured_is_read_from_the_cache(tmp_path, monkeypatch):
    """The second valuation measures nothing, and the cache knows a client that was left out."""
    monkeypatch.setenv("FEDWORTH_CACHE", str(tmp_path / "cache"))
    ledger = simulate(settings(n_participants=2), tmp_path / "l")
    first = Federation(ledger, task_of(ledger)).value("verfedsv").values
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.npz")}
    assert len(files) == 4
    assert Federation(ledger, task_of(ledger)).value("verfedsv").values.tolist() == first.tolist()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.npz")} == files


def test_fedsv_of_measured_utilities_is_verfedsv_and_nothing_is_to_be_completed(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FEDWORTH_CACHE", str(tmp_path / "cache"))
    ledger, file = simulate(settings(n_participants=2), tmp_path / "l"), tmp_path / "u.npz"
    assert main(["observe", str(tmp_path / "l"), "--out", str(file)]) == 0
    said = capsys.readouterr().out
    assert "FedSV of them is VerFedSV" in said
    assert said.endswith("--method fedsv\n")
    expected = Federation(ledger, task_of(ledger)).value("verfedsv").values
    assert value(UtilityMatrix.load(file), "fedsv").values == pytest.approx(expected, abs=1e-12)
    for by in ("models", "factors"):
        assert main(["complete", str(tmp_path / "l"), "--by", by, "--out", str(tmp_path / "c.npz")]) == 2
        assert "in which absent clients change nothing" in capsys.readouterr().err


def test_methods_are_compared(tmp_path):
    ledger = simulate(settings(), tmp_path / "l")
    rows = {row.method: row for row in compare(ledger, task_of(ledger), work=PLAIN)}
    assert rows["verfedsv"].valuation is not None
    assert "comfedsv-models" not in rows
    assert {name: row.refusal for name, row in rows.items() if row.refusal} == {}


def test_the_page_says_what_the_values_are_of(tmp_path):
    ledger = simulate(settings(), tmp_path / "l")
    page = report_on(ledger, task_of(ledger), methods=["verfedsv"], work=PLAIN).page_html()
    assert "what new embeddings gained, without what the server’s head learned" in page
    page = report_on(ledger, task_of(ledger), work=PLAIN).page_html()
    assert "cannot be compared as models are" in page
    assert "the server averages them" not in page
    assert "The server sees these only." in page
    assert "What the model scores with and without" not in page  # a last step says little of what a client tells
    for wrong in ("No ledger was read", "ComFedSV says", "what the training gained."):
        assert wrong not in page
