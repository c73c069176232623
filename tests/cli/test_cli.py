"""The command line as a user meets it: every command, every kind of refusal, and what stands on which stream."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedworth.cli.main import COMMANDS, main, parser
from fedworth.coalitions import coalitions_of
from fedworth.errors import UsageError
from fedworth.games.matrix_file import load_utilities
from fedworth.notices import caution

SMALL = ["--clients", "4", "--copy", "3=0", "--participants", "2", "--rounds", "3", "--train-limit", "120"]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "run"
    assert main(["run", *SMALL, "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def brought() -> dict[str, np.ndarray]:
    """A small file of one's own: 3 clients, everyone heard first, then pairs."""
    coalitions = coalitions_of(np.arange(3), 3)
    participants = np.array([[1, 1, 1], [1, 1, 0], [0, 1, 1]], dtype=bool)
    weights = np.array([1.0, 2.0, 3.0])
    utilities = np.array([0.5, 0.3, 0.2])[:, None] * (coalitions @ weights)[None]
    seen = ~(coalitions[None] & ~participants[:, None]).any(axis=2)
    return {"utilities": np.where(seen, utilities, np.nan), "coalitions": coalitions, "participants": participants}


def offline(*_: object, **__: object) -> None:
    raise OSError("no network")


def save(path: Path, arrays: dict[str, np.ndarray]) -> str:
    np.savez(path, allow_pickle=False, **arrays)
    return str(path)


def test_every_command_has_help_with_an_example(capsys):
    for module in COMMANDS:
        name = module.__name__.rsplit(".", 1)[1].rstrip("_")
        with pytest.raises(SystemExit) as stop:
            parser().parse_args([name, "--help"])
        assert stop.value.code == 0
        assert f"example:\n  fedworth {name}" in capsys.readouterr().out


def test_a_run_leaves_every_artefact_and_names_it(run_folder, capsys):
    assert main(["run", *SMALL, "--out", str(run_folder), "--resume"]) == 0
    shown = capsys.readouterr().out
    for name in (
        "ledger",
        "truth.npz",
        "utilities.npz",
        "completion.npz",
        "factors.npz",
        "report.csv",
        "report.json",
        "report.md",
    ):
        assert (run_folder / name).exists()
        assert str(run_folder / name) in shown
    assert "Clients 0 and 3 have the same data" in shown


def test_the_stages_one_by_one_give_what_run_gives(run_folder, tmp_path, capsys):
    ledger, truth, seen = tmp_path / "ledger", tmp_path / "truth.npz", tmp_path / "seen.npz"
    completion = tmp_path / "completion.npz"
    assert main(["simulate", *SMALL, "--out", str(ledger)]) == 0
    assert main(["observe", str(ledger), "--truth", "--out", str(truth)]) == 0
    assert main(["observe", str(ledger), "--out", str(seen)]) == 0
    assert truth.read_bytes() == (run_folder / "truth.npz").read_bytes()
    assert main(["complete", str(seen), "--ledger", str(ledger), "--out", str(completion)]) == 0
    assert completion.read_bytes() == (run_folder / "completion.npz").read_bytes()
    capsys.readouterr()
    assert main(["value", str(seen), "--completion", str(completion), "--json"]) == 0
    ours = json.loads(capsys.readouterr().out)["values"]
    report = json.loads((run_folder / "report.json").read_text())
    theirs = next(v for v in report["valuations"] if v["method"] == "comfedsv")["values"]
    assert ours == theirs


