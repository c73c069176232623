"""Every command from a ledger or utilities to values, as a user calls it."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file

from fedworth.cli.main import main
from fedworth.coalitions import coalitions_of
from fedworth.games.matrix import UtilityMatrix
from fedworth.ledger.ledger import Ledger
from tests.cli.conftest import SMALL, TINY_TEST

TASK = """
from fedworth import Ledger, task_of

task = task_of(Ledger.open({ledger!r}))
"""


@pytest.fixture
def ledger(small_run, tmp_path):
    """A copy of the small run's ledger, with nothing measured yet."""
    return shutil.copytree(small_run / "ledger", tmp_path / "l")


@pytest.fixture
def brought() -> dict[str, np.ndarray]:
    """Utilities of one's own: three clients, all in the first round, then pairs."""
    coalitions = coalitions_of(np.arange(3), 3)
    participants = np.array([[1, 1, 1], [1, 1, 0], [0, 1, 1]], dtype=bool)
    utilities = np.array([0.5, 0.3, 0.2])[:, None] * (coalitions @ np.array([1.0, 2.0, 3.0]))[None]
    seen = ~(coalitions[None] & ~participants[:, None]).any(axis=2)
    return {"utilities": np.where(seen, utilities, np.nan), "coalitions": coalitions, "participants": participants}


def save(path: Path, arrays: dict[str, np.ndarray]) -> str:
    np.savez(path, allow_pickle=False, **arrays)
    return str(path)


def values_of(report, method):
    return next(v for v in report["valuations"] if v["method"] == method)["values"]


def test_a_run_writes_its_artefacts_and_names_them(small_run, capsys):
    assert main(["run", *SMALL, *TINY_TEST, "--out", str(small_run), "--resume"]) == 0
    shown = capsys.readouterr().out
    for name in ("ledger", "settings.json", "report.csv", "report.html", "report.json", "report.md"):
        assert (small_run / name).exists()
        assert str(small_run / name) in shown
    assert "d of 0 and 3" in shown


def test_nothing_is_overwritten(small_run, tmp_path, refused):
    assert "--resume" in refused(12, "run", *SMALL, "--out", small_run)
    assert "seed 0 instead of 1)" in refused(12, "run", *SMALL, "--seed", "1", "--out", small_run, "--resume")
    refused(12, "simulate", *SMALL, "--out", small_run / "ledger")
    (tmp_path / "u.npz").write_text("mine")
    refused(12, "observe", small_run / "ledger", "--out", tmp_path / "u.npz")
    refused(12, "complete", small_run / "ledger", "--out", tmp_path / "u.npz")
    assert (tmp_path / "u.npz").read_text() == "mine"


