"""Noise that clients add: what the report says of it, against noise that was really drawn."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedworth
from fedworth.games.client_noise import noise_notes
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.writer import Answer, LedgerWriter
from fedworth.oracle.oracle import LoopOracle
from tests.support.zoo import ZOO, round_of, task_of

SIGMA, N_ROUNDS, N_DRAWS = 0.05, 3, 12

TASK = task_of(*ZOO["mlp"][:2])


def recorded(folder, n_clients: int, seed: int) -> Ledger:
    """The same answers in every round, each with noise of its own."""
    names = tuple("abcdefgh"[:n_clients])
    round_, generator = round_of(TASK.module, n_clients), torch.Generator().manual_seed(seed)
    writer = LedgerWriter.create(folder, names, aggregation="uniform")
    for _ in range(N_ROUNDS):
        noisy = [
            {n: t + SIGMA * torch.randn(t.shape, generator=generator) for n, t in model.items()}
            for model in round_.client_models.values()
        ]
        writer.record_round(round_.global_model, {name: Answer(m, 1) for name, m in zip(names, noisy, strict=True)})
    writer.release()
    return Ledger.open(folder)


def told(ledger: Ledger) -> float:
    """The standard deviation of a value that the report says noise makes."""
    (note,) = noise_notes(ledger, LoopOracle(replace(TASK, client_noise=SIGMA)), "uniform")
    (half,) = re.findall(r"√\(h² \+ (\S+)²\)", note)
    (total,) = re.findall(r"value by about (\S+) \(standard", note)
    assert float(half) == pytest.approx(1.645 * float(total), rel=0.05)
    return float(total)


@pytest.mark.parametrize("n_clients", [4, 7])
def test_the_interval_that_holds_the_noise_holds_what_values_are_on_the_average(tmp_path, n_clients):
    """FedSV has no error of its own here, so ±1.645 s should hold the mean over draws of noise in 90 % of cases. s is
    from 3 times 12 or 15 squared differences, so it is by up to a third too small or large (3 √(1/72)): 73 to 97 %; and
    of some 48 cases a share of 73 % has a standard error of 0.064. The mean is from the same draws: a little more."""
    ledgers = [recorded(tmp_path / str(seed), n_clients, seed) for seed in range(N_DRAWS)]
    settings = fedworth.ValuationSettings(as_average=True)  # the same global model in every round
    values = np.array([fedworth.Federation(ledger, TASK, settings).value("fedsv").values for ledger in ledgers])
    true = np.sqrt(np.mean(np.var(values, axis=0, ddof=1)))
    totals = [told(ledger) for ledger in ledgers[:3]]
    assert np.mean(totals) == pytest.approx(true, rel=0.4)
    held = np.abs(values - values.mean(axis=0)) <= 1.645 * np.mean(totals)
    assert held.mean() >= 0.73 - 2 * 0.064


def test_every_federation_says_so_and_none_without_noise(tmp_path):
    ledger = recorded(tmp_path / "l", 3, 0)
    settings = fedworth.ValuationSettings(as_average=True)
    noisy, plain = (fedworth.Federation(ledger, task, settings) for task in (replace(TASK, client_noise=SIGMA), TASK))
    assert any("their intervals do not include the noise" in note for note in noisy.notes)
    assert not any("noise" in note for note in plain.notes)
