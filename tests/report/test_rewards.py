"""Rewards: exact to the cent, whatever the values are; and rules that do what they promise."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.errors import ArtefactError, UsageError, ValuationError
from fedworth.report.rewards import Rewards, rewards_of, split
from fedworth.report.settings import SENTENCES, RewardSettings, cents_of
from fedworth.valuation.uncertainty import uncertainty
from fedworth.valuation.valuation import Valuation


def valuation(*values: float, errors: list[float] | None = None) -> Valuation:
    clients = tuple(f"c{k}" for k in range(len(values)))
    known = None if errors is None else uncertainty(np.array(values), np.diag(np.array(errors) ** 2))
    return Valuation("comfedsv-models", clients, np.array(values), completion={"kind": "models"}, uncertainty=known)


numbers = st.floats(-1e3, 1e3, allow_nan=False)


@given(st.lists(numbers, min_size=1, max_size=12), st.integers(1, 10**14), st.sampled_from(("floor", "softmax")))
def test_the_whole_pool_is_paid_to_the_cent(values, cents, rule):
    if rule == "floor" and max(values) <= 0:
        values = [*values, 1.0]
    made = rewards_of(valuation(*values), f"{cents // 100}.{cents % 100:02d}", RewardSettings(rule))
    assert sum(made.cents) == cents
    assert min(made.cents) >= 0


@given(st.lists(st.fractions(0, 100), min_size=1, max_size=9).filter(any), st.integers(0, 10**9))
def test_nobody_is_a_cent_from_its_quota(weights, cents):
    paid = split(cents, weights)
    assert sum(paid) == cents
    assert all(abs(p - cents * w / sum(weights)) < 1 for p, w in zip(paid, weights, strict=True))


def test_the_rest_goes_to_the_largest_remainders():
    assert split(100, [Fraction(1), Fraction(1), Fraction(1)]) == [34, 33, 33]
    assert split(10, [Fraction(166, 100), Fraction(167, 100), Fraction(667, 100)]) == [1, 2, 7]


def test_values_below_zero_get_nothing_by_the_positive_part():
    assert rewards_of(valuation(3.0, -5.0, 1.0), "4").cents == (300, 0, 100)


def test_sums_near_zero_do_no_harm():
    assert rewards_of(valuation(1.0, -1.0 + 1e-12), "10").cents == (1000, 0)


def test_a_floor_pays_for_taking_part_even_where_data_harm():
    made = rewards_of(valuation(1.0, -1.0, float("nan")), "100", RewardSettings("floor", floor=0.2))
    assert made.cents == (9000, 1000, 0)
    assert "without a value, and so without a reward: c2" in made.notes[-1]


def test_the_lower_end_pays_what_is_certain():
    made = rewards_of(valuation(2.0, 2.0, errors=[0.0, 1.0]), "100", RewardSettings("lower"))
    low = 2 - 1.6448536269514722
    assert made.cents[1] == pytest.approx(10000 * low / (2 + low), abs=1)


def test_softmax_keeps_the_order_and_leaves_nobody_out():
    made = rewards_of(valuation(1.0, 0.0, -1.0), "100", RewardSettings("softmax"))
    assert made.cents[0] > made.cents[1] > made.cents[2] > 0
    assert rewards_of(valuation(0.5, 0.5), "1", RewardSettings("softmax")).cents == (50, 50)


@pytest.mark.parametrize("rule", SENTENCES)
def test_equal_clients_get_the_same(rule):
    """Symmetry: an even pool, so that no cent is left over; equal costs, where costs count."""
    settings = RewardSettings(rule, cost=("c0=0.30", "c1=0.30") if rule == "cost" else ())
    made = rewards_of(valuation(1.0, 1.0, errors=[0.1, 0.1]), "2", settings)
    assert made.cents == (100, 100)


def test_a_rule_with_nothing_to_split_by_is_refused():
    with pytest.raises(ValuationError, match="no client's value is above zero"):
        rewards_of(valuation(-1.0, -2.0), "10")
    with pytest.raises(ValuationError, match="needs intervals"):
        rewards_of(valuation(1.0, 2.0), "10", RewardSettings("lower"))


@pytest.mark.parametrize(
    ("errors", "said"),
    [([5.0, 5.0], "cannot tell the clients apart"), ([0.3, 0.3], "fine shares are not justified"), (None, "not known")],
)
def test_the_one_who_pays_is_told_when_fine_shares_are_not_justified(errors, said):
    assert said in rewards_of(valuation(1.0, 2.0, errors=errors), "10").notes[0]
    assert rewards_of(valuation(1.0, 2.0, errors=[0.01, 0.01]), "10").notes == ()


ODD = ["1500,50", "1,500.50", "1_500", "1.500.50", "1e3", " 15", "+15", "15.", ".5", "١٥", "0x10", "15\n"]


@pytest.mark.parametrize("pool", ["0", "-1", "1.005", "ten", "nan", "inf", "", *ODD])
def test_a_pool_is_an_amount_of_money(pool):
    with pytest.raises(UsageError, match="expected an amount"):
        cents_of(pool)


@pytest.mark.parametrize("pool", ["1500.5", "1500.50", "1500.500", Decimal("1500.5"), Decimal("15005E-1")])
def test_plain_digits_are_an_amount(pool):
    assert cents_of(pool) == 150_050
    assert cents_of(Decimal("1E3")) == cents_of(1000) == 100_000


def test_settings_out_of_range_are_refused():
    with pytest.raises(UsageError, match="did you mean 'floor'"):
        RewardSettings("flor")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--floor"):
        RewardSettings(floor=1.5)
    with pytest.raises(UsageError, match="--temperature"):
        RewardSettings(temperature=0)


def test_rewards_are_read_back():
    made = rewards_of(valuation(3.0, 1.0), "4", unit="EUR")
    assert Rewards.from_document(made.document()) == made
    assert made.amount("c0") == "3.00 EUR"
    with pytest.raises(ArtefactError, match="not rewards"):
        Rewards.from_document({"cents": [1]})
    with pytest.raises(ArtefactError, match="expected one each"):
        Rewards.from_document({**made.document(), "cents": [1]})


def test_declared_costs_come_first_and_the_rest_goes_by_value():
    made = rewards_of(valuation(3.0, -5.0, 1.0), "100", RewardSettings("cost", cost=("c1=20", "c2=40.50")))
    assert made.cents == (2963, 2000, 4050 + 987)
    assert sum(made.cents) == 10_000
    assert (made.for_costs("c1"), made.for_costs("c0")) == ("20.00", "")
    assert made == Rewards.from_document(made.document())


def test_costs_above_the_pool_are_paid_in_the_same_part_and_nothing_by_value():
    made = rewards_of(valuation(3.0, -5.0, 1.0), "30", RewardSettings("cost", cost=("c1=20", "c2=40")))
    assert made.cents == (0, 1000, 2000)
    assert "30.00 smaller than the declared costs" in made.notes[0]


def test_a_client_without_a_value_gets_its_costs_and_no_more():
    made = rewards_of(valuation(3.0, float("nan")), "30", RewardSettings("cost", cost=("c1=20",)))
    assert made.cents == (1000, 2000)
    assert not any("without a reward" in note for note in made.notes)


@pytest.mark.parametrize(
    ("rule", "cost"),
    [
        ("cost", ()),
        ("positive", ("c0=1",)),
        ("cost", ("c0",)),
        ("cost", ("c0=1", "c0=2")),
        ("cost", ("c0=-1",)),
        ("cost", ("=1",)),
    ],
)
def test_costs_that_cannot_be_read_are_refused(rule, cost):
    with pytest.raises(UsageError, match="--cost"):
        RewardSettings(rule, cost=cost)


def test_costs_of_an_unknown_client_are_refused():
    with pytest.raises(UsageError, match="did you mean 'c0'"):
        rewards_of(valuation(1.0), "10", RewardSettings("cost", cost=("c00=1",)))


@given(
    st.lists(numbers, min_size=2, max_size=8),
    st.integers(1, 10**9),
    st.lists(st.integers(1, 10**8), min_size=1, max_size=2),
)
def test_with_costs_too_the_whole_pool_is_paid_to_the_cent(values, cents, costs):
    told = tuple(f"c{k}={cost // 100}.{cost % 100:02d}" for k, cost in enumerate(costs))
    made = rewards_of(valuation(*values, 1.0), f"{cents // 100}.{cents % 100:02d}", RewardSettings("cost", cost=told))
    assert sum(made.cents) == cents
    if sum(costs) <= cents:
        assert all(paid >= cost for paid, cost in zip(made.cents, costs, strict=False))
