"""Names of choices: each is known in one place, and whatever is not one of them is refused with the nearest that is."""

from typing import Any

import pytest

from fedworth.completion.factors import FactorSettings
from fedworth.errors import UsageError, ValuationError
from fedworth.games.planning.choose import PlanSettings
from fedworth.names import CHOICES, checked_name
from fedworth.pipeline.stages import ValuingSettings
from fedworth.report.tables import LABELS
from fedworth.simulation.settings import SimulationSettings
from fedworth.valuation.valuation import BASES, valuation_from


@pytest.mark.parametrize("choice", CHOICES)
def test_a_name_is_given_back_and_a_slip_is_refused_with_the_nearest_name(choice):
    for name in CHOICES[choice]:
        assert checked_name(choice, name) == name
    with pytest.raises(UsageError, match=f"unknown {choice} '{name}x': did you mean '{name}'"):
        checked_name(choice, f"{name}x")


def test_what_is_listed_by_name_has_all_the_names():
    assert set(BASES) == set(LABELS) == set(CHOICES["measure of worth"])


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (ValuingSettings, "weighting"),
        (ValuingSettings, "oracle"),
        (ValuingSettings, "unseen"),
        (FactorSettings, "penalty_kind"),
        (PlanSettings, "sampler"),
        (SimulationSettings, "partition"),
        (SimulationSettings, "aggregation"),
        (SimulationSettings, "schedule"),
    ],
)
def test_settings_refuse_an_unknown_name_before_anything_is_done(settings: Any, field):
    with pytest.raises(UsageError, match=r"unknown .* 'nonsense'"):
        settings(**{field: "nonsense"})


def test_a_valuation_by_an_unknown_method_is_none():
    document: dict[str, Any] = {
        "method": "nonsense",
        "clients": [],
        "values": [],
        "standard_errors": None,
        "completion": None,
    }
    with pytest.raises(ValuationError, match="unknown measure of worth 'nonsense'"):
        valuation_from({**document, "warnings": []})
