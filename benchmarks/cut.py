"""What is lost where there are more answers than one process can hold; prints a Markdown table.

    python benchmarks/cut.py [--data FOLDER] [--rounds 40]

100 clients with two digits of MNIST each, 30 or 10 of them a round, everyone in the first; every client's true model is
kept. Beyond 5,000 answers a prediction rests on its round, the fullest round, the rounds most like its own and the
client's own answers, and a lone utility on the nearest rounds. Here the same is done with the fewer answers of a
smaller federation: `shared` is how many a prediction has beside its client's own. Updates: squared error of the
predicted ones of absent clients over the squares of the true ones. Values: distance of centred values from the true
ones over the length of the latter, both summed over some rounds.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedworth.arrays import stream
from fedworth.completion.models import PredictedLedger, cut_process, lone_process, predict_absent, predicted
from fedworth.games import RoundGame, sampled_values
from fedworth.ledger.ledger import Ledger, Model, Round
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.weighting import mixtures, participation, round_weights
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of

N = 100
SHARED = (None, 700, 400, 130)
"""Answers that all clients of a round share; None: nothing is cut."""
N_LOOKED_AT = 5

Floats = NDArray[np.float64]


@contextmanager
def cut_to(n_shared: int | None) -> Iterator[None]:
    """Both processes as if there were more answers than they can hold."""
    kept = predicted.MOST_POINTS, lone_process.MOST_POINTS, cut_process.MOST_SHARED, lone_process.MOST_NEAR
    if n_shared is not None:
        predicted.MOST_POINTS = lone_process.MOST_POINTS = 0
        cut_process.MOST_SHARED = lone_process.MOST_NEAR = n_shared
    try:
        yield
    finally:
        predicted.MOST_POINTS, lone_process.MOST_POINTS, cut_process.MOST_SHARED, lone_process.MOST_NEAR = kept


def game(ledger: Ledger, oracle: FastOracle, round_: Round, round_index: int) -> RoundGame:
    """A round among all clients."""
    return RoundGame(oracle, round_, np.arange(N), round_weights(ledger, round_index, "uniform"), "uniform")


def valued(made: RoundGame, lone: Floats | None, round_index: int) -> Floats:
    return sampled_values(made, lone=lone, rng=stream(0, "games", round_index)).values


def missed(true: Model, made: Model, origin: Model) -> tuple[float, float]:
    """Squares of what a predicted update misses, and of the true one."""
    pairs = [(true[k].double() - made[k].double(), true[k].double() - origin[k].double()) for k in origin]
    return sum(float((a**2).sum()) for a, _ in pairs), sum(float((b**2).sum()) for _, b in pairs)


def lone_of(made: PredictedLedger, heard: Floats) -> Floats:
    found = lone_process.lone_utilities(heard, made.likeness, made.process.rounds, made.process.clients)
    return found.utilities


def heard_alone(ledger: Ledger, oracle: FastOracle) -> Floats:
    """(n_rounds, n_clients): the lone utilities of participants."""
    present = participation(ledger)
    found = np.full(present.shape, np.nan)
    for t, row in enumerate(present):
        wanted = mixtures(np.eye(N, dtype=bool)[row], np.ones(N), "uniform")
        found[t, row] = oracle.utilities(ledger.open_round(t), wanted).sum(axis=1)
    return found


def measure(n_participants: int, n_rounds: int, folder: Path, data: Path | None) -> None:
    """The rows of one federation."""
    settings = SimulationSettings(
        dataset="mnist", partition="two-class", model="mlp", hidden=(64,), rate=0.3, n_steps=10, batch_size=64,
        train_limit=10_000, test_limit=300, n_clients=N, n_participants=n_participants, n_rounds=n_rounds,
    )  # fmt: skip
    ledger = simulate(settings, folder / "ledger", data_folder=data)
    task = task_of(ledger, data_folder=data)
    oracle = FastOracle(task, n_threads=1)
    looked_at = np.linspace(n_rounds // 5, n_rounds - 1, N_LOOKED_AT).astype(int).tolist()
    rounds = {t: ledger.open_round(t, with_apart=True) for t in looked_at}
    true = np.sum([valued(game(ledger, oracle, rounds[t], t), None, t) for t in looked_at], axis=0)
    heard = heard_alone(ledger, oracle)
    for n_shared in SHARED:
        with cut_to(n_shared):
            made = predict_absent(ledger, task)
            lone, values, squares = lone_of(made, heard), np.zeros(N), np.zeros(2)
            for t in looked_at:
                round_ = made.open_round(t)
                values += valued(game(ledger, oracle, round_, t), lone[t], t)
                for k, model in rounds[t].apart_models.items():
                    squares += missed(model, round_.client_models[k], round_.global_model)
        off, spread = values - true, true - true.mean()
        error = np.linalg.norm(off - off.mean()) / np.linalg.norm(spread)
        shared = "all" if n_shared is None else f"{n_shared:,}"
        n_heard = participation(ledger).sum() / N
        row = f"| {n_participants} | {n_heard:.0f} | {len(made.points):,} | {shared} | {squares[0] / squares[1]:.3f}"
        print(f"{row} | {error:.3f} |", flush=True)


def main(n_rounds: int, data: Path | None) -> None:
    torch.set_num_threads(1)
    print("| K | times heard | answers | shared | error of updates | error of values |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for n_participants in (30, 10):
        with tempfile.TemporaryDirectory() as folder:
            measure(n_participants, n_rounds, Path(folder), data)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--data", type=Path, default=os.environ.get("FEDWORTH_DATA"), help="where MNIST lies")
    args = parser.parse_args()
    main(args.rounds, args.data and Path(args.data))
