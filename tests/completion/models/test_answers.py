"""Combinations of updates: the same in pieces as at once, and in the model's own dtypes."""

import numpy as np
import pytest
import torch

from fedworth.completion.models import answers as module
from fedworth.completion.models import shelf
from fedworth.completion.models.answers import answers_of
from fedworth.errors import MachineError
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


@pytest.mark.parametrize("in_memory", [True, False])
def test_the_bits_are_the_same_on_any_number_of_threads(odd, monkeypatch, in_memory):
    coefficients = np.random.default_rng(0).normal(size=(3, len(odd.places[0])))
    monkeypatch.setattr(module, "PIECE_BYTES", 4 * 5 * coefficients.shape[1])
    monkeypatch.setattr(shelf, "MOST_IN_MEMORY", 1 << 28 if in_memory else 0)
    alone, together = (
        module.Answers(odd.clients, odd.participants, odd.rounds, n_threads).models(1, coefficients)
        for n_threads in (1, 3)
    )
    for one, other in zip(alone, together, strict=True):
        for name in one:
            assert (
                one[name].reshape(-1).view(torch.uint8).tolist() == other[name].reshape(-1).view(torch.uint8).tolist()
            )


def test_nobody_absent_needs_no_model(odd):
    assert odd.models(0, np.zeros((0, len(odd.places[0])))) == []


def test_large_models_lie_in_a_file_with_the_same_numbers(odd, monkeypatch, tmp_path):
    coefficients = np.random.default_rng(0).normal(size=(3, len(odd.places[0])))
    in_memory = odd.models(1, coefficients)
    monkeypatch.setattr(shelf, "MOST_IN_MEMORY", 0)
    monkeypatch.setattr(module, "PIECE_BYTES", 4 * 5 * coefficients.shape[1])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mapped = odd.models(1, coefficients)
    assert list(tmp_path.glob("*")) == [tmp_path / "ledger"]  # the file has no name, so nothing can be left behind
    for one, other in zip(in_memory, mapped, strict=True):
        for name in one:
            assert one[name].dtype == other[name].dtype
            torch.testing.assert_close(one[name], other[name])


def test_a_full_device_is_an_error_that_says_where_to_find_room(odd, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shelf, "MOST_IN_MEMORY", 0)
    monkeypatch.setattr(shelf, "write_at", full)
    with pytest.raises(MachineError, match=r"predicted models of one round .No space left on device.; let TMPDIR"):
        odd.models(1, np.ones((2, len(odd.places[0]))))


def test_updates_of_large_models_are_not_kept(odd, monkeypatch):
    assert odd._kept is not None
    monkeypatch.setattr(module, "LARGEST_KEPT", 0)
    assert module.Answers(odd.clients, odd.participants, odd.rounds)._kept is None


def test_products_are_those_of_the_updates_of_all_tensors_in_any_pieces(odd, monkeypatch):
    some = np.array([0, 2, 3])
    monkeypatch.setattr(module, "PIECE_BYTES", 4 * 5 * len(some))
    updates = []
    for answer in some.tolist():
        origin, model = odd.rounds[int(odd.places[0][answer])].global_model, odd.model(answer)
        updates.append(torch.cat([(model[k].float() - origin[k].float()).reshape(-1) for k in origin]).double().numpy())
    np.testing.assert_allclose(odd.products(some), np.array(updates) @ np.array(updates).T, rtol=1e-5)
