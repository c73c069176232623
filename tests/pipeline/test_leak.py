"""Nothing unseen is read: with every absent client's model gone, values and intervals are the same to the bit."""

from dataclasses import replace

import numpy as np
import pytest

from fedworth.pipeline.report_on import report_on
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of
from fedworth.valuation.settings import WorkSettings

METHODS = ["comfedsv-models", "comfedsv", "fedsv", "banzhaf"]
MANY = SimulationSettings(n_clients=14, copies=(), n_participants=4, n_rounds=3, partition="iid", train_limit=280)


@pytest.mark.parametrize("n_clients", [5, 14])
def test_values_and_intervals_do_not_change_when_all_that_is_unseen_is_nan(n_clients, tiny_settings, tmp_path):
    settings = tiny_settings if n_clients == 5 else replace(MANY, test_limit=60, seed=3)
    ledger = simulate(settings, tmp_path / "ledger")

    def told():
        return report_on(ledger, task_of(ledger), methods=METHODS, work=WorkSettings(cache=False)).document()

    before = told()
    apart = list((ledger.folder / "apart").glob("*.safetensors"))
    assert apart
    for path in apart:
        path.write_bytes(np.full(path.stat().st_size // 4 + 1, np.nan, dtype=np.float32).tobytes())
    after = told()
    assert after == before
    assert [v["method"] for v in after["valuations"]] == METHODS
    assert all(after["valuations"][0]["intervals_90"])
