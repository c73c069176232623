"""Vertical federations against training again: `python benchmarks/vertical.py` prints the tables of docs/vertical.md.

Every coalition of clients is trained again from the start, the others hold nothing, and the Shapley value of what the
coalitions reach on the validation samples is the truth. It is compared with VerFedSV and with the refitted head, which
are measured on one recorded training. Intervals are compared with the values of the same training by many more
validation samples. Asynchronous: half of the clients, drawn at random, take part in each round.

    independent    six clients, four features each; some clients' matter more
    overlapping    six clients, windows of four to eight features out of 24
    task party     client 0 has half of the features; five others have five features each, of which it has 5, 4, 3, 2, 0
    digits         eight clients, a row of pixels each
"""

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from fedworth import Federation, Ledger, LedgerWriter, ValuationSettings, WorkSettings
from fedworth.arrays import Floats
from fedworth.coalitions import coalitions_of
from fedworth.completion.embeddings import COMPLETIONS, EmbeddingLedger
from fedworth.games.shapley import all_utilities, shapley_values
from fedworth.ledger.embeddings import EMBEDDING, EMBEDDINGS
from fedworth.simulation.datasets import DatasetRequest, load_dataset
from fedworth.simulation.models import ModelSpec, build_model
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.vertical import VerticalFederation, record_vertical
from fedworth.storage import silent
from fedworth.task.vertical import Vertical, combined
from fedworth.valuation.refitted import RefittedGame

WIDTH, N_ROUNDS, N_STEPS, RATE = 4, 40, 5, 0.3
N_FEATURES = 24
N_TRAINED, N_FEW, N_DRAWN, N_MANY = 1000, 250, 6, 4000  # for intervals: many validation samples stand for all there are
TASKS = ("independent", "overlapping", "task party", "digits")
MODELS = (
    ("concatenation", "logistic", False),
    ("sum", "logistic", False),
    ("concatenation", "mlp", False),
    ("concatenation", "logistic", True),  # asynchronous
)
PLAIN = WorkSettings(cache=False, n_threads=1)


@dataclass(frozen=True, eq=False)
class Data:
    """Features, (n, n_features), labels, and the features that each client has."""

    features: Floats
    labels: np.ndarray
    columns: list[np.ndarray]


def data_of(task: str, seed: int, n_samples: int = 1500) -> Data:
    """The samples of a task; the digits have their own number."""
    rng = np.random.default_rng(seed)
    if task == "digits":
        found = load_dataset("digits", DatasetRequest(rng, 8, None, None, None, 1.0, 1.0))
        features = np.concatenate([found.train.features, found.test.features]).reshape(-1, 64)
        labels = np.concatenate([found.train.labels, found.test.labels])
        order = rng.permutation(len(labels))
        return Data(features[order], labels[order], np.array_split(np.arange(64), 8))
    features = rng.normal(size=(n_samples, N_FEATURES)).astype(np.float32)
    weights = rng.normal(size=N_FEATURES) * np.exp(0.7 * rng.normal(size=N_FEATURES))
    if task == "task party":
        others = [
            (rng.choice(12, m, replace=False), 12 + rng.choice(12, 5 - m, replace=False)) for m in (5, 4, 3, 2, 0)
        ]
        columns = [np.arange(12), *(np.concatenate(pair) for pair in others)]
    else:
        weights *= np.repeat(rng.uniform(0.1, 1.5, size=6), 4)
        columns = np.array_split(np.arange(N_FEATURES), 6)
        if task == "overlapping":
            starts = rng.choice(N_FEATURES, size=6, replace=False)
            columns = [np.arange(start, start + rng.integers(4, 9)) % N_FEATURES for start in starts]
    score = features @ weights
    chances = 1 / (1 + np.exp(-3 * score / score.std()))
    return Data(features, (rng.uniform(size=n_samples) < chances).astype(np.int64), columns)


