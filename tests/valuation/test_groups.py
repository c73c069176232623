"""Values by named groupings, and for populations in which the groups have known shares."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedworth
from fedworth.errors import DataError, UsageError

WORK = fedworth.WorkSettings(cache=False)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    settings = fedworth.SimulationSettings(
        dataset="digits", n_clients=5, n_participants=5, n_rounds=3, train_limit=300, test_limit=200
    )
    return fedworth.simulate(settings, tmp_path_factory.mktemp("groups") / "ledger")


@pytest.fixture(scope="module")
def task(ledger):
    return fedworth.task_of(ledger)


def valued(ledger, task, method="comfedsv-models", **settings):
    return fedworth.Federation(ledger, task, fedworth.ValuationSettings(**settings), work=WORK).value(method)


def sites(task):
    return ["north" if k % 3 else "south" for k in range(len(task.labels))]


def test_the_first_grouping_is_the_default_and_any_can_be_asked_for(ledger, task):
    named = replace(task, groups={"site": sites(task), "half": np.arange(200) < 100})
    for by, names in ((None, ("north", "south")), ("half", ("False", "True")), ("class", tuple("0123456789"))):
        found = valued(ledger, named, by=by)
        assert found.groups is not None
        assert (found.groups.by, found.groups.names) == (by or "site", names)
        assert found.groups.values.sum(axis=1) == pytest.approx(found.values, rel=1e-12)
    assert valued(ledger, replace(task, groups=sites(task))).groups.by == "group"
    with pytest.raises(UsageError, match="unknown grouping of test samples 'sites': did you mean 'site'"):
        valued(ledger, named, by="sites")
    with pytest.raises(DataError, match="3 labels in 'site' of groups, expected one for each of 200"):
        replace(task, groups={"site": ["a", "b", "c"]})


def test_values_for_known_shares_are_those_of_a_test_set_with_these_shares(ledger, task):
    """A test set in which samples of one site are repeated has the shares that are asked for."""
    named = replace(task, groups={"site": sites(task)})
    south = [k for k, site in enumerate(sites(task)) if site == "south"]
    repeated = torch.tensor([*range(200), *south, *south])
    more = replace(task, inputs=task.inputs[repeated], labels=task.labels[repeated])
    n_south, n_north = 3 * len(south), 200 - len(south)
    for method in ("comfedsv-models", "fedsv", "leave-one-out", "truth", "banzhaf"):
        found = valued(ledger, named, method, group_shares={"north": n_north, "south": n_south})
        expected = valued(ledger, more, method)
        assert found.values == pytest.approx(expected.values, rel=1e-5)
        assert found.by_round == pytest.approx(expected.by_round, rel=1e-5, abs=1e-7)
        if found.marginals is not None:
            assert expected.marginals is not None
            assert found.marginals.large == pytest.approx(expected.marginals.large, rel=1e-4, abs=1e-6)
        assert found.groups is not None
        assert found.groups.values.sum(axis=1) == pytest.approx(found.values, rel=1e-12)
        assert any("for a population with these shares" in note for note in found.notes)


def test_the_shares_of_the_test_set_change_no_value_and_make_intervals_narrower(ledger, task):
    plain = valued(ledger, task)
    assert plain.groups is not None
    shares = dict(zip(plain.groups.names, plain.groups.shares.tolist(), strict=True))
    known = valued(ledger, task, group_shares=shares)
    assert known.values == pytest.approx(plain.values, rel=1e-9)
    assert plain.uncertainty is not None
    assert known.uncertainty is not None
    assert (known.uncertainty.standard_deviations < 0.8 * plain.uncertainty.standard_deviations).all()


def test_the_error_with_known_shares_is_that_of_the_means_within_groups(ledger, task):
    """Single samples as cells: √(Σ_g π_g² var_g / n_g), by hand from the parts of the value on each sample."""
    named = replace(task, groups={"site": sites(task)})
    found = valued(ledger, named, "fedsv", group_shares="equal")
    alone = replace(task, blocks=np.arange(200))
    oracle = fedworth.LoopOracle(alone)
    by_sample = fedworth.Federation(ledger, alone, work=WORK, oracle=oracle).value("fedsv").block_values
    assert by_sample is not None
    variance = np.zeros(5)
    for site in ("north", "south"):
        some = by_sample[:, [name == site for name in sites(task)]] * 200  # of single samples
        variance += 0.5**2 * some.var(axis=1, ddof=1) / some.shape[1]
    assert found.uncertainty is not None
    assert found.uncertainty.standard_deviations == pytest.approx(np.sqrt(variance), rel=0.35)  # of 32 blocks


def test_shares_that_do_not_fit_are_refused(ledger, task):
    with pytest.raises(UsageError, match="no share of 3, 4"):
        valued(ledger, task, group_shares={"0": 1, "1": 1, "2": 1})
    with pytest.raises(UsageError, match="no test sample is in x"):
        valued(ledger, task, group_shares={**{str(k): 1 for k in range(10)}, "x": 1})
    with pytest.raises(UsageError, match="negative"):
        valued(ledger, task, group_shares={**{str(k): 1 for k in range(9)}, "9": -1})
    one_number = fedworth.Task.from_utility(lambda model: float(model["0.weight"].sum()), dict(task.state))
    with pytest.raises(UsageError, match="--group-shares: a utility of your own"):
        valued(ledger, one_number, group_shares="equal")


def test_methods_without_values_by_group_are_refused_by_name(ledger, task):
    settings = fedworth.ValuationSettings(group_shares="equal")
    report = fedworth.report_on(
        ledger, task, settings, methods=["fedsv", "comfedsv", "least-core", "influence"], work=WORK
    )
    assert [made.method for made in report.valuations] == ["fedsv"]
    assert [method for method, _ in report.refusals] == ["comfedsv", "least-core", "influence"]
