"""An outside check: pyDVL's exact values of one completed game (`tools/outside.py` made them in an environment of its
own), and ours of the same utilities."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedworth.coalitions import coalitions_of
from fedworth.valuation.rivals.concepts import (
    SLACK,
    banzhaf_values,
    beta_shapley_values,
    least_core_of,
    least_core_values,
)
from fedworth.valuation.shapley import shapley_values

KEPT = json.loads((Path(__file__).parents[2] / "golden" / "g9_pydvl.json").read_text())
UTILITIES = np.array(KEPT["utilities"])


def least_objection(utilities):
    """e: how much the least content coalition must go without."""
    n = len(utilities).bit_length() - 1
    members = coalitions_of(np.arange(n), n)[1:-1].astype(float)
    return least_core_of(members, utilities[1:-1], float(utilities[-1]))[1]


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
