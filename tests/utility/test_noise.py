"""Noise that clients add: what the report says of it, against noise that was really drawn."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedworth.ledger.ledger import open_ledger
from fedworth.ledger.writer import Answer, create_ledger
from fedworth.utility.observe import observe
from fedworth.utility.oracle import LoopOracle
from fedworth.utility.server import noise_notes
from fedworth.utility.weighting import Mixtures
from tests.support.zoo import ZOO, round_of, task_of

SIGMA = 0.05


@pytest.fixture
def federation(tmp_path):
    task = task_of(*ZOO["mlp"][:2])
    round_ = round_of(task.module, 8)
    writer = create_ledger(tmp_path / "l", tuple("abcdefgh"), aggregation="uniform")
    writer.record_round(
        round_.global_model, {name: Answer(round_.client_models[k], 1) for k, name in enumerate("abcdefgh")}
    )
    writer.release()
    return open_ledger(tmp_path / "l"), round_, replace(task, client_noise=SIGMA)


def test_the_spread_is_that_of_noise_drawn_again_and_again(federation):
    ledger, round_, task = federation
    (note,) = noise_notes(ledger, LoopOracle(task))
    told, cost = (float(n) for n in re.findall(r"about (\S+) a round .* costs it (\S+) on", note)[0])
    generator, found = torch.Generator().manual_seed(7), []
    alone = Mixtures(np.eye(8, dtype=bool), np.ones(8), from_global=False)
    for _ in range(40):
        noisy = {
            k: {n: t + SIGMA * torch.randn(t.shape, generator=generator) for n, t in model.items()}
            for k, model in round_.client_models.items()
        }
        found.append(LoopOracle(task).utilities(replace(round_, client_models=noisy), alone))
    true = np.sqrt(np.mean(np.var(found, axis=0, ddof=1)))
    # eight squared differences of normal numbers: their mean has a relative standard deviation of √(2/8), its root half
    assert told == pytest.approx(true, rel=3 * 0.25)
    as_sent = LoopOracle(task).utilities(round_, alone).mean()
    assert cost == pytest.approx(as_sent - np.mean(found), abs=4 * true / np.sqrt(16))


def test_every_utility_matrix_says_so_and_none_without_noise(federation):
    ledger, _, task = federation
    assert any("their intervals do not hold it" in note for note in observe(ledger, LoopOracle(task)).notes)
    quiet = replace(task, client_noise=None)
    assert not any("noise" in note for note in observe(ledger, LoopOracle(quiet)).notes)
