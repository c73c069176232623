"""Combinations of updates: the same in pieces as at once, in memory as in a file, in the models' own dtypes."""

import numpy as np
import pytest
import torch

from fedworth.completion.models import updates as module
from fedworth.completion.models.updates import Updates
from fedworth.errors import MachineError
from fedworth.ledger.ledger import Ledger
from fedworth.oracle.weighting import participation
from tests.support.ledgers import write_ledger


@pytest.fixture
def mixed(tmp_path):
    """Updates of half floats, counters, flags, a scalar and an empty tensor."""
    write_ledger(tmp_path / "ledger")
    ledger = Ledger.open(tmp_path / "ledger")
    return Updates(tuple(ledger.rounds()), participation(ledger))


def coefficients_of(updates):
    return np.random.default_rng(0).normal(size=(3, len(updates)))


def assert_same_bits(one, other):
    for name in one:
        assert one[name].dtype == other[name].dtype
        assert one[name].shape == other[name].shape
        assert one[name].reshape(-1).view(torch.uint8).tolist() == other[name].reshape(-1).view(torch.uint8).tolist()


def test_a_combination_is_the_global_model_plus_weighted_updates(mixed):
    coefficients = np.zeros((2, len(mixed)))
    coefficients[0, 1], coefficients[1, :2] = 1.0, (0.5, -0.25)
    same, combined = mixed.combine(0, coefficients)
    origin, first, second = mixed.opened[0].global_model, mixed.model(0), mixed.model(1)
    for name, like in origin.items():
        assert same[name].dtype == combined[name].dtype == like.dtype
        assert same[name].shape == like.shape
        start, a, b = (x[name].to(torch.float64) for x in (origin, first, second))
        expected = start + 0.5 * (a - start) - 0.25 * (b - start)
        if not like.is_floating_point():
            expected = expected.round()
        rough = 0.02 if like.dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(combined[name], expected.to(like.dtype), rtol=rough, atol=rough)
        torch.testing.assert_close(same[name], second[name], rtol=rough, atol=rough)


def test_updates_of_few_models_are_added_to_those_only(mixed):
    coefficients = np.zeros((6, len(mixed)))
    coefficients[:, 0], coefficients[2, 1] = 1.0, 0.5  # the second update enters one model of six
    together = mixed.combine(0, coefficients)
    alone = mixed.combine(0, coefficients[2:3])
    for name in alone[0]:
        torch.testing.assert_close(together[2][name], alone[0][name])


def test_in_pieces_from_disk_as_at_once_in_memory(mixed, monkeypatch):
    coefficients = coefficients_of(mixed)
    at_once = mixed.combine(1, coefficients)
    monkeypatch.setattr(module, "KEPT_BYTES", 0)
    monkeypatch.setattr(module, "PIECE_BYTES", 4 * 5 * len(mixed))
    for one, other in zip(at_once, Updates(mixed.opened, mixed.participants).combine(1, coefficients), strict=True):
        for name in one:
            torch.testing.assert_close(one[name], other[name])


@pytest.mark.parametrize("in_memory", [True, False])
def test_the_bits_are_the_same_on_any_number_of_threads(mixed, monkeypatch, in_memory):
    monkeypatch.setattr(module, "PIECE_BYTES", 4 * 5 * len(mixed))
    monkeypatch.setattr(module, "MOST_IN_MEMORY", 1 << 28 if in_memory else 0)
    alone, together = (
        Updates(mixed.opened, mixed.participants, n_threads).combine(1, coefficients_of(mixed)) for n_threads in (1, 3)
    )
    for one, other in zip(alone, together, strict=True):
        assert_same_bits(one, other)


def test_large_models_lie_in_a_file_without_a_name_with_the_same_numbers(mixed, monkeypatch, tmp_path):
    in_memory = mixed.combine(1, coefficients_of(mixed))
    monkeypatch.setattr(module, "MOST_IN_MEMORY", 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mapped = mixed.combine(1, coefficients_of(mixed))
    assert list(tmp_path.glob("*")) == [tmp_path / "ledger"]  # nothing can be left behind
    for one, other in zip(in_memory, mapped, strict=True):
        assert_same_bits(one, other)


def test_a_full_disk_is_an_error_that_says_where_to_find_room(mixed, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "MOST_IN_MEMORY", 0)
    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(MachineError, match=r"predicted models of one round .No space left on device.; let TMPDIR"):
        mixed.combine(1, coefficients_of(mixed))


def test_no_rows_make_no_models(mixed):
    assert mixed.combine(0, np.zeros((0, len(mixed)))) == []


@pytest.mark.parametrize("kept", [True, False])
def test_products_are_those_of_all_parameters_in_any_pieces(mixed, monkeypatch, kept):
    some = np.array([0, 2, 3])
    monkeypatch.setattr(module, "LARGEST_KEPT", 1 << 24 if kept else 0)
    monkeypatch.setattr(module, "PIECE_BYTES", 4 * 5 * len(some))
    rows = []
    for update in some.tolist():
        origin, model = mixed.opened[int(mixed.rounds[update])].global_model, mixed.model(update)
        rows.append(torch.cat([(model[k].float() - origin[k].float()).reshape(-1) for k in origin]).double().numpy())
    np.testing.assert_allclose(mixed.products(some), np.array(rows) @ np.array(rows).T, rtol=1e-5)
