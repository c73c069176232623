"""What values by group show: clients that help unusually many groups, and whom a harmful client harms."""

from dataclasses import replace

import numpy as np
import pytest

from fedworth.findings import HARM, MANY_GROUPS, NEGATIVE, looked_for_in_values, value_findings
from fedworth.valuation.groups import GroupValues
from fedworth.valuation.marginals import Marginals
from fedworth.valuation.uncertainty import uncertainty
from fedworth.valuation.valuation import Valuation


def valued(parts, deviation=0.02):
    """A valuation with these values by group, (n_clients, n_groups)."""
    parts = np.array(parts, dtype=float)
    values, names = parts.sum(axis=1), tuple(str(k) for k in range(parts.shape[1]))
    errors = np.full(parts.shape, deviation)
    shares = np.full(len(names), 1 / len(names))
    groups = GroupValues(names, shares, parts, errors, 1.7 * errors, "class")
    known = uncertainty(values, np.eye(len(values)) * deviation**2)
    names, rests_on = tuple(map(str, range(len(values)))), Marginals(values, ((),) * len(values))
    return Valuation("comfedsv-models", names, values, uncertainty=known, groups=groups, marginals=rests_on)


def few_classes(n_clients=10, n_classes=10, seed=0):
    """Each client helps two classes and harms the others, about as much."""
    rng = np.random.default_rng(seed)
    parts = -rng.uniform(0.1, 0.3, (n_clients, n_classes))
    for k in range(n_clients):
        parts[k, [k % n_classes, (k + 3) % n_classes]] = rng.uniform(0.6, 1.0, 2)
    return parts


def many(valuation):
    return [found.clients for found in value_findings(valuation) if found.kind is MANY_GROUPS]


def test_a_client_that_harms_hardly_any_group_is_found_among_clients_with_few():
    parts = few_classes()
    assert many(valued(parts)) == []
    parts[4] = np.abs(parts[4])
    parts[4, 0] = -0.05
    assert many(valued(parts)) == [("4",)]
    (found,) = (found for found in value_findings(valued(parts)) if found.kind is MANY_GROUPS)
    assert found.evidence["own"] == pytest.approx(100 * (1 - 0.05 / np.abs(parts[4]).sum()))
    assert "98" in found.sentence
    assert many(valued(parts, deviation=0.5)) == []  # nothing is clear


def test_it_is_not_looked_for_where_clients_know_most_groups_or_are_few():
    parts = np.abs(few_classes())
    assert MANY_GROUPS not in looked_for_in_values(valued(parts))
    assert MANY_GROUPS not in looked_for_in_values(valued(few_classes(4)))
    assert MANY_GROUPS in looked_for_in_values(valued(few_classes()))


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ([-0.5, -0.5, -0.5], "It clearly harms every class."),
        ([-0.5, -0.5, 0.01], "It clearly harms 2 of 3 by class, and helps none."),
        ([-0.9, -0.5, 0.5], "It clearly helps class 2 (it alone helps 2) and harms 2 of 3: its data are unlike"),
        ([-0.9, 0.5, -0.5], "It clearly helps class 1 and harms 2 of 3: its data are unlike"),
    ],
)
def test_a_finding_of_harm_or_a_negative_value_says_whom_the_client_harms_and_helps(own, said):
    made = valued([[1.0, 1.0, -0.1], [1.0, 1.0, 0.01], own])
    helpful = replace(made, marginals=Marginals(np.ones(3), ((),) * 3))  # to large coalitions
    for valuation, kind in ((made, HARM), (helpful, NEGATIVE)):
        (found,) = (found for found in value_findings(valuation) if found.kind is kind)
        assert found.clients == ("2",)
        assert said in found.sentence
        assert found.document()["sentence"] == found.sentence
