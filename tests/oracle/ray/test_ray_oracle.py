"""Coalitions measured by the workers of a Ray cluster on this machine."""

import pytest

from fedworth.errors import UsageError
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.ray_oracle import RayOracle, connect
from tests.support.zoo import ZOO, all_mixtures, round_of, task_of


def test_workers_measure_what_this_process_measures():
    make, shape, _ = ZOO["mlp"]
    task = task_of(make, shape)
    round_, wanted = round_of(task.module), all_mixtures("samples")
    ray = connect(None, n_workers=2)
    try:
        found = RayOracle(FastOracle(task, n_threads=1)).utilities(round_, wanted)
    finally:
        ray.shutdown()
    here = FastOracle(task, n_threads=1).utilities(round_, wanted)
    assert found == pytest.approx(here, abs=1e-6)


def test_a_cluster_that_does_not_answer_is_refused_at_once():
    with pytest.raises(UsageError, match="cannot be reached"):
        connect("127.0.0.1:9")
