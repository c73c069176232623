"""What values show: a client far below the others, and one that harms; nothing where nothing is odd."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedworth.completion.completion import Caveat, heard_once
from fedworth.findings import HARM, LOW_VALUE, NEGATIVE, value_findings
from fedworth.valuation.federation import value
from fedworth.valuation.marginals import Marginals
from fedworth.valuation.settings import ValuationSettings
from fedworth.valuation.uncertainty import uncertainty
from fedworth.valuation.valuation import Valuation
from tests.support.games import matrix_of

ALIKE = [1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 1.0, 1.03]


def valued(values, deviation=0.05, completion=None, caveats=(), large=None):
    names, found = tuple(str(k) for k in range(len(values))), np.array(values, dtype=float)
    known = uncertainty(found, np.eye(len(found)) * deviation**2, caveats=caveats) if deviation else None
    rests_on = Marginals(found if large is None else np.array(large), ((),) * len(found))
    summary = {} if completion is None else completion
    return Valuation("comfedsv", names, found, summary, (), known, marginals=rests_on)


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
    assert found.confidence == pytest.approx(1 - 4 * stats.norm.cdf(-3))  # any of the four could have been named


def test_the_chance_of_harm_is_student_s_where_the_test_set_makes_the_error():
    """Ten blocks of test samples: nine degrees of freedom."""
    values, nothing = np.array([0.5, 0.2, 0.3, -0.3]), np.zeros((4, 4))
    known = uncertainty(values, nothing, test_set=np.eye(4) * 0.1**2, degrees=9)
    made = Valuation("comfedsv", tuple("abcd"), values, uncertainty=known, marginals=Marginals(values, ((),) * 4))
    (found,) = value_findings(made)
    assert found.confidence == pytest.approx(1 - 4 * stats.t.cdf(-3, 9))
    wider = replace(known, half_widths=known.half_widths * 1.6, standard_deviations=known.standard_deviations * 1.6)
    assert wider.intervals(values)[3, 1] < 0
    assert kinds(replace(made, uncertainty=wider)) == []  # −0.3 ± 0.29, but one of four may do so by chance


def test_honest_clients_are_rarely_accused_however_many_there_are():
    """Federations of twenty clients whose true values are zero: one in ten has a finding of harm."""
    rng = np.random.default_rng(5)
    made = [valued(rng.normal(0, 0.05, 20), large=-np.ones(20)) for _ in range(200)]
    accused = [any(kind is HARM for kind, _ in kinds(valuation)) for valuation in made]
    assert 0 < sum(accused) <= 0.15 * len(accused)


def test_a_negative_value_is_no_harm_unless_large_coalitions_agree():
    (found,) = value_findings(valued([0.5, 0.2, 0.1, -0.3], large=[0.1, 0.1, 0.1, 0.2]))
    assert (found.kind, found.clients) == (NEGATIVE, ("3",))
    assert "made the model worse" not in found.sentence
    assert "to which it adds +0.2" in found.sentence


def federation_with(first):
    """Three rounds of four clients, each of which adds 1 to any coalition; client 0 alone has `first` in round 1."""
    sizes = np.bitwise_count(np.arange(16, dtype=np.uint32)).astype(float)
    rounds = np.stack([sizes] * 3)
    rounds[0, 1] = first
    return matrix_of(rounds, np.ones((3, 4), dtype=bool))


def test_the_few_coalitions_that_decide_a_value_are_named():
    on_test_set = ValuationSettings(interval="test-set")
    made = value(federation_with(-81.0), "fedsv", on_test_set)
    assert made.values[0] == pytest.approx(3 - 82 / 4)
    assert made.marginals is not None
    assert made.marginals.large == pytest.approx([3, 3, 3, 3])
    (found,) = value_findings(made)
    assert (found.kind, found.clients) == (NEGATIVE, ("a",))
    assert "One coalition decides the value: its model alone in round 1 (116 % of the value)" in found.sentence
    plain = value(federation_with(1.0), "fedsv", on_test_set).marginals
    assert plain is not None
    assert plain.deciding == ((),) * 4


def test_nobody_is_accused_by_an_interval_that_is_too_narrow():
    low, harmful = [*ALIKE, 0.3, 0.2], [0.5, 0.2, -0.2, -0.3]
    assert kinds(valued(low, caveats=(heard_once(["9"]),))) == [(LOW_VALUE, ("10",))]
    assert kinds(valued(harmful, caveats=(heard_once(["3"]),))) == [(HARM, ("2",))]
    assert kinds(valued(harmful, caveats=(Caveat((), "all are too narrow"),))) == []


def test_many_that_harm_are_one_finding():
    (found,) = value_findings(valued([*np.linspace(-3, -1, 10), 1, 2, 3, 4, 5]))
    assert len(found.clients) == 10
    assert found.sentence.startswith("Clients '0', '1', '2', '3', '4', '5', '6', '7' and 2 more made the model worse: ")


def test_a_value_is_never_certain_even_if_it_is_exact_on_its_test_set():
    values = np.array([1.0, -1.0])
    known = uncertainty(values, np.zeros((2, 2)))
    exact = Valuation("fedsv", ("a", "b"), values, uncertainty=known, marginals=Marginals(values, ((), ())))
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