def test_values_of_a_ledger_name_their_measure_and_unit(small_run, capsys):
    for method in ("fedsv", "large-coalitions"):  # the one that notes on unusable models name
        assert main(["value", str(small_run / "ledger"), "--method", method]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert "loss (cross-entropy), in nats per test sample" in out
        assert "in the unit of the given utilities" not in out


def test_the_stages_one_by_one_give_what_run_gives(small_run, tmp_path, told):
    ledger, report = tmp_path / "l", json.loads((small_run / "report.json").read_text())
    assert told("simulate", *SMALL, *TINY_TEST, "--out", ledger)["n_rounds"] == 3
    assert (ledger / "manifest.jsonl").read_bytes() == (small_run / "ledger" / "manifest.jsonl").read_bytes()
    seen = told("observe", ledger, "--out", tmp_path / "u.npz")
    assert seen["n_utilities"] == 15 + 3 + 3
    for method in ("comfedsv-models", "comfedsv", "fedsv", "truth"):
        assert told("value", ledger, "--method", method)["values"] == pytest.approx(values_of(report, method), abs=1e-6)
    for method in ("comfedsv", "fedsv", "all-clients-round", "leave-one-out"):
        assert told("value", tmp_path / "u.npz", "--method", method)["values"] == pytest.approx(
            values_of(report, method), abs=1e-6
        )
    assert told("value", ledger)["method"] == "comfedsv-models"
    assert told("value", tmp_path / "u.npz")["method"] == "comfedsv"


@pytest.mark.parametrize("by", ["factors", "models"])
def test_a_completed_matrix_has_every_coalition_and_the_seen_cells(ledger, tmp_path, told, by):
    made = told("complete", ledger, "--by", by, "--out", tmp_path / "c.npz")
    assert made["kind"] == by
    assert made["coverage"]["share_seen"] == pytest.approx(21 / 45)
    with np.load(tmp_path / "c.npz") as file:
        completed, coalitions = file["utilities"], file["coalitions"]
    assert completed.shape == (3, 16)
    told("observe", ledger, "--out", tmp_path / "u.npz")
    seen = UtilityMatrix.load(tmp_path / "u.npz")
    for t in range(3):
        row = seen.row(t, coalitions).sum(axis=1)
        is_seen = ~np.isnan(row)
        assert np.abs(completed[t] - row)[is_seen].max() < (1e-6 if by == "models" else 0.1)


def test_the_factors_error_on_hidden_cells_is_measured_if_asked(ledger, tmp_path, told, refused):
    assert told("complete", ledger, "--held-out", "--out", tmp_path / "c.npz")["held_out_error"] > 0
    refused(2, "complete", ledger, "--by", "models", "--held-out", "--out", tmp_path / "d.npz")
    told("observe", ledger, "--out", tmp_path / "u.npz")
    assert "models" in refused(9, "complete", tmp_path / "u.npz", "--by", "models", "--out", tmp_path / "d.npz")


def test_a_budget_stops_permutations_and_refuses_all_coalitions(ledger, tmp_path, told, refused):
    common = ["observe", ledger, "--no-cache", "--budget", "20", "--out"]
    cut = told(*common, tmp_path / "cut.npz", "--permutations", "40")
    assert cut["n_utilities"] <= 20
    assert 0 < cut["permutations"] < 40
    said = refused(2, *common, tmp_path / "all.npz")
    assert "21 evaluations, the budget is 20" in said
    assert "--permutations" in said
    assert not (tmp_path / "all.npz").exists()
    assert told("value", tmp_path / "cut.npz", "--method", "comfedsv")["standard_errors"]


def test_measured_utilities_are_kept_and_used_again(ledger, tmp_path, told, monkeypatch):
    from fedworth.oracle.oracle import LoopOracle

    counts, plain = [], LoopOracle.utilities

    def counted(self, round_, mixtures):
        counts.append(len(mixtures))
        return plain(self, round_, mixtures)

    monkeypatch.setattr(LoopOracle, "utilities", counted)
    for name, extra in (("first", []), ("again", []), ("fresh", ["--no-cache"])):
        counts.append(0)
        told("observe", ledger, "--oracle", "loop", *extra, "--out", tmp_path / f"{name}.npz")
    first, again, fresh = (sum(part) for part in _split(counts))
    assert (first, again, fresh) == (21, 0, 21)
    assert len({(tmp_path / f"{name}.npz").read_bytes() for name in ("first", "again", "fresh")}) == 1


def _split(counts: list[int]) -> list[list[int]]:
    parts: list[list[int]] = []
    for count in counts:
        parts.append([]) if count == 0 else parts[-1].append(count)
    return parts


def test_the_plain_loop_sees_the_same_but_for_rounding(ledger, tmp_path, told):
    for oracle in ("fast", "loop"):
        told("observe", ledger, "--oracle", oracle, "--out", tmp_path / f"{oracle}.npz")
    fast, loop = (UtilityMatrix.load(tmp_path / f"{oracle}.npz") for oracle in ("fast", "loop"))
    np.testing.assert_allclose(fast.utilities, loop.utilities, rtol=0, atol=1e-6)


def test_value_prints_one_document_with_the_promised_keys(brought, tmp_path, told):
    path = save(tmp_path / "mine.npz", brought)
    for method in ("fedsv", "comfedsv", "all-clients-round", "leave-one-out"):
        document = told("value", path, "--method", method)
        assert document["method"] == method
        assert {"clients", "values", "standard_errors", "uncertainty", "completion", "notes"} <= set(document)
        assert len(document["values"]) == len(document["shares"]) == len(document["ranks"]) == 3
        assert sum(document["shares"]) == pytest.approx(1)
        assert document["ranks"][document["values"].index(max(document["values"]))] == 1
        assert (document["completion"] is None) == (method != "comfedsv")


def test_rank_and_penalty_reach_the_completion_and_auto_says_what_it_chose(brought, tmp_path, told):
    path = save(tmp_path / "mine.npz", brought)
    made = told("value", path, "--rank", "2", "--penalty", "0.01", "--penalty-kind", "uniform")["completion"]
    assert (made["rank"], made["penalty"], made["penalty_kind"]) == (2, 0.01, "uniform")
    assert told("value", path, "--relative-penalty", "0.001")["completion"]["rank"] == 5
    assert told("value", path, "--auto-rank")["completion"]["rank"] >= 1


def test_permutations_give_standard_errors(brought, tmp_path, told):
    permutations = np.array([[0, 1, 2], [2, 1, 0], [1, 0, 2]])
    path = save(tmp_path / "mc.npz", {**brought, "permutations": permutations})
    assert len(told("value", path, "--method", "comfedsv")["standard_errors"]) == 3


def test_a_client_that_never_took_part_has_no_value_and_strict_refuses(brought, tmp_path, told, refused):
    heard = brought["participants"].copy()
    heard[:, 2] = False
    seen = ~(brought["coalitions"][None] & ~heard[:, None]).any(axis=2)
    utilities = np.where(seen, brought["coalitions"].sum(axis=1) * 1.0, np.nan)
    path = save(tmp_path / "unheard.npz", {**brought, "participants": heard, "utilities": utilities})
    for method in ("fedsv", "comfedsv", "all-clients-round"):
        document = told("value", path, "--method", method)
        assert document["values"][2] is None
        assert None not in document["values"][:2]
        assert any("client '2'" in note for note in document["notes"])
        assert "client '2'" in refused(11, "value", path, "--method", method, "--strict")


def test_a_coalition_never_seen_is_refused_and_zero_must_be_asked_for(brought, tmp_path, told, refused):
    arrays = {name: array[1:] if name != "coalitions" else array for name, array in brought.items()}
    path = save(tmp_path / "later.npz", arrays)
    assert "never seen" in refused(8, "value", path)
    assert any("never seen and count as 0" in note for note in told("value", path, "--unseen", "zero")["notes"])


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--method", "comfedsw"], 2, "did you mean 'comfedsv'"),
        (["--method", "fedsv,comfedsw"], 2, "did you mean 'comfedsv'"),
        (["--penalty-kind", "unifrom"], 2, "did you mean 'uniform'"),
        (["--rank", "many"], 2, "expected a whole number"),
        (["--rank", "0"], 7, "expected 1 or more"),
        (["--penalty", "1e9"], 7, "λ"),
        (["--penalty", "-1"], 7, "positive"),
        (["--unseen", "one"], 2, "known are refuse, zero"),
        (["--task", "mytask.py:task"], 2, "measured already"),
        (["--measure", "accuracy"], 2, "measured already"),
        (["--without", "0"], 2, "measured already"),
        (["--no-cache"], 2, "measured already"),
        (["--method", "truth"], 9, "every client's model"),
        (["--method", "cosine"], 9, "models"),
    ],
)
def test_an_option_that_utilities_cannot_take_is_refused(brought, tmp_path, refused, options, code, said):
    assert said in refused(code, "value", save(tmp_path / "mine.npz", brought), *options)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda a: a.update(utilities=np.where(np.isnan(a["utilities"]), np.nan, np.inf)), "finite"),
        (lambda a: a.update(utilities=a["utilities"][:, 1:]), "expected float64 of shape"),
        (lambda a: a.update(utilities=a["utilities"].astype(np.float32)), "float32"),
        (lambda a: a.update(participants=a["participants"].astype(int)), "expected bool"),
        (lambda a: a.pop("coalitions"), "no array 'coalitions'"),
        (lambda a: a["coalitions"].__setitem__(2, a["coalitions"][1]), "give each once"),
        (lambda a: a.update(permutations=np.array([[0, 1, 1]])), "each once"),
        (lambda a: a.update(utilities=a["utilities"] + 1), "empty coalition"),
        (lambda a: a.update(utilities=np.nan_to_num(a["utilities"], nan=1.0)), "not all of its members took part"),
    ],
)
def test_broken_utilities_are_refused(brought, tmp_path, refused, change, said):
    change(brought)
    assert said in refused(6, "value", save(tmp_path / "broken.npz", brought), "--method", "fedsv")


