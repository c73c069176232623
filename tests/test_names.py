"""A name is checked against its choices, and a wrong one is refused with the nearest choice."""

from typing import Any, Literal, get_args, get_origin

import pytest

from fedworth import names
from fedworth.completion.settings import FactorSettings
from fedworth.errors import UsageError
from fedworth.names import checked_name
from fedworth.simulation.settings import SimulationSettings
from fedworth.valuation.settings import ValuationSettings


@pytest.mark.parametrize("choice", [found for found in vars(names).values() if get_origin(found) is Literal])
def test_a_name_is_given_back_and_a_slip_is_refused_with_the_nearest_name(choice):
    for name in get_args(choice):
        assert checked_name("name", choice, name) == name
    with pytest.raises(UsageError, match=f"unknown name '{name}x': did you mean '{name}'"):
        checked_name("name", choice, f"{name}x")


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (ValuationSettings, "weighting"),
        (ValuationSettings, "oracle"),
        (ValuationSettings, "unseen"),
        (FactorSettings, "penalty_kind"),
        (SimulationSettings, "partition"),
        (SimulationSettings, "aggregation"),
        (SimulationSettings, "schedule"),
    ],
)
def test_settings_refuse_an_unknown_name(settings: Any, field):
    with pytest.raises(UsageError, match=r"unknown .* 'nonsense'"):
        settings(**{field: "nonsense"})
