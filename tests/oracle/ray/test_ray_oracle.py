"""Coalitions measured by the workers of a Ray cluster on this machine: the same bits, also when a worker is killed."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import fedworth
from fedworth.cli.main import main
from fedworth.errors import ModelError, UsageError, UtilityError
from fedworth.ledger.ledger import Round
from fedworth.oracle import ray_oracle
from fedworth.oracle.oracle import LoopOracle
from fedworth.oracle.ray_oracle import LOOPBACK, RayOracle, connect
from fedworth.oracle.weighting import Mixtures, mixtures
from fedworth.task.task import Task
from tests.pipeline.test_forms import CASES, EXCHANGED, FORMS, recorded


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """Two workers, shared by the tests below."""
    ray = connect(None, n_workers=2)
    assert [node["NodeManagerAddress"] for node in ray.nodes()] == [LOOPBACK]
    yield
    ray.shutdown()


@dataclass(frozen=True)
class DeadlyOracle:
    """Kills the worker that is first asked about round 1, in the middle of its work."""

    task: Task
    marks: str
    measure: str = "loss"
    n_blocks: int = 1

    def utilities(self, round_: Round, mixtures: Mixtures) -> np.ndarray:
        found = LoopOracle(self.task).utilities(round_, mixtures)
        mark = Path(self.marks) / "killed"
        if round_.entry.round_index == 1 and not mark.exists():
            mark.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return found


@dataclass(frozen=True)
class FatalOracle(DeadlyOracle):
    """Kills every worker that asks it."""

    def utilities(self, round_: Round, mixtures: Mixtures) -> np.ndarray:  # noqa: ARG002
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("killed before")


@dataclass(frozen=True)
class FailingOracle(DeadlyOracle):
    """Refuses whatever it is asked."""

    def utilities(self, round_: Round, mixtures: Mixtures) -> np.ndarray:
        raise ModelError(f"round {round_.entry.round_index}: {len(mixtures)} mixtures refused")


def measured(ledger, oracle):
    work = fedworth.WorkSettings(cache=False)
    return fedworth.Federation(ledger, oracle.task, work=work, oracle=oracle).utility_matrix().utilities


def test_a_killed_worker_is_replaced_and_the_bits_are_those_of_this_process(tiny_ledger, tiny_task, tmp_path):
    found = measured(tiny_ledger, RayOracle(DeadlyOracle(tiny_task, str(tmp_path))))
    killed = int((tmp_path / "killed").read_text())
    assert killed != os.getpid()
    assert found.tobytes() == measured(tiny_ledger, LoopOracle(tiny_task)).tobytes()


def test_other_measures_are_taken_by_the_workers_too(tiny_ledger, tiny_task):
    oracle, round_ = LoopOracle(tiny_task, also=("accuracy",)), tiny_ledger.open_round(0)
    wanted = mixtures(np.eye(len(tiny_ledger.clients), dtype=bool), np.ones(len(tiny_ledger.clients)), "uniform")
    remote = RayOracle(oracle)
    assert remote.also == ("accuracy",)
    assert remote.utilities(round_, wanted).tobytes() == oracle.utilities(round_, wanted).tobytes()


def test_an_error_in_a_worker_arrives_as_it_was_raised(tiny_ledger, tiny_task):
    with pytest.raises(ModelError, match=r"round \d: \d+ mixtures refused"):
        measured(tiny_ledger, RayOracle(FailingOracle(tiny_task, "")))


def test_workers_that_are_lost_again_and_again_are_an_error_that_says_so(tiny_ledger, tiny_task, monkeypatch):
    monkeypatch.setattr(ray_oracle, "RETRIES", 0)
    with pytest.raises(UtilityError, match=r"round \d: the Ray workers .* were lost, after 0 retries"):
        measured(tiny_ledger, RayOracle(FatalOracle(tiny_task, "")))


@pytest.mark.parametrize(("oracle", "tolerance"), [("loop", 0.0), ("fast", 1e-6)])
def test_the_command_measures_on_ray_what_it_measures_here(tiny_ledger, tmp_path, oracle, tolerance):
    """The fast oracle's last bits depend on which coalitions are measured together."""
    for engine in ("ray", "local"):
        command = ["observe", str(tiny_ledger.folder), "--no-cache", "--engine", engine, "--oracle", oracle]
        assert main([*command, "--permutations", "20", "--out", str(tmp_path / f"{engine}.npz")]) == 0
    there, here = (fedworth.UtilityMatrix.load(tmp_path / f"{engine}.npz") for engine in ("ray", "local"))
    assert np.ptp(here.utilities) > 0
    np.testing.assert_allclose(there.utilities, here.utilities, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("form", "exchanged"), CASES)
def test_every_form_of_inputs_and_of_exchanged_is_measured_on_ray(form, exchanged, tmp_path):
    task = FORMS[form](exchanged=EXCHANGED[exchanged])
    ledger = recorded(tmp_path / "l", list(task.state))
    there, here = (measured(ledger, oracle) for oracle in (RayOracle(LoopOracle(task)), LoopOracle(task)))
    assert there.tobytes() == here.tobytes()


def test_an_address_where_nobody_answers_is_an_error_that_says_what_to_do(tiny_ledger, tmp_path, capsys):
    command = ["observe", str(tiny_ledger.folder), "--engine", "ray", "--address", "127.0.0.1:1"]
    assert main([*command, "--out", str(tmp_path / "u.npz")]) == 2
    shown = capsys.readouterr().err
    assert "Ray cluster at 127.0.0.1:1: cannot be reached" in shown
    assert "ray start --head" in shown
    with pytest.raises(UsageError, match="cannot be reached"):
        connect("127.0.0.1:9")


def test_outputs_on_some_samples_are_given_by_the_workers_too(tiny_ledger, tiny_task):
    oracle, round_ = LoopOracle(tiny_task), tiny_ledger.open_round(0)
    n = len(tiny_ledger.clients)
    wanted = mixtures(np.eye(n, dtype=bool), np.ones(n), "uniform")
    which = [np.arange(k, k + 3) for k in range(n)]
    pairs = zip(RayOracle(oracle).outputs(round_, wanted, which), oracle.outputs(round_, wanted, which), strict=True)
    assert all(theirs.equal(ours) for theirs, ours in pairs)
