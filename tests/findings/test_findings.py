"""What is odd about clients' answers is found, named in a sentence, and nothing is found where nothing is odd."""

import dataclasses

import pytest
import torch

from fedworth.findings import (
    CONTESTED_NAME,
    ECHO,
    HARM,
    KINDS,
    LARGE_UPDATE,
    LATE_COPY,
    MANY_GROUPS,
    MANY_SAMPLES,
    NO_UPDATE,
    OF_ANSWERS,
    REPLAY,
    SAME_MODEL,
    SCALED_COPY,
    SHARED_NODE,
    STALE_MODEL,
    Finding,
    look,
)  # fmt: skip
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.writer import Answer, LedgerWriter
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate
from tests.support.reports import EVIDENCE

CLIENTS = ("a", "b", "c", "d")
SIZE = (40, 30)


def drawn(seed, scale=1.0, dtype=torch.float32):
    rng = torch.Generator().manual_seed(seed)
    return {"weight": (scale * torch.randn(SIZE, generator=rng)).to(dtype), "count": torch.tensor(seed)}


def plus(model, update, factor=1.0):
    return {**model, "weight": (model["weight"] + factor * update["weight"]).to(model["weight"].dtype)}


class Planted:
    """Four rounds of four clients with updates of their own, but for what a test plants."""

    def __init__(self, dtype=torch.float32):
        self.globals = [drawn(1000 + t, dtype=dtype) for t in range(4)]
        self.updates = [{name: drawn(10 * t + k, 0.1) for k, name in enumerate(CLIENTS)} for t in range(4)]
        self.answers = [
            {name: Answer(plus(start, update), 50 + k) for k, (name, update) in enumerate(mine.items())}
            for start, mine in zip(self.globals, self.updates, strict=True)
        ]

    def plant(self, round_index, client, model, n_samples=50):
        self.answers[round_index][client] = Answer(model, n_samples)

    def found(self, folder):
        writer = LedgerWriter.create(folder, CLIENTS, aggregation="samples")
        for start, answers in zip(self.globals, self.answers, strict=True):
            writer.record_round(start, answers)
        writer.close(drawn(9999))
        files = sorted(folder.rglob("*"))
        found = look(Ledger.open(folder))[0]
        assert sorted(folder.rglob("*")) == files  # nothing is kept beside the ledger, where anybody could edit it
        return found


def only(found):
    (finding,) = found
    return finding


@pytest.fixture
def planted():
    return Planted()


def test_nothing_is_found_where_nothing_is_odd(planted, tmp_path):
    assert planted.found(tmp_path / "l") == ()


@pytest.mark.parametrize("factor", [11.0, 1000.0])
def test_an_update_far_longer_than_the_median(planted, tmp_path, factor):
    planted.plant(2, "b", plus(planted.globals[2], planted.updates[2]["b"], factor))
    finding = only(planted.found(tmp_path / "l"))
    assert (finding.kind, finding.clients, finding.rounds) == (LARGE_UPDATE, ("b",), (2,))
    assert finding.evidence["ratio"] == pytest.approx(factor, rel=0.1)
    shown = f"{finding.evidence['ratio']:.3g}" if factor < 100 else f"{finding.evidence['ratio']:,.0f}"
    assert finding.sentence == (
        f"Client 'b' sent an update of up to {shown} times the median norm, in 1 of its 4 rounds (2); "
        "more than 99.9 % confidence (spread of the other norms)."
    )


def test_four_times_the_median_is_no_finding(planted, tmp_path):
    planted.plant(2, "b", plus(planted.globals[2], planted.updates[2]["b"], 4.5))
    assert planted.found(tmp_path / "l") == ()


def test_seven_times_the_median_is_no_finding_where_the_others_differ_as_much(planted, tmp_path):
    for t, (client, factor) in enumerate([("a", 4.5), ("c", 0.2), ("d", 4.0), ("c", 0.25)]):
        planted.plant(t, client, plus(planted.globals[t], planted.updates[t][client], factor))
    planted.plant(1, "b", plus(planted.globals[1], planted.updates[1]["b"], 7))
    assert planted.found(tmp_path / "l") == ()


def test_a_hundred_times_the_samples(planted, tmp_path):
    planted.answers[1]["c"] = dataclasses.replace(planted.answers[1]["c"], n_samples=10_000)
    finding = only(planted.found(tmp_path / "l"))
    assert finding.kind == MANY_SAMPLES
    assert finding.sentence == (
        "Client 'c' reported up to 10,000 samples, 192 times the median, in 1 of its 4 rounds (1); "
        "certain (reported sample counts)."
    )


