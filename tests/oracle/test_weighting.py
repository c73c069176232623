"""How much each member counts in a coalition's model."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedworth.coalitions import coalitions_of
from fedworth.errors import UsageError, UtilityError
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.writer import Answer, LedgerWriter
from fedworth.names import Dtype, Weighting
from fedworth.oracle.oracle import LoopOracle
from fedworth.oracle.weighting import client_weights, mixtures
from fedworth.simulation.models import ModelSpec, build_model, state_of
from fedworth.task.task import Task
from tests.support.federations import matrix_of_ledger

COUNTS: dict[int, float] = {0: 10, 1: 30, 2: 60}
ALL = coalitions_of(np.arange(3), 3)  # (8, 3)


def mixed(weighting, aggregation="samples", coalitions=ALL, counts=COUNTS):
    weights = client_weights(counts, 3, weighting=weighting, aggregation=aggregation)
    return mixtures(coalitions, weights, weighting)


def test_uniform_members_count_alike():
    found = mixed("uniform")
    assert found.of_clients[0b101].tolist() == [0.5, 0, 0.5]
    assert found.of_global.tolist() == [1, 0, 0, 0, 0, 0, 0, 0]


def test_members_weighted_by_samples_count_as_flower_counts_them():
    """flwr aggregate(): Σ n_k w_k / Σ n_k over those that answered."""
    models = np.array([[1.0, 2.0], [-3.0, 5.0], [0.5, 0.25]])  # (n_clients, n_parameters)
    found = mixed("samples")
    for coalition, row in zip(ALL[1:], found.of_clients[1:], strict=True):
        members = np.flatnonzero(coalition).tolist()
        total = sum(COUNTS[k] for k in members)
        by_flower = np.sum([COUNTS[k] * models[k] for k in members], axis=0) / total
        np.testing.assert_allclose(row @ models, by_flower, rtol=1e-15)


def test_fixed_members_keep_their_weight_and_the_global_model_fills_up():
    found = mixed("fixed")
    assert found.of_clients[0b011].tolist() == [0.1, 0.3, 0]
    assert found.of_global[0b011] == pytest.approx(0.6)
    assert found.of_global[0] == 1.0
    uniform = mixed("fixed", aggregation="uniform")
    assert uniform.of_clients[0b001].tolist() == [1 / 3, 0, 0]


@pytest.mark.parametrize("weighting", get_args(Weighting))
def test_the_empty_coalition_is_the_global_model(weighting):
    found = mixed(weighting)
    assert not found.of_clients[0].any()
    assert found.of_global[0] == 1


@given(st.lists(st.integers(1, 10**6), min_size=3, max_size=3), st.sampled_from(get_args(Weighting)))
def test_weights_sum_to_one_and_only_members_count(counts, weighting):
    found = mixed(weighting, counts=dict(enumerate(counts)))
    np.testing.assert_allclose(found.of_clients.sum(axis=1) + found.of_global, 1, rtol=1e-15)
    assert ((found.of_clients != 0) == ALL).all()


@given(st.integers(0, 2**31), st.integers(1, 40), st.sampled_from(get_args(Weighting)))
def test_coefficients_do_not_depend_on_who_else_is_listed(seed, n_clients, weighting):
    """To the bit, for weights of any size: left out are coalitions, and clients who are in none of those that stay."""
    rng = np.random.default_rng(seed)
    coalitions = rng.random((20, n_clients)) < rng.random((20, 1))
    whole = mixtures(coalitions, 10.0 ** rng.uniform(-18, 18, n_clients), weighting)
    places = rng.permutation(20)[:3]
    some = whole.rows(places)
    present = np.flatnonzero(some.memberships.any(axis=0))
    alone = some.among(present)
    assert alone.of_clients.tobytes() == whole.of_clients[places][:, present].tobytes()
    assert alone.of_global.tobytes() == whole.of_global[places].tobytes()


def test_a_member_without_samples_is_in_no_average():
    found = mixed("samples", coalitions=ALL[[0b110, 0b111]], counts={0: 0, 1: 30, 2: 60})
    assert found.memberships.tolist() == [[False, True, True]] * 2
    assert found.of_clients.tolist() == [[0, 1 / 3, 2 / 3]] * 2


def test_a_client_that_was_never_heard_has_no_weight():
    for weighting in get_args(Weighting):
        weights = client_weights({0: 10, 2: 30}, 3, weighting=weighting, aggregation="samples")
        assert weights[1] == 0
        assert weights[0] > 0


def test_members_without_samples_cannot_be_averaged_by_samples():
    with pytest.raises(UtilityError, match="report 0 samples in all"):
        mixed("samples", counts={0: 0, 1: 5, 2: 5})


def test_a_federation_without_samples_has_no_fixed_weights():
    with pytest.raises(UtilityError, match="no samples at all"):
        mixed("fixed", counts={0: 0, 1: 0, 2: 0})


def test_an_unknown_weighting_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match=r"unknown weighting 'sampels': did you mean 'samples'\?"):
        client_weights(COUNTS, 3, weighting="sampels", aggregation="uniform")  # type: ignore[arg-type]


def ledger_with_a_null_client(folder: Path, dtype: Dtype) -> tuple[Ledger, Task]:
    """One round of four clients; client 2 sends back the global model as it came."""
    generator = torch.Generator().manual_seed(0)
    module = build_model(ModelSpec("mlp", (6,), 3, (5,), dtype=dtype))
    start = state_of(module)

    def trained(k: int) -> dict[str, torch.Tensor]:
        step = 0.0 if k == 2 else 0.3
        return {
            name: tensor + step * torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
            for name, tensor in start.items()
        }

    answers = {str(k): Answer(trained(k), 10 * (k + 1)) for k in range(4)}
    writer = LedgerWriter.create(folder, list(answers), aggregation="samples")
    writer.record_round(start, answers)
    inputs = torch.randn(40, 6, generator=generator).to(next(iter(start.values())).dtype)
    return Ledger.open(folder), Task(module, inputs, torch.arange(40) % 3)


def marginals_of_client_2(ledger: Ledger, task: Task, weighting: Weighting) -> np.ndarray:
    matrix = matrix_of_ledger(ledger, LoopOracle(task), weighting)
    without = coalitions_of(np.array([0, 1, 3]), 4)
    joined = without.copy()
    joined[:, 2] = True
    return matrix.row(0, joined) - matrix.row(0, without)


def test_with_fixed_weights_a_client_that_returns_the_global_model_is_a_null_player(tmp_path):
    """The models differ by rounding of the weights' sum alone: a few units in the last place of a loss near 1."""
    ledger, task = ledger_with_a_null_client(tmp_path / "ledger", "float64")
    assert np.abs(marginals_of_client_2(ledger, task, "fixed")).max() <= 1e-15


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_with_renormalised_weights_it_is_not(tmp_path, weighting):
    ledger, task = ledger_with_a_null_client(tmp_path / "ledger", "float64")
    assert np.abs(marginals_of_client_2(ledger, task, weighting)).max() > 1e-3


def test_in_single_precision_it_is_a_null_player_to_single_rounding(tmp_path):
    ledger, task = ledger_with_a_null_client(tmp_path / "ledger", "float32")
    assert np.abs(marginals_of_client_2(ledger, task, "fixed")).max() <= 4 * np.finfo(np.float32).eps
