"""The benchmark of vertical federations: values of one training against training every coalition again."""

import importlib

import numpy as np
import pytest

vertical = importlib.import_module("benchmarks.vertical")  # a script, of no package


def test_a_refitted_head_agrees_with_training_again_and_sees_what_the_task_party_has():
    rows = vertical.agreement("task party", "concatenation", "logistic", False, 1000)
    found = vertical.correlations(rows, ["task"]).loc["task party"]
    assert found["refitted-head, given 0"] > 0.9
    assert found["refitted-head, given 0"] > found["verfedsv, given 0"]


def test_values_given_a_client_are_those_of_the_others():
    additive = np.array([1.0 * (c & 1) + 2 * (c >> 1 & 1) + 4 * (c >> 2 & 1) for c in range(8)])
    assert vertical.values_given(additive, 1) == pytest.approx([1, np.nan, 4], nan_ok=True)


@pytest.mark.parametrize(
    ("task", "n_clients"), [("independent", 6), ("overlapping", 6), ("task party", 6), ("digits", 8)]
)
def test_every_client_has_features(task, n_clients):
    data = vertical.data_of(task, 1000)
    assert len(data.columns) == n_clients
    assert min(map(len, data.columns)) >= 4
