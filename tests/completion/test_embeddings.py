"""Embeddings of samples outside of a batch: estimated, and judged on embeddings that were held out."""

import numpy as np
import pytest
import torch
from torch import nn

import fedworth
from fedworth import Federation, ValuationSettings, WorkSettings
from fedworth.completion.embeddings import COMPLETIONS, EmbeddingLedger
from fedworth.errors import UsageError
from fedworth.task.vertical import Vertical
from fedworth.valuation.refitted import RefittedGame

PLAIN = WorkSettings(cache=False, n_threads=1)
N_SAMPLES, N_ROUNDS, WIDTH = 120, 30, 2


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """Two clients with linear bottoms that change slowly, a batch of 24 a round: (ledger, vertical, truth)."""
    rng, labels = np.random.default_rng(0), torch.arange(N_SAMPLES) % 2
    vertical = Vertical(nn.Linear(2 * WIDTH, 2).double(), labels, {"a": WIDTH, "b": WIDTH})
    features = {name: rng.normal(size=(N_SAMPLES, 3)) for name in vertical.clients}
    weights = {name: rng.normal(size=(3, WIDTH)) for name in vertical.clients}
    recorder = fedworth.record_into(tmp_path_factory.mktemp("learned") / "l", vertical=vertical)
    truth = []
    for t in range(N_ROUNDS):
        truth.append({name: features[name] @ weights[name] for name in features})
        recorder.start_round(vertical.head.state_dict(), asked=vertical.clients)
        for name in features:
            batch = np.arange(N_SAMPLES) if t == 0 else rng.permutation(N_SAMPLES)[:24]
            recorder.client_embedding(name, truth[-1][name][batch], None if t == 0 else batch)
            weights[name] = weights[name] + 0.1 * rng.normal(size=(3, WIDTH))
        recorder.end_round()
    recorder.close(vertical.head.state_dict())
    return fedworth.Ledger.open(recorder.writer.folder), vertical, truth


def error_of(learned, how):
    """Root mean square error of client a's embeddings in all rounds."""
    ledger, _, truth = learned
    rounds = EmbeddingLedger.of(ledger, how).rounds()
    wrong = [round_.client_models[0]["embeddings.0"].numpy() - h["a"] for round_, h in zip(rounds, truth, strict=True)]
    return float(np.sqrt(np.mean(np.square(wrong))))


def test_what_was_sent_is_kept_and_the_rest_is_estimated(learned):
    ledger, _, truth = learned
    for how in COMPLETIONS:
        made = EmbeddingLedger.of(ledger, how)
        for t in range(N_ROUNDS):
            sent = ledger.open_round(t).client_models[0]
            samples = sent["samples"] if "samples" in sent else torch.arange(N_SAMPLES)
            found = made.open_round(t).client_models[0]["embeddings.0"]
            assert found[samples].numpy() == pytest.approx(truth[t]["a"][samples], abs=1e-9)
            assert made.open_round(t).global_model["embeddings.0"].shape == (N_SAMPLES, WIDTH)


def test_patterns_are_better_than_the_last_value_and_smooth_ones_best(learned):
    errors = {how: error_of(learned, how) for how in COMPLETIONS}
    assert errors["smooth"] < errors["low-rank"] < errors["last"]
    assert errors["smooth"] < 0.3 * errors["last"]


def test_embeddings_that_are_held_out_tell_the_same(learned):
    ledger, _, _ = learned
    smooth, low_rank, last = (EmbeddingLedger.of(ledger, how).held_out_error() or 0 for how in COMPLETIONS)
    assert 0 < smooth < low_rank < last


def test_values_say_that_embeddings_were_estimated(learned):
    ledger, vertical, _ = learned
    made = Federation(ledger, vertical.task(), work=PLAIN).value("verfedsv")
    assert any("outside of a batch are estimated (smooth)" in note for note in made.notes)
    assert made.uncertainty is None
    page = fedworth.report_on(ledger, vertical.task(), work=PLAIN).page_html()
    assert "All values are estimates" in page
    assert "none is estimated" not in page
    refitted = Federation(ledger, vertical.task(), work=PLAIN).value("refitted-head")
    assert refitted.uncertainty is None
    other = Federation(ledger, vertical.task(), ValuationSettings(unsent="last"), work=PLAIN).value("verfedsv")
    assert made.values != pytest.approx(other.values)


def test_values_are_nearer_to_those_of_all_embeddings(learned, tmp_path):
    ledger, vertical, truth = learned
    recorder = fedworth.record_into(tmp_path / "l", vertical=vertical)
    for sent in truth:
        recorder.start_round(vertical.head.state_dict(), asked=vertical.clients)
        for name, embedding in sent.items():
            recorder.client_embedding(name, embedding)
        recorder.end_round()
    recorder.close(vertical.head.state_dict())
    whole = fedworth.Ledger.open(tmp_path / "l")
    expected = Federation(whole, vertical.task(), work=PLAIN).value("verfedsv").by_round
    errors = {}
    for how in COMPLETIONS:
        settings = ValuationSettings(unsent=how)
        found = Federation(ledger, vertical.task(), settings, work=PLAIN).value("verfedsv").by_round
        assert found is not None
        assert expected is not None
        errors[how] = float(np.abs(found - expected).mean())
    assert errors["smooth"] < errors["last"]


def test_a_client_first_seen_in_parts_starts_there(tmp_path):
    """Without a first pass over all samples, a sample's first embedding is where it starts; others stay at zero."""
    vertical = Vertical(nn.Linear(2, 2).double(), torch.arange(8) % 2, {"a": 1, "b": 1})
    recorder = fedworth.record_into(tmp_path / "l", vertical=vertical)
    for t in range(4):
        recorder.start_round(vertical.head.state_dict(), asked=["a", "b"])
        recorder.client_embedding("a", torch.full((2, 1), 1.0 + t, dtype=torch.float64), [t % 2, 2 + t % 2])
        recorder.client_embedding("b", torch.zeros(8, 1, dtype=torch.float64))
        recorder.end_round()
    recorder.close(vertical.head.state_dict())
    made = EmbeddingLedger.of(fedworth.Ledger.open(tmp_path / "l"), "last")
    held = [round_.client_models[0]["embeddings.0"][:, 0].tolist() for round_ in made.rounds()]
    assert held[0] == [1, 2, 1, 2, 0, 0, 0, 0]
    assert held[3] == [3, 4, 3, 4, 0, 0, 0, 0]
    assert made.n_deciding == 4
    federation = Federation(made, vertical.task(), work=PLAIN)
    assert np.isfinite(RefittedGame(federation.recorded).utilities(np.ones((1, 2), dtype=bool))).all()


def test_the_option_is_refused_where_clients_send_models(tiny_ledger, tiny_task):
    with pytest.raises(UsageError, match="vertical"):
        Federation(tiny_ledger, tiny_task, ValuationSettings(unsent="last"), work=PLAIN)