def test_the_global_model_returned(planted, tmp_path):
    for t in (0, 3):
        planted.plant(t, "d", planted.globals[t])
    finding = only(planted.found(tmp_path / "l"))
    assert finding.sentence == (
        "Client 'd' returned the global model unchanged, in 2 of its 4 rounds (0, 3); certain (model parameters)."
    )


def test_equal_models_of_clients_are_one_finding_for_all_of_them(planted, tmp_path):
    planted.plant(0, "b", planted.answers[0]["a"].model)
    planted.plant(1, "c", planted.answers[1]["b"].model)
    finding = only(planted.found(tmp_path / "l"))
    assert finding.sentence == (
        "Clients 'a', 'b' and 'c' sent the same model, in 2 of the 4 rounds they share (0, 1); "
        "certain (byte-identical models)."
    )


@pytest.mark.parametrize("factor", [0.25, 3.0, -1.0])
def test_a_scaled_copy_of_another_clients_update(planted, tmp_path, factor):
    planted.plant(1, "b", plus(planted.globals[1], planted.updates[1]["a"], factor))
    finding = only(planted.found(tmp_path / "l"))
    assert (finding.kind, finding.clients, finding.rounds) == (SCALED_COPY, ("a", "b"), (1,))
    assert finding.evidence["ratio"] == pytest.approx(max(abs(factor), 1 / abs(factor)), rel=1e-4)
    assert 0.999 < finding.confidence <= 1


def test_a_copy_with_a_little_noise_is_not_called_a_copy(planted, tmp_path):
    noisy = plus(planted.updates[1]["a"], drawn(77, 0.001))
    planted.plant(1, "b", plus(planted.globals[1], noisy))
    assert planted.found(tmp_path / "l") == ()


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_an_update_sent_again(planted, tmp_path, factor):
    planted.plant(3, "a", plus(planted.globals[3], planted.updates[0]["a"], factor))
    finding = only(planted.found(tmp_path / "l"))
    assert finding.sentence.startswith("Client 'a' repeated an answer of an earlier round, in 1 of its 4 rounds (3); ")
    assert finding.kind is REPLAY


def test_the_same_answer_to_the_same_global_model_is_no_replay(planted, tmp_path):
    planted.globals[3] = planted.globals[0]
    planted.answers[3] = planted.answers[0]
    assert planted.found(tmp_path / "l") == ()


def test_a_model_sent_again(planted, tmp_path):
    planted.plant(2, "a", planted.answers[1]["a"].model)
    assert REPLAY in {finding.kind for finding in planted.found(tmp_path / "l")}


def test_another_clients_earlier_update(planted, tmp_path):
    planted.plant(2, "c", plus(planted.globals[2], planted.updates[1]["a"]))
    finding = only(planted.found(tmp_path / "l"))
    assert (finding.kind, finding.clients, finding.rounds) == (LATE_COPY, ("a", "c"), (2,))


def test_the_servers_last_step_sent_back(planted, tmp_path):
    step = {"weight": planted.globals[2]["weight"] - planted.globals[1]["weight"]}
    planted.plant(2, "c", plus(planted.globals[2], step, 0.1))
    finding = only(planted.found(tmp_path / "l"))
    assert finding.kind == ECHO
    assert finding.evidence["ratio"] == pytest.approx(0.1, rel=1e-4)


def test_an_earlier_global_model_sent_back(planted, tmp_path):
    planted.plant(2, "c", planted.globals[0])
    found = {finding.kind: finding for finding in planted.found(tmp_path / "l")}
    assert found[STALE_MODEL].rounds == (2,)
    assert ECHO not in found


def test_two_answers_have_no_median(planted, tmp_path):
    for answers in planted.answers:
        del answers["c"], answers["d"]
    planted.plant(0, "a", plus(planted.globals[0], planted.updates[0]["a"], 1000), n_samples=10**6)
    assert planted.found(tmp_path / "l") == ()


def test_coarse_numbers_hide_scaled_copies_but_not_equal_models(tmp_path):
    planted = Planted(torch.bfloat16)
    planted.plant(0, "b", plus(planted.globals[0], planted.updates[0]["a"], 2.0))
    planted.plant(1, "b", planted.answers[1]["a"].model)
    finding = only(planted.found(tmp_path / "l"))
    assert (finding.kind, finding.rounds) == (SAME_MODEL, (1,))


def test_models_of_few_numbers_are_parallel_by_chance_and_nothing_is_said(tmp_path):
    writer = LedgerWriter.create(tmp_path / "l", CLIENTS, aggregation="samples")
    for t in range(3):
        answers = {name: Answer({"w": torch.tensor([1.0 + t + k])}, 1) for k, name in enumerate(CLIENTS)}
        writer.record_round({"w": torch.tensor([0.5 + t])}, answers)
    kinds = {finding.kind for finding in look(Ledger.open(tmp_path / "l"))[0]}
    assert SCALED_COPY not in kinds