def test_a_missing_or_truncated_file_is_refused(brought, tmp_path, refused):
    refused(12, "value", tmp_path / "nothing.npz")
    path = Path(save(tmp_path / "cut.npz", brought))
    path.write_bytes(path.read_bytes()[:-200])
    assert "cut.npz" in refused(12, "value", path)


def test_several_methods_from_utilities_to_a_page(brought, tmp_path, told):
    path = save(tmp_path / "mine.npz", brought)
    out = tmp_path / "values"
    made = told("value", path, "--method", "comfedsv,fedsv", "--method", "leave-one-out", "--out", out)
    assert [valuation["method"] for valuation in made["valuations"]] == ["comfedsv", "fedsv", "leave-one-out"]
    assert sorted(p.name for p in out.iterdir()) == ["report.csv", "report.html", "report.json", "report.md"]


def test_from_a_ledger_and_a_task_to_a_page(ledger, tmp_path, monkeypatch, told, refused):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mytask.py").write_text(TASK.format(ledger=str(ledger)))
    words = ["report", ledger, "--task", "mytask.py:task", "--noun", "school"]
    made = told(*words)
    folder = tmp_path / "l.report"
    page = (folder / "report.html").read_text()
    assert [valuation["method"] for valuation in made["valuations"]][:2] == ["comfedsv-models", "comfedsv"]
    assert "school" in page
    assert f"fedworth report {ledger} --task mytask.py:task --noun school" in page
    told(*words)
    assert (folder / "report.html").read_text() == page
    assert "the folder of a finished run" in refused(2, "report", folder, "--task", "mytask.py:task")
    assert "the folder of a finished run" in refused(2, "report", folder, "--measure", "accuracy")
    assert "other settings" in refused(12, "report", ledger, "--measure", "accuracy")
    assert "neither a ledger nor" in refused(12, "report", tmp_path)
    assert "no such folder" in refused(12, "report", tmp_path / "nowhere")
    assert "is a ledger" in refused(12, "report", ledger, "--task", "mytask.py:task", "--out", ledger)
    assert told("verify", folder, "--task", "mytask.py:task")["ledger"] == str(ledger)
    other = tmp_path / "other"
    told("simulate", "--clients", "3", "--participants", "2", "--rounds", "2", "--train-limit", "60", "--out", other)
    before = (folder / "report.json").read_bytes()
    assert "another federation" in refused(12, "report", other, "--out", folder)
    assert (folder / "report.json").read_bytes() == before
    refused(2, "report", ledger, "--task", "mytask.py:tusk")


