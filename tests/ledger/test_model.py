"""Which models and weights can be averaged: tensors in range, in proportion to the others, plausible counts."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from fedworth.errors import ModelError
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.model import check_alike, check_finite, checked_count, out_of_proportion
from fedworth.ledger.writer import Answer, LedgerWriter
from fedworth.recording.recorder import record_into, with_difference
from tests.support.ledgers import model


def filled(value, dtype, shape=(2, 3)):
    tensor = torch.zeros(shape, dtype=dtype)
    tensor.view(-1)[0] = value
    return {"w": tensor}


OUT_OF_RANGE = [
    (3.4e38, torch.float32, (2, 3)),
    (1.2e19, torch.float32, (2, 3)),  # √(3.4e38 / 3) = 1.06e19
    (1e18, torch.float32, (2, 1000)),  # √(3.4e38 / 1000) = 5.8e17
    (1e300, torch.float64, (2, 3)),
    (60_000, torch.float16, (2,)),
    (3e38, torch.bfloat16, (2,)),
    (2**62, torch.int64, (2,)),
    (-(2**62), torch.int64, ()),
]


@pytest.mark.parametrize(("value", "dtype", "shape"), OUT_OF_RANGE)
def test_values_out_of_range_for_their_dtype_and_shape_are_refused(value, dtype, shape):
    bad = filled(value, dtype, shape)
    for check in (lambda: check_finite(bad, "here"), lambda: check_alike(bad, filled(0, dtype, shape), "here")):
        with pytest.raises(ModelError, match=r"here: tensor 'w' has values from .* so that averages stay finite"):
            check()


@pytest.mark.parametrize(("value", "wanted"), [(300.0, torch.int8), (-1.0, torch.uint8), (2.0**60, torch.int64)])
def test_values_that_the_global_models_dtype_cannot_hold_are_refused(value, wanted):
    with pytest.raises(ModelError, match="so that averages stay finite"):
        check_alike(filled(value, torch.float32), filled(0, wanted), "here")


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(2.0**59, torch.float32), (16_000, torch.float16), (2**53, torch.int64), (127, torch.int8), (1, torch.bool)],
)
def test_large_values_within_the_range_are_taken(value, dtype):
    assert check_alike(filled(value, dtype), filled(0, dtype), "here") == (value if dtype.is_floating_point else 0)


def test_one_client_out_of_all_proportion_is_named_and_many_are_not():
    assert list(out_of_proportion({"a": 1.0, "b": 1e12, "c": 2.0}, 1.0)) == ["b"]
    assert list(out_of_proportion({"a": 1e12}, 1.0)) == ["a"]
    assert out_of_proportion({"a": 1e12, "b": 2e12, "c": 3e12}, 1.0) == {}
    assert out_of_proportion({"a": 1e12, "b": 1.0}, 1e9) == {}
    assert out_of_proportion({"a": 1e6, "b": 0.0}, 0.0) == {}


def test_a_model_out_of_proportion_is_quarantined_when_the_round_ends_and_the_others_are_kept(tmp_path):
    recorder = record_into(tmp_path / "l")
    recorder.start_round(filled(1, torch.float32), asked=["a", "b", "c"])
    for name, value in (("a", 1.0), ("b", 1e17), ("c", 2.0)):
        recorder.client_model(name, filled(value, torch.float32), 5)
    recorder.end_round()
    ledger = Ledger.verify(tmp_path / "l")
    entry, round_ = ledger.entries[0], ledger.open_round(0)
    assert (entry.answered, entry.participants, entry.quarantined) == ((0, 2), (0, 2), (1,))
    assert "an average would lose them" in entry.quarantine_reasons[0]
    assert {k: float(found["w"][0, 0]) for k, found in round_.client_models.items()} == {0: 1.0, 2: 2.0}


def test_a_strict_recording_refuses_what_is_out_of_proportion(tmp_path):
    writer = LedgerWriter.create(tmp_path / "l", aggregation="uniform")
    answers = {"a": Answer(filled(1, torch.float32), 1), "b": Answer(filled(1e17, torch.float32), 1)}
    with pytest.raises(ModelError, match="client 'b': has values up to 1e\\+17"):
        writer.record_round(filled(1, torch.float32), answers)
    assert Ledger.verify(tmp_path / "l").n_rounds == 0


def nested():
    return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])


EXOTIC = {
    "meta": lambda: torch.zeros(2, 3, device="meta"),
    "nested": nested,
    "quantized": lambda: torch.quantize_per_tensor(torch.zeros(2, 3), 0.1, 0, torch.qint8),
    "sparse": lambda: torch.zeros(2, 3).to_sparse(),
    "made to fail": lambda: Failing(torch.zeros(2, 3)),
}


class Failing(torch.Tensor):
    """A tensor whose bytes nobody can have."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.contiguous:
            raise RuntimeError("no bytes for you")
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", EXOTIC)
def test_a_tensor_of_a_kind_that_cannot_be_stored_costs_the_client_not_the_round(tmp_path, kind):
    like = {"a": torch.ones(4), "w": torch.zeros(2, 3)}
    recorder = record_into(tmp_path / "l")
    recorder.start_round(like, asked=["good", "odd", "also good"])
    recorder.client_model("good", like, 5)
    recorder.client_model("odd", {**like, "w": EXOTIC[kind]()}, 5)
    recorder.client_model("also good", like, 5)
    recorder.end_round()
    ledger = Ledger.verify(tmp_path / "l")
    assert (ledger.entries[0].answered, ledger.entries[0].quarantined) == ((0, 2), (1,))
    assert torch.equal(ledger.open_round(0).client_models[2]["a"], like["a"])


