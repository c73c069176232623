"""An outside check: pyDVL's exact values of one completed game (`tools/outside.py` made them in an environment of its
own), and ours of the same utilities."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedworth.valuation.rivals.concepts import (
    SLACK,
    banzhaf_values,
    beta_shapley_values,
    least_core_values,
    least_objection,
)
from fedworth.valuation.shapley import shapley_values

KEPT = json.loads((Path(__file__).parents[2] / "golden" / "g9_pydvl.json").read_text())
UTILITIES = np.array(KEPT["utilities"])


@pytest.mark.parametrize(
    ("name", "ours"), [("shapley", shapley_values), ("banzhaf", banzhaf_values), ("beta-shapley", beta_shapley_values)]
)
def test_pydvl_finds_the_same_semivalues(name, ours):
    assert ours(UTILITIES) == pytest.approx(KEPT[name], abs=1e-12)


def test_pydvl_finds_the_same_least_core():
    """Payments may differ by the hair's breadth that ours has: it moves them by a few times the slack."""
    scale = np.abs(UTILITIES).max()
    assert least_objection(UTILITIES) == pytest.approx(KEPT["least-objection"], abs=1e-9)
    assert least_core_values(UTILITIES) == pytest.approx(KEPT["least-core"], abs=10 * SLACK * scale)