def test_report_writes_a_run_again(small_run, tmp_path, told):
    told("report", small_run, "--out", tmp_path)
    for ending in ("csv", "json", "md", "html"):
        assert (tmp_path / f"report.{ending}").read_bytes() == (small_run / f"report.{ending}").read_bytes()


def test_several_runs_of_a_federation_are_reported_by_their_mean(small_run, tmp_path, told, refused):
    """A run's folder and a ledger, trained with other batches and participants."""
    again = tmp_path / "again"
    told("simulate", *SMALL, *TINY_TEST, "--training-seed", "5", "--out", again)
    found = told("report", small_run, again, "--out", tmp_path / "mean")
    one, other = told("report", small_run, "--out", tmp_path / "one"), told("report", again, "--out", tmp_path / "two")
    values = [values_of(report, "comfedsv-models") for report in (one, other)]
    assert values_of(found, "comfedsv-models") == pytest.approx(np.mean(values, axis=0).tolist())
    assert found["provenance"]["other_heads"] == [other["provenance"]["head"]]
    assert "2 recorded runs" in (tmp_path / "mean" / "report.html").read_text()
    assert "--out" in refused(2, "report", small_run, again)
    assert "same recorded run" in refused(2, "report", small_run, small_run / "ledger", "--out", tmp_path / "mean")
    assert "another federation" in refused(12, "report", again, "--out", tmp_path / "mean")