def test_value_prints_one_json_document_with_the_promised_keys(brought, tmp_path, capsys):
    path = save(tmp_path / "mine.npz", brought)
    for method in ("fedsv", "comfedsv", "heard-round", "leave-one-out"):
        assert main(["value", path, "--method", method, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert list(document) == [
            *("method", "clients", "values", "standard_errors", "completion", "warnings"),
            *("uncertainty", "trail", "basis", "shares", "ranks", "intervals_90"),
        ]
        assert document["method"] == method
        assert len(document["values"]) == len(document["shares"]) == len(document["ranks"]) == 3
        assert sum(document["shares"]) == pytest.approx(1)
        assert document["ranks"][document["values"].index(max(document["values"]))] == 1
        assert document["basis"]
        assert (document["completion"] is None) == (method != "comfedsv")


def test_the_completion_summary_has_its_evidence(brought, tmp_path, capsys):
    path = save(tmp_path / "mine.npz", brought)
    for options in (["--rank", "2", "--penalty", "0.01", "--penalty-kind", "uniform"], ["--relative-penalty", "0.001"]):
        assert main(["value", path, *options, "--json"]) == 0
        summary = json.loads(capsys.readouterr().out)["completion"]
        expected = {"rank", "penalty", "penalty_kind", "objective", "status", "stationarity", "spectral_ratio"}
        assert expected <= set(summary)


def test_the_truth_may_hold_cells_beyond_the_participants_and_nothing_else_may(brought, tmp_path, capsys):
    full = np.array([0.5, 0.3, 0.2])[:, None] * (brought["coalitions"] @ np.array([1.0, 2.0, 3.0]))[None]
    path = save(tmp_path / "full.npz", {**brought, "utilities": full})
    assert main(["value", path, "--method", "truth", "--json"]) == 0
    np.testing.assert_allclose(json.loads(capsys.readouterr().out)["values"], [1.0, 2.0, 3.0])
    assert main(["value", path, "--method", "fedsv"]) == 6
    assert "not all of its members took part" in capsys.readouterr().err


def test_a_client_never_heard_has_no_value_and_strict_refuses(brought, tmp_path, capsys):
    heard = brought["participants"].copy()
    heard[:, 2] = False
    seen = ~(brought["coalitions"][None] & ~heard[:, None]).any(axis=2)
    utilities = np.where(seen, brought["coalitions"].sum(axis=1) * 1.0, np.nan)
    path = save(tmp_path / "unheard.npz", {**brought, "participants": heard, "utilities": utilities})
    for method in ("fedsv", "comfedsv", "heard-round"):
        assert main(["value", path, "--method", method, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["values"][2] is None
        assert None not in document["values"][:2]
        assert any("client 2" in warning for warning in document["warnings"])
        assert main(["value", path, "--method", method, "--strict"]) == 11
        assert "client 2" in capsys.readouterr().err


def test_a_coalition_never_seen_is_refused_and_zero_must_be_asked_for(brought, tmp_path, capsys):
    arrays = {name: array[1:] if name != "coalitions" else array for name, array in brought.items()}
    path = save(tmp_path / "later.npz", arrays)
    assert main(["value", path, "--json"]) == 8
    assert "never seen" in capsys.readouterr().err
    assert main(["value", path, "--json", "--unseen", "zero"]) == 0
    assert any("count as utility 0" in warning for warning in json.loads(capsys.readouterr().out)["warnings"])


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--method", "comfedsw"], 2, "did you mean 'comfedsv'"),
        (["--penalty-kind", "unifrom"], 2, "did you mean 'uniform'"),
        (["--rank", "many"], 2, "expected a whole number"),
        (["--rank", "0"], 2, "expected a whole number"),
        (["--penalty", "1e9"], 7, "λ_collapse"),
        (["--penalty", "-1"], 7, "positive"),
        (["--unseen", "one"], 2, "known are refuse, zero"),
    ],
)
def test_a_wrong_option_is_named_with_what_was_expected(brought, tmp_path, capsys, options, code, said):
    assert main(["value", save(tmp_path / "mine.npz", brought), *options]) == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (lambda a: a.update(utilities=np.where(np.isnan(a["utilities"]), np.nan, np.inf)), 6, "finite"),
        (lambda a: a.update(utilities=a["utilities"][:, 1:]), 6, "expected float64 of shape"),
        (lambda a: a.update(utilities=a["utilities"].astype(np.float32)), 6, "float32"),
        (lambda a: a.update(participants=a["participants"].astype(int)), 6, "expected bool"),
        (lambda a: a.pop("coalitions"), 6, "no array 'coalitions'"),
        (lambda a: a["coalitions"].__setitem__(2, a["coalitions"][1]), 6, "give each once"),
        (lambda a: a.update(permutations=np.array([[0, 1, 1]])), 6, "each once"),
        (lambda a: a.update(utilities=a["utilities"] + 1), 6, "empty coalition"),
    ],
)
def test_a_broken_file_of_ones_own_is_refused(brought, tmp_path, capsys, change, code, said):
    change(brought)
    assert main(["value", save(tmp_path / "broken.npz", brought), "--method", "fedsv"]) == code
    assert said in capsys.readouterr().err


