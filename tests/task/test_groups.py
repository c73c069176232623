"""A ledger of groups: the same server, fewer clients, and no single client's model in it."""

import numpy as np
import pytest
import torch

from fedworth.errors import UsageError
from fedworth.games.federation import RecordedFederation
from fedworth.games.observe import utility_matrix
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.writer import Answer, LedgerWriter
from fedworth.oracle.oracle import LoopOracle
from fedworth.task.groups import group_ledger
from fedworth.task.replay import check_ledger
from fedworth.task.rules import WeightedMean
from fedworth.valuation.federation import value
from tests.support.zoo import ZOO, round_of, task_of

GROUPS = {"north": ["a", "b"], "south": ["c"], "east": ["d", "e"]}
COUNTS = {"a": 3, "b": 1, "c": 4, "d": 1, "e": 5}


@pytest.fixture(params=["samples", "uniform"])
def federation(request, tmp_path):
    """Two rounds of a small network, d and e absent from the second."""
    task = task_of(*ZOO["mlp"][:2])
    writer = LedgerWriter.create(tmp_path / "l", tuple(COUNTS), aggregation=request.param)
    model = round_of(task.module).global_model
    for heard in ("abcde", "abc"):
        sent = {name: moved(model, k) for k, name in enumerate(heard)}
        writer.record_round(model, {name: Answer(sent[name], COUNTS[name]) for name in heard})
        shares = np.array([COUNTS[name] if request.param == "samples" else 1.0 for name in heard])
        parts = {n: torch.stack([m[n].double() for m in sent.values()]) for n in model}
        model = {n: torch.tensordot(torch.from_numpy(shares / shares.sum()), t, 1).float() for n, t in parts.items()}
    writer.close(model)
    return Ledger.open(tmp_path / "l"), task


def moved(model, seed):
    generator = torch.Generator().manual_seed(seed)
    return {name: t + 0.3 * torch.randn(t.shape, generator=generator) for name, t in model.items()}


def test_coalitions_of_groups_are_worth_what_their_members_together_are(federation, tmp_path):
    ledger, task = federation
    grouped = group_ledger(ledger, GROUPS, tmp_path / "groups")
    assert Ledger.verify(tmp_path / "groups").clients == ("north", "south", "east")
    check_ledger(grouped, WeightedMean()).refuse_others()
    weighting = ledger.aggregation
    fine = utility_matrix(RecordedFederation(ledger, LoopOracle(task), weighting), None)
    coarse = utility_matrix(RecordedFederation(grouped, LoopOracle(task), "samples"), None)
    for names in (["north"], ["south", "east"], ["north", "south", "east"]):
        members = {member for name in names for member in GROUPS[name]}
        row = np.array([[name in members for name in ledger.clients]])
        expected = fine.row(0, row).sum(axis=1)
        found = coarse.row(0, np.array([[g in names for g in grouped.clients]])).sum(axis=1)
        assert found == pytest.approx(expected, abs=1e-6)
    whole = value(coarse, "fedsv").values.sum()
    assert whole == pytest.approx(value(fine, "fedsv").values.sum(), abs=1e-6)


def test_a_group_without_participants_is_absent(federation, tmp_path):
    ledger, _ = federation
    grouped = group_ledger(ledger, GROUPS, tmp_path / "groups")
    assert [entry.participants for entry in grouped.entries] == [(0, 1, 2), (0, 1)]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"north": ["a"]}, "b, c, d, e in no group"),
        ({**GROUPS, "west": ["x"]}, "x not clients of the ledger"),
        ({**GROUPS, "west": ["a"]}, "a in several groups"),
    ],
)
def test_every_client_is_in_one_group(federation, tmp_path, groups, message):
    with pytest.raises(UsageError, match=f"groups: {message}; put every client into exactly one"):
        group_ledger(federation[0], groups, tmp_path / "groups")