def test_a_contested_name_and_a_shared_node_are_found(planted, tmp_path):
    writer = LedgerWriter.create(tmp_path / "l", CLIENTS, aggregation="samples")
    for t, (start, answers) in enumerate(zip(planted.globals, planted.answers, strict=True)):
        writer.start_round(start, asked=CLIENTS)
        for name in ("a", "b" if t % 2 else "c"):
            writer.client_model(name, answers[name].model, 5)
        writer.end_round(nodes={"a": "key-1", "b": "key-2", "c": "key-2"}, contested=["d"] if t == 3 else [])
    found = {finding.kind: finding for finding in look(Ledger.open(tmp_path / "l"))[0]}
    assert found[CONTESTED_NAME].sentence == (
        "Client 'd' had its name claimed by another node, in 1 of its 4 rounds (3); certain (messages of the nodes)."
    )
    assert found[SHARED_NODE].sentence == (
        "Clients 'b' and 'c' answered from one node, so there are more names than nodes, "
        "in 4 of their 4 rounds (0, 1, 2, 3); certain (messages of the nodes)."
    )
    assert len(found) == 2


def test_one_update_can_be_two_findings(planted, tmp_path):
    planted.plant(1, "b", plus(planted.globals[1], planted.updates[1]["a"], 20))
    found = planted.found(tmp_path / "l")
    assert {finding.kind for finding in found} == {LARGE_UPDATE, SCALED_COPY}


def test_every_kind_has_a_sentence_with_its_confidence_and_basis():
    evidence = {**EVIDENCE, "ratio": 12345.6, "value": -0.5, "low": -0.7, "high": -0.3, "middle": 0.2, "large": -0.1}
    evidence |= {"share": 35.0, "equal": 12.0}
    for kind in KINDS.values():
        sentence = Finding(kind, tuple("abcdefghijk"), tuple(range(20)), 30, evidence, 0.953).sentence
        assert "'h' and 3 more" in sentence
        assert sentence.endswith(f"; 95.3 % confidence ({kind.basis}).")
        if kind is MANY_GROUPS:
            assert "0.1 % of its effects on groups are positive, of the others 20 %" in sentence
            continue
        if kind.is_of_values:
            assert "-0.5" in sentence
            assert "(-0.7 to -0.3)" in sentence
            continue
        among = "their 30 rounds" if kind.across_rounds else "the 30 rounds they share"
        assert f", in 20 of {among} (0, 1, 2, 3, 4, 5, 6, 7, …); " in sentence
    assert ", in its only round (3); " in Finding(NO_UPDATE, ("a",), (3,), 1).sentence
    assert ", in the only round they share (3); " in Finding(SAME_MODEL, ("a", "b"), (3,), 1).sentence
    measured = Finding(HARM, ("a",), (), 0, {"value": -0.5, "low": -0.5, "high": -0.5, "large": -0.1})
    assert measured.sentence.startswith("Client 'a' made the model worse: its value is -0.5, and it adds -0.1 to")


@pytest.mark.parametrize("partition", ["iid", "two-class"])
def test_a_clean_simulated_federation_has_no_findings(tmp_path, partition):
    settings = SimulationSettings(n_clients=10, n_rounds=6, partition=partition, copies=(), with_truth=False)
    assert look(simulate(settings, tmp_path / "l"))[0] == ()


def test_a_copied_client_of_a_simulated_federation_is_found(tmp_path):
    settings = SimulationSettings(n_clients=6, n_rounds=4, copies=((5, 0),), with_truth=False)
    finding = only(look(simulate(settings, tmp_path / "l"))[0])
    assert (finding.kind, finding.clients) == (SAME_MODEL, ("0", "5"))


def test_what_a_ledger_is_too_small_for_is_not_looked_for(tmp_path):
    writer = LedgerWriter.create(tmp_path / "l", ("a", "b"), aggregation="samples")
    writer.record_round(drawn(1), {"a": Answer(drawn(2), 5), "b": Answer(drawn(3), 5)})
    writer.close(drawn(4))
    found, looked_for = look(Ledger.open(tmp_path / "l"))
    assert found == ()
    assert {kind.name for kind in looked_for} == {"no update", "same model", "scaled copy"}


def test_everything_is_looked_for_in_a_federation_that_is_large_enough(tmp_path):
    settings = SimulationSettings(n_clients=8, n_participants=8, n_rounds=3, with_truth=False)
    _, looked_for = look(simulate(settings, tmp_path / "l"))
    assert set(OF_ANSWERS) - set(looked_for) == {CONTESTED_NAME, SHARED_NODE}
