"""The learning rate of every round: constant, decaying, or as in Proposition 2."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.errors import UsageError
from fedworth.simulation.settings import Schedule

positive = st.floats(1e-3, 1e3)


def test_a_constant_rate_stays():
    assert [Schedule(rate=0.3).at(t) for t in range(3)] == [0.3, 0.3, 0.3]


def test_a_decaying_rate_falls_as_one_over_one_plus_decay_times_round():
    assert [Schedule("decay", 0.4, decay=1.0).at(t) for t in range(3)] == [0.4, 0.2, pytest.approx(0.4 / 3)]


def test_the_printed_gamma_and_the_one_of_li_et_al_differ():
    printed = Schedule("proposition-2", convexity=0.5, smoothness=2.0)
    of_li = Schedule("proposition-2-li", convexity=0.5, smoothness=2.0)
    assert (printed.gamma, of_li.gamma) == (2.0, 32.0)
    assert printed.at(0) == pytest.approx(2 / (0.5 * (2 + 1)))  # t = 1 in the first round
    assert of_li.at(4) == pytest.approx(2 / (0.5 * (32 + 5)))


def test_gamma_is_at_least_one():
    assert Schedule("proposition-2", convexity=0.01, smoothness=1.0).gamma == 1.0


@given(positive, positive, st.sampled_from(["proposition-2", "proposition-2-li"]))
def test_the_rate_of_proposition_2_falls_and_at_most_halves_in_any_doubling_of_time(convexity, smoothness, name):
    """As Li et al. require: η^t non-increasing, and η^t ≤ 2 η^{2t}, for γ ≥ 0."""
    schedule = Schedule(name, convexity=convexity, smoothness=smoothness)
    rates = [schedule.at(t) for t in range(20)]
    assert all(a > b > 0 for a, b in pairwise(rates))
    assert all(rates[t - 1] <= 2 * rates[2 * t - 1] for t in range(1, 10))


def test_an_unknown_schedule_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match=r"unknown learning-rate schedule 'constnt': did you mean 'constant'\?"):
        Schedule("constnt")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({"rate": 0.0}, "needs a rate > 0"),
        ({"rate": float("nan")}, "needs a rate > 0"),
        ({"name": "decay", "decay": -1.0}, "a decay ≥ 0"),
        ({"name": "proposition-2"}, "needs μ > 0 and L₂ > 0, found μ = 0.0, L₂ = 0.0"),
        ({"name": "proposition-2-li", "convexity": 1.0}, "needs μ > 0 and L₂ > 0"),
    ],
)
def test_a_rate_that_cannot_be_is_refused(schedule, message):
    with pytest.raises(UsageError, match=message):
        Schedule(**schedule)