def federation_of(
    data: Data, combine: Any, model: Any, seed: int, n_trained: int | None = None
) -> tuple[VerticalFederation, Vertical]:
    """The clients and the server; a third of the samples validate, or all that are not trained on."""
    n_clients, n_classes = len(data.columns), int(data.labels.max()) + 1
    n = n_trained or 2 * len(data.labels) // 3
    features, labels = torch.from_numpy(data.features), torch.from_numpy(data.labels)
    specs = [ModelSpec(model, (len(columns),), WIDTH, (16,) if model == "mlp" else ()) for columns in data.columns]
    n_in = WIDTH if combine == "sum" else WIDTH * n_clients
    head = build_model(ModelSpec("logistic", (n_in,), n_classes), seed=seed)
    federation = VerticalFederation(
        clients=tuple(map(str, range(n_clients))),
        features=[features[:n, columns] for columns in data.columns],
        labels=labels[:n],
        validation=[features[n:, columns] for columns in data.columns],
        bottoms=[build_model(spec, seed=100 * seed + k) for k, spec in enumerate(specs)],
        head=nn.Sequential(nn.ReLU(), head) if model == "mlp" else head,
        settings=SimulationSettings(partition="vertical", combine=combine, n_steps=N_STEPS, rate=RATE, seed=seed),
    )
    return federation, federation.vertical(labels[n:])


def schedule(n_clients: int, n_participants: int, seed: int) -> list[list[int]]:
    """Who takes part in each round."""
    rng = np.random.default_rng(seed)
    return [sorted(rng.choice(n_clients, n_participants, replace=False).tolist()) for _ in range(N_ROUNDS)]


def recorded(federation: VerticalFederation, vertical: Vertical, chosen: list[list[int]], folder: Path) -> Ledger:
    """The ledger of one training."""
    settings = {EMBEDDINGS: vertical.form.document()}
    writer = LedgerWriter.create(folder, vertical.clients, aggregation="uniform", settings=settings)
    record_vertical(federation, writer, chosen, silent)
    return Ledger.open(folder)


def retrained(federation: VerticalFederation, vertical: Vertical, chosen: list[list[int]]) -> Floats:
    """(2^n,): by how much each coalition, trained alone, lowers the loss that nobody's features reach."""
    n, found = len(vertical.clients), []
    for row in coalitions_of(np.arange(n), n):
        held = {name: torch.zeros(len(vertical.labels), WIDTH) for name in vertical.clients}
        rounds = list(federation.rounds(chosen, np.flatnonzero(row).tolist()))
        for _, answers in rounds:
            held |= {name: answer.model[EMBEDDING] for name, answer in answers.items()}  # those absent keep their last
        parts = list(held.values())
        outputs = torch.func.functional_call(federation.head, rounds[-1][0], (combined(parts, vertical.form.combine),))
        found.append(-float(nn.functional.cross_entropy(outputs, vertical.labels)))
    return np.array(found) - found[0]


def values_given(utilities: Floats, given: int) -> Floats:
    """(n,): Shapley values among the others, if one client is there in any case; NaN for this one."""
    n = len(utilities).bit_length() - 1
    others = [k for k in range(n) if k != given]
    places = [(1 << given) + sum(1 << k for bit, k in enumerate(others) if c >> bit & 1) for c in range(2 ** (n - 1))]
    values = np.full(n, np.nan)
    values[others] = shapley_values(utilities[places] - utilities[1 << given])
    return values


