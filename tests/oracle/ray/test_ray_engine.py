"""A real Ray cluster of two workers gives the local engine's bits, also when one of them is killed at work."""

import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fedworth.games.matrix_file import load_utilities
from fedworth.games.planning.plan import plan_exact, plan_prefixes
from fedworth.oracle.cache import utility_cache
from fedworth.oracle.ray_engine import LOOPBACK, Cluster, RayEngine

from fedworth.cli.main import main
from fedworth.errors import ModelError, UsageError, UtilityError
from fedworth.games.observe import observe_and_count
from fedworth.ledger.ledger import Round
from fedworth.oracle import ray_engine
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle
from fedworth.oracle.weighting import Mixtures, participation
from fedworth.task.task import Task


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
    n_blocks: int = 1

    def utilities(self, round_: Round, mixtures: Mixtures) -> np.ndarray:
        found = LoopOracle(self.task).utilities(round_, mixtures)
        marks = Path(self.marks)
        (marks / f"{os.getpid()}").touch()
        if round_.entry.round_index == 1 and not (marks / "killed").exists():
            (marks / "killed").write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return found


@dataclass(frozen=True)
class FatalOracle:
    """Kills every worker that asks it."""

    def utilities(self, round_: Round, mixtures: Mixtures) -> np.ndarray:  # noqa: ARG002
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("killed before")


@dataclass(frozen=True)
class FailingOracle:
    """Refuses whatever it is asked."""

    def utilities(self, round_: Round, mixtures: Mixtures) -> np.ndarray:
        raise ModelError(f"round {round_.entry.round_index}: {len(mixtures.of_global)} mixtures refused")


def test_a_killed_worker_is_replaced_and_the_bits_are_the_local_engines(tiny_ledger, tiny_task, tmp_path):
    plan = plan_prefixes(
        participation(tiny_ledger), with_truth=True, sampler="permutations", rng=np.random.default_rng(0)
    )
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
    plan, oracle = plan_exact(participation(tiny_ledger)), LoopOracle(tiny_task)
    cache = replace(utility_cache(tiny_ledger, oracle), folder=tmp_path)
    there = observe_and_count(tiny_ledger, oracle, plan, engine=RayEngine(), cache=cache)
    here = observe_and_count(tiny_ledger, oracle, plan, cache=cache)
    assert (there.n_evaluations, here.n_evaluations) == (plan.n_evaluations, 0)
    assert np.array_equal(here.matrix.utilities, there.matrix.utilities)


def test_an_error_in_a_worker_arrives_as_it_was_raised(tiny_ledger):
    plan = plan_exact(participation(tiny_ledger))
    with pytest.raises(ModelError, match=r"round \d: \d+ mixtures refused"):
        observe_and_count(tiny_ledger, FailingOracle(), plan, engine=RayEngine())


def test_the_command_measures_on_ray_what_it_measures_here_to_the_last_bit(tiny_ledger, tmp_path):
    for engine in ("ray", "local"):
        command = ["observe", str(tiny_ledger.folder), "--no-cache", "--engine", engine]
        assert main([*command, "--permutations", "20", "--out", str(tmp_path / f"{engine}.npz")]) == 0
    there, here = (load_utilities(tmp_path / f"{engine}.npz") for engine in ("ray", "local"))
    assert np.ptp(here.utilities) > 0
    assert there.utilities.tobytes() == here.utilities.tobytes()
    assert (tmp_path / "ray.npz").read_bytes() == (tmp_path / "local.npz").read_bytes()


def test_the_fast_oracle_gives_two_workers_the_local_engines_bits(tiny_ledger, tiny_task):
    plan, oracle = plan_exact(participation(tiny_ledger), with_truth=True), FastOracle(tiny_task)
    there = observe_and_count(tiny_ledger, oracle, plan, engine=RayEngine(n_workers=2))
    here = observe_and_count(tiny_ledger, oracle, plan)
    assert there.matrix.utilities.tobytes() == here.matrix.utilities.tobytes()


def test_a_fast_oracle_has_one_thread_in_a_worker_whoever_made_it(tiny_task):
    sent = ray_engine._for_workers(FastOracle(tiny_task, "accuracy", n_threads=7))
    assert isinstance(sent, FastOracle)
    assert (sent.task, sent.measure, sent.n_threads) == (tiny_task, "accuracy", 1)


def test_an_address_where_nobody_answers_is_an_error_that_says_what_to_do(tiny_ledger, tmp_path, capsys):
    command = ["observe", str(tiny_ledger.folder), "--engine", "ray", "--address", "127.0.0.1:1"]
    assert main([*command, "--out", str(tmp_path / "u.npz")]) == 2
    shown = capsys.readouterr().err
    assert "Ray cluster at 127.0.0.1:1: cannot be reached" in shown
    assert "ray start --head" in shown
    assert not (tmp_path / "u.npz").exists()


@pytest.mark.parametrize("address", ["auto", None])
def test_a_cluster_that_ray_cannot_join_is_the_same_error(address, monkeypatch):
    def refuse(**_):
        raise ConnectionError("Could not find any running Ray instance.\nAnd more.")

    import ray

    broken = SimpleNamespace(is_initialized=lambda: False, init=refuse, exceptions=ray.exceptions)
    monkeypatch.setattr(ray_engine, "load_ray", lambda _: broken)
    with pytest.raises(UsageError, match=r"cannot be reached \(Could not find any running Ray instance\.\);"):
        Cluster(RayEngine(address)).__enter__()


def test_a_batch_whose_workers_are_lost_again_and_again_is_an_error_that_says_so(tiny_ledger, monkeypatch):
    monkeypatch.setattr(ray_engine, "RETRIES", 0)
    plan = plan_exact(participation(tiny_ledger))
    with pytest.raises(UtilityError, match=r"round \d: the Ray workers .* were lost, after 0 retries \(WorkerCrashed"):
        observe_and_count(tiny_ledger, FatalOracle(), plan, engine=RayEngine())
