"""Nothing unseen is read: with every absent client's model gone, values and intervals are the same to the bit."""

from dataclasses import replace

import numpy as np
import pytest

from fedworth.pipeline.report_on import report_on
from fedworth.pipeline.stages import ValuingSettings
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of

MANY = SimulationSettings(n_clients=14, copies=(), n_participants=4, n_rounds=3, partition="iid", train_limit=280)


@pytest.mark.parametrize(("n_clients", "completion"), [(5, "models"), (14, "models")])
def test_values_and_intervals_do_not_change_when_all_that_is_unseen_is_nan(
    n_clients, completion, tiny_settings, tmp_path
):
    settings = tiny_settings if n_clients == 5 else replace(MANY, test_limit=60, seed=3)
    ledger = simulate(settings, tmp_path / "ledger")

    def told(folder):
        folder.mkdir()
        valuing = ValuingSettings(completion=completion)
        return report_on(ledger, task_of(ledger), valuing, folder, title="one ledger").document()

    before = told(tmp_path / "before")
    apart = list((ledger.folder / "apart").glob("*.safetensors"))
    assert apart
    for path in apart:
        path.write_bytes(np.full(path.stat().st_size // 4 + 1, np.nan, dtype=np.float32).tobytes())
    for path in (ledger.folder / "utilities").rglob("*"):
        path.unlink() if path.is_file() else None
    after = told(tmp_path / "after")
    assert after == before
    assert {v["method"] for v in after["valuations"]} >= {"comfedsv", "comfedsv-factors", "fedsv"}
    assert all(v["uncertainty"]["intervals_90"] for v in after["valuations"] if v["method"] == "comfedsv")