def test_a_missing_or_truncated_file_is_refused(brought, tmp_path, capsys):
    assert main(["value", str(tmp_path / "nothing.npz")]) == 12
    path = Path(save(tmp_path / "cut.npz", brought))
    path.write_bytes(path.read_bytes()[:-200])
    assert main(["value", str(path)]) == 12
    assert "cut.npz" in capsys.readouterr().err


def test_monte_carlo_gives_standard_errors(brought, tmp_path, capsys):
    permutations = np.array([[0, 1, 2], [2, 1, 0], [1, 0, 2]])
    path = save(tmp_path / "mc.npz", {**brought, "permutations": permutations})
    assert main(["value", path, "--method", "comfedsv", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["standard_errors"]) == 3
    assert any("3 permutations" in warning for warning in document["warnings"])


def test_nothing_is_overwritten(run_folder, capsys):
    assert main(["run", *SMALL, "--out", str(run_folder)]) == 12
    assert main(["run", *SMALL, "--seed", "1", "--out", str(run_folder), "--resume"]) == 12
    ledger = str(run_folder / "ledger")
    assert main(["simulate", *SMALL, "--out", ledger]) == 12
    assert main(["observe", ledger, "--out", str(run_folder / "utilities.npz")]) == 12
    assert main(["complete", str(run_folder / "utilities.npz"), "--out", str(run_folder / "completion.npz")]) == 12
    assert capsys.readouterr().out == ""


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
def test_a_federation_that_cannot_be_trained_is_refused(tmp_path, capsys, monkeypatch, options, code, said):
    monkeypatch.delenv("FEDWORTH_DATA", raising=False)
    monkeypatch.setattr("pooch.retrieve", offline)
    assert main(["simulate", *SMALL, "--out", str(tmp_path / "l"), *options]) == code
    assert said in capsys.readouterr().err


def test_too_many_clients_are_estimated_and_values_of_all_coalitions_refused(tmp_path, capsys):
    many = [
        "--clients",
        "21",
        "--copy",
        "none",
        "--participants",
        "2",
        "--rounds",
        "2",
        "--train-limit",
        "300",
        "--no-truth",
    ]
    ledger = str(tmp_path / "ledger")
    assert main(["simulate", *many, "--partition", "iid", "--out", ledger]) == 0
    assert main(["observe", ledger, "--out", str(tmp_path / "games.npz")]) == 0
    assert main(["value", str(tmp_path / "games.npz"), "--method", "fedsv"]) == 0
    assert main(["observe", ledger, "--budget", "100", "--out", str(tmp_path / "u.npz")]) == 2
    assert "--permutations M" in capsys.readouterr().err
    assert main(["observe", ledger, "--permutations", "3", "--out", str(tmp_path / "u.npz"), "--json"]) == 0
    assert main(["value", str(tmp_path / "u.npz"), "--json"]) == 0


def test_a_damaged_ledger_is_refused_and_left_as_it_is(run_folder, tmp_path, capsys):
    ledger = tmp_path / "ledger"
    shutil.copytree(run_folder / "ledger", ledger)
    path = sorted((ledger / "rounds").iterdir())[1]
    damaged = bytearray(path.read_bytes())
    damaged[-5] ^= 1
    path.write_bytes(bytes(damaged))
    assert main(["observe", str(ledger), "--no-cache", "--out", str(tmp_path / "u.npz")]) == 4
    assert path.name in capsys.readouterr().err
    assert path.read_bytes() == bytes(damaged)
    assert not (tmp_path / "u.npz").exists()
    path.unlink()
    assert main(["observe", str(ledger), "--out", str(tmp_path / "u.npz")]) == 4


def test_without_the_everyone_heard_round_the_cost_is_said_and_factors_are_refused(tmp_path, capsys):
    assert main(["run", *SMALL, "--not-everyone-heard", "--out", str(tmp_path / "run"), "--seed", "3"]) == 0
    captured = capsys.readouterr()
    assert "no round hears everyone" in captured.err
    assert "comfedsv-factors: refused" in captured.err
    assert "FedSV" in captured.out


def test_theory_speaks_for_each_statement(run_folder, capsys):
    folder = str(run_folder)
    statements = [
        ["observation-1", "--clients", "10", "--participants", "3", "--rounds", "10"],
        ["rank", f"{folder}/truth.npz", "--epsilon", "0.05"],
        ["rank-bound", "--ledger", f"{folder}/ledger", "--lipschitz", "1", "--smoothness", "1", "--epsilon", "0.1"],
        [
            "rank-bound",
            "--convexity",
            "1",
            "--rounds",
            "9",
            "--clients",
            "4",
            "--lipschitz",
            "1",
            "--smoothness",
            "2",
            "--epsilon",
            "1",
        ],
        ["fairness", f"{folder}/truth.npz", f"{folder}/completion.npz"],
    ]
    for statement in statements:
        assert main(["theory", *statement]) == 0
        assert capsys.readouterr().out
        assert main(["theory", *statement, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["rows"]
    assert main(["theory", "rank-bound", "--lipschitz", "1", "--smoothness", "1", "--epsilon", "1"]) == 2


def test_report_prints_and_writes_the_same_again(run_folder, tmp_path, capsys):
    assert main(["report", str(run_folder), "--out", str(tmp_path)]) == 0
    for ending in ("csv", "json", "md"):
        assert (tmp_path / f"report.{ending}").read_bytes() == (run_folder / f"report.{ending}").read_bytes()
    assert "What each client is worth" in capsys.readouterr().out
    assert main(["report", str(run_folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["agreement"]


def test_rank_auto_says_what_it_chose(run_folder, capsys):
    path = str(run_folder / "utilities.npz")
    assert main(["value", path, "--rank", "auto", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert any("cross-validation chose rank" in warning for warning in document["warnings"])
    assert main(["value", path, "--rank", "auto", "--penalty", "1"]) == 2


def test_values_from_the_run_share_out_the_grand_utility(run_folder):
    truth = load_utilities(run_folder / "truth.npz")
    everyone = np.ones((1, 4), dtype=bool)
    total = sum(truth.row(t, everyone)[0] for t in range(truth.n_rounds))
    report = json.loads((run_folder / "report.json").read_text())
    values = next(v for v in report["valuations"] if v["method"] == "truth")["values"]
    assert sum(values) == pytest.approx(total, abs=1e-9)


def test_a_second_observation_measures_nothing_and_gives_equal_bytes(run_folder, tmp_path, capsys):
    ledger, first, again = tmp_path / "ledger", tmp_path / "first.npz", tmp_path / "again.npz"
    shutil.copytree(run_folder / "ledger", ledger, ignore=shutil.ignore_patterns("utilities"))
    command = ["observe", str(ledger), "--permutations", "5", "--json", "--out"]
    assert main([*command, str(first)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["n_evaluations"] > told["n_known"] == 0
    assert told["status"] == "all planned cells are measured"
    assert main([*command, str(again)]) == 0
    known = json.loads(capsys.readouterr().out)
    assert (known["n_evaluations"], known["n_known"]) == (0, told["n_evaluations"])
    assert first.read_bytes() == again.read_bytes()
    assert main([*command, str(tmp_path / "fresh.npz"), "--no-cache"]) == 0
    assert json.loads(capsys.readouterr().out)["n_evaluations"] == told["n_evaluations"]


def test_a_budget_that_runs_out_is_told_and_warned_of(run_folder, tmp_path, capsys):
    ledger, out = str(run_folder / "ledger"), tmp_path / "cut.npz"
    common = ["observe", ledger, "--no-cache", "--out"]
    assert main([*common, str(out), "--no-fedsv", "--permutations", "20", "--budget", "10", "--json"]) == 0
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    assert told["n_evaluations"] <= 10
    assert told["status"].startswith("stopped at the budget of evaluations")
    assert "of 20 planned permutations were measured" in shown.err
    assert main(["value", str(out), "--json"]) == 0
    assert any("planned permutations" in note for note in json.loads(capsys.readouterr().out)["warnings"])
    assert main([*common, str(tmp_path / "exact.npz"), "--budget", "10"]) == 2
    assert "needs 21 evaluations, the budget is 10; raise it, or use Monte Carlo" in capsys.readouterr().err


def test_measuring_ends_once_the_values_are_settled(run_folder, tmp_path, capsys):
    ledger, out, fresh = tmp_path / "ledger", tmp_path / "settled.npz", tmp_path / "fresh.npz"
    shutil.copytree(run_folder / "ledger", ledger, ignore=shutil.ignore_patterns("utilities"))
    command = ["observe", str(ledger), "--json", "--permutations"]
    assert main([*command, "200", "--until-error", "0.3", "--out", str(out)]) == 0
    told = json.loads(capsys.readouterr().out)
    ended = re.fullmatch(r"(\d+) of 200 permutations: every standard error is within the tolerance", told["ended"])
    assert ended
    n = ended.group(1)
    assert int(n) < 200
    assert main([*command, n, "--out", str(fresh)]) == 0
    assert out.read_bytes() == fresh.read_bytes()
    capsys.readouterr()
    assert main(["value", str(out), "--method", "comfedsv", "--json"]) == 0
    valued = json.loads(capsys.readouterr().out)
    assert max(valued["standard_errors"]) <= 0.3 * max(map(abs, valued["values"]))


def test_measuring_that_never_settles_ends_at_the_last_permutation_or_at_the_budget(run_folder, tmp_path, capsys):
    command = ["observe", str(run_folder / "ledger"), "--json", "--permutations", "12", "--until-error", "0"]
    assert main([*command, "--until-ranked", "--out", str(tmp_path / "all.npz")]) == 0
    assert json.loads(capsys.readouterr().out)["ended"].startswith("12 of 12 permutations: stopped at the budget")
    ledger = tmp_path / "ledger"
    shutil.copytree(run_folder / "ledger", ledger, ignore=shutil.ignore_patterns("utilities"))
    short = [*command, "--no-fedsv", "--budget", "14", "--out", str(tmp_path / "cut.npz")]
    assert main([short[0], str(ledger), *short[2:]]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["n_evaluations"] <= 14
    assert "stopped at the budget" in told["ended"]


def test_stopping_rules_need_permutations_and_the_cache(run_folder, tmp_path):
    command = ["observe", str(run_folder / "ledger"), "--until-ranked", "--out", str(tmp_path / "u.npz")]
    assert main(command) == 2
    assert main([*command, "--permutations", "9", "--no-cache"]) == 2
    assert main([*command, "--permutations", "9", "--until-error", "-1"]) == 2
    assert not (tmp_path / "u.npz").exists()


def test_the_plain_loop_sees_the_same_but_for_rounding(run_folder, tmp_path):
    ledger = str(run_folder / "ledger")
    for oracle in ("fast", "loop"):
        assert main(["observe", ledger, "--oracle", oracle, "--out", str(tmp_path / f"{oracle}.npz")]) == 0
    fast, loop = (load_utilities(tmp_path / f"{oracle}.npz") for oracle in ("fast", "loop"))
    np.testing.assert_allclose(fast.utilities, loop.utilities, rtol=0, atol=1e-6)


def test_what_a_command_is_warned_of_meanwhile_is_said_once(tmp_path, capsys, monkeypatch):
    def simulate(*_, **__):
        caution("a folder is full")
        caution("a folder is full")
        raise UsageError("no more")

    monkeypatch.setattr("fedworth.simulation.simulate.simulate", simulate)
    assert main(["simulate", "--out", str(tmp_path / "ledger")]) == 2
    assert capsys.readouterr().err.splitlines()[:2] == ["warning: a folder is full", "error: no more"]
