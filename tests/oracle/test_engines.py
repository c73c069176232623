"""Engines: the same batches give the same bits, however they are cut and wherever they are measured."""

import sys

import numpy as np
import pytest

from fedworth.errors import UsageError
from fedworth.games.observe import observe
from fedworth.games.planning.plan import plan_prefixes
from fedworth.oracle.choices import engine_named, oracle_named
from fedworth.oracle.engines import LocalEngine
from fedworth.oracle.fast.oracle import FastOracle
from fedworth.oracle.oracle import LoopOracle
from fedworth.oracle.weighting import participation
from tests.games.test_observe import CountingOracle


def test_rounds_too_large_for_one_batch_are_measured_in_several(tiny_ledger, tiny_task, monkeypatch):
    plan = plan_prefixes(
        participation(tiny_ledger), with_truth=True, sampler="permutations", rng=np.random.default_rng(0)
    )
    whole = observe(tiny_ledger, LoopOracle(tiny_task), plan)
    monkeypatch.setattr("fedworth.games.cells.BATCH_NUMBERS", 5 * 7)  # seven coalitions of five clients
    oracle = CountingOracle(LoopOracle(tiny_task))
    cut = observe(tiny_ledger, oracle, plan)
    assert oracle.n_calls == sum(-(-(len(cells) - 1) // 7) for cells in plan.cells)  # the empty one is known
    assert oracle.n_evaluations == plan.n_evaluations
    assert np.array_equal(cut.utilities, whole.utilities)


def test_the_fast_oracle_sees_what_the_plain_loop_sees(tiny_ledger, tiny_task):
    plan = plan_prefixes(participation(tiny_ledger), sampler="permutations", rng=np.random.default_rng(0))
    plain, fast = (observe(tiny_ledger, oracle_named(name, tiny_task, "loss"), plan) for name in ("loop", "fast"))
    np.testing.assert_allclose(fast.utilities, plain.utilities, rtol=0, atol=1e-6)


def test_oracles_and_engines_are_found_by_name(tiny_task):
    assert isinstance(oracle_named("loop", tiny_task, "loss"), LoopOracle)
    fast = oracle_named("fast", tiny_task, "accuracy", n_threads=2)
    assert isinstance(fast, FastOracle)
    assert (fast.n_threads, fast.measure) == (2, "accuracy")
    assert isinstance(engine_named("local"), LocalEngine)
    with pytest.raises(UsageError, match="unknown oracle"):
        oracle_named("quick", tiny_task, "loss")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="unknown engine"):
        engine_named("dask")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is for --engine ray"):
        engine_named("local", "10.0.0.1:6379")


def test_without_ray_the_ray_engine_says_how_to_have_it(tiny_ledger, tiny_task, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    plan = plan_prefixes(participation(tiny_ledger), sampler="permutations", rng=np.random.default_rng(0))
    with pytest.raises(UsageError, match=r"pip install 'fedworth\[ray\]'"):
        observe(tiny_ledger, LoopOracle(tiny_task), plan, engine=engine_named("ray"))
