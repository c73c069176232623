"""What noise that clients add to their answers does to utilities: for federations under local differential privacy.

A value's interval holds what sampling and completion leave open. Noise in the answers is in every utility, and no
interval knows of it. So some answers get noise of the same size twice more, and are measured alone: the spread of the
two says what other noise would have given, their distance from the answer as sent what noise costs on the average.
"""

from dataclasses import replace

import numpy as np
import torch

from fedworth.ledger.ledger import Ledger, Model, Round
from fedworth.utility.oracle import TaskOracle
from fedworth.utility.weighting import Mixtures

MOST_ROUNDS, MOST_ANSWERS = 3, 8


def noise_notes(ledger: Ledger, oracle: TaskOracle) -> tuple[str, ...]:
    """What a reader must know of the noise that the task says clients add; nothing if they add none."""
    noise = oracle.task.client_noise
    if noise is None or ledger.n_rounds == 0:
        return ()
    places = np.unique(np.linspace(0, ledger.n_rounds - 1, MOST_ROUNDS).astype(int)).tolist()
    found = [_measured(oracle, ledger.open_round(t), noise, seed=t) for t in places]
    as_sent, first, second = np.concatenate(found, axis=1)  # (n_answers,) each
    spread = float(np.sqrt(np.mean((first - second) ** 2) / 2))
    cost = float(np.mean(as_sent) - np.mean([first, second]))
    return (
        f"clients add noise of {noise:g} to every number that they send. Values are those of the noisy answers, and "
        f"their intervals do not hold it: with other noise of that size a lone client's utility differs by about "
        f"{spread:.2g} a round (standard deviation), and noise costs it {cost:.2g} on the average "
        f"({len(as_sent)} answers of {len(places)} rounds measured again)",
    )


def _measured(oracle: TaskOracle, round_: Round, noise: float, seed: int) -> np.ndarray:
    """(3, n_answers): lone utilities as sent, and twice with more noise."""
    members = sorted(round_.client_models)[:MOST_ANSWERS]
    sent = [round_.client_models[k] for k in members]
    models = [*sent, *(_noisier(model, noise, seed, k) for k, model in enumerate([*sent, *sent]))]
    alone = Mixtures(np.eye(len(models), dtype=bool), np.ones(len(models)), from_global=False)
    changed = replace(round_, client_models=dict(enumerate(models)), apart_models={})
    return oracle.utilities(changed, alone).reshape(3, len(members))


def _noisier(model: Model, noise: float, seed: int, place: int) -> Model:
    generator = torch.Generator().manual_seed(1000 * seed + place)
    return {
        name: t + (noise * torch.randn(t.shape, generator=generator, dtype=torch.float64)).to(t.dtype)
        if t.is_floating_point()
        else t
        for name, t in model.items()
    }
