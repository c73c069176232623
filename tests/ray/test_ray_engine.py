"""A real Ray cluster of two workers gives the local engine's bits, also when one of them is killed at work."""

import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from fedworth.errors import ModelError
from fedworth.federation.ledger import Round
from fedworth.federation.task import Task
from fedworth.utility.cache import utility_cache
from fedworth.utility.observe import observe_and_count, participation
from fedworth.utility.oracle import LoopOracle
from fedworth.utility.plan import plan_prefixes, plan_subsets
from fedworth.utility.ray_engine import LOOPBACK, Cluster, RayEngine
from fedworth.utility.weighting import Mixtures


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """Two workers, shared by the tests below."""
    with Cluster(RayEngine(n_workers=2)) as ray:
        assert [node["NodeManagerAddress"] for node in ray.nodes()] == [LOOPBACK]
        yield
    assert not ray.is_initialized()


@dataclass(frozen=True)
class DeadlyOracle:
    """Kills the worker that is first asked about round 1, in the middle of its work."""

    task: Task
    marks: str
    measure: str = "loss"

    def utilities(self, round_: Round, mixtures: Mixtures) -> np.ndarray:
        found = LoopOracle(self.task).utilities(round_, mixtures)
        marks = Path(self.marks)
        (marks / f"{os.getpid()}").touch()
        if round_.entry.round_index == 1 and not (marks / "killed").exists():
            (marks / "killed").write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return found


@dataclass(frozen=True)
class FailingOracle:
    """Refuses whatever it is asked."""

    def utilities(self, round_: Round, mixtures: Mixtures) -> np.ndarray:
        raise ModelError(f"round {round_.entry.round_index}: {len(mixtures.of_global)} mixtures refused")


def test_a_killed_worker_is_replaced_and_the_bits_are_the_local_engines(tiny_ledger, tiny_task, tmp_path):
    plan = plan_prefixes(participation(tiny_ledger), with_truth=True, rng=np.random.default_rng(0))
    oracle = DeadlyOracle(tiny_task, str(tmp_path))
    found = observe_and_count(tiny_ledger, oracle, plan, engine=RayEngine())
    expected = observe_and_count(tiny_ledger, LoopOracle(tiny_task), plan)
    killed = int((tmp_path / "killed").read_text())
    assert killed != os.getpid()
    assert not Path(f"/proc/{killed}").exists()
    assert len(list(tmp_path.iterdir())) > 2  # the mark, the killed worker's, and that of whoever took over
    assert found.n_evaluations == expected.n_evaluations
    assert np.array_equal(found.matrix.utilities, expected.matrix.utilities)


def test_what_workers_measured_is_known_to_the_local_engine(tiny_ledger, tiny_task, tmp_path):
    plan, oracle = plan_subsets(participation(tiny_ledger)), LoopOracle(tiny_task)
    cache = replace(utility_cache(tiny_ledger, oracle), folder=tmp_path)
    there = observe_and_count(tiny_ledger, oracle, plan, engine=RayEngine(), cache=cache)
    here = observe_and_count(tiny_ledger, oracle, plan, cache=cache)
    assert (there.n_evaluations, here.n_evaluations) == (plan.n_evaluations, 0)
    assert np.array_equal(here.matrix.utilities, there.matrix.utilities)


def test_an_error_in_a_worker_arrives_as_it_was_raised(tiny_ledger):
    plan = plan_subsets(participation(tiny_ledger))
    with pytest.raises(ModelError, match=r"round \d: \d+ mixtures refused"):
        observe_and_count(tiny_ledger, FailingOracle(), plan, engine=RayEngine())