def test_models_on_disk_become_a_ledger(small_run, tmp_path, monkeypatch, told, refused):
    kept = tmp_path / "kept"
    for round_ in Ledger.open(small_run / "ledger").rounds():
        folder = kept / f"{round_.entry.round_index:03d}"
        folder.mkdir(parents=True)
        save_file(round_.global_model, folder / "global.safetensors")
        for k, model in round_.client_models.items():
            save_file(model, folder / f"c{k}.safetensors")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mytask.py").write_text(TASK.format(ledger=str(small_run / "ledger")))
    assert told("import", kept, "--aggregation", "uniform", "--out", tmp_path / "l")["n_rounds"] == 3
    values = told("value", tmp_path / "l", "--method", "fedsv", "--task", "mytask.py:task")["values"]
    expected = values_of(json.loads((small_run / "report.json").read_text()), "fedsv")
    assert sorted(values) == pytest.approx(sorted(expected), abs=1e-6)
    assert "--task" in refused(3, "value", tmp_path / "l", "--method", "fedsv")
    refused(12, "import", kept, "--aggregation", "uniform", "--out", tmp_path / "l")


def test_a_damaged_ledger_is_refused_and_left_as_it_is(ledger, tmp_path, refused):
    path = sorted((ledger / "rounds").iterdir())[1]
    damaged = bytearray(path.read_bytes())
    damaged[-5] ^= 1
    path.write_bytes(bytes(damaged))
    assert path.name in refused(4, "observe", ledger, "--out", tmp_path / "u.npz")
    assert path.read_bytes() == bytes(damaged)
    assert not (tmp_path / "u.npz").exists()
    path.unlink()
    refused(4, "value", ledger)
    refused(4, "value", tmp_path)


def test_without_a_round_of_all_clients_factors_are_refused_and_the_rest_is_valued(tmp_path, capsys):
    words = ["run", *SMALL, *TINY_TEST, "--no-everyone-first", "--seed", "3", "--out", str(tmp_path / "run")]
    assert main([*words, "--json"]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert err == ""
    assert any("no round has all clients" in note and "ask everyone" in note for note in report["notes"])
    assert "comfedsv" in dict(report["refusals"])
    assert values_of(report, "comfedsv-models")
    assert main([*words, "--resume"]) == 0
    assert "no round has all clients" in capsys.readouterr().err


def test_leaving_a_client_out_is_the_same_everywhere(small_run, tmp_path, told, refused):
    ledger = small_run / "ledger"
    values = told("value", ledger, "--without", "1")["values"]
    assert values[1] is None
    assert None not in values[:1] + values[2:]
    watched = told("watch", ledger, "--once", "--without", "1", "--out", tmp_path / "w")
    assert values_of(watched, "comfedsv-models") == values
    assert "did you mean" in refused(2, "value", ledger, "--without", "11")


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--dataset", "digit"], 2, "did you mean 'digits'"),
        (["--model", "mlpp"], 2, "did you mean 'mlp'"),
        (["--participants", "5"], 2, "5 participants of 4 clients"),
        (["--copy", "3:0"], 2, "expected I=J"),
        (["--rate", "1e30"], 5, "lower the learning rate"),
        (["--partition", "two-clas"], 2, "did you mean 'two-class'"),
        (["--dataset", "mnist", "--data", "/nonexistent"], 3, "mnist"),
    ],
)
def test_a_federation_that_cannot_be_trained_is_refused(tmp_path, monkeypatch, refused, options, code, said):
    def offline(*_, **__):
        raise OSError("no network")

    monkeypatch.delenv("FEDWORTH_DATA", raising=False)
    monkeypatch.setattr("pooch.retrieve", offline)
    assert said in refused(code, "simulate", *SMALL, "--out", tmp_path / "l", *options)


