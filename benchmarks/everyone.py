"""Large federations valued as `fedworth report` does: time, memory and standard errors; prints a Markdown table.

    python benchmarks/everyone.py [--data FOLDER] [case …]        thirty, mlp, logistic, large

    thirty     MLP 784-64-10, 9 of 30 clients a round, 20 rounds; beside the report ComFedSV alone, by models, and by
               few and many permutations, as in the paper
    mlp        the same MLP, 30 of 100 clients a round, 100 rounds
    logistic   softmax regression, 300 of 1,000 clients a round, 100 rounds: half an hour; only if named
    large      a network of 105 MB, 2 of 5 clients in the second of 2 rounds, drawn at random; 16 test samples

Clients have two digits of MNIST each (--data, or $FEDWORTH_DATA), the test set has 1,000 samples; everyone is heard in
the first round. Every case is written by one child process and valued by another, from a ledger to a report with all
that stands in it by default: ComFedSV by predicted models, by factors, FedSV, the heard round. Memory is the process's
own (RssAnon, at its peak; the ledger's mapped pages are the kernel's). The standard error is that of what was drawn,
root mean square over the clients, relative to the spread of the values. Rows with a bar that miss it are named at the
end, and the exit code is 1.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bars import Bars
from large import network
from memory import Watch

from fedworth.completion.factors import complete
from fedworth.completion.models import complete_by_models
from fedworth.games.observe import observe_and_count
from fedworth.games.planning.choose import PlanSettings, choose_plan
from fedworth.ledger.ledger import Ledger, open_ledger
from fedworth.ledger.writer import Answer, create_ledger
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.weighting import participation
from fedworth.pipeline.report_on import report_on
from fedworth.pipeline.stages import ValuingSettings
from fedworth.simulation.models import state_of
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of
from fedworth.task.task import Task
from fedworth.valuation.valuation import Valuation
from fedworth.valuation.value import value

MLP: dict[str, Any] = {"model": "mlp", "hidden": (64,), "rate": 0.3, "n_steps": 10, "train_limit": 10_000}
LOGISTIC: dict[str, Any] = {"model": "logistic", "rate": 0.1, "n_steps": 2, "train_limit": 20_000}
CASES: dict[str, dict[str, Any]] = {
    "thirty": {**MLP, "n_clients": 30, "n_participants": 9, "n_rounds": 20},
    "mlp": {**MLP, "n_clients": 100, "n_participants": 30, "n_rounds": 100},
    "logistic": {**LOGISTIC, "n_clients": 1000, "n_participants": 300, "n_rounds": 100},
    "large": {"n_clients": 5, "n_participants": 2, "n_rounds": 2},
}
ONLY_IF_NAMED = ("logistic",)
MOST: dict[str, dict[str, float]] = {
    "thirty": {"error": 0.1},
    "mlp": {"seconds": 120, "gigabytes": 2},
    "logistic": {"seconds": 3600, "gigabytes": 8, "error": 0.1},
    "large": {"models": 15},
}
"""Bars: wall seconds, own memory in GB or in models of the case, standard error over the spread."""

PERMUTATIONS = {"few": 103, "many": 4000}
"""Of 30 clients: ⌈N ln N⌉, and as many as bring the standard error below a tenth of the spread."""


def write(case: str, folder: str, data: str | None) -> dict[str, Any]:
    """The case's ledger; how large one of its models is."""
    if case == "large":
        return _write_large(Path(folder))
    settings = SimulationSettings(
        dataset="mnist", partition="two-class", batch_size=64, test_limit=1000, with_truth=False, **CASES[case]
    )
    ledger = simulate(settings, Path(folder), data_folder=Path(data) if data else None)
    return {"model_bytes": _size(ledger.open_round(0).global_model)}


def _write_large(folder: Path) -> dict[str, Any]:
    """Rounds of random models around a common direction, client by client in memory."""
    shape = CASES["large"]
    names = [f"client {k}" for k in range(shape["n_clients"])]
    writer = create_ledger(folder, names, aggregation="uniform")
    torch.manual_seed(2022)
    model, rng = state_of(network()), np.random.default_rng(0)
    for round_index in range(shape["n_rounds"]):
        n = len(names) if round_index == 0 else shape["n_participants"]
        chosen = sorted(rng.choice(len(names), n, replace=False).tolist())
        moved = {names[k]: Answer(_moved(model, round_index, k), 100) for k in chosen}
        writer.record_round(model, moved)
        model = {key: sum(a.model[key] for a in moved.values()) / len(moved) for key in model}  # type: ignore[misc]
    writer.close(model)
    return {"model_bytes": _size(model)}


def _moved(model: dict[str, torch.Tensor], round_index: int, client: int) -> dict[str, torch.Tensor]:
    """A client's answer: its own direction, the same in all rounds, and some noise."""
    own, noise = (torch.Generator().manual_seed(seed) for seed in (client, 1000 * (round_index + 1) + client))
    steps = ((key, t, torch.randn(t.shape, generator=own)) for key, t in model.items())
    return {
        key: t + 0.1 * t.std() * (step + 0.5 * torch.randn(t.shape, generator=noise)) if t.numel() > 1 else t
        for key, t, step in steps
    }


