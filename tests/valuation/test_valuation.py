"""The valuation as an artefact: shares, ranks, and the same after JSON."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.errors import ValuationError
from fedworth.valuation.methods import METHODS
from fedworth.valuation.ranking import EQUAL, rank_correlation
from fedworth.valuation.uncertainty import uncertainty
from fedworth.valuation.valuation import Valuation

VALUES = st.lists(st.floats(-1e300, 1e300) | st.just(math.nan), min_size=1, max_size=8)


def valuation(*values, **more):
    return Valuation("fedsv", tuple(str(k) for k in range(len(values))), np.array(values), **more)


def test_shares_are_parts_of_the_positive_values():
    shares = valuation(3.0, -2.0, 1.0, math.nan).shares
    assert shares == pytest.approx([0.75, 0, 0.25, math.nan], nan_ok=True)


def test_without_a_positive_value_there_are_no_shares():
    assert np.isnan(valuation(-1.0, 0.0, math.nan).shares).all()


@given(VALUES)
def test_shares_add_up_to_one_and_are_never_negative(values):
    shares = valuation(*values).shares
    known = shares[~np.isnan(shares)]
    assert (known >= 0).all()
    assert len(known) == 0 or known.sum() == pytest.approx(1)


def test_equal_values_share_a_rank_and_the_next_rank_is_skipped():
    assert valuation(1.0, 5.0, math.nan, 5.0, -2.0).ranks == (3, 1, None, 1, 4)
    assert valuation(1.0, 5.0, 5.0 * (1 + EQUAL / 2)).ranks == (3, 1, 1)  # the same but for rounding


@given(VALUES)
def test_a_better_rank_is_a_value_larger_by_more_than_rounding(values):
    ranks = valuation(*values).ranks
    slack = EQUAL * max((abs(v) for v in values if not math.isnan(v)), default=0)
    for v, r in zip(values, ranks, strict=True):
        assert (r is None) == math.isnan(v)
        for w, q in zip(values, ranks, strict=True):
            if r is not None and q is not None:
                assert (r < q) <= (v > w)
                assert (r < q) or v <= w + 2 * slack


@given(VALUES, st.booleans())
def test_a_valuation_comes_back_from_json_to_the_bit(values, with_errors):
    known = uncertainty(np.clip(values, -1e6, 1e6), np.diag(np.minimum(np.abs(values), 1))) if with_errors else None
    before = valuation(*values, uncertainty=known, completion={"rank": 2}, notes=("careful",))
    text = json.dumps(before.document(), allow_nan=False)
    after = Valuation.from_document(json.loads(text))
    assert after.document() == before.document()
    assert np.array_equal(after.values, before.values, equal_nan=True)
    assert (after.clients, after.notes, after.completion) == (before.clients, ("careful",), {"rank": 2})


def test_the_document_has_the_promised_keys():
    document = valuation(1.0, math.nan).document()
    promised = {
        "method",
        "clients",
        "values",
        "standard_errors",
        "completion",
        "notes",
        "uncertainty",
        "shares",
        "ranks",
    }
    assert promised <= set(document)
    assert document["values"] == [1.0, None]
    assert document["standard_errors"] is None


@pytest.mark.parametrize("document", [{}, {"method": "fedsv"}, {"standard_errors": None, "method": 1, "clients": 2}])
def test_what_is_not_a_valuation_is_refused(document):
    with pytest.raises(ValuationError, match="not a valuation"):
        Valuation.from_document(document)


def test_values_of_the_wrong_number_or_infinite_are_refused():
    with pytest.raises(ValuationError, match="expected"):
        Valuation("fedsv", ("a",), np.zeros(2))
    with pytest.raises(ValuationError, match="infinite"):
        valuation(math.inf)


def test_every_method_says_what_it_measures():
    assert all(text.label and text.description for text in METHODS.values())
    assert valuation(1.0).label == "FedSV"
    assert valuation(1.0).description.startswith("earned")


def test_rank_correlation_takes_values_that_differ_by_rounding_for_equal():
    truth = [3.0, 1.0, 2.0, 1.0]
    assert rank_correlation(truth, truth) == pytest.approx(1)
    assert rank_correlation([3.0, 1.0, 2.0, 1.0 + 1e-16], truth) == pytest.approx(1)
    assert rank_correlation([3.0, 1.0 - 1e-15, 2.0, 1.0 + 1e-15], truth) == pytest.approx(1)
    assert (rank_correlation([3.0, 0.9, 2.0, 1.0], truth) or 0) < 1


def test_rank_correlation_leaves_out_who_has_no_value_and_says_nothing_of_a_constant():
    assert rank_correlation([1.0, np.nan, 2.0, 3.0], [1.0, 9.0, 2.0, 3.0]) == pytest.approx(1)
    assert rank_correlation([1.0, 1.0 + 1e-15], [1.0, 2.0]) is None