def test_a_negated_view_is_stored_as_the_values_it_shows(tmp_path):
    view = torch.tensor([[1 + 2j, 3 + 4j]]).conj().imag
    assert view.is_neg()
    recorder = record_into(tmp_path / "l")
    recorder.start_round({"w": torch.zeros(1, 2)}, asked=["a"])
    recorder.client_model("a", {"w": view}, 5)
    recorder.end_round()
    assert Ledger.verify(tmp_path / "l").open_round(0).client_models[0]["w"].tolist() == [[-2.0, -4.0]]


def test_a_difference_is_added_only_to_a_tensor_of_its_own_shape():
    start = {"w": torch.ones(3, 1)}
    assert with_difference(start, {"w": torch.ones(3, 1)})["w"].tolist() == [[2.0]] * 3
    for difference in (torch.ones(1, 12_000), torch.ones(3), torch.tensor(1.0)):
        with pytest.raises(ModelError, match=r"a difference of shape .* for 'w', expected \(3, 1\)"):
            with_difference(start, {"w": difference})
    with pytest.raises(ModelError, match="which the global model does not have"):
        with_difference(start, {"v": torch.ones(1)})


@pytest.mark.parametrize(
    "check", [lambda m: check_finite(m, "here"), lambda m: check_alike(m, {"0": torch.ones(2)}, "here")]
)
def test_trees_sent_as_bytes_are_refused_with_the_reason(check):
    with pytest.raises(
        ModelError, match=r"here: holds bytes, not weights, .* trees have no mean, .* trees=fedworth.Trees"
    ):
        check({"0": torch.arange(200, dtype=torch.uint8)})


@pytest.mark.parametrize("count", [1, 5, 10**12, 5.0, np.int64(5), np.uint8(5), np.float32(5), np.float64(5)])
def test_whole_numbers_of_any_kind_are_counts(count):
    found = checked_count(count, "samples", "here")
    assert (found, type(found)) == (int(count), int)


IMPLAUSIBLE = [0, -1, 0.5, 1e-18, 1e-300, 2.5, 10**12 + 1, 1e300, 10**400, float("nan"), float("inf"), True, "5", None]
IMPLAUSIBLE += [np.float64("nan"), np.int64(-3), np.bool_(True), Fraction(1, 2), np.array([5])]


@pytest.mark.parametrize("count", IMPLAUSIBLE)
def test_what_is_no_count_is_refused_with_what_was_found(count):
    with pytest.raises(ModelError, match=r"here: its number of samples is .*expected"):
        checked_count(count, "samples", "here")


def test_weights_may_be_any_number_in_float64s_reach():
    assert checked_count(0.25, "weights", "here") == 0.25
    for weight in (0, 1e-18, 1e18, float("nan")):
        with pytest.raises(ModelError, match="its number of samples is"):
            checked_count(weight, "weights", "here")
    assert checked_count(0, "any", "here") == 0


@pytest.mark.parametrize("count", [1e-18, 0.5, 2**60])
def test_a_client_that_reports_no_count_is_quarantined_alone(tmp_path, count):
    recorder = record_into(tmp_path / "l")
    recorder.start_round(model(1), asked=["a", "b"])
    recorder.client_model("a", model(2), np.int64(7))
    recorder.client_model("b", model(3), count)
    recorder.end_round()
    entry = Ledger.verify(tmp_path / "l").entries[0]
    assert (entry.answered, entry.sample_counts, entry.quarantined) == ((0,), (7,), (1,))
    assert "expected a whole number from 1 to 10^12" in entry.quarantine_reasons[0]


def test_a_server_that_weighs_by_something_else_says_so_once(tmp_path):
    for is_resumed in (False, True):
        recorder = record_into(tmp_path / "l", real_weights=not is_resumed, resume=is_resumed)
        recorder.start_round(model(1), asked=["a"])
        recorder.client_model("a", model(2), 0.125)
        recorder.end_round()
        recorder.release()
    assert [entry.sample_counts for entry in Ledger.open(tmp_path / "l").entries] == [(0.125,), (0.125,)]