def agreement(task: str, combine: str, model: str, is_partial: bool, seed: int) -> list[dict[str, Any]]:
    """What each client is worth by one training and by training again, for all and given client 0; a row a value."""
    federation, vertical = federation_of(data_of(task, seed), combine, model, seed)
    n = len(vertical.clients)
    chosen = schedule(n, n // 2 if is_partial else n, seed)
    utilities = retrained(federation, vertical, chosen)
    with tempfile.TemporaryDirectory() as folder:
        found = measured(recorded(federation, vertical, chosen, Path(folder) / "ledger"), vertical)
    name = f"{combine}, {model}{', asynchronous' if is_partial else ''}"
    questions: dict[str, Callable[[Floats], Floats]] = {"": shapley_values, ", given 0": partial(values_given, given=0)}
    rows = []
    for column, values_of in questions.items():
        for method, of_method in found.items():
            for value, truth in zip(values_of(of_method), values_of(utilities), strict=True):
                row = {"task": task, "embeddings": name, "seed": seed, "column": method + column}
                rows.append({**row, "value": value, "truth": truth})
    return rows


def correlations(rows: list[dict[str, Any]], by: list[str]) -> pd.DataFrame:
    """How well values agree with training again, over all clients of a group; a column a method."""
    frame = pd.DataFrame(rows).dropna()
    found = frame.groupby([*by, "column"], sort=False)[["value", "truth"]].apply(
        lambda part: float(np.corrcoef(part["value"], part["truth"])[0, 1])
    )
    return found.unstack(sort=False)


def measured(ledger: Ledger, vertical: Vertical) -> dict[str, Floats]:
    """(2^n,): what each coalition is worth by each method; for VerFedSV, the sum over the rounds."""
    federation = Federation(ledger, vertical.task(), work=PLAIN)
    everyone = np.arange(2 ** len(vertical.clients))
    total = np.zeros(len(everyone))
    for t in range(ledger.n_rounds):  # a coalition has what those of its members have that took part
        places = sum((everyone >> k & 1) << place for place, k in enumerate(ledger.participants(t)))
        total += all_utilities(federation.game(t)).sum(axis=1)[places]
    return {
        "verfedsv": total,
        "refitted-head": all_utilities(RefittedGame(federation.recorded)).sum(axis=1),
    }


def splitting(seed: int) -> Iterator[dict[str, Any]]:
    """Client 0 as two clients with half of its features each, and client 0 with a twin."""
    plain = data_of("independent", seed)
    halves = [*np.array_split(plain.columns[0], 2), *plain.columns[1:]]
    cases = {"whole": plain.columns, "halves": halves, "twin": [plain.columns[0], *plain.columns]}
    for case, columns in cases.items():
        federation, vertical = federation_of(replace(plain, columns=columns), "concatenation", "logistic", seed)
        row: dict[str, Any] = {"case": case, "seed": seed}
        everyone = schedule(len(columns), len(columns), seed)
        with tempfile.TemporaryDirectory() as folder:
            found = measured(recorded(federation, vertical, everyone, Path(folder) / "ledger"), vertical)
        for method, of_method in {**found, "retraining": retrained(federation, vertical, everyone)}.items():
            row[method] = float(shapley_values(of_method)[: 1 if case == "whole" else 2].sum())
            if case == "twin":
                row[f"{method}, given the twin"] = float(values_given(of_method, 0)[1])
        yield row


def intervals(task: str, model: str, seed: int) -> Iterator[dict[str, Any]]:
    """Whether intervals by few validation samples hold what clients are worth by many; a row a value."""
    data = data_of(task, seed, N_TRAINED + N_MANY + N_DRAWN * N_FEW)
    federation, whole = federation_of(data, "concatenation", model, seed, N_TRAINED)
    n = len(federation.clients)
    many, *draws = (
        slice(0, N_MANY),
        *(slice(start, start + N_FEW) for start in range(N_MANY, len(whole.labels), N_FEW)),
    )

    def on(part: slice, folder: Path) -> tuple[Ledger, Vertical]:
        some = replace(federation, validation=[features[part] for features in federation.validation])
        vertical = some.vertical(whole.labels[part])
        return recorded(some, vertical, schedule(n, n, seed), folder), vertical

    with tempfile.TemporaryDirectory() as folder:
        found = measured(*on(many, Path(folder) / "many"))
        truths = {name: shapley_values(utilities) for name, utilities in found.items()}
        truths["refitted-head, given 0"] = values_given(found["refitted-head"], 0)
        for number, part in enumerate(draws):
            ledger, vertical = on(part, Path(folder) / str(number))
            for column, truth in truths.items():
                method, _, given = column.partition(", given ")
                settings = ValuationSettings(given=(given,) if given else ())
                made = Federation(ledger, vertical.task(), settings, work=PLAIN).value(method)
                for line, true in zip(made, truth, strict=True):
                    if line.low is not None and line.high is not None:
                        row = {"task": task, "embeddings": f"concatenation, {model}", "seed": seed, "column": column}
                        yield {**row, "held": float(line.low <= true <= line.high)}


def batches(task: str, model: str, n_participants: int, seed: int) -> dict[str, Any]:
    """How far off estimated embeddings are if only those of training batches are sent; and values on them."""
    data = data_of(task, seed)
    federation, _ = federation_of(data, "concatenation", model, seed)
    n = len(federation.clients)
    chosen = schedule(n, n_participants, seed)
    settings = replace(federation.settings, n_steps=1, batch_size=64)
    one_batch = replace(federation, settings=settings, validation=())
    vertical = one_batch.vertical(federation.labels)
    row: dict[str, Any] = {"task": task, "bottoms": model, "participants": f"{n_participants} of {n}", "seed": seed}
    with tempfile.TemporaryDirectory() as folder:
        ledgers = {}
        for name, sent in ("batches", one_batch), ("all", replace(one_batch, validation=federation.features)):
            ledgers[name] = recorded(sent, vertical, chosen, Path(folder) / name)
        whole = Federation(ledgers["all"], vertical.task(), work=PLAIN)
        for how in COMPLETIONS:
            row[f"error, {how}"] = EmbeddingLedger.of(ledgers["batches"], how).held_out_error()
            estimated = Federation(ledgers["batches"], vertical.task(), ValuationSettings(unsent=how), work=PLAIN)
            for method in "verfedsv", "refitted-head":
                found, truth = (of.value(method).values for of in (estimated, whole))
                row[f"{method}, {how}"] = float(np.linalg.norm(found - truth) / np.linalg.norm(truth))
    return row


def cancelling(task: str, batch_size: int | None, seed: int) -> dict[str, Any]:
    """What clients gained and lost in single rounds, over what remains; and how many values are below zero."""
    federation, vertical = federation_of(data_of(task, seed), "concatenation", "logistic", seed)
    federation = replace(federation, settings=replace(federation.settings, batch_size=batch_size))
    n = len(federation.clients)
    with tempfile.TemporaryDirectory() as folder:
        ledger = recorded(federation, vertical, schedule(n, n, seed), Path(folder) / "ledger")
        made = Federation(ledger, vertical.task(), work=PLAIN).value("verfedsv")
    assert made.by_round is not None
    assert made.intervals is not None
    ratio = float(np.abs(made.by_round).sum() / np.abs(made.values).sum())
    below = float((made.intervals[:, 1] < 0).mean())
    size = "all" if batch_size is None else str(batch_size)
    return {"task": task, "batches of": size, "seed": seed, "moved / remains": ratio, "intervals below 0": below}


def markdown(frame: pd.DataFrame) -> str:
    """The frame as a Markdown table."""
    rows = [list(frame.columns), ["---"] * len(frame.columns), *frame.astype(object).fillna("").to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def means(rows: list[dict[str, Any]], by: list[str], digits: int = 2) -> str:
    """A table of means over the seeds."""
    frame = pd.DataFrame(rows).drop(columns="seed").groupby(by, sort=False).mean().reset_index()
    return markdown(frame.round(digits))


def all_rows(work: Callable[..., Any], cases: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """The rows of all cases, in processes of one thread each."""
    spawn = get_context("spawn")
    with ProcessPoolExecutor(mp_context=spawn, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return [row for rows in pool.map(partial(rows_of, work), cases) for row in rows]


def rows_of(work: Callable[..., Any], case: tuple[Any, ...]) -> list[dict[str, Any]]:
    """The rows of one case."""
    found = work(*case)
    return [found] if isinstance(found, dict) else list(found)


def show_agreement(seeds: range) -> None:
    """How well values agree with training again."""
    cases = [
        (task, combine, model, is_partial, seed)
        for task in TASKS
        for combine, model, is_partial in (MODELS if task != "digits" else MODELS[::3])
        for seed in (seeds if task != "digits" else seeds[:3])
    ]
    rows = all_rows(agreement, cases)
    pooled = correlations(rows, ["task", "embeddings"]).round(2).reset_index()
    print("Correlation with training again, over the clients of all seeds\n\n", markdown(pooled), sep="")
    of_seeds = correlations(rows, ["task", "embeddings", "seed"]).groupby(["task", "embeddings"], sort=False)
    for name, frame in ("median", of_seeds.median()), ("least", of_seeds.min()):
        print(f"\nThe {name} of single seeds\n\n", markdown(frame.round(2).reset_index()), sep="")


def show_intervals(seeds: range) -> None:
    """How many intervals hold."""
    cases = [(task, model, seed) for task in TASKS[:3] for model in ("logistic", "mlp") for seed in seeds[:3]]
    frame = pd.DataFrame(all_rows(intervals, cases))
    held = frame.groupby(["task", "embeddings", "column"], sort=False)["held"].mean().unstack(sort=False)
    print("90 % intervals that hold\n\n", markdown(held.round(2).reset_index()), sep="")


def show_splitting(seeds: range) -> None:
    """What two halves and two twins get."""
    found = all_rows(splitting, [(seed,) for seed in seeds[:2]])
    print("Split and doubled clients\n\n", means(found, ["case"], 3), sep="")


def show_batches(seeds: range) -> None:
    """Errors of estimated embeddings."""
    cases = (("digits", "logistic", 8), ("digits", "mlp", 2), ("independent", "logistic", 6), ("overlapping", "mlp", 1))
    found = all_rows(batches, [(*case, seed) for case in cases for seed in seeds[:2]])
    print("Batches only\n\n", means(found, ["task", "bottoms", "participants"]), sep="")


def show_cancelling(seeds: range) -> None:
    """How much of what VerFedSV measures in single rounds cancels."""
    cases = [(task, size) for task in TASKS for size in (None, 64, 8)]
    found = pd.DataFrame(all_rows(cancelling, [(*case, seed) for case in cases for seed in seeds[:4]]))
    rows = found.groupby(["task", "batches of"], sort=False)
    frame = rows.agg({"moved / remains": ["min", "max"], "intervals below 0": "mean"}).round(2)
    frame.columns = pd.Index(["moved / remains, least", "most", "intervals below 0"])
    print("Steps that cancel\n\n", markdown(frame.reset_index()), sep="")


PARTS = {
    "agreement": show_agreement,
    "intervals": show_intervals,
    "cancelling": show_cancelling,
    "splitting": show_splitting,
    "batches": show_batches,
}


def main(arguments: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser("python benchmarks/vertical.py", description=__doc__)
    parser.add_argument("--only", choices=PARTS, help="one of the tables (default: all)")
    parser.add_argument(
        "--seeds", type=int, default=12, help="how many (default: 12; digits and intervals 3, the last tables 2)"
    )
    parser.add_argument("--first-seed", type=int, default=400)
    args = parser.parse_args(arguments)
    for name, show in PARTS.items():
        if args.only in (None, name):
            before = os.times().children_user
            show(range(args.first_seed, args.first_seed + args.seeds))
            print(f"\n{os.times().children_user - before:.0f} s of processor time\n", flush=True)


if __name__ == "__main__":
    main()
