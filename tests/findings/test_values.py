"""What values show: a client far below the others, and one that harms; nothing where nothing is odd."""

import numpy as np
import pytest
from scipy import stats

from fedworth.completion.completion import Caveat, heard_once
from fedworth.findings import HARM, LOW_VALUE, value_findings
from fedworth.valuation.uncertainty import uncertainty
from fedworth.valuation.valuation import Valuation

ALIKE = [1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 1.0, 1.03]


def valued(values, deviation=0.05, completion=None, caveats=()):
    names, found = tuple(str(k) for k in range(len(values))), np.array(values, dtype=float)
    known = uncertainty(found, np.eye(len(found)) * deviation**2, caveats=caveats) if deviation else None
    return Valuation("comfedsv", names, found, {} if completion is None else completion, (), known)


def kinds(valuation):
    return [(found.kind, found.clients) for found in value_findings(valuation)]


def test_nothing_is_found_where_values_are_alike_or_differ_by_nature():
    assert kinds(valued(ALIKE)) == []
    assert kinds(valued([0.1, 0.3, 0.6, 0.9, 1.2, 1.5, 1.9, 2.2, 2.5])) == []


def test_a_value_far_below_the_others_is_found_with_its_interval_and_a_confidence():
    (found,) = value_findings(valued([*ALIKE, 0.3]))
    assert (found.kind, found.clients) == (LOW_VALUE, ("9",))
    spread = 1.4826 * np.median(np.abs(np.array(ALIKE) - 1.0))
    chance = stats.t.cdf(-0.7 / np.hypot(spread, 0.05), 0.4 * 9)
    assert found.confidence == pytest.approx(1 - 10 * chance)
    assert found.evidence == pytest.approx({"value": 0.3, "low": 0.3 - 0.0822, "high": 0.3 + 0.0822, "middle": 1}, 1e-3)


def test_a_low_value_that_may_be_far_off_is_not_named():
    assert kinds(valued([*ALIKE, 0.3], deviation=0.5)) == []


def test_two_noisy_clients_do_not_hide_each_other():
    assert kinds(valued([*ALIKE, 0.2, 0.1])) == [(LOW_VALUE, ("9",)), (LOW_VALUE, ("10",))]


def test_a_value_whose_interval_lies_below_zero_harms():
    (found,) = value_findings(valued([0.5, 0.2, -0.1, -0.3], deviation=0.1))
    assert (found.kind, found.clients) == (HARM, ("3",))
    assert found.confidence == pytest.approx(stats.norm.cdf(3))


def test_nobody_is_accused_by_an_interval_that_is_too_narrow():
    low, harmful = [*ALIKE, 0.3, 0.2], [0.5, 0.2, -0.2, -0.3]
    assert kinds(valued(low, caveats=(heard_once("9"),))) == [(LOW_VALUE, ("10",))]
    assert kinds(valued(harmful, caveats=(heard_once("3"),))) == [(HARM, ("2",))]
    assert kinds(valued(harmful, caveats=(Caveat(None, "all are too narrow"),))) == []


def test_many_that_harm_are_one_finding():
    (found,) = value_findings(valued([*np.linspace(-3, -1, 10), 1, 2, 3, 4, 5]))
    assert len(found.clients) == 10
    assert found.sentence.startswith("Clients '0', '1', '2', '3', '4', '5', '6', '7' and 2 more made the model worse: ")


def test_a_value_is_never_certain_even_if_it_is_exact_on_its_test_set():
    values = np.array([1.0, -1.0])
    exact = Valuation("fedsv", ("a", "b"), values, uncertainty=uncertainty(values, np.zeros((2, 2))))
    (found,) = value_findings(exact)
    assert found.clients == ("b",)
    assert found.confidence < 1
    assert "certain" not in found.sentence
    assert value_findings(Valuation("fedsv", ("a", "b"), values)) == ()


def test_of_values_whose_errors_are_not_known_nothing_is_said():
    assert kinds(valued([*ALIKE, -5.0], deviation=0)) == []


def test_few_clients_and_clients_without_a_value_are_left_out():
    assert kinds(valued([1.0, 1.0, 1.1, 0.2])) == []
    assert kinds(valued([*ALIKE, np.nan])) == []
