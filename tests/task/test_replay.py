"""A ledger's server is checked round by round: what it did, what it did not, and what cannot be said."""

import json

import numpy as np
import pytest
import torch

from fedworth.cli.main import main
from fedworth.errors import RuleError
from fedworth.ledger.ledger import Ledger, read_round
from fedworth.recording.recorder import record_into
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate
from fedworth.task.replay import check_ledger
from fedworth.task.rules import Adaptive, Krum, Median, ServerMomentum, TrimmedMean, WeightedMean, rule_of
from tests.support.servers import federation, first_model

SERVERS = [ServerMomentum(0.7, 0.9), Adaptive("adam"), Adaptive("yogi"), Median(), TrimmedMean(0.3), Krum(1)]


@pytest.mark.parametrize("rule", [WeightedMean(), *SERVERS], ids=str)
def test_a_server_that_follows_its_rule_passes(tmp_path, rule):
    ledger = federation(tmp_path / "l", rule, recorded=rule)
    checked = check_ledger(ledger, rule_of(ledger))
    checked.refuse_others()
    assert (checked.n_same, checked.largest_gap, checked.notes()) == (4, 0.0, ())


@pytest.mark.parametrize("rule", SERVERS, ids=str)
def test_a_server_that_does_not_average_is_refused_and_by_how_much_it_differs(tmp_path, rule):
    checked = check_ledger(federation(tmp_path / "l", rule), WeightedMean())
    with pytest.raises(RuleError, match=r"round \d: the recorded next model is not the weighted mean") as refusal:
        checked.refuse_others()
    assert "Task(rule=…)" in str(refusal.value)
    assert "--as-average" in str(refusal.value)
    assert f"by up to {checked.largest_gap:.2g} of a round's update" in checked.notes()[0]


@pytest.mark.parametrize("aggregation", ["uniform", "samples"])
def test_simulated_ledgers_pass(tmp_path, aggregation):
    settings = SimulationSettings(
        n_clients=4, n_participants=2, n_rounds=3, train_limit=120, copies=(), aggregation=aggregation
    )
    checked = check_ledger(simulate(settings, tmp_path / "l"), WeightedMean())
    checked.refuse_others()
    assert (checked.n_same, checked.notes()) == (3, ())


def test_an_open_ledger_says_that_its_last_round_could_not_be_checked(tmp_path):
    checked = check_ledger(federation(tmp_path / "l", WeightedMean(), is_closed=False), WeightedMean())
    checked.refuse_others()
    assert checked.n_same == 3
    assert checked.notes() == (
        "the server's model after round 4 could not be checked: the ledger is not closed, so the model after its last "
        "round is not known",
    )


def test_a_missing_round_leaves_the_one_before_it_unchecked(tmp_path):
    model = first_model()
    recorder = record_into(tmp_path / "l", aggregation="uniform")
    for number in (1, 3):
        recorder.start_round(model, asked=["a"], number=number)
        recorder.client_model("a", {name: tensor + 1 for name, tensor in model.items()}, 1)
        recorder.end_round()
        model = {name: tensor + number for name, tensor in model.items()}
    recorder.lose_round(4, "the disk was full")
    recorder.close(model)
    checked = check_ledger(Ledger.open(tmp_path / "l"), WeightedMean())
    assert checked.unchecked() == (
        "the server's model after round 1, 3 could not be checked: the round after it is not recorded",
    )


def test_a_longer_ledger_is_checked_from_where_the_shorter_one_ended(tmp_path, monkeypatch):
    rule = Adaptive("adam")
    short = federation(tmp_path / "short", rule, n_rounds=3, is_closed=False)
    known = check_ledger(short, rule)
    longer = federation(tmp_path / "longer", rule, n_rounds=5)
    opened: list[int] = []
    whole = check_ledger(longer, rule)
    open_round = type(longer).open_round

    def noted(self, round_index, **options):
        opened.append(round_index)
        return open_round(self, round_index, **options)

    monkeypatch.setattr(type(longer), "open_round", noted)
    assert check_ledger(longer, rule, known).checks == whole.checks
    assert min(opened) == 2


def test_a_round_without_participants_leaves_the_model_as_it_was(tmp_path):
    recorder = record_into(tmp_path / "l")
    for _ in range(2):
        recorder.start_round(first_model(), asked=["a"])
        recorder.client_failed("a", "out of memory")
        recorder.end_round()
    checked = check_ledger(Ledger.open(tmp_path / "l"), WeightedMean())
    assert [check.gap for check in checked.checks] == [0.0, None]