def test_theory_gives_numbers_for_each_statement(small_run, told, capsys):
    ledger = small_run / "ledger"
    statements = [
        ["observation-1", "--clients", "10", "--participants", "3", "--rounds", "10"],
        ["rank", ledger, "--epsilon", "0.05"],
        ["rank-bound", "--ledger", ledger],
        ["rank-bound", "--convexity", "1", "--rounds", "9", "--clients", str(10**9), "--smoothness", "2"],
        ["fairness", ledger],
    ]
    for statement in statements:
        assert told("theory", *statement)["rows"]
        assert main(["theory", *map(str, statement)]) == 0
        assert capsys.readouterr().out
    (fair,) = told("theory", "fairness", ledger)["rows"]
    assert fair["value_error"] <= fair["value_error_bound"]
    assert fair["symmetry_gap"] <= fair["symmetry_bound"]


def test_methods_are_compared_on_one_ledger_and_pairs_of_clients_shown(small_run, told, capsys, refused, tmp_path):
    rows = {row["method"]: row for row in told("compare", small_run, "--methods", "all")["methods"]}
    assert rows["comfedsv-models"]["error"] < rows["fedsv"]["error"]
    assert rows["comfedsv-models"]["copies_gap"] < rows["fedsv"]["copies_gap"]
    assert main(["compare", str(small_run), "--methods", "fedsv, banzhaf"]) == 0
    assert "Banzhaf" in capsys.readouterr().out
    assert "one ledger" in refused(2, "compare", small_run, small_run, "--methods", "fedsv")
    assert "no page" in refused(2, "compare", small_run, "--methods", "fedsv", "--out", tmp_path / "c")
    assert "did you mean 'gtg'" in refused(2, "compare", small_run, "--methods", "gtx")
    pairs = told("interactions", small_run)["pairs"]
    assert len(pairs) == 6
    assert main(["interactions", str(small_run), "--most", "1"]) == 0
    assert "Redundant" in capsys.readouterr().out


def test_values_by_group_are_written_and_shares_are_read_from_a_file(small_run, tmp_path, told, refused, capsys):
    ledger, out = small_run / "ledger", tmp_path / "out"
    said = told("report", ledger, "--by", "class", "--out", out)
    rows = list(csv.DictReader((out / "report-by-group.csv").read_text().splitlines()))
    assert str(out / "report-by-group.csv") in said["files"]
    sums = [sum(float(row["value"]) for row in rows if row["client"] == client) for client in "0123"]
    assert sums == pytest.approx(said["valuations"][0]["values"])
    assert "other settings" in refused(12, "report", ledger, "--out", out)
    shares = tmp_path / "shares.csv"
    shares.write_text("class,share\n" + "".join(f"{k},{k + 1}\n" for k in range(10)))
    weighted = told("report", ledger, "--group-shares", shares, "--out", tmp_path / "weighted")
    found = weighted["valuations"][0]
    assert found["groups"]["population"] == pytest.approx([(k + 1) / 55 for k in range(10)])
    assert weighted["provenance"]["settings"]["group_shares"]["9"] == 10
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "weighted" / "report.json"), "--ledger", str(ledger)]) == 0
    assert "report-by-group.csv: says what report.json says" in capsys.readouterr().out
    page = (tmp_path / "weighted" / "report.html").read_text()
    assert "weighted to known shares of their groups" in page
    assert "share of the population" in page
    assert "cannot be read" in refused(2, "report", ledger, "--group-shares", tmp_path / "none.csv")
    assert "unknown grouping" in refused(2, "report", ledger, "--by", "site", "--out", tmp_path / "site")