def _size(model: dict[str, torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in model.values())


def report(case: str, folder: str, data: str | None) -> dict[str, Any]:
    """The ledger's report, and what it took."""
    ledger = open_ledger(folder)
    task = _task(case, ledger, data)
    with tempfile.TemporaryDirectory() as out, Watch(0.01) as watch:
        made, seconds, busy = _timed(lambda: report_on(ledger, task, ValuingSettings(), out))
    found = next(one for one in made.valuations if one.method == "comfedsv")
    return {"seconds": seconds, "busy": busy, "bytes": watch.peak, "error": _error(found), "what": "the report"}


def models(case: str, folder: str, data: str | None) -> dict[str, Any]:
    """ComFedSV by models alone, with the utilities it rests on."""
    ledger = open_ledger(folder)
    oracle = FastOracle(_task(case, ledger, data))

    def values() -> Valuation:
        seen = observe_and_count(ledger, oracle, choose_plan(participation(ledger), PlanSettings())).matrix
        return value(seen, "comfedsv", completion=complete_by_models(ledger, oracle, seen))

    return _watched(values, "ComFedSV alone, models")


def permutations(case: str, folder: str, data: str | None, *, number: int) -> dict[str, Any]:
    """ComFedSV by factors and permutations, as in the paper."""
    ledger = open_ledger(folder)
    task = _task(case, ledger, data)
    plan = choose_plan(participation(ledger), PlanSettings(permutations=number, with_fedsv=False))

    def values() -> Valuation:
        seen = observe_and_count(ledger, FastOracle(task), plan).matrix
        return value(seen, "comfedsv", completion=complete(seen))

    return _watched(values, f"ComFedSV alone, factors, {number:,} permutations")


def _watched(values: Callable[[], Valuation], what: str) -> dict[str, Any]:
    with Watch(0.01) as watch:
        found, seconds, busy = _timed(values)
    return {"seconds": seconds, "busy": busy, "bytes": watch.peak, "error": _error(found), "what": what}


def _task(case: str, ledger: Ledger, data: str | None) -> Task:
    if case == "large":
        torch.manual_seed(2022)
        return Task(network().eval(), torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,)))
    return task_of(ledger, data_folder=Path(data) if data else None)


def _timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    wall, busy = time.perf_counter(), time.process_time()
    made = work()
    return made, time.perf_counter() - wall, time.process_time() - busy


def _error(valuation: Valuation) -> float | None:
    """Root mean square standard error over the spread of the values; nothing where nothing was drawn."""
    if valuation.standard_errors is None:
        return None
    return float(np.sqrt((valuation.standard_errors**2).mean()) / valuation.values.std())


CHILDREN: dict[str, Callable[[str, str, str | None], dict[str, Any]]] = {
    "write": write,
    "report": report,
    "models": models,
    **{name: partial(permutations, number=number) for name, number in PERMUTATIONS.items()},
}


def _child(which: str, case: str, folder: Path, data: str | None) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", which, case, str(folder), *(["--data", data] if data else [])]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


def row(case: str, found: dict[str, Any], model_bytes: int) -> str:
    """A line of the table."""
    shape, gigabytes = CASES[case], found["bytes"] / 1e9
    error = "–" if found["error"] is None else f"{found['error']:.3f}"
    size = " / ".join(f"{shape[key]:,}" for key in ("n_clients", "n_participants", "n_rounds"))
    memory = f"{gigabytes:.2f} | {found['bytes'] / model_bytes:,.1f}"
    return f"| {case} | {size} | {found['what']} | {found['seconds']:.0f} | {found['busy']:.0f} | {memory} | {error} |"


def main(names: list[str], data: str | None) -> None:
    """All cases, one after the other."""
    bars = Bars()
    print("| case | N / K / T | what | s | CPU s | own GB | models' worth | standard error / spread |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for case in names or [case for case in CASES if case not in ONLY_IF_NAMED]:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "ledger"
            size = _child("write", case, folder, data)["model_bytes"]
            found = _child("report", case, folder, data)
            print(row(case, found, size), flush=True)
            for alone in ("models", *PERMUTATIONS) if case == "thirty" else ():
                beside = _child(alone, case, folder, data)
                print(row(case, beside, size), flush=True)
                if alone != "few":
                    bars.at_most(f"{case}, {beside['what']}, error", beside["error"], MOST[case]["error"])
        got = {**found, "gigabytes": found["bytes"] / 1e9, "models": found["bytes"] / size}
        for key, most in MOST[case].items():
            bars.at_most(f"{case}, {key}", got[key], most)
    bars.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="case", help="these cases alone")
    parser.add_argument("--data", default=os.environ.get("FEDWORTH_DATA"), help="where MNIST lies")
    parser.add_argument("--child", choices=CHILDREN, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(CHILDREN[args.child](args.names[0], args.names[1], args.data)))
    else:
        main(args.names, args.data)