def test_masked_answers_are_recognised(tmp_path):
    model, rng = first_model(), torch.Generator().manual_seed(1)
    mask = {name: 1e4 * torch.randn(tensor.shape, generator=rng) for name, tensor in model.items()}
    recorder = record_into(tmp_path / "l", aggregation="uniform")
    recorder.start_round(model, asked=["a", "b"])
    recorder.client_model("a", {name: tensor + mask[name] for name, tensor in model.items()}, 1)
    recorder.client_model("b", {name: tensor - 0.5 * mask[name] for name, tensor in model.items()}, 1)
    recorder.end_round()
    recorder.close({name: tensor + 0.1 for name, tensor in model.items()})
    with pytest.raises(RuleError, match="look masked \\(secure aggregation\\)"):
        check_ledger(Ledger.open(tmp_path / "l"), WeightedMean()).refuse_others()


@pytest.mark.parametrize("size", [2.0, 5.0])
def test_masks_that_cancel_are_recognised_though_the_aggregate_is_right(tmp_path, size):
    """Of three clients with pairwise masks; even asked for by name, their values would mean nothing."""
    model, rng = first_model(), torch.Generator().manual_seed(2)
    masks = [{name: size * torch.randn(t.shape, generator=rng) for name, t in model.items()} for _ in range(3)]
    recorder = record_into(tmp_path / "l", aggregation="uniform")
    recorder.start_round(model, asked=["a", "b", "c"])
    sent = [{n: t + 1e-3 * (k + 1) + masks[k][n] - masks[k - 1][n] for n, t in model.items()} for k in range(3)]
    for name, answer in zip("abc", sent, strict=True):
        recorder.client_model(name, answer, 1)
    recorder.end_round()
    recorder.close({n: torch.stack([answer[n].double() for answer in sent]).mean(0).float() for n in model})
    checked = check_ledger(Ledger.open(tmp_path / "l"), WeightedMean())
    assert checked.checks[0].is_same
    with pytest.raises(RuleError, match="cannot be valued, so record groups of clients"):
        checked.refuse_masked()


def test_updates_that_cancel_in_a_federation_that_has_converged_are_no_masks(tmp_path):
    model = first_model()
    recorder = record_into(tmp_path / "l", aggregation="uniform")
    recorder.start_round(model, asked=["a", "b"])
    recorder.client_model("a", {name: tensor + 0.01 for name, tensor in model.items()}, 1)
    recorder.client_model("b", {name: tensor - 0.01 for name, tensor in model.items()}, 1)
    recorder.end_round()
    recorder.close(model)
    check_ledger(Ledger.open(tmp_path / "l"), WeightedMean()).refuse_others()


def test_a_refused_answer_is_named_as_what_may_be_behind_a_gap(tmp_path):
    model = first_model()
    recorder = record_into(tmp_path / "l", aggregation="uniform")
    recorder.start_round(model, asked=["a", "b"])
    recorder.client_model("a", {name: tensor + 1 for name, tensor in model.items()}, 1)
    recorder.client_model("b", {"weight": model["weight"]}, 1)
    recorder.end_round()
    recorder.close({name: tensor + 2 for name, tensor in model.items()})
    with pytest.raises(RuleError, match="answers that are quarantined here may have been averaged"):
        check_ledger(Ledger.open(tmp_path / "l"), WeightedMean()).refuse_others()


def test_integers_that_the_server_zeroes_are_no_gap(tmp_path):
    model = {**first_model(), "counter": torch.tensor(3)}
    recorder = record_into(tmp_path / "l", aggregation="uniform")
    recorder.start_round(model, asked=["a"])
    trained = {**{name: tensor + 1 for name, tensor in first_model().items()}, "counter": torch.tensor(4)}
    recorder.client_model("a", trained, 1)
    recorder.end_round()
    recorder.close({**trained, "counter": torch.tensor(0.0)})
    check_ledger(Ledger.open(tmp_path / "l"), WeightedMean()).refuse_others()


def test_verify_says_what_the_server_did_and_ends_with_its_code(tmp_path, capsys):
    federation(tmp_path / "l", Median())
    assert main(["verify", str(tmp_path / "l")]) == RuleError.exit_code
    told = capsys.readouterr()
    assert "server: weighted mean, in 0 of 4 rounds" in told.out
    assert "--as-average" in told.err
    assert main(["verify", str(tmp_path / "l"), "--as-average", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["largest_gap"] > 0.01
    assert np.isfinite(document["largest_gap"])
    federation(tmp_path / "named", Median(), recorded=Median())
    assert main(["verify", str(tmp_path / "named")]) == 0


def test_the_header_keeps_its_rule_when_a_recording_is_resumed(tmp_path):
    record_into(tmp_path / "l", rule=Median())
    record_into(tmp_path / "l", resume=True)
    assert rule_of(Ledger.open(tmp_path / "l")) == Median()


def test_every_round_is_read_once(tmp_path, monkeypatch):
    ledger = federation(tmp_path / "l", WeightedMean())
    opened = []

    def counted(folder, entry, *args, **how):
        opened.append(entry.round_index)
        return read_round(folder, entry, *args, **how)

    monkeypatch.setattr("fedworth.ledger.ledger.read_round", counted)
    check_ledger(ledger, WeightedMean()).refuse_others()
    assert opened == [0, 1, 2, 3]
