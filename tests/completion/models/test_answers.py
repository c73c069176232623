"""Combinations of updates: the same in pieces as at once, and in the model's own dtypes."""

import numpy as np
import pytest
import torch

from fedworth.completion.models import answers as module
from fedworth.completion.models.answers import answers_of
from fedworth.ledger.ledger import open_ledger
from tests.support.ledgers import write_ledger


@pytest.fixture
def odd(tmp_path):
    """Answers with half floats, counters, flags, a scalar and an empty tensor."""
    write_ledger(tmp_path / "ledger")
    return answers_of(open_ledger(tmp_path / "ledger"))


def test_a_combination_is_the_global_model_plus_weighted_updates(odd):
    coefficients = np.zeros((2, len(odd.places[0])))
    coefficients[0, 1], coefficients[1, :2] = 1.0, (0.5, -0.25)
    same, mixed = odd.models(0, coefficients)
    origin, first, second = odd.rounds[0].global_model, odd.model(0), odd.model(1)
    for name, like in origin.items():
        assert same[name].dtype == mixed[name].dtype == like.dtype
        assert same[name].shape == like.shape
        start, a, b = (x[name].to(torch.float64) for x in (origin, first, second))
        expected = start + 0.5 * (a - start) - 0.25 * (b - start)
        if not like.is_floating_point():
            expected = expected.round()
        rough = 0.02 if like.dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(mixed[name], expected.to(like.dtype), rtol=rough, atol=rough)
        torch.testing.assert_close(same[name], second[name], rtol=rough, atol=rough)


def test_in_pieces_from_disk_as_at_once_in_memory(odd, monkeypatch):
    coefficients = np.random.default_rng(0).normal(size=(3, len(odd.places[0])))
    at_once = odd.models(1, coefficients)
    monkeypatch.setattr(module, "KEPT_BYTES", 0)
    monkeypatch.setattr(module, "PIECE_BYTES", 4 * 5 * coefficients.shape[1])
    fresh = module.Answers(odd.clients, odd.participants, odd.rounds)
    for one, other in zip(at_once, fresh.models(1, coefficients), strict=True):
        for name in one:
            torch.testing.assert_close(one[name], other[name])
