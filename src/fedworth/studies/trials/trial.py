"""A trial: one seed of one setting, and what is read off it. Rows are on disk whole or not at all.

    trials/KEY.json     the row; equal settings give equal bytes, whoever asks and however often a run was killed
    utilities/KEY.npz   the measured utilities, which several readings share (enumerated ones; Monte Carlo is too large)
    clock/KEY.json      what the trial cost; this differs from run to run, so it has a file of its own

KEY is a hash of all that decides the bytes, so a trial that serves several studies is run once. Other devices than the
CPU round differently: what they measured has folders of its own (trials-cuda, utilities-cuda, clock-cuda).
"""

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any, TypeVar

from fedworth.arrays import stream
from fedworth.games.matrix import UtilityMatrix
from fedworth.games.matrix_file import load_utilities, save_utilities
from fedworth.games.observe import observe
from fedworth.games.planning.choose import choose_plan
from fedworth.games.planning.plan import Plan, plan_games
from fedworth.games.squares import default_permutations
from fedworth.ledger.ledger import Ledger
from fedworth.oracle.choices import device_named
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import Oracle
from fedworth.oracle.weighting import participation
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of
from fedworth.storage import Progress, json_bytes, make_folder, read_json, silent, write_json
from fedworth.studies.trials.commit import UNKNOWN, commit_of_source
from fedworth.studies.trials.methods import METHODS

FORMAT = 1
"""Raised when a reading changes its meaning, so that old rows are not taken for new ones."""

DRAW = 3
"""Raised when Monte Carlo trials draw other cells than before. 2: permutations of each round's participants."""

Reading = dict[str, Any]
Row = dict[str, Any]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Trial:
    """One federation, how its utilities are measured, and what is read off it."""

    federation: SimulationSettings
    reading: str = "values"
    monte_carlo: bool = False
    n_permutations: int | None = None
    without_models: bool = False  # whether completions that look at models are left out

    def measured(self) -> dict[str, Any]:
        """All that decides the utilities, as JSON."""
        document = {"format": FORMAT, "federation": self.federation.document()}
        drawn = {"draw": DRAW} if self.monte_carlo else {}
        return {**document, "monte_carlo": self.monte_carlo, "n_permutations": self.n_permutations, **drawn}

    @property
    def key(self) -> str:
        """The name of the row."""
        kept = [key for key, method in METHODS.items() if not (method.reads_models and self.without_models)]
        methods = kept if self.reading in ("values", "matrix") else []
        return _hash({**self.measured(), "reading": self.reading, "methods": methods})

    @property
    def utilities_key(self) -> str:
        """The name of the utilities."""
        return _hash(self.measured())


@dataclass(frozen=True, slots=True)
class Bench:
    """Where trials are kept, where data sets lie, who watches, how many work (trials at a time, threads a trial), and
    what device coalitions are evaluated on."""

    folder: Path
    data_folder: Path | None = None
    progress: Progress = silent
    n_jobs: int = 1
    n_threads: int | None = None  # none given: one a processor
    device: str = "cpu"

    def place(self, kind: str) -> Path:
        """The folder of `trials`, `utilities` or `clock`."""
        of_device = self.device.partition(":")[0]
        return self.folder / (kind if of_device == "cpu" else f"{kind}-{of_device}")


Reader = Callable[[Trial, Bench], Reading]


def is_done(trial: Trial, bench: Bench) -> bool:
    """Whether the trial's row is on disk."""
    return (bench.place("trials") / f"{trial.key}.json").is_file()


def row_of(trial: Trial, bench: Bench, readers: Mapping[str, Reader]) -> Row:
    """The row of a trial: from disk, or run now and written whole."""
    path = bench.place("trials") / f"{trial.key}.json"
    if not path.is_file():
        for name in ("trials", "clock"):
            make_folder(bench.place(name))
        wall, cpu = time.perf_counter(), time.process_time()
        reading = readers[trial.reading](trial, bench)
        spent = {"wall_seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
        write_json(bench.place("clock") / path.name, {**spent, "commit": commit_of_source()})
        write_json(path, {"seed": trial.federation.seed, **trial.measured(), "reading": reading})
    row: Row = read_json(path)
    return row


def spent_on(trials: list[Trial], bench: Bench) -> tuple[float, tuple[str, ...]]:
    """Processor seconds that these trials took, each counted once, and the commits that they were run at."""
    paths = {bench.place("clock") / f"{trial.key}.json" for trial in trials}
    spent = [read_json(path) for path in sorted(paths) if path.is_file()]
    return sum((s["cpu_seconds"] for s in spent), start=0.0), tuple(sorted({s.get("commit", UNKNOWN) for s in spent}))


def utilities_of(
    trial: Trial, bench: Bench, ledger: Ledger | None = None, oracle: Oracle | None = None
) -> UtilityMatrix:
    """The measured utilities of a trial, or of its ledger where that is open: the truth where the federation has it,
    else what the server saw."""
    path = bench.place("utilities") / f"{trial.utilities_key}.npz"
    if path.is_file():
        return load_utilities(path, is_truth=trial.federation.with_truth)
    if ledger is None:
        matrix = with_ledger(trial, bench, lambda opened: _observed(trial, opened, oracle_of(opened, bench)))
    else:
        matrix = _observed(trial, ledger, oracle or oracle_of(ledger, bench))
    if trial.monte_carlo:
        return matrix
    make_folder(path.parent)
    save_utilities(matrix, path)
    return matrix


def with_ledger(trial: Trial, bench: Bench, read: Callable[[Ledger], Result]) -> Result:
    """What `read` makes of the trial's ledger, which is removed afterwards: models are large."""
    folder = bench.folder / "work" / trial.utilities_key
    ledger = simulate(trial.federation, folder, data_folder=bench.data_folder, resume=True)
    result = read(ledger)
    rmtree(folder)
    return result


def oracle_of(ledger: Ledger, bench: Bench) -> FastOracle:
    """What measures coalitions of a trial's ledger."""
    task = task_of(ledger, data_folder=bench.data_folder).to(device_named(bench.device))
    return FastOracle(task, n_threads=bench.n_threads)


def _observed(trial: Trial, ledger: Ledger, oracle: Oracle) -> UtilityMatrix:
    return observe(ledger, oracle, plan_of(trial, ledger))


def plan_of(trial: Trial, ledger: Ledger) -> Plan:
    """The cells that a trial measures: all coalitions; by Monte Carlo an estimate of each round's game, as beyond
    twenty participants by default, and balanced permutations for the paper's completion."""
    participants, seed = participation(ledger), trial.federation.seed
    if not trial.monte_carlo:
        return choose_plan(participants, with_truth=trial.federation.with_truth, seed=seed)
    count = trial.n_permutations or default_permutations(participants.shape[1])
    return plan_games(participants, n_permutations=count, rng=stream(seed, "permutations"))


def _hash(document: Any) -> str:
    return hashlib.sha256(json_bytes(document)).hexdigest()[:20]
